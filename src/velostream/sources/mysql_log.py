"""The binary log of MySQL and MariaDB: where it ends, what it says about a table, and loads that fit a place in it.

It is read by mysql-replication as mysqlbinlog reads it: from a position to the present end, under the server number 0.
So the server keeps nothing for us, and readers don't disturb one another. The library would go on by itself when it
loses its server, possibly within a transaction; here a stream that breaks is an error, and the next attempt begins at
the end of a transaction again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from velostream.errors import Category, OptionError, SourceError, StoreError, VelostreamError
from velostream.sources.capture import ChangedRows
from velostream.sources.mysql_driver import MysqlDriver, MysqlSession, ask, code_of, pymysql
from velostream.sources.mysql_events import TransactionDecoder, UntoldError, place_after
from velostream.sources.mysql_statements import LoggedTable

_FIRST_PLACE = 4
"""Where events begin in a file of the log."""
_CANT_BE_READ = 1236
"""The server's number for a place in the log that it doesn't have, or can't read."""
_LONGEST_LOCK_SECONDS = 10


@dataclass(frozen=True, order=True, slots=True)
class LogPosition:
    """A place in the log, between two transactions. Ordered as the log is."""

    number: int
    """Of the file."""
    place: int
    file: str = field(compare=False)

    @classmethod
    def of(cls, file: str, place: int) -> Self:
        number = file.rpartition(".")[2]
        return cls(int(number) if number.isdigit() else 0, place, file)

    @classmethod
    def parse(cls, text: str) -> Self:
        """As `str` gives it: `mysql-bin.000007:1234`."""
        match = re.fullmatch(r"(.+\.\d+):(\d+)", text.strip())
        if match is None:
            expected = "latest, earliest, or a position such as mysql-bin.000007:1234"
            raise OptionError.value("cdc.start", text, expected=expected)
        return cls.of(match[1], int(match[2]))

    def __str__(self) -> str:
        return f"{self.file}:{self.place}"


@dataclass(frozen=True, slots=True)
class LogPiece:
    """What a part of the log says about one table."""

    pieces: list[ChangedRows]
    end: LogPosition
    """After the last transaction in it, be it about the table or not."""
    committed_at: float | None = None
    """When that one was committed by the server's clock, in seconds since 1970; None when there was none."""


class MysqlLog:
    """The log of one server, over connections that are made when they are needed. For one thread at a time."""

    def __init__(self, driver: MysqlDriver) -> None:
        self._driver = driver
        self._connection: Any = None
        self._server: str | None = None
        """Which one the connection goes to."""

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()

    def end(self) -> LogPosition:
        """The place after all that anyone can have seen."""
        version = self._connected().get_server_info()
        renamed = re.match(r"(8\.[2-9]|9|\d\d)", version) and "mariadb" not in version.lower()
        found = self.ask("SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS")
        if not found:
            raise self.refusal("it keeps no log; start it with --log-bin")
        return LogPosition.of(str(found[0]["File"]), int(found[0]["Position"] or 0))

    def bytes_after(self, position: LogPosition) -> int:
        """How much log there is after a place."""
        end = self.end()
        if end.number == position.number:
            return max(0, end.place - position.place)
        files = {str(row["Log_name"]): int(row["File_size"] or 0) for row in self.ask("SHOW BINARY LOGS")}
        later = sum(size for file, size in files.items() if LogPosition.of(file, 0).number > position.number)
        return max(0, files.get(position.file, 0) - position.place) + later

    def first(self) -> LogPosition:
        """The oldest place that there is."""
        found = self.ask("SHOW BINARY LOGS")
        return LogPosition.of(str(found[0]["Log_name"]), _FIRST_PLACE) if found else self.end()

    def server(self) -> str:
        """Which server it is; another one has another log, though its files may have the same names."""
        self._connected()
        if self._server is None:
            found = self.ask("SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_id', 'server_uuid')")
            known = {row["Variable_name"]: row["Value"] for row in found}
            self._server = str(known.get("server_uuid") or known["server_id"])
        return self._server

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[dict[str, str | None]]:
        """A small result, as texts by column."""
        connection = self._connected()
        with self._driver.failures():
            return ask(connection, sql, values)

    def _connected(self) -> Any:
        if self._connection is None or not self._connection.open:
            with self._driver.failures():
                self._connection, self._server = self._driver.connect(), None
        return self._connection

    def refusal(self, reason: str) -> SourceError:
        """The server isn't set up for what is asked of it."""
        where = str(self._driver.address)
        return SourceError.refused("mysql", where=where, reason=reason, category=Category.CONFIGURATION)

    def begin_load(self, relation: str) -> tuple[MysqlSession, LogPosition]:
        """A session in which the table is as it was at a place of the log."""
        session = self._driver.open()
        try:
            found = session.ask("SHOW STATUS LIKE 'binlog_snapshot_%'")
            told = {str(row["Variable_name"]).lower(): row["Value"] for row in found}
            if told.get("binlog_snapshot_file"):
                place = int(told["binlog_snapshot_position"] or 0)
                return session, LogPosition.of(str(told["binlog_snapshot_file"]), place)
        except BaseException:
            session.close()
            raise
        session.close()
        return self._begin_locked_load(relation)

    def _begin_locked_load(self, relation: str) -> tuple[MysqlSession, LogPosition]:
        """For servers that don't tell which place a session's state belongs to: nobody writes to the table for as long
        as it takes to begin one and to ask for the end.
        """
        with self._driver.failures():
            lock = self._driver.connect()
            try:
                # Whoever waits for a lock holds up all that come later.
                ask(lock, f"SET SESSION lock_wait_timeout = {_LONGEST_LOCK_SECONDS}")
                ask(lock, f"LOCK TABLES {relation} READ")
                session = self._driver.open()
                try:
                    return session, self.end()
                except BaseException:
                    session.close()
                    raise
            finally:
                lock.close()

    def read(
        self,
        start: LogPosition,
        table: LoggedTable,
        *,
        key: tuple[str, ...],
        columns: tuple[str, ...],
        until: LogPosition | None = None,
        changes: int | None = None,
    ) -> LogPiece:
        """Whole transactions after a place, up to another or to the present end; about so many changes.

        `columns` are those whose values must be told; `key` is empty for a table whose rows are known by all their
        values. Raises `UntoldError`.
        """
        decoder = TransactionDecoder(table, key=key, columns=columns)
        end = start
        committed_at: float | None = None
        try:
            with self._events(start, table) as events:
                for event, file in events:
                    if not decoder.take(event):
                        continue
                    reached = LogPosition.of(*place_after(event, file))
                    if until is not None and reached > until:
                        break
                    end, committed_at = max(end, reached), float(event.timestamp)
                    decoder.commit()
                    if changes is not None and decoder.count >= changes:
                        break
        except UntoldError:
            if until is not None or not decoder.count:
                raise
            # What was told before is taken first; whoever goes on from there meets the gap.
        decoder.drop()
        return LogPiece(decoder.pieces, end if until is None else max(end, until), committed_at)

    @contextmanager
    def _events(self, start: LogPosition, table: LoggedTable) -> Iterator[Iterator[tuple[Any, str]]]:
        """Events up to the present end, each with the file that it stands in."""
        library, events = _library()
        connections: list[Any] = []

        def connect(**given: Any) -> Any:
            # Two are made, for the events and for questions about them; a third would go on after a loss.
            if len(connections) == 2:
                raise pymysql().err.OperationalError(2013, "the connection was lost")
            asked = {name: value for name, value in given.items() if name == "cursorclass"}
            connections.append(self._driver.connect(texts=False, **asked))
            return connections[-1]

        reader = library.BinLogStreamReader(
            connection_settings={},
            server_id=0,
            resume_stream=True,
            log_file=start.file,
            log_pos=start.place,
            only_tables=[table.name],
            only_schemas=[table.schema],
            only_events=events,
            filter_non_implemented_events=False,
            enable_logging=False,
            pymysql_wrapper=connect,
        )

        def told() -> Iterator[tuple[Any, str]]:
            for event in reader:
                yield event, reader.log_file

        try:
            yield told()
        except (VelostreamError, UntoldError):
            raise
        except pymysql().Error as error:
            if code_of(error) == _CANT_BE_READ:
                raise UntoldError(str(error.args[-1])) from error
            raise self._driver.failure(error) from error
        except Exception as error:
            # The library's decoders raise whatever comes up, where they meet what they don't know.
            raise UntoldError(f"an event after {start} can't be read: {type(error).__name__}: {error}") from error
        finally:
            reader.close()
            for connection in connections:
                if connection.open:
                    connection.close()


def _library() -> tuple[Any, list[Any]]:
    """mysql-replication, and the events that matter. Raises `StoreError.missing_driver`."""
    try:
        import pymysqlreplication  # type: ignore[import-untyped]
        from pymysqlreplication import event, row_event
    except ImportError as error:
        raise StoreError.missing_driver("mysql", module="pymysqlreplication", extra="mysql") from error
    return pymysqlreplication, [
        *(row_event.WriteRowsEvent, row_event.UpdateRowsEvent, row_event.DeleteRowsEvent),
        row_event.PartialUpdateRowsEvent,
        *(event.QueryEvent, event.XidEvent, event.XAPrepareEvent, event.RotateEvent, event.MariadbGtidEvent),
        event.NotImplementedEvent,
    ]
