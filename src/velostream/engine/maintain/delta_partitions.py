"""Views that fall apart by values: those that changed rows hold are computed again, in Spark."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.engine.maintain.base import FoundRows, Maintenance, Movement, as_planned
from velostream.engine.maintain.delta_rows import fingerprint_of, is_too_much, net, rows_with
from velostream.engine.maintain.refresh import Refresh
from velostream.engine.maintain.steps import difference, of_sign
from velostream.model.change import Mode, Write, signed
from velostream.model.schema import Schema
from velostream.tables.base import Table
from velostream.tables.memory.keys import key_values

if TYPE_CHECKING:
    from velostream.engine.binding import BoundQuery
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.sql.plan import PartitionedPlan


def partitioned_delta(
    context: EngineContext, entry: Entry, bound: BoundQuery, plan: PartitionedPlan, *, reads: Mapping[str, Schema]
) -> Maintenance | None:
    """What follows changes by the plan; None when the view holds the values in other types than its inputs."""
    first = plan.readers[0]
    held = [reads[first.input].column(name).type for name in plan.columns[first.relation]]
    if plan.outputs is not None and held != [bound.schema.column(name).type for name in plan.outputs]:
        return None
    refresh = Refresh(context, entry, bound.plan.sql)
    return PartitionedDelta(context, entry, plan, refresh=refresh, reads=reads, gives=bound.schema)


class PartitionedDelta(Maintenance):
    """Computes again what holds one of the values that changed rows hold or held."""

    follows = True

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        plan: PartitionedPlan,
        *,
        refresh: Refresh,
        reads: Mapping[str, Schema],
        gives: Schema,
    ) -> None:
        self._context = context
        self._table = context.memory_table(entry.id)
        self._plan = plan
        self._refresh = refresh
        self._reads = {reader.relation: reads[reader.input] for reader in plan.readers}
        self._gives = gives
        self.fingerprint = fingerprint_of(context, plan)

    def load(self, movement: Movement) -> Sequence[tuple[Table, Write]]:
        return self._refresh.load(movement)

    def advance(self, movement: Movement) -> Sequence[tuple[Table, Write]] | None:
        touched: dict[Hashable, None] = {}
        for reader in self._plan.readers:
            columns = self._plan.columns[reader.relation]
            touched.update(dict.fromkeys(key_values(movement.changes(reader.input), columns)))
        if not touched:
            return []
        values = list(touched)
        snapshots = {reader.relation: movement.now(reader.input) for reader in self._plan.readers}
        now = self._parts(movement, snapshots, values)
        if is_too_much(movement, 2 * sum(rows.num_rows for rows in now.values())):
            return None
        return [(self._table, Write(Mode.CHANGES, changes)) for changes in self._changes(movement, now, values)]

    def _changes(self, movement: Movement, now: Mapping[str, pa.Table], values: Sequence[Hashable]) -> list[pa.Table]:
        """The rows of the values as they are in the view, or were computed, go; those computed now come."""
        if self._plan.outputs is None:
            snapshots = {reader.relation: movement.before(reader.input, self._context) for reader in self._plan.readers}
            before = self._parts(movement, snapshots, values)
            both = difference(self._context, self._plan.sql, self._reads, before=before, now=now, gives=self._gives)
            return [net(of_sign(both, -1), of_sign(both, 1))]
        gone = rows_with(self._table.snapshot(), self._plan.outputs, values)
        came = difference(self._context, self._plan.sql, self._reads, before={}, now=now, gives=self._gives)
        return [signed(gone, -1), came]

    def _parts(
        self, movement: Movement, snapshots: Mapping[str, FoundRows], values: Sequence[Hashable]
    ) -> dict[str, pa.Table]:
        """What each reader holds of the values."""
        return {
            reader.relation: as_planned(
                rows_with(snapshots[reader.relation], self._plan.columns[reader.relation], values),
                movement.inputs[reader.input],
            )
            for reader in self._plan.readers
        }
