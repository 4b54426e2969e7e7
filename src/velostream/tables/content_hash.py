"""A hash of a row's content that is the same in every process, so that the store can find equal rows by it."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from velostream.tables.memory.compare import hashable_rows
from velostream.tables.memory.keys import as_array, hashable_values, unscaled_words

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0x5851F42D4C957F2D)
_SHIFT = np.uint64(29)


def content_hashes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """One hash per row; rows that are equal by value have equal ones. Equal hashes are no proof of equality."""
    hashes = np.zeros(rows.num_rows, dtype=np.uint64)
    for column in rows.columns:
        hashes = (hashes ^ _column_hashes(as_array(column))) * _MULTIPLIER
        hashes ^= hashes >> _SHIFT
    return hashes.view(np.int64)


def content_digests(rows: pa.Table) -> list[bytes]:
    """One digest per row: rows are equal by value exactly when their digests are."""
    return [hashlib.blake2b(_canonical(row), digest_size=16).digest() for row in hashable_rows(rows)]


def _column_hashes(array: pa.Array) -> npt.NDArray[np.uint64]:
    if array.null_count == len(array):
        return np.full(len(array), _NULL)
    hashes = _hashes(array)
    if array.null_count:
        hashes = np.where(array.is_null().to_numpy(zero_copy_only=False), _NULL, hashes)
    return hashes


def _hashes(array: pa.Array) -> npt.NDArray[np.uint64]:
    type_ = array.type
    if pa.types.is_decimal128(type_):
        low, high = (words.view(np.uint64) for words in unscaled_words(array))
        return _hashed(low ^ (high * np.uint64(31)))
    if pa.types.is_floating(type_):
        floats = pc.fill_null(array.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0
        floats[np.isnan(floats)] = np.nan
        return _hashed(floats)
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        texts = pc.fill_null(array, "" if pa.types.is_string(type_) else b"").to_numpy(zero_copy_only=False)
        return _hashed(texts)
    if pa.types.is_nested(type_):
        digests = [hashlib.blake2b(_canonical(value), digest_size=8).digest() for value in hashable_values(array)]
        return np.frombuffer(b"".join(digests), dtype=np.uint64)
    whole = array.cast(pa.int32()) if pa.types.is_date(type_) else array
    return _hashed(pc.fill_null(whole.cast(pa.int64()), 0).to_numpy(zero_copy_only=False))


def _hashed(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    hashes: npt.NDArray[np.uint64] = pd.util.hash_array(values, categorize=False)
    return hashes


def _canonical(value: Hashable) -> bytes:
    """A nested value in its frozen form as bytes: the order of a map's entries doesn't show."""
    if isinstance(value, frozenset):
        return b"{" + b",".join(sorted(map(_canonical, value))) + b"}"
    if isinstance(value, tuple):
        return b"(" + b",".join(map(_canonical, value)) + b")"
    if isinstance(value, float):
        return repr(value + 0.0).encode()
    return repr(value).encode(errors="surrogatepass")
