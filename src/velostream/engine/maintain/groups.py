"""The groups of a view: partial results in a table beside it, and how rows that come and go change both.

Used by views over tables (delta.py) and by aggregates over streams (streamed.py) alike. What it gives are writes; who
commits them, with which position, is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.maintain.delta_top import Top
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
        self.fingerprint = fingerprint_of(context, plan, groups.id)

    def loaded(self, rows: pa.Table) -> Writes:
        """The writes that make the groups what all these signed rows make of them, whatever they hold."""
        groups = self._state.of_rows(rows)
        return [(self._groups, Write(Mode.REPLACE, groups)), (self._table, Write(Mode.REPLACE, self._rows(groups)))]

    def changed(self, rows: pa.Table, *, reread: RowsOfGroups | None = None) -> Writes:
        """The writes for signed rows that came and went; `reread` is asked when a smallest or largest value went.

        Where rows only come it is never asked.
        """
        snapshot = self._groups.snapshot()
        # Without GROUP BY there is one group from the beginning, whatever comes.
        if not rows.num_rows and (self._state.keys or len(snapshot)):
            return []
        gathered = self._state.gathered(rows)
        places = self._places(snapshot, gathered)
        known = places >= 0
        before = snapshot.take(places[known])
        merged = self._state.merged(_aligned(before, known), gathered)
        after = merged.state
        if merged.open.num_rows and reread is not None:
            after = self._state.with_extremes(after, reread(merged.open))
        writes = [(self._groups, Write(Mode.UPSERT if self._state.keys else Mode.REPLACE, after))]
        if merged.gone.num_rows:
            writes.append((self._groups, Write(Mode.DELETE, merged.gone)))
        elif self._row_per_group:
            return [*writes, (self._table, Write(Mode.UPSERT, self._rows(after)))]
        return [*writes, (self._table, self._write(snapshot, places[known], before, after))]

    def _places(self, snapshot: MemorySnapshot, gathered: pa.Table) -> Integers:
        """Where the group of each contribution is; -1 for a new one."""
        if self._state.keys:
            return snapshot.positions_of_keys(key_values(gathered, self._state.keys))
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
