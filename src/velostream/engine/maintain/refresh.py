"""Strategy `refresh`: run the SELECT over snapshots, commit the difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from velostream.engine.maintain.base import Maintenance, Movement
from velostream.engine.relations import arrow_result, run_sql
from velostream.model.change import Mode, Write

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.tables.base import Table


class Refresh(Maintenance):
    """Computes the whole view anew each time, in Spark."""

    def __init__(self, context: EngineContext, entry: Entry, sql: str) -> None:
        self._context = context
        self._entry = entry
        self._sql = sql

    def load(self, movement: Movement) -> Sequence[tuple[Table, Write]]:
        session = self._context.spark.session()
        frames = {
            relation: self._context.frame(session, entry, at=movement.wave.number_of(entry))
            for relation, entry in movement.inputs.items()
        }
        rows = arrow_result(run_sql(session, self._sql, frames))
        return [(self._context.table(self._entry.id), Write(Mode.REPLACE, rows))]
