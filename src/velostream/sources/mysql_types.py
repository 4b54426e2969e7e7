"""Types of MySQL and MariaDB as ours, and their values as Arrow columns: out of results, and out of the binary log.

Results give every value as the bytes of its text, the log gives Python's values; both are brought to one schema by
`model.conform`, so that a row is the same whichever way it came. A date with a zero in it is no date for us: the text
that MySQL writes for it makes a bad record. Times of day, JSON, ENUM and SET are texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from velostream.model.types import TIMESTAMP

_TINY, _SHORT, _LONG, _LONGLONG, _INT24 = 1, 2, 3, 8, 9
_FLOAT, _DOUBLE, _YEAR, _BIT = 4, 5, 13, 16
_OLD_DECIMAL, _DECIMAL = 0, 246
_TIMESTAMP, _DATE, _TIME, _DATETIME, _NEW_DATE = 7, 10, 11, 12, 14
_TIMESTAMP2, _DATETIME2, _TIME2 = 17, 18, 19
_JSON, _SET, _STRING, _GEOMETRY, _VECTOR = 245, 248, 254, 255, 242
_BYTES_OR_TEXT = frozenset({15, 249, 250, 251, 252, 253, _STRING})
"""VARCHAR, the BLOBs and their kin: bytes if their character set is `binary`."""

_NOT_NULL, _UNSIGNED = 1, 32
_BINARY_CHARSET = 63
_MOST_DIGITS = 38

_INTEGERS = {_TINY: 8, _SHORT: 16, _INT24: 32, _LONG: 32, _LONGLONG: 64}
_BY_BITS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_SIMPLE = {
    _FLOAT: pa.float32(),
    _DOUBLE: pa.float64(),
    _YEAR: pa.int16(),
    _DATE: pa.date32(),
    _NEW_DATE: pa.date32(),
    _TIMESTAMP: TIMESTAMP,
    _DATETIME: TIMESTAMP,
    _GEOMETRY: pa.binary(),
    _VECTOR: pa.binary(),
}
UNSIGNED_64 = pa.decimal128(20, 0)
"""What holds every BIGINT UNSIGNED."""
_ZERO_DATE = "0000-00-00"
_BEFORE_ALL_TIMESTAMPS = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a result, as the protocol describes it."""

    name: str
    code: int
    length: int
    scale: int
    flags: int
    charset: int

    @property
    def nullable(self) -> bool:
        return not self.flags & _NOT_NULL

    @property
    def type(self) -> pa.DataType:
        """Our type."""
        unsigned = bool(self.flags & _UNSIGNED)
        if self.code == _TINY and self.length == 1 and not unsigned:
            return pa.bool_()
        if self.code in _INTEGERS:
            bits = _INTEGERS[self.code]
            if not unsigned or self.code == _INT24:
                return _BY_BITS[bits]
            return UNSIGNED_64 if bits == 64 else _BY_BITS[2 * bits]
        if self.code == _BIT:
            return pa.bool_() if self.length == 1 else pa.int64() if self.length < 64 else UNSIGNED_64
        if self.code in (_DECIMAL, _OLD_DECIMAL):
            # The length is that of the text: with a sign, and a point where there are places behind it.
            precision = self.length - (not unsigned) - (self.scale > 0)
            return pa.decimal128(min(max(precision, self.scale, 1), _MOST_DIGITS), min(self.scale, _MOST_DIGITS))
        if self.code in _BYTES_OR_TEXT and self.charset == _BINARY_CHARSET:
            return pa.binary()
        return _SIMPLE.get(self.code, pa.string())


def column_of_result(field: Field, values: Sequence[bytes | None]) -> pa.Array:
    """Values of a result, to be brought to the column's type. TIMESTAMPs must come from a session in UTC."""
    if field.code == _BIT:
        numbers = (None if value is None else str(int.from_bytes(value, "big")) for value in values)
        return pa.array(numbers, pa.string())
    raw = pa.array(values, pa.binary())
    if field.code in _BYTES_OR_TEXT or field.code in (_JSON, _GEOMETRY, _VECTOR):
        # They may be no text, which shows when they are read as the column's type.
        return raw
    texts = raw.cast(pa.string())
    # A TIMESTAMP is an instant, a DATETIME is local to wherever the source says.
    return pc.binary_join_element_wise(texts, "+00:00", "") if field.code == _TIMESTAMP else texts


def column_of_log(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Values that `LoggedColumn` has made, to be brought to the column's type."""
    if pa.types.is_boolean(type_):
        return _texts(values)
    try:
        # Of what Python holds without a zone only the source knows which it is in.
        return pa.array(values, None if pa.types.is_timestamp(type_) else type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        if any(isinstance(value, bytes) for value in values):
            return pa.array([None if value is None else _bytes(value) for value in values], pa.binary())
        return _texts(values)


@dataclass(frozen=True, slots=True)
class LoggedColumn:
    """A column of the log whose values don't come as they should be."""

    name: str
    convert: Callable[[Any], Any] | None = None
    nothing: str | None = None
    """What stands for a value that the library gives as None though it isn't NULL."""

    @classmethod
    def of(cls, column: Any) -> LoggedColumn | None:
        """`column` is the library's description; None where its values need nothing done."""
        name, code = column.name, column.type
        if code == _SET:
            return cls(name, _set_reader(column.set_values or []), nothing="")
        if code in (_DATE, _NEW_DATE, _DATETIME, _DATETIME2):
            return cls(name, nothing=_ZERO_DATE)
        if code in (_TIMESTAMP, _TIMESTAMP2):
            return cls(name, _instant)
        if code in (_TIME, _TIME2):
            return cls(name, _clock_reader(getattr(column, "fsp", 0)))
        if code == _JSON:
            return cls(name, _json_text, nothing="null")
        if code == _STRING and column.character_set_name == "binary":
            return cls(name, _padding(column.max_length))
        if code in (_YEAR, _BIT):
            return cls(name, _year if code == _YEAR else _bits)
        return None

    def read(self, value: Any, *, is_null: bool) -> Any:
        if value is None:
            return None if is_null else self.nothing
        return value if self.convert is None else self.convert(value)


def _set_reader(members: Sequence[str]) -> Callable[[Any], str]:
    return lambda chosen: ",".join(member for member in members if member in chosen)


def _year(value: int) -> int:
    """The library takes what stands for the year 0 as a distance from 1900."""
    return 0 if value == 1900 else value


def _bits(value: str) -> int:
    return int(value, 2)


def _instant(value: datetime) -> datetime | str:
    """TIMESTAMPs begin a second after 1970 did; what is before stands for none."""
    instant = value.replace(tzinfo=UTC)
    return _ZERO_DATE if instant == _BEFORE_ALL_TIMESTAMPS else instant


def _padding(length: int) -> Callable[[bytes], bytes]:
    """A BINARY(n) as it is stored: the log leaves out the zeros at its end."""
    return lambda value: value.ljust(length, b"\0")


def _clock_reader(places: int) -> Callable[[timedelta], str]:
    """A time of day, or a span, as MySQL writes it."""

    def written(value: timedelta) -> str:
        whole = abs(value)
        seconds = whole.days * 86_400 + whole.seconds
        text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        sign = "-" if value < timedelta() else ""
        return f"{sign}{text}.{whole.microseconds:06d}"[: len(sign) + len(text) + 1 + places].rstrip(".")

    return written


def _json_text(value: Any) -> str:
    """A document as MySQL writes it; the library gives its texts and names as bytes, and exact numbers as such."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_json_text(name)}: {_json_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json_text, value)) + "]"
    if isinstance(value, Decimal):
        return _text(value)
    if isinstance(value, bytes):
        value = value.decode()
    return json.dumps(value, ensure_ascii=False, default=str)


def _texts(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
