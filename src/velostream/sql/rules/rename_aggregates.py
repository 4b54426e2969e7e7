"""Aggregates under names that people know from other databases and Spark 4.2 lacks."""

from __future__ import annotations

from sqlglot import exp

from velostream.sql.functions import function_name

_RENAMED = {"variance_pop": "var_pop", "variance_samp": "var_samp", "group_concat": "listagg"}
_COUNT_DISTINCT = "count_distinct"


def is_renamed(node: exp.Expr) -> bool:
    """Whether a call goes by another name in Spark."""
    return isinstance(node, exp.Anonymous) and function_name(node) in (*_RENAMED, _COUNT_DISTINCT)


def rename_aggregates(tree: exp.Expr) -> exp.Expr:
    """Write `group_concat(x)`, `count_distinct(x, y)`, `variance_pop(x)` as Spark does. A comma joins by default."""
    for call in reversed(list(tree.find_all(exp.Anonymous))):
        if not is_renamed(call):
            continue
        name = function_name(call)
        if name == _COUNT_DISTINCT:
            call.replace(exp.Count(this=exp.Distinct(expressions=call.expressions)))
            continue
        if name == "group_concat" and len(call.expressions) == 1:
            call.append("expressions", exp.Literal.string(","))
        call.set("this", _RENAMED[name])
    return tree
