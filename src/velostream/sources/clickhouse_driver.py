"""clickhouse-connect for ClickHouse as a source: results streamed as Arrow, and what the driver's errors mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa

from velostream.errors import Category, SourceError, StoreError
from velostream.model.clickhouse import (
    Bound,
    ClickhouseServer,
    category_of,
    marker,
    quote,
    reason_of,
    typed,
)
from velostream.model.conform import TimeRules, conform
from velostream.model.schema import Column, Schema
from velostream.sources.base import BadRecord, OnBad
from velostream.sources.clickhouse_types import read_as
from velostream.sources.database import DatabaseDriver, DatabaseSession, Selection, Statement

_ROWS_WORTH_A_PART = 2_000_000
"""Each part reads the sorting key of the whole table; below that, it costs more than it brings."""
_TYPES_OF_VALUES = {bool: "Bool", int: "Int64", float: "Float64", str: "String"}


@dataclass(frozen=True)
class ClickhouseDriver(DatabaseDriver):
    """One database of a server, read as one user. Each statement sees one state of its table."""

    kind: ClassVar[str] = "clickhouse"

    server: ClickhouseServer
    compression: str = "lz4_frame"
    """Of the rows on their way: the server's `output_format_arrow_compression_method`."""
    timezone: str = "UTC"

    def open(self, *, snapshot: str | None = None, shared: bool = False) -> ClickhouseSession:
        with self.failures():
            return ClickhouseSession(self, self.server.borrowed())

    @contextmanager
    def failures(self, *, name: str | None = None) -> Iterator[None]:
        """Within, errors of the driver become errors of this source; `name` is what was being read."""
        try:
            from clickhouse_connect.driver.exceptions import ClickHouseError
            from urllib3.exceptions import HTTPError
        except ImportError as error:
            raise StoreError.missing_driver(self.kind, module="clickhouse_connect", extra="clickhouse") from error
        try:
            yield
        except ClickHouseError as error:
            raise self._failure(error, category_of(error), name=name) from error
        except (HTTPError, OSError, pa.ArrowInvalid) as error:
            # A stream of rows that broke off; the server writes an error after rows that it has sent already.
            raise self._failure(error, Category.NETWORK, name=name) from error

    def quote(self, name: str) -> str:
        return quote(name)

    def marker(self, position: int) -> str:
        return marker(position)

    def bindable(self, value: Any, type_: pa.DataType) -> Any:
        match value:
            case Decimal():
                return Bound(f"Decimal({type_.precision}, {type_.scale})", value)
            case datetime():
                instant = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
                return Bound("DateTime64(6, 'UTC')", instant.isoformat(sep=" ", timespec="microseconds"))
            case date():
                return Bound("Date32", value)
            case _:
                return _bound(value)

    def _failure(self, error: BaseException, category: Category, *, name: str | None) -> SourceError:
        address = self.server.address
        reason = address.without_password(reason_of(error))
        if category is Category.MISSING and name is not None:
            return SourceError.missing_table(self.kind, name, where=str(address), reason=reason)
        if category is Category.NETWORK:
            return SourceError.unreachable(self.kind, where=str(address), reason=reason, category=category)
        return SourceError.refused(self.kind, where=str(address), reason=reason, category=category)


class ClickhouseSession(DatabaseSession):
    """One client."""

    def __init__(self, driver: ClickhouseDriver, client: Any) -> None:
        self._driver = driver
        self._client = client

    def discover(self, selection: Selection) -> Schema:
        columns = self._columns(self._driver.select(selection.unlimited, ()), name=selection.shown)
        found = {name: read_as(type_) for name, type_ in columns.items()}
        return Schema(tuple(Column(name, one.type, nullable=one.nullable) for name, one in found.items()))

    def rows(self, statement: Statement, schema: Schema, on_bad: OnBad, *, size: int) -> Iterator[pa.RecordBatch]:
        times = TimeRules(self._driver.timezone)
        wanted = {name.lower() for name in schema.names}
        columns = {name: type_ for name, type_ in self._columns(statement).items() if name.lower() in wanted}
        listed = (_selected(name, type_) for name, type_ in columns.items())
        text, values = typed(
            f"SELECT {', '.join(listed) or '1'} FROM ({statement.sql}) "
            "SETTINGS output_format_arrow_string_as_string = 0, query_plan_remove_redundant_sorting = 0, "
            f"output_format_arrow_compression_method = '{self._driver.compression}'",
            _bound_values(statement),
        )
        with self._driver.failures(name="query"):
            stream = self._client.raw_stream(text, parameters=values, fmt="ArrowStream")
        read = 0
        with closing(stream):
            for batch in self._batches(stream):
                arrived = pa.Table.from_batches([batch])

                def reject(index: int, reason: str, arrived: pa.Table = arrived, read: int = read) -> None:
                    raw = repr(arrived.slice(index, 1).to_pylist()[0]).encode()
                    on_bad(BadRecord(raw, f"row {read + index + 1}", reason))

                rows = conform(arrived, schema, reject, times=times)
                yield from rows.combine_chunks().to_batches(max_chunksize=size)
                read += batch.num_rows

    def parts(self, selection: Selection, count: int) -> Sequence[str]:
        """By a hash of the sorting key: each row is of one part, whatever is merged or inserted meanwhile."""
        if selection.query is not None:
            return ()
        database, _, table = str(selection.table).rpartition(".")
        place = [selection.schema or database or self._driver.server.address.database, table]
        found = self._ask(
            "SELECT sorting_key, ifNull(total_rows, 0) FROM system.tables "
            f"WHERE database = {marker(0)} AND name = {marker(1)}",
            place,
        )
        for key, total in found:
            count = min(count, total // _ROWS_WORTH_A_PART)
            if key and count > 1:
                return [f"ifNull(cityHash64({key}), 0) % {count:d} = {number:d}" for number in range(count)]
        return ()

    def close(self) -> None:
        self._driver.server.give_back(self._client)

    def _columns(self, statement: Statement, *, name: str = "query") -> dict[str, str]:
        """The columns that a statement gives, and their types as the server names them."""
        described = self._ask(f"DESCRIBE TABLE ({statement.sql})", statement.values, name=name)
        return {str(row[0]): str(row[1]) for row in described}

    def _ask(self, sql: str, values: Sequence[Any], *, name: str | None = None) -> Sequence[Sequence[Any]]:
        """A small result."""
        text, bound = typed(sql, _bound_values(Statement(sql, tuple(values))))
        with self._driver.failures(name=name):
            rows: Sequence[Sequence[Any]] = self._client.query(text, parameters=bound).result_rows
        return rows

    def _batches(self, stream: Any) -> Iterator[pa.RecordBatch]:
        with self._driver.failures():
            reader = pa.ipc.open_stream(stream)
        while True:
            with self._driver.failures():
                batch = next(reader, None)
            if batch is None:
                return
            yield batch


def _selected(name: str, store_type: str) -> str:
    """A column as it is to come."""
    wanted = read_as(store_type).store_type
    return quote(name) if wanted == store_type else f"CAST({quote(name)}, {_text(wanted)}) AS {quote(name)}"


def _bound_values(statement: Statement) -> list[Bound]:
    return [value if isinstance(value, Bound) else _bound(value) for value in statement.values]


def _bound(value: Any) -> Bound:
    """A parameter of a query, of the type that its value has."""
    return Bound(_TYPES_OF_VALUES.get(type(value), "Nullable(String)"), value)


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
