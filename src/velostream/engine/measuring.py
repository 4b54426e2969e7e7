"""What a running query has done since its start, stage by stage: what EXPLAIN ANALYZE shows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Stage:
    """The figures of one stage of a query's work."""

    times: int = 0
    rows: int = 0
    seconds: float = 0.0


@dataclass
class Step:
    """One piece of work in hand; whoever does it says how many rows came of it."""

    rows: int = 0


@dataclass(frozen=True)
class Hits:
    """How many rows were looked up in a table, and for how many of them it has a row."""

    looked_up: int
    found: int


class Measurements:
    """Stages in the order in which they were first seen. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages: dict[str, Stage] = {}
        self._lookups: dict[str, Callable[[], Hits]] = {}

    def watch_lookup(self, where: str, hits: Callable[[], Hits]) -> None:
        """Have the lookups of one join told by whoever counts them; `where` is the table under its alias."""
        with self._lock:
            self._lookups[where] = hits

    def lookups(self) -> dict[str, Hits]:
        with self._lock:
            return {where: hits() for where, hits in self._lookups.items()}

    @contextmanager
    def measure(self, stage: str) -> Iterator[Step]:
        """Time what happens inside; what fails counts for its time alone."""
        step, began = Step(), time.perf_counter()
        done = 0
        try:
            yield step
            done = 1
        finally:
            self.add(stage, Stage(done, step.rows if done else 0, time.perf_counter() - began))

    def stages(self) -> dict[str, Stage]:
        with self._lock:
            return dict(self._stages)

    def add(self, stage: str, more: Stage) -> None:
        """Count work that was measured elsewhere."""
        with self._lock:
            known = self._stages.get(stage, Stage())
            self._stages[stage] = replace(
                known,
                times=known.times + more.times,
                rows=known.rows + more.rows,
                seconds=known.seconds + more.seconds,
            )
