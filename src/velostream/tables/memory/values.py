"""Arrow values as the Python values people get: Decimal, naive UTC datetimes, dicts for structs and maps."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Context, Decimal
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from velostream.model.variant import decoder_within

Decoder = Callable[[pa.Scalar], Any]
_AS_PYTHON: Decoder = operator.methodcaller("as_py")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - naive datetimes are UTC here
_MICROSECOND = timedelta(microseconds=1)
_FIRST_MOMENT = (datetime(1, 1, 1) - _EPOCH) // _MICROSECOND  # noqa: DTZ001
_LAST_MOMENT = (datetime(9999, 12, 31, 23, 59, 59, 999_999) - _EPOCH) // _MICROSECOND  # noqa: DTZ001
_EXACT = Context(prec=40)
_LONGEST_IN_64_BITS = 18


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """All values of a column. Timestamps are naive in UTC at any depth, maps are dicts."""
    plain = plain_type(column.type)
    if plain != column.type:
        column = column.cast(plain)
    if pa.types.is_nested(plain):
        return list(column.to_pylist(maps_as_pydicts="lossy"))
    if pa.types.is_timestamp(plain) and plain.unit == "us":
        return _datetimes(column)
    if pa.types.is_decimal128(plain) and plain.precision <= _LONGEST_IN_64_BITS:
        return _decimals(column)
    if (pa.types.is_integer(plain) or pa.types.is_floating(plain)) and not column.null_count:
        return list(column.to_numpy().tolist())
    return list(column.to_pylist())


def shown_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """All values of a column as people get them: VARIANTs as the values that they hold.

    `python_values` leaves a VARIANT the struct that Arrow takes, so that rows can be kept without loss.
    """
    decode = decoder_within(column.type)
    values = python_values(column)
    return values if decode is None else [None if value is None else decode(value) for value in values]


def shown_value(scalar: pa.Scalar) -> Any:
    """One value, by the same rules as `shown_values`."""
    decode = decoder_within(scalar.type)
    value = python_value(scalar)
    return value if decode is None or value is None else decode(value)


def _datetimes(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Arrow makes them one by one, many times slower; what Python's have no room for is Arrow's to complain about."""
    numbers = _filled(column.cast(pa.int64()))
    if len(numbers) and (numbers.min() < _FIRST_MOMENT or numbers.max() > _LAST_MOMENT):
        return list(column.to_pylist())
    return _with_none(numbers.view("datetime64[us]").tolist(), column)


def _decimals(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """As `_datetimes`: the numbers behind short decimals fit 64 bits."""
    numbers: list[int] = []
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if chunk.null_count == len(chunk):
            numbers += [0] * len(chunk)
        else:
            words = np.frombuffer(chunk.buffers()[1], dtype=np.int64)
            numbers += words[2 * chunk.offset : 2 * (chunk.offset + len(chunk)) : 2].tolist()
    values = list(map(_EXACT.multiply, map(Decimal, numbers), repeat(Decimal(1).scaleb(-column.type.scale))))
    return _with_none(values, column)


def _filled(column: pa.Array | pa.ChunkedArray) -> Any:
    return (column.fill_null(0) if column.null_count else column).to_numpy()


def _with_none(values: list[Any], column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if column.null_count:
        for index in np.flatnonzero(np.asarray(column.is_null())).tolist():
            values[index] = None
    return values


def python_value(scalar: pa.Scalar) -> Any:
    """One value, by the same rules as `python_values`."""
    return decoder_of(scalar.type)(scalar)


def decoder_of(type_: pa.DataType) -> Decoder:
    """What turns a scalar of a type into its Python value, by the same rules as `python_values`."""
    if pa.types.is_timestamp(type_):
        return _naive_datetime
    if pa.types.is_nested(type_):
        plain = plain_type(type_)
        return lambda scalar: scalar.cast(plain).as_py(maps_as_pydicts="lossy")
    return _AS_PYTHON


def _naive_datetime(scalar: pa.Scalar) -> datetime | None:
    microseconds = scalar.value
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)


@cache
def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type with every timestamp's zone taken off; instants are kept in UTC, so that changes no value."""
    if pa.types.is_timestamp(type_):
        return pa.timestamp(type_.unit)
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(plain_type(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(plain_type(type_.key_type), plain_type(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(plain_type(type_.value_type))
    return type_
