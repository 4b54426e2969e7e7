"""The difference a write makes, as the commit script takes it."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from velostream.model.change import Epoch
from velostream.tables.change_log import Changes
from velostream.tables.difference import Difference
from velostream.tables.redis.client import Connection
from velostream.tables.redis.columns import Packed, encode
from velostream.tables.redis.layout import Layout, scores
from velostream.tables.redis.state import TableState


@dataclass(frozen=True, slots=True)
class Shares:
    """Which ids are new, which get other values, and which go."""

    created: Sequence[bytes]
    created_at: Sequence[int]
    """Where in the added rows each is."""
    changed: Sequence[bytes]
    changed_at: Sequence[int]
    gone: Sequence[bytes]
    counts: Sequence[int] = ()
    """Of a bag: how many equal rows each new id stands for."""

    @classmethod
    def of_bag(cls, ids: Sequence[bytes], removed: Sequence[bytes]) -> Shares:
        counts = Counter(ids)
        first = {id_: place for place, id_ in reversed(list(enumerate(ids)))}
        return cls(list(counts), [first[id_] for id_ in counts], [], [], removed, list(counts.values()))

    @classmethod
    def of_keys(cls, ids: Sequence[bytes], removed: Sequence[bytes]) -> Shares:
        there = set(removed)
        changed_at = [place for place, id_ in enumerate(ids) if id_ in there] if there else []
        staying = {ids[place] for place in changed_at}
        created_at = [place for place, id_ in enumerate(ids) if id_ not in staying] if staying else range(len(ids))
        return cls(
            created=[ids[place] for place in created_at],
            created_at=list(created_at),
            changed=[ids[place] for place in changed_at],
            changed_at=changed_at,
            gone=[id_ for id_ in removed if id_ not in staying],
        )


@dataclass(frozen=True)
class Writer:
    """Sends commits of one table object, numbered, so that the script knows one that it has done already."""

    connection: Connection
    layout: Layout
    incarnation: str
    history: int
    _name: str = field(default_factory=lambda: uuid.uuid4().hex)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def next_number(self) -> int:
        """The number of a commit, kept however often it has to be tried."""
        return next(self._numbers)

    def commit(
        self, difference: Difference, state: TableState, *, number: int, epoch: Epoch | None, expected: int | None
    ) -> list[Any]:
        """The script's answer: `done` or `repeat` with the version, `moved`, `dropped`, or `duplicate` with a place.

        `expected` is the version that the difference was worked out from; None: it holds for any.
        """
        layout = self.layout
        ids = layout.ids(difference.added)
        shares = (Shares.of_bag if layout.counted else Shares.of_keys)(ids, difference.removed.handles)
        followed = state.followed_from is not None
        given = {
            "incarnation": self.incarnation,
            "commit": number,
            "expected": -1 if expected is None else expected,
            "followed": followed,
            "history": self.history,
            "prefix": layout.prefix,
            "bag": layout.counted,
            "ttl": state.ttl,
            "indexes": state.index_names,
            "fields": [layout.field(name) for name in layout.written],
        }
        if epoch is not None:
            given |= {"writer": epoch.writer, "epoch": epoch.number}
        packed = [_packed(share) for share in (shares.created, shares.changed, shares.gone)]
        packed.append(self._packed_rows(difference.added, shares, state))
        blob = Changes(difference.removed.rows, difference.added).encode() if followed else b""
        keys = [layout.meta, layout.rows, layout.epochs, layout.changes, layout.writer(self._name)]
        return self.connection.commit(
            [*keys, *map(layout.index, state.indexes)],
            [orjson.dumps(given), *(part for share in packed for part in (share.lengths, share.data)), blob],
        )

    def _packed_rows(self, added: pa.Table, shares: Shares, state: TableState) -> Packed:
        rows = added.take(pa.array([*shares.created_at, *shares.changed_at], type=pa.int64()))
        columns = [encode(rows.column(name)) for name in self.layout.written]
        columns += [scores(rows.column(name).combine_chunks()) for name in state.indexes]
        if self.layout.counted:
            columns.append(encode(pa.array(shares.counts, pa.int64())))
        return Packed.of(columns)


def _packed(ids: Sequence[bytes]) -> Packed:
    return Packed.of([pa.array(ids, pa.binary())])
