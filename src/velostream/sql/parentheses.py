"""Expressions out of their parentheses."""

from __future__ import annotations

from sqlglot import exp


def without_parentheses(node: exp.Expr) -> exp.Expr:
    """What stands inside parentheses. A subquery in parentheses stays a subquery (sqlglot's `unnest` would open it)."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node
