"""`tables`: the memory table by itself, beside a dict of dicts and SQLite in memory. No Spark."""

from __future__ import annotations

import argparse
import random
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

import velostream
from benchmarks.harness import Case, Contender, Measurement, expect, measure

STATUSES = ("active", "pending", "completed", "cancelled")
COLUMNS = (
    "key STRING PRIMARY KEY, id BIGINT, account_id STRING, amount DECIMAL(18,2), status STRING, category STRING, "
    "price DOUBLE, ts TIMESTAMP, flag BOOLEAN, note STRING, qty INT"
)
KEYS_LOOKED_UP = 10_000


def workload(count: int) -> pa.Table:
    """Row i of `count`, as PERFORMANCE describes it."""
    start = datetime(2024, 1, 1, tzinfo=UTC)
    accounts = max(1, count // 10)
    numbers = range(count)
    columns: dict[str, pa.Array] = {
        "key": pa.array([f"txn_{i:08}" for i in numbers]),
        "id": pa.array(numbers, pa.int64()),
        "account_id": pa.array([f"ACC{i % accounts:06}" for i in numbers]),
        "amount": pa.array([_amount(i) for i in numbers], pa.decimal128(18, 2)),
        "status": pa.array([STATUSES[i % 4] for i in numbers]),
        "category": pa.array([f"CAT_{i % 10}" for i in numbers]),
        "price": pa.array([float(i % 1000) for i in numbers]),
        "ts": pa.array([start + timedelta(seconds=i) for i in numbers], pa.timestamp("us", tz="UTC")),
        "flag": pa.array([i % 2 == 0 for i in numbers]),
        "note": pa.array([f"note number {i % 1000:08}" for i in numbers]),
        "qty": pa.array([i % 500 for i in numbers], pa.int32()),
    }
    return pa.table(columns)


def _amount(number: int) -> Decimal:
    return Decimal((number * 137 + 50_000) % 1_000_000).scaleb(-2)


def run(arguments: argparse.Namespace) -> list[Measurement]:
    measurements: list[Measurement] = []
    for count in [arguments.rows] if arguments.rows else [100_000, 1_000_000]:
        measurements += _Round(count, arguments.rounds).run()
    return measurements


class _Round:
    """All cases over one size."""

    def __init__(self, count: int, rounds: int) -> None:
        self.count = count
        self.rounds = rounds
        self.rows = workload(count)
        self.dicts: dict[str, dict[str, Any]] = {row["key"]: row for row in self.rows.to_pylist()}
        self.connection = velostream.connect()
        self.table = self._new_table("filled")
        self.table.bulk_insert(self.rows)
        self.connection.execute("CREATE INDEX by_account ON filled (account_id)")
        self.sqlite = _sqlite(self.rows)
        chosen = random.Random(7)
        self.keys = [f"txn_{chosen.randrange(count):08}" for _ in range(KEYS_LOOKED_UP)]
        self.made = 0

    def run(self) -> list[Measurement]:
        try:
            return [one for case in self._cases() for one in measure(f"tables, {self.count:,} rows", case)]
        finally:
            self.connection.close()
            self.sqlite.close()

    def _new_table(self, name: str) -> Any:
        self.connection.execute(f"CREATE TABLE {name} ({COLUMNS})")
        return self.connection.table(name)

    def _cases(self) -> list[Case]:
        keys, table, dicts, cursor = self.keys, self.table, self.dicts, self.sqlite.cursor()
        amounts = sum(dicts[key]["amount"] for key in keys)
        account = self.rows["account_id"][self.count // 2].as_py()
        completed = sum(row["amount"] for row in dicts.values() if row["status"] == "completed")
        few = sum(1 for row in dicts.values() if row["account_id"] == account)
        return [
            self._case(
                "bulk insert", self.count, _equals(self.count), velostream=self._bulk_insert, dict=self._bulk_dict
            ),
            self._case(
                "contains",
                KEYS_LOOKED_UP,
                _equals(KEYS_LOOKED_UP),
                velostream=lambda: sum(map(table.contains, keys)),
                dict=lambda: sum(map(dicts.__contains__, keys)),
            ),
            self._case(
                "get, one field",
                KEYS_LOOKED_UP,
                _equals(amounts),
                velostream=lambda: sum(table.get(key)["amount"] for key in keys),
                dict=lambda: sum(dicts[key]["amount"] for key in keys),
                sqlite=lambda: sum(
                    Decimal(cursor.execute("SELECT amount FROM t WHERE key = ?", (key,)).fetchone()[0]) for key in keys
                ),
            ),
            self._case(
                "lookup of 10,000 keys",
                KEYS_LOOKED_UP,
                _equals(amounts),
                velostream=lambda: _total(table.lookup(keys, ["amount"])["amount"]),
                dict=lambda: sum(dicts[key]["amount"] for key in keys),
            ),
            self._case(
                "filter by an indexed column",
                1,
                _equals(few),
                velostream=lambda: len(list(table.filter(f"account_id = '{account}'"))),
                sqlite=lambda: len(cursor.execute("SELECT * FROM t WHERE account_id = ?", (account,)).fetchall()),
            ),
            self._case(
                "COUNT by status",
                self.count,
                _equals(self.count // 4),
                velostream=lambda: table.scalar("COUNT(*)", "status = 'active'"),
                sqlite=lambda: cursor.execute("SELECT COUNT(*) FROM t WHERE status = 'active'").fetchone()[0],
                dict=lambda: sum(1 for row in dicts.values() if row["status"] == "active"),
            ),
            self._case(
                "exact SUM of completed",
                self.count,
                _equals(completed),
                velostream=lambda: table.scalar("SUM(amount)", "status = 'completed'"),
                dict=lambda: sum(row["amount"] for row in dicts.values() if row["status"] == "completed"),
            ),
            self._case(
                "scan as Arrow",
                self.count,
                _equals(self.count),
                velostream=lambda: table.arrow().num_rows,
                sqlite=lambda: len(cursor.execute("SELECT * FROM t").fetchall()),
            ),
            self._case(
                "update by key",
                100,
                _equals(100),
                velostream=lambda: sum(table.update(f"key = '{key}'", {"qty": 1}).rowcount for key in self.keys[:100]),
                sqlite=lambda: sum(
                    cursor.execute("UPDATE t SET qty = 1 WHERE key = ?", (key,)).rowcount for key in self.keys[:100]
                ),
            ),
        ]

    def _case(self, name: str, units: int, check: Callable[[Any], None], **contenders: Callable[[], Any]) -> Case:
        return Case(name, units, [Contender(who, work) for who, work in contenders.items()], check, self.rounds)

    def _bulk_insert(self) -> int:
        self.made += 1
        name = f"made_{self.made}"
        table = self._new_table(name)
        table.bulk_insert(self.rows)
        rows = len(table)
        self.connection.execute(f"DROP TABLE {name}")
        return rows

    def _bulk_dict(self) -> int:
        return len({row["key"]: row for row in self.rows.to_pylist()})


def _equals(expected: Any) -> Callable[[Any], None]:
    return lambda answer: expect(answer == expected, f"gave {answer}, right is {expected}")


def _total(column: pa.ChunkedArray) -> Decimal:
    import pyarrow.compute as pc

    total: Decimal = pc.sum(column).as_py()
    return total


def _sqlite(rows: pa.Table) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute(
        "CREATE TABLE t (key TEXT PRIMARY KEY, id, account_id, amount TEXT, status, category, price, ts TEXT, "
        "flag, note, qty)"
    )
    text = rows.set_column(3, "amount", rows["amount"].cast(pa.string())).set_column(
        7, "ts", rows["ts"].cast(pa.string())
    )
    columns = [column.to_pylist() for column in text.columns]
    connection.executemany("INSERT INTO t VALUES (?,?,?,?,?,?,?,?,?,?,?)", zip(*columns, strict=True))
    connection.execute("CREATE INDEX by_account ON t (account_id)")
    connection.commit()
    return connection
