"""GROUP BY over time windows of a stream: the rows of windows that are not over, and the groups they make.

The rows a window needs are kept in a hidden table until the watermark has passed its end; its groups are computed from
them by the same SQL a batch would run. So every aggregate serves, and what is kept is bounded by the watermark. Kept
rows, groups, watermark and position are one record of our log: a batch repeated after a crash finds what the first
attempt found.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from velostream.engine.consumers import SinkConsumer, SpoolConsumer, TableConsumer, TransformingConsumer
from velostream.engine.relations import arrow_result, run_sql
from velostream.model.change import Mode, Write
from velostream.model.schema import Column, Schema
from velostream.sources.base import BadRecord
from velostream.sql.aggregates import FEED, GROUPS
from velostream.sql.plan import LateData
from velostream.sql.statements import Emit
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import key_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.consumer import Batch
    from velostream.engine.context import EngineContext
    from velostream.sources.base import Offset
    from velostream.sql.plan import WindowState
    from velostream.tables.base import Table
    from velostream.tables.memory.sequence import Part

Booleans = npt.NDArray[np.bool_]

ROW = "_row"
_NEW = "_new"
_MICROSECOND = timedelta(microseconds=1)
_NEVER = -(2**63)
"""A watermark before all times: no row has come yet."""
_NO_ROWS: Integers = np.empty(0, np.int64)


def kept_rows_schema(feed: Schema) -> Schema:
    """Columns of the table that keeps the rows of open windows: the feed's, and a number by which each is removed."""
    return Schema((Column(ROW, pa.int64()), *feed.columns), (ROW,))


@dataclass(frozen=True)
class Windowing:
    """A windowed GROUP BY bound to where its rows are kept."""

    state: WindowState
    kept: Entry
    """The table of the rows of open windows."""
    groups: Schema
    """Columns and key of the bare aggregate."""
    shown: str
    """The name of the query, and below that of its source, in dead letters."""
    source: str
    final: str | None = None
    """SQL over `groups` that each group goes through by itself on its way out; None: it goes as it is."""


@dataclass(frozen=True)
class _Groups:
    """What the windows of some rows come to."""

    rows: pa.Table
    ends: Integers
    touched: Booleans
    members: pa.Array | None
    """Numbers of the rows of each session."""

    def where(self, mask: Booleans) -> _Groups:
        kept = pa.array(mask)
        members = None if self.members is None else self.members.filter(kept)
        return _Groups(self.rows.filter(kept), self.ends[mask], self.touched[mask], members)

    @property
    def row_numbers(self) -> Integers:
        """Numbers of all rows of sessions."""
        return _NO_ROWS if self.members is None else np.asarray(pc.list_flatten(self.members))


@dataclass(frozen=True)
class _Moved:
    """What a batch makes of the windows."""

    given: pa.Table
    """Groups to show."""
    withdrawn: pa.Table
    """Keys of groups that were shown and are no more."""
    over: Integers
    """Numbers of kept rows that are not needed any more."""
    kept: pa.Table
    """Rows to keep."""


class WindowedConsumer(TransformingConsumer):
    """A consumer whose rows are the groups of windows; what they go to is what else it is.

    A row is late when its window was over by the watermark of the batches before its own.
    """

    gives_what_its_plan_gives = False

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        *,
        windowing: Windowing,
        names: tuple[str, ...] | None = None,
        **parts: Any,
    ) -> None:
        super().__init__(context, entry, **parts)
        self._windowing = windowing
        self._state = windowing.state
        self._kept = context.memory_table(windowing.kept.id)
        self._result_names = names
        known = context.sequence.writer(self.writer)
        self._watermark: int = _NEVER if known is None else known.position["watermark"]
        self._numbered: int = 0 if known is None else known.position["numbered"]
        self._next: tuple[int, int, int] = (self._watermark, self._numbered, 0)
        """Watermark, last number and late rows once the batch in hand is committed."""
        self._writes: Sequence[tuple[Table, Write]] = ()
        """What the batch in hand changes beside what it gives."""

    def rows_of(self, batch: Batch) -> pa.Table:
        fed = super().rows_of(batch)
        rows = self._numbered_on(fed.filter(pc.is_valid(fed[self._state.time])))
        late = self._late(rows)
        new = rows.filter(pa.array(~late))
        watermark = self._after(rows)
        moved = _Movement(self, batch.session, new, self._watermark, watermark).moved()
        self._next = (watermark, self._numbered + rows.num_rows, int(late.sum()))
        self._writes = [*self._withdrawals(moved.withdrawn), *self._kept_writes(moved)]
        self._writes += self._late_writes(rows.filter(pa.array(late)))
        given = self._finished(batch.session, moved.given)
        return given if self._result_names is None else given.rename_columns(list(self._result_names))

    def probe(self, batch: Batch) -> object:
        return super().rows_of(batch)

    def part(self, batch: Batch, *, writes: Sequence[tuple[Table, Write]], **position: object) -> Part:
        watermark, numbered, _ = self._next
        all_writes = [*self._writes, *writes]
        return super().part(batch, writes=all_writes, watermark=watermark, numbered=numbered, **position)

    def advance(self, end: Offset) -> None:
        super().advance(end)
        self._watermark, self._numbered, late = self._next
        self.board.tally("late rows", late)

    @property
    def state(self) -> WindowState:
        return self._state

    @property
    def key(self) -> tuple[str, ...]:
        """Columns that tell one group from another."""
        return self._windowing.groups.key

    def kept_rows(self, columns: Sequence[str] | None = None) -> pa.Table:
        return self._kept.snapshot().scan(columns=columns)

    def kept_rows_numbered(self, numbers: Integers) -> pa.Table:
        return self._kept.snapshot().lookup(pa.array(numbers)).select(list(self._kept.schema.names))

    def ends_of(self, rows: pa.Table) -> Integers:
        """When the window of each row is over, at the earliest: a session may be prolonged."""
        if self._state.end is not None:
            return _microseconds(rows[self._state.end])
        gap = self._state.gap or timedelta(0)
        ends: Integers = _microseconds(rows[self._state.time]) + gap // _MICROSECOND
        return ends

    def groups_of(self, session: SparkSession, kept: pa.Table, new: pa.Table) -> _Groups:
        """The windows that these rows fall into, computed as a batch."""
        flags = np.repeat([False, True], [kept.num_rows, new.num_rows])
        rows = pa.concat_tables([kept, new]).append_column(_NEW, pa.array(flags))
        schema = Schema((*self._kept.schema.columns, Column(_NEW, pa.bool_())))
        frame = self.context.relations.frame_of_rows(session, rows, schema)
        found = arrow_result(run_sql(session, self._state.tracked, {FEED: frame}))
        groups = self._windowing.groups
        width = len(groups.columns)
        return _Groups(
            found.select(range(width)).rename_columns(list(groups.names)).cast(groups.arrow),
            _microseconds(found.column(width)),
            np.asarray(found.column(width + 1)),
            found.column(width + 2).combine_chunks() if self._state.gap is not None else None,
        )

    def no_groups(self) -> pa.Table:
        return self._windowing.groups.arrow.empty_table()

    def _numbered_on(self, rows: pa.Table) -> pa.Table:
        numbers = pa.array(np.arange(self._numbered, self._numbered + rows.num_rows, dtype=np.int64))
        return pa.table([numbers, *rows.columns], schema=self._kept.schema.arrow)

    def _late(self, rows: pa.Table) -> Booleans:
        if self._state.late is LateData.UPDATE:
            return np.zeros(rows.num_rows, np.bool_)
        late: Booleans = self.ends_of(rows) <= self._watermark
        return late

    def _after(self, rows: pa.Table) -> int:
        """The watermark after these rows."""
        if not rows.num_rows:
            return self._watermark
        newest = int(_microseconds(rows[self._state.time]).max())
        return max(self._watermark, newest - self._state.watermark // _MICROSECOND)

    def _finished(self, session: SparkSession, groups: pa.Table) -> pa.Table:
        if self._windowing.final is None:
            return groups
        frame = self.context.relations.frame_of_rows(session, groups, self._windowing.groups)
        return arrow_result(run_sql(session, self._windowing.final, {GROUPS: frame}))

    def _withdrawals(self, keys: pa.Table) -> list[tuple[Table, Write]]:
        return [(self.context.table(self.entry.id), Write(Mode.DELETE, keys))] if keys.num_rows else []

    def _kept_writes(self, moved: _Moved) -> list[tuple[Table, Write]]:
        writes: list[tuple[Table, Write]] = []
        if len(moved.over):
            writes.append((self._kept, Write(Mode.DELETE, pa.table({ROW: pa.array(moved.over)}))))
        if moved.kept.num_rows:
            writes.append((self._kept, Write(Mode.APPEND, moved.kept)))
        return writes

    def _late_writes(self, late: pa.Table) -> list[tuple[Table, Write]]:
        if not late.num_rows or self._state.late is not LateData.DEAD_LETTER:
            return []
        named = late.drop_columns([ROW]).rename_columns(list(self._state.reads))
        passed = (datetime.fromtimestamp(0, UTC) + self._watermark * _MICROSECOND).replace(tzinfo=None)
        records = [
            BadRecord(
                json.dumps(row, default=str).encode(),
                f"row {number}",
                f"late: its window was over, the watermark had passed {passed}",
            )
            for number, row in zip(late[ROW].to_pylist(), named.to_pylist(), strict=True)
        ]
        return [self.context.dead_letter_write(self._windowing.shown, self._windowing.source, records)]


class WindowedTableConsumer(WindowedConsumer, TableConsumer):
    """Groups of windows into a table."""


class WindowedSpoolConsumer(WindowedConsumer, SpoolConsumer):
    """Groups of windows into the spool of a derived stream."""


class WindowedSinkConsumer(WindowedConsumer, SinkConsumer):
    """Groups of windows out of the tables, through a sink."""


class _Movement:
    """The new rows of one batch and a watermark that moves: what becomes of the kept rows and of the groups."""

    def __init__(
        self, consumer: WindowedConsumer, session: SparkSession, new: pa.Table, before: int, watermark: int
    ) -> None:
        self._consumer = consumer
        self._session = session
        self._new = new
        self._before = before
        self._watermark = watermark
        self._is_final = consumer.state.emit is Emit.FINAL
        self._forgets = consumer.state.late is not LateData.UPDATE
        """Whether the rows of windows that are over can go."""

    def moved(self) -> _Moved:
        if not self._new.num_rows:
            return self._only_kept()
        return self._fixed() if self._consumer.state.end is not None else self._sessions()

    def _fixed(self) -> _Moved:
        """Windows of fixed length: more rows never take a group away."""
        new_ends = self._consumer.ends_of(self._new)
        touched = np.unique(new_ends)
        kept = self._consumer.kept_rows([ROW, self._consumer.state.end or ""])
        numbers, kept_ends = np.asarray(kept[ROW]), self._consumer.ends_of(kept)
        old = self._consumer.kept_rows_numbered(numbers[self._concerned(kept_ends, touched)])
        new = self._new.filter(pa.array(self._concerned(new_ends, touched)))
        given = self._consumer.no_groups()
        if old.num_rows or new.num_rows:
            groups = self._consumer.groups_of(self._session, old, new)
            given = groups.where(self._emitted(groups)).rows
        if not self._forgets:
            return _Moved(given, self._no_keys(), _NO_ROWS, self._new)
        stays = pa.array(new_ends > self._watermark)
        return _Moved(given, self._no_keys(), numbers[kept_ends <= self._watermark], self._new.filter(stays))

    def _sessions(self) -> _Moved:
        """Sessions: a row may join two into one, so what was shown of them may have to go."""
        old = self._consumer.kept_rows()
        shows_early = not self._is_final or not self._forgets
        ends = np.concatenate([self._consumer.ends_of(old), self._consumer.ends_of(self._new)])
        if not shows_early and ends.min() > self._watermark:
            return self._only_kept()
        after = self._consumer.groups_of(self._session, old, self._new)
        withdrawn = self._no_keys()
        if shows_early and old.num_rows:
            before = self._consumer.groups_of(self._session, old, self._new.slice(0, 0))
            shown = before.where(self._visible(before.ends, self._before)).rows
            withdrawn = self._missing_keys(shown, after.where(self._visible(after.ends, self._watermark)).rows)
        closed = after.where(after.ends <= self._watermark).row_numbers if self._forgets else _NO_ROWS
        stays = pc.invert(pc.is_in(self._new[ROW], pa.array(closed)))
        return _Moved(
            after.where(self._emitted(after)).rows,
            withdrawn,
            np.intersect1d(closed, np.asarray(old[ROW])),
            self._new.filter(stays),
        )

    def _only_kept(self) -> _Moved:
        return _Moved(self._consumer.no_groups(), self._no_keys(), _NO_ROWS, self._new)

    def _concerned(self, ends: Integers, touched: Integers) -> Booleans:
        """Rows of the windows that are to be shown now."""
        if not self._is_final:
            return np.isin(ends, touched)
        concerned: Booleans = (ends <= self._watermark) & ((ends > self._before) | np.isin(ends, touched))
        return concerned

    def _visible(self, ends: Integers, watermark: int) -> Booleans:
        visible: Booleans = ends <= watermark if self._is_final else np.ones(len(ends), np.bool_)
        return visible

    def _emitted(self, groups: _Groups) -> Booleans:
        fresh = groups.ends > self._before if self._is_final else np.zeros(len(groups.ends), np.bool_)
        emitted: Booleans = self._visible(groups.ends, self._watermark) & (groups.touched | fresh)
        return emitted

    def _no_keys(self) -> pa.Table:
        return self._consumer.no_groups().select(list(self._consumer.key))

    def _missing_keys(self, shown: pa.Table, still: pa.Table) -> pa.Table:
        """The keys of groups that are no more."""
        key = list(self._consumer.key)
        kept = set(key_values(still, key))
        gone = pa.array([value not in kept for value in key_values(shown, key)], pa.bool_())
        return shown.select(key).filter(gone)


def _microseconds(times: pa.ChunkedArray) -> Integers:
    """Times as microseconds since 1970; dates are their midnights."""
    zone = times.type.tz if pa.types.is_timestamp(times.type) else None
    return np.asarray(times.cast(pa.timestamp("us", zone)).cast(pa.int64()))
