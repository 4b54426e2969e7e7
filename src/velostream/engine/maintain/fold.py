"""A source that is a table: read, then kept up to date by difference in a table of its own.

Sources that emit upserts or changes, and bounded sources that meet a live input, are folded here once for all
statements that name them; what is built on them is then a view over a table.

What a source holds at the start is committed in pieces, see `loading`. Until the last of them the position stays before
the first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from velostream.engine.catalog import EntryKind
from velostream.engine.maintain.fold_writes import FoldWrites
from velostream.engine.maintain.loading import ROWS_AT_ONCE, Attempt, is_loading
from velostream.engine.query import Runner
from velostream.engine.spark_failures import query_error
from velostream.engine.status import CAUGHT_UP, GAUGE_SECONDS, State
from velostream.errors import FurtherColumnsError, VelostreamError
from velostream.model.change import Epoch, Write
from velostream.model.retry import RetryPolicy
from velostream.sources.base import BadRecord, Offset, Replay, Source, SourceSpec

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.model.schema import Schema
    from velostream.tables.base import Table

_PATIENCE_SECONDS = 30.0
"""How long who ends the fold waits for a call to its source to come back."""
_log = logging.getLogger(__name__)


class _StoppedError(Exception):
    """The runner was told to stop while it was loading."""


@dataclass
class _Load:
    """How far a load is: by the rows that are expected, else by its parts."""

    expected: int | None
    all_parts: int
    rows: int = 0
    parts: int = 0

    def finished(self) -> float | None:
        if self.expected:
            return self.rows / self.expected
        return self.parts / self.all_parts if self.all_parts > 1 else None


class FoldRunner(Runner):
    """Reads one source on a thread of its own and commits the difference, with the position, into its table."""

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        *,
        source: Source,
        schema: Schema,
        start: Offset | None = None,
        spec: SourceSpec | None = None,
    ) -> None:
        """`start` is where a source that nothing was read of is begun, if that is settled already; `spec` is how it was
        named, for who goes on with it in another way.
        """
        super().__init__(context, entry)
        self.source = source
        self.spec = spec or source.spec
        if context.directory.durable:
            source.reader, source.companions = entry.id, self._positions_of_others
        self._schema = schema
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._retry = RetryPolicy.while_running()
        known = context.sequence.writer(entry.id)
        self._position: Offset = start if known is None else known.position["offset"]
        if known is None and start is None:
            self._position = source.initial_offset()
        self._number = -1 if known is None else known.epoch
        self._loading = is_loading(known)
        self._target: Offset = None
        self._has_target = False
        """What the source held at the start; ready when that is reached."""
        self._done = known is not None and not self._loading and not source.capabilities.follows
        self._rows_at_once = source.settings.integer("max.rows.per.trigger") or ROWS_AT_ONCE
        self._warned: tuple[str, ...] = ()
        self._gauged_at = float("-inf")

    def _positions_of_others(self) -> list[Offset]:
        others = (one for one in self.context.catalog if one.kind is EntryKind.SOURCE and one.id != self.entry.id)
        known = (self.context.sequence.writer(one.id) for one in others)
        return [one.position.get("offset") for one in known if one is not None]

    @property
    def position(self) -> Offset:
        """How far the source has been read."""
        return self._position

    def start(self) -> None:
        self._stopping = False
        self._pass_on_warnings()
        if self._done:
            self.board.become(State.READY)
            return
        self.board.become(State.LOADING)
        self._thread = threading.Thread(target=self._run, name=f"fold {self.entry.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End for good: the source is closed. What it keeps elsewhere stays, if we remember the position."""
        self._end(forget=not self.context.directory.durable)

    def suspend(self) -> None:
        self._end(forget=False)

    def discard(self) -> None:
        self._end(forget=True)

    def wake(self) -> None:
        self._wake.set()

    def drain(self, deadline: float) -> None:
        if self._done or self._stopping:
            return
        patience = min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
        if not self._lock.acquire(timeout=patience):
            raise self.board.timed_out("did not catch up in time")
        try:
            if self._stopping:
                return
            target = self.source.latest_offset(self._position)
        finally:
            self._lock.release()
        self._wake.set()
        while not self._stopping and not self.source.reached(self._position, target):
            self.board.raise_if_dead()
            if time.monotonic() > deadline:
                raise self.board.timed_out("did not catch up in time")
            self.board.wait_for_news(0.1)

    def _run(self) -> None:
        attempts = 0
        while not self._ended():
            try:
                with self._lock:
                    took = self._step()
                    self._gauge(took=took)
                attempts = 0
                self._say_how_it_is()
                if took:
                    continue
                if not self.source.capabilities.follows:
                    self._done = True
                    return
                self._wake.wait(self.source.poll_interval.total_seconds())
            except _StoppedError:
                return
            except Exception as trouble:  # noqa: BLE001 - whatever it is must show on the board
                if self._ended():
                    return
                error = query_error(trouble, f'source "{self.entry.name}" could not be processed')
                if isinstance(error, FurtherColumnsError):
                    self.context.further_columns([self.entry.id], error)
                    return
                attempts += 1
                if not error.category.retriable:
                    self.board.become(State.FAILED, error.message, error=error)
                    return
                delay = self._retry.delay(attempts)
                self.board.retrying(error, attempts=attempts, delay=delay)
                self._wake.wait(delay.total_seconds())
            self._wake.clear()

    def _ended(self) -> bool:
        return self._stopping or self.context.closing.is_set()

    def _say_how_it_is(self) -> None:
        """Ready once all is taken in that was there at the start, loading until then."""
        ready = self.board.was_ready or self.source.reached(self._position, self._target)
        state = State.READY if ready else State.LOADING
        if self.board.state is not state:
            self.board.become(state)
        self._pass_on_warnings()
        self.board.notify()

    def _pass_on_warnings(self) -> None:
        """What the source warns of; it may find that something is over."""
        now = self.source.warnings
        self.board.take_back(*(warning for warning in self._warned if warning not in now))
        self.board.warn(*now)
        self._warned = now

    def _gauge(self, *, took: bool) -> None:
        """Ask now and then how things stand where the rows come from."""
        if not took and self.source.capabilities.follows:
            self.board.lag = CAUGHT_UP
        if time.monotonic() - self._gauged_at >= GAUGE_SECONDS:
            self.board.gauges = self.source.gauges(self._position)
            if took:
                self.board.lag = self.source.lag(self._position)
            self._gauged_at = time.monotonic()

    def _step(self) -> bool:
        """Take in what comes next; false when there was nothing."""
        if not self._has_target:
            if self._number >= 0 and not self._loading:
                # Of a process that ended before it could say so.
                self.source.commit(self._position)
            self._target = self.source.latest_offset(self._position)
            self._has_target = True
            end = self._target
            if self.source.capabilities.replay is not Replay.NONE:
                end = self.source.latest_offset(self._position, max_rows=self._rows_at_once)
        else:
            end = self.source.latest_offset(self._position, max_rows=self._rows_at_once)
        if end == self._position and self._number >= 0:
            return False
        self._take(end)
        self.source.commit(end)
        return True

    def _take(self, end: Offset) -> None:
        """Commit all up to a position: as one, or in pieces where nothing was there before."""
        divisible = self._number < 0 or self._loading
        found = self._writes()
        bad: list[BadRecord] = []
        attempt = Attempt(self.context.table(self.entry.id), is_another=self._loading)
        partitions = self.source.partitions(self._position, end)
        load = _Load(self.source.expected_rows(self._position, end) if divisible else None, len(partitions))
        if divisible:
            self.board.track(load.finished)
        for number, partition in enumerate(partitions):
            load.parts = number
            found.begin(partition)
            for batch in self.source.read(partition, self._schema, bad.append):
                if self._ended():
                    raise _StoppedError
                found.add(batch)
                load.rows += batch.num_rows
                if divisible and found.divisible and found.rows >= self._rows_at_once:
                    self._commit(attempt, found, bad, self._position, is_last=False)
        self._commit(attempt, found, bad, end, is_last=True)
        self._position = end

    def _commit(
        self, attempt: Attempt, found: FoldWrites, bad: list[BadRecord], position: Offset, *, is_last: bool
    ) -> None:
        rows, writes = found.rows, found.take()
        beside = [*self._beside(), *self.context.bad_record_writes(self.entry.name, self.source, bad)]
        bad.clear()
        epoch = Epoch(self.entry.id, self._number + 1)
        form = {"offset": position} | self._remembered()
        self.context.crash_point("fold.before-commit")
        self.context.sequence.commit(attempt.part(writes, form, epoch=epoch, is_last=is_last, beside=beside))
        self.context.crash_point("fold.after-commit")
        self._number, self._loading = epoch.number, not is_last
        self._committed()
        self.board.count(rows)

    def _writes(self) -> FoldWrites:
        """What collects the records of a range."""
        return FoldWrites(self.context.table(self.entry.id), self._schema)

    def _beside(self) -> Sequence[tuple[Table, Write]]:
        """What is written beside the records that were taken last."""
        return ()

    def _remembered(self) -> dict[str, Any]:
        """What the position holds beside the offset, once the records that were taken last are committed."""
        return {}

    def _committed(self) -> None:
        """The records that were taken last are committed."""

    def _end(self, *, forget: bool) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=_PATIENCE_SECONDS)
            if self._thread.is_alive():
                # It is within a call to a server that doesn't answer, and holds what there is to close.
                return
        # Who waits for rows may be asking where the source ends.
        if not self._lock.acquire(timeout=_PATIENCE_SECONDS):
            return
        try:
            if forget:
                self.source.forget(self._position)
        except VelostreamError as error:
            _log.warning("source %s left something behind: %s", self.entry.name, error)
        finally:
            self.source.close()
            self._lock.release()
