"""Which types may meet in a lookup key without changing what Spark's `=` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from sqlglot import exp

from velostream.errors import ValidationError
from velostream.model.types import parse_type
from velostream.model.variant import is_variant
from velostream.sql.functions import function_name

_PLAIN = "{0}"
_CAST = "CAST({0} AS {type})"
_NARROW = "TRY_CAST({0} AS {type})"
_TEXT_FUNCTIONS = frozenset(("lower", "upper", "trim", "ltrim", "rtrim", "initcap", "concat"))
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
    if isinstance(expression, exp.Literal):
        return pa.string() if expression.is_string else None
    if function_name(expression) in _TEXT_FUNCTIONS:
        arguments = [expression_type(argument, type_of) for argument in expression.iter_expressions()]
        return pa.string() if all(type_ == pa.string() for type_ in arguments) else None
    return None


def field_type(type_: pa.DataType, names: Sequence[str]) -> pa.DataType | None:
    """The type of a field inside a struct, in any case of letters; None when there is no such field."""
    for name in names:
        if not pa.types.is_struct(type_) or is_variant(type_):
            return None
        fields = [field.type for field in type_ if field.name.lower() == name.lower()]
        if len(fields) != 1:
            return None
        type_ = fields[0]
    return type_


def key_cast(given: pa.DataType | None, wanted: pa.DataType) -> str | None:
    """How a driving value becomes a key of the table's type, as a pattern; None when `=` would mean something else.

    A number too big for the column's type becomes NULL, which matches nothing, as no value of the column could; one
    with more digits behind the point would be rounded. Floats never: Spark takes -0.0 for 0.0 and every NaN for the
    same, an index need not.
    """
    if given is None or pa.types.is_floating(wanted) or pa.types.is_nested(wanted) or pa.types.is_null(wanted):
        return None
    if given == wanted:
        return _PLAIN
    if pa.types.is_integer(given) and pa.types.is_integer(wanted):
        return _CAST if given.bit_width <= wanted.bit_width else _NARROW
    if pa.types.is_decimal(wanted):
        whole = wanted.precision - wanted.scale
        if pa.types.is_integer(given):
            return _CAST if whole >= _DIGITS[given.bit_width] else _NARROW
        if pa.types.is_decimal(given) and wanted.scale >= given.scale:
            return _CAST if whole >= given.precision - given.scale else _NARROW
    return None
