"""Columns kept compressed and decoded when somebody reads them; those read last stay decoded.

Compressing is for chunks that are rarely read: a value costs the decoding of its chunk's column once that is forgotten.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from velostream.tables.memory.reader import Reader, reader_of

_WORTH_IT = 0.75
"""A column that doesn't become smaller than that part of itself stays as it is."""
_MOST_DECODED_BYTES = 8 << 20


class CompressedColumn:
    """One column of one chunk, as an Arrow stream of its own."""

    __slots__ = ("_stream",)

    def __init__(self, stream: pa.Buffer) -> None:
        self._stream = stream

    @classmethod
    def of(cls, array: pa.Array, codec: str) -> CompressedColumn:
        batch = pa.RecordBatch.from_arrays([array], names=[""])
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        # A copy, as the stream's own memory has room for more at its end.
        return cls(pa.py_buffer(sink.getvalue().to_pybytes()))

    @property
    def nbytes(self) -> int:
        return int(self._stream.size)

    def decoded(self) -> pa.Array:
        return pa.ipc.open_stream(self._stream).read_next_batch().column(0)


@dataclass(slots=True)
class _Decoded:
    array: pa.Array
    reader: Reader | None = None
    """What reads single values of it, once somebody has."""


class DecodedColumns:
    """The columns of a table's compressed chunks that were read last, so many bytes of them. For many threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[CompressedColumn, _Decoded] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def array(self, column: CompressedColumn) -> pa.Array:
        return self._decoded(column).array

    def reader(self, column: CompressedColumn, type_: pa.DataType) -> Reader:
        """What reads single values of a column whose own type this is. It may be kept: it keeps nothing decoded."""

        def read(row: int) -> object:
            decoded = self._decoded(column)
            if decoded.reader is None:
                decoded.reader = reader_of(decoded.array, type_)
            return decoded.reader(row)

        return read

    def forget(self) -> None:
        """Give the memory back; what is read again is decoded again."""
        with self._lock:
            self._known.clear()
            self.nbytes = 0

    def _decoded(self, column: CompressedColumn) -> _Decoded:
        with self._lock:
            known = self._known.get(column)
            if known is not None:
                self._known.move_to_end(column)
                return known
        # Without the lock: that two threads decode the same column now and then costs less than waiting for each other.
        decoded = _Decoded(column.decoded())
        with self._lock:
            if column not in self._known:
                self._known[column] = decoded
                self.nbytes += decoded.array.nbytes
            while self.nbytes > _MOST_DECODED_BYTES and len(self._known) > 1:
                _, forgotten = self._known.popitem(last=False)
                self.nbytes -= forgotten.array.nbytes
        return decoded


@dataclass(frozen=True, slots=True)
class CompressedBatch:
    """Rows of which some columns are compressed. Gives what chunks ask of a record batch."""

    names: tuple[str, ...]
    stored: tuple[pa.Array | CompressedColumn, ...]
    num_rows: int
    decoded: DecodedColumns

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.stored)

    def select(self, names: Sequence[str] | None) -> pa.RecordBatch:
        """These columns (all of them), decoded."""
        wanted = self.names if names is None else tuple(names)
        columns = [self._array(self.stored[self.names.index(name)]) for name in wanted]
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * self.num_rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, names=wanted)

    def readers(self, types: Sequence[pa.DataType]) -> list[Reader]:
        """What reads single values of the columns, whose own types these are."""
        return [
            self.decoded.reader(column, type_) if isinstance(column, CompressedColumn) else reader_of(column, type_)
            for column, type_ in zip(self.stored, types, strict=True)
        ]

    def _array(self, column: pa.Array | CompressedColumn) -> pa.Array:
        return self.decoded.array(column) if isinstance(column, CompressedColumn) else column


@dataclass(frozen=True, slots=True)
class Compression:
    """How the chunks of a table are compressed."""

    codec: str
    plain: frozenset[str]
    """Columns that stay as they are: the key's, which every row that is looked for is compared by."""
    decoded: DecodedColumns = field(default_factory=DecodedColumns, compare=False)

    def compressed(self, batch: pa.RecordBatch) -> CompressedBatch:
        columns = [
            column if name in self.plain else self._smaller(column)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return CompressedBatch(tuple(batch.schema.names), tuple(columns), batch.num_rows, self.decoded)

    def _smaller(self, array: pa.Array) -> pa.Array | CompressedColumn:
        compressed = CompressedColumn.of(array, self.codec)
        return compressed if compressed.nbytes <= _WORTH_IT * array.nbytes else array
