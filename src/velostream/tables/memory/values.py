"""Arrow values as the Python values people get: Decimal, naive UTC datetimes, dicts for structs and maps."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import pyarrow as pa

Decoder = Callable[[pa.Scalar], Any]
_AS_PYTHON: Decoder = operator.methodcaller("as_py")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - naive datetimes are UTC here


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """All values of a column. Timestamps are naive in UTC at any depth, maps are dicts."""
    plain = plain_type(column.type)
    if plain != column.type:
        column = column.cast(plain)
    if pa.types.is_nested(plain):
        return list(column.to_pylist(maps_as_pydicts="lossy"))
    if (pa.types.is_integer(plain) or pa.types.is_floating(plain)) and not column.null_count:
        return list(column.to_numpy().tolist())
    return list(column.to_pylist())


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
