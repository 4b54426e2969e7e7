"""Figures about the columns of a table, worked out when somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.tables.memory.values import python_value

if TYPE_CHECKING:
    from velostream.tables.memory.snapshot import MemorySnapshot

_SAMPLE_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class ColumnFigures:
    """One column at one version."""

    nulls: int
    min: Any
    """None without values, and for types that have no order."""
    max: Any
    distinct: int
    """Exact for small tables, else estimated from a sample."""


class ColumnStatistics(Mapping[str, ColumnFigures]):
    """By column; each is computed when it is first asked for."""

    def __init__(self, snapshot: MemorySnapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[str, ColumnFigures] = {}

    def __getitem__(self, name: str) -> ColumnFigures:
        known = self._known.get(name)
        if known is None:
            if name not in self._snapshot.schema.names:
                raise KeyError(name)
            known = self._known[name] = _figures(self._snapshot.scan(None, [name]).column(0))
        return known

    def __iter__(self) -> Iterator[str]:
        return iter(self._snapshot.schema.names)

    def __len__(self) -> int:
        return len(self._snapshot.schema.names)

    def __repr__(self) -> str:
        return repr(dict(self))


def _figures(column: pa.ChunkedArray) -> ColumnFigures:
    lowest, highest = None, None
    if not pa.types.is_nested(column.type) and not pa.types.is_null(column.type) and len(column):
        bounds = pc.min_max(column)
        lowest, highest = python_value(bounds["min"]), python_value(bounds["max"])
    return ColumnFigures(column.null_count, lowest, highest, _distinct(column))


def _distinct(column: pa.ChunkedArray) -> int:
    """Distinct values without NULL: what a sample shows, and of those it shows once as many as the rest may hold."""
    valid = column.drop_null()
    if pa.types.is_nested(column.type) or not len(valid):
        return len(valid)
    if len(valid) <= _SAMPLE_ROWS:
        return int(pc.count_distinct(valid).as_py())
    chosen = np.sort(np.random.default_rng(0).choice(len(valid), _SAMPLE_ROWS, replace=False))
    counts = pc.value_counts(valid.take(pa.array(chosen)).combine_chunks()).field("counts").to_numpy()
    once = int(np.count_nonzero(counts == 1))
    estimate = len(counts) - once + once * np.sqrt(len(valid) / _SAMPLE_ROWS)
    if once == _SAMPLE_ROWS:
        return len(valid)
    return min(len(valid), int(estimate))
