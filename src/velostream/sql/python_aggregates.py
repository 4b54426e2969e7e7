"""Aggregates in Python said in Spark's words: a function of the list that Spark collects of each group.

`spread(price)` becomes `spread(sort_array(collect_list(named_struct('a0', price))))`. So such an aggregate may stand
wherever one of Spark's may: beside others, with DISTINCT, FILTER or OVER, in HAVING and under ORDER BY, in views and in
windows of streams. Rows are structs because a list leaves out NULLs, and sorted because the order in which Spark
collects them is another one each time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sqlglot import exp

from velostream.errors import ValidationError
from velostream.sql.functions import aggregate_calls, function_name, is_aggregate
from velostream.sql.grouping import bare_item
from velostream.sql.naming import identifier, named, output_name
from velostream.sql.parentheses import without_parentheses
from velostream.sql.pointing import pointer
from velostream.sql.statements import Query

_MARK = "velostream_python_aggregate"
"""Key of the meta of a call that has been given its list."""
_NO_PLACE = {exp.Where: "WHERE", exp.Join: "ON", exp.Group: "GROUP BY", exp.Lateral: "LATERAL"}


def spell_out_python_aggregates(query: Query, *, names: Collection[str], text: str) -> Query:
    """The query with every call of these functions over the list of its rows; `names` are in small letters."""
    calls = [node for node in query.tree.find_all(exp.Anonymous) if function_name(node) in names]
    if not calls:
        return query
    for call in calls:
        _check(call, names, text)
    tree = query.tree.copy()
    for select in tree.find_all(exp.Select):
        _order_by_outputs(select, names)
        items = [named(item) if _calls_one(item, names) else item for item in select.expressions]
        select.set("expressions", items)
    # Inner ones first: those in a subquery of an argument would be lost with what is replaced around them.
    for call in reversed([node for node in tree.find_all(exp.Anonymous) if function_name(node) in names]):
        _collect(call)
    return replace(query, tree=tree)


def python_aggregates_in(clause: exp.Expr | None) -> list[exp.Expr]:
    """The calls of a clause that have been given their lists, but for those of nested queries."""
    if clause is None:
        return []
    return [node for node in clause.walk(prune=lambda one: isinstance(one, exp.Query)) if node.meta_get(_MARK)]


def _calls_one(item: exp.Expr, names: Collection[str]) -> bool:
    return any(function_name(node) in names for node in item.find_all(exp.Anonymous))


def _order_by_outputs(select: exp.Select, names: Collection[str]) -> None:
    """Order by the names of outputs: behind HAVING or DISTINCT Spark 4.2 no longer knows what they are made of."""
    outputs = [item for item in select.expressions if _calls_one(item, names)]
    for ordered in select.args["order"].expressions if select.args.get("order") else ():
        written = without_parentheses(ordered.this)
        same = next((item for item in outputs if bare_item(item) == written), None)
        if same is not None:
            ordered.set("this", exp.Column(this=identifier(output_name(same))))


def _collect(call: exp.Anonymous) -> None:
    """Put the list of its rows in the place of a call's arguments, with FILTER and OVER around what collects them."""
    distinct = isinstance(call.expressions[0], exp.Distinct)
    values = call.expressions[0].expressions if distinct else call.expressions
    fields = [part for number, value in enumerate(values) for part in (exp.Literal.string(f"a{number}"), value)]
    outermost: exp.Expr = call
    while isinstance(outermost.parent, exp.Filter | exp.Window) and outermost.arg_key == "this":
        outermost = outermost.parent
    made = exp.Anonymous(this=call.this)
    made.meta.update(call.meta)
    made.meta[_MARK] = True
    outermost.replace(made)
    rows = _call("collect_set" if distinct else "collect_list", _call("named_struct", *fields))
    if outermost is not call:
        call.replace(rows)
        rows = outermost
    made.set("expressions", [_call("sort_array", rows)])


def _call(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=list(arguments))


def _check(call: exp.Anonymous, names: Collection[str], text: str) -> None:
    name, arguments = str(call.name), call.expressions
    if not arguments or any(argument.is_star for argument in arguments):
        raise ValidationError(
            f'aggregate "{name}" needs the columns it is of', hint=f"{name}(column)", **pointer(call, text)
        )
    ordered = any(isinstance(argument, exp.Order) for argument in arguments)
    if ordered or isinstance(call.parent, exp.WithinGroup):
        raise ValidationError(
            f'aggregate "{name}" takes no ORDER BY',
            detail="its rows come in the order of its arguments, the first one first",
            hint=f"{name}(what_orders, column)",
            **pointer(call, text),
        )
    if isinstance(call.parent, exp.IgnoreNulls | exp.RespectNulls):
        raise ValidationError(
            f'aggregate "{name}" is always given NULLs',
            hint=f"{name}(column) FILTER (WHERE column IS NOT NULL)",
            **pointer(call, text),
        )
    if any(aggregate_calls(argument) for argument in arguments):
        raise _nested(call, text)
    _check_place(call, names, text)


def _check_place(call: exp.Anonymous, names: Collection[str], text: str) -> None:
    """Refuse an aggregate where SQL has no place for one; Spark would speak of the list instead."""
    node: exp.Expr = call
    while node.parent is not None and not isinstance(node.parent, exp.Query):
        node = node.parent
        place = next((word for kind, word in _NO_PLACE.items() if isinstance(node, kind)), None)
        if place is not None:
            raise ValidationError(
                f'aggregate "{call.name}" can\'t stand in {place}',
                hint="HAVING is about groups; or aggregate in a subquery of FROM",
                **pointer(call, text),
            )
        windowed = isinstance(node.parent, exp.Window) and node.arg_key == "this"
        if not windowed and (is_aggregate(node) or function_name(node) in names):
            raise _nested(call, text)


def _nested(call: exp.Expr, text: str) -> ValidationError:
    return ValidationError(
        "an aggregate can't contain another one", hint="aggregate in two steps", **pointer(call, text)
    )
