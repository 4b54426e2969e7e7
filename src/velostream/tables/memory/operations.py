"""Operations on Arrow columns that give Spark's answers in ANSI mode; what expressions are compiled to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import TableError
from velostream.model.types import render_type
from velostream.tables.memory.keys import as_array, unscaled_words

Values = Any
"""A column of results, or a scalar where nothing depends on the row."""

_DIGITS_OF_INTEGER = {8: 3, 16: 5, 32: 10, 64: 20}
_DIGITS_EXACT_IN_DOUBLE = 15
_MICROSECONDS_PER_DAY = 86_400_000_000


def failing(function: Callable[..., Values], what: str, type_: pa.DataType) -> Callable[..., Values]:
    """The function with Arrow's complaint told as ours."""

    def run(*values: Values) -> Values:
        try:
            return function(*values)
        except pa.ArrowInvalid as error:
            raise TableError(
                f"result of {what} is out of the range of {render_type(type_)}", code="arithmetic-overflow"
            ) from error

    return run


def _null_safe(equal: Callable[[Values, Values], Values]) -> Callable[[Values, Values], Values]:
    def run(left: Values, right: Values) -> Values:
        both_null = pc.and_(pc.is_null(left), pc.is_null(right))
        return pc.or_(pc.coalesce(equal(left, right), pa.scalar(False)), both_null)

    return run


def _float_equal(left: Values, right: Values) -> Values:
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _float_less(left: Values, right: Values) -> Values:
    """NaN is above every other number."""
    return pc.or_(pc.less(left, right), pc.and_not(pc.is_nan(right), pc.is_nan(left)))


COMPARISONS: dict[str, Callable[[Values, Values], Values]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<=>": _null_safe(pc.equal),
}
FLOAT_COMPARISONS: dict[str, Callable[[Values, Values], Values]] = {
    "=": _float_equal,
    "<>": lambda left, right: pc.invert(_float_equal(left, right)),
    "<": _float_less,
    "<=": lambda left, right: pc.invert(_float_less(right, left)),
    ">": lambda left, right: _float_less(right, left),
    ">=": lambda left, right: pc.invert(_float_less(left, right)),
    "<=>": _null_safe(_float_equal),
}
ARITHMETIC: dict[str, Callable[[Values, Values], Values]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
}


def capped(operator: str, type_: pa.DataType) -> Callable[[Values, Values], Values]:
    """`+ - *` of decimals whose exact result may have more than 38 digits; `pa.ArrowInvalid` where it does.

    Most values are far smaller than their types allow: then all is done in the narrower ones that hold them.
    """

    def run(left: Values, right: Values) -> Values:
        narrow = [value.cast(pa.decimal128(_digits(value), value.type.scale)) for value in (left, right)]
        try:
            return ARITHMETIC[operator](*narrow).cast(type_)
        except pa.ArrowInvalid:
            wide = [value.cast(pa.decimal256(value.type.precision, value.type.scale)) for value in (left, right)]
            return ARITHMETIC[operator](*wide).cast(type_)

    return run


def _digits(values: Values) -> int:
    """The precision that some decimals need in their scale."""
    column = pa.array([values.as_py()], values.type) if isinstance(values, pa.Scalar) else values
    extremes = [value for value in pc.min_max(column).as_py().values() if value is not None]
    scale: int = column.type.scale
    return max([1, scale, *(len(value.as_tuple().digits) for value in extremes)])


def divide(left: Values, right: Values) -> Values:
    _refuse_zero(left, right)
    return pc.divide(left, right)


def remainder(left: Values, right: Values) -> Values:
    """With the dividend's sign. A divisor of -1 is read as 1, which has the same remainders and can't overflow."""
    _refuse_zero(left, right)
    unusual = pc.or_(pc.equal(right, pa.scalar(-1, right.type)), pc.equal(right, pa.scalar(0, right.type)))
    divisor = pc.if_else(unusual, pa.scalar(1, right.type), right)
    return pc.subtract(left, pc.multiply(pc.divide(left, divisor), divisor))


def _refuse_zero(left: Values, right: Values) -> None:
    wrong = pc.and_(pc.is_valid(left), pc.equal(right, pa.scalar(0, right.type)))
    if pc.any(pa.array([wrong.as_py()], pa.bool_()) if isinstance(wrong, pa.Scalar) else wrong).as_py():
        raise TableError("division by zero", hint="NULLIF(divisor, 0) gives NULL instead", code="divide-by-zero")


def choose(condition: Values, value: Values, otherwise: Values) -> Values:
    return pc.if_else(pc.coalesce(condition, pa.scalar(False)), value, otherwise)


def changed_case(column: Values, ascii_only: Callable[[Values], Values], by_unicode: Callable[[str], str]) -> Values:
    """Full Unicode case mapping, where a character may become several; Arrow's own maps one to one."""
    plain = pc.string_is_ascii(column)
    if isinstance(column, pa.Scalar):
        text = column.as_py()
        return pa.scalar(None if text is None else by_unicode(text), pa.string())
    if pc.all(plain).as_py() is not False:
        return ascii_only(column)
    return pa.chunked_array(
        [[None if text is None else by_unicode(text) for text in column.to_pylist()]], type=pa.string()
    )


def total_cast(source: pa.DataType, target: pa.DataType) -> Callable[[Values], Values] | None:
    """A cast that gives Spark's value for every row and never fails; None where there is none."""
    if pa.types.is_integer(source):
        return _cast_of_integer(source, target)
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        if target.scale >= source.scale and target.precision - target.scale >= source.precision - source.scale:
            return lambda column: column.cast(target)
        return None
    if pa.types.is_decimal(source) and target == pa.float64() and source.precision <= _DIGITS_EXACT_IN_DOUBLE:
        return _decimal_to_double
    if source == pa.float32() and target == pa.float64():
        return lambda column: column.cast(target)
    if pa.types.is_date(source) and pa.types.is_timestamp(target):
        return lambda column: column.cast(pa.timestamp("us")).cast(target)
    if pa.types.is_timestamp(source) and pa.types.is_date(target):
        return _timestamp_to_date
    return None


def _cast_of_integer(source: pa.DataType, target: pa.DataType) -> Callable[[Values], Values] | None:
    if pa.types.is_decimal(target):
        digits = _DIGITS_OF_INTEGER[source.bit_width]
        if target.precision - target.scale < digits:
            return None
        return lambda column: column.cast(pa.decimal128(digits, 0)).cast(target)
    if target == pa.float64():
        return lambda column: _through(column, target, _integer_to_double)
    if pa.types.is_string(target):
        return lambda column: column.cast(target)
    return None


def _integer_to_double(array: pa.Array) -> pa.Array:
    return _with_nulls(_numbers(array).astype(np.float64), array)


def _decimal_to_double(column: Values) -> Values:
    """By one division of integers that doubles hold exactly, which rounds to the nearest double; Arrow's may not."""

    def convert(array: pa.Array) -> pa.Array:
        low, _ = unscaled_words(array)
        return _with_nulls(low.astype(np.float64) / float(10**array.type.scale), array)

    return _through(column, pa.float64(), convert)


def _timestamp_to_date(column: Values) -> Values:
    def convert(array: pa.Array) -> pa.Array:
        days = np.floor_divide(_numbers(array.cast(pa.int64())), _MICROSECONDS_PER_DAY).astype(np.int32)
        return _with_nulls(days, array).cast(pa.date32())

    return _through(column, pa.date32(), convert)


def _through(column: Values, target: pa.DataType, convert: Callable[[pa.Array], pa.Array]) -> Values:
    """Convert a column as one array; a scalar as an array of one."""
    if isinstance(column, pa.Scalar):
        return convert(pa.array([column.as_py()], column.type))[0] if column.is_valid else pa.scalar(None, target)
    array = as_array(column)
    if array.null_count == len(array):
        return pa.nulls(len(array), target)
    return convert(array)


def _numbers(array: pa.Array) -> np.ndarray[Any, Any]:
    filled = pc.fill_null(array, 0) if array.null_count else array
    numbers: np.ndarray[Any, Any] = filled.to_numpy(zero_copy_only=False)
    return numbers


def _with_nulls(numbers: np.ndarray[Any, Any], array: pa.Array) -> pa.Array:
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(numbers, mask=mask)
