"""The kind `mysql`: tables in MySQL and MariaDB, by PyMySQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import pyarrow as pa

from velostream.errors import OptionError, StoreError
from velostream.model.mysql import PORT, SCHEMES, SSL_OPTIONS, ssl_arguments
from velostream.model.options import Option, Options
from velostream.model.server import ServerAddress, connect_seconds, lock_seconds
from velostream.tables.mysql_driver import connect, failure_of, is_lost
from velostream.tables.mysql_json import NULL, codec_of, documents, json_table, short, short_values, values_of
from velostream.tables.mysql_types import foreign_codec, own_codec
from velostream.tables.relational.codec import Codec
from velostream.tables.relational.dialect import (
    IDENTITY,
    DriverConnection,
    Failure,
    FindCondition,
    encoded_rows,
)
from velostream.tables.relational.layout import DeclaredColumn, DeclaredTable, Layout, StoredColumn
from velostream.tables.relational.nulls import NullPattern, by_nulls
from velostream.tables.relational.server_table import ServerDialect, ServerTable

_FEW_VALUES = 100
"""So many are compared with every row, if there is no index; more are looked up by every row."""
_INDEXED_LENGTH = 100
"""How much of a text or of bytes an index holds."""
_KEY_PREFIX = "_velostream_key_"


class MysqlTable(ServerTable):
    """A table of a MySQL or MariaDB database."""

    kind: ClassVar[str] = "mysql"
    schemes: ClassVar[tuple[str, ...]] = SCHEMES
    port: ClassVar[int] = PORT
    options: ClassVar[tuple[Option, ...]] = (*ServerTable.options, *SSL_OPTIONS)

    @classmethod
    def dialect_at(cls, address: ServerAddress, options: Options) -> MysqlDialect:
        try:
            import pymysql  # type: ignore[import-untyped] # noqa: F401 - only whether it is there
        except ImportError as error:
            raise StoreError.missing_driver(cls.kind, module="pymysql", extra="mysql") from error
        for name in address.parameters:
            # Connections are in utf8mb4 whatever charset is asked for.
            if name != "charset":
                raise OptionError.unknown(name, known=(option.name for option in cls.options))
        return MysqlDialect(
            address,
            ssl=ssl_arguments(options),
            timeout_seconds=connect_seconds(options),
            lock_seconds=lock_seconds(options),
        )

    def create_index(self, columns: Sequence[str]) -> None:
        # MySQL has no CREATE INDEX IF NOT EXISTS.
        if not self.is_indexed(columns):
            super().create_index(columns)

    def drop_index(self, columns: Sequence[str]) -> None:
        if self.is_indexed(columns):
            super().drop_index(columns)


class MysqlDialect(ServerDialect):
    """MySQL and MariaDB: rows go in by multi-row INSERT, batches of keys as one JSON document.

    A key of columns that can't be NULL nor long is the primary key. Otherwise it is a unique index over generated
    columns, in which texts and bytes are by their SHA-256 and NULL is a value; the server computes them, so that other
    programs write such tables as they write any.
    """

    kind: ClassVar[str] = "mysql"
    longest_name: ClassVar[int | None] = 64
    text_type: ClassVar[str] = "LONGTEXT"
    bytes_type: ClassVar[str] = "LONGBLOB"

    def __init__(
        self, address: ServerAddress, *, ssl: dict[str, Any], timeout_seconds: float, lock_seconds: float
    ) -> None:
        import pymysql

        self.errors = (pymysql.Error,)
        super().__init__(address, settings=(sorted(ssl.items()), timeout_seconds, lock_seconds))
        self._connect = partial(connect, address, ssl=ssl, timeout_seconds=timeout_seconds, lock_seconds=lock_seconds)
        self._collation = ""

    def connect(self) -> DriverConnection:
        opened = self._connect()
        self._collation = opened.collation
        self.name_type = f"VARCHAR(255) CHARACTER SET utf8mb4 COLLATE {opened.collation}"
        return opened.connection

    def begin(self, connection: DriverConnection, *, write: bool) -> None:
        if write:
            # A writer waits for the table's entry first and must then see what was committed meanwhile.
            self.run(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            self.run(connection, "START TRANSACTION")
        else:
            self.run(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self.run(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    def lost(self, connection: DriverConnection) -> bool:
        return is_lost(connection)

    def failure(self, error: BaseException) -> Failure:
        return failure_of(error, shown=self._address.without_password)

    def stamp(self, connection: DriverConnection, layout: Layout, version: int) -> str | None:
        schema, name = self._schema_and_name(layout.name)
        # Kept in seconds and in memory only: within the second everything is new, and so it is on a new connection.
        row = next(
            self.rows(
                connection,
                "SELECT CAST(update_time AS CHAR), update_time > NOW() - INTERVAL 2 SECOND, CAST(NOW(6) AS CHAR) "
                "FROM information_schema.tables "
                "WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s AND table_type = 'BASE TABLE'",
                [schema, name],
            ),
            None,
        )
        if row is None:
            return None
        changed_at, recently, now = row
        opened_as = cast("Any", connection).opened_as
        return f"{version}:{opened_as}:{changed_at}:{now if recently else ''}"

    def codec(self, type_: pa.DataType) -> Codec:
        return own_codec(type_, self._collation)

    def adopted_codec(self, type_: pa.DataType, store_type: str) -> Codec | None:
        return foreign_codec(type_, store_type, self._collation)

    def declared(self, connection: DriverConnection, name: str) -> DeclaredTable | None:
        place = self._schema_and_name(name)
        columns = tuple(
            DeclaredColumn(
                column,
                type_ if collation is None else f"{type_} COLLATE {collation}",
                nullable=nullable == "YES",
                has_default=default is not None or bool(extra),
            )
            for column, type_, collation, nullable, default, extra in self.rows(
                connection,
                "SELECT column_name, column_type, collation_name, is_nullable, column_default, extra "
                "FROM information_schema.columns WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s "
                "ORDER BY ordinal_position",
                place,
            )
        )
        if not columns:
            return None
        indexes: dict[str, list[str]] = {}
        whole: dict[str, bool] = {}
        for index, column, is_whole in self.rows(
            connection,
            "SELECT index_name, column_name, sub_part IS NULL AND non_unique = 0 FROM information_schema.statistics "
            "WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s ORDER BY index_name, seq_in_index",
            place,
        ):
            indexes.setdefault(index, []).append(column)
            whole[index] = bool(is_whole) and whole.get(index, True)
        primary = indexes.get("PRIMARY", [])
        return DeclaredTable(
            columns,
            unique=tuple(frozenset(names) for index, names in indexes.items() if whole[index]),
            identity=self.quote(primary[0]) if len(primary) == 1 else None,
            indexes=tuple(tuple(names) for names in indexes.values()),
        )

    def quote(self, name: str) -> str:
        # PyMySQL puts parameters in by Python's % operator.
        return "`" + name.replace("`", "``").replace("%", "%%") + "`"

    def marker(self, position: int) -> str:
        return "%s"

    def same(self, left: str, right: str) -> str:
        return f"{left} <=> {right}"

    def stored_name(self, name: str, position: int) -> str:
        limit = self.longest_name or 0
        return name if len(name) <= limit else f"{name[: limit - 8]}~{position}"

    def identity(self, layout: Layout) -> tuple[str | None, bool]:
        return (None if layout.schema.key else self.quote(IDENTITY)), False

    def enforces(self, layout: Layout) -> bool:
        return True

    def create_statements(self, layout: Layout) -> list[str]:
        definitions = [self.column_definition(column) for column in layout.columns]
        generated = [
            (position, column) for position, column in enumerate(layout.key) if column.nullable or codec_of(column).long
        ]
        for position, column in generated:
            expression = _never_null(column, self.quote(column.stored_name))
            definitions.append(f"{self._key_name(position)} VARBINARY(80) AS ({expression}) VIRTUAL")
        terms = ", ".join(
            self._key_name(position) if (position, column) in generated else self.quote(column.stored_name)
            for position, column in enumerate(layout.key)
        )
        if layout.key and not generated:
            definitions.append(f"PRIMARY KEY ({terms})")
        else:
            # A server may insist on a primary key.
            definitions.append(f"{self.quote(IDENTITY)} BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY")
        if generated:
            definitions.append(f"UNIQUE KEY ({terms})")
        return [f"CREATE TABLE {layout.quoted} ({', '.join(definitions)}) ENGINE = InnoDB ROW_FORMAT = DYNAMIC"]

    def create_index_statement(self, layout: Layout, name: str, columns: Sequence[StoredColumn]) -> str:
        terms = ", ".join(
            self.quote(column.stored_name) + (f"({_INDEXED_LENGTH})" if codec_of(column).long else "")
            for column in columns
        )
        return f"CREATE INDEX {self.quote(name)} ON {layout.quoted} ({terms})"

    def drop_index_statement(self, layout: Layout, name: str) -> str:
        return f"DROP INDEX {self.quote(name)} ON {layout.quoted}"

    def key_condition(self, layout: Layout, columns: Sequence[str], values: Sequence[str]) -> str:
        parts = []
        for position, (column, name, value) in enumerate(zip(layout.key, columns, values, strict=True)):
            if layout.made and (column.nullable or codec_of(column).long):
                prefix = name.removesuffix(self.quote(column.stored_name))
                parts.append(f"{prefix}{self._key_name(position)} = {_never_null(column, value)}")
            elif layout.made or not codec_of(column).long:
                parts.append(f"{name} IS NULL" if value == NULL else f"{name} = {value}")
            else:
                parts.append(self._foreign_text_condition(column, name, value))
        return " AND ".join(parts)

    def equality_condition(self, layout: Layout, column: StoredColumn, left: str, values: Sequence[str]) -> str:
        if layout.made and column in layout.key and (column.nullable or codec_of(column).long):
            left = self._key_name(layout.key.index(column))
            values = [_never_null(column, value) for value in values]
        return super().equality_condition(layout, column, left, values)

    def group_term(self, column: StoredColumn, name: str) -> str | None:
        term = super().group_term(column, name)
        # Of long values the server groups by the first bytes alone (max_sort_length).
        return f"SHA2({term}, 256)" if term is not None and codec_of(column).long else term

    def upsert(self, connection: DriverConnection, layout: Layout, rows: pa.Table) -> int | None:
        if not layout.made:
            # Another unique index of the user's, or a collation, may call a row a duplicate that isn't of the key.
            return None
        names = [self.quote(column.stored_name) for column in layout.columns]
        keys = {column.name for column in layout.key}
        others = [name for name, column in zip(names, layout.columns, strict=True) if column.name not in keys]
        # Without a change nothing is counted.
        assignments = (
            ", ".join(f"{name} = VALUES({name})" for name in others) or f"{names[0]} = {layout.quoted}.{names[0]}"
        )
        return self.run_many(
            connection,
            f"INSERT INTO {layout.quoted} ({', '.join(names)}) VALUES ({', '.join(self.markers(len(names)))}) "
            f"ON DUPLICATE KEY UPDATE {assignments}",
            encoded_rows(layout.columns, rows),
        )

    def update(self, connection: DriverConnection, layout: Layout, rows: pa.Table) -> None:
        columns = [*layout.key, *(column for column in layout.columns if column not in layout.key)]
        keys = len(layout.key)
        names = [f"t.{self.quote(column.stored_name)}" for column in columns]
        for pattern in by_nulls(layout.key, rows):
            values = values_of(columns, pattern)
            condition = self.key_condition(layout, names[:keys], values[:keys])
            assigned = zip(names[keys:], values[keys:], strict=True)
            statement = (
                f"UPDATE {json_table(columns)} STRAIGHT_JOIN {layout.quoted} t ON {condition} "
                f"SET {', '.join(f'{name} = {value}' for name, value in assigned)}"
            )
            for text in documents(columns, pattern):
                self.run(connection, statement, [text])

    def delete_keys(self, connection: DriverConnection, layout: Layout, keys: pa.Table) -> int:
        names = [f"t.{self.quote(column.stored_name)}" for column in layout.key]
        count = 0
        for pattern in by_nulls(layout.key, keys):
            condition = self.key_condition(layout, names, values_of(layout.key, pattern))
            statement = f"DELETE t FROM {json_table(layout.key)} STRAIGHT_JOIN {layout.quoted} t ON {condition}"
            count += sum(self.run(connection, statement, [text]) for text in documents(layout.key, pattern))
        return count

    def delete_identities(self, connection: DriverConnection, layout: Layout, identities: Sequence[Any]) -> None:
        for start in range(0, len(identities), self.most_parameters):
            chunk = identities[start : start + self.most_parameters]
            markers = ", ".join(self.markers(len(chunk)))
            self.run(connection, f"DELETE FROM {layout.quoted} WHERE {layout.identity} IN ({markers})", chunk)

    def find(
        self,
        connection: DriverConnection,
        layout: Layout,
        condition: FindCondition,
        values: pa.Table,
        select: Sequence[str],
    ) -> Iterator[Sequence[Any]]:
        columns = condition.columns
        for pattern in by_nulls(columns, values):
            if tuple(columns) == layout.key or len(pattern.numbers) <= _FEW_VALUES:
                matches = condition.text(values_of(columns, pattern))
                source = f"{json_table(columns)} STRAIGHT_JOIN {layout.quoted} t"
            else:
                matches = self._column_condition(columns, pattern)
                derived = f"(SELECT DISTINCT {short_values(columns)} FROM {json_table(columns)}) k"
                source = f"{layout.quoted} t STRAIGHT_JOIN {derived}"
            statement = f"SELECT k.p, {', '.join(select)} FROM {source} ON {matches}"
            for text in documents(columns, pattern):
                yield from self.rows(connection, statement, [text])

    def run(self, connection: DriverConnection, statement: str, parameters: Sequence[Any] = ()) -> int:
        with connection.cursor() as cursor:
            # Parameters even where there are none, so that %% in a name is always one %.
            cursor.execute(statement, tuple(parameters))
            count: int = cursor.rowcount
            return count

    def rows(
        self, connection: DriverConnection, statement: str, parameters: Sequence[Any] = ()
    ) -> Iterator[Sequence[Any]]:
        with connection.cursor() as cursor:
            cursor.execute(statement, tuple(parameters))
            yield from cursor.fetchall()

    def _schema_and_name(self, name: str) -> tuple[str | None, str]:
        schema, dot, table = name.partition(".")
        return (schema, table) if dot else (None, name)

    def _key_name(self, position: int) -> str:
        return self.quote(f"{_KEY_PREFIX}{position}")

    def _column_condition(self, columns: Sequence[StoredColumn], pattern: NullPattern) -> str:
        """That a row has the values of `short_values`."""
        parts = []
        for at, column in enumerate(columns):
            name = f"t.{self.quote(column.stored_name)}"
            if at in pattern.nulls:
                parts.append(f"{name} IS NULL")
                continue
            exact = (column.codec.equality or "{}").format(name)
            parts.append(f"{short(column, exact)} = k.c{at}")
        return " AND ".join(parts)

    def _foreign_text_condition(self, column: StoredColumn, name: str, value: str) -> str:
        """By the user's index, whose collation may call more texts equal, and then exactly."""
        if value == NULL:
            return f"{name} IS NULL"
        template = column.codec.equality or "{}"
        exact = f"{template.format(name)} = {template.format(value)}"
        _, _, collation = column.codec.store_type.partition(" COLLATE ")
        if not collation:
            return exact
        charset = collation.partition("_")[0]
        return f"{name} = CONVERT({value} USING {charset}) COLLATE {collation} AND {exact}"


def _never_null(column: StoredColumn, expression: str) -> str:
    """A value of a key as short bytes, of which the empty ones stand for NULL."""
    shortened = f"UNHEX(SHA2({expression}, 256))" if codec_of(column).long else f"CAST({expression} AS CHAR)"
    return f"IFNULL({shortened}, '')"
