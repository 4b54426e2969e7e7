"""A view over bounded sources alone: read once, computed as a batch, never read again.

All is read and computed before anything is committed, so a load that loses its source begins anew, for as long as that
may help. What is committed is one record with the rows and the offsets. Into a table of ours many rows go in pieces
(see `loading`), and what is set aside comes with the last of them.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from velostream.engine.declared import split_off_nulls
from velostream.engine.maintain.loading import LOADS, ROWS_AT_ONCE, Attempt, is_loading
from velostream.engine.pieces import gather_in_pieces
from velostream.engine.query import Runner
from velostream.engine.reading import Reading, read_range
from velostream.engine.relations import query_error, run_sql
from velostream.engine.staging import gather
from velostream.engine.status import State
from velostream.errors import FurtherColumnsError, SourceError, StoreError, VelostreamError
from velostream.model.change import Epoch, Mode, Write
from velostream.model.retry import RetryPolicy
from velostream.sources.base import BadRecord, Offset, Source
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.staging import Prepare
    from velostream.model.schema import Schema
    from velostream.tables.base import Table

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

    def __init__(self, context: EngineContext, entry: Entry, *, sql: str, inputs: Mapping[str, BoundedInput]) -> None:
        super().__init__(context, entry)
        self._sql = sql
        self._inputs = dict(inputs)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._retry = RetryPolicy.while_running()
        given = [bounded.source.settings.integer("max.rows.per.trigger") for bounded in self._inputs.values()]
        self._rows_at_once = min((most for most in given if most), default=ROWS_AT_ONCE)

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
        schema = table.schema
        frame = run_sql(session, self._sql, {relation: reading.frame for relation, reading in readings.items()})

        def prepare(rows: pa.Table) -> tuple[pa.Table, Sequence[BadRecord]]:
            return split_off_nulls(rows.rename_columns(list(schema.names)), schema)

        if isinstance(table, MemoryTable):
            self._commit_in_pieces(frame, table, prepare, readings, offsets)
        else:
            # Others see what is in a store, so it goes there as a whole.
            gathered = gather(frame, table, prepare)
            writes = [gathered.write(_mode(table))] if gathered.count else []
            attempt = Attempt(table, is_another=False)
            self._commit_part(attempt, writes, offsets, beside=self._set_aside(gathered.refused, readings))
            self.board.count(gathered.count)
        for bounded in self._inputs.values():
            bounded.source.commit(offsets[bounded.source.spec.shown])
            self.board.warn(*bounded.source.warnings)
        self.board.become(State.READY)

    def _commit_in_pieces(
        self,
        frame: DataFrame,
        table: MemoryTable,
        prepare: Prepare,
        readings: Mapping[str, Reading],
        offsets: Mapping[str, Offset],
    ) -> None:
        attempt = Attempt(table, is_another=is_loading(self.context.sequence.writer(self.entry.id)))
        # An earlier runner that could not be ended in time may still be at work in a folder of its own.
        loads = self.context.directory.folder(LOADS)
        with tempfile.TemporaryDirectory(dir=loads, ignore_cleanup_errors=True) as folder:
            pieces = gather_in_pieces(frame, Path(folder), prepare, most_rows=self._rows_at_once)
            beside = self._set_aside(pieces.refused, readings)
            for piece in pieces:
                rows, others = [Write(_mode(table), piece.rows)], beside if piece.is_last else []
                self._commit_part(attempt, rows, offsets, beside=others, is_last=piece.is_last)
                self.board.count(piece.rows.num_rows)
            if not pieces.count:
                self._commit_part(attempt, [], offsets, beside=beside)

    def _set_aside(self, refused: Sequence[BadRecord], readings: Mapping[str, Reading]) -> list[tuple[Table, Write]]:
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
