"""A source that is a table: read, then kept up to date by difference in a table of its own.

Sources that emit upserts or changes, and bounded sources that meet a live input, are folded here once for all
statements that name them; what is built on them is then a view over a table.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from velostream.engine.query import Runner
from velostream.engine.relations import query_error
from velostream.engine.status import State
from velostream.model.change import CHANGE, ORIGIN, Epoch, Mode, Scope, Write
from velostream.model.retry import RetryPolicy
from velostream.sources.base import BadRecord, Emits, Offset, Partition, Source
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.model.schema import Schema


class FoldRunner(Runner):
    """Reads one source on a thread of its own and commits the difference, with the position, into its table."""

    def __init__(self, context: EngineContext, entry: Entry, *, source: Source, schema: Schema) -> None:
        super().__init__(context, entry)
        self.source = source
        self._schema = schema
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._retry = RetryPolicy.while_running()
        known = context.sequence.writer(entry.id)
        self._position: Offset = source.initial_offset() if known is None else known.position["offset"]
        self._number = -1 if known is None else known.epoch
        self._done = known is not None and not source.capabilities.follows
        interval = source.settings.duration("poll.interval") or timedelta(milliseconds=100)
        self._poll_seconds = interval.total_seconds()

    def start(self) -> None:
        self._stopping = False
        if self._done:
            self.board.become(State.READY)
            return
        self.board.become(State.LOADING)
        self._thread = threading.Thread(target=self._run, name=f"fold {self.source.spec.uri}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def wake(self) -> None:
        self._wake.set()

    def drain(self, deadline: float) -> None:
        if self._done:
            return
        with self._lock:
            target = self.source.latest_offset(self._position)
        self._wake.set()
        while not self.source.reached(self._position, target):
            self.board.raise_if_dead()
            if time.monotonic() > deadline:
                raise self.board.timed_out("did not catch up in time")
            self.board.wait_for_news(0.1)

    def _run(self) -> None:
        attempts = 0
        while not self._stopping and not self.context.closing.is_set():
            try:
                with self._lock:
                    self._step()
                attempts = 0
                if self.board.state is not State.READY:
                    self.board.become(State.READY)
                self.board.notify()
                if not self.source.capabilities.follows:
                    self._done = True
                    return
                self._wake.wait(self._poll_seconds)
            except Exception as trouble:  # noqa: BLE001 - whatever it is must show on the board
                error = query_error(trouble, f'source "{self.source.spec.uri}" could not be processed')
                attempts += 1
                if not error.category.retriable:
                    self.board.become(State.FAILED, error.message, error=error)
                    return
                delay = self._retry.delay(attempts)
                state = State.DEGRADED if self.board.was_ready else State.WAITING
                self.board.retrying(error, attempts=attempts, next_retry_at=datetime.now(UTC) + delay, state=state)
                self._wake.wait(delay.total_seconds())
            self._wake.clear()

    def _step(self) -> None:
        """Take in everything up to the present end, as one commit."""
        end = self.source.latest_offset(self._position)
        if end == self._position and self._number >= 0:
            return
        bad: list[BadRecord] = []
        by_origin: dict[tuple[str | None, bool], list[pa.Table]] = {}
        for partition in self.source.partitions(self._position, end):
            by_origin.setdefault((partition.origin, partition.replaces), []).append(self._read(partition, bad))
        table = self.context.table(self.entry.id)
        writes = []
        rows = 0
        for (origin, replaces), parts in by_origin.items():
            content = pa.concat_tables(parts)
            rows += content.num_rows
            writes += [(table, write) for write in self._writes(content, origin, replaces=replaces)]
        writes += self.context.bad_record_writes(self.entry.name, self.source, bad)
        epoch = Epoch(self.entry.id, self._number + 1)
        self.context.crash_point("fold.before-commit")
        self.context.sequence.commit(Part(writes=writes, epoch=epoch, position={"offset": end}))
        self.context.crash_point("fold.after-commit")
        self._position, self._number = end, epoch.number
        self.board.count(rows)

    def _read(self, partition: Partition, bad: list[BadRecord]) -> pa.Table:
        batches = list(self.source.read(partition, self._schema, bad.append))
        schema = batches[0].schema if batches else self._schema.arrow
        return pa.Table.from_batches(batches, schema)

    def _writes(self, rows: pa.Table, origin: str | None, *, replaces: bool) -> list[Write]:
        if self.source.capabilities.emits is Emits.UPSERTS and CHANGE in rows.column_names:
            rows = _last_of_each_key(rows, self._schema.key)
            gone = pc.less(rows[CHANGE], 0)
            kept = rows.filter(pc.invert(gone)).drop_columns([CHANGE])
            removed = rows.filter(gone).select(list(self._schema.key))
            return [Write(Mode.UPSERT, kept), Write(Mode.DELETE, removed)]
        tagged = rows.append_column(ORIGIN, pa.repeat(pa.scalar(origin, pa.string()), rows.num_rows))
        if CHANGE in rows.column_names:
            return [Write(Mode.CHANGES, tagged)]
        if replaces:
            return [Write(Mode.REPLACE, tagged, Scope(ORIGIN, origin))]
        return [Write(Mode.APPEND, tagged)]


def _last_of_each_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Only the last record of each key counts; earlier ones of the same range were overtaken by it."""
    numbered = rows.select(list(key)).append_column("_number", pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([("_number", "max")])["_number_max"]
    return rows.take(last.combine_chunks().sort())
