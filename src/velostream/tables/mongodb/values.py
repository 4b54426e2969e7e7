"""Arrow values as BSON and back, without loss, a column at a time.

Instants are BSON dates in collections of the user's, which hold milliseconds; in collections of ours they are integers
of microseconds. Decimals of up to 34 digits are Decimal128, longer ones text. Maps are lists of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from velostream.errors import TableError
from velostream.tables.memory.keys import as_array, unscaled_words

if TYPE_CHECKING:
    from bson.decimal128 import Decimal128

DIGITS_OF_DECIMAL128 = 34
_EXPONENT_BIAS = 6176
_EXPONENT_SHIFT = 49
_SIGN = np.uint64(1 << 63)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - naive datetimes are UTC here
_MICROSECOND = timedelta(microseconds=1)

BsonValue = Any


class Values:
    """How the values of one column's type are written in documents. `dates`: instants are BSON dates."""

    def __init__(self, type_: pa.DataType, *, dates: bool) -> None:
        self.type = type_
        self._dates = dates

    @property
    def ordered(self) -> bool:
        """Whether the server orders what is written as SQL orders the values."""
        return not (pa.types.is_nested(self.type) or pa.types.is_binary(self.type) or is_long_decimal(self.type))

    @property
    def comparable(self) -> bool:
        """Whether equal values are written alike, and different ones differently, for the server's `$eq`."""
        return not (pa.types.is_nested(self.type) or pa.types.is_null(self.type))

    def encode(self, column: pa.Array | pa.ChunkedArray) -> list[BsonValue]:
        """The values of a column of this type. `TableError` for an instant that BSON dates can't hold."""
        array = as_array(column)
        type_ = self.type
        if pa.types.is_decimal(type_) and not is_long_decimal(type_):
            return _decimals128(array)
        if pa.types.is_timestamp(type_) and self._dates:
            return _bson_dates(array)
        if pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
            return list(array.cast(pa.int64()).to_pylist())
        if pa.types.is_date(type_):
            return list(array.cast(pa.timestamp("ms")).to_pylist())
        if pa.types.is_nested(type_) or is_long_decimal(type_):
            return [None if value is None else _encode_one(value, type_) for value in array.to_pylist()]
        return list(array.to_pylist())

    def decode(self, values: Sequence[BsonValue]) -> pa.Array:
        """Values of documents as a column. `TypeError`, `ValueError` or an Arrow error for one of another type."""
        type_ = self.type
        if pa.types.is_decimal(type_):
            return _decimals(values, type_)
        if pa.types.is_timestamp(type_):
            if self._dates:
                return pa.array(values, pa.timestamp("us")).cast(type_)
            return pa.array(values, pa.int64()).cast(type_)
        if pa.types.is_duration(type_):
            return pa.array(values, pa.int64()).cast(type_)
        if pa.types.is_date(type_):
            return pa.array(values, pa.timestamp("ms")).cast(type_)
        if pa.types.is_nested(type_):
            return pa.array([None if value is None else _decode_one(value, type_) for value in values], type_)
        return pa.array(values, type_)


def is_long_decimal(type_: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(type_) and type_.precision > DIGITS_OF_DECIMAL128)


def _decimals128(array: pa.Array) -> list[Decimal128 | None]:
    """Unscaled integers put into Decimal128's binary form, all at once."""
    from bson.decimal128 import Decimal128

    if array.null_count == len(array):
        return [None] * len(array)
    low, high = (words.view(np.uint64) for words in unscaled_words(array))
    negative = high >= _SIGN
    with np.errstate(over="ignore"):
        low, high = np.where(negative, ~low + np.uint64(1), low), np.where(negative, ~high + (low == 0), high)
    exponent = np.uint64((_EXPONENT_BIAS - array.type.scale) << _EXPONENT_SHIFT)
    high = high | exponent | np.where(negative, _SIGN, np.uint64(0))
    # The driver takes the two halves of the binary form, which its annotations don't tell.
    make: Callable[[Any], Decimal128] = Decimal128
    made: list[Decimal128 | None] = [make(halves) for halves in zip(high.tolist(), low.tolist(), strict=True)]
    if array.null_count:
        for at in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            made[at] = None
    return made


def _decimals(values: Sequence[BsonValue], type_: pa.DataType) -> pa.Array:
    from bson.decimal128 import Decimal128

    if is_long_decimal(type_) or any(type(value) is not Decimal128 for value in values if value is not None):
        return pa.array([_decimal(value) for value in values], type_)
    zero = bytes(16)
    data = b"".join(zero if value is None else value.bid for value in values)
    words = np.frombuffer(data, dtype="<u8").reshape(-1, 2)
    missing = np.fromiter((value is None for value in values), dtype=np.bool_, count=len(values))
    low, high = words[:, 0], words[:, 1]
    exponents = (high >> np.uint64(_EXPONENT_SHIFT)) & np.uint64(0x3FFF)
    if not (missing | (exponents == np.uint64(_EXPONENT_BIAS - type_.scale))).all():
        return pa.array([_decimal(value) for value in values], type_)
    negative = high >= _SIGN
    high = high & np.uint64((1 << _EXPONENT_SHIFT) - 1)
    with np.errstate(over="ignore"):
        unscaled = np.empty((len(values), 2), dtype="<u8")
        unscaled[:, 0] = np.where(negative, ~low + np.uint64(1), low)
        unscaled[:, 1] = np.where(negative, ~high + (low == 0), high)
    mask = pa.array(~missing).buffers()[1] if missing.any() else None
    widest = pa.decimal128(38, type_.scale)
    made = pa.Array.from_buffers(widest, len(values), [mask, pa.py_buffer(unscaled.tobytes())])
    return made.cast(type_)


def _decimal(value: BsonValue) -> Decimal | None:
    from bson.decimal128 import Decimal128

    if value is None or isinstance(value, Decimal):
        return value
    if isinstance(value, Decimal128):
        return value.to_decimal()
    if isinstance(value, str | int) and not isinstance(value, bool):
        return Decimal(value)
    raise TypeError(f"{type(value).__name__} is no exact number")


def _bson_dates(array: pa.Array) -> list[datetime | None]:
    try:
        return list(array.cast(pa.timestamp("ms", tz=array.type.tz)).cast(pa.timestamp("ms")).to_pylist())
    except pa.ArrowInvalid as error:
        raise TableError(
            "dates of this collection hold milliseconds, the instants given are finer",
            detail=str(error),
            hint="date_trunc('MILLISECOND', …) cuts them",
            code="wrong-type",
        ) from error


def _encode_one(value: Any, type_: pa.DataType) -> BsonValue:
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {escape(field.name): _encode_one(value[field.name], field.type) for field in type_}
    if pa.types.is_map(type_):
        return [[_encode_one(key, type_.key_type), _encode_one(item, type_.item_type)] for key, item in value]
    if pa.types.is_list(type_):
        return [_encode_one(item, type_.value_type) for item in value]
    if pa.types.is_decimal(type_):
        return format(value, "f") if is_long_decimal(type_) else _decimal128(value)
    if pa.types.is_timestamp(type_):
        naive = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return (naive - _EPOCH) // _MICROSECOND
    if pa.types.is_duration(type_):
        return value // _MICROSECOND
    if pa.types.is_date(type_):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001 - naive datetimes are UTC here
    return value


def _decimal128(value: Decimal) -> Decimal128:
    from bson.decimal128 import Decimal128

    return Decimal128(value)


def _decode_one(value: BsonValue, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: _decode_one(value.get(escape(field.name)), field.type) for field in type_}
    if pa.types.is_map(type_):
        pairs = value.items() if isinstance(value, dict) else value
        return [(_decode_one(key, type_.key_type), _decode_one(item, type_.item_type)) for key, item in pairs]
    if pa.types.is_list(type_):
        return [_decode_one(item, type_.value_type) for item in value]
    return _DECODERS.get(type_.id, _unchanged)(value)


def _unchanged(value: BsonValue) -> Any:
    return value


def _instant(value: BsonValue) -> datetime:
    """Naive, in UTC."""
    return value if isinstance(value, datetime) else _EPOCH + value * _MICROSECOND


_DECODERS: dict[int, Callable[[BsonValue], Any]] = {
    pa.decimal128(1).id: _decimal,
    pa.timestamp("us").id: _instant,
    pa.duration("us").id: lambda value: value * _MICROSECOND,
    pa.date32().id: lambda value: value.date() if isinstance(value, datetime) else value,
}


def escape(name: str) -> str:
    """A column's name as a field's name: dots, dollars and NULs mean something else to MongoDB."""
    escaped = name.replace("%", "%25").replace(".", "%2E").replace("$", "%24").replace("\0", "%00")
    return "%5Fid" if escaped == "_id" else escaped or "%"
