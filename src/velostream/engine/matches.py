"""Which of the rows that a key finds a lookup means: the nearest, any one that passes, or none; done in the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.engine.replica import LookupReplica
from velostream.engine.spark_failures import WorkerError
from velostream.errors import VelostreamError
from velostream.model.expression import Expression, columns_of
from velostream.model.schema import Schema
from velostream.sql.plan import AsOf
from velostream.tables.memory.evaluate import CannotCompile, column_of, compile_expression
from velostream.tables.memory.growable import Integers, Mask
from velostream.tables.memory.hash_index import Pairs
from velostream.tables.memory.matching import hash_rows, rows_match


@dataclass(frozen=True)
class AnyRow:
    """A lookup that is content with one row per key, whichever it is, as long as it fulfils a condition.

    Pickled with what the workers do, so it holds the condition as data. An error of it comes back with the token.
    """

    schema: Schema
    """Of the table."""
    condition: Expression | None
    token: str

    def of(self, replica: LookupReplica, keys: Sequence[pa.Array], *, most: int | None) -> Pairs:
        """A row of the table for each row of the batch that has one.

        Each distinct key is looked up once: however often a key comes and however many rows it has, no more pairs are
        looked at than the table has rows.
        """
        firsts, numbers = _distinct(keys)
        pairs = replica.find([key.take(pa.array(firsts)) for key in keys], most=most)
        if self.condition is not None:
            passing = self._passing(replica, pairs.positions, self.condition)
            pairs = Pairs(pairs.rows[passing], pairs.positions[passing])
        found = np.full(len(firsts), -1)
        # Of several positions written for one key the last one stays: written backwards, the first of the table.
        found[pairs.rows[::-1]] = pairs.positions[::-1]
        positions = found[numbers]
        rows = np.flatnonzero(positions >= 0)
        return Pairs(rows, positions[rows])

    def _passing(self, replica: LookupReplica, positions: Integers, condition: Expression) -> Mask:
        names = [self.schema.column(name).name for name in columns_of(condition)] or self.schema.names[:1]
        rows = pa.table(replica.take(positions, names), names=list(names))
        read = Schema(tuple(self.schema.column(name) for name in names))
        try:
            passing = compile_expression(condition, read).run(rows)
        except VelostreamError as error:
            raise WorkerError(error, token=self.token) from error
        return np.asarray(pc.fill_null(column_of(passing, rows.num_rows, pa.bool_()), False))


def can_evaluate(condition: Expression, schema: Schema) -> bool:
    """Whether the workers can evaluate a condition over rows of these columns, or Spark has to."""
    try:
        return bool(compile_expression(condition, schema).type == pa.bool_())
    except CannotCompile:
        return False


def _distinct(keys: Sequence[pa.Array]) -> tuple[Integers, Integers]:
    """A row for each distinct key, and for each row which of those is like it."""
    _, firsts, numbers = np.unique(hash_rows(keys), return_index=True, return_inverse=True)
    alike = rows_match(keys, [key.take(pa.array(firsts[numbers])) for key in keys])
    if alike.all():
        return firsts, numbers
    # Two keys of one hash: as rare as it gets.
    every = np.arange(len(numbers))
    return every, every


def nearest(pairs: Pairs, times: pa.Array, versions: pa.Array, as_of: AsOf) -> Pairs:
    """Of the pairs of each row the one whose version is the nearest; of equal versions the table's last."""
    asked = times.take(pa.array(pairs.rows))
    comparisons = {
        (True, True): pc.greater_equal,
        (True, False): pc.greater,
        (False, True): pc.less_equal,
        (False, False): pc.less,
    }
    fits = comparisons[as_of.is_latest, as_of.is_inclusive](asked, versions).fill_null(False)
    mask = np.asarray(fits)
    rows, positions = pairs.rows[mask], pairs.positions[mask]
    candidates = pa.table({"row": rows, "version": versions.filter(fits)})
    direction = "ascending" if as_of.is_latest else "descending"
    order = np.asarray(pc.sort_indices(candidates, sort_keys=[("row", "ascending"), ("version", direction)]))
    rows, positions = rows[order], positions[order]
    last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
    return Pairs(rows[last], positions[last])


def with_missing(pairs: Pairs, count: int) -> Pairs:
    """The pairs, and -1 for every row that has none, in the order of the rows."""
    missing = np.ones(count, dtype=np.bool_)
    missing[pairs.rows] = False
    if not missing.any():
        return pairs
    rows = np.concatenate([pairs.rows, np.flatnonzero(missing)])
    positions = np.concatenate([pairs.positions, np.full(len(rows) - len(pairs.rows), -1)])
    order = np.argsort(rows, kind="stable")
    return Pairs(rows[order], positions[order])
