"""Strategy `delta`: a view follows the changes of its inputs, so that its cost follows the change, not the table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.engine.maintain.partials import PartialState
from velostream.engine.maintain.steps import StepRunner, is_empty
from velostream.engine.maintain.views import Maintenance, Movement, signed, without_origin
from velostream.errors import present
from velostream.model.change import CHANGE, Mode, Write
from velostream.model.schema import Schema
from velostream.sql.delta import is_unique
from velostream.tables.base import Table
from velostream.tables.memory.keys import key_values
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    from velostream.engine.binding import BoundQuery
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.sql.plan import DeltaPlan, GroupedPlan, Step
    from velostream.tables.memory.snapshot import MemorySnapshot

Writes = Sequence[tuple[Table, Write]]


def delta_of(
    context: EngineContext, entry: Entry, bound: BoundQuery, *, groups: Callable[[Entry, Schema], Entry]
) -> Maintenance | None:
    """What follows changes by the plan of a view; None when the view has to be computed again.

    `groups` gives the hidden entry for what the view keeps beside its rows. A view in a store is computed again: what
    is beside it could not be committed in one step with it.
    """
    plan = bound.plan.delta
    table = context.table(entry.id)
    if plan is None or not isinstance(table, MemoryTable):
        return None
    if bound.schema.key and not is_unique(plan, bound.schema.key):
        return None
    reads = {one.relation: one.schema for one in bound.inputs}
    if plan.grouped is not None:
        feed, bare = present(bound.feed_schema), present(bound.groups_schema)
        state = PartialState(plan.grouped.keys, plan.grouped.partials, feed, bare)
        hidden = groups(entry, state.schema)
        return GroupedDelta(context, entry, plan.grouped, groups=hidden, state=state, reads=reads, gives=bound.schema)
    return LinearDelta(context, entry, present(plan.linear), reads=reads, gives=bound.schema)


class LinearDelta(Maintenance):
    """Every row of the inputs gives its result by itself: the changed rows give the changes."""

    follows = True

    def __init__(
        self, context: EngineContext, entry: Entry, step: Step, *, reads: Mapping[str, Schema], gives: Schema
    ) -> None:
        self._table = context.memory_table(entry.id)
        self._step = StepRunner(context, step, reads=reads, gives=gives)
        self.fingerprint = fingerprint_of(step)

    def load(self, movement: Movement) -> Writes:
        rows = self._step.run({relation: movement.rows(relation, self._step.needed) for relation in movement.inputs})
        return [(self._table, Write(Mode.REPLACE, rows.drop_columns([CHANGE])))]

    def advance(self, movement: Movement) -> Writes | None:
        changes = {relation: movement.changes(relation) for relation in movement.inputs}
        if is_too_much(movement, changes):
            return None
        if is_empty(list(changes.values())):
            return []
        return [(self._table, Write(Mode.CHANGES, self._step.run(changes)))]


class GroupedDelta(Maintenance):
    """Partial results of the groups in a table of their own, committed together with the view."""

    follows = True

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        plan: GroupedPlan,
        *,
        groups: Entry,
        state: PartialState,
        reads: Mapping[str, Schema],
        gives: Schema,
    ) -> None:
        self._table = context.memory_table(entry.id)
        self._groups = context.memory_table(groups.id)
        self._plan = plan
        self._state = state
        self._feed = StepRunner(context, plan.feed, reads=reads, gives=state.feed)
        self._final = StepRunner(context, plan.final, reads={"groups": state.groups}, gives=gives)
        self.fingerprint = fingerprint_of(plan)

    def load(self, movement: Movement) -> Writes:
        fed = self._feed.run({relation: movement.rows(relation, self._feed.needed) for relation in movement.inputs})
        groups = self._state.merged(self._state.empty(), fed).state
        rows = self._final.run({"groups": signed(self._state.results(groups), 1)})
        return [
            (self._groups, Write(Mode.REPLACE, groups)),
            (self._table, Write(Mode.REPLACE, rows.drop_columns([CHANGE]))),
        ]

    def advance(self, movement: Movement) -> Writes | None:
        changes = {relation: movement.changes(relation) for relation in movement.inputs}
        if is_too_much(movement, changes):
            return None
        if is_empty(list(changes.values())):
            return []
        return self._follow(movement, self._feed.run(changes))

    def _follow(self, movement: Movement, fed: pa.Table) -> Writes:
        if not fed.num_rows:
            return []
        snapshot = self._groups.snapshot()
        before = self._before(snapshot, fed)
        merged = self._state.merged(before, fed)
        after = merged.state
        if merged.open.num_rows:
            after = self._state.with_extremes(after, self._rows_of(movement, merged.open))
        state = pa.concat_tables([signed(before, -1), signed(after, 1)])
        results = pa.concat_tables([signed(self._state.results(before), -1), signed(self._state.results(after), 1)])
        rows = self._final.run({"groups": results})
        return [(self._groups, Write(Mode.CHANGES, state)), (self._table, Write(Mode.CHANGES, rows))]

    def _before(self, snapshot: MemorySnapshot, fed: pa.Table) -> pa.Table:
        if not self._state.keys:
            return snapshot.scan()
        return rows_with(snapshot, self._state.keys, self._state.touched(fed))

    def _rows_of(self, movement: Movement, groups: pa.Table) -> pa.Table:
        """All rows of the feed that some groups have now."""
        (relation,) = movement.inputs
        columns = self._plan.found_by or ()
        if not columns:
            return self._feed.run({relation: movement.rows(relation, self._feed.needed)})
        found = rows_with(movement.now(relation), columns, groups.rename_columns(list(columns)))
        return self._feed.run({relation: signed(without_origin(found, movement.inputs[relation]), 1)})


def rows_with(snapshot: MemorySnapshot, columns: Sequence[str], values: pa.Table) -> pa.Table:
    """The rows whose columns have one of the values, NULL being a value like any other; by an index, made if needed.

    `values` has these columns, in the types of the table.
    """
    wanted = tuple(columns)
    distinct = list(dict.fromkeys(key_values(values, wanted)))
    return snapshot.take(snapshot.positions_of(wanted, distinct))


def is_too_much(movement: Movement, changes: Mapping[str, pa.Table]) -> bool:
    """Whether computing the view again costs no more than following the changes."""
    changed = sum(rows.num_rows for rows in changes.values())
    held = sum(len(movement.now(relation)) for relation in movement.inputs)
    return bool(changed > held)


def fingerprint_of(plan: DeltaPlan | GroupedPlan | Step) -> str:
    """What tells whether a plan is the one that made what is stored."""
    return hashlib.sha256(repr(plan).encode()).hexdigest()[:16]
