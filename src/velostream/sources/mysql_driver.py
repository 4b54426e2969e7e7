"""PyMySQL for MySQL and MariaDB as sources: sessions that see one state, and what the driver's errors mean."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pyarrow as pa

from velostream.errors import Category, SourceError, StoreError
from velostream.model.conform import TimeRules, conform
from velostream.model.mysql import category_of_code, connection_arguments
from velostream.model.schema import Column, Schema
from velostream.model.server import ServerAddress
from velostream.sources.base import BadRecord, OnBad
from velostream.sources.database import DatabaseDriver, DatabaseSession, Selection, Statement
from velostream.sources.mysql_types import Field, column_of_result

_MARKER = "\0"
"""Stands for a value until PyMySQL's own marker does: SQL may hold per cent signs, but not this."""
_LONGEST_SILENCE_SECONDS = 86_400
_KEEP_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))
"""A server that vanished without a word is noticed within a minute."""


@dataclass(frozen=True)
class MysqlDriver(DatabaseDriver):
    """One database of a server, read as one user. Sessions are in UTC."""

    kind: ClassVar[str] = "mysql"

    address: ServerAddress
    parameters: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further arguments of PyMySQL's `connect`."""
    connect_seconds: float = 10.0
    query_seconds: float = 0.0
    """How long a statement may take; 0 is as long as it needs."""
    timezone: str = "UTC"
    floats: set[str] = field(default_factory=set, compare=False)
    """The columns of the type FLOAT, from when they were discovered on. Of these the server writes six digits, unless
    it is asked for a DOUBLE."""

    def open(self, *, snapshot: str | None = None, shared: bool = False) -> MysqlSession:
        """Sessions can't share what they see, so `shared` changes nothing."""
        with self.failures():
            connection = self.connect()
            try:
                with connection.cursor() as cursor:
                    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            except BaseException:
                connection.close()
                raise
        return MysqlSession(self, connection)

    def connect(self, *, texts: bool = True, **arguments: Any) -> Any:
        """A connection that gives every value as the bytes of its text, or else as PyMySQL does.

        Raises what PyMySQL raises, and `SourceError` for a login that this installation can't do.
        """
        driver = pymysql()
        if texts:
            arguments |= {"conv": driver.converters.encoders, "use_unicode": False}
        given = connection_arguments(self.address, timeout_seconds=self.connect_seconds)
        try:
            connection = _connection_class()(**(given | dict(self.parameters) | arguments))
        except RuntimeError as error:
            # MySQL's own way to log in needs a library that PyMySQL doesn't bring along.
            reason = f"it asks for a login that needs another module: {error}; pip install 'pymysql[rsa]'"
            raise SourceError.refused(
                self.kind, where=str(self.address), reason=reason, category=Category.CONFIGURATION
            ) from error
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Any) -> None:
        line = connection._sock  # noqa: SLF001 - PyMySQL has no say over the socket
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            if hasattr(socket, name):
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        settings = {
            "time_zone": "'+00:00'",
            # The log knows no spaces at the end of a CHAR.
            "sql_mode": "REPLACE(@@sql_mode, 'PAD_CHAR_TO_FULL_LENGTH', '')",
            # Rows wait in the line while those before are committed.
            "net_write_timeout": str(_LONGEST_SILENCE_SECONDS),
            "wait_timeout": str(_LONGEST_SILENCE_SECONDS),
        }
        if self.query_seconds and is_mariadb(connection):
            settings["max_statement_time"] = str(self.query_seconds)
        elif self.query_seconds:
            settings["max_execution_time"] = str(round(self.query_seconds * 1000))
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION " + ", ".join(f"{name} = {value}" for name, value in settings.items()))

    @contextmanager
    def failures(self, *, name: str | None = None) -> Iterator[None]:
        """Within, errors of PyMySQL become errors of this source; `name` is what was being read."""
        driver = pymysql()
        try:
            yield
        except driver.Error as error:
            raise self.failure(error, name=name) from error

    def failure(self, error: BaseException, *, name: str | None = None) -> SourceError:
        """What an error of PyMySQL means; without the password."""
        code = code_of(error)
        text = str(error.args[-1] if error.args else "") or "the connection is closed"
        reason = self.address.without_password(f"{text} ({code})" if code else text)
        # Without a number it is the driver's own word for a connection that is of no more use.
        category = category_of_code(code) if code else Category.NETWORK
        where = str(self.address)
        if category is Category.MISSING and name is not None:
            return SourceError.missing_table(self.kind, name, where=where, reason=reason)
        if category in (Category.NETWORK, Category.MISSING):
            return SourceError.unreachable(self.kind, where=where, reason=reason, category=category)
        return SourceError.refused(self.kind, where=where, reason=reason, category=category)

    def quote(self, name: str) -> str:
        doubled = name.replace("`", "``")
        return f"`{doubled}`"

    def marker(self, position: int) -> str:
        return _MARKER

    def bindable(self, value: Any, type_: pa.DataType) -> Any:
        """A time as a DATETIME holds it, in the source's zone, or a TIMESTAMP, in ours: whichever is the earlier.

        Of which type the column is isn't known here. Looking back further than needed finds rows that are known.
        """
        if isinstance(value, datetime) and value.tzinfo is not None:
            return min(value.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for zone in (self.timezone, "UTC"))
        return value

    def selected(self, columns: Sequence[str]) -> str:
        if not self.floats.intersection(columns):
            return super().selected(columns)
        quoted = [(self.quote(name), name in self.floats) for name in columns]
        return ", ".join(f"{name} + 0E0 AS {name}" if is_float else name for name, is_float in quoted)


class MysqlSession(DatabaseSession):
    """One read-only transaction."""

    def __init__(self, driver: MysqlDriver, connection: Any) -> None:
        self._driver = driver
        self._connection = connection

    def discover(self, selection: Selection) -> Schema:
        statement = self._driver.select(selection.unlimited, ())
        with self._driver.failures(name=selection.shown), self._connection.cursor() as cursor:
            _execute(cursor, Statement(f"{statement.sql} LIMIT 0", statement.values))
            fields = fields_of(cursor)
        columns = tuple(Column(one.name, one.type, nullable=one.nullable) for one in fields)
        self._driver.floats.update(column.name for column in columns if column.type == pa.float32())
        if selection.query is not None:
            return Schema(columns)
        relation = self._driver.relation(selection).sql
        found = self.ask(f"SHOW INDEX FROM {relation} WHERE Key_name = 'PRIMARY'", name=selection.shown)
        key = tuple(str(row["Column_name"]) for row in found)
        known = {column.name for column in columns}
        return Schema(columns, key if known.issuperset(key) else ())

    def rows(self, statement: Statement, schema: Schema, on_bad: OnBad, *, size: int) -> Iterator[pa.RecordBatch]:
        times = TimeRules(self._driver.timezone)
        cursor = self._connection.cursor(pymysql().cursors.SSCursor)
        try:
            with self._driver.failures():
                _execute(cursor, statement)
                fields = fields_of(cursor)
            read = 0
            while True:
                with self._driver.failures():
                    fetched = cursor.fetchmany(size)
                if not fetched:
                    break
                columns = {
                    one.name: column_of_result(one, values)
                    for one, values in zip(fields, zip(*fetched, strict=True), strict=True)
                }

                def reject(index: int, reason: str, fetched: Sequence[Any] = fetched, read: int = read) -> None:
                    on_bad(BadRecord(repr(fetched[index]).encode(), f"row {read + index + 1}", reason))

                rows = conform(pa.table(columns), schema, reject, times=times)
                yield from rows.combine_chunks().to_batches()
                read += len(fetched)
        finally:
            self._abandon(cursor)

    def estimate(self, selection: Selection) -> int | None:
        """What the server's statistics say of a table; they say nothing of a part of one."""
        if selection.query is not None or selection.where is not None:
            return None
        schema, _, table = str(selection.table).rpartition(".")
        schema, mark = selection.schema or schema or self._driver.address.database, self._driver.marker(0)
        found = self.ask(
            "SELECT TABLE_ROWS AS rows_there FROM information_schema.TABLES "
            f"WHERE TABLE_SCHEMA = {mark} AND TABLE_NAME = {mark}",
            [schema, table],
        )
        told = found[0]["rows_there"] if found else None
        if told is None:
            return None
        return int(told) if selection.limit is None else min(int(told), selection.limit)

    def ask(self, sql: str, values: Sequence[Any] = (), *, name: str | None = None) -> list[dict[str, str | None]]:
        """A small result, as texts by column. `name` is what it is about."""
        with self._driver.failures(name=name):
            return ask(self._connection, sql, values)

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()

    def _abandon(self, cursor: Any) -> None:
        """End a result. PyMySQL would read all the rest of it, so where there is a rest the session ends with it."""
        result = cursor._result  # noqa: SLF001 - there is no other way to give up a result
        if result is not None and result.unbuffered_active:
            result.unbuffered_active = False
            result.connection = None
            self.close()
        cursor.close()


def ask(connection: Any, sql: str, values: Sequence[Any] = ()) -> list[dict[str, str | None]]:
    """A small result of a connection that gives texts. Raises what PyMySQL raises."""
    with connection.cursor() as cursor:
        _execute(cursor, Statement(sql, tuple(values)))
        names = [one[0] for one in cursor.description or ()]
        found = cursor.fetchall()
    return [
        {name: None if value is None else value.decode() for name, value in zip(names, row, strict=True)}
        for row in found
    ]


def is_mariadb(connection: Any) -> bool:
    return "mariadb" in connection.get_server_info().lower()


def code_of(error: BaseException) -> int:
    """The number of an error of PyMySQL; 0 when it has none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def fields_of(cursor: Any) -> list[Field]:
    """The columns of a result. Its `description` leaves out what tells a number's sign and a text's character set."""
    fields = cursor._result.fields  # noqa: SLF001 - see above
    return [Field(one.name, one.type_code, one.length, one.scale, one.flags, one.charsetnr) for one in fields]


def pymysql() -> Any:
    """The driver. Raises `StoreError.missing_driver`."""
    try:
        import pymysql as module  # type: ignore[import-untyped]
    except ImportError as error:
        raise StoreError.missing_driver(MysqlDriver.kind, module="pymysql", extra="mysql") from error
    return module


@cache
def _connection_class() -> Any:
    """PyMySQL's, but for the context for TLS, which is made once: to read all that the machine trusts takes longer than
    to connect.
    """
    made: dict[str, Any] = {}

    class Connection(pymysql().connections.Connection):  # type: ignore[misc]
        def _create_ssl_ctx(self, sslp: Mapping[str, Any]) -> Any:
            settings = repr(sorted(sslp.items()))
            if settings not in made:
                made[settings] = super()._create_ssl_ctx(sslp)
            return made[settings]

    return Connection


def _execute(cursor: Any, statement: Statement) -> None:
    if not statement.values:
        cursor.execute(statement.sql)
        return
    escaped = statement.sql.replace("%", "%%").replace(_MARKER, "%s")
    cursor.execute(escaped, statement.values)
