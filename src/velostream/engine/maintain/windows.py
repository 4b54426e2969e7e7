"""GROUP BY over time windows of a stream: the rows of windows that are not over, and the groups they make.

The rows a window needs are kept in a hidden table until the watermark has passed its end; its groups are computed from
them by the same SQL a batch would run. So every aggregate serves, and what is kept is bounded by the watermark. Kept
rows, groups, watermark and position are one record of our log: a batch repeated after a crash finds what the first
attempt found.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.engine.consumers import TransformingConsumer
from velostream.engine.ingest import Batch, Outcome
from velostream.engine.relations import arrow_result, run_sql
from velostream.model.change import Mode, Write
from velostream.model.schema import Column, Schema
from velostream.sources.base import BadRecord
from velostream.sql.plan import LateData
from velostream.sql.statements import Emit
from velostream.tables.memory.keys import key_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.sql.plan import WindowState
    from velostream.tables.base import Table

FEED = "feed"
ROW = "_row"
_NEW = "_new"
_MICROSECOND = timedelta(microseconds=1)
_NEVER = -(2**63)
"""A watermark before all times: no row has come yet."""


def kept_rows_schema(feed: Schema) -> Schema:
    """Columns of the table that keeps the rows of open windows: the feed's, and a number by which each is removed."""
    return Schema((Column(ROW, pa.int64()), *feed.columns), (ROW,))


@dataclass(frozen=True)
class _Groups:
    """What the windows of some rows come to."""

    rows: pa.Table
    """As the holder's table has them."""
    ends: np.ndarray[Any, np.dtype[np.int64]]
    touched: np.ndarray[Any, np.dtype[np.bool_]]
    members: pa.Array | None
    """Numbers of the rows of each session."""

    def where(self, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> _Groups:
        kept = pa.array(mask)
        members = None if self.members is None else self.members.filter(kept)
        return _Groups(self.rows.filter(kept), self.ends[mask], self.touched[mask], members)

    @property
    def row_numbers(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Numbers of all rows of sessions."""
        if self.members is None:
            return np.empty(0, np.int64)
        return np.asarray(pc.list_flatten(self.members))


class WindowConsumer(TransformingConsumer):
    """Into the groups of windows.

    Guarantee: exactly-once. A row is late when its window was over by the watermark of the batches before its own.
    """

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        *,
        window: WindowState,
        kept: Entry,
        feed: Schema,
        shown: str,
        source: str,
        **parts: Any,
    ) -> None:
        """`entry` holds the groups, `kept` the rows of open windows; `shown` and `source` are for dead letters."""
        super().__init__(context, entry, **parts)
        self._window = window
        self._kept = context.memory_table(kept.id)
        self._feed = feed
        self._shown = shown
        self._source = source
        known = context.sequence.writer(self.writer)
        self._watermark: int = _NEVER if known is None else known.position["watermark"]
        self._numbered: int = 0 if known is None else known.position["numbered"]

    @property
    def leaves_our_log(self) -> bool:
        return self.context.stores.find(self.entry.id) is not None

    def run(self, batch: Batch) -> Outcome:
        fed = self.rows_of(batch)
        rows = self._on_feed(fed.filter(pc.is_valid(fed[self._window.time])))
        late = self._late(rows)
        new = rows.filter(pc.invert(late))
        watermark = self._after(rows)
        step = _Step(self, batch.session, new, self._watermark, watermark)
        writes = step.writes() + self._late_writes(rows.filter(late))
        numbered = self._numbered + rows.num_rows

        def publish() -> None:
            self._watermark, self._numbered = watermark, numbered
            self.board.tally("late rows", pc.sum(late).as_py() or 0)

        part = self.part(batch, writes=writes, watermark=watermark, numbered=numbered)
        return Outcome(part, new.num_rows, publish)

    def groups_of(self, session: SparkSession, kept: pa.Table, new: pa.Table) -> _Groups:
        """The windows that these rows fall into, computed as a batch."""
        flag = pa.array([False] * kept.num_rows + [True] * new.num_rows, pa.bool_())
        rows = pa.concat_tables([kept, new]).append_column(_NEW, flag)
        schema = Schema((*self._kept.schema.columns, Column(_NEW, pa.bool_())))
        frame = self.context.relations.frame_of_rows(session, rows, schema)
        found = arrow_result(run_sql(session, self._window.tracked, {FEED: frame}))
        target = self.table.schema
        width = len(target.columns)
        return _Groups(
            found.select(range(width)).rename_columns(list(target.names)).cast(target.arrow),
            _microseconds(found.column(width)),
            np.asarray(found.column(width + 1)),
            found.column(width + 2).combine_chunks() if self.is_session else None,
        )

    @property
    def table(self) -> Table:
        return self.context.table(self.entry.id)

    @property
    def is_session(self) -> bool:
        return self._window.gap is not None

    @property
    def window(self) -> WindowState:
        return self._window

    @property
    def kept(self) -> Table:
        return self._kept

    def ends_of(self, rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
        """When the window of each row is over, at the earliest: a session may be prolonged."""
        if self._window.gap is not None:
            return _microseconds(rows[self._window.time]) + self._window.gap // _MICROSECOND
        return _microseconds(rows[self._window.end or ""])

    def _on_feed(self, rows: pa.Table) -> pa.Table:
        """The rows of a feed, numbered on."""
        numbers = pa.array(np.arange(self._numbered, self._numbered + rows.num_rows, dtype=np.int64))
        return pa.table([numbers, *rows.columns], schema=self._kept.schema.arrow)

    def _late(self, rows: pa.Table) -> pa.Array:
        if self._window.late is LateData.UPDATE:
            return pa.array(np.zeros(rows.num_rows, np.bool_))
        return pa.array(self.ends_of(rows) <= self._watermark)

    def _after(self, rows: pa.Table) -> int:
        """The watermark after these rows."""
        if not rows.num_rows:
            return self._watermark
        newest = int(_microseconds(rows[self._window.time]).max())
        return max(self._watermark, newest - self._window.watermark // _MICROSECOND)

    def _late_writes(self, late: pa.Table) -> list[tuple[Table, Write]]:
        if not late.num_rows or self._window.late is not LateData.DEAD_LETTER:
            return []
        named = late.drop_columns([ROW]).rename_columns(list(self._window.reads))
        passed = (datetime.fromtimestamp(0, UTC) + self._watermark * _MICROSECOND).replace(tzinfo=None)
        records = [
            BadRecord(
                json.dumps(row, default=str).encode(),
                f"row {number}",
                f"late: its window was over, the watermark had passed {passed}",
            )
            for number, row in zip(late[ROW].to_pylist(), named.to_pylist(), strict=True)
        ]
        return [self.context.dead_letter_write(self._shown, self._source, records)]


class _Step:
    """What one batch makes of the kept rows and of the groups."""

    def __init__(
        self, consumer: WindowConsumer, session: SparkSession, new: pa.Table, before: int, watermark: int
    ) -> None:
        self._consumer = consumer
        self._session = session
        self._new = new
        self._before = before
        self._watermark = watermark
        self._is_final = consumer.window.emit is Emit.FINAL
        self._forgets = consumer.window.late is not LateData.UPDATE
        """Whether the rows of windows that are over can go."""

    def writes(self) -> list[tuple[Table, Write]]:
        if not self._new.num_rows:
            return []
        return self._session_writes() if self._consumer.is_session else self._fixed_writes()

    def _fixed_writes(self) -> list[tuple[Table, Write]]:
        """Windows of fixed length: more rows never take a group away."""
        new_ends = self._consumer.ends_of(self._new)
        touched = np.unique(new_ends)
        kept = self._consumer.kept.snapshot().scan(columns=[ROW, self._consumer.window.end or ""])
        kept_ends = self._consumer.ends_of(kept)
        over = kept_ends <= self._watermark
        old = self._rows_numbered(np.asarray(kept[ROW])[self._concerned(kept_ends, touched)])
        given = self._new.filter(pa.array(self._concerned(new_ends, touched)))
        writes: list[tuple[Table, Write]] = []
        if old.num_rows or given.num_rows:
            groups = self._consumer.groups_of(self._session, old, given)
            writes += self._upserts(groups.where(self._emitted(groups)))
        gone = np.asarray(kept[ROW])[over] if self._forgets else np.empty(0, np.int64)
        stays = (new_ends > self._watermark) if self._forgets else np.ones(len(new_ends), np.bool_)
        return writes + self._kept_writes(gone, self._new.filter(pa.array(stays)))

    def _session_writes(self) -> list[tuple[Table, Write]]:
        """Sessions: a row may join two into one, so what was shown of them may have to go."""
        old = self._consumer.kept.snapshot().scan()
        shows_early = not self._is_final or not self._forgets
        earliest = min((ends.min() for ends in map(self._consumer.ends_of, (old, self._new)) if len(ends)), default=0)
        if not shows_early and earliest > self._watermark:
            return self._kept_writes(np.empty(0, np.int64), self._new)
        after = self._consumer.groups_of(self._session, old, self._new)
        writes = self._upserts(after.where(self._emitted(after)))
        if shows_early and old.num_rows:
            before = self._consumer.groups_of(self._session, old, self._new.slice(0, 0))
            shown = before.where(self._visible(before.ends, self._before)).rows
            writes = self._removals(shown, after.where(self._visible(after.ends, self._watermark)).rows) + writes
        closed = after.where(after.ends <= self._watermark).row_numbers if self._forgets else np.empty(0, np.int64)
        gone = np.intersect1d(closed, np.asarray(old[ROW]))
        stays = pc.invert(pc.is_in(self._new[ROW], pa.array(closed)))
        return writes + self._kept_writes(gone, self._new.filter(stays))

    def _concerned(
        self, ends: np.ndarray[Any, np.dtype[np.int64]], touched: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Rows of the windows that are to be shown now."""
        if not self._is_final:
            return np.isin(ends, touched)
        return (ends <= self._watermark) & ((ends > self._before) | np.isin(ends, touched))

    def _visible(
        self, ends: np.ndarray[Any, np.dtype[np.int64]], watermark: int
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return ends <= watermark if self._is_final else np.ones(len(ends), np.bool_)

    def _emitted(self, groups: _Groups) -> np.ndarray[Any, np.dtype[np.bool_]]:
        fresh = groups.ends > self._before if self._is_final else np.zeros(len(groups.ends), np.bool_)
        return self._visible(groups.ends, self._watermark) & (groups.touched | fresh)

    def _rows_numbered(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Table:
        kept = self._consumer.kept
        return kept.snapshot().lookup(pa.array(numbers)).select(list(kept.schema.names))

    def _upserts(self, groups: _Groups) -> list[tuple[Table, Write]]:
        table = self._consumer.table
        if not groups.rows.num_rows:
            return []
        return [(table, Write(Mode.UPSERT if table.schema.key else Mode.APPEND, groups.rows))]

    def _removals(self, shown: pa.Table, still: pa.Table) -> list[tuple[Table, Write]]:
        """The keys that were shown and are no more."""
        table = self._consumer.table
        key = list(table.schema.key)
        kept = set(key_values(still, key))
        gone = pa.array([value not in kept for value in key_values(shown, key)], pa.bool_())
        rows = shown.select(key).filter(gone)
        return [(table, Write(Mode.DELETE, rows))] if rows.num_rows else []

    def _kept_writes(
        self, gone: Sequence[int] | np.ndarray[Any, np.dtype[np.int64]], more: pa.Table
    ) -> list[tuple[Table, Write]]:
        writes: list[tuple[Table, Write]] = []
        if len(gone):
            writes.append((self._consumer.kept, Write(Mode.DELETE, pa.table({ROW: pa.array(gone, pa.int64())}))))
        if more.num_rows:
            writes.append((self._consumer.kept, Write(Mode.APPEND, more)))
        return writes


def _microseconds(times: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Times as microseconds since 1970; dates are their midnights."""
    zone = times.type.tz if pa.types.is_timestamp(times.type) else None
    return np.asarray(times.cast(pa.timestamp("us", zone)).cast(pa.int64()))
