"""Calls of Spark's `window` and `session_window`, and their fields."""

from __future__ import annotations

from sqlglot import exp

from velostream.sql.functions import function_name
from velostream.sql.parentheses import without_parentheses

START, END = "start", "end"
_CALLS = ("window", "session_window")


def is_window_call(node: exp.Expr | None) -> bool:
    """Whether a node is a call of Spark's `window` or `session_window`."""
    return isinstance(node, exp.Anonymous) and function_name(node) in _CALLS


def window_field(node: exp.Expr) -> str | None:
    """`start` or `end` if a node is that field of a window call."""
    if isinstance(node, exp.Dot) and is_window_call(without_parentheses(node.this)):
        name = str(node.expression.name).lower()
        return name if name in (START, END) else None
    return None


def field_of(call: exp.Expr, name: str) -> exp.Dot:
    """The field of a window call."""
    return exp.Dot(this=call.copy(), expression=exp.Identifier(this=name, quoted=False))
