"""`x IN (subquery)` where its value matters: NULL where SQL says NULL, for which Spark 4.2 gives FALSE."""

from __future__ import annotations

from sqlglot import exp

from velostream.sql.parentheses import without_parentheses
from velostream.sql.rules.conditions import keeps_only_true, member_value, truth_of_some


def rewrite_in_as_value(tree: exp.Expr) -> exp.Expr:
    """Rewrite IN subqueries in SELECT, under IS NULL, in CASE, in an outer join's ON.

    Where IN or NOT IN only decides which rows stay, Spark's own form is right and fast, and is kept. So is an IN over
    several columns, `(a, b) IN (…)`.
    """
    for node in reversed(list(tree.find_all(exp.In))):
        query = node.args.get("query")
        value = node.this
        if not isinstance(query, exp.Query) or isinstance(without_parentheses(value), exp.Tuple):
            continue
        negated = node.parent if isinstance(node.parent, exp.Not) else None
        if keeps_only_true(negated or node):
            continue
        operand = exp.paren(value.copy()) if isinstance(value, exp.Binary | exp.Connector) else value.copy()
        replacement = truth_of_some(query, value, exp.EQ(this=operand, expression=member_value()))
        if node is tree:
            return replacement
        node.replace(replacement)
    return tree
