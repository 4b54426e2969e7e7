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
from velostream.sources.mysql_rows import RowReader, is_told
from velostream.sources.mysql_statements import Effect, LoggedTable

_FIRST_PLACE = 4
"""Where events begin in a file of the log."""
_CANT_BE_READ = 1236
"""The server's number for a place in the log that it doesn't have, or can't read."""
_SYNTAX = 1064
_LONGEST_LOCK_SECONDS = 10
_QUERY, _ROTATE, _XID, _XA_PREPARE, _MARIADB_GTID, _PARTIAL_UPDATE = 2, 4, 16, 38, 162, 39
_WRITE_ROWS, _UPDATE_ROWS, _DELETE_ROWS = frozenset({23, 30}), frozenset({24, 31}), frozenset({25, 32})
_STANDALONE = 1
"""Of a transaction of MariaDB: the event that follows is all of it."""
_UNREADABLE_EVENTS = {
    _PARTIAL_UPDATE: "only parts of documents are logged; SET GLOBAL binlog_row_value_options = ''",
    26: "the server has lost a part of its log itself",
    40: "transactions are compressed; SET GLOBAL binlog_transaction_compression = OFF",
    **dict.fromkeys(range(165, 172), "events are compressed; SET GLOBAL log_bin_compress = OFF"),
}


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


class UntoldError(Exception):
    """The log doesn't tell, or no longer tells, what became of the table's rows; says why."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """What a part of the log says about one table."""

    pieces: list[ChangedRows]
    end: LogPosition
    """After the last transaction in it, be it about the table or not."""


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
        for statement in ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"):
            try:
                found = self.ask(statement)
            except SourceError as error:
                # MySQL has another word for it since 8.4.
                if error.__cause__ is not None and code_of(error.__cause__) == _SYNTAX:
                    continue
                raise
            if not found:
                break
            return LogPosition.of(str(found[0]["File"]), int(found[0]["Position"] or 0))
        raise self.refusal("it keeps no log; start it with --log-bin")

    def first(self) -> LogPosition:
        """The oldest place that there is."""
        found = self.ask("SHOW BINARY LOGS")
        return LogPosition.of(str(found[0]["Log_name"]), _FIRST_PLACE) if found else self.end()

    def server(self) -> str:
        """Which server it is; another one has another log, though its files may have the same names."""
        if self._server is None or not self._is_connected:
            found = self.ask("SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_id', 'server_uuid')")
            known = {row["Variable_name"]: row["Value"] for row in found}
            self._server = str(known.get("server_uuid") or known["server_id"])
        return self._server

    @property
    def _is_connected(self) -> bool:
        return self._connection is not None and bool(self._connection.open)

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[dict[str, str | None]]:
        """A small result, as texts by column."""
        with self._driver.failures():
            if not self._is_connected:
                self._connection, self._server = self._driver.connect(), None
            return ask(self._connection, sql, values)

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
        decoder = _Decoder(table, key=key, columns=columns)
        end = start
        try:
            with self._events(start, table) as events:
                for event, file in events:
                    if not decoder.take(event):
                        continue
                    reached = LogPosition.of(*_boundary(event, file))
                    if until is not None and reached > until:
                        break
                    end = max(end, reached)
                    decoder.commit()
                    if changes is not None and decoder.count >= changes:
                        break
        except UntoldError:
            if until is not None or not decoder.count:
                raise
            # What was told before is taken first; whoever goes on from there meets the gap.
        decoder.drop()
        return LogPiece(decoder.pieces, end if until is None else max(end, until))

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


class _Decoder:
    """Puts the events of one table together, transaction by transaction."""

    def __init__(self, table: LoggedTable, *, key: tuple[str, ...], columns: tuple[str, ...]) -> None:
        self._table = table
        self._key = key
        self._columns = columns
        self._in_transaction = False
        self._described: Any = None
        self._reader = RowReader(())
        """For the table as it is `described`."""
        self._pieces = [ChangedRows(truncated=False)]
        self._committed = (1, 0)
        """How many pieces there were at the end of the last transaction, and how many changes in the last of them."""
        self.count = 0

    @property
    def pieces(self) -> list[ChangedRows]:
        return [piece for piece in self._pieces if piece.signs or piece.truncated]

    def take(self, event: Any) -> bool:
        """Take an event in; true when a transaction ends with it."""
        code = event.event_type
        if code in _WRITE_ROWS | _UPDATE_ROWS | _DELETE_ROWS:
            self._take_rows(event)
            return False
        if code == _QUERY:
            return self._take_statement(event)
        if code == _MARIADB_GTID:
            self._in_transaction = not event.flags & _STANDALONE
            return False
        if code not in (_XID, _XA_PREPARE, _ROTATE):
            if code in _UNREADABLE_EVENTS:
                raise UntoldError(_UNREADABLE_EVENTS[code])
            return False
        if code == _XA_PREPARE and self._has_changes and not event.one_phase:
            raise UntoldError("a transaction of several servers (XA) is prepared; whether it commits isn't known")
        if code == _ROTATE:
            # What was begun in a file that ended belongs to a server that died.
            self.drop()
        self._in_transaction = False
        return True

    def commit(self) -> None:
        """What the last transaction did is taken over."""
        self._committed = self._taken
        self.count = sum(len(piece.signs) + piece.truncated for piece in self._pieces)

    def drop(self) -> None:
        """What was taken in since the last transaction is taken back."""
        pieces, rows = self._committed
        del self._pieces[pieces:]
        self._pieces[-1].cut(rows)

    @property
    def _taken(self) -> tuple[int, int]:
        return len(self._pieces), len(self._pieces[-1].signs)

    @property
    def _has_changes(self) -> bool:
        """Whether the transaction at hand is about the table."""
        return self._taken != self._committed

    def _take_statement(self, event: Any) -> bool:
        statement = event.query.strip()
        first, _, rest = statement.upper().partition(" ")
        if first == "BEGIN" or statement.upper().startswith("XA START"):
            self._in_transaction = True
            return False
        if first in ("COMMIT", "ROLLBACK") and not rest.strip():
            if first == "ROLLBACK":
                self.drop()
            self._in_transaction = False
            return True
        if first == "ROLLBACK" and self._has_changes:
            raise UntoldError("a part of a transaction was taken back, and which one isn't told")
        match self._table.effect_of(statement, schema=event.schema.decode()):
            case Effect.EMPTIED:
                self._pieces.append(ChangedRows(truncated=True))
            case Effect.UNTOLD:
                # No more of it, as values may stand in it.
                raise UntoldError(f"what this did to its rows isn't told: {' '.join(statement.split()[:4])} …")
        return not self._in_transaction

    def _take_rows(self, event: Any) -> None:
        described = event.table_map[event.table_id]
        if not described.column_name_flag:
            raise UntoldError("events don't name their columns; SET GLOBAL binlog_row_metadata = FULL")
        bitmaps = [event.columns_present_bitmap]
        if event.event_type in _UPDATE_ROWS:
            bitmaps.append(event.columns_present_bitmap2)
        for at, column in enumerate(described.columns):
            if column.name in self._columns and not all(is_told(bitmap, at) for bitmap in bitmaps):
                raise UntoldError("events don't tell whole rows; SET GLOBAL binlog_row_image = FULL")
        if self._described is not described:
            self._described, self._reader = described, RowReader(described.columns)
        piece, images = self._pieces[-1], self._reader.images(event, bitmaps)
        if event.event_type in _UPDATE_ROWS:
            for before, after in zip(images, images, strict=True):
                if not self._key or any(before[name] != after[name] for name in self._key):
                    piece.add(self._old(before), -1)
                piece.add(after, 1)
            return
        is_new = event.event_type in _WRITE_ROWS
        for values in images:
            piece.add(values if is_new else self._old(values), 1 if is_new else -1)

    def _old(self, values: dict[str, Any]) -> dict[str, Any]:
        """What says which row is gone."""
        return {name: values[name] for name in self._key} if self._key else values


def _boundary(event: Any, file: str) -> tuple[str, int]:
    """The place after an event that ends a transaction."""
    if event.event_type == _ROTATE:
        return event.next_binlog, event.position
    return file, event.packet.log_pos


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
