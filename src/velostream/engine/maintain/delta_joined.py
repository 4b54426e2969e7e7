"""Joins of a few rows over Arrow columns, with Spark's answers: what a driven query gives without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from velostream.model.expression import Expression, columns_of
from velostream.model.schema import Column, Schema
from velostream.sql.plan import JoinedQuery, JoinKind, JoinPart
from velostream.tables.memory.compare import ranges
from velostream.tables.memory.evaluate import CannotCompile, Compiled, column_of, compile_expression
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import as_array

_NO_ROW = -1


class JoinedRows:
    """A joined query compiled for the columns of its readers. May be used from one thread at a time."""

    def __init__(self, query: JoinedQuery, *, reads: Mapping[str, Schema], gives: Schema) -> None:
        """`reads` are the columns of the readers; raises `CannotCompile` when Spark has to evaluate it."""
        self._query = query
        self._gives = gives
        columns = [Column(f"{reader}.{c.name}", c.type) for reader, schema in reads.items() for c in schema.columns]
        schema = Schema(tuple(columns))
        self._items = [compile_expression(item, schema) for item in query.items]
        if [item.type for item in self._items] != [column.type for column in gives.columns]:
            raise CannotCompile("Spark gives other types")
        self._condition = _condition(query.condition, schema)
        self._residuals = [_condition(part.residual, schema) for part in query.parts]
        read = set().union(*(columns_of(expression) for expression in _expressions(query)))
        for part in query.parts:
            read |= {*part.left, *(f"{part.reader}.{name}" for name in part.right)}
        self.needed: Mapping[str, tuple[str, ...]] = {
            reader: tuple(name for name in schema.names if f"{reader}.{name}" in read) or schema.names[:1]
            for reader, schema in reads.items()
        }
        """Columns that it reads of each reader."""

    def run(self, rows: Mapping[str, pa.Table]) -> pa.Table:
        """The query's rows over these rows of its readers. Raises `TableError` where an expression fails."""
        joined = _renamed(rows[self._query.first], self._query.first)
        for part, residual in zip(self._query.parts, self._residuals, strict=True):
            joined = _joined(joined, _renamed(rows[part.reader], part.reader), part, residual)
        if self._condition is not None:
            joined = joined.filter(_mask(self._condition, joined))
        columns = [
            column_of(item.run(joined), joined.num_rows, column.type)
            for item, column in zip(self._items, self._gives.columns, strict=True)
        ]
        return pa.Table.from_arrays(columns, names=list(self._gives.names))


@dataclass(frozen=True)
class _Pairs:
    """Numbers of rows of two tables that meet, ascending by the left one."""

    left: Integers
    right: Integers

    def only(self, kept: Integers) -> _Pairs:
        return _Pairs(self.left[kept], self.right[kept])

    def taken(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """The rows side by side; NULLs for a right row that is not there."""
        missing = self.right == _NO_ROW
        chosen = pa.array(self.right, mask=missing if missing.any() else None)
        rows = left.take(pa.array(self.left))
        for name in right.column_names:
            rows = rows.append_column(name, right.column(name).take(chosen))
        return rows


def _joined(left: pa.Table, right: pa.Table, part: JoinPart, residual: Compiled | None) -> pa.Table:
    pairs = _equal_pairs(
        [as_array(left.column(name)) for name in part.left],
        [as_array(right.column(f"{part.reader}.{name}")) for name in part.right],
        lengths=(left.num_rows, right.num_rows),
    )
    if residual is not None:
        mask = _mask(residual, pairs.taken(left, right))
        pairs = pairs.only(np.flatnonzero(mask.to_numpy(zero_copy_only=False)))
    if part.kind is JoinKind.INNER:
        return pairs.taken(left, right)
    met = np.zeros(left.num_rows, dtype=np.bool_)
    met[pairs.left] = True
    if part.kind is not JoinKind.LEFT:
        return left.take(pa.array(np.flatnonzero(met if part.kind is JoinKind.SEMI else ~met)))
    alone = np.flatnonzero(~met)
    whole = _Pairs(np.concatenate([pairs.left, alone]), np.concatenate([pairs.right, np.full(len(alone), _NO_ROW)]))
    return whole.taken(left, right)


def _equal_pairs(left: Sequence[pa.Array], right: Sequence[pa.Array], *, lengths: tuple[int, int]) -> _Pairs:
    """All pairs of rows whose keys are equal and hold no NULL; all pairs there are without keys."""
    left_codes = np.zeros(lengths[0], dtype=np.int64)
    right_codes = np.zeros(lengths[1], dtype=np.int64)
    usable = [np.ones(length, dtype=np.bool_) for length in lengths]
    for one, other in zip(left, right, strict=True):
        both = pa.concat_arrays([_comparable(one), _comparable(other)])
        encoded = both.dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        codes += np.concatenate([left_codes, right_codes]) * len(encoded.dictionary)
        # Numbered anew for every further column, so that they stay small.
        codes = np.unique(codes, return_inverse=True)[1]
        left_codes, right_codes = codes[: lengths[0]], codes[lengths[0] :]
        for known, column in zip(usable, (one, other), strict=True):
            if column.null_count:
                np.logical_and(known, column.is_valid().to_numpy(zero_copy_only=False), out=known)
    left_rows, right_rows = (np.flatnonzero(known) for known in usable)
    order = right_rows[np.argsort(right_codes[right_rows], kind="stable")]
    ordered = right_codes[order]
    wanted = left_codes[left_rows]
    starts = np.searchsorted(ordered, wanted, side="left")
    counts = np.searchsorted(ordered, wanted, side="right") - starts
    return _Pairs(np.repeat(left_rows, counts), order[ranges(starts, counts)])


def _comparable(column: pa.Array) -> pa.Array:
    """Integers of two widths are compared as the wider ones."""
    return column.cast(pa.int64()) if pa.types.is_integer(column.type) else column


def _renamed(rows: pa.Table, reader: str) -> pa.Table:
    return rows.rename_columns([f"{reader}.{name}" for name in rows.column_names])


def _mask(condition: Compiled, rows: pa.Table) -> pa.ChunkedArray:
    """Which rows a condition holds for; NULL is not enough."""
    return column_of(condition.run(rows), rows.num_rows, pa.bool_()).fill_null(False)


def _condition(expression: Expression | None, schema: Schema) -> Compiled | None:
    if expression is None:
        return None
    compiled = compile_expression(expression, schema)
    if compiled.type != pa.bool_():
        raise CannotCompile("a condition that is no BOOLEAN")
    return compiled


def _expressions(query: JoinedQuery) -> Iterator[Expression]:
    yield from query.items
    for expression in (query.condition, *(part.residual for part in query.parts)):
        if expression is not None:
            yield expression
