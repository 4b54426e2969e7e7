"""How rows move: a running query, and the stateless transformation of one batch.

Every continuous statement is a `Runner`. What kind depends on the plan's strategy: `map` and the feed of an `aggregate`
are consumers of a shared ingest (ingest.py), views over tables belong to the maintenance loop (maintain/refresh.py),
sources that are tables are folded (maintain/fold.py). All of them commit through the connection's one commit sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from velostream.engine.lookup import run_stages
from velostream.engine.relations import run_sql
from velostream.engine.status import State, StatusBoard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.sql.plan import MapPlan


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

    @abstractmethod
    def drain(self, deadline: float) -> None:
        """Return when everything the inputs held at the moment of the call is committed."""

    def pause(self) -> None:
        self.stop()
        self.board.become(State.PAUSED)


class BatchTransformation:
    """A `MapPlan` bound to its tables: turns the frame of one batch into the frame of its result."""

    def __init__(self, context: EngineContext, plan: MapPlan, tables: Mapping[str, Entry]) -> None:
        self._context = context
        self._plan = plan
        self._tables = tables
        self._general = context.config.get("velostream.lookup", "fast") == "general"

    def apply(self, session: SparkSession, batch: DataFrame, *, at: int) -> DataFrame:
        """The result of the batch, its tables read as of commit number `at`."""
        plan = self._plan
        if plan.stages is not None and not self._general:
            replicas = {
                lookup.prefix: self._context.replicas.publish(
                    self._context.table(self._tables[lookup.input].id),
                    columns=tuple(pair.column for pair in lookup.keys),
                    at=at,
                )
                for lookup in plan.stages.lookups
            }
            schemas = {
                lookup.prefix: self._context.table(self._tables[lookup.input].id).schema
                for lookup in plan.stages.lookups
            }
            return run_stages(session, batch, plan.stages, replicas=replicas, schemas=schemas)
        frames = {relation: self._context.frame(session, entry, at=at) for relation, entry in self._tables.items()}
        return run_sql(session, plan.sql, frames | {plan.driving: batch})
