"""One version of a memory table, for any reader and for as long as it likes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velostream.errors import TableError
from velostream.model.change import CHANGE, ChangeBatch
from velostream.model.expression import Expression
from velostream.model.types import render_type
from velostream.tables.base import KeyValue, Row, Snapshot
from velostream.tables.memory.chunks import Chunks
from velostream.tables.memory.column_index import ColumnIndex
from velostream.tables.memory.compare import match_rows
from velostream.tables.memory.conform import cast_exactly, fits
from velostream.tables.memory.generation import Generation
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.index import KeyIndex
from velostream.tables.memory.keys import as_array, hashable_values, key_normaliser
from velostream.tables.memory.rows import DecodedRow, FoundRows, MemoryRow, decoded_rows
from velostream.tables.memory.values import python_values

if TYPE_CHECKING:
    from velostream.tables.memory.table import Content, MemoryTable

POSITION = "_position"
"""First column of a lookup's result: which of the given keys a row answers."""

_ROWS_DECODED_AT_ONCE = 4096
_WORTH_HASHING = 64
"""Fewer keys are looked up one by one."""
_FEW = 256
"""Up to that many rows are gone through one by one faster than by NumPy."""


class MemorySnapshot(Snapshot):
    """A generation as of one sequence number: sees what was added at or before it and not removed by then."""

    def __init__(self, table: MemoryTable, content: Content, sequence: int) -> None:
        generation, self.schema, self._layout = content
        self.sequence = sequence
        journal = generation.journal
        entry = journal.entry_at(sequence)
        self.version = journal.sequences.view[entry]
        self._table = table
        self._generation = generation
        self._length = journal.row_ends.view[entry]
        """Rows added at or before the number; those from here on are of later commits."""
        self._count = self._length - journal.removed_ends.view[entry]
        self._all_visible = self._count == self._length
        self._stored = generation.stored
        self._tail_start = self._stored.start
        self._removed = generation.removed.view
        self._keys = generation.keys
        self._newest = self._finder(table, generation)

    def get(self, key: KeyValue) -> Row | None:
        try:
            position = self._newest(key, -1)
        except TypeError as error:
            raise self._not_a_key(key) from error
        if position >= self._length:
            position = self._older(position)
        if position < 0 or not (self._all_visible or self._removed[position] > self.sequence):
            return None
        if position < self._tail_start:
            return MemoryRow(self._layout, self._stored.chunks, position)
        return DecodedRow(self._layout, self._stored.values_at(position))

    def contains(self, key: KeyValue) -> bool:
        # Spelled out as in `get`: half of the time would be a call of something common to both.
        try:
            position = self._newest(key, -1)
        except TypeError as error:
            raise self._not_a_key(key) from error
        if position >= self._length:
            position = self._older(position)
        return position >= 0 and (self._all_visible or self._removed[position] > self.sequence)

    def lookup(self, keys: pa.Array | pa.ChunkedArray | pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        if self._keys is None:
            raise TableError.without_key(self._table.name)
        arrays, usable = self._lookup_arrays(keys, self.schema.key)
        exact = self._exact(arrays, self.schema.key)
        if exact is not None and self._keys.hashed is not None and len(exact[0]) >= _WORTH_HASHING:
            self._keys.hashed.grow(self._chunks, self._length)
            pairs = self._keys.hashed.find(exact, self._chunks, self._visible_of)
            positions = np.full(len(exact[0]), -1)
            positions[pairs.rows] = pairs.positions
        else:
            positions = self._positions(self._keys, self._hashable(arrays, self.schema.key))
        if usable is not None:
            positions[~usable] = -1
        found = np.flatnonzero(positions >= 0)
        return self._answer(positions[found], found, columns)

    def lookup_by(
        self,
        on: Sequence[str],
        keys: pa.Array | pa.ChunkedArray | pa.Table,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Like `lookup`, by other columns than the key: every row that has the values, in the table's order."""
        names = tuple(self.schema.column(name).name for name in on)
        if names == self.schema.key:
            return self.lookup(keys, columns)
        index = self._index(names)
        arrays, usable = self._lookup_arrays(keys, names)
        positions, answered = index.find_all(self._hashable(arrays, names))
        visible = self._visible_of(positions)
        if usable is not None:
            visible &= usable[answered]
        return self._answer(positions[visible], answered[visible], columns)

    def scan(self, condition: Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        names = self._names(columns)
        if condition is None:
            if self._all_visible:
                return self._chunks.head(self._length, names)
            return self._chunks.take(self._visible, names)
        return self._table.compile_condition(condition).scan(self, names)

    def count(self, condition: Expression | None = None) -> int:
        if condition is None:
            return self._count
        return self._table.compile_condition(condition).count(self)

    def batches(self, size: int, offset: int = 0) -> Iterator[pa.RecordBatch]:
        for start in range(offset, self._count, size):
            page = self.take(self._visible[start : start + size])
            yield page.combine_chunks().to_batches()[0]

    def rows(self, condition: Expression | None = None) -> Iterator[Row]:
        """The rows of `scan`, one by one."""
        for batch in self.scan(condition).to_batches(max_chunksize=_ROWS_DECODED_AT_ONCE):
            yield from decoded_rows(batch)

    def find(self, condition: Expression) -> FoundRows:
        """The rows of `scan` without reading them: by an index that costs what finding them costs."""
        return FoundRows(self, self._table.compile_condition(condition).find(self))

    def changes_since(self, since: int) -> ChangeBatch:
        """The net change from version `since` to this one: -1 rows, then +1 rows."""
        generation = self._generation
        if since < generation.floor:
            raise TableError.version_gone(self._table.name, since, oldest=generation.floor)
        journal = generation.journal
        first, last = journal.entry_at(since), journal.entry_at(self.sequence)
        rows_before = int(journal.row_ends.array[first])
        gone = journal.removed_between(first, last)
        gone = gone[gone < rows_before]
        came = np.arange(rows_before, self._length)
        came = came[self._removals[came] > self.sequence]
        minus, plus = self.take(gone), self.take(came)
        if last - first > 1:
            same = match_rows(minus, plus)
            minus, plus = _without(minus, same.left), _without(plus, same.right)
        signs = np.repeat(np.array([-1, 1], dtype=np.int8), (minus.num_rows, plus.num_rows))
        rows = pa.concat_tables([minus, plus]) if minus.num_rows else plus
        rows = rows.append_column(CHANGE, pa.array(signs))
        return ChangeBatch(self.version, rows)

    def __len__(self) -> int:
        return self._count

    def take(self, positions: Integers, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows at positions of this snapshot's generation."""
        return self._chunks.take(positions, columns)

    def columns_at(self, positions: Integers, columns: Sequence[str]) -> pa.Table:
        """Columns of rows at ascending positions; without copying where these are all the rows."""
        if len(positions) == self._length:
            return self._chunks.head(self._length, columns)
        return self._chunks.take(positions, columns)

    def row_at(self, position: int) -> Row:
        """The row at a position that this snapshot sees."""
        if position < self._tail_start:
            return MemoryRow(self._layout, self._stored.chunks, position)
        return DecodedRow(self._layout, self._stored.values_at(position))

    @property
    def secondary(self) -> Mapping[tuple[str, ...], ColumnIndex]:
        """The indexes beside the key; another object once there is another index."""
        return self._generation.secondary

    def few_positions_of(self, columns: tuple[str, ...], values: Sequence[Hashable]) -> list[int] | None:
        """Like `positions_of`, for one value that few rows have; None when it is not so."""
        if len(values) != 1:
            return None
        (value,) = values
        if columns == self.schema.key and self._keys is not None:
            position = self._keys.find(value, -1)
            if position >= self._length:
                position = self._older(position)
            return [position] if position >= 0 and self._removed[position] > self.sequence else []
        found = self._index(columns).find(value)
        if len(found) > _FEW:
            return None
        length, removed, sequence = self._length, self._removed, self.sequence
        if self._all_visible:
            return [position for position in found if position < length]
        return [position for position in found if position < length and removed[position] > sequence]

    @property
    def indexes(self) -> tuple[tuple[str, ...], ...]:
        """Column sets that `positions_of` can look up."""
        key = (self.schema.key,) if self.schema.key else ()
        return key + tuple(self._generation.secondary)

    def positions_of(self, columns: tuple[str, ...], values: Sequence[Hashable]) -> Integers:
        """Ascending positions of the rows whose columns have one of the values. The columns are one of `indexes`.

        Values are distinct and in the form of `keys.hashable_values`; a tuple for several columns.
        """
        if columns == self.schema.key and self._keys is not None:
            positions = self._positions(self._keys, values)
            return np.sort(positions[positions >= 0])
        positions, _ = self._index(columns).find_all(values)
        return np.sort(positions[self._visible_of(positions)])

    def positions_of_keys(self, keys: Sequence[Hashable]) -> Integers:
        """Where the row of each key is, -1 where there is none; keys in the form of `keys.key_values`."""
        if self._keys is None:
            raise TableError.without_key(self._table.name)
        return self._positions(self._keys, keys)

    def _index(self, columns: tuple[str, ...]) -> ColumnIndex:
        """An index with at least the rows this snapshot sees."""
        index = self._table.index_of(self._generation, columns)
        index.grow(self._stored, self._length)
        return index

    def is_newest_of(self, generation: Generation) -> bool:
        """Whether it sees what a generation holds now, at the same positions. Call it as the writer."""
        return self._generation is generation and generation.journal.entry_at(self.sequence) == len(generation.journal)

    @property
    def visible_positions(self) -> Integers:
        """Positions of all rows seen, ascending."""
        return self._visible

    @staticmethod
    def _finder(table: MemoryTable, generation: Generation) -> Callable[[KeyValue, int], int]:
        """From a key as users give it to its newest row, of whatever commit; like `dict.get`."""
        if generation.keys is None:

            def refuse(_key: KeyValue, _default: int) -> int:
                raise TableError.without_key(table.name)

            return refuse
        find, normalise = generation.keys.find, table.key_normaliser
        return find if normalise is None else lambda key, default: find(normalise(key), default)

    def _not_a_key(self, key: KeyValue) -> TableError:
        return TableError(
            f'{key!r} can\'t be a key of table "{self._table.name}"',
            hint="a key is a scalar, or a tuple for a composite key",
            code="wrong-type",
        )

    def _older(self, position: int) -> int:
        """From a row of a later commit to the one of the same key that this snapshot may see; -1 if there is none."""
        while position >= self._length and self._keys is not None:
            position = self._keys.older(position)
        return position

    def _positions(self, index: KeyIndex, keys: Sequence[Hashable]) -> Integers:
        """Where this snapshot sees the row of each key; -1 where it sees none."""
        positions = np.fromiter(map(index.find, keys, repeat(-1)), dtype=np.int64, count=len(keys))
        for place in (positions >= self._length).nonzero()[0].tolist():
            positions[place] = self._older(int(positions[place]))
        known = (positions >= 0).nonzero()[0]
        gone = self._removals[positions[known]] <= self.sequence
        positions[known[gone]] = -1
        return positions

    def _visible_of(self, positions: Integers) -> npt.NDArray[np.bool_]:
        visible = positions < self._length
        visible[visible] = self._removals[positions[visible]] > self.sequence
        return visible

    @cached_property
    def _visible(self) -> Integers:
        return np.flatnonzero(self._removals > self.sequence)

    @cached_property
    def _chunks(self) -> Chunks:
        """At least all rows this snapshot sees."""
        return self._stored.columnar(self._length)

    @property
    def _removals(self) -> Integers:
        return np.asarray(self._removed)[: self._length]

    def _names(self, columns: Sequence[str] | None) -> list[str] | None:
        return None if columns is None else [self.schema.column(name).name for name in columns]

    def _answer(self, positions: Integers, answered: Integers, columns: Sequence[str] | None) -> pa.Table:
        rows = self._chunks.take(positions, self._names(columns))
        return rows.add_column(0, POSITION, pa.array(answered, type=pa.int64()))

    def _lookup_arrays(
        self, keys: pa.Array | pa.ChunkedArray | pa.Table, names: Sequence[str]
    ) -> tuple[list[pa.Array], npt.NDArray[np.bool_] | None]:
        """The columns of keys, and which of the keys hold no NULL (None: all)."""
        given = keys if isinstance(keys, pa.Table) else pa.table({names[0]: keys})
        if given.num_columns != len(names):
            raise TableError(
                f'keys of table "{self._table.name}" have {len(names)} columns, not {given.num_columns}',
                detail=f"the columns are {', '.join(names)}",
                code="wrong-type",
            )
        usable: npt.NDArray[np.bool_] | None = None
        arrays: list[pa.Array] = []
        for name, column in zip(names, given.columns, strict=True):
            target = self.schema.column(name)
            array = as_array(column)
            if not fits(array.type, target.type) and not fits(target.type, array.type):
                raise TableError.wrong_type(
                    self._table.name, name, expected=target.sql_type, got=f"keys of type {render_type(array.type)}"
                )
            if array.null_count:
                valid = array.is_valid().to_numpy(zero_copy_only=False)
                usable = valid if usable is None else usable & valid
            arrays.append(array)
        return arrays, usable

    def _exact(self, arrays: Sequence[pa.Array], names: Sequence[str]) -> list[pa.Array] | None:
        """Keys in the types of their columns; None when one of them has a value that its column can't have."""
        try:
            return [
                cast_exactly(array, self.schema.column(name).type) for array, name in zip(arrays, names, strict=True)
            ]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None

    def _hashable(self, arrays: Sequence[pa.Array], names: Sequence[str]) -> list[Hashable]:
        parts = [
            _hashable_keys(array, self.schema.column(name).type) for array, name in zip(arrays, names, strict=True)
        ]
        return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def _without(rows: pa.Table, dropped: Integers) -> pa.Table:
    if not len(dropped):
        return rows
    mask = np.ones(rows.num_rows, dtype=np.bool_)
    mask[dropped] = False
    return rows.filter(pa.array(mask))


def _hashable_keys(array: pa.Array, target: pa.DataType) -> list[Hashable]:
    """Keys in the form of a column's values; a key that the column's type can't hold equals none of them."""
    try:
        return hashable_values(cast_exactly(array, target))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        normalise = key_normaliser([target])
        values = python_values(array)
        return values if normalise is None else [normalise(value) for value in values]
