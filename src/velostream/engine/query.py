"""How rows move: a running query, and the stateless transformation of one batch.

Every continuous statement is a `Runner`. What kind depends on the plan's strategy: `map` and the feed of an `aggregate`
are consumers of a shared ingest (ingest.py), views over tables belong to the maintenance loop (maintain/views.py),
sources that are tables are folded (maintain/fold.py). All of them commit through the connection's one commit sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from velostream.engine.lookup import FetchedTable, LookupTable, LookupTally, ReplicatedTable, run_stages
from velostream.engine.matches import can_evaluate
from velostream.engine.relations import Reader, run_sql
from velostream.engine.status import State, StatusBoard
from velostream.errors import StoreError
from velostream.model.retry import RetryPolicy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.measuring import Measurements
    from velostream.sql.plan import Lookup, MapPlan
    from velostream.tables.memory.sequence import Part


class Runner(ABC):
    """One running query. Methods are called by the connection's threads; the work happens on threads of its own."""

    def __init__(self, context: EngineContext, entry: Entry) -> None:
        self.context = context
        self.entry = entry
        self.board: StatusBoard = context.board(entry)

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

    @abstractmethod
    def drain(self, deadline: float) -> None:
        """Return when everything the inputs held at the moment of the call is committed, or when it was stopped."""

    def pause(self) -> None:
        self.stop()
        self.board.become(State.PAUSED)

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
        self._general = context.config.get("velostream.lookup", "fast") == "general" or not self._can_look_up()

    def _can_look_up(self) -> bool:
        """Whether the workers can evaluate what the lookups ask of rows; now and then only Spark can."""
        lookups = () if self._plan.stages is None else self._plan.stages.lookups
        return all(
            lookup.condition is None
            or can_evaluate(lookup.condition, self._context.table(self._tables[lookup.input].id).schema)
            for lookup in lookups
        )

    def apply(self, session: SparkSession, batch: DataFrame, *, at: int) -> DataFrame:
        """The result of the batch, its tables read as of commit number `at`."""
        plan = self._plan
        if plan.stages is not None and not self._general:
            tables = {lookup.prefix: self._table_of(lookup, at) for lookup in plan.stages.lookups}
            return run_stages(session, batch, plan.stages, tables=tables, tallies=self._counting(session))
        frames = {
            relation: self._context.frame(session, entry, at=at, reader=Reader(plan.sql, relation))
            for relation, entry in self._tables.items()
        }
        return run_sql(session, plan.watched or plan.sql, frames | {plan.driving: batch})

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
        columns = tuple(pair.column for pair in lookup.keys)
        entry_id = self._tables[lookup.input].id
        store = self._context.stores.find(entry_id)
        replicas = self._context.replicas
        if store is None:
            table = self._context.memory_table(entry_id)
            return ReplicatedTable(table.schema, replicas.publish(table, columns=columns, at=at))
        return FetchedTable(store.schema, columns, store.snapshot(), replicas)
