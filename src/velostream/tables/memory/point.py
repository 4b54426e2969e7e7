"""Single rows written by key: what a commit of a few rows does, worked out value by value.

The same rules as `stage` has for whole columns, for rows that a `RowEncoder` has taken. Used under the commit lock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from velostream.errors import TableError
from velostream.model.change import Mode
from velostream.tables.memory.encode import NeedsArrow, RowEncoder
from velostream.tables.memory.generation import Generation, RowDelta
from velostream.tables.memory.index import KeyIndex
from velostream.tables.memory.journal import ALIVE
from velostream.tables.memory.tail import Patch, Values


class PointWriter:
    """Rows against the newest ones of a generation. A method gives None when nothing changes."""

    __slots__ = ("_name", "encoder", "generation")

    def __init__(self, name: str, generation: Generation, encoder: RowEncoder) -> None:
        self._name = name
        self.generation = generation
        self.encoder = encoder

    def put(self, mode: Mode, rows: Sequence[Values]) -> RowDelta | None:
        """Append or upsert rows."""
        keys = self.generation.keys
        if keys is None:
            if self.generation.content is not None:
                raise NeedsArrow
            return RowDelta(rows) if rows else None
        key_of = self.encoder.key
        if len(rows) == 1:
            return self._put_one(mode, keys, key_of(rows[0]), rows)
        given: dict[Hashable, Values] = {}
        for row in rows:
            key = key_of(row)
            if mode is Mode.APPEND and key in given:
                raise TableError.duplicate_key(self._name, self.encoder.shown_key(row))
            given[key] = row
        added: list[Values] = []
        added_keys: list[Hashable] = []
        removed: list[int] = []
        for key, row in given.items():
            position = self._alive(keys, key)
            if position is not None:
                if mode is Mode.APPEND:
                    raise TableError.duplicate_key(self._name, self.encoder.shown_key(row))
                if self._equals(position, row):
                    continue
                removed.append(position)
            added.append(row)
            added_keys.append(key)
        return RowDelta(added, added_keys, removed) if added else None

    def _put_one(self, mode: Mode, keys: KeyIndex, key: Hashable, rows: Sequence[Values]) -> RowDelta | None:
        position = self._alive(keys, key)
        if position is None:
            return RowDelta(rows, (key,))
        if mode is Mode.APPEND:
            raise TableError.duplicate_key(self._name, self.encoder.shown_key(rows[0]))
        return None if self._equals(position, rows[0]) else RowDelta(rows, (key,), (position,))

    def update(self, records: Sequence[Mapping[str, Any]]) -> tuple[RowDelta | None, int]:
        """Give the rows of the records' keys the values the records have; and how many records found theirs."""
        keys = self.generation.keys
        if keys is None:
            raise TableError.without_key(self._name)
        wanted: dict[Hashable, dict[int, Any]] = {}
        found = 0
        for record in records:
            changes = self.encoder.changed(record)
            key = self.encoder.key_of_places(changes)
            if self._alive(keys, key) is not None:
                found += 1
                wanted[key] = {**wanted[key], **changes} if key in wanted else changes
        rows: list[Values | Patch] = []
        changed: list[Hashable] = []
        removed: list[int] = []
        for key, changes in wanted.items():
            position = keys.find(key, -1)
            row = self._changed(position, changes)
            if row is not None:
                rows.append(row)
                changed.append(key)
                removed.append(position)
        return (RowDelta(rows, changed, removed) if rows else None), found

    def _changed(self, position: int, changes: Mapping[int, Any]) -> Values | Patch | None:
        """The row at a position with these values; None when it has them already."""
        stored = self.generation.stored
        if position < stored.start:
            readers, at = stored.chunks.readers_of(position)
            for place, value in changes.items():
                if not _same_value(readers[place](at), value):
                    return Patch(position, changes)
            return None
        old = stored.values_at(position)
        values = list(old)
        for place, value in changes.items():
            values[place] = value
        row = tuple(values)
        return None if _same(old, row) else row

    def delete(self, keys: Iterable[Hashable]) -> RowDelta | None:
        """Remove the rows of keys, which are distinct and in the form of `keys.key_values`."""
        index = self.generation.keys
        if index is None:
            raise TableError.without_key(self._name)
        positions = [self._alive(index, key) for key in keys]
        removed = [position for position in positions if position is not None]
        return RowDelta(removed=removed) if removed else None

    def _alive(self, keys: KeyIndex, key: Hashable) -> int | None:
        position = keys.find(key, -1)
        return position if position >= 0 and self.generation.removed.view[position] == ALIVE else None

    def _equals(self, position: int, row: Values) -> bool:
        stored = self.generation.stored
        if position >= stored.start:
            return _same(stored.values_at(position), row)
        readers, at = stored.chunks.readers_of(position)
        return all(_same_value(read(at), value) for read, value in zip(readers, row, strict=True))


def _same(left: Values, right: Values) -> bool:
    return left == right or all(map(_same_value, left, right))


def _same_value(left: Any, right: Any) -> bool:
    return bool(left == right or (left != left and right != right))  # noqa: PLR0124 - only NaN differs from itself
