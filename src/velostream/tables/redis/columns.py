"""Columns as bytes: how values are written in hashes, and how rows travel to and from a script.

Values are texts that people and other programs read: `42`, `1.50`, `2024-05-01 12:00:00.000000Z`; nested ones are JSON.
Rows travel as two strings, the lengths of the values (-1 for NULL) and the values one after another, which is how Arrow
keeps them: nothing is done per value on our side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.tables.memory.keys import as_array
from velostream.tables.relational.codec import decode_nested, encode_nested


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of byte strings on their way to or from a script: lengths, and the values row after row."""

    lengths: bytes
    data: bytes

    @classmethod
    def of(cls, columns: Sequence[pa.Array]) -> Packed:
        """Rows of binary columns, which are equally long."""
        rows = len(columns[0]) if columns else 0
        cells = columns[0] if len(columns) == 1 else pa.concat_arrays([pa.array([], pa.binary()), *columns])
        # By rows instead of by columns; also makes the values lie one after another, with nothing under a NULL.
        by_rows = np.arange(rows * len(columns)).reshape(len(columns), rows).T.ravel()
        cells = pc.take(cells, pa.array(by_rows))
        lengths = pc.fill_null(pc.binary_length(cells), -1)
        data = pc.fill_null(cells, b"").buffers()[2]
        end = int(np.asarray(pc.fill_null(pc.binary_length(cells), 0)).sum())
        return cls(np.asarray(lengths).astype("<i4").tobytes(), b"" if data is None else data.to_pybytes()[:end])

    def columns(self, width: int) -> list[pa.Array]:
        lengths = np.frombuffer(self.lengths, dtype="<i4")
        offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
        missing = lengths < 0
        validity = pa.array(~missing).buffers()[1] if missing.any() else None
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        cells = pa.Array.from_buffers(pa.binary(), len(lengths), buffers)
        return [pc.take(cells, pa.array(np.arange(column, len(lengths), width))) for column in range(width)]


def encode(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The values of a column as byte strings; NULL stays NULL."""
    array = as_array(column)
    type_ = array.type
    if pa.types.is_binary(type_):
        return array
    if pa.types.is_string(type_):
        return array.cast(pa.binary())
    if pa.types.is_null(type_):
        return pa.nulls(len(array), pa.binary())
    if pa.types.is_nested(type_):
        return pa.array(encode_nested(array), pa.string()).cast(pa.binary())
    if pa.types.is_duration(type_):
        array = array.cast(pa.int64())
    return array.cast(pa.string()).cast(pa.binary())


def decode(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Byte strings as values of a type; an Arrow error or `ValueError` for one that is none."""
    if pa.types.is_binary(type_):
        return column
    if pa.types.is_null(type_):
        return pa.nulls(len(column))
    texts = column.cast(pa.string())
    if pa.types.is_string(type_):
        return texts
    if pa.types.is_nested(type_):
        return decode_nested(type_)(texts.to_pylist())
    if pa.types.is_duration(type_):
        return texts.cast(pa.int64()).cast(type_)
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return _instants(texts, type_)
    return texts.cast(type_)


def ids_of_keys(keys: pa.Table, names: Sequence[str], *, plain: bool) -> list[bytes | None]:
    """What follows the colon in a row's key: the key's values, with a comma between them.

    Commas, colons, percent signs and blanks in values are escaped, NULL is a lone percent sign. `plain`: the one value
    as it is, as other programs write it; None then for NULL and for a value with a colon, which begins other names.
    """
    columns = [encode(_canonical(keys.column(name))).to_pylist() for name in names]
    if plain:
        return [None if value is None or b":" in value else value for value in columns[0]]
    if len(columns) == 1:
        return [b"%" if value is None else _escape(value) for value in columns[0]]
    return [
        b",".join(b"%" if value is None else _escape(value) for value in values)
        for values in zip(*columns, strict=True)
    ]


def _escape(value: bytes) -> bytes:
    if value.isalnum():
        return value
    for special in b"%,: \0":
        value = value.replace(bytes([special]), b"%%%02X" % special)
    return value


def _canonical(column: pa.ChunkedArray) -> pa.Array:
    """Equal values written alike: zero has no sign."""
    array = as_array(column)
    return pc.add(array, pa.scalar(0.0, array.type)) if pa.types.is_floating(array.type) else array


def _instants(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        return texts.cast(type_)
    except pa.ArrowInvalid:
        # Other programs may leave the zone away and mean UTC.
        return texts.cast(pa.timestamp(type_.unit)).cast(type_)
