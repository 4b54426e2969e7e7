"""Values by which of them are NULL, for stores that find NULLs only apart from other values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from velostream.tables.relational.layout import StoredColumn


@dataclass(frozen=True, slots=True)
class NullPattern:
    """Rows of values that have NULL in the same columns."""

    numbers: pa.Array
    """Which rows."""
    rows: pa.Table
    nulls: frozenset[int]
    """The positions of the columns in which they are NULL."""


def by_nulls(columns: Sequence[StoredColumn], values: pa.Table) -> Iterator[NullPattern]:
    """The values in as many parts as there are patterns of NULLs in them.

    An equality that calls NULL equal uses no index and no hash join in some stores, and gives wrong answers in others.
    """
    if not any(values.column(column.name).null_count for column in columns):
        yield NullPattern(pa.array(range(values.num_rows), pa.int64()), values, frozenset())
        return
    masks = [values.column(column.name).is_null().to_pylist() for column in columns]
    groups: dict[tuple[bool, ...], list[int]] = {}
    for number, pattern in enumerate(zip(*masks, strict=True)):
        groups.setdefault(pattern, []).append(number)
    for pattern, group in groups.items():
        numbers = pa.array(group, pa.int64())
        yield NullPattern(numbers, values.take(numbers), frozenset(at for at, null in enumerate(pattern) if null))
