"""`enrich`: a CSV stream of trades joined to a table of users, from the file to the result on the driver.

Contenders: a view of ours (`watch.mode = 'append'`, the live table through the lookup stage, rows committed to a
table), and plain PySpark structured streaming with a static broadcast, collecting each batch with toArrow.
"""

from __future__ import annotations

import argparse
import shutil
from decimal import Decimal
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import velostream
from benchmarks.harness import Case, Contender, Measurement, expect, measure

TRADES = 1_000_000
USERS = (10_000, 1_000_000)


def run(arguments: argparse.Namespace) -> list[Measurement]:
    folder = Path(mkdtemp(prefix="velostream-enrich-"))
    measurements = []
    try:
        with velostream.connect() as connection:
            for users in USERS:
                work = _Enrichment(connection, folder, arguments.rows or TRADES, users)
                measurements += measure("enrich", work.case(min(arguments.rounds, 3)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return measurements


class _Enrichment:
    """One join over one file with one size of the users table."""

    def __init__(self, connection: Any, folder: Path, trades: int, users: int) -> None:
        self.connection = connection
        self.folder = folder
        self.trades = trades
        self.users = users
        chosen = np.random.default_rng(11)
        user_ids = chosen.integers(0, users, trades)
        quantities = chosen.integers(1, 500, trades)
        cents = chosen.integers(100, 50_000, trades)
        self.path = folder / f"trades_{users}.csv"
        pacsv.write_csv(
            pa.table(
                {
                    "trade_id": np.arange(trades),
                    "user_id": user_ids,
                    "symbol": pa.array(np.char.add("S", (user_ids % 50).astype(str))),
                    "quantity": quantities,
                    "price": pa.array([f"{cent // 100}.{cent % 100:02}" for cent in cents.tolist()]),
                }
            ),
            self.path,
            pacsv.WriteOptions(quoting_style="none"),
        )
        self.users_path = folder / f"users_{users}.parquet"
        table = pa.table(
            {
                "user_id": np.arange(users),
                "name": pa.array([f"user {number}" for number in range(users)]),
                "tier": pa.array([("gold", "silver", "bronze")[number % 3] for number in range(users)]),
                "factor": pa.array(np.arange(users) % 7, pa.int64()),
            }
        )
        pq.write_table(table, self.users_path)
        name = f"users_{users}"
        connection.execute(f"CREATE TABLE {name} (user_id BIGINT PRIMARY KEY, name STRING, tier STRING, factor BIGINT)")
        connection.table(name).bulk_insert(table)
        self.right = Decimal(int((quantities * cents * (user_ids % 7)).sum())).scaleb(-2)
        self.number = 0

    def case(self, rounds: int) -> Case:
        contenders = [
            Contender("velostream", self._by_view),
            Contender("plain Spark, static broadcast", self._by_spark),
        ]
        return Case(f"{self.trades:,} trades × {self.users:,} users", self.trades, contenders, self._check, rounds)

    def _by_view(self) -> tuple[int, Decimal]:
        self.number += 1
        name = f"enriched_{self.users}_{self.number}"
        self.connection.execute(
            f"CREATE TABLE {name} AS SELECT t.trade_id, u.name, u.tier, t.quantity * t.price * u.factor AS weighted "
            f"FROM file://{self.path} t JOIN users_{self.users} u ON t.user_id = u.user_id "
            "WITH ('watch' = 'true', 'watch.mode' = 'append')"
        )
        self.connection.drain(name, timeout=300)
        table = self.connection.table(name)
        answer = (len(table), table.scalar("SUM(weighted)"))
        self.connection.execute(f"DROP TABLE {name}")
        return answer

    def _by_spark(self) -> tuple[int, Decimal]:
        from pyspark.sql import DataFrame
        from pyspark.sql.functions import broadcast

        session = self.connection._context.spark.session()  # noqa: SLF001 - the same Spark for both
        self.number += 1
        inbox = self.folder / f"inbox_{self.users}_{self.number}"
        inbox.mkdir()
        (inbox / "trades.csv").symlink_to(self.path)
        users = session.read.parquet(str(self.users_path)).cache()
        schema = "trade_id BIGINT, user_id BIGINT, symbol STRING, quantity BIGINT, price DECIMAL(18,2)"
        stream = session.readStream.schema(schema).option("header", "true").csv(str(inbox))
        joined = stream.join(broadcast(users), "user_id").selectExpr(
            "trade_id", "name", "tier", "quantity * price * factor AS weighted"
        )
        batches: list[pa.Table] = []

        def collect(frame: DataFrame, _: int) -> None:
            batches.append(frame.toArrow())

        query = (
            joined.writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(self.folder / f"checkpoint_{self.users}_{self.number}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        users.unpersist()
        total: Decimal = sum((pc.sum(batch["weighted"]).as_py() for batch in batches if batch.num_rows), Decimal(0))
        return sum(batch.num_rows for batch in batches), total

    def _check(self, answer: tuple[int, Decimal]) -> None:
        rows, total = answer
        expect(rows == self.trades, f"gave {rows} rows")
        expect(total == self.right, f"gave {total}, right is {self.right}")
