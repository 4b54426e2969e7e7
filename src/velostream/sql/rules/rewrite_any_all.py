"""`x op ANY (subquery)` and `x op ALL (subquery)`, which Spark's grammar lacks, as IN and EXISTS."""

from __future__ import annotations

from sqlglot import exp

from velostream.sql.rules.conditions import keeps_only_true, member_value, some_member, truth_of_some

_MIRRORED: dict[type[exp.Expression], type[exp.Binary]] = {
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}
_OPPOSITE: dict[type[exp.Expression], type[exp.Binary]] = {
    exp.EQ: exp.NEQ,
    exp.NEQ: exp.EQ,
    exp.LT: exp.GTE,
    exp.LTE: exp.GT,
    exp.GT: exp.LTE,
    exp.GTE: exp.LT,
}


def rewrite_any_all(tree: exp.Expression) -> exp.Expression:
    """Give every quantified comparison SQL's meaning: ANY of nothing is FALSE, ALL of nothing TRUE, NULL stays NULL.

    `x op ALL (q)` is `NOT (x opposite-op ANY (q))`. An ANY or ALL over something that is no subquery isn't ours.
    """
    for node in reversed(list(tree.find_all(exp.Any, exp.All))):
        comparison = node.parent
        query = node.this
        if type(comparison) not in _MIRRORED or not isinstance(query, exp.Query):
            continue
        operator: type[exp.Binary] = type(comparison)
        value = comparison.this
        if value is node:
            operator, value = _MIRRORED[operator], comparison.expression
        replacement = _rewritten(comparison, value, operator, query, every=isinstance(node, exp.All))
        if comparison is tree:
            return replacement
        comparison.replace(replacement)
    return tree


def _rewritten(
    place: exp.Expression, value: exp.Expression, operator: type[exp.Binary], query: exp.Expression, *, every: bool
) -> exp.Expression:
    some = _OPPOSITE[operator] if every else operator
    operand = _operand(value)
    if some is exp.EQ:
        inner = query if isinstance(query, exp.Subquery) else exp.Subquery(this=query.copy())
        found: exp.Expression = exp.In(this=operand, query=inner.copy())
    elif keeps_only_true(place) and not every:
        found = some_member(query, some(this=operand, expression=member_value()))
    else:
        found = truth_of_some(query, value, some(this=operand, expression=member_value()))
    return exp.Not(this=found) if every else found


def _operand(value: exp.Expression) -> exp.Expression:
    copied = value.copy()
    return exp.paren(copied, copy=False) if isinstance(copied, exp.Binary | exp.Connector) else copied
