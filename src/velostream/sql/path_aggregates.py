"""Aggregates of the values of a path: within one row, or over all rows of a group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from velostream.sql.coercion import is_float, is_integer, is_numeric
from velostream.sql.functions import aggregate_calls, is_aggregate_call, unwrapped
from velostream.sql.path_values import JSON_NUMBER, VALUE_TYPE, Values, call, cast, field_of, function_of, variable
from velostream.sql.paths import is_wildcard_path

AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Count: "COUNT",
    exp.Sum: "SUM",
    exp.Avg: "AVG",
    exp.Min: "MIN",
    exp.Max: "MAX",
}
"""What a path can be aggregated by."""

_TOTAL, _ITEM = "velostream_total", "velostream_item"
_MAX_DIGITS, _SUM_DIGITS, _AVERAGE_DIGITS, _COUNT_DIGITS = 38, 10, 4, 10
_Wrap = Callable[[exp.Expr], exp.Expr]


def stands_for_row(aggregate: exp.Expr, is_path: Callable[[exp.Expr], bool]) -> bool:
    """Whether an aggregate of a path is one of the values of each row by itself.

    It is so where SQL has no place for an aggregate: in WHERE, ON and GROUP BY, within another aggregate, and without
    GROUP BY beside columns that are not aggregated. Everywhere else it is SQL's own: of all rows of the group.
    """
    if isinstance(aggregate.parent, exp.Window) and aggregate.arg_key == "this":
        return False
    node = aggregate
    while node.parent is not None and not isinstance(node.parent, exp.Select):
        node = node.parent
        if is_aggregate_call(node) and unwrapped(node) is not aggregate:
            return True
    select = node.parent
    if not isinstance(select, exp.Select) or node.arg_key not in ("expressions", "order", "having", "qualify"):
        return True
    if select.args.get("group") or select.args.get("having"):
        return False
    clauses = [*select.expressions, select.args.get("order")]
    if any(not is_path(one) for clause in clauses for one in aggregate_calls(clause)):
        return False
    return any(_has_bare_column(item) for item in select.expressions)


def _has_bare_column(item: exp.Expr) -> bool:
    """Whether a select item reads columns outside of aggregates."""
    aggregates = {id(one) for one in aggregate_calls(item)}
    nodes = item.walk(prune=lambda node: id(node) in aggregates or isinstance(node, exp.Query))
    return any(
        id(node) not in aggregates and (isinstance(node, exp.Column | exp.Star) or is_wildcard_path(node))
        for node in nodes
    )


def number_values(values: Values) -> Values | None:
    """The values as numbers to calculate with; None if they can't be any."""
    if values.from_text:
        return replace(values, tree=cast(values.tree, pa.list_(JSON_NUMBER)), type=JSON_NUMBER, from_text=False)
    if pa.types.is_string(values.type):
        return replace(values, tree=cast(values.tree, pa.list_(pa.float64())), type=pa.float64())
    return values if is_numeric(values.type) else None


def of_row(function: str, values: Values) -> tuple[exp.Expr, pa.DataType]:
    """The aggregate of the values of one row, and its type; over none COUNT is 0 and the others NULL."""
    match function:
        case "COUNT":
            return cast(call("size", values.tree), pa.int64()), pa.int64()
        case "MIN" | "MAX":
            return call(f"array_{function.lower()}", values.tree), values.type
        case "SUM":
            return _row_sum(values), _sum_type(values.type)
        case _:
            return _row_average(values), _average_type(values.type)


def of_group(function: str, values: Values, wrap: _Wrap) -> tuple[exp.Expr, pa.DataType]:
    """The aggregate of the values of all rows; `wrap` puts an aggregate of Spark's into its FILTER or OVER."""
    match function:
        case "COUNT":
            counted = wrap(exp.Sum(this=_typed(call("size", values.tree), pa.int32())))
            return exp.Coalesce(this=counted, expressions=[exp.Literal.number(0)]), pa.int64()
        case "MIN" | "MAX":
            kind = exp.Min if function == "MIN" else exp.Max
            return wrap(kind(this=_typed(*of_row(function, values)))), values.type
        case "SUM":
            return cast(wrap(exp.Sum(this=_row_sum(values))), _sum_type(values.type)), _sum_type(values.type)
    total = wrap(exp.Sum(this=_row_sum(values)))
    count = wrap(exp.Sum(this=_typed(call("size", values.tree.copy()), pa.int32())))
    return _divided(total, count, values.type), _average_type(values.type)


def _typed(tree: exp.Expr, type_: pa.DataType) -> exp.Expr:
    """The tree with its type noted, which planning could not find out."""
    tree.meta[VALUE_TYPE] = type_
    return tree


def _row_sum(values: Values) -> exp.Expr:
    """Adds up without another look at the array: of none it stays NULL, as it began."""
    type_ = _sum_type(values.type)
    added = exp.Coalesce(this=exp.Add(this=variable(_TOTAL), expression=variable(_ITEM)), expressions=[variable(_ITEM)])
    adding = function_of(cast(added, type_), _TOTAL, _ITEM)
    return _typed(call("aggregate", values.tree, cast(exp.Null(), type_), adding), type_)


def _row_average(values: Values) -> exp.Expr:
    type_ = _sum_type(values.type)

    def state(total: exp.Expr, count: exp.Expr) -> exp.Expr:
        return call("named_struct", exp.Literal.string("total"), total, exp.Literal.string("count"), count)

    total, count = (field_of(variable(_TOTAL), name) for name in ("total", "count"))
    one_more = state(
        cast(exp.Add(this=total.copy(), expression=variable(_ITEM)), type_),
        exp.Add(this=count.copy(), expression=cast(exp.Literal.number(1), pa.int64())),
    )
    return call(
        "aggregate",
        values.tree,
        state(cast(exp.Literal.number(0), type_), cast(exp.Literal.number(0), pa.int64())),
        function_of(one_more, _TOTAL, _ITEM),
        function_of(_divided(total, count, values.type), _TOTAL),
    )


def _divided(total: exp.Expr, count: exp.Expr, type_: pa.DataType) -> exp.Expr:
    """Total by count, NULL for none. A count of at most ten digits leaves the quotient more digits than are kept."""
    none = call("nullif", count, exp.Literal.number(0))
    if not pa.types.is_decimal(type_):
        return exp.Div(this=cast(total, pa.float64()), expression=cast(none, pa.float64()))
    quotient = exp.Div(this=cast(total, _sum_type(type_)), expression=cast(none, pa.decimal128(_COUNT_DIGITS, 0)))
    return cast(quotient, _average_type(type_))


def _sum_type(type_: pa.DataType) -> pa.DataType:
    if is_integer(type_):
        return pa.int64()
    if is_float(type_):
        return pa.float64()
    return pa.decimal128(min(_MAX_DIGITS, type_.precision + _SUM_DIGITS), type_.scale)


def _average_type(type_: pa.DataType) -> pa.DataType:
    if not pa.types.is_decimal(type_):
        return pa.float64()
    scale = min(_MAX_DIGITS, type_.scale + _AVERAGE_DIGITS)
    return pa.decimal128(min(_MAX_DIGITS, type_.precision + _AVERAGE_DIGITS), scale)
