"""Types of MySQL and MariaDB as ours, and their values as Arrow columns: out of results, and out of the binary log.

Results give every value as the bytes of its text, the log gives what `mysql_rows` makes of it; both are brought to one
schema by `model.conform`, so that a row is the same whichever way it came. A date with a zero in it is no date for us:
the text that MySQL writes for it makes a bad record. Times of day, JSON, ENUM and SET are texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from velostream.model.types import TIMESTAMP

_TINY, _SHORT, _LONG, _LONGLONG, _INT24 = 1, 2, 3, 8, 9
_FLOAT, _DOUBLE, _YEAR, _BIT = 4, 5, 13, 16
_OLD_DECIMAL, _DECIMAL = 0, 246
_TIMESTAMP, _DATE, _DATETIME, _NEW_DATE = 7, 10, 12, 14
_JSON, _STRING, _GEOMETRY, _VECTOR = 245, 254, 255, 242
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
    """Values that `mysql_rows` has read, to be brought to the column's type."""
    if pa.types.is_boolean(type_) or pa.types.is_decimal(type_):
        return _texts(values)
    try:
        # Of what Python holds without a zone only the source knows which it is in.
        return pa.array(values, None if pa.types.is_timestamp(type_) else type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        if any(isinstance(value, bytes) for value in values):
            return pa.array([None if value is None else _bytes(value) for value in values], pa.binary())
        return _texts(values)


def _texts(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
