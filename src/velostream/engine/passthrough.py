"""Answer a SELECT over one table from its snapshot, with the values and types Spark would give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from velostream.engine.grouping import average_of, columns_read, grouped, grouping_of, results, sum_of
from velostream.model.types import render_type
from velostream.sql.coercion import is_atomic, is_float, is_integer
from velostream.sql.lower import NotLowerable
from velostream.sql.plan import AggregateFunction, Item, Order, PassthroughPlan
from velostream.tables.base import Snapshot

_MAX_DIGITS = 38
_MOST_DIGITS = 76
_LOW_WORD = (1 << 32) - 1


def answer(plan: PassthroughPlan, snapshot: Snapshot) -> pa.Table:
    """The plan's rows at the snapshot's version.

    Raises `NotLowerable` for an item the table can't answer as Spark would, and `QueryError` when a sum overflows.
    """
    if plan.grouped:
        found = _grouped(plan, snapshot)
    else:
        wanted = dict.fromkeys([str(item.column) for item in plan.items] + [order.column for order in plan.order])
        rows = snapshot.scan(plan.condition, list(wanted))
        found = _project(sorted_rows(rows, plan.order), plan.items)
    return found.slice(plan.offset, plan.limit)


def _project(rows: pa.Table, items: Sequence[Item]) -> pa.Table:
    return pa.Table.from_arrays([rows.column(str(item.column)) for item in items], names=[item.name for item in items])


def sorted_rows(rows: pa.Table, orders: Sequence[Order]) -> pa.Table:
    """A stable sort; NULLs where the order says, NaN above every number. `NotLowerable` for a type Spark orders."""
    if not orders or rows.num_rows < 2:
        return rows
    keys: dict[str, pa.ChunkedArray] = {}
    directions: list[tuple[str, str]] = []

    def add(values: pa.ChunkedArray, *, descending: bool) -> None:
        name = str(len(keys))
        keys[name] = values
        directions.append((name, "descending" if descending else "ascending"))

    for order in orders:
        column = rows.column(order.column)
        if not is_atomic(column.type):
            raise NotLowerable(f"Spark orders {render_type(column.type)}")
        if column.null_count:
            add(column.is_null(), descending=order.nulls_first)
        if is_float(column.type):
            # Arrow would put NaN next to the NULLs.
            is_nan = pc.is_nan(column)
            add(is_nan, descending=order.descending)
            column = pc.if_else(is_nan, pa.scalar(0.0, column.type), column)
        add(column, descending=order.descending)
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=directions))


def _grouped(plan: PassthroughPlan, snapshot: Snapshot) -> pa.Table:
    grouping = grouping_of(plan, snapshot.schema)
    groups = None if grouping is None else snapshot.group(grouping)
    if not plan.groups and groups is None:
        return _aggregate(plan, snapshot)
    if grouping is None:
        raise NotLowerable("sums of different values of a group")
    if groups is None:
        rows = snapshot.scan(grouping.condition, columns_read(grouping))
        groups = grouped(rows, grouping, snapshot.schema)
    orders = [replace(order, column=f"g{plan.groups.index(order.column)}") for order in plan.order]
    return results(plan.items, grouping, sorted_rows(groups, orders), snapshot.schema)


def _aggregate(plan: PassthroughPlan, snapshot: Snapshot) -> pa.Table:
    columns = list(dict.fromkeys(item.column for item in plan.items if item.column is not None))
    rows = snapshot.scan(plan.condition, columns) if columns else None
    count = snapshot.count(plan.condition) if rows is None else rows.num_rows
    values = [_item_value(item, rows, count) for item in plan.items]
    return pa.Table.from_arrays(
        [pa.array([v.as_py()], v.type) for v in values], names=[item.name for item in plan.items]
    )


def _item_value(item: Item, rows: pa.Table | None, count: int) -> pa.Scalar:
    if item.function is None:
        raise NotLowerable("columns beside aggregates")
    if item.column is None or rows is None:
        return pa.scalar(count, pa.int64())
    return aggregate(item.function, rows.column(item.column), distinct=item.distinct, name=item.column)


def aggregate(
    function: AggregateFunction, values: pa.Array | pa.ChunkedArray, *, distinct: bool, name: str
) -> pa.Scalar:
    """One aggregate over the values that aren't NULL; `name` is what an error calls them."""
    column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    column = column.drop_null()
    if distinct:
        column = _distinct(column)
    match function:
        case AggregateFunction.COUNT:
            return pa.scalar(len(column), pa.int64())
        case AggregateFunction.SUM:
            return _sum(column, name)
        case AggregateFunction.AVG:
            return _average(column, name)
        case AggregateFunction.MIN | AggregateFunction.MAX:
            return _extreme(column, function)


def _distinct(column: pa.Array) -> pa.Array:
    if not is_atomic(column.type):
        raise NotLowerable(f"Spark compares {render_type(column.type)}")
    if is_float(column.type):
        # The sum turns -0.0 into 0.0, which SQL takes for the same value.
        column = pc.add(column, pa.scalar(0.0, column.type))
    return pc.unique(column)


def _sum(column: pa.Array, name: str) -> pa.Scalar:
    type_ = column.type
    if pa.types.is_decimal(type_) or is_integer(type_):
        return sum_of(_total(column), type_, name)
    if is_float(type_):
        return pc.sum(column.cast(pa.float64()), min_count=1)
    raise NotLowerable(f"Spark sums {render_type(type_)}")


def _average(column: pa.Array, name: str) -> pa.Scalar:
    type_ = column.type
    if pa.types.is_decimal(type_) or is_integer(type_):
        return average_of(_total(column), len(column), type_, name)
    if is_float(type_):
        total = pc.sum(column.cast(pa.float64()), min_count=1).as_py()
        return pa.scalar(None if total is None else total / len(column), pa.float64())
    raise NotLowerable(f"Spark averages {render_type(type_)}")


def _total(column: pa.Array) -> int | Decimal | None:
    """The exact sum; None of no values."""
    if not len(column):
        return None
    return _decimal_total(column) if pa.types.is_decimal(column.type) else _integer_total(column)


def _integer_total(column: pa.Array) -> int:
    """Exact whatever its size: the two halves of 64 bits are summed on their own."""
    wide = column.cast(pa.int64())
    high = pc.sum(pc.shift_right(wide, 32)).as_py()
    low = pc.sum(pc.bit_wise_and(wide, _LOW_WORD)).as_py()
    return int((high << 32) + low)


def _decimal_total(column: pa.Array) -> Decimal:
    if column.type.precision + len(str(len(column))) > _MAX_DIGITS:
        column = column.cast(pa.decimal256(_MOST_DIGITS, column.type.scale))
    return Decimal(pc.sum(column).as_py())


def _extreme(column: pa.Array, function: AggregateFunction) -> pa.Scalar:
    if not is_atomic(column.type):
        raise NotLowerable(f"Spark orders {render_type(column.type)}")
    largest = function is AggregateFunction.MAX
    if is_float(column.type):
        numbers = column.filter(pc.invert(pc.is_nan(column)))
        if len(numbers) < len(column) and (largest or not len(numbers)):
            return pa.scalar(math.nan, column.type)
        column = numbers
    found: Any = pc.max(column) if largest else pc.min(column)
    return found
