"""`maintain`: how long a commit takes to be seen in views over the table, against computing them again.

Tables of 10,000 and of 1,000,000 rows, 1,000 changed rows a commit (updates that move rows between groups, inserts,
deletes). Contenders are two connections with the same data: one follows changes, the other computes its views again.
Another case appends to a watched file that one view, or ten, are kept of.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import velostream
from benchmarks.harness import Case, Contender, Measurement, expect, measure

SIZES = (10_000, 1_000_000)
CHANGES = 1_000
GROUPS = 100
VIEWS = {
    "GROUP BY": ["CREATE TABLE last AS SELECT grp, COUNT(*) AS n, SUM(amount) AS total FROM sales GROUP BY grp"],
    "AVG, MIN, MAX": [
        """
        CREATE TABLE last AS
        SELECT grp, COUNT(*) AS n, SUM(amount) AS total, AVG(amount) AS mean, MIN(amount) AS low, MAX(amount) AS high
        FROM sales GROUP BY grp
    """
    ],
    "join": ["CREATE TABLE last AS SELECT s.id, s.grp, s.amount, g.shown FROM sales s JOIN groups g ON s.grp = g.grp"],
    "join, GROUP BY": [
        """
        CREATE TABLE last AS
        SELECT s.grp, COUNT(*) AS n, SUM(s.amount) AS total FROM sales s JOIN groups g ON s.grp = g.grp
        WHERE g.shown GROUP BY s.grp
    """
    ],
    "DISTINCT": ["CREATE TABLE last AS SELECT grp, COUNT(DISTINCT amount) AS amounts FROM sales GROUP BY grp"],
    "top-n": ["CREATE TABLE last AS SELECT id, grp, amount FROM sales ORDER BY amount DESC, id LIMIT 100"],
    "HAVING": [
        """
        CREATE TABLE last AS SELECT grp, COUNT(*) AS n, SUM(amount) AS total FROM sales GROUP BY grp
        HAVING COUNT(*) > (SELECT COUNT(*) FROM groups)
    """
    ],
    "three views": [
        "CREATE TABLE first AS SELECT id, grp, amount FROM sales WHERE amount >= 0",
        "CREATE TABLE second AS SELECT id, grp, amount * 1 AS amount FROM first",
        "CREATE TABLE last AS SELECT grp, COUNT(*) AS n, SUM(amount) AS total FROM second GROUP BY grp",
    ],
}
WATCHED = {
    "filter": "SELECT id, amount FROM {file} WHERE amount > 500",
    "projection": "SELECT id, amount * 2 AS twice, upper(grp) AS grp FROM {file}",
    "copy": "SELECT * FROM {file}",
    "text": "SELECT id, concat(grp, '-', grp) AS label FROM {file} WHERE grp LIKE 'g1%'",
    "count": "SELECT grp, COUNT(*) AS n FROM {file} GROUP BY grp",
    "sum": "SELECT grp, SUM(amount) AS total, AVG(amount) AS mean FROM {file} GROUP BY grp",
    "extremes": "SELECT grp, MIN(amount) AS low, MAX(amount) AS high FROM {file} GROUP BY grp",
    "having": "SELECT grp, COUNT(*) AS n FROM {file} GROUP BY grp HAVING COUNT(*) > 3",
    "whole": "SELECT COUNT(*) AS n, SUM(amount) AS total FROM {file}",
    "distinct": "SELECT DISTINCT grp FROM {file}",
}


def run(arguments: argparse.Namespace) -> list[Measurement]:
    measurements: list[Measurement] = []
    for size in (arguments.rows,) if arguments.rows else SIZES:
        for title, statements in VIEWS.items():
            with ExitStack() as stack:
                sides = [stack.enter_context(_Side(size, statements, way)) for way in ("delta", "refresh")]
                contenders = [Contender(side.way, side.run, before=side.prepare) for side in sides]
                case = Case(f"{title}: {CHANGES:,} of {size:,}", CHANGES, contenders, CHECKS[title], arguments.rounds)
                measurements += measure("maintain", case)
    measurements += _watching(arguments.rounds)
    _summarise(measurements)
    return measurements


class _Side:
    """One connection with a table, the views over it, and the changes to come."""

    def __init__(self, size: int, statements: list[str], way: str) -> None:
        self.size = size
        self.way = way
        self.round = 0
        self.connection: Any = velostream.connect(config={"velostream.maintain": way})
        self.connection.execute("CREATE TABLE sales (id BIGINT PRIMARY KEY, grp STRING, amount DECIMAL(12,2))")
        self.connection.execute("CREATE TABLE groups (grp STRING PRIMARY KEY, shown BOOLEAN)")
        names = ", ".join(f"('g{number}', true)" for number in range(GROUPS))
        self.connection.execute(f"INSERT INTO groups VALUES {names}")
        self.connection.table("sales").bulk_insert(_sales(np.arange(size), np.random.default_rng(1)))
        for statement in statements:
            self.connection.execute(statement)
        self.connection.drain("last", timeout=600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def prepare(self) -> None:
        self.round += 1
        chosen = np.random.default_rng(self.round)
        moved = chosen.choice(self.size, CHANGES - 200, replace=False)
        self.upserted = _sales(np.concatenate((moved, self.size * 10 + np.arange(200) + self.round * 1000)), chosen)

    def run(self) -> _Side:
        self.connection.table("sales").upsert(self.upserted)
        self.connection.drain("last", timeout=600)
        return self


def _sales(ids: np.ndarray, chosen: np.random.Generator) -> pa.Table:
    groups = pa.array([f"g{number}" for number in range(GROUPS)])
    amounts = pa.array(chosen.integers(0, 100_000, len(ids)).astype(np.int32)).cast(pa.decimal128(12, 2))
    return pa.table({"id": ids, "grp": groups.take(pa.array(chosen.integers(0, GROUPS, len(ids)))), "amount": amounts})


def _same_rows(side: _Side) -> None:
    rows = side.connection.table("last").arrow()
    right = side.connection.table("sales").arrow()
    expect(rows.select(["id", "grp", "amount"]).sort_by("id").equals(right.sort_by("id")), "the view lacks rows")


def _same_groups(side: _Side) -> None:
    right = side.connection.table("sales").arrow().group_by("grp").aggregate([([], "count_all"), ("amount", "sum")])
    wanted = {row["grp"]: (row["count_all"], row["amount_sum"]) for row in right.to_pylist()}
    found = {row["grp"]: (row["n"], row["total"]) for row in side.connection.table("last").arrow().to_pylist()}
    expect(found == wanted, "the view differs from its query")


def _same_kinds(side: _Side) -> None:
    right = side.connection.table("sales").arrow().group_by("grp").aggregate([("amount", "count_distinct")])
    wanted = {row["grp"]: row["amount_count_distinct"] for row in right.to_pylist()}
    found = {row["grp"]: row["amounts"] for row in side.connection.table("last").arrow().to_pylist()}
    expect(found == wanted, "the view differs from its query")


def _same_first(side: _Side) -> None:
    rows = side.connection.table("last").arrow().sort_by([("amount", "descending"), ("id", "ascending")])
    right = side.connection.table("sales").arrow().sort_by([("amount", "descending"), ("id", "ascending")])
    expect(rows.equals(right.slice(0, 100)), "the view has other rows than the first")


CHECKS = dict.fromkeys(VIEWS, _same_groups) | {"join": _same_rows, "DISTINCT": _same_kinds, "top-n": _same_first}


class _Watched:
    """A growing file and views of it."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.path = folder / f"watched_{len(names)}.csv"
        self.rows = 0
        self.names = names
        self.path.write_text("id,grp,amount\n")
        self._append(10_000)
        self.connection: Any = velostream.connect()
        file = f"'file://{self.path}' WITH ('watch' = 'true', 'watch.debounce' = '0ms')"
        for name in names:
            self.connection.execute(f"CREATE TABLE v_{name} AS {WATCHED[name].format(file=file)}")
        self.run()

    def _append(self, count: int) -> None:
        with self.path.open("a") as file:
            file.writelines(f"{number},g{number % 100},{number % 1000}.25\n" for number in self._ids(count))

    def _ids(self, count: int) -> Iterator[int]:
        yield from range(self.rows, self.rows + count)
        self.rows += count

    def prepare(self) -> None:
        self._append(CHANGES)

    def run(self) -> _Watched:
        for name in self.names:
            self.connection.drain(f"v_{name}", timeout=600)
        return self

    def check(self) -> None:
        if "count" in self.names:
            counted = pc.sum(self.connection.table("v_count").arrow()["n"]).as_py()
            expect(counted == self.rows, f"counted {counted} of {self.rows} rows")
        for name in set(self.names) & {"projection", "copy"}:
            expect(len(self.connection.table(f"v_{name}")) == self.rows, f"view {name} lacks rows")


def _watching(rounds: int) -> list[Measurement]:
    with TemporaryDirectory() as folder:
        sides = {"one view": _Watched(Path(folder), ["count"]), "ten views": _Watched(Path(folder), list(WATCHED))}
        contenders = [Contender(name, side.run, before=side.prepare) for name, side in sides.items()]
        case = Case(f"watched file: {CHANGES:,} lines more", CHANGES, contenders, _Watched.check, rounds)
        try:
            return measure("maintain", case)
        finally:
            for side in sides.values():
                side.connection.close()


def _summarise(measurements: list[Measurement]) -> None:
    medians = {(one.case, one.contender): one.median for one in measurements}
    for (case, contender), seconds in medians.items():
        if contender == "delta":
            ratio = medians[case, "refresh"] / seconds
            print(f"{case}: {seconds * 1000:.0f} ms, {ratio:.1f} × as fast as computing it again")
        elif contender == "ten views":
            print(f"ten views of a watched file take {seconds / medians[case, 'one view']:.2f} × the time of one")
