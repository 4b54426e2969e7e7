"""Many changes of one row at once, where their order can't show: amounts added to a column, and values that replace it.

`stock = stock - quantity` for a thousand rows of one product is one subtraction of their sum. Only exact arithmetic is
folded, and only if no step on the way could have failed: otherwise the changes go one after another, in rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from velostream.model.expression import Call, Cast, ColumnRef, Expression, columns_of
from velostream.model.schema import Column, Schema

_MARGIN = 0.999
"""Bounds are computed in floating point, so values this near to a type's limit are left to the exact way."""
_WIDE = 50
"""Digits of intermediate sums; more than any column has."""
_Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FoldedStep:
    """What an assignment does to its column: replace it, or add to it (with a sign)."""

    column: Column
    value: Expression
    sign: int = 0
    """0: the value replaces what is there."""


@dataclass(frozen=True)
class Fold:
    """The assignments of an UPDATE, all of them such that the order of changes can't show."""

    steps: tuple[FoldedStep, ...]

    @classmethod
    def of(cls, assignments: Mapping[str, Expression], schema: Schema) -> Fold | None:
        """None when some assignment depends on the row in another way."""
        steps = [_step(schema.column(name), value, schema) for name, value in assignments.items()]
        return cls(tuple(step for step in steps if step is not None)) if None not in steps else None

    def apply(self, rows: pa.Table, identities: _Integers, values: Sequence[pa.ChunkedArray]) -> pa.Table | None:
        """The rows after all changes; None when a step on the way might have failed.

        `identities` say for each change, in order, which row it is of; `values` are those of the steps for each
        change, the ones that replace already of their column's type.
        """
        changed = rows
        for step, column in zip(self.steps, values, strict=True):
            at = changed.column_names.index(step.column.name)
            if step.sign:
                new = _added(changed.column(at), column, identities, step)
            else:
                new = column.take(_last_of_each(identities, rows.num_rows))
            if new is None:
                return None
            changed = changed.set_column(at, pa.field(step.column.name, new.type), new)
        return changed


def _step(column: Column, value: Expression, schema: Schema) -> FoldedStep | None:
    own = {name for name in columns_of(value) if schema.find(name) is not None}
    if not own:
        return FoldedStep(column, value)
    match value:
        case Call("+" | "-" as operator, (left, right)) if _is(left, column):
            amount, sign = right, 1 if operator == "+" else -1
        case Call("+", (left, right)) if _is(right, column):
            amount, sign = left, 1
        case _:
            return None
    if any(schema.find(name) is not None for name in columns_of(amount)):
        return None
    return FoldedStep(column, amount, sign)


def _is(expression: Expression, column: Column) -> bool:
    """Whether it is the column itself, maybe in a wider type."""
    while isinstance(expression, Cast):
        expression = expression.value
    return expression == ColumnRef(column.name)


def _last_of_each(identities: _Integers, count: int) -> _Integers:
    last = np.zeros(count, dtype=np.int64)
    last[identities] = np.arange(len(identities))
    return last


def _added(old: pa.ChunkedArray, amounts: pa.ChunkedArray, identities: _Integers, step: FoldedStep) -> Any:
    limit = _limit(step.column.type, amounts.type)
    if limit is None or amounts.null_count:
        return None
    sizes = np.abs(np.asarray(amounts.cast(pa.float64())))
    reached = np.bincount(identities, weights=sizes, minlength=len(old)) + np.abs(
        np.asarray(old.cast(pa.float64()).fill_null(0.0))
    )
    if reached.size and reached.max() >= limit * _MARGIN:
        return None
    sums = pa.table({"row": identities, "amount": amounts}).group_by("row").aggregate([("amount", "sum")])
    sums = sums.sort_by("row").column("amount_sum")
    wide = pa.int64() if pa.types.is_integer(step.column.type) else pa.decimal256(_WIDE, step.column.type.scale)
    if pa.types.is_integer(sums.type) and pa.types.is_decimal(wide):
        sums = sums.cast(pa.decimal128(38, 0))
    total = sums.cast(wide)
    combine = pc.add if step.sign > 0 else pc.subtract
    return combine(old.cast(wide), total).cast(step.column.type)


def _limit(column: pa.DataType, amount: pa.DataType) -> float | None:
    """What no value on the way may reach; None when the sum of amounts isn't the same as one after another."""
    if pa.types.is_integer(column) and pa.types.is_integer(amount):
        return float(2 ** (min(column.bit_width, amount.bit_width, 64) - 1))
    if not pa.types.is_decimal(column):
        return None
    if pa.types.is_decimal(amount) and amount.scale > column.scale:
        return None
    if not (pa.types.is_decimal(amount) or pa.types.is_integer(amount)):
        return None
    return float(10.0 ** (column.precision - column.scale))
