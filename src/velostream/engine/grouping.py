"""Groups of a table's rows: what a SELECT asks of them, and what Spark makes of exact counts, sums and extremes.

Those come from the store where it answers for them, else from the rows, by Arrow; the types and the overflows of their
aggregates are the same for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa

from velostream.errors import Category, QueryError
from velostream.model.grouping import Grouping, Measure, MeasureKind
from velostream.model.schema import Schema
from velostream.model.types import render_type
from velostream.sql.coercion import integer_range
from velostream.sql.constants import EXACT, CastError, fit_decimal
from velostream.sql.lower import NotLowerable
from velostream.sql.plan import AggregateFunction, Item, PassthroughPlan

_SUM_DIGITS, _AVERAGE_DIGITS = 10, 4
"""How many digits Spark adds to a decimal's own for a sum, and for an average (there also after the point)."""
_MOST_DIGITS = 38
_EXACT_DIGITS = 76
_SUMMED = (AggregateFunction.SUM, AggregateFunction.AVG)
_KINDS = {
    AggregateFunction.COUNT: MeasureKind.COUNT,
    AggregateFunction.MIN: MeasureKind.MIN,
    AggregateFunction.MAX: MeasureKind.MAX,
}
_ROWS = Measure(MeasureKind.COUNT)


def grouping_of(plan: PassthroughPlan, schema: Schema) -> Grouping | None:
    """What a grouped SELECT asks of groups; None when measures don't tell enough of them."""
    items = [item for item in plan.items if item.function is not None]
    if not all(is_measured(item, schema) for item in items):
        return None
    measures = dict.fromkeys(measure for item in items for measure in measures_of(item))
    return Grouping(tuple(measures), plan.groups, plan.condition)


def is_measured(item: Item, schema: Schema) -> bool:
    """Whether an aggregate follows from measures: a sum of floats doesn't, nor one of different values."""
    if item.column is None or item.function not in _SUMMED:
        return True
    return not item.distinct and _is_exact(schema.column(item.column).type)


def measures_of(item: Item) -> tuple[Measure, ...]:
    """What an aggregate is computed from."""
    if item.function is None or item.column is None:
        return (_ROWS,)
    if item.function in _SUMMED:
        return (Measure(MeasureKind.SUM, item.column), Measure(MeasureKind.COUNT, item.column))
    if item.distinct and item.function is AggregateFunction.COUNT:
        return (Measure(MeasureKind.DISTINCT, item.column),)
    return (Measure(_KINDS[item.function], item.column),)


def columns_read(grouping: Grouping) -> list[str]:
    """The columns that `grouped` needs."""
    return list(dict.fromkeys([*grouping.by, *(one.column for one in grouping.measures if one.column is not None)]))


def grouped(rows: pa.Table, grouping: Grouping, schema: Schema) -> pa.Table:
    """What a store answers to a grouping by columns, from the rows that fulfil its condition.

    Raises `NotLowerable` for types that Arrow can't group, and `QueryError` for a sum of more digits than there are.
    """
    groups = [f"g{place}" for place in range(len(grouping.by))]
    given = {group: rows.column(name) for group, name in zip(groups, grouping.by, strict=True)}
    asked: list[tuple[str | list[str], str]] = []
    for place, measure in enumerate(grouping.measures):
        if measure.column is None:
            asked.append(([], "count_all"))
            continue
        values = rows.column(measure.column)
        given[f"m{place}"] = _with_room(values) if measure.kind is MeasureKind.SUM else values
        asked.append((f"m{place}", "count_distinct" if measure.kind is MeasureKind.DISTINCT else str(measure.kind)))
    try:
        found = pa.table(given).group_by(groups, use_threads=False).aggregate(asked)
    except pa.ArrowNotImplementedError as error:
        raise NotLowerable(f"Arrow can't group that: {error}") from error
    names = [f"{values}_{how}" if values else how for values, how in asked]
    fields = grouping.answer_schema(schema)
    try:
        columns = [found.column(name).cast(field.type) for name, field in zip([*groups, *names], fields, strict=True)]
    except pa.ArrowInvalid as error:
        raise overflow(", ".join(columns_read(grouping)), pa.decimal128(_MOST_DIGITS)) from error
    return pa.Table.from_arrays(columns, schema=fields)


def results(items: Sequence[Item], grouping: Grouping, groups: pa.Table, schema: Schema) -> pa.Table:
    """The items of a SELECT for each group of an answer."""
    columns = [_result(item, grouping, groups, schema) for item in items]
    return pa.Table.from_arrays(columns, names=[item.name for item in items])


def measured_value(item: Item, found: pa.Table, schema: Schema) -> pa.Scalar:
    """The one value of an aggregate over all rows, from the answer to its measures."""
    return results([item], Grouping(measures_of(item)), found, schema).column(0)[0]


def sum_of(total: int | Decimal | None, type_: pa.DataType, name: str) -> pa.Scalar:
    """Spark's SUM of integers or decimals of a type, given their exact sum (None: of no values)."""
    if pa.types.is_decimal(type_):
        target = pa.decimal128(min(_MOST_DIGITS, type_.precision + _SUM_DIGITS), type_.scale)
        return pa.scalar(None, target) if total is None else _fitted(Decimal(total), target, name)
    low, high = integer_range(pa.int64())
    if total is not None and not low <= total <= high:
        raise overflow(name, pa.int64())
    return pa.scalar(None if total is None else int(total), pa.int64())


def average_of(total: int | Decimal | None, count: int, type_: pa.DataType, name: str) -> pa.Scalar:
    """Spark's AVG of so many integers or decimals of a type, given their exact sum (None: of no values)."""
    if pa.types.is_decimal(type_):
        digits, scale = type_.precision + _AVERAGE_DIGITS, type_.scale + _AVERAGE_DIGITS
        target = pa.decimal128(min(_MOST_DIGITS, digits), min(_MOST_DIGITS, scale))
        if total is None:
            return pa.scalar(None, target)
        return _fitted(EXACT.divide(Decimal(total), Decimal(count)), target, name)
    return pa.scalar(None if total is None else int(total) / count, pa.float64())


def overflow(column: str, type_: pa.DataType) -> QueryError:
    return QueryError(
        f'aggregate of column "{column}" is out of the range of {render_type(type_)}',
        code="overflow",
        category=Category.DATA,
    )


def _result(item: Item, grouping: Grouping, groups: pa.Table, schema: Schema) -> pa.Array | pa.ChunkedArray:
    if item.function is None:
        return groups.column(f"g{grouping.by.index(str(item.column))}")
    first, *others = (groups.column(f"m{grouping.measures.index(measure)}") for measure in measures_of(item))
    if item.function not in _SUMMED or item.column is None:
        return first
    type_ = schema.column(item.column).type
    if item.function is AggregateFunction.SUM:
        target = sum_of(None, type_, item.column).type
        try:
            return first.cast(target)
        except pa.ArrowInvalid as error:
            raise overflow(item.column, target) from error
    counted = zip(first.to_pylist(), others[0].to_pylist(), strict=True)
    values = [average_of(total, count, type_, item.column) for total, count in counted]
    return pa.array([value.as_py() for value in values], average_of(None, 0, type_, item.column).type)


def _is_exact(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_decimal(type_))


def _with_room(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers as decimals that hold any sum of them."""
    exact = values if pa.types.is_decimal(values.type) else values.cast(pa.int64()).cast(pa.decimal128(19, 0))
    return exact.cast(pa.decimal256(_EXACT_DIGITS, exact.type.scale))


def _fitted(value: Decimal, target: pa.DataType, name: str) -> pa.Scalar:
    try:
        return pa.scalar(fit_decimal(value, target), target)
    except CastError as error:
        raise overflow(name, target) from error
