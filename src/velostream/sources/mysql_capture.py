"""MySQL and MariaDB followed through their log: what is there at a moment, then every transaction after it.

A load is of a place in the log: the server tells which one belongs to what a session sees, or nobody writes to the
table for the moment it takes to find out. From there on whole transactions are taken, and their places are committed
together with them, so every change is taken once. The server keeps its log as long as it is told to, whoever reads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.errors import OptionError, SourceError, present
from velostream.model.change import CHANGE
from velostream.model.conform import TimeRules, conform
from velostream.model.options import Options
from velostream.model.schema import Column, Schema
from velostream.sources.base import BadRecord, Lag, Offset, OnBad, Partition
from velostream.sources.bulk import with_sign
from velostream.sources.capture import (
    ChangedRows,
    LogCapture,
    partitions_of,
    place_written,
    refuse_load,
    seconds_since,
)
from velostream.sources.mysql_driver import MysqlSession
from velostream.sources.mysql_events import UntoldError
from velostream.sources.mysql_log import LogPiece, LogPosition, MysqlLog
from velostream.sources.mysql_table import CapturedTable, captured_table
from velostream.sources.mysql_types import column_of_log

if TYPE_CHECKING:
    from velostream.sources.mysql import MysqlSource

_CHANGES_AT_ONCE = 100_000
_QUIET_BYTES = 16 << 20
_QUIET_SECONDS = 30.0
"""How much of the log that isn't about the table, or for how long, may go by before the position moves past it."""


@dataclass(frozen=True)
class _Piece:
    """A decoded piece of the log."""

    start: Offset
    end: Offset
    decoded: LogPiece


class MysqlCapture(LogCapture):
    """A table by its log.

    An offset has the number of the `load` that its rows came by, the `log` position, and the `server` that this is one
    of.
    """

    def __init__(self, source: MysqlSource) -> None:
        super().__init__(source)
        self._source = source
        self._log = MysqlLog(source.driver)
        self._table: CapturedTable | None = None
        self._loaded: Offset = None
        """The end of a load that was begun and is not committed."""
        self._moment: MysqlSession | None = None
        """The session that sees what this load is of."""
        self._wanted: LogPosition | None = None
        """The position that somebody waits for."""
        self._passed: tuple[Offset, LogPosition] | None = None
        """Up to where nothing about the table was found after an offset."""
        self._piece: _Piece | None = None
        self._taken_at: float | None = None
        """When the last transaction that was taken was committed, by the server's clock."""
        self._moved_at = time.monotonic()
        self._first_position = _first_position(source.settings)

    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        if start is None:
            return self._begin(None)
        if self.lacks_values(start):
            return self._begin(start)
        at = LogPosition.parse(start["log"])
        try:
            end = self._present_end(start, at)
            piece = self._look(start, changes=1 if max_rows is None else min(max_rows, _CHANGES_AT_ONCE), end=end)
        except UntoldError as gap:
            return self._after_a_gap(start, gap)
        if piece is not None:
            if max_rows is None:
                # It takes a look at everything to know where the last of it ends; the present end will do as well.
                self._wanted = max(end, LogPosition.parse(piece.end["log"]), self._wanted or end)
                return _after(start, self._wanted)
            self._piece = piece
            return piece.end
        if max_rows is None or end <= at or not self._should_move(at, end):
            return start
        moved = _after(start, end)
        self._piece = _Piece(start, moved, LogPiece([], end))
        return moved

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        if start is None or start["load"] != end["load"]:
            if start is None and self._source.settings.text("initial.load") == "none":
                return ()
            return [Partition({"load": end}, replaces=start is not None)]
        return partitions_of(self._decoded(start, end).pieces, start, end)

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        payload = partition.payload
        if "load" in payload:
            self.check_loaded(schema)
            for batch in self._load(payload["load"], schema, on_bad):
                yield batch if partition.replaces else with_sign(batch)
            return
        if payload["number"] is None:
            return
        decoded = self._decoded(payload["start"], payload["end"])
        yield from self._rows(decoded.pieces[payload["number"]], schema, on_bad, at=payload["end"]["log"])

    def reached(self, position: Offset, target: Offset) -> bool:
        at, to = ((one["load"], LogPosition.parse(one["log"])) for one in (position, target))
        return at >= to

    def gauges(self, position: Offset) -> Mapping[str, int]:
        """The server keeps its log whether we need it or not; what counts is how much of it is still to be read."""
        at = LogPosition.parse(position["log"])
        if self._passed is not None and self._passed[0] == position:
            at = max(at, self._passed[1])
        return {"log bytes behind": self._log.bytes_after(at)}

    def lag(self, position: Offset) -> Lag:
        """By when the last transaction that was taken was committed."""
        return Lag() if self._taken_at is None else Lag(seconds=seconds_since(self._taken_at))

    def commit(self, end: Offset) -> None:
        self._end_load()
        self._taken_at = None if self._piece is None or self._piece.end != end else self._piece.decoded.committed_at
        self._piece = None
        self._moved_at = time.monotonic()

    def forget(self, position: Offset) -> None:
        self._end_load()

    def close(self) -> None:
        self._end_load()
        self._log.close()

    def _begin(self, start: Offset) -> Offset:
        """Note the moment of the load, or without one the place to begin at."""
        if self._loaded is not None:
            return self._loaded
        table = self._captured()
        offset = {
            "load": 1 if start is None else start["load"] + 1,
            "server": self._log.server(),
        } | self.columns_loaded()
        if self._source.settings.text("initial.load") == "none" and start is None:
            begins_at = self._first_position
            if not isinstance(begins_at, LogPosition):
                begins_at = self._log.first() if begins_at == "earliest" else self._log.end()
            self._loaded = offset | {"log": str(begins_at)}
            return self._loaded
        self._moment, position = self._log.begin_load(table.relation)
        self._loaded = offset | {"log": str(position)}
        return self._loaded

    def _load(self, end: Offset, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        """The rows of the moment that was begun. An instance that has begun none, such as one in a worker that answers
        a SELECT, reads a moment of its own: nobody follows the log from there.
        """
        own = self._loaded is None
        session = self._source.driver.open() if own else self._moment
        if session is None or not (own or self._loaded == end):
            where = str(self._source.driver.address)
            raise SourceError.unreachable("mysql", where=where, reason="the session of this load is gone")
        try:
            statement = self._source.driver.select(self._source.selection, self._source.columns_of(schema))
            size = self._source.settings.integer("fetch.size") or 1
            yield from session.rows(statement, schema, on_bad, size=size)
        except SourceError:
            # The moment that was read is gone with the connection; the next attempt takes another.
            self._end_load()
            raise
        finally:
            if own:
                session.close()

    def _end_load(self) -> None:
        moment, self._moment, self._loaded = self._moment, None, None
        if moment is not None:
            moment.close()

    def _present_end(self, start: Offset, at: LogPosition) -> LogPosition:
        """The end of the log that `at` is a place of. Raises `UntoldError` when it is that of another."""
        end, server = self._log.end(), self._log.server()
        if server != start["server"]:
            raise UntoldError(f"this is server {server}, and the position is one of server {start['server']}")
        if end < at:
            raise UntoldError(f"the log ends at {end}, before {at}: it was begun anew")
        return end

    def _should_move(self, at: LogPosition, end: LogPosition) -> bool:
        """Whether to move on though nothing was found, as the server may remove what is behind its files' end."""
        late = time.monotonic() - self._moved_at > _QUIET_SECONDS
        awaited = self._wanted is not None and self._wanted > at
        return late or awaited or end.number != at.number or end.place - at.place > _QUIET_BYTES

    def _after_a_gap(self, start: Offset, gap: UntoldError) -> Offset:
        """The log doesn't tell what comes after the position."""
        if self._source.settings.text("cdc.on.gap") == "snapshot":
            self._passed = None
            return self._begin(start)
        raise self._lost(gap) from gap

    def _lost(self, gap: UntoldError) -> SourceError:
        return SourceError.log_lost("mysql", self._source.selection.shown, reason=str(gap))

    def have_values(self, columns: Sequence[str]) -> bool:
        return not self._captured().filled.isdisjoint(columns)

    def check_again(self) -> None:
        self._table = None

    def check(self, schema: Schema) -> None:
        """See that the log can tell all changes of the table."""
        if self._table is not None:
            return
        shown = self._source.selection.shown
        # Over connections of its own: planning asks, too, and keeps nothing open.
        log = MysqlLog(self._source.driver)
        try:
            table = captured_table(log, self._source.driver, self._source.selection)
            # Whoever may not read the log is told so here.
            log.read(log.end(), table.logged, key=(), columns=(), changes=1)
        except UntoldError as error:
            raise log.refusal(str(error)) from error
        finally:
            log.close()
        self._table = table
        self.warn(
            f'rows of {shown} that the foreign key "{name}" changes by itself are not told by the log'
            for name in table.cascades
        )

    def _captured(self) -> CapturedTable:
        self.check(present(self._source.schema()))
        return present(self._table)

    def _look(self, start: Offset, *, changes: int, end: LogPosition) -> _Piece | None:
        """The next transactions, about so many changes; None when there are none."""
        at = LogPosition.parse(start["log"])
        if self._passed is not None and self._passed[0] == start:
            at = max(at, self._passed[1])
        if at >= end:
            return None
        decoded = self._read(at, changes=changes)
        if decoded.pieces:
            return _Piece(start, _after(start, decoded.end), decoded)
        self._passed = (start, decoded.end)
        return None

    def _decoded(self, start: Offset, end: Offset) -> LogPiece:
        """What a range of the log holds; looked up again where it isn't at hand, as in a worker."""
        if self._piece is None or (self._piece.start, self._piece.end) != (start, end):
            try:
                decoded = self._read(LogPosition.parse(start["log"]), until=LogPosition.parse(end["log"]))
            except UntoldError as gap:
                raise self._lost(gap) from gap
            self._piece = _Piece(start, end, decoded)
        return self._piece.decoded

    def _read(self, at: LogPosition, *, until: LogPosition | None = None, changes: int | None = None) -> LogPiece:
        table = self._captured()
        stored = present(self._source.discovered())
        key = tuple(stored.column(name).name for name in present(self._source.schema()).key)
        return self._log.read(at, table.logged, key=key, columns=stored.names, until=until, changes=changes)

    def _rows(self, piece: ChangedRows, schema: Schema, on_bad: OnBad, *, at: str) -> Iterator[pa.RecordBatch]:
        invisible = self._captured().columns
        if not self._source.declares_columns:
            invisible -= {*present(self._source.discovered()).names}
        self.note_new(piece.columns, schema, left_out=invisible)
        columns: dict[str, pa.Array] = {}
        for name, values in piece.columns.items():
            column = schema.find(name)
            if column is not None:
                columns[name] = column_of_log(values, column.type)
        columns[CHANGE] = pa.array(piece.signs, pa.int8())

        def reject(index: int, reason: str) -> None:
            raw = repr({name: values[index] for name, values in piece.columns.items()}).encode()
            on_bad(BadRecord(raw, f"change {index + 1} before {at}", reason))

        wanted = Schema((*schema.columns, Column(CHANGE, pa.int8())), schema.key)
        gone = pa.chunked_array([pa.array([sign < 0 for sign in piece.signs], pa.bool_())])
        times = TimeRules(self._source.driver.timezone)
        rows = conform(pa.table(columns), wanted, reject, times=times, exempt=gone)
        yield from rows.combine_chunks().to_batches()


def _after(start: Any, position: LogPosition) -> Offset:
    return start | {"log": str(position)}


def _first_position(settings: Options) -> LogPosition | str:
    """Where to begin without a load, as the options say: a position, `latest` or `earliest`."""
    written = place_written(settings)
    file, place = (_unless_auto(settings.text(name)) for name in ("binlog.file", "binlog.position"))
    if file is not None and place is not None and written is None:
        written = f"{file}:{place}"
    elif file is not None or place is not None:
        raise OptionError(
            'options "binlog.file" and "binlog.position" go together, and without "cdc.start"',
            hint="WITH ('binlog.file' = 'mysql-bin.000007', 'binlog.position' = '4', 'initial.load' = 'none')",
            code="invalid-option",
        )
    if written is None:
        return "latest"
    refuse_load(settings)
    return written.lower() if written.lower() in ("latest", "earliest") else LogPosition.parse(written)


def _unless_auto(written: str | None) -> str | None:
    return None if written is None or written.lower() == "auto" else written
