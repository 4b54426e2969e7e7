"""A view over bounded sources alone: read once, computed as a batch, never read again.

Rows and offsets are one record, so until it is written nothing has happened: a load that loses its source or its store
in the middle begins anew, for as long as that may help.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from velostream.engine.declared import split_off_nulls
from velostream.engine.query import Runner
from velostream.engine.reading import Reading, read_range
from velostream.engine.relations import query_error, run_sql
from velostream.engine.staging import gather
from velostream.engine.status import State
from velostream.errors import FurtherColumnsError, SourceError, StoreError, VelostreamError
from velostream.model.change import Epoch, Mode, Write
from velostream.model.retry import RetryPolicy
from velostream.sources.base import Offset, Source
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.model.schema import Schema
    from velostream.tables.base import Table


@dataclass(frozen=True)
class BoundedInput:
    source: Source
    schema: Schema


class OnceRunner(Runner):
    """Reads its sources to their present end and commits the result with the offsets, as one record."""

    def __init__(self, context: EngineContext, entry: Entry, *, sql: str, inputs: Mapping[str, BoundedInput]) -> None:
        super().__init__(context, entry)
        self._sql = sql
        self._inputs = dict(inputs)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._retry = RetryPolicy.while_running()

    def start(self) -> None:
        self._stopping.clear()
        if self.context.sequence.writer(self.entry.id) is not None:
            self.board.become(State.READY)
            return
        self.board.become(State.LOADING)
        self._thread = threading.Thread(target=self._run, name=f"load {self.entry.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=60)

    def drain(self, deadline: float) -> None:
        self.context.wait_ready(self.entry, deadline)

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
        gathered = gather(
            run_sql(session, self._sql, {relation: reading.frame for relation, reading in readings.items()}),
            table,
            lambda rows: split_off_nulls(rows.rename_columns(list(schema.names)), schema),
        )
        writes: list[tuple[Table, Write]] = []
        if gathered.refused:
            letters = list(gathered.refused)
            writes.append(self.context.dead_letter_write(self.entry.name, self.entry.name, letters))
        if gathered.count:
            writes.append((table, gathered.write(Mode.UPSERT if schema.key else Mode.APPEND)))
        for relation, reading in readings.items():
            source = self._inputs[relation].source
            writes += self.context.bad_record_writes(self.entry.name, source, reading.bad_records())
        self.context.crash_point("once.before-commit")
        self.commit_when_possible(
            Part(writes=writes, epoch=Epoch(self.entry.id, 0), position=dict(offsets)), stopping=self._stopping.is_set
        )
        self.context.crash_point("once.after-commit")
        for bounded in self._inputs.values():
            bounded.source.commit(offsets[bounded.source.spec.shown])
            self.board.warn(*bounded.source.warnings)
        self.board.count(gathered.count)
        self.board.become(State.READY)


def _may_pass(error: VelostreamError) -> bool:
    """Whether to begin anew. What Spark says of a statement is as true the next time."""
    return isinstance(error, SourceError | StoreError) and error.category.retriable
