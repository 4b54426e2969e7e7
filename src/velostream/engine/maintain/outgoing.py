"""The changes of a view on their way out: `INSERT INTO kafka://… SELECT … FROM tables EMIT CHANGES`.

The query is a hidden view. What its commits change goes to the sink batch by batch, each from the commit number that
was written last up to the newest one. That number is written down before the batch is, and its version kept readable:
a batch repeated after a crash holds the same changes under the same epoch.
Guarantee: the sink's own; exactly-once where it is idempotent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from velostream.engine.query import Runner
from velostream.engine.spark_failures import query_error
from velostream.engine.status import State
from velostream.engine.subscribe import content_of
from velostream.engine.trigger import TOOK_WHAT_WAS_THERE, Pace
from velostream.errors import StateError
from velostream.model.change import Epoch
from velostream.model.retry import RetryPolicy
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.gate import Gate
    from velostream.sinks.base import Sink
    from velostream.tables.memory.sequence import Commit

_LOOK_SECONDS = 0.2
"""How long to rest where no commit wakes us, which is how the gate is watched."""


class OutgoingChanges(Runner):
    """Follows one view on a thread of its own, and gives its changes to a sink, which it owns."""

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        *,
        view: Entry,
        sink: Sink,
        gate: Gate,
        on_written: Callable[[], None],
    ) -> None:
        super().__init__(context, entry)
        self._view = view
        self._sink = sink
        self._gate = gate
        self._on_written = on_written
        self.pace = Pace()
        self._has_ended = self._looked = False
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._retry = RetryPolicy.while_running()
        known = context.sequence.writer(entry.id)
        if known is not None and known.position["view"] != view.id:
            raise StateError.checkpoint(entry.name, reason="the rows that it has written were those of another view")
        self._number = -1 if known is None else known.epoch
        self._written: int | None = None if known is None else known.position["at"]
        """The commit number up to which the sink has all changes; None before it has any."""

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def start(self) -> None:
        self._stopping = self._has_ended = self._looked = False
        self.board.become(State.LOADING)
        self._unsubscribe = self.context.sequence.listen(self._on_commit)
        self._thread = threading.Thread(target=self._run, name=f"changes {self.entry.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=30)
        self._sink.close()

    def drain(self, deadline: float) -> None:
        wanted = self.context.memory_table(self._view.id).version
        while not (self._stopping or self._has_ended) and (self._written is None or self._written < wanted):
            self.board.raise_if_dead()
            self.pace.hurry()
            if time.monotonic() > deadline:
                raise self.board.timed_out("did not catch up in time")
            self._wake.set()
            self.board.wait_for_news(0.1)

    def _on_commit(self, commit: Commit) -> None:
        if self._view.id in commit.changed:
            self._wake.set()

    def _run(self) -> None:
        attempts = 0
        while not (self._stopping or self._has_ended or self.context.closing.is_set()):
            self._wake.clear()
            pause = _LOOK_SECONDS
            try:
                if self._gate.is_open(self.board):
                    self._catch_up()
                attempts = 0
            except Exception as trouble:  # noqa: BLE001 - whatever it is must show on the board
                if self._stopping or self.context.closing.is_set():
                    return
                error = query_error(trouble, f'query "{self.entry.name}" could not write changes')
                if not error.category.retriable:
                    self.board.become(State.FAILED, error.message, error=error)
                    return
                attempts += 1
                delay = self._retry.delay(attempts)
                self.board.retrying(error, attempts=attempts, delay=delay)
                pause = delay.total_seconds()
            self._wake.wait(pause)

    def _catch_up(self) -> None:
        """Write what the view has become since the last batch; the one that a crash has left unfinished first."""
        while not self._stopping and (at := self._next()) is not None:
            self._write(at)
        if self.board.state is not State.READY:
            self.board.become(State.READY, TOOK_WHAT_WAS_THERE if self.pace.once else "")

    def _next(self) -> int | None:
        """Up to where the next batch goes; None when nothing is new, or the trigger lets nothing more be taken now."""
        at = self._intended()
        if at is not None or self.pace.rests:
            return at
        if not (self.pace.once and self._looked):
            at = self._intend()
            self._looked = True
            self.pace.looked(found=at is not None)
        self._has_ended = self.pace.once and at is None
        return at

    def _intended(self) -> int | None:
        """Up to where the batch goes that was begun and is not known to be written."""
        known = self.context.sequence.writer(self._intent_writer)
        return known.position["at"] if known is not None and known.position["number"] == self._number + 1 else None

    def _intend(self) -> int | None:
        """Write down up to where the next batch goes; None when there is nothing new."""
        with self.context.sequence.pin() as pin:
            if self._written is not None and self.context.memory_table(self._view.id).version <= self._written:
                return None
            position = {"at": pin.sequence, "number": self._number + 1}
            part = Part(epoch=self._intent_epoch(), position=position, reads={self._view.id: pin.sequence})
            self.context.sequence.commit(part)
            return pin.sequence

    def _write(self, at: int) -> None:
        table = self.context.memory_table(self._view.id)
        batch = content_of(table, at) if self._written is None else table.changes(self._written, at)
        epoch = Epoch(self.entry.id, self._number + 1)
        if batch.arrow.num_rows:
            self._sink.write(batch.arrow, epoch)
            self.context.crash_point("sink.after-write")
        written = Part(epoch=epoch, position={"view": self._view.id, "at": at}, reads={self._view.id: at})
        done = Part(epoch=self._intent_epoch(), position={"at": at, "number": epoch.number})
        self.context.sequence.commit(written, done)
        self._number, self._written = epoch.number, at
        self.board.count(batch.arrow.num_rows)
        self.board.notify()
        self._on_written()

    @property
    def _intent_writer(self) -> str:
        return f"{self.entry.id}.intent"

    def _intent_epoch(self) -> Epoch:
        known = self.context.sequence.writer(self._intent_writer)
        return Epoch(self._intent_writer, 0 if known is None else known.epoch + 1)
