"""The newest state of a table in a relational store, read call by call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from velostream.errors import TableError
from velostream.model.expression import Expression
from velostream.tables.base import KeyValue, Row, Snapshot
from velostream.tables.memory.compare import hashable_rows
from velostream.tables.memory.rows import decoded_rows
from velostream.tables.memory.snapshot import POSITION
from velostream.tables.relational.database import Database
from velostream.tables.relational.reading import Found, Reader


class RelationalSnapshot(Snapshot):
    """What the store holds at the moment of each call; `version` is the one it had when the snapshot was taken.

    Stores keep no older states for us, so two calls may see two states unless they are made within
    `Table.exclusive()`. One call sees one state.
    """

    def __init__(self, database: Database, reader: Reader, version: int) -> None:
        self.schema = reader.layout.schema
        self.version = version
        self._database = database
        self._reader = reader

    def get(self, key: KeyValue) -> Row | None:
        wanted = self._reader.key_of(key)
        if wanted is None:
            return None
        with self._database.reading() as connection:
            found = self._reader.find_keys(connection, wanted)
        return next(decoded_rows(found.rows.to_batches()[0]), None) if found.rows.num_rows else None

    def contains(self, key: KeyValue) -> bool:
        wanted = self._reader.key_of(key)
        if wanted is None:
            return False
        with self._database.reading() as connection:
            return bool(self._reader.find_keys(connection, wanted, self.schema.key).rows.num_rows)

    def lookup(self, keys: pa.Array | pa.ChunkedArray | pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        if not self.schema.key:
            raise TableError.without_key(self._reader.layout.name)
        return self.lookup_by(self.schema.key, keys, columns)

    def lookup_by(
        self,
        on: Sequence[str],
        keys: pa.Array | pa.ChunkedArray | pa.Table,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        names = tuple(self.schema.column(name).name for name in on)
        given = keys if isinstance(keys, pa.Table) else pa.table({names[0]: keys})
        if given.num_columns != len(names):
            raise TableError(
                f'keys of table "{self._reader.layout.name}" have {len(names)} columns, not {given.num_columns}',
                detail=f"the columns are {', '.join(names)}",
                code="wrong-type",
            )
        asked = _Asked.of(self._reader.fitted_keys(given, names))
        with self._database.reading(one_state=asked.distinct.num_rows > 1) as connection:
            if names == self.schema.key:
                found = self._reader.find_keys(connection, asked.distinct, columns)
            else:
                found = self._reader.find(connection, asked.distinct, columns)
        return asked.answer(found)

    def scan(self, condition: Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        with self._database.reading() as connection:
            return self._reader.scan(connection, condition, columns)

    def count(self, condition: Expression | None = None) -> int:
        with self._database.reading() as connection:
            return self._reader.count(connection, condition)

    def batches(self, size: int, offset: int = 0) -> Iterator[pa.RecordBatch]:
        with self._database.reading() as connection:
            yield from self._reader.batches(connection, size, offset)


class _Asked:
    """Keys as they were asked for, each different one once, those with a NULL left out."""

    def __init__(self, distinct: pa.Table, groups: list[list[int]]) -> None:
        self.distinct = distinct
        self._groups = groups
        """For each distinct key, where it was asked for."""

    @classmethod
    def of(cls, keys: pa.Table) -> _Asked:
        places: dict[object, list[int]] = {}
        for place, key in enumerate(hashable_rows(keys)):
            if None not in key:  # type: ignore[operator]
                places.setdefault(key, []).append(place)
        groups = list(places.values())
        firsts = pa.array([group[0] for group in groups], pa.int64())
        return cls(keys.take(firsts), groups)

    def answer(self, found: Found) -> pa.Table:
        """One row per key asked for and row found, in the order of the keys."""
        order = range(len(found.positions))
        pairs = [
            (place, row)
            for row, position in zip(order, found.positions.tolist(), strict=True)
            for place in self._groups[position]
        ]
        pairs.sort()
        places = np.fromiter((place for place, _ in pairs), dtype=np.int64, count=len(pairs))
        rows = np.fromiter((row for _, row in pairs), dtype=np.int64, count=len(pairs))
        return found.rows.take(pa.array(rows)).add_column(0, POSITION, pa.array(places))
