"""A bulk load: from CREATE TABLE to the table being ready, beside what the source's own driver delivers to Arrow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from benchmarks.harness import Case, Contender, Measurement, measure
from benchmarks.sources.trades import Content
from velostream.engine.connection import Connection

_PATIENCE = 600


@dataclass(frozen=True)
class Target:
    """What a load should reach: so many rows per second, or such a part of what the driver reaches in the same run."""

    per_second: float | None = None
    of_driver: float | None = None

    def tell(self, measurements: list[Measurement]) -> str:
        ours, *peers = measurements
        told = [f"{ours.per_second:,.0f} rows/s"]
        if self.per_second is not None:
            told[0] += f" (target: at least {self.per_second:,.0f})"
        told += [f"{peer.median / ours.median:.2f} × {peer.contender}" for peer in peers]
        if self.of_driver is not None:
            told[1] += f" (target: at least {self.of_driver} ×)"
        return f"{ours.case}: " + ", ".join(told)


@dataclass(frozen=True)
class Driver:
    """The fastest way to Arrow that the source's own driver has."""

    name: str
    load: Callable[[], pa.Table]


class Load:
    """A table made of a source, ready when the load is over, and dropped before the next one."""

    def __init__(self, connection: Connection, select: str) -> None:
        """`select` is what stands behind AS."""
        self._connection = connection
        self._select = select
        self._exists = False

    def forget(self) -> None:
        if self._exists:
            self._connection.execute("DROP TABLE loaded")
            self._exists = False

    def run(self) -> Content:
        self._exists = True
        self._connection.execute(f"CREATE TABLE loaded AS {self._select}")
        self._connection.wait("loaded", timeout=_PATIENCE)
        self._connection.drain("loaded", timeout=_PATIENCE)
        return Content.of_table(self._connection.table("loaded"))


def measure_load(
    connection: Connection, name: str, select: str, right: Content, target: Target, driver: Driver | None, rounds: int
) -> list[Measurement]:
    """Measure one load beside its driver, and print what was reached of the target."""
    load = Load(connection, select)
    contenders = [Contender("velostream", load.run, load.forget)]
    if driver is not None:
        contenders.append(Contender(driver.name, lambda: Content.of_arrow(driver.load())))
    measurements = measure("sources", Case(name, right.rows, contenders, right.expect, rounds))
    load.forget()
    print(target.tell(measurements))
    return measurements
