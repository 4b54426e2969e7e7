"""Rows at positions that never change, as Arrow chunks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from velostream.tables.memory.growable import Integers
from velostream.tables.memory.reader import Reader, reader_of

_FAN_OUT_BITS = 3
_FAN_OUT = 1 << _FAN_OUT_BITS
_LARGEST_MERGED_ROWS = 1 << 20
_LARGEST_MERGED_BYTES = 1 << 29
_HARMLESS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Chunks:
    """Record batches one after another; row `p` is the `p`-th of them all. Immutable: a reader keeps what it took."""

    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...] = ()
    starts: tuple[int, ...] = (0,)
    """Position of each batch's first row, and the number of all rows at the end."""
    _readers: dict[int, Sequence[Reader]] = field(default_factory=dict, compare=False, repr=False)
    """For each batch that somebody has read single values of: what reads its columns."""

    @property
    def length(self) -> int:
        return self.starts[-1]

    @property
    def nbytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)

    def appended(self, rows: pa.Table) -> Chunks:
        """With further rows at the end; small chunks are merged so that there are never more than a few dozen."""
        batches = list(self.batches)
        for batch in rows.combine_chunks().to_batches():
            if batch.num_rows:
                batches.append(_compact(batch))
                _merge_tail(batches)
        starts = [0]
        for batch in batches:
            starts.append(starts[-1] + batch.num_rows)
        same = sum(1 for one, other in zip(self.batches, batches, strict=False) if one is other)
        readers = {index: readers for index, readers in self._readers.copy().items() if index < same}
        return Chunks(self.schema, tuple(batches), tuple(starts), readers)

    def readers_of(self, position: int) -> tuple[Sequence[Reader], int]:
        """What reads the columns of the batch that holds a position, and the row in them."""
        index = bisect_right(self.starts, position) - 1
        readers = self._readers.get(index)
        if readers is None:
            readers = self._readers[index] = [reader_of(column) for column in self.batches[index].columns]
        return readers, position - self.starts[index]

    def values_at(self, position: int) -> tuple[Any, ...]:
        """All values of a row, as Python has them."""
        readers, row = self.readers_of(position)
        return tuple([read(row) for read in readers])

    def locate(self, position: int) -> tuple[pa.RecordBatch, int]:
        """The batch that holds a position, and the row in it."""
        index = bisect_right(self.starts, position) - 1
        return self.batches[index], position - self.starts[index]

    def head(self, length: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The first `length` rows without copying them."""
        schema = self._projected(columns)
        table = pa.Table.from_batches([self._select(batch, columns) for batch in self.batches], schema)
        return table if table.num_rows == length else table.slice(0, length)

    def take(self, positions: Integers, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows at positions, in their order. Costs what is taken, not what the chunks hold."""
        schema = self._projected(columns)
        if not len(positions):
            return schema.empty_table()
        if len(positions) == 1:
            batch, row = self.locate(int(positions[0]))
            return _table(self._select(batch, columns).slice(row, 1), schema)
        if len(self.batches) == 1:
            return _table(self._select(self.batches[0], columns).take(pa.array(positions)), schema)
        chunk_of = np.searchsorted(np.asarray(self.starts[1:]), positions, side="right")
        if chunk_of[0] == chunk_of[-1] and (chunk_of == chunk_of[0]).all():
            return self._take_from(int(chunk_of[0]), positions, columns, schema)
        in_order = bool((chunk_of[1:] >= chunk_of[:-1]).all())
        order = None if in_order else np.argsort(chunk_of, kind="stable")
        grouped = positions if order is None else positions[order]
        grouped_chunks = chunk_of if order is None else chunk_of[order]
        ends = np.searchsorted(grouped_chunks, grouped_chunks, side="right")
        pieces: list[pa.Table] = []
        start = 0
        while start < len(grouped):
            end = int(ends[start])
            pieces.append(self._take_from(int(grouped_chunks[start]), grouped[start:end], columns, schema))
            start = end
        found = pa.concat_tables(pieces).combine_chunks()
        if order is None:
            return found
        inverse = np.empty(len(order), dtype=np.int64)
        inverse[order] = np.arange(len(order))
        return found.take(pa.array(inverse))

    def filtered(self, keep: Integers) -> Chunks:
        """Only the rows at the given ascending positions, renumbered from 0."""
        return Chunks(self.schema).appended(self.take(keep))

    def _take_from(self, chunk: int, positions: Integers, columns: Sequence[str] | None, schema: pa.Schema) -> pa.Table:
        batch = self._select(self.batches[chunk], columns)
        return _table(batch.take(pa.array(positions - self.starts[chunk])), schema)

    def _projected(self, columns: Sequence[str] | None) -> pa.Schema:
        return self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])

    @staticmethod
    def _select(batch: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
        return batch if columns is None else batch.select(list(columns))


def _table(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([batch], schema)


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without what it merely holds on to: a slice keeps all of the memory it was cut from."""
    if batch.get_total_buffer_size() <= 2 * batch.nbytes + _HARMLESS_BYTES:
        return batch
    return batch.take(pa.array(range(batch.num_rows), type=pa.int64()))


def _merge_tail(batches: list[pa.RecordBatch]) -> None:
    """Merge the last chunks once enough of a size have piled up; a row is copied O(log n) times in its life."""
    while True:
        tier = _tier(batches[-1])
        run = 0
        rows = 0
        for batch in reversed(batches):
            if _tier(batch) > tier or rows + batch.num_rows > _LARGEST_MERGED_ROWS:
                break
            run += 1
            rows += batch.num_rows
        if run < _FAN_OUT or sum(batch.nbytes for batch in batches[-run:]) > _LARGEST_MERGED_BYTES:
            return
        batches[-run:] = [pa.concat_batches(batches[-run:])]


def _tier(batch: pa.RecordBatch) -> int:
    return int(batch.num_rows).bit_length() // _FAN_OUT_BITS
