"""ORDER BY … LIMIT over rows or groups that are followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from velostream.engine.maintain.base import Maintenance, Movement
from velostream.engine.maintain.steps import of_sign
from velostream.engine.passthrough import sorted_rows
from velostream.model.change import CHANGE, Mode, Write
from velostream.model.schema import Schema
from velostream.sql.coercion import is_atomic
from velostream.sql.plan import Order, TopPlan
from velostream.tables.base import Table
from velostream.tables.memory.compare import match_rows

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.maintain.delta_rows import RowSource


class Top:
    """The first rows in an order that is total but for values without an order of ours."""

    def __init__(self, plan: TopPlan, schema: Schema) -> None:
        ordered = {order.column.lower() for order in plan.order}
        ties = [c for c in schema.columns if c.name.lower() not in ordered and is_atomic(c.type)]
        self._order = (*plan.order, *(Order(column.name) for column in ties))
        self.limit = plan.limit
        self.offset = plan.offset

    @staticmethod
    def can_order(plan: TopPlan, schema: Schema) -> bool:
        """Whether all that is ordered by has an order of ours."""
        return all(is_atomic(schema.column(order.column).type) for order in plan.order)

    def of(self, rows: pa.Table) -> pa.Table:
        return sorted_rows(rows, self._order).slice(self.offset, self.limit)


class TopRows(Maintenance):
    """The first rows of a source. While none of them goes, what comes is compared with them alone."""

    follows = True

    def __init__(self, context: EngineContext, entry: Entry, source: RowSource, top: Top) -> None:
        self._table = context.memory_table(entry.id)
        self._source = source
        self._top = top
        self.fingerprint = source.fingerprint

    def load(self, movement: Movement) -> Sequence[tuple[Table, Write]]:
        return self._replaced(self._source.all(movement).drop_columns([CHANGE]))

    def advance(self, movement: Movement) -> Sequence[tuple[Table, Write]] | None:
        changes = self._source.changes(movement)
        if changes is None:
            return None
        if self._top.offset:
            # The rows that are passed over are not held.
            return None if changes.num_rows else []
        held = self._table.snapshot().scan().select(list(changes.column_names[:-1]))
        gone = of_sign(changes, -1).cast(held.schema)
        left = match_rows(held, gone).left
        if len(left) and held.num_rows >= self._top.limit:
            # One of the first rows goes, and which one follows is known by all rows only.
            return None
        kept = held.take(pa.array(np.setdiff1d(np.arange(held.num_rows), left)))
        return self._replaced(pa.concat_tables([kept, of_sign(changes, 1).cast(held.schema)]))

    def _replaced(self, rows: pa.Table) -> Sequence[tuple[Table, Write]]:
        return [(self._table, Write(Mode.REPLACE, self._top.of(rows)))]
