"""One, ten and fifty views on a topic, which is read and decoded once for all: time, and CPU of all processes."""

from __future__ import annotations

import argparse
import statistics

import pyarrow.compute as pc

import velostream
from benchmarks.harness import Case, Contender, Measurement, expect, measure
from benchmarks.sources.messages import Topic
from benchmarks.sources.processes import cpu_seconds
from benchmarks.sources.trades import trades

ROWS = 200_000
VIEWS = (1, 10, 50)
_GROUPS = 1_000
_PATIENCE = 300


def run(arguments: argparse.Namespace) -> list[Measurement]:
    count = arguments.rows or ROWS
    rivals = [_Views(number, count) for number in VIEWS]
    contenders = [Contender(rival.name, rival.take, rival.write) for rival in rivals]
    case = Case(f"views on a topic, {count:,} messages", count, contenders, _Views.check, arguments.rounds)
    measurements = measure("sources", case)
    for rival in rivals:
        rival.connection.close()
    one = measurements[0]
    for rival, measured in zip(rivals, measurements, strict=True):
        target = " (target: within 2 ×)" if rival.number == 10 else ""
        print(
            f"{case.name}: {rival.name} {measured.median:.2f} s, {measured.median / one.median:.2f} ×{target}, "
            f"CPU {rival.cpu:.2f} s, {rival.cpu / rivals[0].cpu:.2f} ×"
        )
    return measurements


class _Views:
    """Some views over one topic, in a connection of their own."""

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        self.name = "one view" if number == 1 else f"{number} views"
        self._count = count
        self._rounds = 0
        self._cpu: list[float] = []
        self._topic = Topic()
        self._topic.write(trades(_GROUPS))
        self._topic.publish()
        self.connection = velostream.connect()
        self._names = [f"view_{factor}" for factor in range(1, number + 1)]
        for factor, name in enumerate(self._names, 1):
            self.connection.execute(
                f"CREATE TABLE {name} AS SELECT account, COUNT(*) AS n, SUM(quantity * {factor}) AS total "
                f"FROM '{self._topic.url}' WITH ('auto.offset.reset' = 'earliest') GROUP BY account"
            )
        self._drain()

    @property
    def cpu(self) -> float:
        """Seconds of CPU per round, without the round that doesn't count."""
        return statistics.median(self._cpu[1:])

    def write(self) -> None:
        """Make the messages of the next round."""
        self._rounds += 1
        self._topic.write(trades(self._count))

    def take(self) -> _Views:
        before = cpu_seconds()
        self._topic.publish()
        self._drain()
        self._cpu.append(cpu_seconds() - before)
        return self

    def check(self) -> None:
        for name in self._names:
            found = pc.sum(self.connection.table(name).arrow()["n"]).as_py()
            expect(found == _GROUPS + self._rounds * self._count, f"{name} has {found} messages")

    def _drain(self) -> None:
        for name in self._names:
            self.connection.drain(name, timeout=_PATIENCE)
