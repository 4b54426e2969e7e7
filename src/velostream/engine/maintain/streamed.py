"""Aggregates over a stream by partial results: groups, view and position are one record of our log.

Where the partial results of groups are exact (partials.py) there is no need for Spark's state, for a checkpoint, or for
a query of its own per view: the rows of a batch change the groups, and all views on a source are fed by one reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.engine.consumer import Batch, Outcome
from velostream.engine.consumers import TransformingConsumer
from velostream.engine.maintain.groups import GroupTables
from velostream.engine.maintain.steps import StepRunner
from velostream.engine.relations import arrow_result, quoted
from velostream.model.change import signed

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.model.schema import Schema
    from velostream.sql.plan import StreamedPlan


class GroupsConsumer(TransformingConsumer):
    """Into the groups of a view, without Spark where the rows of a batch are plain enough.

    Guarantee: exactly-once. Groups, rows and position are one log record.
    """

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        *,
        plan: StreamedPlan,
        reads: Mapping[str, Schema],
        gives: Schema,
        groups: GroupTables,
        **parts: Any,
    ) -> None:
        """`reads` are the columns of the stream, by its relation; `gives` those of the feed."""
        super().__init__(context, entry, plan=plan.feed, **parts)
        self._groups = groups
        self._driving = plan.feed.driving
        self._step = StepRunner(context, plan.grouped.feed, reads=reads, gives=gives)
        self.needed = None if self._step.needs_spark else self._step.needed

    def run(self, batch: Batch) -> Outcome:
        fed = self._fed(batch)
        writes = list(self._groups.changed(fed))
        return Outcome(self.part(batch, writes=writes), fed.num_rows)

    def probe(self, batch: Batch) -> object:
        return self._fed(batch)

    def _fed(self, batch: Batch) -> pa.Table:
        """What the rows of a batch contribute, signed."""
        if self.needed is None:
            return signed(self.rows_of(batch), 1)
        rows = batch.rows
        if rows is None:
            rows = arrow_result(batch.frame.select(*(quoted(name) for name in self.needed)))
        return self._step.run({self._driving: signed(rows, 1)})
