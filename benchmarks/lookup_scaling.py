"""`lookup_scaling`: a batch of 200,000 rows joined to a live table of 10,000 and of 1,000,000 rows.

Contenders: the lookup stage, with the table changed before every round (the change must be seen), and plain Spark that
builds the broadcast anew for each batch, which is what it takes there to see changes.
"""

from __future__ import annotations

import argparse
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import velostream
from benchmarks.harness import Case, Contender, Measurement, expect, measure
from velostream.engine.lookup import ReplicatedTable, run_stages
from velostream.engine.relations import arrow_result
from velostream.sql.plan import KeyPair, Lookup, Stages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_ROWS = 200_000
SIZES = (10_000, 1_000_000)
STAGES = Stages(
    (
        Lookup(
            "users", outer=False, keys=(KeyPair("user_id", "user_id"),), columns=("score",), prefix="u_", access="key"
        ),
    ),
    "SELECT trade_id, quantity * u_score AS weighted FROM stage",
)


def run(arguments: argparse.Namespace) -> list[Measurement]:
    rows = arguments.rows or BATCH_ROWS
    measurements = []
    with velostream.connect() as connection, TemporaryDirectory() as folder:
        for size in SIZES:
            case = _Scaling(connection, Path(folder), rows, size).case(arguments.rounds)
            measurements += measure("lookup_scaling", case)
    stage = {m.case: m.median for m in measurements if m.contender == "lookup stage"}
    small, large = stage.values()
    print(f"1,000,000 rows take {large / small:.2f} × the time of 10,000 rows (target: within 1.5 ×)")
    return measurements


class _Scaling:
    """One table size."""

    def __init__(self, connection: Any, folder: Path, rows: int, size: int) -> None:
        self.connection = connection
        self.size = size
        self.name = f"users_{size}"
        connection.execute(f"CREATE TABLE {self.name} (user_id BIGINT PRIMARY KEY, name STRING, score DECIMAL(10,2))")
        self.table = connection.table(self.name)
        numbers = np.arange(size)
        self.table.bulk_insert(
            pa.table(
                {
                    "user_id": numbers,
                    "name": pa.array([f"user {number}" for number in range(size)]),
                    "score": _decimals(numbers % 1000),
                }
            )
        )
        chosen = np.random.default_rng(7)
        self.batch = pa.table(
            {
                "trade_id": np.arange(rows),
                "user_id": chosen.integers(0, size, rows),
                "quantity": chosen.integers(1, 500, rows),
            }
        )
        self.batch_path = folder / f"batch_{size}.parquet"
        self.table_path = folder / f"users_{size}.parquet"
        pq.write_table(self.batch, self.batch_path)
        self.version = 0

    def case(self, rounds: int) -> Case:
        return Case(
            f"{self.batch.num_rows:,} rows × {self.size:,}",
            self.batch.num_rows,
            [
                Contender("lookup stage", self._by_stage, before=self._change),
                Contender("plain Spark, broadcast rebuilt", self._by_spark, before=self._change),
            ],
            self._check,
            rounds,
        )

    def _change(self) -> None:
        """One percent of the table moves between batches, and the next batch must see it."""
        self.version += 1
        count = max(1, self.size // 100)
        chosen = np.random.default_rng(self.version).choice(self.size, count, replace=False)
        score = _decimals(np.full(count, self.version))
        names = pa.array([f"user {number}" for number in chosen])
        self.table.upsert(pa.table({"user_id": chosen, "name": names, "score": score}))
        pq.write_table(self.table.arrow(), self.table_path)

    def _frame(self) -> DataFrame:
        frame: DataFrame = self.connection._context.spark.session().read.parquet(str(self.batch_path))  # noqa: SLF001
        return frame

    def _by_stage(self) -> pa.Table:
        context = self.connection._context  # noqa: SLF001 - the stage is measured by itself
        entry = context.catalog.find(self.name)
        table = context.table(entry.id)
        replica = context.replicas.publish(table, columns=("user_id",), at=context.sequence.sequence)
        tables = {"u_": ReplicatedTable(table.schema, replica)}
        return arrow_result(run_stages(context.spark.session(), self._frame(), STAGES, tables=tables))

    def _by_spark(self) -> pa.Table:
        from pyspark.sql.functions import broadcast

        session = self.connection._context.spark.session()  # noqa: SLF001
        users = session.read.parquet(str(self.table_path))
        joined = self._frame().join(broadcast(users), "user_id")
        return arrow_result(joined.selectExpr("trade_id", "quantity * score AS weighted"))

    def _check(self, answer: pa.Table) -> None:
        found: Decimal = pc.sum(answer["weighted"]).as_py()
        users = self.table.arrow()
        order = np.empty(self.size, dtype=np.int64)
        order[users["user_id"].to_numpy()] = np.arange(self.size)
        scores = users["score"].cast(pa.float64()).to_numpy()[order]
        right = (self.batch["quantity"].to_numpy() * scores[self.batch["user_id"].to_numpy()]).sum()
        expect(answer.num_rows == self.batch.num_rows, f"gave {answer.num_rows} rows")
        expect(found == Decimal(int(right)), f"gave {found}, right is {right}")


def _decimals(numbers: np.ndarray) -> pa.Array:
    """Whole numbers as DECIMAL(10,2); Arrow only casts 32-bit integers into so few digits."""
    return pa.array(numbers.astype(np.int32)).cast(pa.decimal128(12, 2)).cast(pa.decimal128(10, 2))
