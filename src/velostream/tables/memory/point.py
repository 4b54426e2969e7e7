"""Single rows written by key: what a commit of a few rows does, worked out value by value and done.

The same rules as `stage` has for whole columns, for rows that a `RowEncoder` has taken. Methods are called under the
commit lock, with the number of the commit, which is published after it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from velostream.errors import TableError
from velostream.model.change import Mode
from velostream.tables.memory.encode import RowEncoder
from velostream.tables.memory.generation import Changed, Generation, RowDelta
from velostream.tables.memory.index import KeyIndex
from velostream.tables.memory.journal import ALIVE
from velostream.tables.memory.tail import BASE, Patch, Values

UNCHANGED = Changed(0, 0)
_ADDED = Changed(1, 0)
_REPLACED = Changed(1, 1)


class PointWriter:
    """Rows against the newest ones of a generation."""

    __slots__ = ("_encoder", "_generation", "_name")

    def __init__(self, name: str, generation: Generation, encoder: RowEncoder) -> None:
        self._name = name
        self._generation = generation
        self._encoder = encoder

    def append(self, number: int, rows: Sequence[Values]) -> Changed:
        """Add rows; a key that is there is a `TableError`."""
        return self._put(number, rows, Mode.APPEND)

    def upsert(self, number: int, rows: Sequence[Values]) -> Changed:
        """Add rows, in place of those that have their keys; of several with one key the last one counts."""
        return self._put(number, rows, Mode.UPSERT)

    def _put(self, number: int, rows: Sequence[Values], mode: Mode) -> Changed:
        generation = self._generation
        keys = generation.keys
        if keys is None:
            return generation.apply_rows(number, RowDelta(rows)) if rows else UNCHANGED
        if len(rows) == 1:
            return self._put_one(number, rows[0], keys, mode)
        given: dict[Hashable, Values] = {}
        for row in rows:
            key = self._encoder.key(row)
            if mode is Mode.APPEND and key in given:
                raise TableError.duplicate_key(self._name, self._encoder.shown_key(row))
            given[key] = row
        added: list[Values] = []
        added_keys: list[Hashable] = []
        removed: list[int] = []
        for key, row in given.items():
            position = self._alive(keys, key)
            if position is not None:
                if mode is Mode.APPEND:
                    raise TableError.duplicate_key(self._name, self._encoder.shown_key(row))
                if self._equals(position, row):
                    continue
                removed.append(position)
            added.append(row)
            added_keys.append(key)
        return generation.apply_rows(number, RowDelta(added, added_keys, removed)) if added else UNCHANGED

    def _put_one(self, number: int, row: Values, keys: KeyIndex, mode: Mode) -> Changed:
        key = self._encoder.key(row)
        position = self._alive(keys, key)
        if position is None:
            self._generation.apply_row(number, row, key)
            return _ADDED
        if mode is Mode.APPEND:
            raise TableError.duplicate_key(self._name, self._encoder.shown_key(row))
        if self._equals(position, row):
            return UNCHANGED
        self._generation.apply_row(number, row, key, (position,))
        return _REPLACED

    def update_one(self, number: int, given: tuple[Hashable, Patch]) -> Changed | None:
        """Give the row of a key other values; None when there is no such row. The patch is the writer's from now on."""
        key, changes = given
        generation = self._generation
        keys = generation.keys or self._keys()
        position = keys.find(key, -1)
        if position < 0 or generation.removed.view[position] != ALIVE:
            return None
        row = self._changed(position, changes)
        if row is None:
            return UNCHANGED
        generation.apply_row(number, row, key, (position,))
        return _REPLACED

    def update(self, number: int, given: Mapping[Hashable, Patch]) -> Changed:
        """Like `update_one`, for the rows of several keys; those that aren't there are passed over."""
        keys = self._keys()
        rows: list[Values | Patch] = []
        changed: list[Hashable] = []
        removed: list[int] = []
        for key, changes in given.items():
            position = self._alive(keys, key)
            row = None if position is None else self._changed(position, changes)
            if position is not None and row is not None:
                rows.append(row)
                changed.append(key)
                removed.append(position)
        return self._generation.apply_rows(number, RowDelta(rows, changed, removed)) if rows else UNCHANGED

    def holds(self, key: Hashable) -> bool:
        """Whether there is a row of a key, in the form of `keys.key_values`."""
        return self._alive(self._keys(), key) is not None

    def delete(self, number: int, keys: Iterable[Hashable]) -> Changed:
        """Remove the rows of keys, which are distinct and in the form of `keys.key_values`."""
        index = self._keys()
        positions = [self._alive(index, key) for key in keys]
        removed = [position for position in positions if position is not None]
        return self._generation.apply_rows(number, RowDelta(removed=removed)) if removed else UNCHANGED

    def _keys(self) -> KeyIndex:
        keys = self._generation.keys
        if keys is None:
            raise TableError.without_key(self._name)
        return keys

    def _alive(self, keys: KeyIndex, key: Hashable) -> int | None:
        position = keys.find(key, -1)
        return position if position >= 0 and self._generation.removed.view[position] == ALIVE else None

    def _changed(self, position: int, changes: Patch) -> Values | Patch | None:
        """The row at a position with these values; None when it has them already."""
        stored = self._generation.stored
        known: Patch = {}
        if position >= stored.start:
            row = stored.rows[position - stored.start]
            if isinstance(row, tuple):
                if all(_same(row[place], value) for place, value in changes.items()):
                    return None
                return tuple([changes.get(place, value) for place, value in enumerate(row)])
            known, position = row, row[BASE]
        readers, at = stored.chunks.readers_of(position)
        for place, value in changes.items():
            old = known[place] if place in known else readers[place](at)
            if old != value and not _same(old, value):
                if known:
                    changes = known | changes
                changes[BASE] = position
                return changes
        return None

    def _equals(self, position: int, row: Values) -> bool:
        stored = self._generation.stored
        if position >= stored.start:
            return all(map(_same, stored.values_at(position), row))
        readers, at = stored.chunks.readers_of(position)
        for read, value in zip(readers, row, strict=True):
            old = read(at)
            if old != value and not _same(old, value):
                return False
        return True


def _same(left: Any, right: Any) -> bool:
    """Whether two values are equal, or both NaN."""
    return bool(left == right or (left != left and right != right))  # noqa: PLR0124 - only NaN differs from itself
