"""Expressions and SELECTs of a resolved query lowered over the rows of one relation: columns go by what they mean."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from velostream.errors import SqlError
from velostream.model.expression import Expression
from velostream.model.schema import Schema
from velostream.sql.grouping import bare_item
from velostream.sql.lower import NotLowerable, lower
from velostream.sql.naming import identifier, output_name, plain_column
from velostream.sql.outputs import expand_star
from velostream.sql.plan import Step
from velostream.sql.scope import Frame, origin_of


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


def lowered_step(select: exp.Select, *, sql: str, schema: Schema, frame: Frame | None) -> Step:
    """The step of a plain SELECT of one relation with these columns, as plain data where that is possible."""
    try:
        items = [item for part in select.expressions for item in _items(part, schema, frame)]
        where = select.args.get("where")
        condition = None if where is None else lower(unqualified(where.this), schema)
    except (NotLowerable, SqlError):
        return Step(sql)
    return Step(sql, tuple(name for name, _ in items), tuple(value for _, value in items), condition)


def _items(part: exp.Expr, schema: Schema, frame: Frame | None) -> Sequence[tuple[str, Expression]]:
    if not part.is_star:
        return [(output_name(part), lower(unqualified(bare_item(part)), schema))]
    columns = expand_star(part, frame) if frame is not None else None
    if columns is None:
        raise NotLowerable("only Spark can tell what * stands for")
    return [(column.name, lower(plain_column(column.name), schema)) for column in columns]
