"""Whole rows compared by value: NULL equals NULL, NaN equals NaN, 0.0 equals -0.0, maps in any order of entries."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import as_array, hashable_values, unscaled_words

_NULL_HASH = np.int64(-0x61C8864680B583EB)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


@dataclass(frozen=True, slots=True)
class Matching:
    """Pairs of equal rows of two tables, each row in one pair at most, as many as possible."""

    left: Integers
    right: Integers


def rows_equal(left: pa.Table, right: pa.Table) -> npt.NDArray[np.bool_]:
    """For two tables of one schema and length: whether row i of one equals row i of the other."""
    equal = np.ones(left.num_rows, dtype=np.bool_)
    for one, other in zip(left.columns, right.columns, strict=True):
        # Arrow tells equal columns at once; it finds more differences than there are, never fewer.
        if one.equals(other):
            continue
        if len(one) == 1 and not (pa.types.is_floating(one.type) or pa.types.is_nested(one.type)):
            return np.zeros(1, dtype=np.bool_)
        equal &= _values_equal(one, other)
        if not equal.any():
            break
    return equal


def match_rows(left: pa.Table, right: pa.Table) -> Matching:
    """Match rows of two bags by value."""
    none = np.empty(0, dtype=np.int64)
    if not left.num_rows or not right.num_rows:
        return Matching(none, none)
    left_hashes, right_hashes = row_hashes(left), row_hashes(right)
    left_order = np.argsort(left_hashes, kind="stable")
    right_order = np.argsort(right_hashes, kind="stable")
    left_values, left_starts, left_counts = np.unique(left_hashes[left_order], return_index=True, return_counts=True)
    right_values, right_starts, right_counts = np.unique(
        right_hashes[right_order], return_index=True, return_counts=True
    )
    _, left_groups, right_groups = np.intersect1d(left_values, right_values, assume_unique=True, return_indices=True)
    pairs = np.minimum(left_counts[left_groups], right_counts[right_groups])
    chosen_left = left_order[ranges(left_starts[left_groups], pairs)]
    chosen_right = right_order[ranges(right_starts[right_groups], pairs)]
    equal = rows_equal(left.take(pa.array(chosen_left)), right.take(pa.array(chosen_right)))
    if equal.all():
        return Matching(chosen_left, chosen_right)
    return _match_exactly(left, right)


def row_hashes(rows: pa.Table) -> Integers:
    """A hash per row, equal for equal rows; meaningful in this process only. Equal hashes are no proof of equality."""
    hashes = np.zeros(rows.num_rows, dtype=np.uint64)
    for name in rows.column_names:
        hashes = (hashes ^ _column_hashes(rows.column(name)).view(np.uint64)) * _MIX
        hashes ^= hashes >> _SHIFT
    return hashes.view(np.int64)


def ranges(starts: Integers, counts: Integers) -> Integers:
    """`starts[i], starts[i] + 1, …` of each count, one after another."""
    total = int(counts.sum())
    if not total:
        return np.empty(0, dtype=np.int64)
    offsets = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return offsets + np.arange(total)


def _match_exactly(left: pa.Table, right: pa.Table) -> Matching:
    """Without hashes to trust: for the rare case that two different rows share one."""
    waiting: dict[Hashable, list[int]] = {}
    for index, row in enumerate(hashable_rows(left)):
        waiting.setdefault(row, []).append(index)
    pairs: list[tuple[int, int]] = []
    for index, row in enumerate(hashable_rows(right)):
        candidates = waiting.get(row)
        if candidates:
            pairs.append((candidates.pop(0), index))
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Matching(both[:, 0], both[:, 1])


def hashable_rows(rows: pa.Table) -> list[Hashable]:
    """Every row as one value that is equal exactly for equal rows."""
    if not rows.num_columns:
        return [()] * rows.num_rows
    return list(zip(*(hashable_values(column) for column in rows.columns), strict=True))


def _values_equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    if pa.types.is_null(left.type):
        return np.ones(len(left), dtype=np.bool_)
    if pa.types.is_nested(left.type):
        pairs = zip(hashable_values(left), hashable_values(right), strict=True)
        return np.fromiter((one == other for one, other in pairs), dtype=np.bool_, count=len(left))
    equal = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    if left.null_count or right.null_count:
        equal = pc.or_(pc.fill_null(equal, False), pc.and_(pc.is_null(left), pc.is_null(right)))
    result: npt.NDArray[np.bool_] = _numpy(equal)
    return result


def _column_hashes(column: pa.ChunkedArray) -> Integers:
    array = as_array(column)
    type_ = array.type
    if not len(array) or array.null_count == len(array):
        return np.full(len(array), _NULL_HASH)
    if pa.types.is_decimal128(type_):
        low, high = unscaled_words(array)
        hashes = low ^ (high * np.int64(31))
    elif pa.types.is_floating(type_):
        floats = _numpy(pc.fill_null(array, 0.0)).astype(np.float64) + 0.0
        floats[np.isnan(floats)] = np.nan
        hashes = floats.view(np.int64)
    elif pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        hashes = _numpy(pc.fill_null(array.cast(pa.int64()), 0))
    elif pa.types.is_date(type_):
        hashes = _numpy(pc.fill_null(array.cast(pa.int32()).cast(pa.int64()), 0))
    elif pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        hashes = _numpy(pc.fill_null(array.cast(pa.int64()), 0))
    else:
        hashes = np.fromiter(map(hash, hashable_values(array)), dtype=np.int64, count=len(array))
    if array.null_count:
        hashes = np.where(_numpy(array.is_null()), _NULL_HASH, hashes)
    return np.ascontiguousarray(hashes)


def _numpy(column: pa.Array | pa.ChunkedArray) -> Any:
    """A NumPy array of whatever type the column has."""
    return as_array(column).to_numpy(zero_copy_only=False)
