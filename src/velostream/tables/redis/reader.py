"""Reading rows by the script that does so in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from velostream.model.change import Scope
from velostream.tables.difference import Present
from velostream.tables.redis.client import Connection
from velostream.tables.redis.columns import Packed
from velostream.tables.redis.layout import COUNT, Layout


@dataclass(frozen=True, slots=True)
class Range:
    """Rows whose value in an indexed column is in a range; more than those where doubles round."""

    column: str
    lowest: float
    highest: float


@dataclass(frozen=True)
class Reader:
    """One table as it is at the moment of each call. A `StoredRows` for the commit under way."""

    connection: Connection
    layout: Layout
    versions: set[int] = field(default_factory=set)
    """The versions that calls have seen; a commit needs all of them to be the one it is based on."""

    def all_rows(self, columns: Sequence[str]) -> pa.Table:
        return self._all(columns, handles=False).rows

    def count(self) -> int:
        return len(self._all([]).handles)

    def of_range(self, wanted: Range, columns: Sequence[str]) -> pa.Table:
        """The rows of a range, or all rows if the index was given up in the meantime."""
        layout = self.layout
        keys = [layout.meta, layout.rows, layout.index(wanted.column)]
        return self._read(
            keys, ["scores", repr(wanted.lowest), repr(wanted.highest)], columns, ordered=True, handles=False
        ).rows

    def ids_with(self, column: str) -> Present:
        """One column of every row that is kept, a bag's equal rows as one, with the rows' ids."""
        return self._read([self.layout.meta, self.layout.rows], ["ranks", 0, -1], [column], expanded=False)

    def having(self, keys: pa.Table, columns: Sequence[str], *, ordered: bool = False) -> pa.Table:
        """The rows of keys, in the order of the keys or of the table."""
        return self._of_ids(self.layout.key_ids(keys), columns, ordered=ordered, handles=False).rows

    def of_keys(self, keys: pa.Table) -> Present:
        return self._of_ids(self.layout.key_ids(keys), self.layout.schema.names)

    def equal_to(self, rows: pa.Table) -> Present:
        if not self.layout.counted:
            return self._all(self.layout.schema.names)
        return self._of_ids(list(dict.fromkeys(self.layout.ids(rows))), self.layout.schema.names)

    def all(self, scope: Scope | None) -> Present:
        present = self._all(self.layout.schema.names)
        return present if scope is None else present.within(scope)

    def _all(self, columns: Sequence[str], *, handles: bool = True) -> Present:
        layout = self.layout
        if layout.own:
            return self._read([layout.meta, layout.rows], ["ranks", 0, -1], columns, handles=handles)
        return self._of_ids(self.connection.hashes(layout.prefix), columns, handles=handles)

    def _of_ids(
        self, ids: Sequence[bytes | None], columns: Sequence[str], *, ordered: bool = False, handles: bool = True
    ) -> Present:
        packed = Packed.of([pa.array([id_ for id_ in ids if id_ is not None], pa.binary())])
        keys = [self.layout.meta, self.layout.rows]
        return self._read(keys, ["ids", packed.lengths, packed.data], columns, ordered=ordered, handles=handles)

    def _read(
        self,
        keys: Sequence[str],
        source: Sequence[object],
        columns: Sequence[str],
        *,
        ordered: bool = False,
        expanded: bool = True,
        handles: bool = True,
    ) -> Present:
        layout = self.layout
        # Hashes of the user's have their key in the id.
        wanted = ("i" if handles or not layout.own else "") + ("n" if ordered else "")
        fields = [layout.field(name) for name in columns]
        if layout.counted:
            fields.append(COUNT)
        version, lengths, data = self.connection.read(keys, [layout.prefix, *source, wanted, *fields])
        self.versions.add(int(version or 0))
        ids, numbers, *found = Packed(lengths, data).columns(len(fields) + 2)
        rows = layout.decode(columns, found[: len(columns)], ids)
        names = ids.to_pylist()
        order = np.arange(len(names))
        if ordered and layout.own:
            order = np.argsort(numbers.cast(pa.string()).cast(pa.float64()).to_numpy(), kind="stable")
        if layout.counted and expanded:
            counts = found[-1].cast(pa.string()).cast(pa.int64()).to_numpy()
            order = np.repeat(order, counts[order])
        if ordered or layout.counted:
            names = [names[place] for place in order.tolist()]
            rows = rows.take(pa.array(order)) if columns else rows
        return Present(rows, names)
