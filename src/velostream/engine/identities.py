"""Which rows of a table pairs speak of, and in what order they change them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velostream.tables.memory.compare import hashable_rows
from velostream.tables.memory.keys import key_values

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Identities:
    """Which rows of the table pairs speak of. Equal rows of a bag are one, with their number as its weight."""

    rows: pa.Table
    """One per identity."""
    weights: Integers
    positions: Integers
    """Of each pair: its driving row."""
    identities: Integers
    """Of each pair: its row of the table."""

    @classmethod
    def of(cls, old: pa.Table, positions: Integers, key: tuple[str, ...]) -> Identities:
        values = key_values(old, key) if key else hashable_rows(old)
        numbers: dict[Any, int] = {}
        identities = np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), dtype=np.int64)
        _, firsts = np.unique(identities, return_index=True)
        rows = old.take(firsts)
        if key:
            return cls(rows, np.ones(len(numbers), dtype=np.int64), positions, identities)
        pairs, counts = np.unique(positions * max(len(numbers), 1) + identities, return_counts=True)
        weights = np.zeros(len(numbers), dtype=np.int64)
        weights[pairs % max(len(numbers), 1)] = counts
        return cls(rows, weights, pairs // max(len(numbers), 1), pairs % max(len(numbers), 1))

    def repeated(self, rows: pa.Table, weights: Integers | None = None) -> pa.Table:
        """Rows, each as often as it is there."""
        chosen = self.weights if weights is None else weights
        return rows.take(np.repeat(np.arange(len(chosen)), chosen))

    def rounds(self) -> Iterator[Integers]:
        """Indexes of pairs: those that are the first of their row, then those that are the second, and so on."""
        order = np.argsort(self.identities, kind="stable")
        grouped = self.identities[order]
        starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]]) if len(grouped) else order
        ranks = np.empty(len(order), dtype=np.int64)
        sizes = np.diff(np.r_[starts, len(grouped)])
        ranks[order] = np.arange(len(order)) - np.repeat(starts, sizes)
        by_rank = np.argsort(ranks, kind="stable")
        bounds = np.flatnonzero(np.diff(ranks[by_rank])) + 1
        for one_round in np.split(by_rank, bounds):
            if len(one_round):
                yield one_round
