"""Expressions in a form to compare by: what they mean, not how they are written."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from sqlglot import exp

from velostream.sql.scope import origin_of, scope_of

Form = Hashable


def canonical(expression: exp.Expr) -> Form:
    """Equal for `o.Sku`, `sku` and `(sku)` where they are the same column; unequal whenever in doubt.

    The scopes of subqueries inside the expression are numbered anew, so that the same subquery written twice is equal.
    """
    inner: dict[int, int] = {}
    for select in expression.find_all(exp.Select):
        scope = scope_of(select)
        if scope is not None:
            inner.setdefault(scope, len(inner))
    return _form(expression, inner)


def _form(node: exp.Expr, inner: Mapping[int, int]) -> Form:
    if isinstance(node, exp.Paren):
        return _form(node.this, inner)
    if isinstance(node, exp.Column):
        origin = origin_of(node)
        if origin is not None:
            scope = ("inner", inner[origin.scope]) if origin.scope in inner else ("outer", origin.scope)
            fields = tuple(name.lower() for name in origin.fields)
            return ("column", scope, origin.source.lower(), origin.column.lower(), fields)
    if isinstance(node, exp.Identifier):
        return ("name", str(node.this).lower())
    if isinstance(node, exp.Anonymous):
        return ("call", str(node.name).lower(), tuple(_form(argument, inner) for argument in node.expressions))
    return (type(node).__name__, tuple(_argument(name, value, inner) for name, value in sorted(node.args.items())))


def _argument(name: str, value: object, inner: Mapping[int, int]) -> Form:
    if isinstance(value, exp.Expr):
        return (name, _form(value, inner))
    if isinstance(value, list):
        return (name, tuple(_form(part, inner) if isinstance(part, exp.Expr) else str(part) for part in value))
    return (name, None if value is None or value is False else str(value))
