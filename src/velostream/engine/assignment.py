"""Values on their way into a column: Spark's ANSI store assignment.

Numbers may become any number (too many digits after the point are rounded half up into a DECIMAL and cut off into an
integer; too big is an error), anything may become text, dates and timestamps each other. Text becomes nothing else,
except that a constant may be written as text for a DATE or TIMESTAMP, where nothing else could be meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import TableError
from velostream.model.expression import Literal
from velostream.model.schema import Column
from velostream.model.types import normal_type, render_type
from velostream.sql.coercion import (
    MAX_PRECISION,
    decimal_of,
    is_atomic,
    is_integer,
    is_numeric,
    is_text,
    is_time,
    keeps_every_value,
)
from velostream.sql.constants import CastError, NotConstant, cast_value
from velostream.sql.lower import NotLowerable


def assign_constant(constant: Literal, column: Column, *, table: str) -> Any:
    """A constant as a value of the column's type; `TableError` when it can't be one."""
    if constant.value is None:
        return None
    written_time = is_text(constant.type) and is_time(column.type)
    if not written_time and not _may_assign(constant.type, column.type):
        raise _refused(constant.value, constant.type, column, table)
    return _assign_value(constant.value, constant.type, column, table)


def assign_columns(rows: pa.Table, columns: Sequence[Column], *, table: str) -> pa.Table:
    """Computed rows as rows with the columns given, by position."""
    arrays = [assign_column(values, column, table=table) for values, column in zip(rows.columns, columns, strict=True)]
    return pa.Table.from_arrays(arrays, names=[column.name for column in columns])


def assign_column(values: pa.Array | pa.ChunkedArray, column: Column, *, table: str) -> pa.Array:
    """Computed values as the column's type; `TableError` names the first one that can't be."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    source, target = normal_type(array.type), column.type
    if source != array.type:
        array = array.cast(source)
    if source == target:
        return array
    if array.null_count == len(array):
        return pa.nulls(len(array), target)
    if not _may_assign(source, target):
        raise TableError.wrong_type(table, column.name, expected=column.sql_type, got=render_type(source))
    try:
        fast = _cast_at_once(array, target)
    except pa.ArrowInvalid:
        fast = None
    if fast is not None:
        return fast
    return pa.array([_assign_value(value, source, column, table) for value in array.to_pylist()], target)


def _may_assign(source: pa.DataType, target: pa.DataType) -> bool:
    if source == target or pa.types.is_null(source):
        return True
    if is_numeric(source) and is_numeric(target):
        return True
    if is_text(target):
        return is_atomic(source)
    if pa.types.is_nested(source) and pa.types.is_nested(target):
        return _may_assign_nested(source, target)
    return is_time(source) and is_time(target)


def _may_assign_nested(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_map(source) and pa.types.is_map(target):
        return _may_assign(source.key_type, target.key_type) and _may_assign(source.item_type, target.item_type)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        names = [field.name for field in source] == [field.name for field in target]
        return names and all(_may_assign(a.type, b.type) for a, b in zip(source, target, strict=True))
    if pa.types.is_list(source) and pa.types.is_list(target):
        return _may_assign(source.value_type, target.value_type)
    return False


def _cast_at_once(array: pa.Array, target: pa.DataType) -> pa.Array | None:
    """The whole array where Arrow's cast is Spark's; None where each value has to be looked at."""
    source = array.type
    if pa.types.is_nested(source):
        return array.cast(target)
    if pa.types.is_decimal(target) and is_integer(source):
        return array.cast(decimal_of(source)).cast(target)
    if pa.types.is_decimal(target) and pa.types.is_decimal(source):
        return _rescaled(array, target)
    if (is_integer(source) and is_integer(target)) or keeps_every_value(source, target):
        return array.cast(target)
    return None


def _rescaled(array: pa.Array, target: pa.DataType) -> pa.Array | None:
    source = array.type
    if target.scale < source.scale:
        if source.precision == MAX_PRECISION:
            return None
        # One digit more, for 9.99 becomes 10.0.
        roomy = array.cast(pa.decimal128(source.precision + 1, source.scale))
        array = pc.round(roomy, target.scale, round_mode="half_towards_infinity")
    return array.cast(target)


def _assign_value(value: Any, source: pa.DataType, column: Column, table: str) -> Any:
    try:
        return cast_value(value, source, column.type)
    except CastError as error:
        raise _refused(value, source, column, table) from error
    except NotConstant as error:
        raise NotLowerable(f"Spark turns {render_type(source)} into {column.sql_type}") from error


def _refused(value: Any, type_: pa.DataType, column: Column, table: str) -> TableError:
    shown = f"'{value}'" if isinstance(value, str) else str(value)
    got = f"{shown} ({render_type(type_)})" if is_text(type_) else shown
    return TableError.wrong_type(table, column.name, expected=column.sql_type, got=got)
