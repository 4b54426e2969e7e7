"""`clickhouse://` as a target: each batch is an insert of Arrow rows that says which batch it is.

Delivery guarantee: exactly-once into tables that recognise repeated inserts, as those made here, replicated ones and
those with a `non_replicated_deduplication_window` do; else at-least-once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from velostream.errors import Category, NotFoundError, OptionError, StoreError, TableError
from velostream.model.change import Epoch
from velostream.model.clickhouse import CONNECTION_OPTIONS, ClickhouseServer, category_of, quote, reason_of
from velostream.model.options import Option
from velostream.model.schema import Column, Schema
from velostream.sinks.base import Sink, SinkCapabilities, SinkSpec
from velostream.sinks.common import with_parameters

_REMEMBERED_INSERTS = 1000
_PLAIN: dict[pa.DataType, str] = {
    pa.bool_(): "Bool",
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.string(): "String",
    pa.binary(): "String",
    pa.date32(): "Date32",
}
_ALLOWS_NULL = re.compile(r"(LowCardinality\()?(Nullable|Array|Map|Tuple|Nested|Variant|Dynamic|JSON)\b")
"""Types of columns that hold a NULL; those of lists and the like hold an empty one in its place."""


class ClickhouseSink(Sink):
    """Rows are added to a table, which is made if it isn't there."""

    kind = "clickhouse"
    capabilities = SinkCapabilities(idempotent=True, guarantee="exactly-once into tables that deduplicate inserts")
    options = (
        Option("table", "the table that rows are added to"),
        Option("key", "where the table is made: columns of which the newest row stays, when ClickHouse merges"),
        *CONNECTION_OPTIONS,
    )

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(with_parameters(spec))
        self._server = ClickhouseServer.of(self.spec.uri, self.settings)
        table = self.settings.text("table")
        if table is None:
            raise OptionError(
                'sink "clickhouse" needs the option "table"', hint="INSERT INTO clickhouse://…?table=name"
            )
        self._table = ".".join(map(quote, table.split(".")))
        self._client: Any = None
        self._never_null: frozenset[str] = frozenset()

    def open(self, schema: Schema) -> None:
        key = [name.strip() for name in (self.settings.text("key") or "").split(",") if name.strip()]
        with self._failures():
            exists = self._connected().command(f"EXISTS TABLE {self._table}")
            if not int(exists):
                self._connected().command(self._definition(schema.with_key(key)))
            described = self._connected().query(f"DESCRIBE TABLE {self._table}").result_rows
        known = {str(row[0]): str(row[1]) for row in described}
        self._never_null = frozenset(name for name, type_ in known.items() if not _ALLOWS_NULL.match(type_))
        for name in schema.names:
            if name not in known:
                raise NotFoundError.of("column", name, known=list(known))

    def write(self, rows: pa.Table, epoch: Epoch) -> None:
        if not rows.num_rows:
            return
        for name in rows.column_names:
            # ClickHouse would put a 0 or an empty text in its place.
            if name in self._never_null and rows.column(name).null_count:
                raise TableError.null_in(self._table, name)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows.combine_chunks())
        columns = ", ".join(map(quote, rows.column_names))
        token = f"{epoch.writer}-{epoch.number}".replace("\\", "\\\\").replace("'", "\\'")
        insert = (
            f"INSERT INTO {self._table} ({columns}) "
            f"SETTINGS insert_deduplicate = 1, async_insert = 0, insert_deduplication_token = '{token}' "
            "FORMAT ArrowStream"
        )
        with self._failures():
            self._connected().command(insert, data=sink.getvalue().to_pybytes())

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> Any:
        if self._client is None:
            self._client = self._server.client()
        return self._client

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Within, errors of the driver become errors of this store."""
        try:
            from clickhouse_connect.driver.exceptions import ClickHouseError
        except ImportError as error:
            raise StoreError.missing_driver(self.kind, module="clickhouse_connect", extra="clickhouse") from error
        try:
            yield
        except ClickHouseError as error:
            category, where = category_of(error), str(self._server.address)
            reason = self._server.address.without_password(reason_of(error))
            if category in (Category.NETWORK, Category.AUTHENTICATION):
                raise StoreError.unreachable(self.kind, where=where, reason=reason, category=category) from error
            raise StoreError(f'{self.kind} at "{where}" refused rows', detail=reason, category=category) from error

    def _definition(self, schema: Schema) -> str:
        columns = ", ".join(f"{quote(column.name)} {_store_type(column, schema)}" for column in schema.columns)
        engine = "ReplacingMergeTree" if schema.key else "MergeTree"
        order = ", ".join(map(quote, schema.key))
        return (
            f"CREATE TABLE {self._table} ({columns}) ENGINE = {engine} ORDER BY ({order}) "
            f"SETTINGS non_replicated_deduplication_window = {_REMEMBERED_INSERTS}"
        )


def _store_type(column: Column, schema: Schema) -> str:
    """The type of a column of a table that is made; arrays, maps and tuples of ClickHouse can't be NULL."""
    found = _type(column, column.type)
    nested = pa.types.is_nested(column.type)
    return found if nested or not column.nullable or column.name in schema.key else f"Nullable({found})"


def _type(column: Column, type_: pa.DataType) -> str:
    if type_ in _PLAIN:
        return _PLAIN[type_]
    if pa.types.is_decimal(type_):
        return f"Decimal({type_.precision}, {type_.scale})"
    if pa.types.is_timestamp(type_):
        return "DateTime64(6, 'UTC')"
    if pa.types.is_list(type_):
        return f"Array({_inside(column, type_.value_type)})"
    if pa.types.is_map(type_):
        return f"Map({_type(column, type_.key_type)}, {_inside(column, type_.item_type)})"
    if pa.types.is_struct(type_):
        return f"Tuple({', '.join(f'{quote(field.name)} {_inside(column, field.type)}' for field in type_)})"
    raise TableError(
        f'column "{column.name}" is {column.sql_type}, which ClickHouse has no type for', code="wrong-type"
    )


def _inside(column: Column, type_: pa.DataType) -> str:
    found = _type(column, type_)
    return found if pa.types.is_nested(type_) else f"Nullable({found})"
