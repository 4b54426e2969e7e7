"""Strategy `aggregate`: GROUP BY over a stream, kept in Spark's own state where partial results would not be exact.

The stateless part (projection, filter, lookups) is a consumer of the ingest and leaves its rows as Parquet files in the
query's feed folder; a Spark structured-streaming query reads that folder, keeps the groups in its state store and gives
changed groups to the table. Because the enriched rows are stored before state sees them, a replayed batch feeds state
with the same rows whatever has happened to the joined tables since. The table's epoch is Spark's batch id: a replayed
batch is executed in full, as Spark's state demands, and its rows are discarded.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from velostream.engine.consumer import Batch, Outcome
from velostream.engine.consumers import TransformingConsumer
from velostream.engine.directory import sync, write_atomically
from velostream.engine.query import Runner
from velostream.engine.relations import arrow_result, run_sql, spark_schema
from velostream.engine.spark_failures import query_error, spark_errors
from velostream.engine.status import State
from velostream.errors import StateError
from velostream.model.change import Epoch, Mode, Write
from velostream.sql.aggregates import FEED
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

    from velostream.engine.catalog import Entry
    from velostream.engine.consumers import IngestRunner
    from velostream.engine.context import EngineContext
    from velostream.model.schema import Schema
    from velostream.sql.plan import AggregatePlan

_STARTING = threading.Lock()
"""One streaming query starts at a time: many at once starve each other for longer than they take one by one."""


class FeedFolder:
    """Numbered Parquet files on their way into Spark's state; Spark ignores names that begin with an underscore."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def prepare(self, number: int, rows: pa.Table) -> None:
        pq.write_table(rows, self._prepared(number), compression="lz4")
        sync(self._prepared(number))
        sync(self.path)

    def publish(self, number: int) -> None:
        self._prepared(number).replace(self._published(number))

    def recover(self, committed: int) -> None:
        """After a crash: publish what the log counts, remove what it doesn't."""
        for path in self.path.glob("_*.parquet"):
            number = int(path.stem[1:])
            if number <= committed:
                self.publish(number)
            else:
                path.unlink()

    def _prepared(self, number: int) -> Path:
        return self.path / f"_{number:012d}.parquet"

    def _published(self, number: int) -> Path:
        return self.path / f"{number:012d}.parquet"


class FeedConsumer(TransformingConsumer):
    """The stateless half of an aggregate."""

    feed: FeedFolder
    files = 0
    """Number of the last file published."""
    fed = False
    """Whether the feed holds everything the source held at the start."""

    def recover(self) -> None:
        known = self.context.sequence.writer(self.writer)
        self.files = 0 if known is None else known.position["files"]
        self.feed.recover(self.files)

    def run(self, batch: Batch) -> Outcome:
        rows = self.rows_of(batch)
        if not rows.num_rows:
            return Outcome(self.part(batch, writes=[], files=self.files), 0)
        number = self.files + 1
        self.feed.prepare(number, rows)

        def publish() -> None:
            self.feed.publish(number)
            self.files = number

        return Outcome(self.part(batch, writes=[], files=number), rows.num_rows, publish)

    def became_ready(self) -> None:
        """The feed is; the query is ready once state has taken in what the feed holds, which its runner watches."""
        self.fed = True
        self.board.notify()


class AggregateRunner(Runner):
    """The stateful half, and the feed's consumer as a part of it."""

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        *,
        plan: AggregatePlan,
        feed_schema: Schema,
        feed: FeedFolder,
        feeding: IngestRunner,
        checkpoint: Path,
    ) -> None:
        super().__init__(context, entry)
        self._plan = plan
        self._feed_schema = feed_schema
        self._feed = feed
        self._feeding = feeding
        self._checkpoint = Checkpoint(checkpoint, entry)
        self._query: StreamingQuery | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._writer = entry.id + ".state"
        self._consumed = 0

    def start(self) -> None:
        known = self.context.sequence.writer(self._writer)
        self._checkpoint.verify(self._plan.sql, self._feed_schema, known)
        self._consumed = 0 if known is None else known.position["files"]
        self._stopping.clear()
        self._feeding.start()
        self._thread = threading.Thread(target=self._run, name=f"aggregate {self.entry.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._feeding.stop()
        if self._thread is not None:
            self._thread.join(timeout=60)

    def drain(self, deadline: float) -> None:
        self._feeding.drain(deadline)
        consumer = self._feeding.consumer
        target = consumer.files if isinstance(consumer, FeedConsumer) else 0
        while self._consumed < target and not self._stopping.is_set():
            self.board.raise_if_dead()
            if time.monotonic() > deadline:
                raise self.board.timed_out("did not catch up in time")
            self.board.wait_for_news(0.1)

    @property
    def has_ended(self) -> bool:
        return self._feeding.has_ended and self.board.state is State.READY

    def _run(self) -> None:
        try:
            with _STARTING:
                if self._stopping.is_set():
                    return
                if self.context.sequence.writer(self._writer) is None:
                    self._begin()
                self._query = self._start_streaming()
            self._watch(self._query)
        except Exception as error:  # noqa: BLE001 - whatever it is must show on the board
            if not self._stopping.is_set() and not self.context.closing.is_set():
                failure = query_error(error, f'query "{self.entry.name}" failed')
                self._feeding.stop()
                self.board.become(State.FAILED, failure.message, error=failure)
        finally:
            self._stop_streaming()

    def _stop_streaming(self) -> None:
        if self._query is not None:
            with suppress(*spark_errors(), OSError):  # the JVM may be gone already
                self._query.stop()

    def _begin(self) -> None:
        """Give the table what the query gives over no rows; Spark's state begins with the first one."""
        table = self.context.table(self.entry.id)
        session = self.context.spark.session()
        nothing = session.createDataFrame([], spark_schema(self._feed_schema))
        rows = arrow_result(run_sql(session, self._plan.sql, {FEED: nothing}))
        if rows.num_rows:
            self.context.commit(Part(writes=[(table, Write(Mode.REPLACE, self._shape(rows, table.schema)))]))

    def _start_streaming(self) -> StreamingQuery:
        session = self.context.spark.session()
        rows = (
            session.readStream.schema(spark_schema(self._feed_schema))
            .option("maxFilesPerTrigger", 64)
            .option("cleanSource", "delete")
            .parquet(str(self._feed.path))
        )
        groups = run_sql(session, self._plan.sql, {FEED: rows})
        return (
            groups.writeStream.outputMode("update")
            .option("checkpointLocation", str(self._checkpoint.path))
            .foreachBatch(self._commit)
            .start()
        )

    def _commit(self, frame: DataFrame, batch_id: int) -> None:
        rows = arrow_result(frame)
        files = self._checkpoint.files_consumed(batch_id)
        table = self.context.table(self.entry.id)
        # Without groups there is one row, and the new one takes its place.
        mode = Mode.UPSERT if table.schema.key else Mode.REPLACE
        self.context.crash_point("aggregate.before-commit")
        self.commit_when_possible(
            Part(
                writes=[(table, Write(mode, self._shape(rows, table.schema)))] if rows.num_rows else [],
                epoch=Epoch(self._writer, batch_id),
                position={"files": files},
            ),
            stopping=self._stopping.is_set,
        )
        self.context.crash_point("aggregate.after-commit")
        self._consumed = files
        self.board.count(rows.num_rows)
        self.board.notify()

    def _shape(self, rows: pa.Table, schema: Schema) -> pa.Table:
        return rows.cast(schema.arrow) if rows.schema != schema.arrow else rows

    def _watch(self, query: StreamingQuery) -> None:
        while not self._stopping.is_set() and not self.context.closing.is_set():
            if not query.isActive:
                failure = query.exception()
                if failure is not None and not self._stopping.is_set():
                    raise query_error(failure, f'query "{self.entry.name}" failed')
                return
            consumer = self._feeding.consumer
            if isinstance(consumer, FeedConsumer) and consumer.fed and self._consumed >= consumer.files:
                if self.board.state is not State.READY:
                    self.board.become(State.READY, consumer.ready_because)
                if consumer.has_ended:
                    return
            self.board.wait_for_news(0.2)


class Checkpoint:
    """Spark's checkpoint of one query, and the proof that it belongs to this plan and this incarnation of the table."""

    def __init__(self, path: Path, entry: Entry) -> None:
        self.path = path
        self._entry = entry
        self._files: dict[int, int] = {}

    def verify(self, sql: str, schema: Schema, table_state: object) -> None:
        """Refuse a checkpoint that is another query's, older than the table or lost; sign a new one."""
        signature = {
            "table": self._entry.id,
            "plan": hashlib.sha256(json.dumps([sql, schema.to_json()]).encode()).hexdigest(),
        }
        proof = self.path / "velostream.json"
        epoch = getattr(table_state, "epoch", None)
        last = self.last_batch()
        if not proof.exists():
            if epoch is not None or last is not None:
                raise StateError.checkpoint(
                    self._entry.name, reason=f"{self.path} is lost or was made by something else"
                )
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(proof, json.dumps(signature).encode())
            return
        found = json.loads(proof.read_bytes())
        if found["plan"] != signature["plan"]:
            raise StateError.checkpoint(self._entry.name, reason="it was written by a different SELECT")
        if found["table"] != signature["table"]:
            raise StateError.checkpoint(self._entry.name, reason="it belongs to an earlier table of that name")
        committed = -1 if last is None else last
        if (epoch if epoch is not None else -1) not in (committed, committed + 1):
            raise StateError.checkpoint(
                self._entry.name, reason=f"the table is at batch {epoch}, the checkpoint at {last}"
            )

    def last_batch(self) -> int | None:
        """The last batch Spark has recorded as done."""
        done = [int(path.name) for path in (self.path / "commits").glob("*") if path.name.isdigit()]
        return max(done, default=None)

    def files_consumed(self, batch_id: int) -> int:
        """Number of the last feed file that batches up to this one have read, from Spark's own records."""
        offsets = (self.path / "offsets" / str(batch_id)).read_text().splitlines()
        log_offset = json.loads(offsets[-1])["logOffset"]
        for number in range(log_offset, -1, -1):
            if number in self._files:
                break
            for name in (str(number), f"{number}.compact"):
                path = self.path / "sources" / "0" / name
                if path.exists():
                    entries = [json.loads(line) for line in path.read_text().splitlines()[1:]]
                    self._files[log_offset] = max((int(Path(e["path"]).stem) for e in entries), default=0)
                    return self._files[log_offset]
        return self._files.get(number, 0)
