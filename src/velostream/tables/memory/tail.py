"""The newest rows, kept one by one until they are worth a chunk.

A row written alone goes to the end of a list as a tuple of Python values, which costs next to nothing. Whoever wants
columns has the rows of the list turned into a chunk, once; positions stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from velostream.tables.memory.chunks import Chunks

Values = tuple[Any, ...]
"""A row as Python values in the order of the columns, in the form of `values.python_values`."""

MOST_ROWS = 4096
"""A list of that many rows becomes a chunk for good."""
_BYTES_PER_VALUE = 64


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
        self.rows: list[Values] = []

    @property
    def length(self) -> int:
        return self.start + len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the chunks, and about as many as the rows of the tail take."""
        return self.chunks.nbytes + len(self.rows) * len(self.chunks.schema) * _BYTES_PER_VALUE

    def columnar(self, length: int | None = None) -> Chunks:
        """Chunks that hold the first `length` rows (all of them), and perhaps more."""
        chunks = self.chunks
        wanted = self.length if length is None else length
        if chunks.length < wanted:
            fresh = self.rows[chunks.length - self.start : wanted - self.start]
            chunks = self.chunks = chunks.appended(table_of(fresh, chunks.schema))
        return chunks


def table_of(rows: Sequence[Values], schema: pa.Schema) -> pa.Table:
    """Rows of Python values as columns."""
    if not rows:
        return schema.empty_table()
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, schema.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
