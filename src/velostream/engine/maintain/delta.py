"""Strategy `delta`: a view follows the changes of its inputs, so that its cost follows the change, not the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.engine.binding import MAINTAIN
from velostream.engine.maintain.base import Maintenance, Movement
from velostream.engine.maintain.delta_partitions import partitioned_delta
from velostream.engine.maintain.delta_rows import DrivenRows, LinearRows, RowSource
from velostream.engine.maintain.delta_top import Top, TopRows
from velostream.engine.maintain.expiring import Expiring
from velostream.engine.maintain.groups import GroupTables, Writes
from velostream.engine.maintain.partials import PartialState
from velostream.errors import present
from velostream.model.change import CHANGE, Mode, Write
from velostream.model.schema import Schema
from velostream.sql.delta import is_unique
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    from velostream.engine.binding import BoundQuery
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.sql.plan import DeltaPlan, GroupedPlan, Step


def delta_of(
    context: EngineContext, entry: Entry, bound: BoundQuery, *, groups: Callable[[Entry, Schema], Entry]
) -> Maintenance | None:
    """What follows changes by the plan of a view; None when the view has to be computed again.

    `groups` gives the hidden entry for what the view keeps beside its rows. A view in a store is computed again: what
    is beside it could not be committed in one step with it.
    """
    plan = bound.plan.delta
    if plan is None or not may_follow(context, bound, ours=isinstance(context.table(entry.id), MemoryTable)):
        return None
    found = _follower(context, entry, bound, plan, groups=groups)
    return found if found is None or plan.expiry is None else Expiring(context, entry, found, plan.expiry)


def may_follow(context: EngineContext, bound: BoundQuery, *, ours: bool) -> bool:
    """Whether changes can be followed by the plan of a view, whose table is in our log or not."""
    plan = bound.plan.delta
    if plan is None or not ours or context.config.get(MAINTAIN) == "refresh":
        return False
    return not bound.schema.key or is_unique(plan, bound.schema.key)


def _follower(
    context: EngineContext,
    entry: Entry,
    bound: BoundQuery,
    plan: DeltaPlan,
    *,
    groups: Callable[[Entry, Schema], Entry],
) -> Maintenance | None:
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
    kept = groups(entry, state.schema)
    return GroupedDelta(
        plan.grouped,
        source=_source(context, plan, plan.grouped.feed, reads=reads, gives=feed),
        groups=GroupTables(context, entry, plan.grouped, groups=kept, state=state, gives=bound.schema, top=top),
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
    """Partial results of the groups are changed by the changes of a source of rows."""

    follows = True

    def __init__(self, plan: GroupedPlan, *, source: RowSource, groups: GroupTables) -> None:
        self._found_by = plan.found_by or ()
        self._source = source
        self._groups = groups
        self.fingerprint = f"{source.fingerprint}-{groups.fingerprint}"

    def load(self, movement: Movement) -> Writes:
        return self._groups.loaded(self._source.all(movement))

    def advance(self, movement: Movement) -> Writes | None:
        fed = self._source.changes(movement)
        if fed is None:
            return None

        def reread(groups: pa.Table) -> pa.Table:
            named = groups.rename_columns(list(self._found_by or groups.column_names))
            return self._source.having(movement, self._found_by, named)

        return self._groups.changed(fed, reread=reread, numberings=movement.wave.numberings)
