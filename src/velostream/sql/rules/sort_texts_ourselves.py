"""`STRING_AGG(x, ',') WITHIN GROUP (ORDER BY y)` beside DISTINCT aggregates, for which Spark 4.2 loses the order."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from velostream.errors import NotExecutableError, present
from velostream.sql.functions import function_name

_JOINED = ("listagg", "string_agg")
_VALUE = "v"


def is_ordered_text(node: exp.Expr) -> bool:
    """Whether a call joins the texts of a group in an order."""
    return isinstance(node, exp.WithinGroup) and function_name(node.this) in _JOINED


def sort_texts_ourselves(tree: exp.Expr) -> exp.Expr:
    """Collect, sort and join such texts where Spark would compute several DISTINCT aggregates by expanding the rows.

    There it takes the order for an argument and fails with a ClassCastException. Where its own form works it is kept.
    """
    for select in list(tree.find_all(exp.Select)):
        if _expands(select):
            for call in [node for node in _own_nodes(select) if isinstance(node, exp.WithinGroup)]:
                if not is_ordered_text(call):
                    continue
                filtered = call.parent if isinstance(call.parent, exp.Filter) else None
                (filtered or call).replace(_sorted_text(call, filtered))
    return tree


def _own_nodes(select: exp.Select) -> Iterator[exp.Expr]:
    return select.walk(prune=lambda node: isinstance(node, exp.Query) and node is not select)


def _expands(select: exp.Select) -> bool:
    """Whether Spark computes the DISTINCT aggregates of a query by one copy of each row for each of them."""
    distinct = [node for node in _own_nodes(select) if isinstance(node, exp.Distinct) and node.parent is not select]
    return any(map(_is_filtered, distinct)) or len({node.sql() for node in distinct}) > 1


def _is_filtered(distinct: exp.Distinct) -> bool:
    call = present(distinct.parent)
    if isinstance(call.parent, exp.WithinGroup):
        call = call.parent
    return isinstance(call.parent, exp.Filter)


def _sorted_text(call: exp.WithinGroup, filtered: exp.Filter | None) -> exp.Expr:
    arguments = call.this.expressions
    distinct = arguments[0] if isinstance(arguments[0], exp.Distinct) else None
    value, *separator = arguments if distinct is None else distinct.expressions
    orders = call.expression.expressions
    descending = {bool(order.args.get("desc")) for order in orders}
    if len(descending) > 1:
        raise NotExecutableError(
            "a text ordered both upwards and downwards can't be computed beside DISTINCT aggregates",
            hint="compute the DISTINCT aggregates in a query of their own and join the two",
        )
    fields = [field for number, order in enumerate(orders) for field in _fields(number, order)]
    fields += [exp.Literal.string(_VALUE), value.copy()]
    collect = "collect_list" if distinct is None else "collect_set"
    wanted: exp.Expr = exp.Not(this=exp.Is(this=exp.paren(value.copy()), expression=exp.Null()))
    if filtered is not None:
        wanted = exp.And(this=exp.paren(filtered.expression.this.copy()), expression=wanted)
    collected = exp.Filter(this=_call(collect, _call("named_struct", *fields)), expression=exp.Where(this=wanted))
    in_order = _call("sort_array", collected, exp.Boolean(this=True not in descending))
    values = exp.Dot(this=in_order, expression=exp.to_identifier(_VALUE))
    joined_by = separator[0].copy() if separator else exp.Literal.string("")
    # Of no texts at all nothing is made, not the empty text.
    return _call("array_join", _call("nullif", values, _call("array")), joined_by)


def _fields(number: int, order: exp.Ordered) -> list[exp.Expr]:
    """A value to sort by; before it, whether it is NULL, where NULLs don't stand where Spark's sorting puts them."""
    value = order.this.copy()
    fields: list[exp.Expr] = [exp.Literal.string(f"o{number}"), value]
    if bool(order.args.get("desc")) is not bool(order.args.get("nulls_first")):
        return fields
    is_null = exp.Is(this=exp.paren(value.copy()), expression=exp.Null())
    return [exp.Literal.string(f"n{number}"), is_null, *fields]


def _call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=list(arguments))
