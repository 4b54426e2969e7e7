"""The contenders of `enrich` in plain PySpark, by structured streaming in the Spark that ours runs in.

Every batch is brought to the driver as Arrow, which is the least one can do with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.trades import Answer, ChangingWorkload, Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRADES = "trade_id BIGINT, user_id BIGINT, symbol STRING, quantity BIGINT, price DECIMAL(18,2)"
_ITEMS = ("trade_id", "name", "tier", "quantity * price * factor AS weighted")


class PlainSpark:
    """Runs of one kind after another, each with an inbox and a checkpoint of its own."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self.session = session
        self.folder = folder
        self.number = 0

    def static_broadcast(self, workload: Workload) -> Answer:
        """One broadcast of the users, as they are at the start. Spark's fastest, blind to what changes."""
        from pyspark.sql.functions import broadcast

        inbox = self._inbox()
        (inbox / "trades.csv").symlink_to(workload.path)
        users = self.session.read.parquet(str(workload.users_path)).cache()
        batches: list[pa.Table] = []
        joined = self._stream(inbox).join(broadcast(users), "user_id").selectExpr(*_ITEMS)
        query = self._writer(joined, lambda frame, _: batches.append(frame.toArrow()))
        query.trigger(availableNow=True).start().awaitTermination()
        users.unpersist()
        return _answer(batches)

    def broadcast_per_batch(self, changing: ChangingWorkload) -> Answer:
        """The users read and broadcast anew for each batch, as they must be if the batch is to see what has changed.

        Writing the changed table isn't counted: its states are files made beforehand.
        """
        from pyspark.sql.functions import broadcast

        inbox = self._inbox()
        batches: list[pa.Table] = []
        snapshot = changing.snapshots[0]

        def enrich(frame: DataFrame, _: int) -> None:
            users = self.session.read.parquet(str(snapshot))
            batches.append(frame.join(broadcast(users), "user_id").selectExpr(*_ITEMS).toArrow())

        query = self._writer(self._stream(inbox), enrich).start()
        try:
            for number, text in enumerate(changing.texts):
                snapshot = changing.snapshots[number]
                unfinished = self.folder / f"part_{self.number}_{number}.csv"
                unfinished.write_bytes(changing.header + text)
                unfinished.rename(inbox / unfinished.name)
                query.processAllAvailable()
        finally:
            query.stop()
        return _answer(batches)

    def _inbox(self) -> Path:
        self.number += 1
        inbox = self.folder / f"inbox_{self.number}"
        inbox.mkdir(parents=True)
        return inbox

    def _stream(self, inbox: Path) -> DataFrame:
        return self.session.readStream.schema(_TRADES).option("header", "true").csv(str(inbox))

    def _writer(self, frame: DataFrame, each: Callable[[DataFrame, int], None]) -> Any:
        checkpoint = str(self.folder / f"checkpoint_{self.number}")
        return frame.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint)


def _answer(batches: list[pa.Table]) -> Answer:
    table = pa.concat_tables(batches)
    return Answer(table.num_rows, pc.sum(table["weighted"]).as_py())
