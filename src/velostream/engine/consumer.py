"""A statement's place in an ingest: what it is given, a batch at a time, and what it has to make of it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from velostream.engine.reading import Through
from velostream.engine.status import State
from velostream.engine.trigger import TOOK_WHAT_WAS_THERE, Pace
from velostream.errors import VelostreamError
from velostream.model.retry import RetryPolicy
from velostream.sources.base import Lag, Offset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.gate import Gate
    from velostream.engine.together import Projection
    from velostream.model.change import Write
    from velostream.tables.base import Table
    from velostream.tables.memory.sequence import Part


@dataclass(frozen=True)
class Batch:
    """One decoded range of the source, as the consumers of one position see it."""

    session: SparkSession
    frame: DataFrame
    end: Offset
    at: int
    """The commit number this batch reads its tables at: its pin."""
    results: Mapping[str, pa.Table] = field(default_factory=dict)
    """Rows that are computed already, by writer."""
    rows: pa.Table | None = None
    """Its rows here, with the columns that those need who work without Spark; None: nobody has asked yet."""
    read_through: Through | None = None
    """Sends its rows through work as they are read, where nobody else reads them."""

    @property
    def through(self) -> Through:
        return self.frame.mapInArrow if self.read_through is None else self.read_through


@dataclass(frozen=True)
class Intent:
    """What a batch was going to do: where it ends and which commit number it reads its tables at."""

    end: Offset
    at: int


@dataclass(frozen=True)
class Outcome:
    """What a consumer made of a batch: its share of the commit, and what to do once that is durable."""

    part: Part
    rows: int
    publish: Callable[[], None] | None = None
    decide: Callable[[], Sequence[tuple[Table, Write]]] | None = None
    """What else to write, where that depends on what the tables hold: asked right before, other commits held off."""

    def with_writes(self, writes: Sequence[tuple[Table, Write]]) -> Outcome:
        """The same with more to commit."""
        return replace(self, part=replace(self.part, writes=[*self.part.writes, *writes]))


class Consumer(ABC):
    """A statement's place in an ingest, which calls everything but the constructor, from one thread at a time."""

    def __init__(self, context: EngineContext, entry: Entry, gate: Gate, *, start: Offset) -> None:
        self.context = context
        self.entry = entry
        self.board = context.board(entry)
        self.writer = entry.id
        self._gate = gate
        known = context.sequence.writer(self.writer)
        self.position: Offset = start if known is None else known.position["offset"]
        self.number = -1 if known is None else known.epoch
        self.ready_at: Offset | None = None
        """The end of what the source held when the consumer was first ready to run; reaching it means ready."""
        self._expected_rows = self._rows_left = 0
        self.pace = Pace()
        self.aim: Offset | None = None
        """The end of what the source held when the beat began that it is in; None: it is in none, or never rests."""
        self.dead = False
        self.has_ended = False
        """Whether it is dead because it took in what it was to take in."""
        self.lacks_columns = False
        """Whether another one will go on in its place, with columns that its records have got."""
        self.projection: Projection | None = None
        """Of a statement so simple that it can share a Spark query with others."""
        self.needed: tuple[str, ...] | None = None
        """Columns of a batch that it needs, where it works on them without Spark."""
        self._retry = RetryPolicy.while_running()
        self._attempts = 0
        self._resume_at = 0.0

    @abstractmethod
    def run(self, batch: Batch) -> Outcome:
        """Transform the batch. Must not publish or commit anything; may be called again with the same batch."""

    def probe(self, batch: Batch) -> object:
        """Evaluate the batch without any effect; raises what `run` would."""
        return self.run(batch)

    def intend(self, end: Offset, at: int) -> None:
        """The next batch will end there and read its tables at that number; called before it runs.

        Consumers whose output leaves our log write it down, to repeat exactly that batch after a crash.
        """

    def intended(self) -> Intent | None:
        """A batch that was begun before a crash and must now be repeated as it was."""
        return None

    def done_with(self) -> Sequence[Part]:
        """What is to be committed together with its batch, of what `intend` wrote down."""
        return ()

    def holding_off_others(self) -> AbstractContextManager[None]:
        """What keeps others from changing the tables it writes to between `Outcome.decide` and its commit."""
        return self.context.sequence.exclusive()

    @property
    def rests(self) -> bool:
        """Whether it is between two beats of its trigger."""
        return self.aim is None and self.pace.rests

    @property
    def found_nothing(self) -> bool:
        """Whether a beat would have begun just now, had there been anything to take in."""
        return self.aim is None and self.pace.is_measured

    @property
    def stops_at(self) -> Offset | None:
        """Where its last batch ends, of one that is to take in what was there once."""
        return self.ready_at if self.pace.once else None

    def runnable(self) -> bool:
        if self.dead or self.lacks_columns or self.rests or time.monotonic() < self._resume_at:
            return False
        try:
            return self._gate.is_open(self.board)
        except VelostreamError as error:
            self.fail(error)
            return False

    def close(self) -> None:
        """Give back what is held; called once, after the last batch."""

    def load_until(self, end: Offset, *, rows: int | None) -> None:
        """What the source holds now ends there; about so many rows, where that is known."""
        self.ready_at = end
        if rows:
            self._expected_rows = self._rows_left = rows
            self.board.track(lambda: 1 - self._rows_left / self._expected_rows)

    def rows_left(self, rows: int | None) -> None:
        """About so many of them are still to be read."""
        self._rows_left = rows or 0

    def became_ready(self) -> None:
        """The position has reached what the source held at the start."""
        self.board.become(State.READY, self.ready_because)

    @property
    def ready_because(self) -> str:
        return TOOK_WHAT_WAS_THERE if self.pace.once else ""

    def end(self) -> None:
        """It has taken in what it was to take in: nothing runs for it any more."""
        self.dead = self.has_ended = True
        self.board.lag = Lag()

    def trouble(self, error: VelostreamError) -> None:
        """A batch did not go through: try it again after a while, or fail where that can't help."""
        if not error.category.retriable:
            self.fail(error)
            return
        self._attempts += 1
        self.try_again(error, self._retry.delay(self._attempts), attempts=self._attempts)

    def try_again(self, error: VelostreamError, delay: timedelta, *, attempts: int) -> None:
        """Rest for a while, and say so; the others go on."""
        self._resume_at = time.monotonic() + delay.total_seconds()
        self.board.retrying(error, attempts=attempts, delay=delay)

    def advance(self, end: Offset) -> None:
        """The batch up to `end` is committed."""
        self.position = end
        self.number += 1
        self._attempts = 0

    def fail(self, error: VelostreamError) -> None:
        self.dead = True
        self.board.become(State.FAILED, error.message, error=error)
