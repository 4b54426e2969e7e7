"""Views over two joined streams that forget: rows that can meet no other any more go with the commit that knows it.

The rows of the streams lie in tables that this view alone reads and takes rows out of (kept_streams.py). Rows are only
ever added to a stream, so what is missing in such a table has expired: it is no change to follow, and what it gave
stays in the view. Nothing of the view can be computed again from what is left.

A row of one stream can go when the watermark of the other is past all it could meet. Where what a row gives depends on
whether it has met others (an outer join's), those it may have met stay as long as it may meet more.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from velostream.engine.maintain.base import FoundRows, Maintenance, Movement
from velostream.engine.maintain.steps import of_sign
from velostream.errors import StateError, present
from velostream.model.change import ORIGIN, Mode, Write, signed
from velostream.tables.memory.growable import Integers, Mask
from velostream.tables.memory.keys import key_values

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.sql.plan import Expiry
    from velostream.tables.base import Table
    from velostream.tables.memory.snapshot import MemorySnapshot

_MICROSECOND = timedelta(microseconds=1)
_PIECES = 8
"""Rows are taken out when the time that they stay has passed by such a part, so that none is looked at often."""


@dataclass(frozen=True)
class Horizon:
    """How far streams have come, in microseconds since 1970, by relation."""

    newest: Mapping[str, int] = field(default_factory=dict)
    """The newest time of each stream."""
    cutoffs: Mapping[str, int] = field(default_factory=dict)
    """The times before which rows were last taken out."""

    @property
    def form(self) -> dict[str, Any]:
        """As the position of the view holds it."""
        return {"newest": dict(self.newest), "cutoffs": dict(self.cutoffs)}


class Expiring(Maintenance):
    """Follows changes by another maintenance, of which it keeps rows that have expired."""

    follows = True
    forgets = True

    def __init__(self, context: EngineContext, entry: Entry, inner: Maintenance, expiry: Expiry) -> None:
        self._context = context
        self._name = entry.name
        self._board = context.board(entry)
        self._inputs: Mapping[str, Entry] = {}
        self._inner = inner
        self._expiry = expiry
        meeting = expiry.meeting
        self._times = {one.relation: one.column for one in (meeting.left, meeting.right)}
        self._committed: Horizon | None = None
        self._reached: Horizon | None = None
        """Once the writes that were given last are committed."""
        self.fingerprint = inner.fingerprint

    @property
    def remembered(self) -> Mapping[str, Any]:
        return {"expiry": present(self._reached).form}

    def recall(self, position: Mapping[str, Any]) -> None:
        if "expiry" in position:
            self._committed = Horizon(**position["expiry"])

    def settle(self) -> None:
        self._committed = self._reached
        kept = {entry.name: len(self._context.memory_table(entry.id).snapshot()) for entry in self._inputs.values()}
        self._board.gauges = {f'rows kept of "{name}"': count for name, count in kept.items()}

    def load(self, movement: Movement) -> Sequence[tuple[Table, Write]]:
        if self._committed is not None:
            raise StateError.checkpoint(self._name, reason="rows that it was computed from are not kept any more")
        rows = {relation: movement.rows(relation, [column]) for relation, column in self._times.items()}
        return [*self._inner.load(movement), *self._expired(movement, Horizon(), rows)]

    def advance(self, movement: Movement) -> Sequence[tuple[Table, Write]] | None:
        known = present(self._committed)
        followed = _ExpiringMovement(movement.wave, movement.inputs, movement.since)
        rows = {relation: followed.changes(relation) for relation in self._times}
        return [*present(self._inner.advance(followed)), *self._expired(movement, known, rows)]

    def _expired(
        self, movement: Movement, known: Horizon, rows: Mapping[str, pa.Table]
    ) -> Sequence[tuple[Table, Write]]:
        """The writes that take out what has expired once these rows have come."""
        self._inputs = movement.inputs
        newest = dict(known.newest)
        for relation, column in self._times.items():
            latest = pc.max(in_microseconds(rows[relation][column])).as_py()
            if latest is not None:
                newest[relation] = max(latest, newest.get(relation, latest))
        cutoffs, writes = dict(known.cutoffs), []
        for relation, cutoff in self._cutoffs(newest).items():
            if relation in cutoffs and cutoff < cutoffs[relation] + self._step:
                continue
            cutoffs[relation] = cutoff
            kept = movement.now(relation).scan(columns=[ORIGIN, self._times[relation]])
            times = in_microseconds(kept[self._times[relation]])
            # A row without a time meets nobody.
            gone = kept.filter(pc.fill_null(pc.less(times, cutoff), fill_value=True)).select([ORIGIN])
            if gone.num_rows:
                table = self._context.table(movement.inputs[relation].id)
                writes.append((table, Write(Mode.DELETE, gone)))
        self._reached = Horizon(newest, cutoffs)
        return writes

    def _cutoffs(self, newest: Mapping[str, int]) -> Mapping[str, int]:
        """The times before which rows can go; none while a stream has brought nothing."""
        meeting = self._expiry.meeting
        left, right = meeting.left.relation, meeting.right.relation
        if left not in newest or right not in newest:
            return {}
        delay, low, high = (span // _MICROSECOND for span in (self._expiry.watermark, meeting.low, meeting.high))
        left_mark, right_mark = newest[left] - delay, newest[right] - delay
        found = [(left, right_mark - high), (right, left_mark + low)]
        if meeting.remembers:
            found += [(left, left_mark + low - high), (right, right_mark - high + low)]
        cutoffs: dict[str, int] = {}
        for relation, cutoff in found:
            cutoffs[relation] = min(cutoff, cutoffs.get(relation, cutoff))
        return cutoffs

    @property
    def _step(self) -> int:
        meeting = self._expiry.meeting
        return (meeting.high - meeting.low + self._expiry.watermark) // _MICROSECOND // _PIECES


@dataclass(frozen=True)
class _ExpiringMovement(Movement):
    """A movement in which rows that have expired are neither changes nor part of what was before."""

    must_follow = True

    def changes(self, relation: str) -> pa.Table:
        return signed(of_sign(super().changes(relation), 1), 1)

    def before(self, relation: str, context: EngineContext) -> FoundRows:
        return _Unexpired(super().before(relation, context), self.now(relation))


class _Unexpired:
    """What was there before, without the rows that have expired since."""

    def __init__(self, before: FoundRows, now: MemorySnapshot) -> None:
        self._before = before
        self._now = now

    def positions_of(self, columns: tuple[str, ...], values: Sequence[Hashable]) -> Integers:
        positions = self._before.positions_of(columns, values)
        stays: Integers = positions[self._stay(self._before.take(positions, [ORIGIN]))]
        return stays

    def take(self, positions: Integers, columns: Sequence[str] | None = None) -> pa.Table:
        return self._before.take(positions, columns)

    def scan(self) -> pa.Table:
        rows = self._before.scan()
        return rows.filter(pa.array(self._stay(rows)))

    def _stay(self, rows: pa.Table) -> Mask:
        mask: Mask = self._now.positions_of_keys(key_values(rows, [ORIGIN])) >= 0
        return mask


def in_microseconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Timestamps as microseconds since 1970."""
    return times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
