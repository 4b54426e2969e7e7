"""Rows at positions that never change, as Arrow chunks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from velostream.tables.memory.compressed import CompressedBatch, Compression
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.packing import pack, unpack
from velostream.tables.memory.reader import Reader, reader_of

_FAN_OUT_BITS = 3
_FAN_OUT = 1 << _FAN_OUT_BITS
_LARGEST_MERGED_ROWS = 1 << 20
_HARMLESS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ChunkPolicy:
    """What becomes of chunks as they pile up."""

    pack_rows: int | None = None
    """Chunks of that many rows, and all before them, are packed."""
    largest_bytes: int = 1 << 29
    """No larger chunk is made by merging."""
    compression: Compression | None = None
    """How packed chunks are compressed, in pieces of `pack_rows`."""


ORDINARY = ChunkPolicy()

StoredBatch: TypeAlias = pa.RecordBatch | CompressedBatch


@dataclass(frozen=True, slots=True)
class Chunks:
    """Record batches one after another; row `p` is the `p`-th of them all. Immutable: a reader keeps what it took.

    The first of them are sealed: they are never merged again, and may be packed. The first of these may be mapped from
    files.
    """

    schema: pa.Schema
    policy: ChunkPolicy = ORDINARY
    batches: tuple[StoredBatch, ...] = ()
    """As they are stored: packed or not, compressed or not."""
    starts: tuple[int, ...] = (0,)
    """Position of each batch's first row, and the number of all rows at the end."""
    sealed: int = 0
    mapped: int = 0
    _readers: dict[int, Sequence[Reader]] = field(default_factory=dict, compare=False, repr=False)
    """For each batch that somebody has read single values of: what reads its columns."""

    @property
    def length(self) -> int:
        return self.starts[-1]

    @property
    def nbytes(self) -> int:
        """Bytes held in memory: what is mapped from files isn't."""
        compression = self.policy.compression
        decoded = 0 if compression is None else compression.decoded.nbytes
        return decoded + sum(batch.nbytes for batch in self.batches[self.mapped :])

    @property
    def mapped_bytes(self) -> int:
        """Bytes in mapped files."""
        return sum(batch.nbytes for batch in self.batches[: self.mapped])

    def appended(self, rows: pa.Table) -> Chunks:
        """With further rows at the end; small chunks are merged so that there are never more than a few dozen."""
        batches = list(self.batches[self.sealed :])
        for batch in rows.combine_chunks().to_batches():
            if batch.num_rows:
                batches.append(_without_surplus(batch))
                _merge_tail(batches, self.policy)
        sealed = list(self.batches[: self.sealed])
        if self.policy.pack_rows is not None:
            large = [index for index, batch in enumerate(batches) if batch.num_rows >= self.policy.pack_rows]
            for _ in range(large[-1] + 1 if large else 0):
                sealed += _packed(batches.pop(0), self.policy)
        return self._with_batches((*sealed, *batches), sealed=len(sealed))

    def merged(self) -> Chunks:
        """With all that is not sealed yet in as few batches as may be, and sealed."""
        runs: list[list[pa.RecordBatch]] = []
        size = 0
        for batch in self.batches[self.sealed :]:
            if not runs or size + batch.nbytes > ORDINARY.largest_bytes:
                runs.append([])
                size = 0
            runs[-1].append(batch)
            size += batch.nbytes
        merged = [pa.concat_batches(run) for run in runs]
        if self.policy.pack_rows is not None:
            merged = [pack(batch) for batch in merged]
        batches = (*self.batches[: self.sealed], *merged)
        return self._with_batches(batches, sealed=len(batches))

    def with_mapped(self, count: int, spill: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Chunks:
        """With `count` more of the first batches mapped from files, which `spill` writes."""
        batches = list(self.batches)
        mapped = self.mapped + count
        for index in range(self.mapped, mapped):
            batches[index] = spill(_select(batches[index], None))
        return replace(self._with_batches(tuple(batches), sealed=max(self.sealed, mapped)), mapped=mapped)

    def with_columns(self, schema: pa.Schema) -> Chunks:
        """With the further columns that a schema has at its end; they are NULL in every row."""
        further = [schema.field(place) for place in range(len(self.schema), len(schema))]
        batches = tuple(
            _widened(batch, further, sealed=index < self.sealed) for index, batch in enumerate(self.batches)
        )
        return Chunks(schema, self.policy, batches, self.starts, self.sealed, self.mapped)

    def unpacked(self, index: int) -> pa.RecordBatch:
        """A batch with the columns of the schema."""
        return unpack(_select(self.batches[index], None), self.schema)

    def readers_of(self, position: int) -> tuple[Sequence[Reader], int]:
        """What reads the columns of the batch that holds a position, and the row in them."""
        index = bisect_right(self.starts, position) - 1
        readers = self._readers.get(index)
        if readers is None:
            batch, types = self.batches[index], self.schema.types
            if isinstance(batch, CompressedBatch):
                readers = batch.readers(types)
            else:
                readers = [reader_of(column, type_) for column, type_ in zip(batch.columns, types, strict=True)]
            self._readers[index] = readers
        return readers, position - self.starts[index]

    def values_at(self, position: int, places: Sequence[int] | None = None) -> tuple[Any, ...]:
        """The values of a row (in the columns at these places), as Python has them."""
        readers, row = self.readers_of(position)
        if places is not None:
            return tuple([readers[place](row) for place in places])
        return tuple([read(row) for read in readers])

    def head(self, length: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The first `length` rows without copying them, unless they are packed."""
        return self.slice(0, length, columns)

    def slice(self, start: int, end: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows from one position to another without copying them, unless they are packed."""
        schema = self._projected(columns)
        first, last = bisect_right(self.starts, start) - 1, bisect_left(self.starts, end)
        pieces = [unpack(_select(batch, columns), schema) for batch in self.batches[first:last]]
        whole = pa.Table.from_batches(pieces, schema)
        return whole if whole.num_rows == end - start else whole.slice(start - self.starts[first], end - start)

    def take(self, positions: Integers, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows at positions, in their order. Costs what is taken, not what the chunks hold."""
        if columns is not None and not columns:
            # PyArrow 26 forgets how many rows there are when it concatenates or takes from tables without columns.
            return self.take(positions, self.schema.names[:1]).select([])
        schema = self._projected(columns)
        if not len(positions):
            return schema.empty_table()
        if len(positions) == 1:
            return self._take_from(bisect_right(self.starts, int(positions[0])) - 1, positions, columns, schema)
        if len(self.batches) == 1:
            return self._take_from(0, positions, columns, schema)
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
        return Chunks(self.schema, self.policy).appended(self.take(keep))

    def _with_batches(self, batches: tuple[StoredBatch, ...], *, sealed: int) -> Chunks:
        starts = [0]
        for batch in batches:
            starts.append(starts[-1] + batch.num_rows)
        known = self._readers.copy()
        readers = {
            index: known[index]
            for index, (one, other) in enumerate(zip(self.batches, batches, strict=False))
            if one is other and index in known
        }
        return Chunks(self.schema, self.policy, batches, tuple(starts), sealed, self.mapped, readers)

    def _take_from(self, chunk: int, positions: Integers, columns: Sequence[str] | None, schema: pa.Schema) -> pa.Table:
        batch, start = _select(self.batches[chunk], columns), self.starts[chunk]
        first, count = int(positions[0]), len(positions)
        if int(positions[-1]) - first == count - 1 and (
            count == 1 or bool((positions[1:] - positions[:-1] == 1).all())
        ):
            # One after another: nothing to copy.
            return _table(batch.slice(first - start, count), schema)
        return _table(batch.take(pa.array(positions - start)), schema)

    def _projected(self, columns: Sequence[str] | None) -> pa.Schema:
        return self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])


def _select(batch: StoredBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
    if isinstance(batch, CompressedBatch):
        return batch.select(columns)
    return batch if columns is None else batch.select(list(columns))


def widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with the further columns that a schema has at its end; they are NULL in every row."""
    further = [pa.nulls(batch.num_rows, type_) for type_ in schema.types[batch.num_columns :]]
    return pa.RecordBatch.from_arrays([*batch.columns, *further], schema=schema)


def _widened(batch: StoredBatch, further: Sequence[pa.Field], *, sealed: bool) -> StoredBatch:
    """A batch with further columns of NULL, which take no memory where nothing is merged with them any more."""
    columns = [pa.nulls(batch.num_rows, None if sealed else field.type) for field in further]
    names = [field.name for field in further]
    if isinstance(batch, CompressedBatch):
        return replace(batch, names=(*batch.names, *names), stored=(*batch.stored, *columns))
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], names=[*batch.schema.names, *names])


def _packed(batch: pa.RecordBatch, policy: ChunkPolicy) -> list[StoredBatch]:
    """A chunk that won't be merged again in its smallest form; in pieces if it is compressed, which are read whole."""
    compression, rows = policy.compression, policy.pack_rows
    if compression is None or rows is None:
        return [pack(batch)]
    pieces = (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))
    return [compression.compressed(pack(piece)) for piece in pieces]


def _table(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([unpack(batch, schema)], schema)


def _without_surplus(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without what it merely holds on to: a slice keeps all of the memory it was cut from."""
    if batch.get_total_buffer_size() <= 2 * batch.nbytes + _HARMLESS_BYTES:
        return batch
    return batch.take(pa.array(range(batch.num_rows), type=pa.int64()))


def _merge_tail(batches: list[pa.RecordBatch], policy: ChunkPolicy) -> None:
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
        if run < _FAN_OUT or sum(batch.nbytes for batch in batches[-run:]) > policy.largest_bytes:
            return
        batches[-run:] = [pa.concat_batches(batches[-run:])]


def _tier(batch: pa.RecordBatch) -> int:
    return int(batch.num_rows).bit_length() // _FAN_OUT_BITS
