"""How the values of one column travel: Arrow on our side, what a driver binds and gives on the store's.

A codec loses nothing. What the store can be trusted to compare as Spark does is said by its two templates; a condition
that needs more is evaluated by us.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import TableError
from velostream.tables.memory.values import plain_type, python_values

Encoder = Callable[[pa.Array], Sequence[Any]]
Decoder = Callable[[Sequence[Any]], pa.Array]

NOT_A_NUMBER = "NaN"
_MICROSECOND = timedelta(microseconds=1)
_YEAR_0 = -62_167_219_200_000_000
_YEAR_10000 = 253_402_300_800_000_000
"""In microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One column's values, both ways."""

    type: pa.DataType
    store_type: str
    """The column's type in the store's own words, for CREATE TABLE."""
    encode: Encoder
    """An array of `type` as values to bind; None for NULL, and for a value that no column of the store can hold."""
    decode: Decoder
    """Values as the driver gives them as an array of `type`."""
    equality: str | None = "{}"
    """What to make of an expression of this column, so that the store's `=` is Spark's; None: it can't be."""
    order: str | None = "{}"
    """Likewise for `<` and its kin."""

    def encode_one(self, value: Any) -> Any:
        """One Python value; raises what `pa.array` raises when it is none of the type."""
        return self.encode(pa.array([value], self.type))[0]


def plain(array: pa.Array) -> Sequence[Any]:
    """Values that every driver takes as they are: integers, texts, bytes."""
    return python_values(array)


def decode_as(type_: pa.DataType) -> Decoder:
    """Values that Arrow reads as they come."""
    return lambda values: pa.array(values, type_)


def encode_floats(array: pa.Array) -> Sequence[Any]:
    """Doubles without a negative zero, which equals zero and which not every store keeps apart."""
    filled = array.cast(pa.float64())
    if filled.null_count:
        return [None if value is None else value + 0.0 for value in filled.to_pylist()]
    numbers: list[float] = (filled.to_numpy() + 0.0).tolist()
    return numbers


def encode_floats_with_nan_as_text(array: pa.Array) -> Sequence[Any]:
    """For a store without NaN that puts texts above all numbers, as Spark puts NaN."""
    values = encode_floats(array)
    return [NOT_A_NUMBER if value is not None and value != value else value for value in values]  # noqa: PLR0124


def decode_floats(type_: pa.DataType) -> Decoder:
    """Numbers, or the texts NaN and Infinity that float() reads."""
    return lambda values: pa.array([float(v) if isinstance(v, str | Decimal) else v for v in values], type_)


def encode_as_text(array: pa.Array) -> Sequence[Any]:
    """What Arrow writes for decimals: one text for one value."""
    return list(array.cast(pa.string()).to_pylist())


def encode_times_as_text(array: pa.Array) -> Sequence[Any]:
    """What Arrow writes for dates and timestamps: texts of one width, which have the order of the times.

    Raises `TableError` for a year of more than four digits, which would break that order and can't be read again.
    """
    bounds = pc.min_max(array.cast(pa.timestamp("us") if pa.types.is_date(array.type) else array.type).cast(pa.int64()))
    earliest, latest = bounds["min"].as_py(), bounds["max"].as_py()
    if earliest is not None and not (earliest >= _YEAR_0 and latest < _YEAR_10000):
        raise TableError("times are kept here for the years 0 to 9999 only", code="wrong-type")
    return encode_as_text(array)


def decode_text(type_: pa.DataType) -> Decoder:
    """The way back of `encode_as_text`; also reads what others write: numbers, dates, other notations of times."""

    def decode(values: Sequence[Any]) -> pa.Array:
        try:
            return pa.array(values, pa.string()).cast(type_)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return pa.array([_from_foreign(value, type_) for value in values], type_)

    return decode


def decode_decimals(type_: pa.DataType) -> Decoder:
    """Decimals, numbers or texts with at most the type's scale."""
    return lambda values: pa.array([_decimal(value) for value in values], type_)


def encode_booleans_as_integers(array: pa.Array) -> Sequence[Any]:
    return list(array.cast(pa.int8()).to_pylist())


def decode_booleans(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else bool(value) for value in values], pa.bool_())


def encode_microseconds(array: pa.Array) -> Sequence[Any]:
    return python_values(array.cast(pa.int64()))


def decode_microseconds(type_: pa.DataType) -> Decoder:
    return lambda values: pa.array(values, pa.int64()).cast(type_)


def encode_datetimes(array: pa.Array) -> Sequence[Any]:
    """Datetimes with their zone where the type has one; `plain` gives them in UTC without."""
    return list(array.to_pylist())


def decode_times(type_: pa.DataType) -> Decoder:
    """Dates and datetimes, with a zone or in UTC, or texts of them."""
    return lambda values: pa.array([_from_foreign(value, type_) for value in values], type_)


def refuse_rounding(array: pa.Array, *, places: int) -> None:
    """Raise `TableError` for decimals, or parts of seconds, of more places than a column of the store has."""
    if pa.types.is_decimal(array.type):
        exact = places >= array.type.scale or pc.all(pc.equal(pc.round(array, places), array)).as_py()
    else:
        step = 10 ** (6 - places)
        numbers = pc.drop_null(array.cast(pa.int64())).to_numpy()
        exact = not (numbers % step).any()
    if exact is False:
        raise TableError(
            f"the store's column keeps {places} places, and a value has more",
            detail="nothing of the statement was applied",
            code="wrong-type",
        )


def decode_bytes(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else bytes(value) for value in values], pa.binary())


def encode_nested(array: pa.Array) -> Sequence[Any]:
    """Structs, lists and maps as JSON text."""
    return [None if value is None else orjson.dumps(value).decode() for value in json_values(array)]


def json_values(array: pa.Array) -> list[Any]:
    """Values of any type as JSON has them, equal exactly for equal values; see `_to_json`."""
    type_ = array.type
    return [_to_json(value, type_) for value in array.cast(plain_type(type_)).to_pylist()]


def decode_nested(type_: pa.DataType) -> Decoder:
    """The way back of `encode_nested`; takes a driver's decoded JSON as well."""

    def decode(values: Sequence[Any]) -> pa.Array:
        loaded = (orjson.loads(value) if isinstance(value, str | bytes) else value for value in values)
        return pa.array([None if value is None else _from_json(value, type_) for value in loaded], type_)

    return decode


def _to_json(value: Any, type_: pa.DataType) -> Any:
    """JSON without loss: decimals and times as texts, bytes as base64, floats beyond JSON by name, maps as pairs."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: _to_json(value[field.name], field.type) for field in type_}
    if pa.types.is_map(type_):
        return [[_to_json(key, type_.key_type), _to_json(item, type_.item_type)] for key, item in value]
    if pa.types.is_list(type_):
        return [_to_json(item, type_.value_type) for item in value]
    if pa.types.is_decimal(type_):
        return str(value)
    if pa.types.is_floating(type_):
        return value + 0.0 if np.isfinite(value) else str(value)
    if pa.types.is_binary(type_):
        return base64.b64encode(value).decode()
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return value.isoformat()
    if pa.types.is_duration(type_):
        return value // _MICROSECOND
    return value


def _from_json(value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: _from_json(value.get(field.name), field.type) for field in type_}
    if pa.types.is_map(type_):
        pairs = value.items() if isinstance(value, dict) else value
        return [(_from_json(key, type_.key_type), _from_json(item, type_.item_type)) for key, item in pairs]
    if pa.types.is_list(type_):
        return [_from_json(item, type_.value_type) for item in value]
    if pa.types.is_floating(type_):
        return float(value)
    if pa.types.is_binary(type_):
        return base64.b64decode(value)
    if pa.types.is_duration(type_):
        return timedelta(microseconds=value)
    return _from_foreign(value, type_)


def _from_foreign(value: Any, type_: pa.DataType) -> Any:
    """A value in whatever notation it came as the Python value of a type."""
    if value is None:
        return None
    if pa.types.is_decimal(type_):
        return _decimal(value)
    if pa.types.is_timestamp(type_) and isinstance(value, str):
        return datetime.fromisoformat(value)
    if pa.types.is_date(type_) and isinstance(value, str):
        return date.fromisoformat(value[:10])
    return value


def _decimal(value: Any) -> Decimal | None:
    """A float is read as the shortest decimal that stands for it, which is what was written."""
    if value is None or isinstance(value, Decimal):
        return value
    return Decimal(repr(value) if isinstance(value, float) else value)
