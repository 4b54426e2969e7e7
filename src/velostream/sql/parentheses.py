"""Expressions out of their parentheses, and conditions as their parts."""

from __future__ import annotations

from sqlglot import exp


def without_parentheses(node: exp.Expr) -> exp.Expr:
    """What stands inside parentheses. A subquery in parentheses stays a subquery (sqlglot's `unnest` would open it)."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def conjuncts(condition: exp.Expr | None) -> list[exp.Expr]:
    """The AND-ed parts of a condition, out of their parentheses, left to right."""
    if condition is None:
        return []
    bare = without_parentheses(condition)
    if isinstance(bare, exp.And):
        return conjuncts(bare.this) + conjuncts(bare.expression)
    return [bare]
