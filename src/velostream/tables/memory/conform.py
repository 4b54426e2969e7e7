"""Rows as they come, made rows of a table: columns by name, types widened where no value changes, NOT NULL held."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import NotFoundError, TableError
from velostream.model.schema import Column, Schema
from velostream.model.types import render_type
from velostream.tables.memory.keys import as_array

_DIGITS_OF_INTEGER = {8: 3, 16: 5, 32: 10, 64: 20}


def conform(
    rows: pa.Table,
    *,
    table: str,
    schema: Schema,
    stored: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    check_nulls: bool = True,
) -> pa.Table:
    """The rows with the table's columns in the table's order; each column one contiguous array.

    Names are matched in any case; a column that isn't given is NULL. With `columns` only those are wanted, all of them
    must be given, and others are passed over. `stored` is the table's `stored_schema`: rows that have it already are
    taken as they are. Raises `TableError` or `NotFoundError`; `table` is the name they use.
    """
    if stored is not None and rows.schema.equals(stored) and all(column.num_chunks == 1 for column in rows.columns):
        if check_nulls:
            check_not_null(rows, table=table, schema=schema)
        return rows
    given: dict[str, int] = {}
    for position, name in enumerate(rows.column_names):
        if schema.find(name) is None:
            raise NotFoundError.of("column", name, known=schema.names)
        if name.lower() in given:
            raise TableError(f'column "{name}" of table "{table}" is given twice', code="duplicate-column")
        given[name.lower()] = position
    wanted = schema.columns if columns is None else tuple(schema.column(name) for name in columns)
    arrays: list[pa.Array] = []
    for column in wanted:
        position_given = given.get(column.name.lower())
        if position_given is None:
            if columns is not None:
                raise TableError(f'column "{column.name}" of table "{table}" is not given', code="missing-column")
            array = pa.nulls(rows.num_rows, column.type)
        else:
            array = _conform_column(as_array(rows.column(position_given)), column, table)
        if check_nulls and not column.nullable and array.null_count:
            raise TableError.null_in(table, column.name)
        arrays.append(array)
    target = schema.arrow if columns is None else pa.schema([schema.arrow.field(column.name) for column in wanted])
    return pa.Table.from_arrays(arrays, schema=_loosened(target))


def check_not_null(rows: pa.Table, *, table: str, schema: Schema) -> None:
    """Raise `TableError.null_in` when a NOT NULL column of conformed rows holds a NULL."""
    for column in schema.columns:
        if not column.nullable and rows.column(column.name).null_count:
            raise TableError.null_in(table, column.name)


def stored_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema that chunks have."""
    return _loosened(schema.arrow)


def fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type can stand in a column of another without changing what they say."""
    if given == wanted or pa.types.is_null(given):
        return True
    if pa.types.is_dictionary(given):
        return fits(given.value_type, wanted)
    if pa.types.is_struct(wanted):
        return pa.types.is_struct(given) and _fields_fit(given, wanted)
    if pa.types.is_map(wanted):
        return (
            pa.types.is_map(given) and fits(given.key_type, wanted.key_type) and fits(given.item_type, wanted.item_type)
        )
    if pa.types.is_list(wanted):
        return _is_list(given) and fits(given.value_type, wanted.value_type)
    return any(is_given(given) and is_wanted(wanted) for is_given, is_wanted in _FITTING)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
        or pa.types.is_binary_view(type_)
    )


def _is_exact(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_decimal(type_))


def _is_numeric(type_: pa.DataType) -> bool:
    return bool(_is_exact(type_) or pa.types.is_floating(type_))


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


_FITTING = (
    (_is_exact, _is_numeric),
    (pa.types.is_floating, pa.types.is_floating),
    (_is_text, _is_text),
    (_is_bytes, _is_bytes),
    (pa.types.is_date, pa.types.is_date),
    (pa.types.is_date, pa.types.is_timestamp),
    (pa.types.is_timestamp, pa.types.is_timestamp),
    (pa.types.is_duration, pa.types.is_duration),
)


def _fields_fit(given: pa.DataType, wanted: pa.DataType) -> bool:
    by_lower = {field.name.lower(): field.type for field in wanted}
    return all(field.name.lower() in by_lower and fits(field.type, by_lower[field.name.lower()]) for field in given)


def _conform_column(array: pa.Array, column: Column, table: str) -> pa.Array:
    if array.type == column.type:
        return array
    if not fits(array.type, column.type):
        raise TableError.wrong_type(table, column.name, expected=column.sql_type, got=render_type(array.type))
    try:
        return cast_exactly(array, column.type)
    except pa.ArrowInvalid as error:
        refused = TableError.wrong_type(
            table, column.name, expected=column.sql_type, got=f"all of the {render_type(array.type)} values given"
        )
        refused.detail = str(error)
        raise refused from error


def cast_exactly(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast between types that `fits` allows; `pa.ArrowInvalid` where a value would change."""
    given = array.type
    if given == target:
        return array
    if pa.types.is_null(given):
        return pa.nulls(len(array), target)
    if pa.types.is_dictionary(given):
        return cast_exactly(array.dictionary_decode(), target)
    if pa.types.is_struct(target):
        return _cast_struct(array, target)
    if pa.types.is_list(target):
        return _cast_list(array, target)
    if pa.types.is_decimal(target) and pa.types.is_integer(given):
        return array.cast(pa.decimal128(_DIGITS_OF_INTEGER[given.bit_width], 0)).cast(target)
    if pa.types.is_timestamp(target) and pa.types.is_date(given):
        return array.cast(pa.timestamp(target.unit)).cast(target)
    return array.cast(target)


def _cast_struct(array: pa.Array, target: pa.DataType) -> pa.Array:
    given = {field.name.lower(): child for field, child in zip(array.type, array.flatten(), strict=True)}
    children = [
        cast_exactly(given[field.name.lower()], field.type)
        if field.name.lower() in given
        else pa.nulls(len(array), field.type)
        for field in target
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _cast_list(array: pa.Array, target: pa.DataType) -> pa.Array:
    if not pa.types.is_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    if array.offset:
        array = pc.take(array, pa.array(range(len(array)), type=pa.int64()))
    values = cast_exactly(array.values, target.value_type)
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(array.offsets, values, type=target, mask=mask)


def _loosened(schema: pa.Schema) -> pa.Schema:
    """Every field nullable: NOT NULL is held by us, and Arrow would refuse to mix the two."""
    return pa.schema([field.with_nullable(True) for field in schema])
