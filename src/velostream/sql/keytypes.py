"""Which types may meet in a lookup key without changing what Spark's `=` says."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from sqlglot import exp

from velostream.errors import ValidationError
from velostream.model.types import parse_type

_PLAIN = "{0}"
_CAST = "CAST({0} AS {type})"
_NARROW = "TRY_CAST({0} AS {type})"
_TEXT_FUNCTIONS = (exp.Lower, exp.Upper, exp.Trim)
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


def expression_type(expression: exp.Expr, type_of: Callable[[exp.Column], pa.DataType | None]) -> pa.DataType | None:
    """The type of an expression where it is plain to see; None when only Spark can tell."""
    if isinstance(expression, exp.Paren):
        return expression_type(expression.this, type_of)
    if isinstance(expression, exp.Column):
        return type_of(expression)
    if isinstance(expression, exp.Cast):
        try:
            return parse_type(expression.to.sql(dialect="spark"))
        except ValidationError:
            return None
    if isinstance(expression, _TEXT_FUNCTIONS):
        inner = expression_type(expression.this, type_of)
        return inner if inner is not None and pa.types.is_string(inner) else None
    return None


def key_cast(given: pa.DataType | None, wanted: pa.DataType) -> str | None:
    """How a driving value becomes a key of the table's type, as a pattern; None when `=` would mean something else.

    A whole number too big for the column's type becomes NULL, which matches nothing, as no value of the column could.
    Floats never: Spark takes -0.0 for 0.0 and every NaN for the same, an index need not.
    """
    if given is None or pa.types.is_floating(wanted) or pa.types.is_nested(wanted) or pa.types.is_null(wanted):
        return None
    if given == wanted:
        return _PLAIN
    if pa.types.is_integer(given) and pa.types.is_integer(wanted):
        return _CAST if given.bit_width <= wanted.bit_width else _NARROW
    if pa.types.is_decimal(wanted):
        if pa.types.is_integer(given):
            return _CAST if wanted.precision - wanted.scale >= _DIGITS[given.bit_width] else None
        if pa.types.is_decimal(given):
            whole = wanted.precision - wanted.scale >= given.precision - given.scale
            return _CAST if whole and wanted.scale >= given.scale else None
    return None
