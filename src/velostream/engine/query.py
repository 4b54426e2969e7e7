"""How rows move: a running query, and the stateless transformation of one batch.

Every continuous statement is a `Runner`. What kind depends on the plan's strategy: `map` and the feed of an `aggregate`
are consumers of a shared ingest (ingest.py), views over tables belong to the maintenance loop (maintain/views.py),
sources that are tables are folded (maintain/fold.py). All of them commit through the connection's one commit sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from velostream.engine.directory import LOADS
from velostream.engine.lookup import FetchedTable, LookupTable, LookupTally, ReplicatedTable, run_stages
from velostream.engine.matches import can_evaluate
from velostream.engine.narrowed import NarrowedTables
from velostream.engine.relations import Reader, arrow_result, run_sql, schema_of
from velostream.engine.status import StatusBoard
from velostream.engine.straight import StraightWay
from velostream.errors import StoreError
from velostream.model.retry import RetryPolicy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.consumer import Batch
    from velostream.engine.context import EngineContext
    from velostream.engine.measuring import Measurements
    from velostream.sql.plan import Lookup, MapPlan
    from velostream.tables.memory.sequence import Part


LOOKUP = "velostream.lookup"
"""Setting of a connection, to compare with: `staged` has Spark compute what isn't looked up, `general` does without
lookups, `narrowed` with what the general path has in their place."""


class Runner(ABC):
    """One running query. Methods are called by the connection's threads; the work happens on threads of its own."""

    def __init__(self, context: EngineContext, entry: Entry) -> None:
        self.context = context
        self.entry = entry
        self.board: StatusBoard = context.board(entry)

    @property
    def has_ended(self) -> bool:
        """Whether it has taken in what its trigger lets it take in: nothing runs until it is started again."""
        return False

    @abstractmethod
    def start(self) -> None:
        """Begin to run, from the position last committed. Returns at once; loading goes on behind it."""

    @abstractmethod
    def stop(self) -> None:
        """End within seconds, after the batch in hand or without it. Nothing is committed after this returns."""

    def suspend(self) -> None:
        """`stop`, for another one to go on at once where this one ends."""
        self.stop()

    def discard(self) -> None:
        """`stop`, and give back what is kept elsewhere in order to run on some day: it won't."""
        self.stop()

    def raise_if_dead(self) -> None:
        """Raise what ended it, or holds it up until somebody does something about it."""
        self.board.raise_if_dead()

    @abstractmethod
    def drain(self, deadline: float) -> None:
        """Return when everything the inputs held at the moment of the call is committed, or when it was stopped."""

    def commit_when_possible(self, part: Part, *, stopping: Callable[[], bool]) -> None:
        """Commit what could not easily be computed again; while a store that it goes to is away, wait for it.

        The store's error is raised if it is told to stop meanwhile.
        """
        state, attempts, retry = self.board.state, 0, RetryPolicy.while_running()

        def ended() -> bool:
            return stopping() or self.context.closing.is_set()

        while True:
            try:
                self.context.commit(part)
            except StoreError as error:
                if not error.category.retriable or ended():
                    raise
                attempts += 1
                delay = retry.delay(attempts)
                self.board.retrying(error, attempts=attempts, delay=delay)
                self.context.closing.wait(delay.total_seconds())
                if ended():
                    raise
            else:
                if attempts:
                    self.board.become(state)
                return


class BatchTransformation:
    """A `MapPlan` bound to its tables: turns the frame of one batch into the frame of its result."""

    def __init__(
        self, context: EngineContext, plan: MapPlan, tables: Mapping[str, Entry], *, work: Measurements | None = None
    ) -> None:
        """`work` is told how many of the rows looked up are found."""
        self._context = context
        self._work = work
        self._tallies: dict[str, LookupTally] = {}
        self._plan = plan
        self._tables = tables
        self._way = context.config.get(LOOKUP, "fast")
        self._general = self._way in ("narrowed", "general") or not self._can_look_up()
        self._straight: StraightWay | None = None
        self._knows_straight = False

    def _can_look_up(self) -> bool:
        """Whether the workers can evaluate what the lookups ask of rows; now and then only Spark can."""
        lookups = () if self._plan.stages is None else self._plan.stages.lookups
        return all(
            lookup.condition is None
            or can_evaluate(lookup.condition, self._context.table(self._tables[lookup.input].id).schema)
            for lookup in lookups
        )

    def rows(self, batch: Batch) -> pa.Table:
        """The result of the batch, its tables read as of the batch's pin."""
        straight = self._straight_way(batch.frame)
        if straight is None or self._plan.stages is None:
            return arrow_result(self.apply(batch.session, batch.frame, at=batch.at))
        tables = {lookup.prefix: self._replicated(lookup, batch.at) for lookup in self._plan.stages.lookups}
        return straight.rows(
            batch.session,
            batch.through,
            replicas={prefix: table.published for prefix, table in tables.items()},
            tallies=self._counting(batch.session),
            folder=self._context.directory.folder(LOADS),
        )

    def apply(self, session: SparkSession, batch: DataFrame, *, at: int) -> DataFrame:
        """The result of the batch, its tables read as of commit number `at`."""
        plan = self._plan
        if plan.stages is not None and not self._general:
            tables = {lookup.prefix: self._table_of(lookup, at) for lookup in plan.stages.lookups}
            return run_stages(session, batch, plan.stages, tables=tables, tallies=self._counting(session))
        frames = {plan.driving: batch}
        if self._way != "general" and plan.narrowings:
            narrowed = NarrowedTables(self._context, plan.narrowings, self._tables, always=self._way == "narrowed")
            frames = narrowed.frames(session, batch, driving=plan.driving, at=at)
        for relation, entry in self._tables.items():
            if relation not in frames:
                reader = Reader(plan.sql, relation)
                frames[relation] = self._context.frame(session, entry, at=at, reader=reader)
        return run_sql(session, plan.watched or plan.sql, frames)

    def _straight_way(self, batch: DataFrame) -> StraightWay | None:
        """The straight way of such batches; None if something takes Spark, or a table is in a store."""
        stages = self._plan.stages
        if stages is None or self._general or self._way == "staged":
            return None
        if not self._knows_straight:
            self._knows_straight = True
            entries = {lookup.prefix: self._tables[lookup.input].id for lookup in stages.lookups}
            if all(self._context.stores.find(entry_id) is None for entry_id in entries.values()):
                tables = {prefix: self._context.memory_table(entry_id).schema for prefix, entry_id in entries.items()}
                stream = schema_of(batch)
                self._straight = StraightWay.of(stages, stream=stream, tables=tables, types=self._plan.types)
        return self._straight

    def _counting(self, session: SparkSession) -> Mapping[str, LookupTally]:
        if self._work is not None and self._plan.stages is not None and not self._tallies:
            for lookup in self._plan.stages.lookups:
                tally = self._tallies[lookup.prefix] = LookupTally.of(session)
                name = self._tables[lookup.input].name
                alias = "" if lookup.alias.lower() == name.lower() else f" as {lookup.alias}"
                self._work.watch_lookup(f'"{name}"{alias}', tally.hits)
        return self._tallies

    def _table_of(self, lookup: Lookup, at: int) -> LookupTable:
        """What the stage looks up in: all of a table of ours, or what a store has for the keys of the batch."""
        store = self._context.stores.find(self._tables[lookup.input].id)
        if store is None:
            return self._replicated(lookup, at)
        columns = tuple(pair.column for pair in lookup.keys)
        return FetchedTable(store.schema, columns, store.snapshot(), self._context.replicas)

    def _replicated(self, lookup: Lookup, at: int) -> ReplicatedTable:
        table = self._context.memory_table(self._tables[lookup.input].id)
        columns = tuple(pair.column for pair in lookup.keys)
        return ReplicatedTable(table.schema, self._context.replicas.publish(table, columns=columns, at=at))
