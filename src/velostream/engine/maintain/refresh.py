"""Strategy `refresh`: run the SELECT over snapshots, commit the difference; and the loop that does so.

Views over tables have no streaming query and no checkpoint: their position is the versions of their inputs, stored
with the rows. One loop keeps them all up to date in waves: it takes the newest commit number, brings every view whose
inputs have moved to the state of that number, inputs before readers. So all paths of a diamond reflect the same version
of their common ancestor, however fast that one changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from velostream.engine.query import Runner
from velostream.engine.relations import arrow_result, query_error, run_sql
from velostream.engine.status import State
from velostream.errors import VelostreamError
from velostream.model.change import Epoch, Mode, Write
from velostream.model.retry import RetryPolicy
from velostream.tables.memory.sequence import Commit, Part

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.gate import Gate


class RefreshRunner(Runner):
    """One view over tables, maintained by the loop."""

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        *,
        sql: str,
        inputs: Mapping[str, Entry],
        loop: MaintenanceLoop,
        gate: Gate,
    ) -> None:
        super().__init__(context, entry)
        self.inputs = dict(inputs)
        self._sql = sql
        self._loop = loop
        self._gate = gate
        known = context.sequence.writer(entry.id)
        self._number = -1 if known is None else known.epoch
        self.reflects: dict[str, int] = {} if known is None else dict(known.position["reflects"])
        """Version of each input that the committed content reflects, by entry id."""
        self._failed_at: dict[str, int] = {}
        self._attempts = 0
        self._retry_at = 0.0
        self._retry = RetryPolicy.default()

    def start(self) -> None:
        self.board.become(State.LOADING)
        self._loop.add(self)

    def stop(self) -> None:
        self._loop.remove(self)

    def drain(self, deadline: float) -> None:
        wanted = {entry.id: self.context.table(entry.id).version for entry in self.inputs.values()}
        while not all(self.reflects.get(entry_id, -1) >= version for entry_id, version in wanted.items()):
            self.board.raise_if_dead()
            if self.board.state is State.DEGRADED and self.board.failure is not None:
                raise self.board.failure
            if time.monotonic() > deadline:
                raise self.board.timed_out("did not catch up in time")
            self._loop.wake()
            self.board.wait_for_news(0.1)

    def is_held_back(self) -> bool:
        """Whether an input has not been ready yet; says so on the board, and fails when the wait is up."""
        try:
            return not self._gate.is_open(self.board)
        except VelostreamError as error:
            self.board.become(State.FAILED, error.message, error=error)
            return True

    def is_stale(self, at: Mapping[str, int]) -> bool:
        """Whether an input has moved since the committed content was computed, or a failed attempt is due again."""
        return self.reflects != at and (self._failed_at != at or time.monotonic() >= self._retry_at)

    def refresh(self, at: Mapping[str, int], numbers: Mapping[str, int | None]) -> None:
        """Bring the view to the given versions of its inputs; the loop calls this."""
        session = self.context.spark.session()
        frames = {
            relation: self.context.frame(session, entry, at=numbers[entry.id])
            for relation, entry in self.inputs.items()
        }
        rows = arrow_result(run_sql(session, self._sql, frames))
        table = self.context.table(self.entry.id)
        epoch = Epoch(self.entry.id, self._number + 1)
        self.context.crash_point("refresh.before-commit")
        self.context.commit(
            Part(writes=[(table, Write(Mode.REPLACE, rows))], epoch=epoch, position={"reflects": dict(at)})
        )
        self.context.crash_point("refresh.after-commit")
        self._number = epoch.number
        self.reflects = dict(at)
        self._failed_at = {}
        self._attempts = 0
        self.board.count(rows.num_rows)
        if self.board.state is not State.READY:
            self.board.become(State.READY)
        self.board.notify()

    def failed(self, at: Mapping[str, int], error: VelostreamError) -> None:
        """Keep the last version. What the data caused is tried again when an input changes, the rest after a while."""
        self._failed_at = dict(at)
        self._retry_at = float("inf")
        state = State.DEGRADED if self.board.was_ready else State.FAILED
        if not error.category.retriable:
            self.board.become(state, error.message, error=error)
            return
        self._attempts += 1
        delay = self._retry.delay(self._attempts)
        self._retry_at = time.monotonic() + delay.total_seconds()
        waiting = State.DEGRADED if self.board.was_ready else State.WAITING
        self.board.retrying(error, attempts=self._attempts, next_retry_at=datetime.now(UTC) + delay, state=waiting)


class MaintenanceLoop:
    """The thread that keeps all views over tables up to date, in waves."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._runners: dict[str, RefreshRunner] = {}
        self._lock = threading.RLock()
        """Held for a wave, so that a removed view commits nothing afterwards."""
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._unsubscribe = context.sequence.listen(self._on_commit)

    def add(self, runner: RefreshRunner) -> None:
        with self._lock:
            self._runners[runner.entry.id] = runner
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
                self._thread.start()
        self._wake.set()

    def remove(self, runner: RefreshRunner) -> None:
        with self._lock:
            self._runners.pop(runner.entry.id, None)

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        self._unsubscribe()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=60)

    def _on_commit(self, commit: Commit) -> None:
        if commit.changed:
            self._wake.set()

    def _run(self) -> None:
        while not self._context.closing.is_set():
            self._wake.wait(0.5)
            self._wake.clear()
            with self._lock:
                order = self._order()
                if order:
                    self._wave(order)

    def _order(self) -> list[RefreshRunner]:
        """All views, inputs before readers."""
        order: list[RefreshRunner] = []
        seen: set[str] = set()

        def visit(runner: RefreshRunner) -> None:
            if runner.entry.id in seen:
                return
            seen.add(runner.entry.id)
            for entry in runner.inputs.values():
                if entry.id in self._runners:
                    visit(self._runners[entry.id])
            order.append(runner)

        for runner in list(self._runners.values()):
            visit(runner)
        return order

    def _wave(self, order: list[RefreshRunner]) -> None:
        """Bring every view to the state of one commit number.

        Inputs that are no views are read at that number; views, which only this loop writes, at what the wave has
        just made of them. A view one of whose inputs could not be brought along waits for the next wave.
        """
        with self._context.sequence.pin() as pin:
            behind: set[str] = set()
            for runner in order:
                if self._context.closing.is_set():
                    return
                try:
                    if not self._bring_along(runner, pin.sequence, behind):
                        behind.add(runner.entry.id)
                except Exception as error:  # noqa: BLE001 - one view's trouble must not stop the others
                    behind.add(runner.entry.id)
                    runner.failed({}, query_error(error, f'view "{runner.entry.name}" could not be refreshed'))

    def _bring_along(self, runner: RefreshRunner, number: int, behind: set[str]) -> bool:
        """Bring one view to the state of the wave; false when it can't be, because of itself or of an input."""
        entries = list(runner.inputs.values())
        if runner.is_held_back() or any(entry.id in behind for entry in entries):
            return False
        numbers = {entry.id: None if entry.id in self._runners else number for entry in entries}
        at = {entry.id: self._context.table(entry.id).snapshot(numbers[entry.id]).version for entry in entries}
        if runner.is_stale(at):
            try:
                runner.refresh(at, numbers)
            except Exception as error:  # noqa: BLE001 - shows on the board, and is tried again when that can help
                runner.failed(at, query_error(error, f'view "{runner.entry.name}" could not be refreshed'))
                return False
        elif runner.reflects != at:
            return False
        elif not runner.board.was_ready:
            runner.board.become(State.READY)
        return True
