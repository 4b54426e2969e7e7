"""Arrow values as the Python values people get: Decimal, naive UTC datetimes, dicts for structs and maps."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa


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
    plain = plain_type(scalar.type)
    if plain != scalar.type:
        scalar = scalar.cast(plain)
    if pa.types.is_nested(plain):
        return scalar.as_py(maps_as_pydicts="lossy")
    return scalar.as_py()


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
