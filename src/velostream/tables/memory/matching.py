"""Hashes of rows and equality of rows, for whole Arrow columns at a time.

Equality is Spark's in a join: NaN equals NaN, 0.0 equals -0.0, NULL inside a struct or array equals NULL. Whether a
NULL as a whole may match is the caller's to decide. Hashes are the same in every process and for every cut into chunks,
so an index written by one process serves the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from velostream.tables.memory.growable import Integers, Mask

Hashes = npt.NDArray[np.uint64]
Column: TypeAlias = pa.Array | pa.ChunkedArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_NULL = np.uint64(0x5851F42D4C957F2D)
NULL_HASH = int(_NULL)
_WORD = 8
_WORD_MASK = (1 << 64) - 1
_LONGEST_VECTORISED = 256
"""Longer texts are hashed one by one: the vectorised way takes a round per word of the longest."""


def hash_rows(columns: Sequence[Column]) -> Hashes:
    """One hash per row; equal rows have equal hashes."""
    hashes = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        start = 0
        for chunk in chunks:
            part = hashes[start : start + len(chunk)]
            part += _hash(chunk)
            start += len(chunk)
        _mix(hashes)
    return hashes


def mixed(number: int) -> int:
    """What hashing makes of one word, for a single value."""
    number &= _WORD_MASK
    number ^= number >> 32
    number = number * int(_MULTIPLIER) & _WORD_MASK
    number ^= number >> 32
    number = number * int(_MULTIPLIER) & _WORD_MASK
    return number ^ number >> 32


def text_hash(text: bytes) -> int:
    """The hash of a single text or binary value, as it is in a column."""
    length = len(text)
    if length > _LONGEST_VECTORISED:
        return int.from_bytes(hashlib.blake2b(text, digest_size=_WORD).digest(), "little")
    hashed = length * int(_GOLDEN) & _WORD_MASK
    for start in range(0, length, _WORD):
        hashed = mixed(hashed + int.from_bytes(text[start : start + _WORD], "little"))
    return hashed


def rows_match(left: Sequence[Column], right: Sequence[Column]) -> Mask:
    """Whether row i of one side equals row i of the other; NULL equals NULL here."""
    equal = np.ones(len(left[0]), dtype=np.bool_)
    for one, other in zip(left, right, strict=True):
        equal &= _equal(as_array(one), as_array(other))
    return equal


def rows_without_null(columns: Sequence[Column]) -> Mask | None:
    """Which rows have a value in every column; None when all have."""
    complete: Mask | None = None
    for column in columns:
        if column.null_count:
            valid = _bools(column.is_valid())
            complete = valid if complete is None else complete & valid
    return complete


def as_array(column: Column) -> pa.Array:
    """A column in one piece."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _mix(hashes: Hashes) -> None:
    """Spread every bit over the whole word, in place."""
    hashes ^= hashes >> _HALF
    hashes *= _MULTIPLIER
    hashes ^= hashes >> _HALF
    hashes *= _MULTIPLIER
    hashes ^= hashes >> _HALF


def _hash(array: pa.Array) -> Hashes:
    type_ = array.type
    if not len(array) or pa.types.is_null(type_):
        return np.full(len(array), _NULL)
    if pa.types.is_struct(type_):
        hashes = hash_rows(array.flatten()) if type_.num_fields else np.zeros(len(array), dtype=np.uint64)
    elif pa.types.is_list(type_) or pa.types.is_map(type_):
        hashes = _hash_lists(array)
    elif pa.types.is_string(type_) or pa.types.is_binary(type_):
        hashes = _hash_texts(array)
    else:
        hashes = np.zeros(len(array), dtype=np.uint64)
        for word in _words(array):
            hashes += word
            _mix(hashes)
    if array.null_count:
        hashes[_bools(array.is_null())] = _NULL
    return hashes


def _words(array: pa.Array) -> list[Hashes]:
    """The values of a type of fixed width as one or two integers; where a value is NULL they mean nothing."""
    type_ = array.type
    if pa.types.is_decimal(type_):
        both = np.frombuffer(array.buffers()[1], np.uint64, count=2 * len(array), offset=16 * array.offset)
        return [both[::2], both[1::2]]
    if pa.types.is_floating(type_):
        # Adding zero makes 0.0 of -0.0.
        floats = _fixed(array, f"f{type_.bit_width // 8}").astype(np.float64) + 0.0
        floats[np.isnan(floats)] = np.nan
        return [floats.view(np.uint64)]
    if pa.types.is_boolean(type_):
        return [_bools(array).astype(np.uint64)]
    return [_fixed(array, f"i{type_.bit_width // 8}").astype(np.int64).view(np.uint64)]


def _fixed(array: pa.Array, code: str) -> npt.NDArray[Any]:
    dtype = np.dtype(code)
    return np.frombuffer(array.buffers()[1], dtype, count=len(array), offset=dtype.itemsize * array.offset)


def _offsets(array: pa.Array) -> Integers:
    """Where each text or list begins, and where the last one ends."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, count=len(array) + 1, offset=4 * array.offset)
    return offsets.astype(np.int64)


def _hash_texts(array: pa.Array) -> Hashes:
    """Word by word for all texts at once: a round takes the next eight bytes of every text that has some left."""
    offsets = _offsets(array)
    first, last = offsets[0], offsets[-1]
    padded = np.zeros(last - first + _WORD, dtype=np.uint8)
    if last > first:
        padded[: last - first] = np.frombuffer(array.buffers()[2], np.uint8, count=last - first, offset=first)
    words = np.ndarray((last - first + 1,), dtype="<u8", buffer=padded.data, strides=(1,))
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    hashes = lengths.astype(np.uint64) * _GOLDEN
    rows = np.flatnonzero((lengths > 0) & (lengths <= _LONGEST_VECTORISED))
    done = 0
    while len(rows):
        left = lengths[rows] - done
        surplus = ((_WORD - np.minimum(left, _WORD)) * 8).astype(np.uint64)
        part = hashes[rows] + ((words[starts[rows] + done] << surplus) >> surplus)
        _mix(part)
        hashes[rows] = part
        done += _WORD
        rows = rows[left > _WORD]
    for row in np.flatnonzero(lengths > _LONGEST_VECTORISED):
        text = padded[starts[row] : starts[row] + lengths[row]].tobytes()
        hashes[row] = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return hashes


def _hash_lists(array: pa.Array) -> Hashes:
    """A sum over the elements, which wraps; each is mixed with its place, but in a map the order means nothing."""
    is_map = pa.types.is_map(array.type)
    offsets, values = _lists(array)
    lengths = np.diff(offsets)
    elements = hash_rows([values.field(0), values.field(1)]) if is_map else hash_rows([values])
    if not is_map:
        elements += (np.arange(len(values)) - np.repeat(offsets[:-1], lengths)).astype(np.uint64) * _GOLDEN
        _mix(elements)
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(elements, dtype=np.uint64)])
    hashes: Hashes = sums[offsets[1:]] - sums[offsets[:-1]] + lengths.astype(np.uint64) * _GOLDEN
    _mix(hashes)
    return hashes


def _lists(array: pa.Array) -> tuple[Integers, pa.Array]:
    """Offsets that start at 0, and the elements they speak of; a NULL has none."""
    lengths = np.zeros(len(array), dtype=np.int64)
    offsets = _offsets(array)
    valid = _bools(array.is_valid())
    lengths[valid] = np.diff(offsets)[valid]
    dense = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    values = _entries(array) if pa.types.is_map(array.type) else array.values
    if dense[-1] == offsets[-1] - offsets[0]:
        return dense, values.slice(offsets[0], dense[-1])
    starts = np.repeat(offsets[:-1] - dense[:-1], lengths)
    return dense, values.take(pa.array(starts + np.arange(dense[-1])))


def _entries(array: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])


def _equal(left: pa.Array, right: pa.Array) -> Mask:
    type_ = left.type
    if pa.types.is_null(type_):
        return np.ones(len(left), dtype=np.bool_)
    if pa.types.is_struct(type_):
        equal = rows_match(left.flatten(), right.flatten()) if type_.num_fields else np.ones(len(left), dtype=np.bool_)
    elif pa.types.is_list(type_) or pa.types.is_map(type_):
        equal = _equal_lists(left, right)
    elif pa.types.is_floating(type_):
        one, other = _words(left)[0], _words(right)[0]
        equal = one == other
    else:
        equal = _bools(pc.fill_null(pc.equal(left, right.cast(type_)), False))
    if left.null_count or right.null_count:
        one_missing, other_missing = _bools(left.is_null()), _bools(right.is_null())
        equal = (equal & ~one_missing & ~other_missing) | (one_missing & other_missing)
    return equal


def _equal_lists(left: pa.Array, right: pa.Array) -> Mask:
    """Maps are compared in the order of their entries."""
    (left_offsets, left_values), (right_offsets, right_values) = _lists(left), _lists(right)
    lengths = np.diff(left_offsets)
    equal: Mask = lengths == np.diff(right_offsets)
    compared = np.where(equal, lengths, 0)
    places = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(compared)])
    within = np.arange(places[-1]) - np.repeat(places[:-1], compared)
    one = left_values.take(pa.array(np.repeat(left_offsets[:-1], compared) + within))
    other = right_values.take(pa.array(np.repeat(right_offsets[:-1], compared) + within))
    different = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(~_equal(one, other))])
    equal &= different[places[1:]] == different[places[:-1]]
    return equal


def _bools(array: Column) -> Mask:
    mask: Mask = as_array(array).to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask
