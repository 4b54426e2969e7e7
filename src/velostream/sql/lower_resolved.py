"""Expressions of a resolved query lowered over the rows of one relation: columns go by what they mean."""

from __future__ import annotations

from sqlglot import exp

from velostream.errors import SqlError
from velostream.model.expression import Expression
from velostream.model.schema import Schema
from velostream.sql.lower import NotLowerable, lower
from velostream.sql.naming import identifier
from velostream.sql.scope import origin_of


def lowered(expression: exp.Expr, schema: Schema) -> Expression | None:
    """An expression as plain data over rows of the schema; None when Spark has to evaluate it."""
    try:
        return lower(unqualified(expression), schema)
    except (NotLowerable, SqlError):
        return None


def unqualified(condition: exp.Expr) -> exp.Expr:
    """A copy whose columns go by their stored names alone."""

    def bare(node: exp.Expr) -> exp.Expr:
        origin = origin_of(node) if isinstance(node, exp.Column) else None
        if origin is None:
            return node
        column: exp.Expr = exp.Column(this=identifier(origin.column))
        for name in origin.fields:
            column = exp.Dot(this=column, expression=identifier(name))
        return column

    return condition.copy().transform(bare, copy=False)
