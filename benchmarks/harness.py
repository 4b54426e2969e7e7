"""How everything here is measured.

A `Case` is one piece of work that several contenders do. Rounds alternate between the contenders, so that what else the
machine is doing hits all of them; the order turns from round to round. Every answer is checked in every round: a fast
wrong answer is an error, not a figure. Ratios within one run are what counts; absolute figures belong to one machine.
"""

from __future__ import annotations

import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Contender:
    """One way to do the work. `run` is timed and gives the answer; `before` prepares a round and isn't timed."""

    name: str
    run: Callable[[], Any]
    before: Callable[[], object] | None = None


@dataclass(frozen=True)
class Case:
    """A piece of work: `units` of it per run (rows, keys, operations), and what a right answer is."""

    name: str
    units: int
    contenders: Sequence[Contender]
    check: Callable[[Any], None]
    rounds: int = 5


@dataclass(frozen=True)
class Measurement:
    """What one contender reached in one case."""

    benchmark: str
    case: str
    contender: str
    units: int
    seconds: tuple[float, ...]
    best: float = field(init=False)
    median: float = field(init=False)
    per_second: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "best", min(self.seconds))
        object.__setattr__(self, "median", statistics.median(self.seconds))
        object.__setattr__(self, "per_second", self.units / statistics.median(self.seconds))


class WrongAnswerError(AssertionError):
    """A contender gave an answer that isn't right; its figure would mean nothing."""


def expect(condition: object, message: str) -> None:
    """For the checks of cases."""
    if not condition:
        raise WrongAnswerError(message)


def measure(benchmark: str, case: Case, *, clock: Callable[[], float] = time.perf_counter) -> list[Measurement]:
    """Run a case: one round that isn't counted, then alternating rounds. `clock` gives seconds, of whatever counts."""
    seconds: dict[str, list[float]] = {contender.name: [] for contender in case.contenders}
    for number in range(case.rounds + 1):
        turn = number % len(case.contenders)
        for contender in (*case.contenders[turn:], *case.contenders[:turn]):
            if contender.before is not None:
                contender.before()
            gc.collect()
            started_at = clock()
            answer = contender.run()
            taken = clock() - started_at
            try:
                case.check(answer)
            except WrongAnswerError as error:
                raise WrongAnswerError(f"{benchmark} / {case.name} / {contender.name}: {error}") from None
            if number:
                seconds[contender.name].append(taken)
    return [Measurement(benchmark, case.name, name, case.units, tuple(taken)) for name, taken in seconds.items()]


def show(measurements: Sequence[Measurement], console: Console) -> None:
    """A table per benchmark: median, spread, rate, and how many times as fast as the others each is."""
    for benchmark in dict.fromkeys(m.benchmark for m in measurements):
        table = Table(title=benchmark, title_justify="left")
        for column in ("case", "contender", "median", "best–worst", "per second", "against the first"):
            table.add_column(column, justify="left" if column in ("case", "contender") else "right")
        for case in dict.fromkeys(m.case for m in measurements if m.benchmark == benchmark):
            group = [m for m in measurements if m.benchmark == benchmark and m.case == case]
            for number, one in enumerate(group):
                table.add_row(
                    case if number == 0 else "",
                    one.contender,
                    _time(one.median),
                    f"{_time(one.best)}–{_time(max(one.seconds))}",
                    f"{one.per_second:,.0f}",
                    f"{group[0].median / one.median:.2f} ×" if number else "",
                )
        console.print(table)


def save(measurements: Sequence[Measurement], path: Path, facts: Mapping[str, Any]) -> None:
    """Everything as JSON, for comparing runs."""
    form = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.platform(), "python": platform.python_version(), **facts},
        "measurements": [asdict(measurement) for measurement in measurements],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(form, indent=1))


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
