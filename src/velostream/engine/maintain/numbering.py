"""Which group each changed row belongs to, worked out once for all views that group the same rows by the same columns.

What rows contribute to counts and to exact sums follows from the numbers of their groups at the cost of a few passes
over plain integers, many times cheaper than grouping them by their values.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velostream.model.change import CHANGE
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import as_array, key_values, small_integers

_EXACT_IN_DOUBLE = 1 << 53


@dataclass(frozen=True)
class Numbered:
    """Signed rows by the numbers of their groups."""

    numbers: Integers
    """That of each row's group, from 0 on without gaps."""
    keys: pa.Table
    """The values that each group has in common, in the order of the numbers."""
    signs: Integers | None
    """Of each row; None where all of them come."""

    @cached_property
    def key_values(self) -> list[Hashable]:
        return key_values(self.keys, self.keys.column_names)

    @cached_property
    def rows(self) -> Integers:
        """How many rows come to each group, less those that go."""
        return self._counted(None if self.signs is None else self.signs.astype(np.float64))

    def count(self, values: pa.ChunkedArray) -> Integers:
        """How many of the rows' values that aren't NULL come to each group, less those that go."""
        if not values.null_count:
            return self.rows
        weights = as_array(values.is_valid()).to_numpy(zero_copy_only=False).astype(np.float64)
        return self._counted(self._signed(weights))

    def sum(self, values: pa.ChunkedArray) -> Integers | None:
        """The unscaled sum of the rows' integers or decimals for each group, NULL counting as 0.

        None where it might not fit what is computed with.
        """
        whole = small_integers(values)
        if whole is None:
            return None
        weights = whole.astype(np.float64)
        largest = max(-weights.min(initial=0.0), weights.max(initial=0.0))
        # Below that, doubles hold every sum of some of the values exactly, in whatever order it is added up.
        if largest * len(weights) >= _EXACT_IN_DOUBLE:
            return None
        return self._counted(self._signed(weights))

    def _signed(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return weights if self.signs is None else weights * self.signs

    def _counted(self, weights: npt.NDArray[np.float64] | None) -> Integers:
        counted: Integers = np.bincount(self.numbers, weights, self.keys.num_rows).astype(np.int64, copy=False)
        return counted


class Numberings:
    """The numbers of the groups of rows, kept for whoever asks for those of the same columns again. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Hashable, tuple[pa.Table, Numbered]] = {}
        """With the columns that were numbered: while they are kept, no others stand at their addresses."""

    def of(self, changes: pa.Table, keys: Sequence[str]) -> Numbered:
        """Signed rows by groups of equal values, which Arrow must tell apart as SQL does."""
        columns = changes.select([*keys, CHANGE])
        place = tuple(_addresses(column) for column in columns.columns)
        with self._lock:
            known = self._known.get(place)
            if known is None:
                known = self._known[place] = (columns, _numbered(changes, keys))
        numbered = known[1]
        if numbered.keys.column_names == list(keys):
            return numbered
        return Numbered(numbered.numbers, numbered.keys.rename_columns(list(keys)), numbered.signs)


def _addresses(column: pa.ChunkedArray) -> Hashable:
    """What columns have in common that are the same piece of memory."""
    chunks = (
        (chunk.offset, len(chunk), *(None if buffer is None else buffer.address for buffer in chunk.buffers()))
        for chunk in column.chunks
    )
    return (column.type, *chunks)


def _numbered(changes: pa.Table, keys: Sequence[str]) -> Numbered:
    signs = as_array(changes.column(CHANGE)).to_numpy()
    signs = None if signs.min(initial=1) > 0 else signs.astype(np.int64)
    encoded = [as_array(changes.column(key)).dictionary_encode(null_encoding="encode") for key in keys]
    numbers, values = _codes(encoded[0]), [encoded[0].dictionary]
    for column in encoded[1:]:
        numbers, values = _together(numbers, values, column)
    return Numbered(numbers, pa.Table.from_arrays(values, names=list(keys)), signs)


def _together(
    numbers: Integers, values: Sequence[pa.Array], column: pa.DictionaryArray
) -> tuple[Integers, list[pa.Array]]:
    """Groups told apart by one more column, and the values of theirs."""
    width = max(1, len(column.dictionary))
    both = pa.array(numbers * width + _codes(column)).dictionary_encode()
    found = both.dictionary.to_numpy()
    kept = [before.take(pa.array(found // width)) for before in values]
    return _codes(both), [*kept, column.dictionary.take(pa.array(found % width))]


def _codes(column: pa.DictionaryArray) -> Integers:
    codes: Integers = column.indices.to_numpy().astype(np.int64)
    return codes
