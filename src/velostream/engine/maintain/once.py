"""A view over bounded sources alone: read once, computed as a batch, never read again.

What is committed is one record with the rows and the offsets. Into a table of ours many rows go in pieces (see
`loading`), and what is set aside comes with the last of them. A load that loses its source begins anew, for as long as
that may help.

Spark reads and computes everything before anything is committed. Rows that only have to be read, chosen and projected
in ways of ours need no Spark where threads read as quickly as workers do (`nearby`): they are committed as they come.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.engine.declared import split_off_nulls
from velostream.engine.directory import LOADS
from velostream.engine.maintain.loading import Attempt, is_loading
from velostream.engine.nearby import NearReading
from velostream.engine.pieces import Piece, cut_into_pieces, gather_in_pieces, shares_files
from velostream.engine.query import LOOKUP, Runner
from velostream.engine.reading import Reading, read_range
from velostream.engine.relations import run_sql
from velostream.engine.sift import is_row_error
from velostream.engine.spark_failures import query_error
from velostream.engine.staging import gather
from velostream.engine.status import State
from velostream.errors import FurtherColumnsError, SourceError, StoreError, VelostreamError, present
from velostream.model.change import Epoch, Mode, Write
from velostream.model.retry import RetryPolicy
from velostream.sources.base import BadRecord, Offset, Source
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.staging import Prepare
    from velostream.engine.straight import StraightWay
    from velostream.model.schema import Schema
    from velostream.tables.base import Table

_log = logging.getLogger(__name__)
_ROWS_AT_ONCE = 1_000_000
"""As many rows make a piece, unless they take much room before or `max.rows.per.trigger` says otherwise."""
_PATIENCE_SECONDS = 60.0
"""How long who stops a load waits for Spark to come back."""


class _StoppedError(Exception):
    """The runner was told to stop before it could commit."""


@dataclass(frozen=True)
class BoundedInput:
    source: Source
    schema: Schema


class OnceRunner(Runner):
    """Reads its sources to their present end and commits the result with the offsets."""

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        *,
        sql: str,
        inputs: Mapping[str, BoundedInput],
        straight: StraightWay | None = None,
    ) -> None:
        """`straight`: the same as the SQL, of a query of one input for which Spark isn't needed."""
        super().__init__(context, entry)
        self._sql = sql
        self._inputs = dict(inputs)
        self._straight = straight
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._retry = RetryPolicy.while_running()
        given = [bounded.source.settings.integer("max.rows.per.trigger") for bounded in self._inputs.values()]
        self._rows_at_once = min((most for most in given if most), default=_ROWS_AT_ONCE)

    def start(self) -> None:
        self._stopping.clear()
        known = self.context.sequence.writer(self.entry.id)
        if known is not None and not is_loading(known):
            self.board.become(State.READY)
            return
        self.board.become(State.LOADING)
        self._thread = threading.Thread(target=self._run, name=f"load {self.entry.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=_PATIENCE_SECONDS)

    def drain(self, deadline: float) -> None:
        while not self._ended() and (not self.board.was_ready or self.board.state is State.FAILED):
            self.board.raise_if_dead()
            if time.monotonic() > deadline:
                raise self.board.timed_out("did not become ready in time")
            self.board.wait_for_news(0.1)

    def _run(self) -> None:
        attempts = 0
        try:
            while not self._ended():
                try:
                    self._load()
                except Exception as trouble:  # noqa: BLE001 - whatever it is must show on the board
                    if self._ended():
                        return
                    error = query_error(trouble, f'view "{self.entry.name}" could not be loaded')
                    if isinstance(error, FurtherColumnsError):
                        self.context.further_columns([self.entry.id], error)
                        return
                    if not _may_pass(error):
                        self._leave_nothing()
                        self.board.become(State.FAILED, error.message, error=error)
                        return
                    attempts += 1
                    delay = self._retry.delay(attempts)
                    self.board.retrying(error, attempts=attempts, delay=delay)
                    self._stopping.wait(delay.total_seconds())
                else:
                    return
        finally:
            for bounded in self._inputs.values():
                bounded.source.close()

    def _ended(self) -> bool:
        return self._stopping.is_set() or self.context.closing.is_set()

    def _load(self) -> None:
        session = self.context.spark.session()
        self.board.become(State.LOADING)
        if self._can_be_near(session):
            try:
                self._load_nearby()
            except VelostreamError as error:
                if not is_row_error(error):
                    raise
                # Spark has the last word on what can't be computed.
            else:
                return
        self._load_in_spark(session)

    def _can_be_near(self, session: SparkSession) -> bool:
        """Whether threads of this process are to do it: those of another machine would have Spark's workers idle."""
        if self._straight is None or self.context.config.get(LOOKUP, "fast") != "fast":
            return False
        ours = isinstance(self.context.table(self.entry.id), MemoryTable)
        native = all(bounded.source.capabilities.native for bounded in self._inputs.values())
        return ours and native and shares_files(session)

    def _load_nearby(self) -> None:
        ((relation, bounded),) = self._inputs.items()
        source = bounded.source
        start = source.initial_offset()
        end = source.latest_offset(start)
        reading = NearReading(source, start, end, bounded.schema, work=present(self._straight).here())
        self.board.track(reading.finished)
        prepare, refused = self._prepare(), list[BadRecord]()

        def prepared(batch: pa.RecordBatch) -> pa.Table:
            if self._ended():
                # Where few rows are found there may be no commit for long.
                raise _StoppedError
            rows, bad = prepare(pa.Table.from_batches([batch]))
            refused.extend(bad)
            return rows

        with closing(reading.batches()) as batches:
            pieces = cut_into_pieces(map(prepared, batches), most_rows=self._rows_at_once)
            offsets = {source.spec.shown: end}
            self._commit_pieces(pieces, offsets, beside=lambda: self._set_aside(refused, {relation: reading}))
        self._finish(offsets)

    def _load_in_spark(self, session: SparkSession) -> None:
        readings: dict[str, Reading] = {}
        offsets: dict[str, Offset] = {}
        for relation, bounded in self._inputs.items():
            start = bounded.source.initial_offset()
            end = bounded.source.latest_offset(start)
            readings[relation] = read_range(session, bounded.source, start, end, bounded.schema, counted=True)
            offsets[bounded.source.spec.shown] = end
        self.board.track(lambda: sum(one.finished() for one in readings.values()) / len(readings))
        try:
            self._commit(session, readings, offsets)
        finally:
            for reading in readings.values():
                # What is left of an attempt that failed.
                reading.bad_records()

    def _commit(self, session: SparkSession, readings: Mapping[str, Reading], offsets: Mapping[str, Offset]) -> None:
        """Compute the result and commit it with where its sources end."""
        table = self.context.table(self.entry.id)
        frame = run_sql(session, self._sql, {relation: reading.frame for relation, reading in readings.items()})
        prepare = self._prepare()
        if isinstance(table, MemoryTable):
            # An earlier runner that could not be ended in time may still be at work in a folder of its own.
            loads = self.context.directory.folder(LOADS)
            with tempfile.TemporaryDirectory(dir=loads, ignore_cleanup_errors=True) as folder:
                pieces = gather_in_pieces(frame, Path(folder), prepare, most_rows=self._rows_at_once)
                self._commit_pieces(pieces, offsets, beside=lambda: self._set_aside(pieces.refused, readings))
        else:
            # Others see what is in a store, so it goes there as a whole.
            gathered = gather(frame, table, prepare)
            writes = [gathered.write(_mode(table))] if gathered.count else []
            attempt = Attempt(table, is_another=False)
            self._commit_part(attempt, writes, offsets, beside=self._set_aside(gathered.refused, readings))
            self.board.count(gathered.count)
        self._finish(offsets)

    def _prepare(self) -> Prepare:
        schema = self.context.table(self.entry.id).schema

        def prepare(rows: pa.Table) -> tuple[pa.Table, Sequence[BadRecord]]:
            return split_off_nulls(rows.rename_columns(list(schema.names)), schema)

        return prepare

    def _finish(self, offsets: Mapping[str, Offset]) -> None:
        """All is committed."""
        for bounded in self._inputs.values():
            bounded.source.commit(offsets[bounded.source.spec.shown])
            self.board.warn(*bounded.source.warnings)
        self.board.become(State.READY)

    def _commit_pieces(
        self,
        pieces: Iterable[Piece],
        offsets: Mapping[str, Offset],
        *,
        beside: Callable[[], Sequence[tuple[Table, Write]]],
    ) -> None:
        """`beside`: what goes with the last piece, asked for when that is there."""
        table = self.context.table(self.entry.id)
        attempt = Attempt(table, is_another=is_loading(self.context.sequence.writer(self.entry.id)))
        is_complete = False
        for piece in pieces:
            rows, is_complete = [Write(_mode(table), piece.rows)], piece.is_last
            others = beside() if is_complete else []
            self._commit_part(attempt, rows, offsets, beside=others, is_last=is_complete)
            self.board.count(piece.rows.num_rows)
        if not is_complete:
            self._commit_part(attempt, [], offsets, beside=beside())

    def _leave_nothing(self) -> None:
        """Take back what was committed of a load that is given up."""
        if not is_loading(self.context.sequence.writer(self.entry.id)):
            return
        attempt = Attempt(self.context.table(self.entry.id), is_another=True)
        try:
            self._commit_part(attempt, [], {}, beside=[], is_last=False)
        except (VelostreamError, _StoppedError) as error:
            _log.warning("rows of a load that failed are left in %s: %s", self.entry.name, error)

    def _set_aside(
        self, refused: Sequence[BadRecord], readings: Mapping[str, Reading | NearReading]
    ) -> list[tuple[Table, Write]]:
        """What becomes of the records that give no row. Ask once, after all has been computed."""
        writes: list[tuple[Table, Write]] = []
        if refused:
            writes.append(self.context.dead_letter_write(self.entry.name, self.entry.name, list(refused)))
        for relation, reading in readings.items():
            source = self._inputs[relation].source
            writes += self.context.bad_record_writes(self.entry.name, source, reading.bad_records())
        return writes

    def _commit_part(
        self,
        attempt: Attempt,
        writes: Sequence[Write],
        offsets: Mapping[str, Offset],
        *,
        beside: Sequence[tuple[Table, Write]],
        is_last: bool = True,
    ) -> None:
        known = self.context.sequence.writer(self.entry.id)
        epoch = Epoch(self.entry.id, 0 if known is None else known.epoch + 1)
        part = attempt.part(writes, offsets, epoch=epoch, is_last=is_last, beside=beside)
        self.context.crash_point("once.before-commit")
        if self._ended():
            raise _StoppedError
        self.commit_when_possible(part, stopping=self._stopping.is_set)
        self.context.crash_point("once.after-commit")


def _mode(table: Table) -> Mode:
    return Mode.UPSERT if table.schema.key else Mode.APPEND


def _may_pass(error: VelostreamError) -> bool:
    """Whether to begin anew. What Spark says of a statement is as true the next time."""
    return isinstance(error, SourceError | StoreError) and error.category.retriable
