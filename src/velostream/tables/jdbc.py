"""The kind `jdbc`: tables in any database that SQLAlchemy has a dialect for.

A database that has a kind of its own here (SQLite, PostgreSQL, MySQL) is used as that kind uses it. For all others
this module knows no more than standard SQL, and trusts the database with no comparison that might not be Spark's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import orjson
import pyarrow as pa

from velostream import plugins
from velostream.errors import Category, OptionError, StoreError
from velostream.model.options import Option, Options
from velostream.model.sql_errors import category_of
from velostream.tables.base import TableSpec
from velostream.tables.memory.keys import as_array
from velostream.tables.relational.base import RELATIONAL_OPTIONS, RelationalTable
from velostream.tables.relational.codec import (
    Codec,
    decode_as,
    decode_booleans,
    decode_bytes,
    decode_decimals,
    decode_floats,
    decode_microseconds,
    decode_nested,
    decode_times,
    encode_datetimes,
    encode_floats,
    encode_microseconds,
    encode_nested,
    json_values,
    plain,
)
from velostream.tables.relational.dialect import (
    IDENTITY,
    Dialect,
    DriverConnection,
    Failure,
    FindCondition,
    Trouble,
    encoded_rows,
)
from velostream.tables.relational.layout import DeclaredColumn, DeclaredTable, Layout

if TYPE_CHECKING:
    from sqlalchemy import URL
    from sqlalchemy.types import TypeEngine

KEY = "_velostream_key"
"""The hidden column with the digest of a key that the store's own key can't hold: text of any collation, NULLs."""
_MARKERS = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric_dollar": "${}", "numeric": ":{}", "named": ":{}"}
_KIND_OF_BACKEND = {"sqlite": "sqlite", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}
_TEXT_IS_BINARY = frozenset({"duckdb"})
"""Databases known to compare texts by their UTF-8 bytes."""
_ONE_WRITER = frozenset({"duckdb"})
_MOST_ALTERNATIVES = 200


class JdbcTable(RelationalTable):
    """A table of a database behind a SQLAlchemy URL."""

    kind: ClassVar[str] = "jdbc"
    options: ClassVar[tuple[Option, ...]] = (
        *RELATIONAL_OPTIONS,
        Option("username", "who to connect as; wins over the URL"),
        Option("password", "the password; better ${VARIABLE}"),
    )

    @classmethod
    def dialect_of(cls, spec: TableSpec, options: Options) -> Dialect:
        given = options.text("url")
        if given is None:
            raise OptionError(
                'kind "jdbc" needs the option "url" or "data_source"',
                hint="WITH ('url' = 'dialect+driver://user@host/database')",
                code="missing-option",
            )
        sqlalchemy = _sqlalchemy()
        try:
            url: URL = sqlalchemy.make_url(given)
        except sqlalchemy.exc.ArgumentError as error:
            raise OptionError.value("url", "…", expected="dialect+driver://user@host/database") from error
        own_kind = _KIND_OF_BACKEND.get(url.get_backend_name())
        if own_kind in plugins.names(plugins.Group.TABLES):
            table_class: type[RelationalTable] = plugins.load(plugins.Group.TABLES, str(own_kind))
            known = {name for name in options if any(option.covers(name) for option in table_class.options)}
            return table_class.dialect_of(spec, Options({name: options[name] for name in known}, table_class.options))
        return JdbcDialect(
            url.set(
                username=options.text("username") or url.username, password=options.text("password") or url.password
            )
        )


class JdbcDialect(Dialect):
    """Standard SQL over a driver of SQLAlchemy's.

    Times are integers of microseconds, which every database keeps exactly. A key is the database's own where it
    consists of numbers that are never NULL; else a hidden column holds its digest.
    """

    kind: ClassVar[str] = "jdbc"
    lock_clause: ClassVar[str] = ""
    locks_by_update: ClassVar[bool] = True
    autocommits: ClassVar[bool] = False
    most_parameters: ClassVar[int] = 2_000
    """What the least of them takes."""

    def __init__(self, url: URL) -> None:
        sqlalchemy = _sqlalchemy()
        self._url = url
        self._backend = url.get_backend_name()
        try:
            self._engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
        except sqlalchemy.exc.NoSuchModuleError as error:
            raise StoreError.missing_driver("jdbc", module=url.drivername, extra="sql") from error
        except ModuleNotFoundError as error:
            raise StoreError.missing_driver("jdbc", module=error.name or url.drivername, extra="sql") from error
        self._dialect = self._engine.dialect
        self._driver_errors = (self._dialect.loaded_dbapi.Error, sqlalchemy.exc.SQLAlchemyError)
        self._marker = _MARKERS[self._dialect.paramstyle]
        self.one_writer = self._backend in _ONE_WRITER  # type: ignore[misc]
        self.name_type = self._rendered(sqlalchemy.String(255))
        self.text_type = self._rendered(sqlalchemy.Text())  # type: ignore[misc]
        self.integer_type = self._rendered(sqlalchemy.BigInteger())  # type: ignore[misc]
        self.bytes_type = self._rendered(sqlalchemy.LargeBinary())  # type: ignore[misc]

    @property
    def errors(self) -> tuple[type[BaseException], ...]:  # type: ignore[override]
        return self._driver_errors

    @property
    def address(self) -> str:
        return self._url.render_as_string(hide_password=True)

    @property
    def connection_arguments(self) -> object:
        return self._url.password

    def connect(self) -> DriverConnection:
        connection = self._engine.raw_connection()
        connection.detach()
        return cast("DriverConnection", connection)

    def begin(self, connection: DriverConnection, *, write: bool) -> None:
        self._dialect.do_begin(connection)

    def failure(self, error: BaseException) -> Failure:
        original = getattr(error, "orig", None) or error
        reason = str(original)
        if self._url.password:
            reason = reason.replace(str(self._url.password), "***")
        # The names of PEP 249; not every module that SQLAlchemy gives has the classes themselves.
        kinds = {base.__name__ for base in type(original).__mro__}
        if "IntegrityError" in kinds:
            unique = re.search("unique|duplicate|primary key", reason, re.IGNORECASE) is not None
            trouble = Trouble.DUPLICATE if unique else Trouble.CONSTRAINT
            return Failure(trouble, Category.CONFLICT if unique else Category.DATA, reason)
        disconnected = self._dialect.is_disconnect(original, None, None)
        category = category_of(original, disconnected=disconnected)
        if disconnected and category is Category.NETWORK:
            return Failure(Trouble.TRANSIENT, category, reason, connection_lost=True)
        return Failure(_TROUBLES.get(category, Trouble.OTHER), category, reason)

    def codec(self, type_: pa.DataType) -> Codec:
        sqlalchemy = _sqlalchemy()
        text = "{}" if self._backend in _TEXT_IS_BINARY else None
        if pa.types.is_boolean(type_):
            return self._codec(type_, sqlalchemy.Boolean(), plain, decode_booleans, order=None)
        if pa.types.is_integer(type_):
            return self._codec(type_, _integer(type_), plain, decode_as(type_))
        if pa.types.is_floating(type_):
            # What NaN equals, and what is above it, differs from database to database.
            return self._codec(type_, sqlalchemy.Double(), encode_floats, decode_floats(type_), None, None)
        if pa.types.is_decimal(type_):
            numeric = sqlalchemy.Numeric(type_.precision, type_.scale)
            return self._codec(type_, numeric, plain, decode_decimals(type_))
        if pa.types.is_string(type_):
            return self._codec(type_, sqlalchemy.Text(), plain, decode_as(type_), text, text)
        if pa.types.is_binary(type_):
            return self._codec(type_, sqlalchemy.LargeBinary(), plain, decode_bytes, None, None)
        if pa.types.is_temporal(type_) and not pa.types.is_date(type_):
            return self._codec(type_, sqlalchemy.BigInteger(), encode_microseconds, decode_microseconds(type_))
        if pa.types.is_date(type_):
            return self._codec(type_, sqlalchemy.Date(), plain, decode_as(type_))
        return self._codec(type_, sqlalchemy.Text(), encode_nested, decode_nested(type_), None, None)

    def adopted_codec(self, type_: pa.DataType, store_type: str) -> Codec | None:
        ours = self.codec(type_)
        fitting = next((pattern for fits, pattern in _FITTING if fits(type_)), "CHAR|TEXT|CLOB|STRING|JSON")
        if re.search(fitting, store_type, re.IGNORECASE) is None:
            return None
        if pa.types.is_timestamp(type_):
            encode = encode_datetimes if _WITH_ZONE.search(store_type) else plain
            return Codec(type_, store_type, encode, decode_times(type_), equality=None, order=None)
        if pa.types.is_boolean(type_):
            # Where it is a number, any but zero is true.
            return Codec(type_, store_type, ours.encode, ours.decode, equality=None, order=None)
        return Codec(type_, store_type, ours.encode, ours.decode, ours.equality, ours.order)

    def declared(self, connection: DriverConnection, name: str) -> DeclaredTable | None:
        sqlalchemy = _sqlalchemy()
        schema, _, table = name.rpartition(".")
        inspector = sqlalchemy.inspect(self._engine)
        try:
            if not inspector.has_table(table, schema or None):
                return None
            columns = inspector.get_columns(table, schema or None)
            primary = inspector.get_pk_constraint(table, schema or None)["constrained_columns"]
            others = [one["column_names"] for one in inspector.get_unique_constraints(table, schema or None)]
        except (sqlalchemy.exc.SQLAlchemyError, NotImplementedError):
            # Some dialects of third parties can't say; the standard's own catalog may.
            return self._declared_by_standard(connection, schema, table)
        return DeclaredTable(
            tuple(
                DeclaredColumn(
                    column["name"],
                    str(column["type"]),
                    nullable=bool(column.get("nullable", True)),
                    has_default=column.get("default") is not None or bool(column.get("autoincrement") is True),
                )
                for column in columns
            ),
            tuple(frozenset(names) for names in (primary, *others) if names),
        )

    def create_if_missing(self, connection: DriverConnection, name: str, definition: str) -> None:
        if self.declared(connection, name) is None:
            self.run(connection, f"CREATE TABLE {self.quote_table(name)} ({definition})")

    def drop_statements(self, layout: Layout) -> list[str]:
        return [f"DROP TABLE {layout.quoted}"]

    def quote(self, name: str) -> str:
        return str(self._dialect.identifier_preparer.quote_identifier(name))

    def marker(self, position: int) -> str:
        return self._marker.format(position + 1)

    def same(self, left: str, right: str) -> str:
        return f"(CASE WHEN {left} = {right} OR ({left} IS NULL AND {right} IS NULL) THEN 1 ELSE 0 END = 1)"

    def identity(self, layout: Layout) -> tuple[str | None, bool]:
        return self.quote(IDENTITY), True

    def enforces(self, layout: Layout) -> bool:
        return True

    def create_statements(self, layout: Layout) -> list[str]:
        columns = [self.column_definition(column) for column in layout.columns]
        columns.append(f"{self.quote(IDENTITY)} {self.integer_type}")
        names = ", ".join(self.quote(column.stored_name) for column in layout.key)
        indexes = {"row": self.quote(IDENTITY)}
        if _has_hidden_key(layout):
            key_type = self._rendered(_sqlalchemy().String(64))
            columns.append(f"{self.quote(KEY)} {key_type} NOT NULL PRIMARY KEY")
            if all(column.codec.equality is not None for column in layout.key):
                indexes["key"] = names
        elif layout.key:
            columns.append(f"PRIMARY KEY ({names})")
        return [
            f"CREATE TABLE {layout.quoted} ({', '.join(columns)})",
            *(
                f"CREATE INDEX {self.quote(f'{layout.name} {name}')} ON {layout.quoted} ({terms})"
                for name, terms in indexes.items()
            ),
        ]

    def insert(self, connection: DriverConnection, layout: Layout, rows: pa.Table) -> None:
        names = [self.quote(column.stored_name) for column in layout.columns]
        encoded: Iterator[tuple[Any, ...]] = encoded_rows(layout.columns, rows)
        if layout.identity_assigned:
            names.append(str(layout.identity))
            first = self.scalar(connection, f"SELECT MAX({layout.identity}) FROM {layout.quoted}") or 0
            encoded = ((*row, number) for number, row in enumerate(encoded, first + 1))
        if _has_hidden_key(layout):
            names.append(self.quote(KEY))
            encoded = ((*row, key) for row, key in zip(encoded, _digests(layout, rows), strict=True))
        statement = f"INSERT INTO {layout.quoted} ({', '.join(names)}) VALUES "
        if not self._dialect.supports_multivalues_insert:
            self.run_many(connection, f"{statement}({', '.join(self.markers(len(names)))})", list(encoded))
            return
        for chunk in _chunks(list(encoded), max(1, self.most_parameters // len(names))):
            values = [value for row in chunk for value in row]
            self.run(connection, statement + self.tuples(len(names), len(chunk)), values)

    def update(self, connection: DriverConnection, layout: Layout, rows: pa.Table) -> None:
        if not layout.made:
            # Columns of the user's that aren't ours keep their values.
            super().update(connection, layout, rows)
            return
        self.delete_keys(connection, layout, rows)
        self.insert(connection, layout, rows)

    def delete_keys(self, connection: DriverConnection, layout: Layout, keys: pa.Table) -> int:
        if not _has_hidden_key(layout):
            names, values = [self.quote(c.stored_name) for c in layout.key], list(encoded_rows(layout.key, keys))
        else:
            names, values = [self.quote(KEY)], [(digest,) for digest in _digests(layout, keys)]
        count = 0
        for condition, parameters in self._alternatives(names, values):
            count += max(0, self.run(connection, f"DELETE FROM {layout.quoted} WHERE {condition}", parameters))
        return count

    def find(
        self,
        connection: DriverConnection,
        layout: Layout,
        condition: FindCondition,
        values: pa.Table,
        select: Sequence[str],
    ) -> Iterator[Sequence[Any]]:
        by_key = tuple(condition.columns) == layout.key
        if by_key and _has_hidden_key(layout):
            names, encoded = [f"t.{self.quote(KEY)}"], [(digest,) for digest in _digests(layout, values)]
        else:
            names = [f"t.{self.quote(column.stored_name)}" for column in condition.columns]
            encoded = list(encoded_rows(condition.columns, values))
        places = {row: place for place, row in enumerate(encoded)}
        for text, parameters in self._alternatives(names, encoded):
            statement = f"SELECT {', '.join([*names, *select])} FROM {layout.quoted} t WHERE {text}"
            for row in self.rows(connection, statement, parameters):
                place = places.get(tuple(row[: len(names)]))
                if place is not None:
                    yield (place, *row[len(names) :])

    def run_many(self, connection: DriverConnection, statement: str, rows: Any) -> int:
        return super().run_many(connection, statement, list(rows))

    def _alternatives(self, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
        """Conditions that the named columns have one of the rows' values, with what to bind; NULL equals NULL."""
        if len(names) == 1 and all(row[0] is not None for row in rows):
            for chunk in _chunks(rows, self.most_parameters):
                yield f"{names[0]} IN ({', '.join(self.markers(len(chunk)))})", [row[0] for row in chunk]
            return
        for chunk in _chunks(rows, min(_MOST_ALTERNATIVES, max(1, self.most_parameters // len(names)))):
            parameters: list[Any] = []
            alternatives = []
            for row in chunk:
                parts = []
                for name, value in zip(names, row, strict=True):
                    if value is None:
                        parts.append(f"{name} IS NULL")
                    else:
                        parts.append(f"{name} = {self.marker(len(parameters))}")
                        parameters.append(value)
                alternatives.append(f"({' AND '.join(parts)})")
            yield " OR ".join(alternatives), parameters

    def _codec(
        self,
        type_: pa.DataType,
        store_type: TypeEngine[Any],
        encode: Any,
        decode: Any,
        equality: str | None = "{}",
        order: str | None = "{}",
    ) -> Codec:
        return Codec(type_, self._rendered(store_type), encode, decode, equality, order)

    def _rendered(self, type_: TypeEngine[Any]) -> str:
        return str(type_.compile(dialect=self._dialect))

    def _declared_by_standard(self, connection: DriverConnection, schema: str, table: str) -> DeclaredTable | None:
        """From the catalog of the SQL standard."""
        where = f"table_name = {self.marker(0)}" + (f" AND table_schema = {self.marker(1)}" if schema else "")
        place = [table, schema] if schema else [table]
        columns = [
            DeclaredColumn(name, type_, nullable=nullable != "NO", has_default=default is not None)
            for name, type_, nullable, default in self.rows(
                connection,
                "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns "
                f"WHERE {where} ORDER BY ordinal_position",
                place,
            )
        ]
        if not columns:
            return None
        unique: dict[str, set[str]] = {}
        for constraint, column in self.rows(
            connection,
            "SELECT k.constraint_name, k.column_name FROM information_schema.key_column_usage k "
            "JOIN information_schema.table_constraints c ON c.constraint_name = k.constraint_name "
            f"AND c.table_name = k.table_name WHERE c.constraint_type IN ('PRIMARY KEY', 'UNIQUE') AND k.{where}",
            place[:1] if not schema else place,
        ):
            unique.setdefault(constraint, set()).add(column)
        return DeclaredTable(tuple(columns), tuple(frozenset(names) for names in unique.values()))


_TROUBLES = {Category.DATA: Trouble.CONSTRAINT, Category.CONCURRENCY: Trouble.TRANSIENT}

_FITTING = (
    (pa.types.is_boolean, "BOOL|BIT|TINYINT"),
    (pa.types.is_integer, "INT|SERIAL|NUMBER|LONG"),
    (pa.types.is_floating, "DOUBLE|FLOAT|REAL"),
    (pa.types.is_decimal, "NUM|DEC|INT|MONEY"),
    (pa.types.is_string, "CHAR|TEXT|CLOB|STRING|UUID"),
    (pa.types.is_binary, "BLOB|BINARY|BYTEA|RAW|IMAGE"),
    (pa.types.is_date, "^DATE$"),
    (pa.types.is_timestamp, "TIMESTAMP|DATETIME"),
    (pa.types.is_duration, "INT|NUMBER|LONG"),
)
"""For each of our types the words of a user's column that holds its values."""
_WITH_ZONE = re.compile("WITH TIME ZONE|TIMESTAMPTZ|OFFSET", re.IGNORECASE)


@cache
def _sqlalchemy() -> ModuleType:
    try:
        import sqlalchemy
        import sqlalchemy.exc
        import sqlalchemy.pool
    except ImportError as error:
        raise StoreError.missing_driver("jdbc", module="sqlalchemy", extra="sql") from error
    return sqlalchemy


def _integer(type_: pa.DataType) -> TypeEngine[Any]:
    sqlalchemy = _sqlalchemy()
    found: TypeEngine[Any] = {64: sqlalchemy.BigInteger, 32: sqlalchemy.Integer}.get(
        type_.bit_width, sqlalchemy.SmallInteger
    )()
    return found


def _has_hidden_key(layout: Layout) -> bool:
    return layout.made and any(column.nullable or column.codec.equality is None for column in layout.key)


def _digests(layout: Layout, rows: pa.Table) -> Iterator[str]:
    """What stands in the hidden column: one text for one key, whatever the database makes of its values."""
    values = zip(*(json_values(as_array(rows.column(column.name))) for column in layout.key), strict=True)
    return (hashlib.sha256(orjson.dumps(value)).hexdigest() for value in values)


def _chunks(rows: Sequence[tuple[Any, ...]], size: int) -> Iterator[Sequence[tuple[Any, ...]]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))
