"""Constants: how Spark types a literal, and what casting one gives, exactly.

Values are plain Python: int, Decimal, float, str, bytes, bool, date, datetime (with UTC for TIMESTAMP, without a zone
for TIMESTAMP_NTZ). A cast that Spark refuses in ANSI mode is a `CastError`; one whose outcome we don't vouch for is a
`NotConstant`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from velostream.model.expression import Literal
from velostream.model.types import TIMESTAMP, render_type
from velostream.sql.coercion import (
    TIMESTAMP_NTZ,
    decimal_of_value,
    integer_range,
    is_float,
    is_integer,
    is_text,
)

EXACT = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP, Emin=-9999, Emax=9999)
"""Wide enough that nothing between two decimals of 38 digits is ever rounded but where we say so."""

_DATE = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.DOTALL | re.ASCII)
_TIMESTAMP = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?\s*(Z|UTC|[+-]\d{1,2}:\d{2})?)?",
    re.ASCII,
)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = {"nan": math.nan} | {
    f"{sign}{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in ("inf", "infinity")
}
_TRUE = ("t", "true", "y", "yes", "1")
_FALSE = ("f", "false", "n", "no", "0")
_TRIMMED = "".join(map(chr, range(33))) + "\x7f"
"""What Spark takes off both ends of a text before it reads a value in it."""


class CastError(Exception):
    """A value that can't become the type; the text says why."""

    def __init__(self, value: object, type_: pa.DataType) -> None:
        shown = f"'{value}'" if isinstance(value, str) else str(value)
        super().__init__(f"the value {shown} can't be cast to {render_type(type_)}")


class NotConstant(Exception):  # noqa: N818 - not an error: Spark evaluates it instead
    """Spark has to compute this constant."""


def number_literal(text: str) -> Literal:
    """1 is INT, 3000000000 BIGINT, longer ones and 123.45 DECIMAL, 1e3 DOUBLE."""
    if "e" in text.lower():
        return Literal(float(text), pa.float64())
    if "." not in text:
        value = int(text)
        for type_ in (pa.int32(), pa.int64()):
            low, high = integer_range(type_)
            if low <= value <= high:
                return Literal(value, type_)
    exact = Decimal(text)
    decimal_type = decimal_of_value(exact)
    if decimal_type is None:
        raise CastError(text, pa.decimal128(38, 0))
    return Literal(exact, decimal_type)


def fit_decimal(value: Decimal, type_: pa.DataType) -> Decimal:
    """The value with the type's scale, rounded half up; `CastError` when it has too many digits before the point."""
    fitted = value.quantize(Decimal(1).scaleb(-type_.scale), context=EXACT)
    if len(fitted.as_tuple().digits) > type_.precision and fitted != 0:
        raise CastError(value, type_)
    return fitted


def cast_value(value: Any, source: pa.DataType, target: pa.DataType) -> Any:
    """What `CAST(value AS target)` gives in ANSI mode."""
    if value is None or source == target:
        return value
    caster = _caster(source)
    if caster is None:
        raise NotConstant
    return caster(value, target)


def _caster(source: pa.DataType) -> Callable[[Any, pa.DataType], Any] | None:
    if is_text(source):
        return _cast_text
    if is_integer(source) or source == pa.bool_():
        return _cast_integer
    if pa.types.is_decimal(source):
        return _cast_decimal
    if is_float(source):
        return _cast_float
    if pa.types.is_date(source):
        return _cast_date
    if pa.types.is_timestamp(source):
        return _cast_timestamp
    return None


def _cast_text(text: str, target: pa.DataType) -> Any:
    trimmed = text.strip(_TRIMMED)
    if target == pa.binary():
        return text.encode()
    if target == pa.bool_():
        if trimmed.lower() in _TRUE + _FALSE:
            return trimmed.lower() in _TRUE
        raise CastError(text, target)
    if is_integer(target):
        if _INTEGER.fullmatch(trimmed) is None:
            raise CastError(text, target)
        return _in_range(int(trimmed), target)
    if pa.types.is_decimal(target):
        if _NUMBER.fullmatch(trimmed) is None:
            raise CastError(text, target)
        return fit_decimal(Decimal(trimmed), target)
    if is_float(target):
        return _text_to_float(text, trimmed, target)
    if pa.types.is_date(target):
        return _text_to_date(text, trimmed, target)
    if pa.types.is_timestamp(target):
        return _text_to_timestamp(trimmed, target)
    raise NotConstant


def _text_to_float(text: str, trimmed: str, target: pa.DataType) -> float:
    if trimmed.lower() in _NOT_FINITE:
        return _NOT_FINITE[trimmed.lower()]
    if _NUMBER.fullmatch(trimmed) is not None:
        return _narrow(float(trimmed), target)
    if re.search(r"\d", trimmed):  # Java also reads 1d, 1f and hexadecimal floats
        raise NotConstant
    raise CastError(text, target)


def _text_to_date(text: str, trimmed: str, target: pa.DataType) -> dt.date:
    match = _DATE.fullmatch(trimmed)
    if match is None:
        if trimmed[:1].isdigit():  # other lengths of the year
            raise NotConstant
        raise CastError(text, target)
    try:
        return dt.date(*(int(part or 1) for part in match.groups()))
    except ValueError as error:
        raise CastError(text, target) from error


def _text_to_timestamp(trimmed: str, target: pa.DataType) -> dt.datetime:
    match = _TIMESTAMP.fullmatch(trimmed)
    if match is None:  # Spark reads more forms than these
        raise NotConstant
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        moment = dt.datetime(  # noqa: DTZ001 - the zone follows
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0),
            int((fraction or "").ljust(9, "0")[:6]),
        )  # fmt: skip
    except ValueError as error:
        raise CastError(trimmed, target) from error
    if target.tz is None:
        if zone is not None:
            raise NotConstant
        return moment
    return moment.replace(tzinfo=dt.UTC) - _zone_offset(zone)


def _zone_offset(zone: str | None) -> dt.timedelta:
    if zone in (None, "Z", "UTC"):
        return dt.timedelta(0)
    hours, minutes = str(zone)[1:].split(":")
    offset = dt.timedelta(hours=int(hours), minutes=int(minutes))
    return -offset if str(zone).startswith("-") else offset


def _cast_integer(value: int, target: pa.DataType) -> Any:
    if is_text(target):
        return str(value).lower()
    if target == pa.bool_():
        return value != 0
    if is_integer(target):
        return _in_range(int(value), target)
    if pa.types.is_decimal(target):
        return fit_decimal(Decimal(int(value)), target)
    if is_float(target):
        return _narrow(float(value), target)
    raise NotConstant


def _cast_decimal(value: Decimal, target: pa.DataType) -> Any:
    if is_text(target):
        return format(value, "f")
    if target == pa.bool_():
        return value != 0
    if is_integer(target):
        return _in_range(int(value), target)
    if pa.types.is_decimal(target):
        return fit_decimal(value, target)
    if is_float(target):
        return _narrow(float(value), target)
    raise NotConstant


def _cast_float(value: float, target: pa.DataType) -> Any:
    if is_float(target):
        return _narrow(value, target)
    if target == pa.bool_():
        return value != 0
    if is_integer(target):
        if not math.isfinite(value):
            raise CastError(value, target)
        return _in_range(int(value), target)
    if pa.types.is_decimal(target):
        if not math.isfinite(value):
            raise CastError(value, target)
        return fit_decimal(Decimal(repr(value)), target)
    raise NotConstant


def _cast_date(value: dt.date, target: pa.DataType) -> Any:
    if is_text(target):
        return value.isoformat()
    if pa.types.is_timestamp(target):
        midnight = dt.datetime.combine(value, dt.time())
        return midnight.replace(tzinfo=dt.UTC) if target.tz else midnight
    raise NotConstant


def _cast_timestamp(value: dt.datetime, target: pa.DataType) -> Any:
    if target == TIMESTAMP:
        return value.replace(tzinfo=dt.UTC)
    if target == TIMESTAMP_NTZ:
        return value.replace(tzinfo=None)
    if pa.types.is_date(target):
        return value.date()
    if is_text(target):
        text = value.replace(tzinfo=None).isoformat(sep=" ")
        return text.rstrip("0") if "." in text else text
    raise NotConstant


def _in_range(value: int, target: pa.DataType) -> int:
    low, high = integer_range(target)
    if not low <= value <= high:
        raise CastError(value, target)
    return value


def _narrow(value: float, target: pa.DataType) -> float:
    if target == pa.float64() or not math.isfinite(value):
        return value
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
