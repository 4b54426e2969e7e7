"""Expressions in a form to compare by: what they mean, not how they are written."""

from __future__ import annotations

from collections.abc import Hashable

from sqlglot import exp

from velostream.sql.scope import origin_of

Form = Hashable


def canonical(expression: exp.Expr) -> Form:
    """Equal for `o.Sku`, `sku` and `(sku)` where they are the same column; unequal whenever in doubt."""
    if isinstance(expression, exp.Paren):
        return canonical(expression.this)
    if isinstance(expression, exp.Column):
        origin = origin_of(expression)
        if origin is not None:
            fields = tuple(name.lower() for name in origin.fields)
            return ("column", origin.scope, origin.source.lower(), origin.column.lower(), fields)
    if isinstance(expression, exp.Identifier):
        return ("name", str(expression.this).lower())
    if isinstance(expression, exp.Anonymous):
        return ("call", str(expression.name).lower(), tuple(map(canonical, expression.expressions)))
    return (type(expression).__name__, tuple(_argument(name, value) for name, value in sorted(expression.args.items())))


def _argument(name: str, value: object) -> Form:
    if isinstance(value, exp.Expr):
        return (name, canonical(value))
    if isinstance(value, list):
        return (name, tuple(canonical(part) if isinstance(part, exp.Expr) else str(part) for part in value))
    return (name, None if value is None or value is False else str(value))
