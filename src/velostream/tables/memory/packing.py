"""Columns in fewer bytes: texts as numbers of a dictionary, numbers as narrow as their values allow.

A packed column has a type of its own; what it was is known by the table's schema.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.tables.memory.keys import unscaled_words

_WIDTHS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_LONGEST_IN_64_BITS = 18


def pack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with every column in the smallest form that holds it."""
    columns = [_packed(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def unpack(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch, or part of one, with its columns as the schema has them."""
    if batch.schema.equals(schema):
        return batch
    columns = [unpacked(column, type_) for column, type_ in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def unpacked(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """A column in its own type."""
    if array.type == type_:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), type_)
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    if pa.types.is_decimal(type_):
        return _decimals(array, type_)
    return array.cast(type_)


def _packed(array: pa.Array) -> pa.Array:
    type_ = array.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return _as_dictionary(array)
    if pa.types.is_integer(type_):
        return _narrowed(array)
    if pa.types.is_decimal128(type_) and type_.precision <= _LONGEST_IN_64_BITS and array.null_count < len(array):
        low, _ = unscaled_words(array)
        mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        return _narrowed(pa.array(np.ascontiguousarray(low), mask=mask))
    return array


def _as_dictionary(array: pa.Array) -> pa.Array:
    encoded = array.dictionary_encode()
    if 2 * len(encoded.dictionary) > len(array):
        return array
    indices = encoded.indices.cast(_narrowest(0, len(encoded.dictionary)))
    packed = pa.DictionaryArray.from_arrays(indices, encoded.dictionary)
    return packed if packed.nbytes < array.nbytes else array


def _narrowed(array: pa.Array) -> pa.Array:
    bounds = pc.min_max(array)
    lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
    return array if lowest is None else array.cast(_narrowest(lowest, highest))


def _narrowest(lowest: int, highest: int) -> pa.DataType:
    return next(
        type_ for type_ in _WIDTHS if -(1 << type_.bit_width - 1) <= lowest and highest < 1 << type_.bit_width - 1
    )


def _decimals(array: pa.Array, type_: pa.DataType) -> pa.Array:
    words = np.empty((len(array), 2), dtype=np.int64)
    numbers = pc.fill_null(array, 0) if array.null_count else array
    words[:, 0] = numbers.to_numpy(zero_copy_only=False)
    words[:, 1] = words[:, 0] >> 63
    validity = None
    if array.null_count:
        validity = pa.array(array.is_valid().to_numpy(zero_copy_only=False)).buffers()[1]
    return pa.Array.from_buffers(type_, len(array), [validity, pa.py_buffer(words)])
