"""The work of `enrich`: a file of trades and a table of users, and what each form of query over them has to give."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

FACTORS = 7
SYMBOLS = 50
_TIERS = np.array(["gold", "silver", "bronze"])


@dataclass(frozen=True)
class Answer:
    """What a contender gave: how many rows, and the exact sum of their `weighted`."""

    rows: int
    total: Decimal


JOIN = "join"
FORMS = {
    JOIN: "SELECT t.trade_id, u.name, u.tier, t.quantity * t.price * u.factor AS weighted "
    "FROM {trades} t JOIN users u ON t.user_id = u.user_id",
    "EXISTS": "SELECT t.trade_id, t.symbol, t.quantity * t.price AS weighted FROM {trades} t "
    "WHERE EXISTS (SELECT 1 FROM users u WHERE u.user_id = t.user_id AND u.factor > 0)",
    "IN": "SELECT t.trade_id, t.symbol, t.quantity * t.price AS weighted FROM {trades} t "
    "WHERE t.user_id IN (SELECT u.user_id FROM users u WHERE u.factor > 0)",
    "scalar subquery": "SELECT t.trade_id, t.symbol, "
    "t.quantity * t.price * (SELECT u.factor FROM users u WHERE u.user_id = t.user_id) AS weighted FROM {trades} t",
    "LEFT, 10 % missing": "SELECT t.trade_id, u.name, u.tier, t.quantity * t.price * COALESCE(u.factor, 1) AS weighted "
    "FROM {trades} t LEFT JOIN nine_tenths u ON t.user_id = u.user_id",
    "three joins": "SELECT t.trade_id, u.name, l.level, t.quantity * t.price * u.factor * l.level * m.lot AS weighted "
    "FROM {trades} t JOIN users u ON t.user_id = u.user_id JOIN limits l ON t.user_id = l.user_id "
    "JOIN market m ON t.symbol = m.symbol",
}
"""Queries over `{trades}` and the tables: the join, and what is measured against it."""


class Workload:
    """One file of trades for one size of the users table. Rows are random, the same ones in every run."""

    def __init__(self, folder: Path, *, trades: int, users: int) -> None:
        self.trades = trades
        self.users = users
        chosen = np.random.default_rng(11)
        self.user_ids = chosen.integers(0, users, trades)
        self.quantities = chosen.integers(1, 500, trades)
        self.cents = chosen.integers(100, 50_000, trades)
        self.path = folder / "trades_users.csv"
        self.users_path = folder / "users_users.parquet"
        self.users_text_path = folder / "users_users.csv"
        plain = pacsv.WriteOptions(quoting_style="none")
        pacsv.write_csv(self._rows(), self.path, plain)
        table = self.users_table(np.arange(users) % FACTORS)
        pq.write_table(table, self.users_path)
        pacsv.write_csv(table, self.users_text_path, plain)

    def _rows(self) -> pa.Table:
        prices = pa.array([f"{cent // 100}.{cent % 100:02}" for cent in self.cents.tolist()])
        symbols = pa.array(np.char.add("S", (self.user_ids % SYMBOLS).astype(str)))
        return pa.table(
            {
                "trade_id": np.arange(self.trades),
                "user_id": self.user_ids,
                "symbol": symbols,
                "quantity": self.quantities,
                "price": prices,
            }
        )

    def users_table(self, factors: npt.NDArray[np.int64]) -> pa.Table:
        numbers = np.arange(self.users)
        names = pa.array([f"user {number}" for number in range(self.users)])
        return pa.table({"user_id": numbers, "name": names, "tier": _TIERS[numbers % 3], "factor": factors})

    def limits_table(self) -> pa.Table:
        numbers = np.arange(self.users)
        return pa.table({"user_id": numbers, "level": numbers % 5})

    def market_table(self) -> pa.Table:
        numbers = np.arange(SYMBOLS)
        return pa.table({"symbol": pa.array([f"S{number}" for number in range(SYMBOLS)]), "lot": numbers % 3})

    @cached_property
    def right(self) -> dict[str, Answer]:
        """The right answer of each form, by NumPy."""
        value, factor = self.quantities * self.cents, self.user_ids % FACTORS
        passing = factor > 0
        return {
            JOIN: _answer(value * factor),
            "EXISTS": _answer(value[passing]),
            "IN": _answer(value[passing]),
            "scalar subquery": _answer(value * factor),
            "LEFT, 10 % missing": _answer(value * np.where(self.user_ids % 10 == 0, 1, factor)),
            "three joins": _answer(value * factor * (self.user_ids % 5) * (self.user_ids % SYMBOLS % 3)),
        }


class ChangingWorkload:
    """The trades of a workload in parts, and what changes among the users before each of them: one in a hundred."""

    def __init__(self, workload: Workload, folder: Path, *, parts: int) -> None:
        self.workload = workload
        self.changes: list[pa.Table] = []
        self.snapshots: list[Path] = []
        """The whole table before each part, for those who read it anew."""
        lines = workload.path.read_bytes().splitlines(keepends=True)
        self.header = lines[0]
        bounds = [1 + workload.trades * number // parts for number in range(parts + 1)]
        self.texts = [b"".join(lines[start:end]) for start, end in pairwise(bounds)]
        factors = np.arange(workload.users) % FACTORS
        table = workload.users_table(factors)
        cents = 0
        for number in range(parts):
            chosen = np.random.default_rng(number)
            moved = chosen.choice(workload.users, workload.users // 100, replace=False)
            factors[moved] = (factors[moved] + 1 + number) % FACTORS
            table = table.set_column(3, "factor", pa.array(factors.copy()))
            self.changes.append(table.take(pa.array(moved)))
            self.snapshots.append(folder / f"users_{workload.users}_{number}.parquet")
            pq.write_table(table, self.snapshots[-1])
            part = slice(bounds[number] - 1, bounds[number + 1] - 1)
            values = workload.quantities[part] * workload.cents[part] * factors[workload.user_ids[part]]
            cents += int(values.sum())
        self.right = Answer(workload.trades, Decimal(cents).scaleb(-2))


def _answer(cents: npt.NDArray[np.int64]) -> Answer:
    return Answer(len(cents), Decimal(int(cents.sum())).scaleb(-2))
