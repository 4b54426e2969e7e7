"""psycopg for PostgreSQL as a source: sessions that see one state, and what the driver's errors mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
import pyarrow as pa

from velostream.errors import Category, SourceError, StoreError
from velostream.model.conform import TimeRules
from velostream.model.postgres import category_of_state, category_of_text, connection_arguments
from velostream.model.schema import Column, Schema
from velostream.model.server import ServerAddress
from velostream.sources.base import BadRecord, OnBad
from velostream.sources.database import DatabaseDriver, DatabaseSession, Selection, Statement
from velostream.sources.postgres_types import SESSION_SETTINGS, columns_of_texts, type_of

if TYPE_CHECKING:
    import psycopg

_PAGES_WORTH_A_PART = 2_000
"""16 MB: below that, a part costs more than it brings."""


@dataclass(frozen=True)
class PostgresDriver(DatabaseDriver):
    """One database of a server, read as one user."""

    kind: ClassVar[str] = "postgres"

    address: ServerAddress
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_seconds: float = 10.0
    query_seconds: float = 0.0
    """How long a statement may take; 0 is as long as it needs."""
    timezone: str = "UTC"
    by_log: bool = False
    """Whether only columns count that the log tells; it leaves out generated ones."""

    def open(self, *, snapshot: str | None = None, shared: bool = False) -> PostgresSession:
        with self.failures():
            connection = self.connect()
            try:
                # The whole of a result is wanted, so the plan should not be one that is quick with the first rows.
                connection.execute("SET cursor_tuple_fraction = 1")
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                if snapshot is not None:
                    self._join(connection, snapshot)
                named = snapshot
                if shared:
                    named = str(connection.execute("SELECT pg_export_snapshot()").fetchone()[0])  # type: ignore[index]
            except BaseException:
                connection.close()
                raise
        return PostgresSession(self, connection, named)

    def _join(self, connection: psycopg.Connection[Any], snapshot: str) -> None:
        """See what another session sees; one that is gone went with its connection or its server."""
        errors = _psycopg().errors
        try:
            connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        except (errors.InvalidParameterValue, errors.UndefinedObject) as error:
            reason = "the session whose moment was being read is gone"
            raise SourceError.unreachable(self.kind, where=str(self.address), reason=reason) from error

    def connect(self) -> psycopg.Connection[Any]:
        """A connection that gives every value as its text. Raises what psycopg raises."""
        driver = _psycopg()
        settings = {**SESSION_SETTINGS, "timezone": self.timezone}
        if self.query_seconds:
            settings["statement_timeout"] = f"{round(self.query_seconds * 1000)}ms"
        arguments = connection_arguments(
            self.address, parameters=self.parameters, timeout_seconds=self.connect_seconds, settings=settings
        )
        connection: psycopg.Connection[Any] = driver.connect(
            autocommit=True, context=_texts(), cursor_factory=driver.RawCursor, prepare_threshold=None, **arguments
        )
        return connection

    @contextmanager
    def failures(self, *, name: str | None = None) -> Iterator[None]:
        """Within, errors of psycopg become errors of this source; `name` is what was being read."""
        driver = _psycopg()
        try:
            yield
        except driver.Error as error:
            raise self.failure(error, name=name) from error

    def failure(self, error: BaseException, *, name: str | None = None) -> SourceError:
        """What an error of psycopg means; without the password."""
        driver = _psycopg()
        state = getattr(error, "sqlstate", None)
        said = error.diag.message_primary if state and isinstance(error, driver.Error) else None
        reason = self.address.without_password(said or str(error).strip() or type(error).__name__)
        category = category_of_state(state) if state else category_of_text(reason) or Category.NETWORK
        where = str(self.address)
        if category is Category.MISSING and name is not None:
            return SourceError.missing_table(self.kind, name, where=where, reason=reason)
        if category is Category.NETWORK or not state:
            return SourceError.unreachable(self.kind, where=where, reason=reason, category=category)
        return SourceError.refused(self.kind, where=where, reason=reason, category=category)

    def quote(self, name: str) -> str:
        doubled = name.replace('"', '""')
        return f'"{doubled}"'

    def marker(self, position: int) -> str:
        return f"${position + 1}"


class PostgresSession(DatabaseSession):
    """One read-only transaction."""

    def __init__(self, driver: PostgresDriver, connection: psycopg.Connection[Any], snapshot: str | None) -> None:
        self._driver = driver
        self._connection = connection
        self.snapshot = snapshot

    def discover(self, selection: Selection) -> Schema:
        if selection.query is not None:
            return self._of_query(selection)
        relation = self._driver.relation(selection).sql
        found = self.ask(
            "SELECT a.attname::text, "
            "format_type(coalesce(nullif(t.typbasetype, 0), a.atttypid), "
            "CASE WHEN t.typbasetype = 0 THEN a.atttypmod ELSE t.typtypmod END), a.attnotnull::text "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = $1::regclass AND a.attnum > 0 AND NOT a.attisdropped "
            "AND (a.attgenerated = '' OR NOT $2::boolean) ORDER BY a.attnum",
            [relation, str(self._driver.by_log).lower()],
            name=selection.shown,
        )
        columns = tuple(Column(name, type_of(type_), nullable=required != "true") for name, type_, required in found)
        key = self.ask(
            "SELECT a.attname::text FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(number, place) "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number "
            "WHERE i.indrelid = $1::regclass AND i.indisprimary AND k.place <= i.indnkeyatts ORDER BY k.place",
            [relation],
        )
        known = {column.name for column in columns}
        names = tuple(name for (name,) in key)
        return Schema(columns, names if known.issuperset(names) else ())

    def rows(self, statement: Statement, schema: Schema, on_bad: OnBad, *, size: int) -> Iterator[pa.RecordBatch]:
        times = TimeRules(self._driver.timezone)
        declare = f"DECLARE source_rows NO SCROLL CURSOR FOR {statement.sql}"
        with self._driver.failures():
            self._connection.execute(declare.encode(), list(statement.values))
        read = 0
        while True:
            with self._driver.failures():
                cursor = self._connection.execute(f"FETCH {size:d} FROM source_rows".encode())
                fetched = cursor.fetchall()
            if not fetched:
                break
            names = [column.name for column in cursor.description or ()]
            texts = [pa.array(values, pa.string()) for values in zip(*fetched, strict=True)]

            def reject(index: int, reason: str, fetched: Sequence[Any] = fetched, read: int = read) -> None:
                on_bad(BadRecord(repr(fetched[index]).encode(), f"row {read + index + 1}", reason))

            rows = columns_of_texts(dict(zip(names, texts, strict=True)), schema, reject, times=times)
            yield from rows.combine_chunks().to_batches()
            read += len(fetched)
        with self._driver.failures():
            self._connection.execute("CLOSE source_rows")

    def estimate(self, selection: Selection) -> int | None:
        """What the planner expects."""
        statement = self._driver.select(selection, ())
        explained = self.ask(f"EXPLAIN (FORMAT JSON) {statement.sql}", statement.values, name=selection.shown)
        rows: int = orjson.loads(explained[0][0])[0]["Plan"]["Plan Rows"]
        return rows

    def parts(self, selection: Selection, count: int) -> Sequence[str]:
        if selection.query is not None:
            return ()
        ((kind, pages),) = self.ask(
            "SELECT relkind::text, (CASE WHEN relkind IN ('r', 'm') "
            "THEN pg_relation_size(oid) / current_setting('block_size')::int ELSE 0 END)::text "
            "FROM pg_class WHERE oid = $1::regclass",
            [self._driver.relation(selection).sql],
            name=selection.shown,
        )
        count = min(count, int(pages) // _PAGES_WORTH_A_PART)
        if kind not in ("r", "m") or count < 2:
            return ()
        bounds = [int(pages) * number // count for number in range(count)]
        return [
            f"ctid >= '({low},0)'" + ("" if high is None else f" AND ctid < '({high},0)'")
            for low, high in zip(bounds, [*bounds[1:], None], strict=True)
        ]

    def ask(self, sql: str, values: Sequence[Any] = (), *, name: str | None = None) -> list[tuple[Any, ...]]:
        """A small result. `name` is what it is about."""
        with self._driver.failures(name=name):
            return list(self._connection.execute(sql.encode(), list(values)).fetchall())

    def close(self) -> None:
        self._connection.close()

    def _of_query(self, selection: Selection) -> Schema:
        statement = self._driver.select(selection, ())
        with self._driver.failures(name=selection.shown):
            cursor = self._connection.execute(f"{statement.sql} LIMIT 0".encode(), list(statement.values))
            description = cursor.description or ()
            result = cursor.pgresult
            types = [(result.ftype(at), result.fmod(at)) for at in range(len(description))] if result else []
        named = self.ask(
            "SELECT format_type(coalesce(nullif(t.typbasetype, 0), t.oid), "
            "CASE WHEN t.typbasetype = 0 THEN k.modifier ELSE t.typtypmod END) "
            "FROM unnest($1::oid[], $2::int[]) WITH ORDINALITY k(type, modifier, place) "
            "JOIN pg_type t ON t.oid = k.type ORDER BY k.place",
            [[oid for oid, _ in types], [modifier for _, modifier in types]],
        )
        columns = zip(description, named, strict=True)
        return Schema(tuple(Column(column.name, type_of(type_)) for column, (type_,) in columns))


def _psycopg() -> Any:
    """The driver. Raises `StoreError.missing_driver`."""
    try:
        import psycopg
    except ImportError as error:
        raise StoreError.missing_driver(PostgresDriver.kind, module="psycopg", extra="postgres") from error
    return psycopg


@cache
def _texts() -> Any:
    """Adapters of psycopg, with every value loaded as the text it came as."""
    driver = _psycopg()
    from psycopg.types.string import TextLoader

    adapters = driver.adapt.AdaptersMap(driver.adapters)
    for info in driver.adapters.types:
        for oid in (info.oid, info.array_oid):
            if oid:
                adapters.register_loader(oid, TextLoader)
    return adapters
