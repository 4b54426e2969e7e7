"""States of tables and queries, and everything `SHOW STATUS` tells of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from velostream.engine.measuring import Measurements
from velostream.errors import QueryError, VelostreamError, WaitTimeoutError
from velostream.sources.base import Lag

GAUGE_SECONDS = 5.0
"""How often sources are asked how things stand with them."""
CAUGHT_UP = Lag(0, 0.0)


class State(StrEnum):
    WAITING = "waiting"
    LOADING = "loading"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Status:
    """One moment of a table or query, as `con.status("t")` gives it."""

    name: str
    kind: str
    state: State
    reason: str = ""
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    rows: int | None = None
    bytes: int | None = None
    rows_per_second: float | None = None
    percent: float | None = None
    eta: float | None = None
    lag_rows: int | None = None
    """How many rows of its source are still to be read; None where that isn't known."""
    lag_seconds: float | None = None
    """How old the newest row is that was read, or the oldest that wasn't; 0 when all was read."""
    version: int | None = None
    error: str | None = None
    attempts: int = 0
    next_retry_at: datetime | None = None
    warnings: tuple[str, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    """What was counted since the start: late rows, lookups that found no row."""
    gauges: Mapping[str, int] = field(default_factory=dict)
    """How things stand where the rows come from: what a database's log keeps for us, how far behind we are."""


class StatusBoard:
    """The live state of one table or query. The thread that runs it writes; anyone reads and waits."""

    def __init__(self, name: str, kind: str, state: State = State.WAITING, reason: str = "") -> None:
        self._changed = threading.Condition()
        self._status = Status(name, str(kind), state, reason)
        self._was_ready = state is State.READY
        self._failure: VelostreamError | None = None
        self._trouble: VelostreamError | None = None
        """What it said last: a failure, or what is being retried."""
        self._rate = _Rate()
        self._counters: dict[str, int] = {}
        self._progress: _Progress | None = None
        self.lag = Lag()
        """How far it was behind its source when that was last looked at."""
        self.gauges: Mapping[str, int] = {}
        """As of the last time that the source was asked; see `Status.gauges`."""
        self.work = Measurements()

    @property
    def status(self) -> Status:
        percent, eta = (None, None) if self._progress is None else self._progress.told(is_done=self._was_ready)
        rate = self._rate.per_second()
        lag = self.lag
        return replace(
            self._status,
            rows_per_second=rate,
            percent=percent,
            eta=eta,
            lag_rows=lag.rows,
            lag_seconds=lag.seconds,
            gauges=self.gauges,
        )

    @property
    def state(self) -> State:
        return self._status.state

    @property
    def failure(self) -> VelostreamError | None:
        return self._failure

    @property
    def was_ready(self) -> bool:
        """Whether everything its sources held at its start has been committed; stays true when degraded or paused."""
        return self._was_ready

    def recall_ready(self) -> None:
        """It was ready before a restart, and what it holds is still right as of then."""
        self._was_ready = True

    def become(self, state: State, reason: str = "", *, error: VelostreamError | None = None) -> None:
        with self._changed:
            current = self._status
            since = current.since if current.state is state else datetime.now(UTC)
            text = None if error is None else error.message + (f": {error.detail}" if error.detail else "")
            self._status = replace(current, state=state, reason=reason, since=since, error=text)
            self._failure = error if state in (State.FAILED, State.DEGRADED) else None
            self._trouble = error
            if state is State.READY:
                self._was_ready = True
                self._status = replace(self._status, attempts=0, next_retry_at=None)
            self._changed.notify_all()

    def retrying(self, error: VelostreamError, *, attempts: int, delay: timedelta) -> None:
        """Trouble that is tried again after the delay: `waiting` before it was ever ready, `degraded` after."""
        self.lag = Lag()
        self.become(State.DEGRADED if self._was_ready else State.WAITING, error.message, error=error)
        with self._changed:
            self._status = replace(self._status, attempts=attempts, next_retry_at=datetime.now(UTC) + delay)

    def count(self, rows: int) -> None:
        """Rows that came through just now, for the rate."""
        self._rate.add(rows)

    def track(self, finished: Callable[[], float | None]) -> None:
        """A load begins now; `finished` says how much of it is done, 0 to 1, whenever somebody looks. Any thread may
        call it; it must not raise.
        """
        self._progress = _Progress(finished)

    def tally(self, counter: str, number: int) -> None:
        """Things worth counting since the start: late rows, rows that a lookup did not find."""
        with self._changed:
            self._counters[counter] = self._counters.get(counter, 0) + number

    @property
    def counters(self) -> dict[str, int]:
        with self._changed:
            return dict(self._counters)

    def warn(self, *warnings: str) -> None:
        with self._changed:
            kept = self._status.warnings
            self._status = replace(self._status, warnings=kept + tuple(w for w in warnings if w not in kept))

    def take_back(self, *warnings: str) -> None:
        """What was warned of is over."""
        with self._changed:
            left = tuple(warning for warning in self._status.warnings if warning not in warnings)
            self._status = replace(self._status, warnings=left)

    def notify(self) -> None:
        """Wake waiters: something they look at beside the state has moved."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_news(self, seconds: float) -> None:
        """Sleep until something is notified, at most so long."""
        with self._changed:
            self._changed.wait(seconds)

    def raise_if_dead(self) -> None:
        if self.state is State.FAILED and self._failure is not None:
            raise self._failure
        if self.state is State.STOPPED:
            raise QueryError(f'query "{self._status.name}" is stopped', hint="RESTART QUERY starts it again")

    def timed_out(self, what: str) -> WaitTimeoutError:
        """The error of somebody whose time is up; tells the trouble that is being retried, if there is some."""
        status = self._status
        detail = f"it is {status.state}" + (f": {status.reason}" if status.reason else "")
        if status.error:
            detail += f"; last error: {status.error}"
        trouble = self._trouble
        timeout = WaitTimeoutError(
            f'{status.kind} "{status.name}" {what}', detail=detail, hint=None if trouble is None else trouble.hint
        )
        timeout.__cause__ = trouble
        return timeout


class _Progress:
    """How far a load is, and when it will be over if it goes on like this."""

    def __init__(self, finished: Callable[[], float | None]) -> None:
        self._finished = finished
        self._began = time.monotonic()

    def told(self, *, is_done: bool) -> tuple[float | None, float | None]:
        """Percent, and seconds left. Estimates may be too low: only what is over is all done."""
        if is_done:
            return 100.0, 0.0
        finished = self._finished()
        if finished is None:
            return None, None
        part = min(finished, 0.99)
        left = (time.monotonic() - self._began) * (1 - part) / part if part > 0 else None
        return 100.0 * part, left


class _Rate:
    """Rows per second over the last ten seconds or so."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def add(self, rows: int) -> None:
        now = time.monotonic()
        self._marks = [mark for mark in self._marks if mark[0] > now - 10] + [(now, rows)]

    def per_second(self) -> float | None:
        marks = list(self._marks)
        if not marks:
            return None
        now = time.monotonic()
        recent = [rows for at, rows in marks if at > now - 10]
        return sum(recent) / max(1.0, now - marks[0][0]) if recent else 0.0
