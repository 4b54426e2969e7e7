"""Copies of trees with parts of them changed."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp


def with_children(node: exp.Expr, change: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """A copy of a node with its children changed."""
    copied = node.copy()
    for name, value in node.args.items():
        if isinstance(value, exp.Expr):
            copied.set(name, change(value))
        elif isinstance(value, list):
            copied.set(name, [change(part) if isinstance(part, exp.Expr) else part for part in value])
    return copied
