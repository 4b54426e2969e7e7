"""PostgreSQL's log: a backlog of changes applied, and how soon a commit there is visible here."""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

import velostream
from benchmarks.harness import Case, Contender, Measurement, expect, measure
from benchmarks.sources.loading import Target
from benchmarks.sources.postgres import fill
from benchmarks.sources.trades import Content, trades
from velostream.engine.connection import Connection
from velostream.testing.services.postgres import PostgresService

CHANGES = 400_000
ROWS_THERE = 100_000
CHANGES_PER_TRANSACTION = 100
"""Fifty inserts, forty updates and ten deletes."""
FRESH_ROWS = 300_000
ROWS_PER_SECOND = 10_000
_PATIENCE = 300
_LOOK_SECONDS = 0.002
_FRESHNESS_TARGET_SECONDS = 2.0

_BACKLOG = """
DO $$
DECLARE begins bigint := {begins}; low bigint;
BEGIN
  FOR number IN 0 .. {transactions} - 1 LOOP
    low := begins + number * 50;
    INSERT INTO trades SELECT i, 'ACC' || i % 1000, 'S1', i % 100 + 1, i % 1000 + 0.25
      FROM generate_series(low, low + 49) i;
    UPDATE trades SET quantity = quantity + 1 WHERE id BETWEEN low - 50 AND low - 11;
    DELETE FROM trades WHERE id BETWEEN low - 10 AND low - 1;
    COMMIT;
  END LOOP;
END $$
"""


def run(arguments: argparse.Namespace) -> list[Measurement]:
    return _applied(arguments) + _fresh(arguments)


def _applied(arguments: argparse.Namespace) -> list[Measurement]:
    with TemporaryDirectory() as folder, velostream.connect() as other:
        # As long as somebody uses Spark it runs: its start is no part of what is measured.
        other.execute("CREATE TABLE few AS SELECT * FROM 'generator://few?rows=10'")
        other.drain("few", timeout=_PATIENCE)
        backlog = _Backlog(Path(folder), arguments.rows or CHANGES)
        name = f"postgres, capture, {backlog.changes:,} changes in transactions of {CHANGES_PER_TRANSACTION}"
        contenders = [Contender("velostream", backlog.apply, backlog.write)]
        measurements = measure("sources", Case(name, backlog.changes, contenders, backlog.check, arguments.rounds))
        backlog.end()
    print(Target(per_second=40_000).tell(measurements))
    return measurements


class _Backlog:
    """A captured table, and changes made while nobody is there to take them in."""

    def __init__(self, folder: Path, changes: int) -> None:
        self._state = folder / "state"
        self._url = PostgresService.shared().new_database()
        self._transactions = max(1, changes // CHANGES_PER_TRANSACTION)
        self.changes = self._transactions * CHANGES_PER_TRANSACTION
        self._begins = ROWS_THERE
        fill(self._url, trades(ROWS_THERE))
        self._connection: Connection | None = velostream.connect(self._state)
        self._connection.execute(f"CREATE TABLE captured AS SELECT * FROM '{self._url}?table=trades&cdc=true'")
        self._connection.wait("captured", timeout=_PATIENCE)

    def write(self) -> None:
        """End what follows the table, and make the changes of the next round."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        with psycopg.connect(self._url, autocommit=True) as database:
            database.execute(_BACKLOG.format(begins=self._begins, transactions=self._transactions).encode())
        self._begins += self._transactions * 50

    def apply(self) -> Connection:
        """From the start of what follows the table; the time it takes to open its state is in it."""
        self._connection = velostream.connect(self._state)
        self._connection.drain("captured", timeout=_PATIENCE)
        return self._connection

    def check(self, connection: Connection) -> None:
        with psycopg.connect(self._url) as database:
            there = database.execute("SELECT COUNT(*), SUM(quantity)::bigint, SUM(id)::bigint FROM trades").fetchone()
        expect(there is not None, "the database gives no sums")
        Content(*there or ()).expect(Content.of_table(connection.table("captured")))

    def end(self) -> None:
        if self._connection is not None:
            self._connection.execute("DROP TABLE captured")
            self._connection.close()


def _fresh(arguments: argparse.Namespace) -> list[Measurement]:
    url = PostgresService.shared().new_database()
    fill(url, trades(ROWS_THERE))
    transactions = max(2, (arguments.rows or FRESH_ROWS) // CHANGES_PER_TRANSACTION)
    with velostream.connect() as connection:
        connection.execute(f"CREATE TABLE fresh AS SELECT * FROM '{url}?table=trades&cdc=true'")
        connection.wait("fresh", timeout=_PATIENCE)
        writer = _Writer(url, transactions)
        writer.start()
        ages = [_age(connection, writer, number) for number in range(transactions)]
        writer.join()
        connection.drain("fresh", timeout=_PATIENCE)
        rows = ROWS_THERE + transactions * CHANGES_PER_TRANSACTION
        expect(len(connection.table("fresh")) == rows, f"has {len(connection.table('fresh'))} of {rows} rows")
        connection.execute("DROP TABLE fresh")
    # What comes first finds everything cold.
    counted = ages[len(ages) // 10 :]
    written = transactions * CHANGES_PER_TRANSACTION / writer.seconds
    percentiles = statistics.quantiles(counted, n=100)
    name = f"postgres, capture, age of rows when they are visible, {written:,.0f} rows/s written"
    print(
        f"{name}: p50 {percentiles[49]:.2f} s, p99 {percentiles[98]:.2f} s "
        f"(target: at most {_FRESHNESS_TARGET_SECONDS} s), longest {max(counted):.2f} s"
    )
    return [Measurement("sources", name, "velostream", 1, tuple(counted))]


class _Writer(threading.Thread):
    """Inserts rows at a steady pace, transaction by transaction."""

    def __init__(self, url: str, transactions: int) -> None:
        super().__init__(name="writer", daemon=True)
        self._url = url
        self._transactions = transactions
        self.committed_at: list[float] = []
        """When each transaction was told to commit, which is a little before it has."""
        self.seconds = 0.0

    def run(self) -> None:
        rows = (
            "INSERT INTO trades SELECT i, 'ACC' || i %% 1000, 'S1', 1, 0.25 "
            f"FROM generate_series(%s::bigint, %s::bigint + {CHANGES_PER_TRANSACTION - 1}) i"
        )
        apart = CHANGES_PER_TRANSACTION / ROWS_PER_SECOND
        began = time.perf_counter()
        with psycopg.connect(self._url) as database:
            for number in range(self._transactions):
                # Late transactions are made up for, as by writers that don't wait for each other.
                time.sleep(max(0.0, began + number * apart - time.perf_counter()))
                low = first_row(number)
                database.execute(rows, (low, low))
                self.committed_at.append(time.perf_counter())
                database.commit()
        self.seconds = time.perf_counter() - began


def first_row(transaction: int) -> int:
    return ROWS_THERE + transaction * CHANGES_PER_TRANSACTION


def _age(connection: Connection, writer: _Writer, transaction: int) -> float:
    """How old the rows of a transaction are when its last one is seen here. Asked for one after the other."""
    last = first_row(transaction + 1) - 1
    table = connection.table("fresh")
    deadline = time.perf_counter() + _PATIENCE
    while not table.contains(last):
        if time.perf_counter() > deadline or not (writer.is_alive() or writer.seconds):
            raise TimeoutError(f"transaction {transaction} didn't come")
        time.sleep(_LOOK_SECONDS)
    return time.perf_counter() - writer.committed_at[transaction]
