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
from velostream.tables.memory.keys import as_array, hashable_values
from velostream.tables.memory.matching import Hashes, hash_rows

_FEW_ROWS = 1000
"""So many are matched value by value faster than by their hashes."""


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
    if left.num_rows + right.num_rows <= _FEW_ROWS:
        return _match_exactly(left, right)
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


def row_hashes(rows: pa.Table) -> Hashes:
    """A hash per row, equal for equal rows. Equal hashes are no proof of equality."""
    return hash_rows(rows.columns) if rows.num_columns else np.zeros(rows.num_rows, dtype=np.uint64)


def first_equal_rows(rows: pa.Table, hashes: Hashes) -> Integers:
    """For each row the first one that equals it, which may be itself; `hashes` are those of the rows."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    begins, lengths = runs(ordered)
    firsts = np.arange(rows.num_rows)
    if len(begins) == rows.num_rows:
        return firsts
    firsts[order] = np.repeat(order[begins], lengths)
    others = np.flatnonzero(firsts != np.arange(len(firsts)))
    if not rows_equal(rows.take(pa.array(others)), rows.take(pa.array(firsts[others]))).all():
        known: dict[Hashable, int] = {}
        firsts = np.array([known.setdefault(row, place) for place, row in enumerate(hashable_rows(rows))])
    return firsts


def runs(values: npt.NDArray[Any]) -> tuple[Integers, Integers]:
    """Where runs of one value begin, and how long they are."""
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    bounds = np.concatenate(([0], changes, [len(values)])) if len(values) else np.zeros(1, dtype=np.int64)
    return bounds[:-1], bounds[1:] - bounds[:-1]


def ranges(starts: Integers, counts: Integers) -> Integers:
    """`starts[i], starts[i] + 1, …` of each count, one after another."""
    total = int(counts.sum())
    if not total:
        return np.empty(0, dtype=np.int64)
    offsets = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return offsets + np.arange(total)


def _match_exactly(left: pa.Table, right: pa.Table) -> Matching:
    """Value by value: for few rows, and for the rare case that two different rows share a hash."""
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


def _numpy(column: pa.Array | pa.ChunkedArray) -> Any:
    """A NumPy array of whatever type the column has."""
    return as_array(column).to_numpy(zero_copy_only=False)
