"""`-x` and `abs(x)` of decimals of more than 34 digits, to which Spark 4.2 rounds them: written as subtractions."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from velostream.errors import SqlError
from velostream.model.schema import Column, Schema
from velostream.model.types import render_type
from velostream.sql.coercion import MAX_PRECISION
from velostream.sql.functions import function_name
from velostream.sql.lower import NotLowerable, lower, type_of
from velostream.sql.naming import plain_column
from velostream.sql.resolve import Resolution
from velostream.sql.scope import origin_of

_ROUNDED_TO = 34
_NEGATIONS = ("negative", "negate")
_DIGITS_OF_SUM = 10
"""So many more than its values' a sum of decimals has."""


def with_exact_signs(tree: exp.Expr, resolution: Resolution) -> exp.Expr:
    """The tree with such signs written otherwise, in place, where the type of what they stand before is known."""
    # The innermost first: what stands around them is then made of the new ones.
    for node in reversed(list(tree.find_all(exp.Neg, exp.Abs, exp.Anonymous))):
        operand, type_ = _operand(node), rounded_type(node, resolution)
        if operand is not None and type_ is not None:
            node.replace(exp.paren(_exact(node, exp.paren(operand), render_type(type_))))
    return tree


def _exact(node: exp.Expr, operand: exp.Expr, type_: str) -> exp.Expr:
    difference = exp.Sub(this=exp.Literal.number(0), expression=operand.copy())
    negated = exp.cast(difference, type_, dialect="spark")
    if not isinstance(node, exp.Abs):
        return negated
    is_negative = exp.LT(this=operand.copy(), expression=exp.Literal.number(0))
    return exp.Case(ifs=[exp.If(this=is_negative, true=negated)], default=operand)


def rounded_type(node: exp.Expr, resolution: Resolution) -> pa.DataType | None:
    """The type of a sign's operand, if that may have more digits than Spark computes with; None for other nodes."""
    if not (isinstance(node, exp.Neg | exp.Abs) or function_name(node) in _NEGATIONS):
        return None
    operand = _operand(node)
    type_ = None if operand is None else _type_of(operand, resolution)
    return type_ if type_ is not None and pa.types.is_decimal(type_) and type_.precision > _ROUNDED_TO else None


def _operand(node: exp.Expr) -> exp.Expr | None:
    """What the sign is of; None where a function has no argument, or several."""
    given = node.expressions if isinstance(node, exp.Anonymous) else [node.this]
    if len(given) != 1 or not isinstance(given[0], exp.Expr):
        return None
    return given[0].unnest() if isinstance(given[0], exp.Paren) else given[0]


def _type_of(operand: exp.Expr, resolution: Resolution) -> pa.DataType | None:
    """The type of an expression of columns of tables and sources, or of a sum of one; None: only Spark can tell."""
    if isinstance(operand, exp.Sum):
        summed = _type_of(operand.this, resolution)
        if summed is None or not pa.types.is_decimal(summed):
            return None
        return pa.decimal128(min(MAX_PRECISION, summed.precision + _DIGITS_OF_SUM), summed.scale)
    copied, columns = operand.copy(), list[Column]()
    for column in list(copied.find_all(exp.Column)):
        type_ = _type_of_column(column, resolution)
        if type_ is None:
            return None
        columns.append(Column(f"c{len(columns)}", type_))
        replaced = plain_column(columns[-1].name)
        copied = replaced if column is copied else copied
        column.replace(replaced)
    schema = Schema(tuple(columns))
    try:
        return type_of(lower(copied, schema), schema)
    except (NotLowerable, SqlError):
        return None


def _type_of_column(column: exp.Column, resolution: Resolution) -> pa.DataType | None:
    origin = origin_of(column)
    if origin is None or origin.fields:
        return None
    source = resolution.frames[origin.scope].source(origin.source)
    if source is None or source.input is None:
        return None
    schema = resolution.input(source.input).target.schema
    found = None if schema is None else schema.find(origin.column)
    return None if found is None else found.type
