"""Views over tables: the runner of one, and the loop that keeps them all up to date in waves.

Views over tables have no streaming query and no checkpoint: their position is the versions of their inputs, stored
with the rows. The loop takes the newest commit number and brings every view whose inputs have moved to the state of
that number, inputs before readers. So all paths of a diamond reflect the same version of their common ancestor, however
fast that one changes. How a view is brought along is its `Maintenance`: by computing it again (refresh.py) or by
following the changes of its inputs (delta.py).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from velostream.engine.maintain.base import Maintenance, Movement, Wave
from velostream.engine.measuring import Stage
from velostream.engine.query import Runner
from velostream.engine.spark_failures import query_error
from velostream.engine.status import State
from velostream.engine.trigger import TOOK_WHAT_WAS_THERE, Pace
from velostream.errors import TableError, VelostreamError
from velostream.model.change import Epoch, Write
from velostream.model.retry import RetryPolicy
from velostream.tables.memory.sequence import Commit, Part

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.gate import Gate
    from velostream.tables.base import Table

_LOOK_SECONDS = 0.5
"""How long the loop rests at most, which is how gates and what failed are watched."""
_DRAIN_SECONDS = 30.0
"""So long a view that is triggered once asks at a time whether its sources were taken in, before it looks around."""
_AT_ONCE = 2
"""Views brought along at the same time; where they compute in Spark or Arrow, these use more cores by themselves."""
_QUICK_SECONDS = 0.0025
"""While views take less, one thread brings them along: two would mostly wait for each other's hold on Python."""


class ViewRunner(Runner):
    """One view over tables, maintained by the loop."""

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        *,
        inputs: Mapping[str, Entry],
        maintenance: Maintenance,
        loop: MaintenanceLoop,
        gate: Gate,
    ) -> None:
        super().__init__(context, entry)
        self.inputs = dict(inputs)
        self._maintenance = maintenance
        self._loop = loop
        self._gate = gate
        self.pace = Pace()
        self.first: Sequence[Callable[[], Runner | None]] = ()
        """Give what takes in what is there before the view does, of one that is triggered once."""
        self._has_ended = False
        known = context.sequence.writer(entry.id)
        self._number = -1 if known is None else known.epoch
        same = known is not None and known.position.get("plan", "") == maintenance.fingerprint
        if known is not None:
            maintenance.recall(known.position)
        self.reflects: dict[str, int] = dict(known.position["reflects"]) if known is not None and same else {}
        """Version of each input that the committed content reflects, by entry id."""
        self._failed_at: dict[str, int] | None = {}
        """Versions of the inputs at which it could not be brought along; None: not even they could be found out."""
        self._attempts = 0
        self._retry_at = 0.0
        self._retry = RetryPolicy.while_running()
        self._stopped = False

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def start(self) -> None:
        self._stopped = self._has_ended = False
        self.board.become(State.LOADING)
        if self.first:
            threading.Thread(target=self._begin_after_others, name=f"once {self.entry.name}", daemon=True).start()
        else:
            self._loop.add(self)

    def _begin_after_others(self) -> None:
        for find in self.first:
            while not (self._stopped or self.context.closing.is_set() or _is_drained(find)):
                self.context.closing.wait(_LOOK_SECONDS)
        self._loop.add(self)

    def stop(self) -> None:
        self._stopped = True
        self._loop.remove(self)

    def raise_if_dead(self) -> None:
        if self._failed_at and self._failed_at != self._versions():
            # An input has changed since, so it is tried again.
            return
        super().raise_if_dead()
        failure = self.board.failure
        if failure is not None and not failure.category.retriable:
            raise failure

    def _versions(self) -> dict[str, int]:
        """Those of the inputs just now."""
        return {entry.id: self.context.table(entry.id).version for entry in self.inputs.values()}

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def drain(self, deadline: float) -> None:
        wanted = self._versions()
        while not all(self.reflects.get(entry_id, -1) >= version for entry_id, version in wanted.items()):
            if self._stopped or self._has_ended:
                return
            self.raise_if_dead()
            if time.monotonic() > deadline:
                raise self.board.timed_out("did not catch up in time")
            self.pace.hurry()
            self._loop.wake()
            self.board.wait_for_news(0.1)

    @property
    def forgets(self) -> bool:
        """Whether it can't be computed anew: rows that it was computed from are gone."""
        return self._maintenance.forgets

    def forget_what_it_reflects(self) -> None:
        """Have the view computed anew, as if all its inputs had changed."""
        self._loop.have_loaded(self)

    def begin_anew(self) -> None:
        """Reflect nothing, and forget what went wrong: the loop calls this between two waves."""
        self.reflects = {}
        self._failed_at = {}
        self._attempts = 0
        self._retry_at = 0.0
        if self.board.state is State.DEGRADED:
            self.board.become(State.LOADING)

    def is_held_back(self) -> bool:
        """Whether an input has not been ready yet; says so on the board, and fails when the wait is up."""
        try:
            return not self._gate.is_open(self.board)
        except VelostreamError as error:
            self.board.become(State.FAILED, error.message, error=error)
            return True

    def is_resting(self) -> bool:
        """Whether its inputs could not be looked at, and the time to try again has not come."""
        return self._failed_at is None and time.monotonic() < self._retry_at

    def is_stale(self, at: Mapping[str, int]) -> bool:
        """Whether an input has moved since the committed content was computed, or a failed attempt is due again."""
        return self.reflects != at and (self._failed_at != at or time.monotonic() >= self._retry_at)

    def followed(self, wave: Wave, at: Mapping[str, int]) -> Part | None:
        """What brings the view to the state of the wave, in which its inputs have these versions, by their changes.

        None when it has to be computed anew. Committing it and `committed` are the loop's.
        """
        if not all(entry.id in self.reflects for entry in self.inputs.values()):
            return None
        began = time.perf_counter()
        try:
            writes = self._maintenance.advance(Movement(wave, self.inputs, self.reflects))
        except TableError as error:
            if error.code != "changes-expired":
                raise
            return None
        if writes is None:
            return None
        part = self._part(writes, at)
        self.board.work.add("follow changes", Stage(1, self._rows_in(part), time.perf_counter() - began))
        return part

    def computed(self, wave: Wave, at: Mapping[str, int]) -> Part:
        """Like `followed`, from all rows of the inputs."""
        with self.board.work.measure("compute all rows") as step:
            part = self._part(self._maintenance.load(Movement(wave, self.inputs, self.reflects)), at)
            step.rows = self._rows_in(part)
        return part

    def committed(self, part: Part, at: Mapping[str, int], seconds: float) -> None:
        """The part is committed, which took so long."""
        rows = self._rows_in(part)
        self.board.work.add("commit", Stage(1, rows, seconds))
        self._number += 1
        self._maintenance.settle()
        self.reflects = dict(at)
        self.board.count(rows)
        self.caught_up()
        self.board.notify()

    def caught_up(self) -> None:
        """The view reflects its inputs; whatever trouble there was is over."""
        self._failed_at = {}
        self._attempts = 0
        self._has_ended = self.pace.once
        if self.board.state is not State.READY:
            self.board.become(State.READY, TOOK_WHAT_WAS_THERE if self.pace.once else "")

    def _part(self, writes: Sequence[tuple[Table, Write]], at: Mapping[str, int]) -> Part:
        epoch = Epoch(self.entry.id, self._number + 1)
        position = {"reflects": dict(at), "plan": self._maintenance.fingerprint, **self._maintenance.remembered}
        return Part(writes, epoch, position, reads=dict(at) if self._maintenance.follows else {})

    def _rows_in(self, part: Part) -> int:
        """How many rows of the view's own table are written."""
        target = self.context.table(self.entry.id)
        return sum(write.rows.num_rows for table, write in part.writes if table is target)

    def failed(self, at: Mapping[str, int] | None, error: VelostreamError) -> None:
        """Keep the last version. What the data caused is tried again when an input changes, the rest after a while.

        So is everything when the inputs' versions are unknown (None): nobody would notice that they change.
        """
        self._failed_at = None if at is None else dict(at)
        if at is not None and not error.category.retriable:
            self._retry_at = float("inf")
            state = State.DEGRADED if self.board.was_ready else State.FAILED
            self.board.become(state, error.message, error=error)
            return
        self._attempts += 1
        self.pace.hurry()
        delay = self._retry.delay(self._attempts)
        self._retry_at = time.monotonic() + delay.total_seconds()
        self.board.retrying(error, attempts=self._attempts, delay=delay)


class MaintenanceLoop:
    """Keeps all views over tables up to date, in waves. Views that don't read one another are brought along together:
    most of the work is Arrow's or Spark's, which let go of Python's lock.
    """

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._runners: dict[str, ViewRunner] = {}
        self._lock = threading.RLock()
        """Held for a wave, so that a removed view commits nothing afterwards."""
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._unsubscribe: Callable[[], None] | None = None
        """Commits are listened to once there is a view: hearing of every one of them costs what a small one does."""

    def add(self, runner: ViewRunner) -> None:
        """Keep a view up to date from now on, unless it was stopped meanwhile."""
        with self._lock:
            if runner.is_stopped:
                return
            self._runners[runner.entry.id] = runner
            if self._thread is None:
                self._unsubscribe = self._context.sequence.listen(self._on_commit)
                self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
                self._thread.start()
        self._wake.set()

    def remove(self, runner: ViewRunner) -> None:
        with self._lock:
            if self._runners.get(runner.entry.id) is runner:
                del self._runners[runner.entry.id]

    def wake(self) -> None:
        self._wake.set()

    def have_loaded(self, runner: ViewRunner) -> None:
        """Between two waves, let a view reflect nothing: the next one loads it."""
        with self._lock:
            runner.begin_anew()
        self._wake.set()

    def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=60)

    def _on_commit(self, commit: Commit) -> None:
        # Asking costs a tenth of setting what is set already.
        if commit.changed and not self._wake.is_set():
            self._wake.set()

    def _run(self) -> None:
        pause = _LOOK_SECONDS
        while not self._context.closing.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            with self._lock:
                order = self._order()
                if order:
                    try:
                        self._wave(order)
                    except Exception as error:  # noqa: BLE001 - whatever it is must show on the boards, not end the thread
                        failure = query_error(error, "the views over tables could not be brought along")
                        for runner in self._runners.values():
                            runner.failed(None, failure)
                self._runners = {key: runner for key, runner in self._runners.items() if not runner.has_ended}
                rests = (runner.pace.seconds_left for runner in self._runners.values())
                pause = min((left for left in rests if left), default=_LOOK_SECONDS)
                pause = min(pause, _LOOK_SECONDS)

    def _order(self) -> list[list[ViewRunner]]:
        """All views, inputs before readers: those of one list read only what stands before it."""
        depths: dict[str, int] = {}

        def depth(runner: ViewRunner) -> int:
            entry_id = runner.entry.id
            if entry_id not in depths:
                below = [self._runners[one.id] for one in runner.inputs.values() if one.id in self._runners]
                depths[entry_id] = 1 + max(map(depth, below), default=-1)
            return depths[entry_id]

        order: dict[int, list[ViewRunner]] = {}
        for runner in self._runners.values():
            order.setdefault(depth(runner), []).append(runner)
        return [order[number] for number in sorted(order)]

    def _wave(self, order: list[list[ViewRunner]]) -> None:
        """Bring every view to the state of one commit number.

        Inputs that are no views are read at that number; views, which only this loop writes, at what the wave has
        just made of them. A view one of whose inputs could not be brought along waits for the next wave.
        """
        with self._context.sequence.pin() as pin:
            wave = Wave(self._context, pin.sequence, frozenset(self._runners))
            behind: frozenset[str] = frozenset()
            _hurry_for_new(order)
            for runners in order:
                behind |= self._left_behind(runners, wave, behind)

    def _left_behind(self, runners: Sequence[ViewRunner], wave: Wave, behind: frozenset[str]) -> frozenset[str]:
        """Bring views along that don't read one another; gives those that could not be.

        Those that follow changes are committed as one record, which costs little more than that of one of them; what
        has to be computed anew comes after, and each is committed when it is there.
        """
        moves = [move for runner in runners if (move := self._move(runner, wave, behind)) is not None]
        left = {runner.entry.id for runner in runners} - {move.runner.entry.id for move in moves}
        moves = [move for move in moves if move.is_due]

        def follow(move: _Move) -> None:
            move.part = move.runner.followed(wave, move.at)

        def compute(move: _Move) -> None:
            move.part = move.runner.computed(wave, move.at)
            self._commit([move])

        self._each(moves, follow)
        followed = [move for move in moves if move.part is not None]
        try:
            self._commit(followed)
        except Exception:  # noqa: BLE001 - which of them it was shows when each is committed by itself
            self._each(followed, lambda move: self._commit([move]))
        self._each([move for move in moves if move.part is None and not move.failed], compute)
        return frozenset(left | {move.runner.entry.id for move in moves if not move.done})

    def _move(self, runner: ViewRunner, wave: Wave, behind: frozenset[str]) -> _Move | None:
        """Where a view has to go; None when it can't, because of itself or of an input."""
        entries = list(runner.inputs.values())
        try:
            if runner.is_held_back() or runner.is_resting() or any(entry.id in behind for entry in entries):
                return None
            at = {entry.id: wave.snapshot(entry).version for entry in entries}
            is_due = runner.is_stale(at)
            if not is_due:
                if runner.reflects != at:
                    return None
                runner.caught_up()
            elif runner.pace.rests:
                return None
            else:
                runner.pace.looked(found=True)
            return _Move(runner, at, is_due)
        except Exception as error:  # noqa: BLE001 - one view's trouble must not stop the others
            runner.failed(None, _not_refreshed(runner, error))
            return None

    def _each(self, moves: Sequence[_Move], step: Callable[[_Move], None]) -> None:
        """Have a step done with every view, some at a time. Where it fails the board shows it."""
        waiting = deque(moves)
        step_done = threading.Event()

        def work() -> None:
            while not self._context.closing.is_set():
                try:
                    move = waiting.popleft()
                except IndexError:
                    return
                try:
                    step(move)
                except Exception as error:  # noqa: BLE001 - shows on the board, and is tried again when that can help
                    move.failed = True
                    move.runner.failed(move.at, _not_refreshed(move.runner, error))
                finally:
                    step_done.set()

        def help_out() -> None:
            while waiting and step_done.wait(_QUICK_SECONDS):
                step_done.clear()
            work()

        helpers = [threading.Thread(target=help_out, daemon=True) for _ in range(min(_AT_ONCE, len(moves)) - 1)]
        for helper in helpers:
            helper.start()
        work()
        for helper in helpers:
            helper.join()

    def _commit(self, moves: Sequence[_Move]) -> None:
        """Commit what brings views along, as one record."""
        if not moves or self._context.closing.is_set():
            return
        parts = [move.part for move in moves if move.part is not None]
        began = time.perf_counter()
        self._context.crash_point("refresh.before-commit")
        self._context.commit(*parts)
        self._context.crash_point("refresh.after-commit")
        seconds = (time.perf_counter() - began) / len(parts)
        for move, part in zip(moves, parts, strict=True):
            move.runner.committed(part, move.at, seconds)
            move.done = True


@dataclass
class _Move:
    """One view in a wave."""

    runner: ViewRunner
    at: Mapping[str, int]
    """Versions of its inputs in the wave."""
    is_due: bool
    part: Part | None = None
    failed: bool = False
    done: bool = False


def _not_refreshed(runner: ViewRunner, error: Exception) -> VelostreamError:
    return query_error(error, f'view "{runner.entry.name}" could not be refreshed')


def _is_drained(find: Callable[[], Runner | None]) -> bool:
    """Whether who is found has taken in what was there a moment ago, or can't; somebody else may take its place."""
    runner = find()
    if runner is None:
        return False
    try:
        runner.drain(time.monotonic() + _DRAIN_SECONDS)
    except VelostreamError:
        # The gate tells of those that have never been ready.
        return runner.board.state is State.FAILED
    return find() is runner


def _hurry_for_new(order: Sequence[Sequence[ViewRunner]]) -> None:
    """Views that have never been computed wait for nobody's rest."""
    wanted: set[str] = set()
    for runners in reversed(order):
        for runner in runners:
            is_wanted = runner.entry.id in wanted
            if is_wanted:
                runner.pace.hurry()
            if is_wanted or (not runner.reflects and runner.board.state is State.LOADING):
                wanted |= {entry.id for entry in runner.inputs.values()}
