"""Strategy `delta`: a view follows the changes of its inputs, so that its cost follows the change, not the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from velostream.engine.maintain.delta_partitions import partitioned_delta
from velostream.engine.maintain.delta_rows import DrivenRows, LinearRows, RowSource, fingerprint_of, positions_with
from velostream.engine.maintain.delta_top import Top, TopRows
from velostream.engine.maintain.partials import PartialState
from velostream.engine.maintain.steps import StepRunner
from velostream.engine.maintain.views import Maintenance, Movement, signed
from velostream.errors import present
from velostream.model.change import CHANGE, Mode, Write
from velostream.model.schema import Schema
from velostream.sql.aggregates import GROUPS
from velostream.sql.delta import is_unique
from velostream.tables.base import Table
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import key_values
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    from velostream.engine.binding import BoundQuery
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.sql.plan import DeltaPlan, GroupedPlan, Step
    from velostream.tables.memory.snapshot import MemorySnapshot

Writes = Sequence[tuple[Table, Write]]
SETTING = "velostream.maintain"
"""Setting of a connection; `refresh` computes all views over tables again, to compare with."""


def delta_of(
    context: EngineContext, entry: Entry, bound: BoundQuery, *, groups: Callable[[Entry, Schema], Entry]
) -> Maintenance | None:
    """What follows changes by the plan of a view; None when the view has to be computed again.

    `groups` gives the hidden entry for what the view keeps beside its rows. A view in a store is computed again: what
    is beside it could not be committed in one step with it.
    """
    plan = bound.plan.delta
    table = context.table(entry.id)
    if plan is None or not isinstance(table, MemoryTable) or context.config.get(SETTING) == "refresh":
        return None
    if bound.schema.key and not is_unique(plan, bound.schema.key):
        return None
    reads = {one.relation: one.schema for one in bound.inputs}
    if plan.partitioned is not None:
        return partitioned_delta(context, entry, bound, plan.partitioned, reads=reads)
    if plan.top is not None and not Top.can_order(plan.top, bound.schema):
        return None
    top = None if plan.top is None else Top(plan.top, bound.schema)
    if plan.grouped is None:
        source = _source(context, plan, plan.linear, reads=reads, gives=bound.schema)
        return RowsDelta(context, entry, source) if top is None else TopRows(context, entry, source, top)
    feed, bare = present(bound.feed_schema), present(bound.groups_schema)
    state = PartialState(plan.grouped.keys, plan.grouped.partials, feed, bare)
    return GroupedDelta(
        context,
        entry,
        plan.grouped,
        source=_source(context, plan, plan.grouped.feed, reads=reads, gives=feed),
        groups=groups(entry, state.schema),
        state=state,
        gives=bound.schema,
        top=top,
    )


def _source(
    context: EngineContext, plan: DeltaPlan, step: Step | None, *, reads: Mapping[str, Schema], gives: Schema
) -> RowSource:
    if plan.driven is not None:
        return DrivenRows(context, plan.driven, reads=reads, gives=gives)
    return LinearRows(context, present(step), reads=reads, gives=gives)


class RowsDelta(Maintenance):
    """The changes of a source of rows are the changes of the view."""

    follows = True

    def __init__(self, context: EngineContext, entry: Entry, source: RowSource) -> None:
        self._table = context.memory_table(entry.id)
        self._source = source
        self.fingerprint = source.fingerprint

    def load(self, movement: Movement) -> Writes:
        return [(self._table, Write(Mode.REPLACE, self._source.all(movement).drop_columns([CHANGE])))]

    def advance(self, movement: Movement) -> Writes | None:
        changes = self._source.changes(movement)
        return None if changes is None else [(self._table, Write(Mode.CHANGES, changes))]


class GroupedDelta(Maintenance):
    """Partial results of the groups in a table of their own, committed together with the view."""

    follows = True

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        plan: GroupedPlan,
        *,
        source: RowSource,
        groups: Entry,
        state: PartialState,
        gives: Schema,
        top: Top | None,
    ) -> None:
        self._table = context.memory_table(entry.id)
        self._top = top
        self._groups = context.memory_table(groups.id)
        self._plan = plan
        self._source = source
        self._state = state
        self._final = StepRunner(context, plan.final, reads={GROUPS: state.groups}, gives=gives)
        self.fingerprint = fingerprint_of(plan, source.fingerprint, groups.id)

    def load(self, movement: Movement) -> Writes:
        groups = self._state.merged(self._state.empty(), self._state.gathered(self._source.all(movement))).state
        return [(self._groups, Write(Mode.REPLACE, groups)), (self._table, Write(Mode.REPLACE, self._rows(groups)))]

    def advance(self, movement: Movement) -> Writes | None:
        fed = self._source.changes(movement)
        if fed is None:
            return None
        if not fed.num_rows:
            return []
        gathered = self._state.gathered(fed)
        snapshot = self._groups.snapshot()
        places = self._places(snapshot, gathered)
        before = snapshot.take(places)
        merged = self._state.merged(before, gathered)
        after = merged.state
        if merged.open.num_rows:
            groups = merged.open.rename_columns(list(self._plan.found_by or merged.open.column_names))
            after = self._state.with_extremes(after, self._source.having(movement, self._plan.found_by or (), groups))
        state = pa.concat_tables([signed(before, -1), signed(after, 1)])
        return [(self._groups, Write(Mode.CHANGES, state)), (self._table, self._write(snapshot, places, before, after))]

    def _places(self, snapshot: MemorySnapshot, gathered: pa.Table) -> Integers:
        """Where the groups of contributions are."""
        keys = self._state.keys
        return positions_with(snapshot, keys, key_values(gathered, keys)) if keys else snapshot.visible_positions

    def _write(self, snapshot: MemorySnapshot, places: Integers, before: pa.Table, after: pa.Table) -> Write:
        """What becomes of the view when groups change; the first groups in an order are chosen among all."""
        if self._top is not None:
            others = snapshot.take(np.setdiff1d(snapshot.visible_positions, places))
            return Write(Mode.REPLACE, self._rows(pa.concat_tables([others, after])))
        results = pa.concat_tables([signed(self._state.results(before), -1), signed(self._state.results(after), 1)])
        return Write(Mode.CHANGES, self._final.run({GROUPS: results}))

    def _rows(self, groups: pa.Table) -> pa.Table:
        """The rows of the view that all its groups make."""
        rows = self._final.run({GROUPS: signed(self._state.results(groups), 1)}).drop_columns([CHANGE])
        return rows if self._top is None else self._top.of(rows)
