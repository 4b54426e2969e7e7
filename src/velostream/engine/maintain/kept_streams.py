"""A stream kept as a table by rows that can still meet others: rows that come late are split off, all are numbered.

The table belongs to one view, which takes out of it what has expired (expiring.py), by the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.engine.maintain.expiring import in_microseconds
from velostream.engine.maintain.fold import FoldRunner
from velostream.engine.maintain.fold_writes import FoldWrites
from velostream.model.change import ORIGIN, Mode, Write
from velostream.model.schema import Column, Schema
from velostream.sources.base import BadRecord, Offset, Source
from velostream.sql.plan import LateData

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.tables.base import Table

_MICROSECOND = timedelta(microseconds=1)


def kept_stream_schema(stream: Schema) -> Schema:
    """Columns of the table of a stream's rows: the stream's, and the number by which a row is taken out."""
    return Schema((*stream.columns, Column(ORIGIN, pa.int64())), (ORIGIN,))


@dataclass(frozen=True)
class Lateness:
    """Which rows of a stream are late, and what becomes of them."""

    column: str
    """With the event time."""
    watermark: timedelta
    late: LateData
    shown: str
    """The name of the view, in dead letters."""


@dataclass(frozen=True)
class _Reached:
    """How far a stream has come."""

    newest: int | None = None
    """Its newest time, in microseconds since 1970."""
    numbered: int = 0
    """How many rows have a number."""


class TimelyWrites(FoldWrites):
    """Collects the rows of a range; those count as late that were so before it, by the watermark of the stream."""

    def __init__(self, table: Table, schema: Schema, lateness: Lateness, reached: _Reached) -> None:
        super().__init__(table, schema)
        self._lateness = lateness
        self._watermark = None if reached.newest is None else reached.newest - lateness.watermark // _MICROSECOND
        self.reached = reached
        self.late = schema.arrow.empty_table()
        """The late rows among those that were taken last."""

    def take(self) -> list[Write]:
        batches = [batch for run in self._runs for batch in run.batches]
        for run in self._runs:
            run.batches.clear()
        self.rows = 0
        rows = pa.Table.from_batches(batches, batches[0].schema if batches else self._schema.arrow)
        rows = rows.select(list(self._schema.names))
        times = in_microseconds(rows[self._lateness.column])
        if self._watermark is not None:
            late = pc.fill_null(pc.less(times, self._watermark), fill_value=False)
            self.late, rows = rows.filter(late), rows.filter(pc.invert(late))
        latest = [one for one in (pc.max(times).as_py(), self.reached.newest) if one is not None]
        first = self.reached.numbered
        numbers = pa.array(np.arange(first, first + rows.num_rows, dtype=np.int64))
        self.reached = _Reached(max(latest, default=None), first + rows.num_rows)
        return [Write(Mode.APPEND, rows.append_column(ORIGIN, numbers))] if rows.num_rows else []

    def late_records(self) -> list[BadRecord]:
        """The late rows as dead letters."""
        passed = (datetime.fromtimestamp(0, UTC) + (self._watermark or 0) * _MICROSECOND).replace(tzinfo=None)
        reason, column = f"late: the watermark of its stream had passed {passed}", self._lateness.column
        rows = self.late.to_pylist()
        return [BadRecord(json.dumps(row, default=str).encode(), f"{column} {row[column]}", reason) for row in rows]


class KeptStreamRunner(FoldRunner):
    """Takes in the rows of one stream for one view. Guarantee: exactly-once, rows and position are one log record."""

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        *,
        source: Source,
        schema: Schema,
        lateness: Lateness,
        start: Offset | None = None,
    ) -> None:
        super().__init__(context, entry, source=source, schema=schema, start=start)
        self._lateness = lateness
        known = context.sequence.writer(entry.id)
        self._reached = _Reached() if known is None else _Reached(**known.position["reached"])
        """At the last commit. A load that is not complete has brought nothing that later rows are late against."""
        self._found: TimelyWrites

    def _writes(self) -> TimelyWrites:
        reached = replace(self._reached, newest=None) if self._loading else self._reached
        self._found = TimelyWrites(self.context.table(self.entry.id), self._schema, self._lateness, reached)
        return self._found

    def _beside(self) -> Sequence[tuple[Table, Write]]:
        if self._lateness.late is not LateData.DEAD_LETTER or not self._found.late.num_rows:
            return ()
        letters = self._found.late_records()
        return [self.context.dead_letter_write(self._lateness.shown, self.source.spec.shown, letters)]

    def _remembered(self) -> dict[str, Any]:
        return {"reached": asdict(self._found.reached)}

    def _committed(self) -> None:
        self._reached = self._found.reached
        if self._found.late.num_rows:
            self.board.tally(f'late rows of "{self.entry.name}"', self._found.late.num_rows)
