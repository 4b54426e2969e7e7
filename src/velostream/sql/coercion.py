"""Spark's type rules in ANSI mode, over Arrow types.

Which one type two operands meet in, which type an operator gives, and which casts keep every value. Where Spark would
lose digits to stay within 38 (a scale beyond that, a common type wider than that), or has no common type, the answer is
None and Spark decides.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable

import pyarrow as pa

from velostream.model.expression import Call, Case, Cast, ColumnRef, Expression, Literal
from velostream.model.schema import Schema
from velostream.model.types import TIMESTAMP

TIMESTAMP_NTZ = pa.timestamp("us")
MAX_PRECISION = 38
_MAX_EXACT_PRECISION = 76
"""Digits of a result before it is fitted into 38; more than that nobody but Spark computes."""

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_EXACT_IN_DOUBLE = 15
"""Digits every decimal of which one correctly rounded division turns into the nearest double."""


def is_integer(type_: pa.DataType) -> bool:
    return type_ in _INTEGERS


def is_float(type_: pa.DataType) -> bool:
    return type_ in (pa.float32(), pa.float64())


def is_numeric(type_: pa.DataType) -> bool:
    return is_integer(type_) or is_float(type_) or pa.types.is_decimal(type_)


def is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_))


def is_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date(type_) or pa.types.is_timestamp(type_))


def is_atomic(type_: pa.DataType) -> bool:
    """Types with an order that we compare ourselves."""
    return is_numeric(type_) or is_text(type_) or is_time(type_) or type_ in (pa.bool_(), pa.binary())


def integer_range(type_: pa.DataType) -> tuple[int, int]:
    half = 1 << (type_.bit_width - 1)
    return -half, half - 1


def decimal_of(type_: pa.DataType) -> pa.DataType:
    """The decimal that holds every value of an integer or decimal type."""
    return type_ if pa.types.is_decimal(type_) else pa.decimal128(_INTEGER_DIGITS[type_], 0)


def decimal_of_value(value: decimal.Decimal) -> pa.DataType | None:
    """The type Spark gives a decimal literal: 123.45 is DECIMAL(5,2), 0.5 is DECIMAL(1,1)."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return None
    precision, scale = max(1, len(digits)), -exponent
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return pa.decimal128(precision, scale) if precision <= MAX_PRECISION else None


def _bounded(precision: int, scale: int) -> pa.DataType | None:
    return pa.decimal128(precision, scale) if precision <= MAX_PRECISION else None


def _capped(precision: int, scale: int) -> pa.DataType | None:
    """The type of an exact result, which overflows where it has more than 38 digits."""
    if scale > MAX_PRECISION or precision > _MAX_EXACT_PRECISION:
        return None
    return pa.decimal128(min(precision, MAX_PRECISION), scale)


def wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    scale = max(left.scale, right.scale)
    return _bounded(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type both sides of a comparison are cast to."""
    if left == right:
        return left
    if pa.types.is_null(left):
        return right
    if pa.types.is_null(right):
        return left
    if is_text(left) or is_text(right):
        return _common_with_text(right if is_text(left) else left)
    if is_numeric(left) and is_numeric(right):
        return _common_number(left, right)
    if is_time(left) and is_time(right):
        return TIMESTAMP if TIMESTAMP in (left, right) else TIMESTAMP_NTZ
    return None


def _common_with_text(other: pa.DataType) -> pa.DataType | None:
    if is_integer(other):
        return pa.int64()
    if is_numeric(other):
        return pa.float64()
    return other if is_atomic(other) else None


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if is_float(left) or is_float(right):
        return pa.float64()
    if is_integer(left) and is_integer(right):
        return left if left.bit_width > right.bit_width else right
    return wider_decimal(decimal_of(left), decimal_of(right))


def common_type_of(types: Iterable[pa.DataType]) -> pa.DataType | None:
    """The type of IN lists, CASE branches and COALESCE: folded from left to right, as Spark does."""
    found: pa.DataType | None = pa.null()
    for type_ in types:
        if found is None:
            return None
        found = common_type(found, type_)
    return found


def arithmetic_type(operator: str, left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The result of `+ - * / %` over numbers already brought together (decimals keep their own types)."""
    if not (pa.types.is_decimal(left) and pa.types.is_decimal(right)):
        return left if left == right and is_numeric(left) else None
    precision_left, scale_left, precision_right, scale_right = left.precision, left.scale, right.precision, right.scale
    whole_left, whole_right = precision_left - scale_left, precision_right - scale_right
    match operator:
        case "+" | "-":
            scale = max(scale_left, scale_right)
            return _capped(max(whole_left, whole_right) + scale + 1, scale)
        case "*":
            return _capped(precision_left + precision_right + 1, scale_left + scale_right)
        case "%":
            scale = max(scale_left, scale_right)
            return _bounded(min(whole_left, whole_right) + scale, scale)
        case "/":
            return _division_type(whole_left + scale_right, max(6, scale_left + precision_right + 1))
    return None


def may_overflow(operator: str, left: pa.DataType, right: pa.DataType) -> bool:
    """Whether `+ - *` of values of these types can have a result that their type doesn't hold."""
    if not (pa.types.is_decimal(left) and pa.types.is_decimal(right)):
        return is_integer(left)
    if operator == "*":
        return bool(left.precision + right.precision + 1 > MAX_PRECISION)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return bool(whole + max(left.scale, right.scale) + 1 > MAX_PRECISION)


def _division_type(whole: int, fraction: int) -> pa.DataType:
    """Spark's rule without precision loss: halves the excess over 38 between both parts."""
    whole, fraction = min(whole, MAX_PRECISION), min(fraction, MAX_PRECISION)
    excess = whole + fraction - MAX_PRECISION
    if excess > 0:
        fraction -= excess // 2 + 1
        whole = MAX_PRECISION - fraction
    return pa.decimal128(whole + fraction, fraction)


def keeps_every_value(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether the cast is total, one-to-one and keeps the order, so that either side of it may be compared."""
    if source == target:
        return True
    if is_integer(source):
        if is_integer(target):
            return bool(source.bit_width < target.bit_width)
        if pa.types.is_decimal(target):
            return bool(target.precision - target.scale >= _INTEGER_DIGITS[source])
        return bool(target == pa.float64() and source.bit_width <= 32)
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        whole = target.precision - target.scale >= source.precision - source.scale
        return bool(whole and target.scale >= source.scale)
    if source == pa.float32():
        return bool(target == pa.float64())
    return bool(pa.types.is_date(source) and pa.types.is_timestamp(target))


def is_total(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast of a column gives Spark's value for every row and can't fail."""
    if keeps_every_value(source, target):
        return True
    if target == pa.float64():
        if pa.types.is_decimal(source):
            return bool(source.precision <= _EXACT_IN_DOUBLE)
        return is_integer(source)
    if is_text(target):
        return is_integer(source)
    return bool(pa.types.is_timestamp(source) and pa.types.is_date(target))


_BOOLEAN_CALLS = frozenset(
    ("=", "<>", "<", "<=", ">", ">=", "<=>", "and", "or", "not", "in", "like", "rlike", "is_null")
)
_TEXT_CALLS = frozenset(("lower", "upper", "trim", "concat", "substring"))
DATE_PARTS = frozenset(("year", "month", "day"))


def type_of(expression: Expression, schema: Schema) -> pa.DataType:
    """The type Spark gives a lowered expression over rows of the schema."""
    match expression:
        case ColumnRef(name):
            return schema.column(name).type
        case Literal(_, type_) | Cast(_, type_):
            return type_
        case Case(branches, otherwise):
            return type_of(branches[0][1] if branches else otherwise or Literal(None, pa.null()), schema)
        case Call(name, arguments):
            return _call_type(name, arguments, schema)


def _call_type(name: str, arguments: tuple[Expression, ...], schema: Schema) -> pa.DataType:
    if name in _BOOLEAN_CALLS:
        return pa.bool_()
    if name in _TEXT_CALLS:
        return pa.string()
    if name == "length" or name in DATE_PARTS:
        return pa.int32()
    first = type_of(arguments[0], schema)
    if name in ("+", "-", "*", "/", "%"):
        found = arithmetic_type(name, first, type_of(arguments[1], schema))
        if found is None:
            raise TypeError(f"operator {name} has no type over {first}")
        return found
    return first
