"""The groups of a view: partial results in a table beside it, and how rows that come and go change both.

Used by views over tables (delta.py) and by aggregates over streams (streamed.py) alike. What it gives are writes; who
commits them, with which position, is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from velostream.engine.maintain.delta_rows import fingerprint_of
from velostream.engine.maintain.partials import PartialState
from velostream.engine.maintain.steps import StepRunner
from velostream.model.change import CHANGE, Mode, Write, signed
from velostream.model.expression import ColumnRef
from velostream.model.schema import Schema
from velostream.sql.aggregates import GROUPS
from velostream.tables.base import Table
from velostream.tables.memory.growable import Integers, Mask
from velostream.tables.memory.keys import key_values
from velostream.tables.memory.stage import KeyedUpsert

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.maintain.delta_top import Top
    from velostream.engine.maintain.numbering import Numberings
    from velostream.sql.plan import GroupedPlan
    from velostream.tables.memory.snapshot import MemorySnapshot

Writes = Sequence[tuple[Table, Write]]
RowsOfGroups = Callable[[pa.Table], pa.Table]
"""All rows there are now, signed, of groups given by their values (without groups: one row, for all rows)."""


class GroupTables:
    """The table of the groups and that of the view, always committed together and by one writer."""

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        plan: GroupedPlan,
        *,
        groups: Entry,
        state: PartialState,
        gives: Schema,
        top: Top | None = None,
    ) -> None:
        self._table = context.memory_table(entry.id)
        self._groups = context.memory_table(groups.id)
        self._state = state
        self._top = top
        self._row_per_group = top is None and _gives_row_per_group(plan, key=self._table.schema.key)
        self._final = StepRunner(context, plan.final, reads={GROUPS: state.groups}, gives=gives)
        # Spark gives rows in an order of its own; and a key may name the group values in another one.
        self._keys_serve = not self._final.needs_spark and _keys_in_order(plan, key=self._table.schema.key)
        self.fingerprint = fingerprint_of(context, plan, groups.id)

    def loaded(self, rows: pa.Table) -> Writes:
        """The writes that make the groups what all these signed rows make of them, whatever they hold."""
        groups = self._state.of_rows(rows)
        return [(self._groups, Write(Mode.REPLACE, groups)), (self._table, Write(Mode.REPLACE, self._rows(groups)))]

    def changed(
        self, rows: pa.Table, *, reread: RowsOfGroups | None = None, numberings: Numberings | None = None
    ) -> Writes:
        """The writes for signed rows that came and went; `reread` is asked when a smallest or largest value went.

        Where rows only come it is never asked. `numberings` are shared with others who are given the same rows.
        """
        snapshot = self._groups.snapshot()
        # Without GROUP BY there is one group from the beginning, whatever comes.
        if not rows.num_rows and (self._state.keys or len(snapshot)):
            return []
        gathered = self._state.gathered(rows, numberings)
        keys = gathered.key_values
        if keys is None:
            keys = key_values(gathered.groups, self._state.keys) if self._state.keys else []
        places = self._places(snapshot, keys)
        known = places >= 0
        before = snapshot.take(places[known])
        merged = self._state.merged(_aligned(before, known), gathered.groups)
        after = merged.state
        if merged.open is not None and reread is not None:
            after = self._state.with_extremes(after, reread(merged.open))
        if merged.gone is not None:
            changed = [Write(Mode.UPSERT, after), Write(Mode.DELETE, merged.gone)]
        else:
            changed = [Write(Mode.REPLACE, after)]
            if self._state.keys:
                changed = [KeyedUpsert(Mode.UPSERT, after, keys=keys, seen=snapshot, places=places)]
        if merged.gone is not None or not self._row_per_group:
            written = self._write(snapshot, places[known], before, after)
        elif self._keys_serve:
            written = KeyedUpsert(Mode.UPSERT, self._rows(after), keys=keys)
        else:
            written = Write(Mode.UPSERT, self._rows(after))
        return [*((self._groups, write) for write in changed), (self._table, written)]

    def _places(self, snapshot: MemorySnapshot, keys: Sequence[Hashable]) -> Integers:
        """Where the group of each contribution is; -1 for a new one."""
        if self._state.keys:
            return snapshot.positions_of_keys(keys)
        return snapshot.visible_positions if len(snapshot) else np.full(1, -1)

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


def _aligned(rows: pa.Table, known: Mask) -> pa.Table:
    """A row for each place: the rows given where it is known, NULLs elsewhere."""
    if rows.num_rows == len(known):
        return rows
    return rows.take(pa.array(np.cumsum(known) - 1, mask=~known))


def _gives_row_per_group(plan: GroupedPlan, *, key: Sequence[str]) -> bool:
    """Whether every group is one row of the view, found by the group values."""
    final = plan.final
    if final.condition is not None or final.items is None:
        return False
    items = dict(zip(final.names, final.items, strict=True))
    return bool(key) and {items[name] for name in key if name in items} == {ColumnRef(name) for name in plan.keys}


def _keys_in_order(plan: GroupedPlan, *, key: Sequence[str]) -> bool:
    """Whether the view's key columns are the group values in their own order."""
    items = dict(zip(plan.final.names, plan.final.items or (), strict=False))
    return [items.get(name) for name in key] == [ColumnRef(name) for name in plan.keys]
