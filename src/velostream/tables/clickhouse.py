"""The kind `clickhouse`: tables and views of a ClickHouse server, attached read-only, by clickhouse-connect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate, takewhile
from typing import Any, ClassVar

import pyarrow as pa

from velostream.errors import StoreError, UnsupportedError
from velostream.model.change import Epoch
from velostream.model.clickhouse import PORT, SCHEMES, SSL_MODE, Bound, ClickhouseServer, is_nullable, marker, quote
from velostream.model.options import Option, Options, OptionType
from velostream.model.server import ServerAddress, connect_seconds, lock_seconds
from velostream.tables.base import TableCapabilities, TableWrites
from velostream.tables.clickhouse_driver import Connection, failure_of
from velostream.tables.clickhouse_types import foreign_codec
from velostream.tables.relational.codec import Codec
from velostream.tables.relational.dialect import DriverConnection, Failure, FindCondition, encoded_columns
from velostream.tables.relational.layout import DeclaredColumn, DeclaredTable, Layout, StoredColumn
from velostream.tables.relational.nulls import NullPattern, by_nulls
from velostream.tables.relational.server_table import ServerDialect, ServerTable

_NULL = "NULL"
_CHARACTERS_AT_ONCE = 1_000_000
"""Of the values that one request binds."""
_OF_WRITERS = ("if.exists", "access", "history", "read.replica.url")
"""Options that mean nothing to a table that is only read."""


class ClickhouseTable(ServerTable):
    """A table or view that somebody else fills. Its key is what the statement says it is: ClickHouse keeps none.

    Each statement sees one state of the table; a lookup of very many keys takes more than one.
    """

    kind: ClassVar[str] = "clickhouse"
    schemes: ClassVar[tuple[str, ...]] = SCHEMES
    port: ClassVar[int] = PORT
    capabilities: ClassVar[TableCapabilities] = TableCapabilities(lookup=True, conditions=True)
    options: ClassVar[tuple[Option, ...]] = (
        *(option for option in ServerTable.options if option.name not in _OF_WRITERS),
        Option("access", "tables are attached to be read", OptionType.CHOICE, "read-only", choices=("read-only",)),
        SSL_MODE,
    )

    @classmethod
    def dialect_at(cls, address: ServerAddress, options: Options) -> ClickhouseDialect:
        try:
            import clickhouse_connect  # noqa: F401 - only whether it is there
        except ImportError as error:
            raise StoreError.missing_driver(cls.kind, module="clickhouse_connect", extra="clickhouse") from error
        server = ClickhouseServer.at(
            address,
            ssl_mode=options.text("ssl.mode"),
            connect_seconds=connect_seconds(options),
            wait_seconds=lock_seconds(options),
        )
        return ClickhouseDialect(server)

    def commit_together(self, parts: Sequence[TableWrites], epoch: Epoch | None = None) -> None:
        raise UnsupportedError.capability(self.kind, "transactions")

    def _refuse_if_read_only(self, capability: str) -> None:
        raise UnsupportedError.capability(self.kind, capability)


class ClickhouseDialect(ServerDialect):
    """ClickHouse: whole batches of keys by arrays, values bound by the server, sums in 256 bits."""

    kind: ClassVar[str] = "clickhouse"

    def __init__(self, server: ClickhouseServer) -> None:
        from clickhouse_connect.driver.exceptions import ClickHouseError

        settings = (server.secure, server.verify, server.connect_seconds, server.wait_seconds)
        super().__init__(server.address, settings=settings)
        self.errors = (ClickHouseError,)
        self._server = server

    def connect(self) -> DriverConnection:
        return Connection.to(self._server)

    def begin(self, connection: DriverConnection, *, write: bool) -> None:
        """A query sees one state of its table; there is nothing to begin."""

    def failure(self, error: BaseException) -> Failure:
        return failure_of(error, shown=self._address.without_password)

    def stamp(self, connection: DriverConnection, layout: Layout, version: int) -> str | None:
        # Whatever is written, removed or merged gives other parts. Tables without parts don't tell.
        database, table = self._place(layout.name)
        (parts, names) = next(
            self.rows(
                connection,
                "SELECT count(), groupBitXor(cityHash64(name)) FROM system.parts "
                f"WHERE active AND database = {marker(0)} AND table = {marker(1)}",
                [Bound("String", database), Bound("String", table)],
            )
        )
        return f"{parts}:{names}" if parts else None

    def codec(self, type_: pa.DataType) -> Codec:
        raise UnsupportedError.capability(self.kind, "insert")

    def adopted_codec(self, type_: pa.DataType, store_type: str) -> Codec | None:
        return foreign_codec(type_, store_type)

    def declared(self, connection: DriverConnection, name: str) -> DeclaredTable | None:
        database, table = self._place(name)
        place = [Bound("String", database), Bound("String", table)]
        at_place = f"database = {marker(0)} AND table = {marker(1)}"
        found = self.rows(
            connection, f"SELECT name, type FROM system.columns WHERE {at_place} ORDER BY position", place
        )
        types = {column.decode(): type_.decode() for column, type_ in found}
        if not types:
            return None
        key = (
            self.scalar(
                connection,
                f"SELECT primary_key FROM system.tables WHERE database = {marker(0)} AND name = {marker(1)}",
                place,
            )
            or b""
        )
        # A part that is computed from columns, and what comes after it, finds no rows by their values.
        indexed = takewhile(types.__contains__, key.decode().split(", "))
        return DeclaredTable(
            tuple(DeclaredColumn(column, type_, nullable=is_nullable(type_)) for column, type_ in types.items()),
            indexes=tuple(accumulate(((column,) for column in indexed), tuple.__add__)),
        )

    def quote(self, name: str) -> str:
        return quote(name)

    def marker(self, position: int) -> str:
        return marker(position)

    def same(self, left: str, right: str) -> str:
        return f"ifNull({left} = {right}, {left} IS NULL AND {right} IS NULL)"

    def key_condition(self, layout: Layout, columns: Sequence[str], values: Sequence[str]) -> str:
        templates = (column.codec.equality or "{}" for column in layout.key)
        return " AND ".join(
            f"{name} IS NULL" if value == _NULL else f"{template.format(name)} = {template.format(value)}"
            for template, name, value in zip(templates, columns, values, strict=True)
        )

    def sum_expression(self, layout: Layout, column: StoredColumn, name: str) -> str | None:
        # Its own sums of integers are of 64 bits and overflow without a word.
        scale = column.codec.type.scale if pa.types.is_decimal(column.codec.type) else 0
        return f"toString(sumOrNull(toDecimal256({name}, {scale})))"

    def exact_sum(self, value: Any) -> Decimal:
        return Decimal(value.decode())

    def find(
        self,
        connection: DriverConnection,
        layout: Layout,
        condition: FindCondition,
        values: pa.Table,
        select: Sequence[str],
    ) -> Iterator[Sequence[Any]]:
        for pattern in by_nulls(condition.columns, values):
            texts = [_NULL if at in pattern.nulls else f"k.c{at}" for at in range(len(condition.columns))]
            matches = condition.text(texts)
            if len(pattern.nulls) == len(texts):
                number = pattern.numbers[0].as_py()
                statement = f"SELECT {number}, {', '.join(select)} FROM {layout.quoted} AS t WHERE {matches}"
                yield from self.rows(connection, statement)
                continue
            for keys in _batches(condition.columns, pattern):
                names = ["p", *(f"c{at}" for at in keys.places)]
                arrays = ", ".join(f"{marker(place)} AS {name}" for place, name in enumerate(names))
                statement = (
                    f"SELECT k.p, {', '.join(select)} FROM {layout.quoted} AS t INNER JOIN "
                    f"(SELECT {', '.join(names)} FROM (SELECT 1) ARRAY JOIN {arrays}) AS k ON {matches}"
                )
                # The join alone would read the whole table.
                among = [
                    f"t.{self.quote(condition.columns[at].stored_name)} IN {marker(place)}"
                    for place, at in enumerate(keys.places, 1)
                    if condition.columns[at].codec.equality == "{}"
                ]
                if among:
                    statement += f" WHERE {' AND '.join(among)}"
                yield from self.rows(connection, statement, keys.bound)

    def _place(self, name: str) -> tuple[str, str]:
        database, dot, table = name.partition(".")
        return (database, table) if dot else (self._address.database, name)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Some of the keys of a lookup, ready to be bound."""

    places: Sequence[int]
    """Which of the columns they have values of."""
    bound: Sequence[Bound]
    """Their numbers, and the values of each column, as arrays."""


def _batches(columns: Sequence[StoredColumn], pattern: NullPattern) -> Iterator[_Keys]:
    """Keys that fit into one request each; without those that no row can have."""
    places = [at for at in range(len(columns)) if at not in pattern.nulls]
    encoded = encoded_columns([columns[at] for at in places], pattern.rows)
    rows = zip(pattern.numbers.to_pylist(), *encoded, strict=True)
    batch: list[tuple[int, *tuple[Bound, ...]]] = []
    size = 0
    for row in rows:
        if None in row:
            continue
        batch.append(row)
        size += sum(len(str(one.value)) + 1 for one in row[1:])
        if size > _CHARACTERS_AT_ONCE:
            yield _arrays(places, batch)
            batch, size = [], 0
    if batch:
        yield _arrays(places, batch)


def _arrays(places: Sequence[int], batch: Sequence[tuple[Any, ...]]) -> _Keys:
    numbers, *columns = zip(*batch, strict=True)
    arrays = [Bound(f"Array({column[0].type})", [one.value for one in column]) for column in columns]
    return _Keys(places, [Bound("Array(UInt32)", list(numbers)), *arrays])
