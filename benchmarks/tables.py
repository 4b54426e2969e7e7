"""`tables`: the memory table by itself, beside a dict of dicts, SQLite in memory and DuckDB. No Spark.

`velostream` is what users call, `con.table("t")`; `table` is the memory table behind it, where the two differ.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

import velostream
from benchmarks.harness import Case, Contender, Measurement, expect, measure
from benchmarks.table_memory import FORMS, resident_bytes
from velostream.model.change import Mode, Write
from velostream.model.schema import Schema
from velostream.tables.memory import CommitSequence

STATUSES = ("active", "pending", "completed", "cancelled")
COLUMNS = (
    "key STRING PRIMARY KEY, id BIGINT, account_id STRING, amount DECIMAL(18,2), status STRING, category STRING, "
    "price DOUBLE, ts TIMESTAMP, flag BOOLEAN, note STRING, qty INT"
)
KEYS_LOOKED_UP = 10_000
SINGLE_ROWS = 2_000
REPEATED = 1_000
_NUMBERS = itertools.count(1)


def workload(count: int, *, start: int = 0, stop: int | None = None) -> pa.Table:
    """Rows of the workload of `count` rows: key `txn_{i:08}`, account i mod count/10, exact amounts, and so on."""
    opened = datetime(2024, 1, 1, tzinfo=UTC)
    accounts = max(1, count // 10)
    numbers = range(start, count if stop is None else stop)
    columns: dict[str, pa.Array] = {
        "key": pa.array([f"txn_{i:08}" for i in numbers]),
        "id": pa.array(numbers, pa.int64()),
        "account_id": pa.array([f"ACC{i % accounts:06}" for i in numbers]),
        "amount": pa.array([_amount(i) for i in numbers], pa.decimal128(18, 2)),
        "status": pa.array([STATUSES[i % 4] for i in numbers]),
        "category": pa.array([f"CAT_{i % 10}" for i in numbers]),
        "price": pa.array([float(i % 1000) for i in numbers]),
        "ts": pa.array([opened + timedelta(seconds=i) for i in numbers], pa.timestamp("us", tz="UTC")),
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
        measurements += _Round(count, arguments.rounds, time.process_time if arguments.cpu else time.perf_counter).run()
    return measurements


class _Round:
    """All cases over one size."""

    def __init__(self, count: int, rounds: int, clock: Callable[[], float]) -> None:
        self.count = count
        self.rounds = rounds
        self.clock = clock
        self.rows = workload(count)
        self.dicts: dict[str, dict[str, Any]] = {row["key"]: row for row in self.rows.to_pylist()}
        self.connection = velostream.connect()
        self.handle = self._new_table("filled")
        self.handle.bulk_insert(self.rows)
        self.connection.execute("CREATE INDEX by_account ON filled (account_id)")
        self.table: Any = self.connection.table("filled")._table  # noqa: SLF001 - measured beside what is in front of it
        self.sqlite = _sqlite(self.rows)
        self.duckdb = duckdb.connect()
        self.duckdb.register("given", self.rows)
        self.duckdb.execute("CREATE TABLE t AS SELECT * FROM given")
        chosen = random.Random(7)
        self.numbers = [chosen.randrange(count) for _ in range(KEYS_LOOKED_UP)]
        # Fresh texts: keys that come from elsewhere are never the objects a dict holds.
        self.keys = [f"txn_{number:08}" for number in self.numbers]

    def run(self) -> list[Measurement]:
        try:
            groups = (
                self._key_cases(),
                self._condition_cases(),
                self._scan_cases(),
                self._thread_cases(),
                self._write_cases(),
                self._recovery_case(),
            )
            title = f"tables, {self.count:,} rows"
            found = [
                one for case in itertools.chain.from_iterable(groups) for one in measure(title, case, clock=self.clock)
            ]
            self._show_memory()
            return found
        finally:
            self.connection.close()
            self.sqlite.close()
            self.duckdb.close()

    def _new_table(self, name: str, options: str = "") -> Any:
        self.connection.execute(f"CREATE TABLE {name} ({COLUMNS}) {options}")
        return self.connection.table(name)

    def _case(self, name: str, units: int, right: Any, **contenders: Callable[[], Any]) -> Case:
        return Case(
            name, units, [Contender(who, work) for who, work in contenders.items()], _equals(right), self.rounds
        )

    def _key_cases(self) -> Iterator[Case]:
        keys, handle, table, dicts, cursor = self.keys, self.handle, self.table, self.dicts, self.sqlite.cursor()
        amounts = sum(dicts[key]["amount"] for key in keys)
        array = pa.array(keys)
        yield self._case(
            "contains",
            KEYS_LOOKED_UP,
            KEYS_LOOKED_UP,
            velostream=lambda: sum(map(handle.contains, keys)),
            table=lambda: sum(map(table.contains, keys)),
            dict=lambda: sum(map(dicts.__contains__, keys)),
        )
        yield self._case(
            "get",
            KEYS_LOOKED_UP,
            KEYS_LOOKED_UP,
            velostream=lambda: sum(row is not None for row in map(handle.get, keys)),
            table=lambda: sum(row is not None for row in map(table.get, keys)),
            dict=lambda: sum(row is not None for row in map(dicts.get, keys)),
        )
        yield self._case(
            "get, one field",
            KEYS_LOOKED_UP,
            amounts,
            velostream=lambda: sum(handle.get(key)["amount"] for key in keys),
            dict=lambda: sum(dicts[key]["amount"] for key in keys),
            sqlite=lambda: sum(
                Decimal(cursor.execute("SELECT amount FROM t WHERE key = ?", (key,)).fetchone()[0]) for key in keys
            ),
        )
        yield self._case(
            "get, all fields",
            KEYS_LOOKED_UP,
            KEYS_LOOKED_UP * 11,
            velostream=lambda: sum(len(handle.get(key).as_dict()) for key in keys),
            dict=lambda: sum(len(dict(dicts[key])) for key in keys),
            sqlite=lambda: sum(len(cursor.execute("SELECT * FROM t WHERE key = ?", (key,)).fetchone()) for key in keys),
        )
        yield self._case(
            "lookup of 10,000 keys",
            KEYS_LOOKED_UP,
            amounts,
            velostream=lambda: _total(handle.lookup(array, ["amount"])["amount"]),
            dict=lambda: sum([dicts[key]["amount"] for key in keys]),
        )

    def _condition_cases(self) -> Iterator[Case]:
        handle, table, dicts, cursor = self.handle, self.table, self.dicts, self.sqlite.cursor()
        account = self.rows["account_id"][self.count // 2].as_py()
        few = sum(1 for row in dicts.values() if row["account_id"] == account)
        by_account, by_key = f"account_id = '{account}'", f"key = '{self.keys[0]}'"
        of_account = handle.compile_condition(by_account).expression
        of_key = handle.compile_condition(by_key).expression
        yield self._case(
            "filter by an indexed column",
            REPEATED,
            few,
            velostream=_often(lambda: len(handle.filter(by_account))),
            table=_often(lambda: len(table.snapshot().find(of_account))),
            sqlite=_often(lambda: len(cursor.execute(f"SELECT * FROM t WHERE {by_account}").fetchall())),
        )
        yield self._case(
            "COUNT by an indexed value",
            REPEATED,
            few,
            velostream=_often(lambda: handle.scalar("COUNT(*)", by_account)),
            table=_often(lambda: table.snapshot().count(of_account)),
            sqlite=_often(lambda: cursor.execute(f"SELECT COUNT(*) FROM t WHERE {by_account}").fetchone()[0]),
        )
        yield self._case(
            "exists, condition as text",
            REPEATED,
            True,
            velostream=_often(lambda: handle.exists(by_key)),
            table=_often(lambda: table.snapshot().count(of_key) > 0),
            sqlite=_often(lambda: cursor.execute(f"SELECT 1 FROM t WHERE {by_key}").fetchone() is not None),
        )
        yield self._case(
            "one-row filter, condition as text",
            REPEATED,
            1,
            velostream=_often(lambda: len(handle.filter(by_key))),
            table=_often(lambda: len(table.snapshot().find(of_key))),
            sqlite=_often(lambda: len(cursor.execute(f"SELECT * FROM t WHERE {by_key}").fetchall())),
        )
        low, high = self.count // 2, self.count // 2 + self.count // 100
        yield self._case(
            "filter of 1 %, no index",
            self.count,
            high - low,
            velostream=lambda: handle.filter(f"id >= {low} AND id < {high}").arrow().num_rows,
            duckdb=lambda: _duck(self.duckdb, f"SELECT * FROM t WHERE id >= {low} AND id < {high}").num_rows,
            sqlite=lambda: len(cursor.execute(f"SELECT * FROM t WHERE id >= {low} AND id < {high}").fetchall()),
            dict=lambda: len([row for row in dicts.values() if low <= row["id"] < high]),
        )

    def _scan_cases(self) -> Iterator[Case]:
        handle, dicts, cursor = self.handle, self.dicts, self.sqlite.cursor()
        total = sum(row["amount"] for row in dicts.values())
        completed = sum(row["amount"] for row in dicts.values() if row["status"] == "completed")
        if self.count == 100_000:
            expect(completed == Decimal("123720000.00"), f"the workload's own sum is {completed}")
        dear = sum(1 for row in dicts.values() if row["amount"] > 5000)
        yield self._case(
            "COUNT by status",
            self.count,
            self.count // 4,
            velostream=lambda: handle.scalar("COUNT(*)", "status = 'active'"),
            duckdb=lambda: _duck_value(self.duckdb, "SELECT COUNT(*) FROM t WHERE status = 'active'"),
            sqlite=lambda: cursor.execute("SELECT COUNT(*) FROM t WHERE status = 'active'").fetchone()[0],
            dict=lambda: sum(1 for row in dicts.values() if row["status"] == "active"),
        )
        yield self._case(
            "COUNT of amount > 5000",
            self.count,
            dear,
            velostream=lambda: handle.scalar("COUNT(*)", "amount > 5000"),
            duckdb=lambda: _duck_value(self.duckdb, "SELECT COUNT(*) FROM t WHERE amount > 5000"),
            dict=lambda: sum(1 for row in dicts.values() if row["amount"] > 5000),
        )
        yield self._case(
            "SUM of all amounts",
            self.count,
            total,
            velostream=lambda: handle.scalar("SUM(amount)"),
            duckdb=lambda: _duck_value(self.duckdb, "SELECT SUM(amount) FROM t"),
            dict=lambda: sum(row["amount"] for row in dicts.values()),
        )
        yield self._case(
            "SUM of completed",
            self.count,
            completed,
            velostream=lambda: handle.scalar("SUM(amount)", "status = 'completed'"),
            duckdb=lambda: _duck_value(self.duckdb, "SELECT SUM(amount) FROM t WHERE status = 'completed'"),
            dict=lambda: sum(row["amount"] for row in dicts.values() if row["status"] == "completed"),
        )
        yield self._case(
            "column values of 1/4",
            self.count,
            self.count // 4,
            velostream=lambda: len(handle.column_values("qty", "status = 'active'")),
            dict=lambda: len([row["qty"] for row in dicts.values() if row["status"] == "active"]),
        )
        yield self._case(
            "scan as Arrow",
            self.count,
            self.count,
            velostream=lambda: handle.arrow().num_rows,
            duckdb=lambda: _duck(self.duckdb, "SELECT * FROM t").num_rows,
            sqlite=lambda: len(cursor.execute("SELECT * FROM t").fetchall()),
        )
        yield self._case(
            "scan as Rows",
            self.count,
            self.count,
            velostream=lambda: sum(1 for _ in handle.scan()),
            sqlite=lambda: sum(1 for _ in cursor.execute("SELECT * FROM t")),
        )
        pages = range(0, self.count, self.count // 10)
        yield self._case(
            "paging, ten pages",
            self.count,
            self.count,
            velostream=lambda: sum(len(handle.query_batch(self.count // 10, offset).rows) for offset in pages),
        )

    def _thread_cases(self) -> Iterator[Case]:
        """The same number of lookups by several threads, and single gets beside a writer."""
        batches = [pa.array(self.keys[start:] + self.keys[:start]) for start in range(8)]
        contenders = {f"{threads} threads": self._in_threads(threads, batches) for threads in (1, 2, 4, 8)}
        yield self._case("batched lookups by threads", 16 * KEYS_LOOKED_UP, 16 * KEYS_LOOKED_UP, **contenders)
        reading = {f"{threads} threads": self._gets_beside_a_writer(threads) for threads in (1, 2, 4, 8)}
        yield self._case("gets by threads beside a writer", 8 * KEYS_LOOKED_UP, 8 * KEYS_LOOKED_UP, **reading)

    def _in_threads(self, threads: int, batches: list[pa.Array]) -> Callable[[], int]:
        def work(found: list[int]) -> None:
            found.extend(
                self.handle.lookup(batches[number % 8], ["amount"]).num_rows for number in range(16 // threads)
            )

        return lambda: sum(_together(threads, work))

    def _gets_beside_a_writer(self, threads: int) -> Callable[[], int]:
        row = dict(self.dicts[self.keys[0]])

        def work(found: list[int]) -> None:
            get = self.table.get
            found.extend(sum(get(key) is not None for key in self.keys) for _ in range(8 // threads))

        def run() -> int:
            done = threading.Event()

            def write() -> None:
                while not done.wait(0.001):
                    self.handle.upsert({**row, "qty": next(_NUMBERS)})

            writer = threading.Thread(target=write)
            writer.start()
            try:
                return sum(_together(threads, work))
            finally:
                done.set()
                writer.join()

        return run

    def _write_cases(self) -> Iterator[Case]:
        handle, table, dicts, cursor = self.handle, self.table, self.dicts, self.sqlite.cursor()
        yield self._case(
            "bulk insert",
            self.count,
            self.count,
            velostream=self._bulk_insert,
            dict=lambda: len({row["key"]: row for row in self.rows.to_pylist()}),
            sqlite=lambda: _close(_sqlite(self.rows)),
        )
        changed = self._changed_rows()
        yield Case(
            "bulk upsert",
            self.count,
            [Contender("velostream", lambda: changed["table"].upsert(changed["rows"]).rowcount, before=changed["new"])],
            _equals(self.count),
            self.rounds,
        )
        sample = [dicts[key] for key in self.keys[:SINGLE_ROWS]]
        yield self._case(
            "single insert",
            SINGLE_ROWS,
            SINGLE_ROWS,
            velostream=lambda: sum(handle.insert(_renamed(row)).rowcount for row in sample),
            table=lambda: sum(table.write_records(Mode.APPEND, [_renamed(row)]) for row in sample),
            dict=lambda: len([dicts.setdefault(f"new {next(_NUMBERS)}", dict(row)) for row in sample]),
            sqlite=lambda: sum(_insert(cursor, _renamed(row)) for row in sample),
        )
        yield self._case(
            "single upsert",
            SINGLE_ROWS,
            SINGLE_ROWS,
            velostream=lambda: sum(handle.upsert({**row, "qty": next(_NUMBERS)}).rowcount for row in sample),
            table=lambda: sum(table.write_records(Mode.UPSERT, [{**row, "qty": next(_NUMBERS)}]) for row in sample),
        )
        yield self._case(
            "point update by key",
            SINGLE_ROWS,
            SINGLE_ROWS,
            velostream=lambda: sum(
                handle.bulk_update([{"key": row["key"], "qty": next(_NUMBERS)}]).rowcount for row in sample
            ),
            table=lambda: sum(
                table.update_records([{"key": row["key"], "qty": next(_NUMBERS)}]) or 0 for row in sample
            ),
            sqlite=lambda: sum(
                cursor.execute("UPDATE t SET qty = ? WHERE key = ?", (next(_NUMBERS), row["key"])).rowcount
                for row in sample
            ),
        )
        yield self._case(
            "update of 1 %",
            self.count // 100,
            self.count // 100,
            velostream=lambda: (
                handle.update(
                    f"id >= 0 AND id < {self.count // 100} AND key LIKE 'txn%'", {"qty": next(_NUMBERS)}
                ).rowcount
            ),
        )
        yield Case(
            "delete of 1,000",
            1000,
            [
                Contender(
                    "velostream",
                    lambda: changed["table"].bulk_delete(changed["keys"]).rowcount,
                    before=changed["again"],
                )
            ],
            _equals(1000),
            self.rounds,
        )
        yield Case(
            "index creation",
            self.count,
            [
                Contender(
                    "velostream",
                    lambda: changed["table"]._table.create_index(["account_id"]) is None,  # noqa: SLF001
                    before=lambda: changed["table"]._table.drop_index(["account_id"]),  # noqa: SLF001
                ),
                Contender(
                    "sqlite",
                    lambda: cursor.execute("CREATE INDEX again ON t (account_id, id)") is not None,
                    before=lambda: cursor.execute("DROP INDEX IF EXISTS again"),
                ),
            ],
            _equals(True),
            self.rounds,
        )

    def _recovery_case(self) -> Iterator[Case]:
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder) / "log"
            schema = _schema()
            sequence = CommitSequence.open(directory)
            sequence.create_table("t", name="t", schema=schema).commit(Write(Mode.APPEND, self.rows))
            sequence.close()
            yield self._case("recovery", self.count, self.count, velostream=lambda: _recovered(directory))

    def _show_memory(self) -> None:
        """Printed apart: bytes are no time."""
        figures = {form: resident_bytes(self.count, form) for form in FORMS}
        for form, size in figures.items():
            print(
                f"memory of {self.count:,} rows, {form}: {size / self.count:,.0f} bytes per row "
                f"({size / figures['dict']:.0%} of a dict of dicts)"
            )

    def _bulk_insert(self) -> int:
        name = f"made_{next(_NUMBERS)}"
        table = self._new_table(name)
        table.bulk_insert(self.rows)
        rows = len(table)
        self.connection.execute(f"DROP TABLE {name}")
        return rows

    def _changed_rows(self) -> dict[str, Any]:
        """A table of its own for what changes all of it: made anew, and given new values, before each round."""
        state: dict[str, Any] = {"keys": self.rows["key"].slice(0, 1000)}

        def new() -> None:
            if "name" in state:
                self.connection.execute(f"DROP TABLE {state['name']}")
            state["name"] = f"changed_{next(_NUMBERS)}"
            state["table"] = self._new_table(state["name"])
            state["table"].bulk_insert(self.rows)
            qty = pa.array([next(_NUMBERS) % 1000 + 1000] * self.count, pa.int32())
            state["rows"] = self.rows.set_column(10, "qty", qty)

        state["new"] = new
        state["again"] = lambda: state["table"].upsert(self.rows.slice(0, 1000))
        return state


def _often(work: Callable[[], Any]) -> Callable[[], Any]:
    """The same thing many times; the last answer."""

    def run() -> Any:
        answer = None
        for _ in range(REPEATED):
            answer = work()
        return answer

    return run


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "key": f"new {next(_NUMBERS)}"}


def _insert(cursor: sqlite3.Cursor, row: dict[str, Any]) -> int:
    values = [str(value) if isinstance(value, Decimal | datetime) else value for value in row.values()]
    return cursor.execute("INSERT INTO t VALUES (?,?,?,?,?,?,?,?,?,?,?)", values).rowcount


def _together(threads: int, work: Callable[[list[int]], None]) -> list[int]:
    found: list[int] = []
    running = [threading.Thread(target=work, args=(found,)) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return found


def _equals(expected: Any) -> Callable[[Any], None]:
    return lambda answer: expect(answer == expected, f"gave {answer}, right is {expected}")


def _total(column: pa.ChunkedArray) -> Decimal:
    total: Decimal = pc.sum(column).as_py()
    return total


def _duck(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    table: pa.Table = connection.cursor().sql(sql).to_arrow_table()
    return table


def _duck_value(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    return connection.cursor().execute(sql).fetchall()[0][0]


def _schema() -> Schema:
    columns = [column.strip().removesuffix(" PRIMARY KEY").split(" ", 1) for column in COLUMNS.split(", ")]
    return Schema.of(*((name, type_) for name, type_ in columns), key=["key"])


def _recovered(directory: Path) -> int:
    sequence = CommitSequence.open(directory)
    rows = sequence.table("t").snapshot().count()
    sequence.close()
    return rows


def _close(connection: sqlite3.Connection) -> int:
    (rows,) = connection.execute("SELECT COUNT(*) FROM t").fetchone()
    connection.close()
    return int(rows)


def _sqlite(rows: pa.Table) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
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
