"""`maintain`: how long a commit takes to be seen in views over the table, against computing them again.

Tables of 10,000 and of 1,000,000 rows, 1,000 changed rows a commit (updates that move rows between groups, inserts,
deletes). Contenders are two connections with the same data: one follows changes, the other computes its views again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa

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


def run(arguments: argparse.Namespace) -> list[Measurement]:
    measurements: list[Measurement] = []
    for size in (arguments.rows,) if arguments.rows else SIZES:
        for title, statements in VIEWS.items():
            with ExitStack() as stack:
                sides = [stack.enter_context(_Side(size, statements, way)) for way in ("delta", "refresh")]
                contenders = [Contender(side.way, side.run, before=side.prepare) for side in sides]
                case = Case(f"{title}: {CHANGES:,} of {size:,}", CHANGES, contenders, CHECKS[title], arguments.rounds)
                measurements += measure("maintain", case)
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


def _same_groups(side: _Side, *, fewest: int = 1) -> None:
    right = side.connection.table("sales").arrow().group_by("grp").aggregate([([], "count_all"), ("amount", "sum")])
    groups = [row for row in right.to_pylist() if row["count_all"] >= fewest]
    wanted = {row["grp"]: (row["count_all"], row["amount_sum"]) for row in groups}
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


CHECKS: dict[str, Callable[[_Side], None]] = dict.fromkeys(VIEWS, _same_groups) | {
    "join": _same_rows,
    "DISTINCT": _same_kinds,
    "top-n": _same_first,
    "HAVING": partial(_same_groups, fewest=GROUPS + 1),
}


def _summarise(measurements: list[Measurement]) -> None:
    medians = {(one.case, one.contender): one.median for one in measurements}
    for (case, contender), seconds in medians.items():
        if contender == "delta":
            ratio = medians[case, "refresh"] / seconds
            print(f"{case}: {seconds * 1000:.0f} ms, {ratio:.1f} × as fast as computing it again")
