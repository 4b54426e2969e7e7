"""SQLAlchemy's drivers for sources: any database that it has a dialect for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar
from zoneinfo import ZoneInfo

import pyarrow as pa

from velostream.errors import Category, SourceError, StoreError, ValidationError
from velostream.model.conform import TimeRules, conform
from velostream.model.rows import infer_schema
from velostream.model.schema import Column, Schema
from velostream.model.sql_errors import category_of
from velostream.model.types import TIMESTAMP, parse_type
from velostream.sources.base import BadRecord, OnBad
from velostream.sources.database import DatabaseDriver, DatabaseSession, Selection, Statement

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

_MARKERS = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric_dollar": "${}", "numeric": ":{}", "named": ":{}"}
_FETCH_FIRST = frozenset({"oracle", "mssql", "db2"})
"""Databases that don't know LIMIT."""
_SAMPLE = 1_000
_INTEGERS_OF_64_BITS = frozenset({"sqlite"})
_UNBOUNDED_NUMERIC = pa.decimal128(38, 18)
_MOST_DIGITS = 38


@dataclass(frozen=True)
class SqlDriver(DatabaseDriver):
    """A database behind a SQLAlchemy URL. Each session sees what the database's own isolation shows it."""

    kind: ClassVar[str] = "sql"

    url: URL
    timezone: str = "UTC"

    def open(self, *, snapshot: str | None = None, shared: bool = False) -> SqlSession:
        with self.failures():
            return SqlSession(self, self._engine.connect())

    @property
    def limit(self) -> str:  # type: ignore[override]
        return " FETCH FIRST {:d} ROWS ONLY" if self.url.get_backend_name() in _FETCH_FIRST else " LIMIT {:d}"

    @contextmanager
    def failures(self, *, name: str | None = None) -> Iterator[None]:
        """Within, errors of the driver become errors of this source; `name` is what was being read."""
        import sqlalchemy

        errors = (sqlalchemy.exc.SQLAlchemyError, self._dialect.loaded_dbapi.Error)
        try:
            yield
        except errors as error:
            raise self._failure(error, name=name) from error

    def quote(self, name: str) -> str:
        quoted: str = self._dialect.identifier_preparer.quote_identifier(name)
        return quoted

    def marker(self, position: int) -> str:
        return _MARKERS[self._dialect.paramstyle].format(position + 1)

    def orders(self, type_: pa.DataType) -> bool:
        """SQLite keeps times as texts, of which there are several forms."""
        return self.url.get_backend_name() != "sqlite" or not (pa.types.is_timestamp(type_) or pa.types.is_date(type_))

    def bindable(self, value: Any, type_: pa.DataType) -> Any:
        """Times as the database keeps them: in the source's zone, without saying so."""
        if isinstance(value, datetime) and value.tzinfo is not None:
            value = value.astimezone(ZoneInfo(self.timezone)).replace(tzinfo=None)
        if isinstance(value, date) and self.url.get_backend_name() == "sqlite":
            return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
        return value

    def _failure(self, error: BaseException, *, name: str | None) -> SourceError:
        import sqlalchemy

        original = getattr(error, "orig", None) or error
        reason = str(original)
        if self.url.password:
            reason = reason.replace(str(self.url.password), "***")
        where = self.url.set(password=None).render_as_string()
        missing = isinstance(error, sqlalchemy.exc.NoSuchTableError)
        disconnected = bool(self._dialect.is_disconnect(original, None, None))
        category = Category.MISSING if missing else category_of(original, disconnected=disconnected)
        if category is Category.MISSING and name is not None:
            return SourceError.missing_table(self.kind, name, where=where, reason=reason)
        if category in (Category.NETWORK, Category.MISSING):
            return SourceError.unreachable(self.kind, where=where, reason=reason, category=category)
        return SourceError.refused(self.kind, where=where, reason=reason, category=category)

    @cached_property
    def _engine(self) -> Engine:
        """Makes connections; keeps none."""
        try:
            import sqlalchemy
        except ImportError as error:
            raise StoreError.missing_driver(self.kind, module="sqlalchemy", extra="sql") from error
        try:
            return sqlalchemy.create_engine(self.url, poolclass=sqlalchemy.pool.NullPool)
        except sqlalchemy.exc.NoSuchModuleError as error:
            raise StoreError.missing_driver(self.kind, module=self.url.drivername, extra="sql") from error
        except ModuleNotFoundError as error:
            module = error.name or self.url.drivername
            raise StoreError.missing_driver(self.kind, module=module, extra="sql") from error

    @property
    def _dialect(self) -> Any:
        return self._engine.dialect


class SqlSession(DatabaseSession):
    """One connection."""

    def __init__(self, driver: SqlDriver, connection: Connection) -> None:
        self._driver = driver
        self._connection = connection

    def discover(self, selection: Selection) -> Schema | None:
        if selection.query is not None:
            return self._of_rows(selection)
        import sqlalchemy

        schema, _, table = str(selection.table).rpartition(".")
        schema = selection.schema or schema
        backend = self._driver.url.get_backend_name()
        with self._driver.failures(name=selection.shown):
            try:
                inspector = sqlalchemy.inspect(self._connection)
                found = inspector.get_columns(table, schema=schema or None)
                key = inspector.get_pk_constraint(table, schema=schema or None)["constrained_columns"]
            except (sqlalchemy.exc.ProgrammingError, NotImplementedError):
                # Some dialects of third parties can't say; the standard's own catalog may.
                self._connection.rollback()
                return self._by_standard(schema, table, shown=selection.shown)
        columns = tuple(
            Column(str(one["name"]), _type_of(one["type"], backend), nullable=bool(one.get("nullable", True)))
            for one in found
        )
        return Schema(columns, tuple(key))

    def rows(self, statement: Statement, schema: Schema, on_bad: OnBad, *, size: int) -> Iterator[pa.RecordBatch]:
        times = TimeRules(self._driver.timezone)
        with self._driver.failures(name="query"):
            streaming = self._connection.execution_options(stream_results=True, max_row_buffer=size)
            result = streaming.exec_driver_sql(statement.sql, statement.values or None)
            names = list(result.keys())
        read = 0
        try:
            while True:
                with self._driver.failures():
                    fetched = result.fetchmany(size)
                if not fetched:
                    return
                by_name = {name.lower(): values for name, values in zip(names, zip(*fetched, strict=True), strict=True)}
                columns = {
                    column.name: _column(by_name[column.name.lower()], column.type)
                    for column in schema.columns
                    if column.name.lower() in by_name
                }

                def reject(index: int, reason: str, fetched: Sequence[Any] = fetched, read: int = read) -> None:
                    on_bad(BadRecord(repr(tuple(fetched[index])).encode(), f"row {read + index + 1}", reason))

                rows = conform(pa.table(columns), schema, reject, times=times)
                yield from rows.combine_chunks().to_batches()
                read += len(fetched)
        finally:
            result.close()

    def close(self) -> None:
        self._connection.close()

    def _by_standard(self, schema: str, table: str, *, shown: str) -> Schema:
        """The columns of a table by the views that the standard names."""
        values = [table, *([schema] if schema else [])]
        names = ["table_name", "table_schema"][: len(values)]

        def ask(select: str) -> Sequence[Sequence[Any]]:
            condition = " AND ".join(f"c.{name} = {self._driver.marker(at)}" for at, name in enumerate(names))
            ordered = f"{select} WHERE {condition} ORDER BY c.ordinal_position"
            return list(self._connection.exec_driver_sql(ordered, tuple(values)).fetchall())

        found = ask("SELECT c.column_name, c.data_type, c.is_nullable FROM information_schema.columns c")
        if not found:
            where = self._driver.url.set(password=None).render_as_string()
            raise SourceError.missing_table(self._driver.kind, shown, where=where, reason="it has no columns")
        key = ask(
            "SELECT c.column_name FROM information_schema.key_column_usage c "
            "JOIN information_schema.table_constraints t ON t.constraint_name = c.constraint_name "
            "AND t.table_schema = c.table_schema "
            "AND t.table_name = c.table_name AND t.constraint_type = 'PRIMARY KEY'"
        )
        columns = tuple(
            Column(str(name), _type_named(str(type_)), nullable=str(nullable).upper() != "NO")
            for name, type_, nullable in found
        )
        return Schema(columns, tuple(str(name) for (name,) in key))

    def _of_rows(self, selection: Selection) -> Schema | None:
        """The columns of a query, judged by its first rows: few drivers tell the types."""
        statement = self._driver.select(selection, ())
        with self._driver.failures(name=selection.shown):
            result = self._connection.exec_driver_sql(statement.sql, statement.values or None)
            names = list(result.keys())
            sample = result.fetchmany(_SAMPLE)
            result.close()
        rows = [dict(zip(names, row, strict=True)) for row in sample]
        return infer_schema(rows) if rows else None


def _column(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Values of a driver as Arrow; where they are of several types, as texts that are then read as the column's."""
    if pa.types.is_string(type_):
        if any(isinstance(value, bytes) for value in values):
            # They may be no text, which shows when they are read as the column's type.
            return pa.array([None if value is None else _bytes(value) for value in values], pa.binary())
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _type_of(type_: Any, backend: str) -> pa.DataType:
    """Our type for one of SQLAlchemy's."""
    from sqlalchemy import types

    if isinstance(type_, types.Numeric) and not isinstance(type_, types.Float):
        if type_.precision is None:
            return _UNBOUNDED_NUMERIC
        return pa.decimal128(min(type_.precision, _MOST_DIGITS), type_.scale or 0)
    if isinstance(type_, types.Integer) and backend in _INTEGERS_OF_64_BITS:
        return pa.int64()
    if isinstance(type_, types.ARRAY):
        return pa.list_(_type_of(type_.item_type, backend))
    return next((ours for theirs, ours in _types() if isinstance(type_, theirs)), pa.string())


def _type_named(name: str) -> pa.DataType:
    """Our type for one by its name in the standard's catalog; a text for what has none."""
    bare = name.upper().removesuffix("[]")
    if bare != name.upper():
        return pa.list_(_type_named(name[:-2]))
    if bare.startswith("TIMESTAMP"):
        return TIMESTAMP
    if bare in ("NUMERIC", "DECIMAL"):
        return _UNBOUNDED_NUMERIC
    try:
        return parse_type({"BLOB": "BINARY", "VARBINARY": "BINARY", "FLOAT": "DOUBLE"}.get(bare, bare))
    except ValidationError:
        return pa.string()


def _types() -> Sequence[tuple[type, pa.DataType]]:
    from sqlalchemy import types

    return (
        (types.Boolean, pa.bool_()),
        (types.SmallInteger, pa.int16()),
        (types.BigInteger, pa.int64()),
        (types.Integer, pa.int32()),
        (types.Float, pa.float64()),
        (types.LargeBinary, pa.binary()),
        (types.DateTime, TIMESTAMP),
        (types.Date, pa.date32()),
    )
