"""Values in a form that Python can hash and compare as SQL compares keys.

Times become integers, decimals their unscaled integer, NaN one object that equals itself, nested values frozen
forms in which the order of a map's entries doesn't show. NULL stays None: it is a value of its own in a key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.tables.memory.growable import Integers
from velostream.tables.memory.values import python_values

NAN = math.nan
_NOT_A_KEY: Hashable = object()
"""Equal to no key: what a value of a wrong type becomes."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - naive datetimes are UTC here
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_LONGEST_IN_64_BITS = 18


def key_values(rows: pa.Table, columns: Sequence[str]) -> list[Hashable]:
    """The key of every row: a scalar for one column, a tuple for several."""
    if len(columns) == 1:
        return hashable_values(rows.column(columns[0]))
    return list(zip(*(hashable_values(rows.column(name)) for name in columns), strict=True))


def hashable_values(column: pa.Array | pa.ChunkedArray) -> list[Hashable]:
    """Every value of a column in its hashable form."""
    type_ = column.type
    if pa.types.is_nested(type_):
        return [frozen(value) for value in python_values(column)]
    if pa.types.is_decimal(type_):
        return _decimal_values(as_array(column))
    if pa.types.is_floating(type_):
        return [NAN if value is not None and value != value else value for value in python_values(column)]  # noqa: PLR0124
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        return python_values(column.cast(pa.int64()))
    if pa.types.is_date(type_):
        return python_values(column.cast(pa.int32()))
    return python_values(column)


def frozen(value: Any) -> Hashable:
    """A hashable stand-in that is equal exactly for equal nested values; NaN equals NaN."""
    if isinstance(value, dict):
        return frozenset((frozen(name), frozen(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - only NaN differs from itself
        return NAN
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value  # type: ignore[no-any-return]


def key_normaliser(types: Sequence[pa.DataType]) -> Callable[[Any], Hashable] | None:
    """Turns a key as a user gives it into the form of `key_values`; None when it is in that form already.

    A key of a wrong type or of a wrong number of columns becomes something that no key equals.
    """
    parts = [_normaliser(type_) for type_ in types]
    if len(parts) == 1:
        single = parts[0]
        if single is None:
            return None
        return lambda value: None if value is None else single(value)

    def normalise(value: Any) -> Hashable:
        if not isinstance(value, tuple | list) or len(value) != len(parts):
            return _NOT_A_KEY
        return tuple(
            item if item is None or part is None else part(item) for item, part in zip(value, parts, strict=True)
        )

    return normalise


def unscaled_words(column: pa.Array) -> tuple[Integers, Integers]:
    """The two halves of each 128-bit unscaled decimal, low and high; undefined where NULL."""
    words = np.frombuffer(column.buffers()[1], dtype=np.int64).reshape(-1, 2)
    window = words[column.offset : column.offset + len(column)]
    return window[:, 0], window[:, 1]


def small_integers(column: pa.Array | pa.ChunkedArray) -> Integers | None:
    """The values of integers or, unscaled, of decimals, 0 for NULL; None where one takes more than 63 bits."""
    array = as_array(column)
    if not pa.types.is_decimal128(array.type):
        if not pa.types.is_signed_integer(array.type):
            return None
        filled = array.fill_null(0) if array.null_count else array
        low: Integers = filled.to_numpy().astype(np.int64, copy=False)
        return low if (low >> 62 == low >> 63).all() else None
    if array.null_count == len(array):
        return np.zeros(len(array), dtype=np.int64)
    low, high = unscaled_words(array)
    if array.null_count:
        known = as_array(array.is_valid()).to_numpy(zero_copy_only=False)
        low, high = np.where(known, low, 0), np.where(known, high, 0)
    return low if (low >> 62 == high).all() else None


def decimals_of(unscaled: Integers, type_: pa.DataType) -> pa.Array:
    """Decimals of 128 bits from the numbers behind them, none of which has more digits than the type."""
    words = np.empty((len(unscaled), 2), dtype=np.int64)
    words[:, 0] = unscaled
    words[:, 1] = unscaled >> 63
    return pa.Array.from_buffers(type_, len(unscaled), [None, pa.py_buffer(words)])


def as_grouped(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The values as a group of equal ones shows them: 0.0 stands for -0.0, in fields and elements, too."""
    array = as_array(column)
    type_ = array.type
    if pa.types.is_floating(type_):
        return pc.add(array, pa.scalar(0.0, type_))
    if pa.types.is_struct(type_):
        fields = [as_grouped(field) for field in array.flatten()]
        return pa.StructArray.from_arrays(fields, fields=list(type_.fields), mask=array.is_null())
    if pa.types.is_list(type_):
        # Made from the elements that the lists have, since what lies between them may be anything.
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        return pa.ListArray.from_arrays(ends, as_grouped(array.flatten()), type=type_, mask=array.is_null())
    return array


def as_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def _decimal_values(column: pa.Array) -> list[Hashable]:
    if not len(column) or column.null_count == len(column):
        return [None] * len(column)
    if not pa.types.is_decimal128(column.type):
        return [None if value is None else _unscaled(value, column.type.scale) for value in column.to_pylist()]
    low, high = unscaled_words(column)
    values: list[Any]
    if column.type.precision <= _LONGEST_IN_64_BITS:
        values = low.tolist()
    else:
        values = [
            (upper << 64) | lower for upper, lower in zip(high.tolist(), low.view(np.uint64).tolist(), strict=True)
        ]
    if column.null_count:
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[index] = None
    return values


def _unscaled(value: Decimal, scale: int) -> Hashable:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return _NOT_A_KEY
    number: int = int("".join(map(str, digits)))
    shift = exponent + scale
    if shift < 0:
        number, rest = divmod(number, 10**-shift)
        if rest:
            return _NOT_A_KEY
    else:
        number *= 10**shift
    return -number if sign else number


def _normaliser(type_: pa.DataType) -> Callable[[Any], Hashable] | None:
    if pa.types.is_decimal(type_):
        scale = type_.scale
        return lambda value: (
            _unscaled(Decimal(value), scale) if isinstance(value, Decimal | int | float) else _NOT_A_KEY
        )
    if pa.types.is_timestamp(type_):
        return _microseconds
    if pa.types.is_date(type_):
        return lambda value: value.toordinal() - _EPOCH_ORDINAL if type(value) is date else _NOT_A_KEY
    if pa.types.is_duration(type_):
        return lambda value: value // _MICROSECOND if isinstance(value, timedelta) else _NOT_A_KEY
    if pa.types.is_float32(type_):
        return lambda value: frozen(float(np.float32(value))) if isinstance(value, int | float) else _NOT_A_KEY
    if pa.types.is_floating(type_) or pa.types.is_nested(type_):
        return frozen
    return None


def _microseconds(value: Any) -> Hashable:
    if not isinstance(value, datetime):
        return _NOT_A_KEY
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    microseconds: int = (value - _EPOCH) // _MICROSECOND
    return microseconds
