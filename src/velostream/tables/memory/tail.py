"""The newest rows, kept one by one until they are worth a chunk.

A row written alone goes to the end of a list as a tuple of Python values, which costs next to nothing. Whoever wants
columns has the rows of the list turned into a chunk, once; positions stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from velostream.tables.memory.chunks import Chunks
from velostream.tables.memory.keys import as_array

Values = tuple[Any, ...]
"""A row as Python values in the order of the columns, in the form of `values.python_values`."""

MOST_ROWS = 4096
"""A list of that many rows becomes a chunk for good."""
_BYTES_PER_VALUE = 64


Patch = dict[int, Any]
"""A row that differs from one in the chunks in a few values: these by the places of their columns, and under `BASE` the
position of that row, which is before the start of the tail. Most of it is never read before it is a column again.
"""
BASE = -1


class TailedChunks:
    """Chunks, and rows that came after them one by one.

    `rows` only grows, by the one writer; a longer chunked form may replace `chunks` at any time and by any thread, as
    it holds the same rows at the same positions. So a reader may keep this and needs no lock.
    """

    __slots__ = ("chunks", "rows", "start")

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        """Cover the positions up to `start`, and as many of `rows` as somebody has asked for."""
        self.start = chunks.length
        self.rows: list[Values | Patch] = []

    @property
    def length(self) -> int:
        return self.start + len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the chunks, and about as many as the rows of the tail take."""
        return self.chunks.nbytes + len(self.rows) * len(self.chunks.schema) * _BYTES_PER_VALUE

    def values_at(self, position: int) -> Values:
        """All values of a row."""
        if position < self.start:
            return self.chunks.values_at(position)
        row = self.rows[position - self.start]
        if isinstance(row, dict):
            known = self.chunks.values_at(row[BASE])
            # The same row in another form, so it doesn't matter who puts it there first.
            row = self.rows[position - self.start] = tuple([row.get(place, old) for place, old in enumerate(known)])
        return row

    def some_values(self, row: Values | Patch, places: Sequence[int]) -> Values | Mapping[int, Any]:
        """Something that gives the values of a row of the tail by these places."""
        if not isinstance(row, dict):
            return row
        readers, at = self.chunks.readers_of(row[BASE])
        return {place: row[place] if place in row else readers[place](at) for place in places}

    def columnar(self, length: int | None = None) -> Chunks:
        """Chunks that hold the first `length` rows (all of them), and perhaps more."""
        chunks = self.chunks
        wanted = self.length if length is None else length
        if chunks.length < wanted:
            fresh = self.rows[chunks.length - self.start : wanted - self.start]
            chunks = self.chunks = chunks.appended(_table_of(fresh, chunks))
        return chunks


def _table_of(rows: Sequence[Values | Patch], chunks: Chunks) -> pa.Table:
    """Rows of the tail as columns, in their order."""
    schema = chunks.schema
    patches = [number for number, row in enumerate(rows) if isinstance(row, dict)]
    if not patches:
        return table_of(rows, schema)
    patched = _patched([rows[number] for number in patches], chunks)
    if len(patches) == len(rows):
        return patched
    others = [number for number, row in enumerate(rows) if not isinstance(row, dict)]
    both = pa.concat_tables([patched, table_of([rows[number] for number in others], schema)])
    return both.take(pa.array(np.argsort(patches + others)))


def _patched(patches: Sequence[Any], chunks: Chunks) -> pa.Table:
    """The rows that patches speak of, with their changes: a whole column at a time."""
    changed = {
        place: [number for number, patch in enumerate(patches) if place in patch]
        for place in set().union(*patches).difference((BASE,))
    }
    # Columns that every patch gives are not read at all.
    kept = [name for place, name in enumerate(chunks.schema.names) if len(changed.get(place, ())) < len(patches)]
    before = chunks.take(np.array([patch[BASE] for patch in patches], dtype=np.int64), kept)
    columns = []
    for place, (name, type_) in enumerate(zip(chunks.schema.names, chunks.schema.types, strict=True)):
        numbers = changed.get(place, [])
        fresh = pa.array([patches[number][place] for number in numbers], type_)
        if len(numbers) == len(patches):
            columns.append(fresh)
            continue
        column = as_array(before.column(name))
        if numbers:
            chosen = np.arange(len(patches))
            chosen[numbers] = len(patches) + np.arange(len(numbers))
            column = pa.concat_arrays([column, fresh]).take(pa.array(chosen))
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=chunks.schema)


def table_of(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Rows of Python values as columns."""
    if not rows:
        return schema.empty_table()
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, schema.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
