"""The consumers of an ingest: where the transformed batch of a stateless statement goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.engine.consumer import Batch, Consumer, Intent, Outcome
from velostream.engine.declared import split_off_nulls
from velostream.engine.ingest import Ingest
from velostream.engine.missing import MissingRowsError, MissingRowsWatch
from velostream.engine.query import BatchTransformation, Runner
from velostream.engine.staging import Gathered, gather
from velostream.engine.status import State
from velostream.engine.together import Projection
from velostream.model.change import Epoch, Mode, Write
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.gate import Gate
    from velostream.errors import VelostreamError
    from velostream.model.spool import Spool
    from velostream.sinks.base import Sink
    from velostream.sources.base import BadRecord, Offset
    from velostream.sql.plan import MapPlan
    from velostream.tables.base import Table


class RepeatingConsumer(Consumer):
    """A consumer that can repeat a batch exactly, where its rows go to more than our log."""

    table_ids: Sequence[str] = ()
    """Tables that a batch reads."""
    watches: Sequence[MissingRowsWatch] = ()
    """What is done about rows of a batch whose lookups find nothing."""

    @property
    def leaves_our_log(self) -> bool:
        """Whether the rows go where our log record isn't, so that a batch begun before a crash must be repeated."""
        return False

    def intend(self, end: Offset, at: int) -> None:
        if self.leaves_our_log and self.intended() is None:
            self.intend_anew(end, at)

    def intend_anew(self, end: Offset, at: int) -> None:
        """Write down what the batch in hand does, whatever was intended before."""
        known = self.context.sequence.writer(self._intent_writer)
        number = self.number + 1
        epoch = Epoch(self._intent_writer, number if known is None else max(number, known.epoch + 1))
        reads = dict.fromkeys(self.table_ids, at)
        position = {"end": end, "at": at, "number": number}
        self.context.sequence.commit(Part(epoch=epoch, position=position, reads=reads))

    def done_with(self) -> Sequence[Part]:
        """The versions that the intended batch reads need not be kept any longer."""
        known = self.context.sequence.writer(self._intent_writer)
        if known is None or not known.reads:
            return ()
        return [Part(epoch=Epoch(self._intent_writer, known.epoch + 1), position=dict(known.position))]

    def trouble(self, error: VelostreamError) -> None:
        if not isinstance(error, MissingRowsError):
            super().trouble(error)
            return
        intent = self.intended()
        if intent is not None:
            self.intend_anew(intent.end, self.context.sequence.sequence)
        self.try_again(error, error.delay, attempts=error.attempts)

    def advance(self, end: Offset) -> None:
        super().advance(end)
        for watch in self.watches:
            for table, number in watch.taken().items():
                self.board.tally(f'rows without a match in "{table}"', number)

    def intended(self) -> Intent | None:
        known = self.context.sequence.writer(self._intent_writer)
        if known is None or known.position.get("number", known.epoch) != self.number + 1:
            return None
        return Intent(known.position["end"], known.position["at"])

    @property
    def _intent_writer(self) -> str:
        return self.writer + ".intent"


class TransformingConsumer(RepeatingConsumer):
    """A consumer whose batch first goes through a `MapPlan`."""

    gives_what_its_plan_gives = True
    """Whether the rows of the plan go out as they are, so that workers may write them."""

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        gate: Gate,
        *,
        start: Offset,
        plan: MapPlan,
        tables: Mapping[str, Entry],
        names: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(context, entry, gate, start=start)
        self._transformation = BatchTransformation(context, plan, tables, work=self.board.work)
        self.table_ids = [table.id for table in tables.values()]
        self._names = names
        self.projection = None if tables else Projection.of(plan)
        self._missing = MissingRowsWatch(plan.missing)
        self._watches_missing = bool(plan.missing)
        self.watches = [self._missing]

    def rows_of(self, batch: Batch) -> pa.Table:
        rows = batch.results.get(self.writer)
        if rows is None:
            rows = self._transformation.rows(batch)
        rows = self._missing.settled(rows)
        return rows if self._names is None else rows.rename_columns(list(self._names))

    def probe(self, batch: Batch) -> object:
        return self.rows_of(batch)

    def part(self, batch: Batch, *, writes: Sequence[tuple[Table, Write]], **position: object) -> Part:
        return Part(
            writes=writes,
            epoch=Epoch(self.writer, self.number + 1),
            position={"offset": batch.end, "tables_at": batch.at, **position},
        )


class TableConsumer(TransformingConsumer):
    """Into a table: by key where it has one (the later row wins), else one more row each.

    Guarantee: exactly-once. Rows and position are one log record; of a table in a store, rows and epoch are one commit
    there, and the batch is written down beforehand.
    """

    target: Entry

    @property
    def leaves_our_log(self) -> bool:
        return self.context.stores.find(self.target.id) is not None

    def run(self, batch: Batch) -> Outcome:
        table = self.context.table(self.target.id)
        gathered = self._gathered(batch, table)
        writes: list[tuple[Table, Write]] = []
        if gathered.count:
            writes.append((table, gathered.write(Mode.UPSERT if table.schema.key else Mode.APPEND)))
        if gathered.refused:
            letters = list(gathered.refused)
            writes.append(self.context.dead_letter_write(self.entry.name, self.target.name, letters))
        return Outcome(self.part(batch, writes=writes), gathered.count)

    def _gathered(self, batch: Batch, table: Table) -> Gathered:
        """Many rows need not come here, unless something has to be known of them: their keys, or what they miss."""
        schema, names = table.schema, self._names
        as_they_are = self.gives_what_its_plan_gives and not self._watches_missing
        if schema.key or not as_they_are or self.writer in batch.results or table.stager() is None:
            return Gathered.here(split_off_nulls(self.rows_of(batch), schema))

        def prepare(rows: pa.Table) -> tuple[pa.Table, Sequence[BadRecord]]:
            return split_off_nulls(rows if names is None else rows.rename_columns(list(names)), schema)

        return gather(self._transformation.apply(batch.session, batch.frame, at=batch.at), table, prepare)


class SpoolConsumer(TransformingConsumer):
    """Into the spool of a derived stream, which nobody else writes to and others read.

    Guarantee: exactly-once, a file is published only after the record that counts it is durable.
    """

    spool: Spool
    on_publish: Callable[[], None]

    def recover(self) -> None:
        """Finish or undo what a crash left between the log record and the publishing."""
        known = self.context.sequence.writer(self.writer)
        self.spool.recover(0 if known is None else known.position["files"])

    def run(self, batch: Batch) -> Outcome:
        rows = self.rows_of(batch)
        if not rows.num_rows:
            return Outcome(self.part(batch, writes=[], files=self.spool.count()), 0)
        prepared = self.spool.prepare(rows)

        def publish() -> None:
            self.spool.publish(prepared)
            self.on_publish()

        return Outcome(self.part(batch, writes=[], files=prepared.number), rows.num_rows, publish)


class SinkConsumer(TransformingConsumer):
    """Out of the tables, through a sink.

    The end and the pin of a batch are written down before it runs, so a batch repeated after a crash gives the sink the
    same rows under the same epoch. Guarantee: the sink's own; exactly-once where it is idempotent.
    """

    sink: Sink
    on_written: Callable[[], None]
    """Others may be following what was written, such as a memory feed."""

    @property
    def leaves_our_log(self) -> bool:
        return True

    def run(self, batch: Batch) -> Outcome:
        rows = self.rows_of(batch)
        part = self.part(batch, writes=[])
        if rows.num_rows and part.epoch is not None:
            self.sink.write(rows, part.epoch)
            self.context.crash_point("sink.after-write")
        return Outcome(part, rows.num_rows, self.on_written)

    def close(self) -> None:
        self.sink.close()


class IngestRunner(Runner):
    """A stateless statement: a consumer of the ingest of its driving stream."""

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        *,
        ingest: Callable[[], Ingest],
        consumer: Callable[[], Consumer],
        release: Callable[[Ingest, Consumer], None],
    ) -> None:
        super().__init__(context, entry)
        self._find_ingest = ingest
        self._make_consumer = consumer
        self._release = release
        self._ingest: Ingest | None = None
        self._consumer: Consumer | None = None
        self._stopped = False

    def start(self) -> None:
        self.board.become(State.LOADING)
        consumer = self._make_consumer()
        ingest = self._find_ingest()
        while not ingest.attach(consumer):
            ingest = self._find_ingest()
        self._ingest, self._consumer = ingest, consumer

    def stop(self) -> None:
        self._stopped = True
        if self._ingest is not None and self._consumer is not None:
            self._release(self._ingest, self._consumer)
            self._consumer.close()
        self._ingest = self._consumer = None

    @property
    def consumer(self) -> Consumer | None:
        return self._consumer

    @property
    def has_ended(self) -> bool:
        return self._consumer is not None and self._consumer.has_ended

    def drain(self, deadline: float) -> None:
        while (ingest := self._ingest) is None or (consumer := self._consumer) is None:
            if self._stopped:
                return
            self.board.raise_if_dead()
            if time.monotonic() > deadline:
                raise self.board.timed_out("did not start in time")
            self.board.wait_for_news(0.1)
        ingest.drain(consumer, deadline)
