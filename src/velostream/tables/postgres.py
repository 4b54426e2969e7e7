"""The kind `postgres`: tables, views and materialized views in PostgreSQL, by psycopg 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import pyarrow as pa
import pyarrow.csv

from velostream.errors import StoreError
from velostream.model.options import Option, Options
from velostream.model.server import ServerAddress, connect_seconds, lock_seconds
from velostream.tables.memory.keys import as_array
from velostream.tables.postgres_driver import connect, failure_of, is_lost
from velostream.tables.postgres_types import NONDETERMINISTIC, PostgresCodec, array_literal, foreign_codec, own_codec
from velostream.tables.relational.codec import Codec
from velostream.tables.relational.dialect import (
    IDENTITY,
    DriverConnection,
    Failure,
    FindCondition,
)
from velostream.tables.relational.layout import DeclaredColumn, DeclaredTable, Layout, StoredColumn
from velostream.tables.relational.nulls import NullPattern, by_nulls
from velostream.tables.relational.server_table import ServerDialect, ServerTable

_BYTES_AT_ONCE = 32_000_000
_NULL = "NULL"


class PostgresTable(ServerTable):
    """A table of a PostgreSQL database. `WITH ('access' = 'read-only')` attaches views and materialized views."""

    kind: ClassVar[str] = "postgres"
    schemes: ClassVar[tuple[str, ...]] = ("postgresql", "postgres")
    port: ClassVar[int] = 5432
    options: ClassVar[tuple[Option, ...]] = (
        *ServerTable.options,
        Option("ssl.mode", "as libpq's sslmode: disable, prefer, require, verify-ca, verify-full"),
    )

    @classmethod
    def dialect_at(cls, address: ServerAddress, options: Options) -> PostgresDialect:
        try:
            import psycopg  # noqa: F401 - only whether it is there
        except ImportError as error:
            raise StoreError.missing_driver(cls.kind, module="psycopg", extra="postgres") from error
        ssl_mode = options.text("ssl.mode")
        ssl = {} if ssl_mode is None else {"sslmode": ssl_mode}
        return PostgresDialect(
            address,
            parameters={**address.parameters, **ssl},
            timeout_seconds=connect_seconds(options),
            lock_seconds=lock_seconds(options),
        )


class PostgresDialect(ServerDialect):
    """PostgreSQL: rows go in by COPY, whole batches of keys or rows by arrays, and what comes back is binary.

    A key is a unique index with NULLs as values; texts and bytes are in it by their SHA-256, computed by the server, as
    an index entry can't be longer than a third of a page. Other programs write such tables as they write any.
    """

    kind: ClassVar[str] = "postgres"
    longest_name: ClassVar[int | None] = 63
    name_type: str = 'text COLLATE "C"'
    text_type: ClassVar[str] = "text"
    bytes_type: ClassVar[str] = "bytea"

    def __init__(
        self, address: ServerAddress, *, parameters: dict[str, str], timeout_seconds: float, lock_seconds: float
    ) -> None:
        import psycopg

        self.errors = (psycopg.Error,)
        super().__init__(address, settings=(sorted(parameters.items()), timeout_seconds, lock_seconds))
        self._connect = partial(
            connect, address, parameters=parameters, timeout_seconds=timeout_seconds, lock_seconds=lock_seconds
        )
        self._stamps: dict[str, tuple[str, str]] = {}
        """By table, the moment of the last look and what it gave."""

    def connect(self) -> DriverConnection:
        return self._connect()

    def begin(self, connection: DriverConnection, *, write: bool) -> None:
        # A writer waits for the table's entry first and must then see what was committed meanwhile.
        self.run(connection, "BEGIN READ WRITE" if write else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def lost(self, connection: DriverConnection) -> bool:
        return is_lost(connection)

    def failure(self, error: BaseException) -> Failure:
        return failure_of(error, shown=self._address.without_password)

    def stamp(self, connection: DriverConnection, layout: Layout, version: int) -> str | None:
        # No transaction of any database of the server has ended since: nothing needs to be looked at.
        moment = self.scalar(connection, "SELECT pg_current_snapshot()::text || pg_postmaster_start_time()::text")
        known = self._stamps.get(layout.name)
        if known is not None and known[0] == moment:
            return known[1]
        kind = self.scalar(
            connection, "SELECT relkind::text FROM pg_class WHERE oid = to_regclass($1)", [layout.quoted]
        )
        if kind not in ("r", "m", "p"):
            return None
        # The transaction that wrote a row is younger than all that wrote the rows it replaces, so the sum tells.
        (count, writers) = next(
            self.rows(connection, f"SELECT count(*), sum(xmin::text::bigint)::text FROM {layout.quoted}")
        )
        stamp = f"{version}:{count}:{writers}"
        self._stamps[layout.name] = (moment, stamp)
        return stamp

    def codec(self, type_: pa.DataType) -> Codec:
        return own_codec(type_)

    def adopted_codec(self, type_: pa.DataType, store_type: str) -> Codec | None:
        return foreign_codec(type_, store_type)

    def declared(self, connection: DriverConnection, name: str) -> DeclaredTable | None:
        relation = next(
            self.rows(
                connection,
                "SELECT oid::bigint, relkind::text FROM pg_class WHERE oid = to_regclass($1)",
                [self.quote_table(name)],
            ),
            None,
        )
        if relation is None:
            return None
        oid, kind = relation
        columns = tuple(
            DeclaredColumn(
                column, type_ if deterministic else type_ + NONDETERMINISTIC, nullable=not required, has_default=default
            )
            for column, type_, deterministic, required, default in self.rows(
                connection,
                "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), "
                "coalesce(c.collisdeterministic, true), a.attnotnull, "
                "a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '' "
                "FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation "
                "WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
                [oid],
            )
        )
        indexes = list(
            self.rows(
                connection,
                "SELECT array_agg(a.attname::text ORDER BY array_position(i.indkey::int2[], a.attnum)), i.indisunique "
                "FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
                "AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) WHERE i.indrelid = $1 "
                "AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid, i.indisunique",
                [oid],
            )
        )
        return DeclaredTable(
            columns,
            unique=tuple(frozenset(names) for names, is_unique in indexes if is_unique),
            identity="ctid" if kind in ("r", "m") else None,
            indexes=tuple(tuple(names) for names, _ in indexes),
        )

    def marker(self, position: int) -> str:
        return f"${position + 1}"

    def identity(self, layout: Layout) -> tuple[str | None, bool]:
        return (None if layout.schema.key else self.quote(IDENTITY)), False

    def enforces(self, layout: Layout) -> bool:
        return True

    def create_statements(self, layout: Layout) -> list[str]:
        columns = [self.column_definition(column) for column in layout.columns]
        terms = ", ".join(self._key_terms(layout))
        natural = not any(column.nullable or _hashed(column) for column in layout.key)
        if not layout.key:
            columns.append(f"{self.quote(IDENTITY)} bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY")
        elif natural:
            columns.append(f"PRIMARY KEY ({terms})")
        statements = [f"CREATE TABLE {layout.quoted} ({', '.join(columns)})"]
        if layout.key and not natural:
            statements.append(f"CREATE UNIQUE INDEX ON {layout.quoted} ({terms}) NULLS NOT DISTINCT")
        return statements

    def create_index_statement(self, layout: Layout, name: str, columns: Sequence[StoredColumn]) -> str:
        # Only a hash index takes values of any length, and it takes one column.
        long = next((column for column in columns if _hashed(column)), None)
        terms = ", ".join(map(self._name, columns)) if long is None else self._name(long)
        method = "btree" if long is None else "hash"
        return f"CREATE INDEX IF NOT EXISTS {self.quote(name)} ON {layout.quoted} USING {method} ({terms})"

    def drop_index_statement(self, layout: Layout, name: str) -> str:
        schema, dot, _ = layout.name.partition(".")
        return f"DROP INDEX IF EXISTS {self.quote(schema) + '.' if dot else ''}{self.quote(name)}"

    def key_condition(self, layout: Layout, columns: Sequence[str], values: Sequence[str]) -> str:
        """Here NULL is told by the text of a value, see `finds_nulls_apart`, so that indexes and hash joins serve."""
        parts = []
        for column, name, value in zip(layout.key, columns, values, strict=True):
            if value == _NULL:
                parts.append(f"{name} IS NULL")
                continue
            if layout.made and _hashed(column):
                parts.append(f"{_hash(column, name)} = {_hash(column, value)}")
            parts.append(f"{name} = {value}")
            if column.codec.equality != "{}" and not layout.made:
                parts.append(f'({name})::text COLLATE "C" = ({value})::text COLLATE "C"')
        return " AND ".join(parts)

    def equality_condition(self, layout: Layout, column: StoredColumn, left: str, values: Sequence[str]) -> str:
        condition = super().equality_condition(layout, column, left, values)
        if not (layout.made and column in layout.key and _hashed(column)):
            return condition
        typed = [f"{value}::{_codec(column).bare_type}" for value in values]
        hashes = ", ".join(_hash(column, value) for value in typed)
        return f"{_hash(column, self.quote(column.stored_name))} IN ({hashes}) AND {left} IN ({', '.join(typed)})"

    def insert(self, connection: DriverConnection, layout: Layout, rows: pa.Table) -> None:
        names = ", ".join(self.quote(column.stored_name) for column in layout.columns)
        texts = _texts(layout.columns, rows)
        cursor = connection.cursor()
        with cursor, cursor.copy(f"COPY {layout.quoted} ({names}) FROM STDIN (FORMAT csv)") as copy:
            for chunk in _chunks(texts):
                buffer = pa.BufferOutputStream()
                pa.csv.write_csv(chunk, buffer, pa.csv.WriteOptions(include_header=False))
                copy.write(memoryview(buffer.getvalue()))

    def upsert(self, connection: DriverConnection, layout: Layout, rows: pa.Table) -> int | None:
        if not layout.made and any(column.codec.equality != "{}" for column in layout.key):
            # The user's index calls keys equal that aren't.
            return None
        names = [self.quote(column.stored_name) for column in layout.columns]
        terms = self._key_terms(layout) if layout.made else [self.quote(column.stored_name) for column in layout.key]
        keys = {column.name for column in layout.key}
        others = [column for column in layout.columns if column.name not in keys]
        action = "NOTHING"
        if others:
            assignments = ", ".join(f"{name} = excluded.{name}" for name in map(self._name, others))
            old = ", ".join(_codec(column).comparable.format(f"t.{self._name(column)}") for column in others)
            new = ", ".join(_codec(column).comparable.format(f"excluded.{self._name(column)}") for column in others)
            action = f"UPDATE SET {assignments} WHERE ({old}) IS DISTINCT FROM ({new})"
        selected = ", ".join(_selected(column, f"k.c{at}") for at, column in enumerate(layout.columns))
        count = 0
        for chunk in _chunks(_texts(layout.columns, rows)):
            count += self.run(
                connection,
                f"INSERT INTO {layout.quoted} AS t ({', '.join(names)}) SELECT {selected} "
                f"FROM {_unnested(layout.columns)} ON CONFLICT ({', '.join(terms)}) DO {action}",
                [array_literal(as_array(column)) for column in chunk.columns],
            )
        return count

    def update(self, connection: DriverConnection, layout: Layout, rows: pa.Table) -> None:
        columns = [*layout.key, *(column for column in layout.columns if column not in layout.key)]
        keys = len(layout.key)
        assignments = ", ".join(
            f"{self._name(column)} = {_selected(column, f'k.c{at}')}" for at, column in enumerate(columns[keys:], keys)
        )
        names = [f"t.{self._name(column)}" for column in layout.key]
        for pattern in by_nulls(layout.key, rows):
            values = [_NULL if at in pattern.nulls else f"k.c{at}" for at in range(keys)]
            condition = self.key_condition(layout, names, values)
            for chunk in _chunks(_texts(columns, pattern.rows)):
                self.run(
                    connection,
                    f"UPDATE {layout.quoted} AS t SET {assignments} FROM {_unnested(columns)} WHERE {condition}",
                    [array_literal(as_array(column)) for column in chunk.columns],
                )

    def delete_keys(self, connection: DriverConnection, layout: Layout, keys: pa.Table) -> int:
        names = [f"t.{self._name(column)}" for column in layout.key]
        count = 0
        for pattern in by_nulls(layout.key, keys):
            joined = _Joined(layout.key, pattern)
            condition = self.key_condition(layout, names, joined.values)
            for chunk in _chunks(joined.texts):
                count += self.run(
                    connection,
                    f"DELETE FROM {layout.quoted} t USING {joined.source} WHERE {condition}",
                    [array_literal(as_array(column)) for column in chunk.columns],
                )
        return count

    def delete_identities(self, connection: DriverConnection, layout: Layout, identities: Sequence[Any]) -> None:
        places, type_ = list(identities), "bigint"
        if layout.identity == "ctid":
            places, type_ = [_tid(number) for number in identities], "tid"
        statement = f"DELETE FROM {layout.quoted} WHERE {layout.identity} = ANY ($1::{type_}[])"
        self.run(connection, statement, [array_literal(pa.array(places))])

    def find(
        self,
        connection: DriverConnection,
        layout: Layout,
        condition: FindCondition,
        values: pa.Table,
        select: Sequence[str],
    ) -> Iterator[Sequence[Any]]:
        for pattern in by_nulls(condition.columns, values):
            joined = _Joined(condition.columns, pattern)
            statement = (
                f"SELECT k.p, {', '.join(select)} FROM {joined.source} JOIN {layout.quoted} t "
                f"ON {condition.text(joined.values)}"
            )
            for chunk in _chunks(joined.texts):
                yield from self.rows(connection, statement, [array_literal(as_array(c)) for c in chunk.columns])

    def _name(self, column: StoredColumn) -> str:
        return self.quote(column.stored_name)

    def _key_terms(self, layout: Layout) -> list[str]:
        """What the unique index of a table of ours is over."""
        return [_hash(column, self._name(column)) if _hashed(column) else self._name(column) for column in layout.key]


class _Joined:
    """Values of one pattern of NULLs as something to join with."""

    def __init__(self, columns: Sequence[StoredColumn], pattern: NullPattern) -> None:
        present = [(at, column) for at, column in enumerate(columns) if at not in pattern.nulls]
        arrays = [_codec(column).texts(as_array(pattern.rows.column(column.name))) for _, column in present]
        self.texts = pa.table([pattern.numbers, *arrays], names=[str(at) for at in range(len(arrays) + 1)])
        """What to bind, as arrays."""
        self.values = [_NULL if at in pattern.nulls else f"k.c{at}" for at in range(len(columns))]
        """SQL for the value of each column."""
        types = ["bigint", *(_codec(column).bare_type for _, column in present)]
        unnested = ", ".join(f"${at}::{type_}[]" for at, type_ in enumerate(types, 1))
        names = ", ".join(["p", *(f"c{at}" for at, _ in present)])
        self.source = f"unnest({unnested}) AS k({names})"


def _texts(columns: Sequence[StoredColumn], rows: pa.Table) -> pa.Table:
    arrays = [_codec(column).texts(as_array(rows.column(column.name))) for column in columns]
    return pa.table(arrays, names=[str(at) for at in range(len(arrays))])


def _chunks(texts: pa.Table) -> Iterator[pa.Table]:
    """Pieces that fit into one message."""
    rows = max(1, texts.num_rows * _BYTES_AT_ONCE // max(texts.nbytes, 1))
    for start in range(0, texts.num_rows, rows):
        yield texts.slice(start, rows)


def _unnested(columns: Sequence[StoredColumn]) -> str:
    # An array of arrays would be unnested to the ground, so its elements come as texts.
    types = ("text" if _codec(column).is_array else _codec(column).bare_type for column in columns)
    arrays = ", ".join(f"${at}::{type_}[]" for at, type_ in enumerate(types, 1))
    return f"unnest({arrays}) AS k({', '.join(f'c{at}' for at in range(len(columns)))})"


def _selected(column: StoredColumn, value: str) -> str:
    """A value of `_unnested` in the column's type."""
    return f"{value}::{_codec(column).bare_type}" if _codec(column).is_array else value


def _codec(column: StoredColumn) -> PostgresCodec:
    return cast("PostgresCodec", column.codec)


def _hashed(column: StoredColumn) -> bool:
    """Whether values may be too long for an index."""
    type_ = column.codec.type
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_nested(type_))


def _hash(column: StoredColumn, expression: str) -> str:
    """The SHA-256 of a value by functions that PostgreSQL lets into an index; text has no cast to bytes among them."""
    if pa.types.is_binary(column.codec.type):
        return f"sha256({expression})"
    return f"sha256(decode(replace(({expression})::text, '\\', '\\\\'), 'escape'))"


def _tid(number: int) -> str:
    return f"({number >> 16},{number & 0xFFFF})"
