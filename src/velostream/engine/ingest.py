"""One shared ingest per source: reads and decodes each range once, for every statement that follows it.

The ingest is a loop of ours over Spark batch jobs, not a Spark streaming query: the position of each statement is
stored in the same log record as its rows, so there is no checkpoint that could disagree with a table, statements may
join at any time and catch up, and a range is read once for all that stand at the same position.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from velostream.engine import together
from velostream.engine.consumer import Batch, Consumer, Outcome
from velostream.engine.measuring import Stage
from velostream.engine.reading import read_range
from velostream.engine.relations import arrow_result, quoted
from velostream.engine.sift import is_row_error, sift
from velostream.engine.spark_failures import query_error
from velostream.engine.status import CAUGHT_UP, GAUGE_SECONDS, State
from velostream.errors import FurtherColumnsError, SourceError, VelostreamError, present
from velostream.model.retry import RetryPolicy
from velostream.sources.base import BadRecord, Offset, Source, SourceSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from velostream.engine.context import EngineContext
    from velostream.model.schema import Schema

MAX_ROWS_PER_BATCH = 500_000
_PATIENCE_SECONDS = 30.0
"""How long who takes the last consumer out waits for a call to the source to come back."""
_PARALLEL_STATEMENTS = 4


class Ingest:
    """Follows one source on a thread of its own and feeds its consumers."""

    def __init__(
        self, context: EngineContext, spec: SourceSpec, schema: Schema, *, open_source: Callable[[SourceSpec], Source]
    ) -> None:
        self.context = context
        self.source = source = open_source(spec)
        self.schema = schema
        self._spec = spec
        self._open = open_source
        self._consumers: list[Consumer] = []
        self._lock = threading.RLock()
        """Held for a cycle: source calls come from one thread at a time; attach and detach wait for the batch."""
        self._wake = threading.Event()
        self._stopping = self._closed = False
        self._thread: threading.Thread | None = None
        self._retry = RetryPolicy.while_running()
        self._attempts = 0
        self._gauged_at = float("-inf")
        self._poll_seconds = source.poll_interval.total_seconds()
        self._max_rows = source.settings.integer("max.rows.per.trigger") or MAX_ROWS_PER_BATCH

    def attach(self, consumer: Consumer) -> bool:
        """Take a consumer in; false when another ingest is needed: this one is ending, or leaves out what it wants."""
        with self._lock:
            if self._stopping or (consumer.entry.grows and not self._adds_columns):
                return False
            self._consumers.append(consumer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"ingest {self.source.spec.shown}", daemon=True)
                self._thread.start()
        self._wake.set()
        return True

    @property
    def _adds_columns(self) -> bool:
        return self._spec == self._spec.adding()

    def reads(self, specs: Iterable[SourceSpec], schema: Schema) -> bool:
        """Whether it gives what reading one of these sources with these columns gives, and goes on."""
        own = self._spec.identity()
        return not self._stopping and self.schema == schema and any(own == spec.identity() for spec in specs)

    def detach(self, consumer: Consumer) -> bool:
        """Take a consumer out, after the batch in hand. True when none is left and the ingest has ended."""
        consumer.dead = True
        with self._lock:
            if consumer in self._consumers:
                self._consumers.remove(consumer)
            if self._consumers:
                return False
            self._stopping = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=_PATIENCE_SECONDS)
        # Who waits for rows may be asking where the source ends.
        asked = self._lock.acquire(timeout=_PATIENCE_SECONDS)
        self._close()
        if asked:
            self._lock.release()
        return True

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self.source.close()

    def wake(self) -> None:
        self._wake.set()

    def drain(self, consumer: Consumer, deadline: float) -> None:
        with self._lock:
            if consumer.dead:
                consumer.board.raise_if_dead()
                return
            target = self.source.latest_offset(consumer.position)
            if self.source.reached(consumer.position, target):
                # Who has nothing to wait for leaves the next beat when it is.
                return
            consumer.pace.hurry()
        self._wake.set()
        while not self.source.reached(consumer.position, target):
            consumer.board.raise_if_dead()
            if consumer.dead:
                return
            if time.monotonic() > deadline:
                raise consumer.board.timed_out("did not catch up in time")
            consumer.board.wait_for_news(0.1)

    def _run(self) -> None:
        while not self._stopping and not self.context.closing.is_set():
            try:
                with self._lock:
                    moved = self._cycle()
                    if moved or any(consumer.rests for consumer in self._consumers):
                        self._gauge()
                    self._let_go_of_the_ended()
                self._attempts = 0
                pause = 0.0 if moved else self._poll_seconds
            except Exception as error:  # noqa: BLE001 - whatever it is must show on the boards, not end the thread
                pause = self._trouble(query_error(error, f'source "{self.source.spec.shown}" could not be processed'))
            if pause and not self._stopping:
                self._wake.wait(pause)
            self._wake.clear()

    def _let_go_of_the_ended(self) -> None:
        """Take out who has taken in what it was to take in; without anybody left the ingest ends by itself."""
        if not any(consumer.has_ended for consumer in self._consumers):
            return
        self._consumers = [consumer for consumer in self._consumers if not consumer.has_ended]
        if not self._consumers:
            self._stopping = True
            self._close()

    def _trouble(self, error: VelostreamError) -> float:
        """The source can't be read: retry what may come back, fail what won't."""
        if isinstance(error, FurtherColumnsError):
            try:
                self._leave_columns_to_others(error)
            except Exception as trouble:  # noqa: BLE001 - it must show on the boards of those that stay
                error = query_error(trouble, f'source "{self.source.spec.shown}" could not be opened')
            else:
                return 0.0
        self._attempts += 1
        delay = self._retry.delay(self._attempts)
        for consumer in list(self._consumers):
            if consumer.dead:
                continue
            if not error.category.retriable:
                consumer.fail(error)
                continue
            consumer.board.retrying(error, attempts=self._attempts, delay=delay)
        return max(delay.total_seconds(), self._poll_seconds)

    def _leave_columns_to_others(self, error: FurtherColumnsError) -> None:
        """Consumers whose tables get the columns go on elsewhere; for those that stay they are left out."""
        with self._lock:
            alive = [one for one in self._consumers if not (one.dead or one.lacks_columns)]
            growing = [consumer for consumer in alive if consumer.entry.grows]
            for consumer in growing:
                consumer.lacks_columns = True
            if growing:
                self.context.further_columns([consumer.entry.id for consumer in growing], error)
            leaving_out = self._spec.ignoring()
            former, self.source = self.source, self._open(leaving_out)
            self._spec = leaving_out
            former.close()

    def _cycle(self) -> bool:
        active = [consumer for consumer in self._consumers if consumer.runnable()]
        moved = False
        for consumer in active:
            if consumer.ready_at is None:
                end = self.source.latest_offset(consumer.position)
                consumer.load_until(end, rows=self.source.expected_rows(consumer.position, end))
                self._begin_beat(consumer, end)
                self._settle(consumer)
            elif consumer.aim is None and consumer.pace.is_measured:
                self._begin_beat(consumer, self.source.latest_offset(consumer.position))
        active = [consumer for consumer in active if not consumer.dead and not consumer.found_nothing]
        for consumer in active:
            intent = consumer.intended()
            if intent is not None:
                self._batch(consumer.position, intent.end, [consumer], at=intent.at)
        # What was begun is repeated as it was, or not at all.
        groups = self._groups([one for one in active if not one.dead and one.intended() is None])
        while groups:
            members = groups.pop(0)
            start = members[0].position
            end = self.source.latest_offset(start, max_rows=self._max_rows)
            ahead = groups[0][0].position if groups else None
            if ahead is not None and self.source.reached(end, ahead) and self.source.reached(ahead, start):
                end = ahead
            for stop in (member.stops_at for member in members if member.stops_at is not None):
                end = self.source.earlier(end, stop)
                if end == start:
                    # Only parts that are through have grown since; the others wait no longer for their turn.
                    end = stop
            if end == start:
                for member in members:
                    member.board.lag = CAUGHT_UP
            else:
                self._batch(start, end, members)
                moved = True
            if ahead is not None:
                groups[0] = [one for one in members if one.position == ahead and one.runnable()] + groups[0]
        for consumer in (*active, *(one for one in self._consumers if one.rests and not one.lacks_columns)):
            if consumer.board.state in (State.DEGRADED, State.WAITING) and (consumer.rests or consumer.runnable()):
                self._settle(consumer)
        if moved and len({json.dumps(consumer.position) for consumer in self._consumers}) == 1:
            self.source.commit(self._consumers[0].position)
        return moved

    @staticmethod
    def _begin_beat(consumer: Consumer, end: Offset) -> None:
        """Where there is something to take in a beat begins, of who rests between two of them."""
        if consumer.pace.is_measured:
            found = end != consumer.position
            consumer.pace.looked(found=found)
            consumer.aim = end if found else None
            if not found:
                consumer.board.lag = CAUGHT_UP

    def _gauge(self) -> None:
        """Ask now and then how far behind the consumers are."""
        if time.monotonic() - self._gauged_at >= GAUGE_SECONDS:
            for members in self._groups([consumer for consumer in self._consumers if not consumer.dead]):
                lag = self.source.lag(members[0].position)
                for member in members:
                    member.board.lag = lag
            self._gauged_at = time.monotonic()

    def _groups(self, consumers: Sequence[Consumer]) -> list[list[Consumer]]:
        """Consumers by position, the one furthest behind first."""
        by_position: dict[str, list[Consumer]] = {}
        for consumer in consumers:
            by_position.setdefault(json.dumps(consumer.position, sort_keys=True), []).append(consumer)

        def compare(left: list[Consumer], right: list[Consumer]) -> int:
            return 1 if self.source.reached(left[0].position, right[0].position) else -1

        return sorted(by_position.values(), key=functools.cmp_to_key(compare))

    def _batch(self, start: Offset, end: Offset, members: list[Consumer], *, at: int | None = None) -> None:
        """Read a range once and let every member make its part of it, committed as one record."""
        session = self.context.spark.session()
        simple = ((member, member.projection) for member in members if member.needed is None)
        groups = list(together.groups(simple, batch_width=len(self.schema.columns)))
        needed = {name for member in members for name in member.needed or ()}
        executions = sum(member.needed is None for member in members) - sum(len(group) - 1 for group in groups)
        shared = executions + bool(needed) > 1
        with self.context.sequence.pin(at) as pin:
            for member in members:
                member.intend(end, pin.sequence)
            reading = read_range(session, self.source, start, end, self.schema)
            frame = reading.frame.persist() if shared else reading.frame
            try:
                rows = arrow_result(frame.select(*(quoted(name) for name in sorted(needed)))) if needed else None
                through = None if shared else reading.through
                batch = Batch(session, frame, end, pin.sequence, rows=rows, read_through=through)
                batch = self._with_results(batch, groups)
                outcomes = self._run_members(batch, members)
                bad = reading.bad_records()
            finally:
                if shared:
                    frame.unpersist()
            self._commit(outcomes, bad, end)

    def _with_results(self, batch: Batch, groups: list[list[Consumer]]) -> Batch:
        """The batch with the rows of those whose statements share a query. Where that fails each is run by itself."""
        results: dict[str, pa.Table] = {}
        for group in groups:
            try:
                rows = together.run_together(batch.session, batch.frame, [present(one.projection) for one in group])
            except Exception as error:  # noqa: BLE001 - sharing is an economy; what is wrong shows when each runs alone
                if not is_row_error(error):
                    for one in group:
                        one.projection = None
                continue
            results.update(zip((one.writer for one in group), rows, strict=True))
        return replace(batch, results=results)

    def _run_members(self, batch: Batch, members: list[Consumer]) -> list[tuple[Consumer, Outcome]]:
        def attempt(consumer: Consumer) -> Outcome | None:
            try:
                return self._run_or_sift(consumer, batch)
            except SourceError:
                raise
            except Exception as error:  # noqa: BLE001 - one statement's trouble must not stop the others
                consumer.trouble(query_error(error, f'query "{consumer.entry.name}" failed'))
                return None

        if len(members) == 1:
            results = [attempt(members[0])]
        else:
            with ThreadPoolExecutor(max_workers=_PARALLEL_STATEMENTS) as pool:
                results = list(pool.map(attempt, members))
        return [(member, outcome) for member, outcome in zip(members, results, strict=True) if outcome is not None]

    def _run_or_sift(self, consumer: Consumer, batch: Batch) -> Outcome:
        try:
            with consumer.board.work.measure("read and compute") as step:
                outcome = consumer.run(batch)
                step.rows = outcome.rows
        except VelostreamError as error:
            if not is_row_error(error):
                raise
        else:
            return outcome
        with consumer.board.work.measure("sift bad rows") as step:
            rest, guilty = sift(batch, consumer.probe)
            outcome = consumer.run(rest)
            step.rows = outcome.rows
        letters = self.context.dead_letter_write(consumer.entry.name, self.source.spec.shown, guilty)
        return outcome.with_writes([letters])

    def _commit(self, outcomes: list[tuple[Consumer, Outcome]], bad: list[BadRecord], end: Offset) -> None:
        settled = [(c, self._with_dead_letters(c, outcome, bad)) for c, outcome in outcomes if not c.dead]
        outcomes = [pair for pair in settled if not pair[0].dead]
        self.context.crash_point("ingest.before-commit")
        began = time.perf_counter()
        deciding = [pair for pair in outcomes if pair[1].decide is not None]
        stored = [self._stored(pair) for pair in outcomes if pair[1].decide is None]
        outcomes = [pair for pair in stored if pair is not None]
        try:
            done = [part for consumer, _ in outcomes for part in consumer.done_with()]
            self.context.sequence.commit(*(outcome.part for _, outcome in outcomes), *done)
            committed = outcomes
        except VelostreamError as error:
            if error.category.retriable:
                raise
            committed = [pair for pair in outcomes if self._commit_alone(*pair)]
        committed = [*committed, *(pair for pair in deciding if self._commit_alone(*pair))]
        self.context.crash_point("ingest.after-commit")
        for consumer, outcome in committed:
            # Whoever sees the new position must find the rows published.
            self._publish(consumer, outcome)
            consumer.advance(end)
            consumer.board.work.add("commit", Stage(1, outcome.rows, time.perf_counter() - began))
            consumer.board.count(outcome.rows)
            self._settle(consumer)
            consumer.board.notify()

    def _stored(self, pair: tuple[Consumer, Outcome]) -> tuple[Consumer, Outcome] | None:
        """What goes to stores is written before the log; a store that doesn't answer holds up only who needs it."""
        consumer, outcome = pair
        try:
            return consumer, replace(outcome, part=self.context.stored(outcome.part))
        except VelostreamError as error:
            consumer.trouble(error)
            return None

    def _commit_alone(self, consumer: Consumer, outcome: Outcome) -> bool:
        """One statement's refused rows must not keep the others from committing."""
        try:
            with consumer.holding_off_others():
                if outcome.decide is not None:
                    outcome = outcome.with_writes(outcome.decide())
                self.context.commit(outcome.part, *consumer.done_with())
        except Exception as error:  # noqa: BLE001 - whatever it is must show on this statement's board alone
            consumer.trouble(query_error(error, f'query "{consumer.entry.name}" failed'))
            return False
        return True

    @staticmethod
    def _publish(consumer: Consumer, outcome: Outcome) -> None:
        """Show what the log already counts. If that fails the statement stops; starting it again makes up for it.

        Never raises: the positions of all statements must move, for their rows are committed.
        """
        if outcome.publish is None:
            return
        try:
            outcome.publish()
        except Exception as error:  # noqa: BLE001 - see above
            consumer.fail(query_error(error, f'rows of query "{consumer.entry.name}" could not be published'))

    def _with_dead_letters(self, consumer: Consumer, outcome: Outcome, bad: list[BadRecord]) -> Outcome:
        try:
            letters = self.context.bad_record_writes(consumer.entry.name, self.source, bad)
        except SourceError as error:
            consumer.fail(error)
            return outcome
        return outcome if not letters else outcome.with_writes(letters)

    def _settle(self, consumer: Consumer) -> None:
        """Show where the consumer stands: loading until it has reached what was there at its start."""
        if consumer.dead:
            return
        if consumer.aim is not None and self.source.reached(consumer.position, consumer.aim):
            consumer.aim = None
        if consumer.ready_at is not None:
            if self.source.reached(consumer.position, consumer.ready_at):
                if consumer.pace.once:
                    consumer.end()
                if consumer.board.state is not State.READY:
                    consumer.became_ready()
                return
            consumer.rows_left(self.source.expected_rows(consumer.position, consumer.ready_at))
        if consumer.board.state is not State.LOADING:
            consumer.board.become(State.LOADING)
