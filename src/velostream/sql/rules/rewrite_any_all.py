"""`x op ANY (subquery)` and `x op ALL (subquery)`, which Spark's grammar lacks, as IN and EXISTS."""

from __future__ import annotations

from sqlglot import exp

from velostream.sql.rules.conditions import keeps_only_true, member_value, some_member, truth_of_some

_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}
_OPPOSITE: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.NEQ,
    exp.NEQ: exp.EQ,
    exp.LT: exp.GTE,
    exp.LTE: exp.GT,
    exp.GT: exp.LTE,
    exp.GTE: exp.LT,
}


def rewrite_any_all(tree: exp.Expr) -> exp.Expr:
    """Give every quantified comparison SQL's meaning: ANY of nothing is FALSE, ALL of nothing TRUE, NULL stays NULL.

    `x op ALL (q)` is `NOT (x opposite-op ANY (q))`. An ANY or ALL over something that is no subquery isn't ours.
    """
    for node in reversed(list(tree.find_all(exp.Any, exp.All))):
        comparison = node.parent
        query = node.this
        operator = type(comparison)
        if not isinstance(comparison, exp.Binary) or operator not in _MIRRORED or not isinstance(query, exp.Query):
            continue
        value = comparison.this
        if value is node:
            operator, value = _MIRRORED[operator], comparison.expression
        replacement = _rewritten(comparison, value, operator, query, every=isinstance(node, exp.All))
        if comparison is tree:
            return replacement
        comparison.replace(replacement)
    return tree


def _rewritten(place: exp.Expr, value: exp.Expr, operator: type[exp.Expr], query: exp.Expr, *, every: bool) -> exp.Expr:
    some = _OPPOSITE[operator] if every else operator
    operand = _operand(value)
    if some is exp.EQ:
        inner = query if isinstance(query, exp.Subquery) else exp.Subquery(this=query.copy())
        found: exp.Expr = exp.In(this=operand, query=inner.copy())
    elif keeps_only_true(place) and not every:
        found = some_member(query, some(this=operand, expression=member_value()))
    else:
        found = truth_of_some(query, value, some(this=operand, expression=member_value()))
    return exp.Not(this=found) if every else found


def _operand(value: exp.Expr) -> exp.Expr:
    copied = value.copy()
    return exp.paren(copied, copy=False) if isinstance(copied, exp.Binary | exp.Connector) else copied
