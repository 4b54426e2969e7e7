"""Indexes over the values of columns other than the key's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from operator import itemgetter
from typing import Any

import pyarrow as pa

from velostream.tables.memory.index import PositionIndex
from velostream.tables.memory.keys import key_normaliser, key_values
from velostream.tables.memory.tail import TailedChunks, Values

_FEW_ROWS = 32
"""More rows than that are read as columns."""


class ColumnIndex(PositionIndex):
    """Takes in rows when it is asked for them, so that a row written alone doesn't pay for indexes nobody reads.

    Asking it takes no lock; growing does, and any thread may have it grow.
    """

    __slots__ = ("_columns", "_end", "_growing", "_places", "_value_of")

    def __init__(self, schema: pa.Schema, columns: tuple[str, ...]) -> None:
        super().__init__()
        self._columns = columns
        self._places = [schema.get_field_index(name) for name in columns]
        self._value_of = key_picker(schema, columns)
        self._growing = threading.Lock()
        self._end = 0
        """Rows from this position on are not in it yet."""

    def grow(self, stored: TailedChunks, length: int) -> None:
        """Take in the rows up to a position."""
        if self._end < length:
            with self._growing:
                start = self._end
                if start < length:
                    self.add(self._values(stored, start, length), start)
                    self._end = length

    def _values(self, stored: TailedChunks, start: int, end: int) -> list[Hashable]:
        first = start - stored.start
        if first >= 0 and end - start <= _FEW_ROWS:
            rows = stored.rows[first : end - stored.start]
            return [self._value_of(stored.some_values(row, self._places)) for row in rows]
        names = list(dict.fromkeys(self._columns))
        return key_values(stored.columnar(end).slice(start, end, names), self._columns)


def key_picker(schema: pa.Schema, columns: tuple[str, ...]) -> Callable[[Values | Mapping[int, Any]], Hashable]:
    """From the values of a row to those of these columns, in the form of `keys.key_values`."""
    if not columns:
        return lambda _: None
    pick = itemgetter(*(schema.get_field_index(name) for name in columns))
    normalise = key_normaliser([schema.field(name).type for name in columns])
    return pick if normalise is None else lambda values: normalise(pick(values))
