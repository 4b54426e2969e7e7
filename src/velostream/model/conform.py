"""Arrow rows brought to a schema: columns by name, types by exact casts, rows that don't fit set aside.

No cast drops digits silently: a decimal of too large a scale, an integer out of range or a text that is no number
makes its row unfit. What happens to unfit rows is the caller's business.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.model.schema import Column, Schema
from velostream.model.types import render_type

Reject = Callable[[int, str], None]
"""Called with the index of a row that doesn't fit and the reason."""


@dataclass(frozen=True, slots=True)
class TimeRules:
    """How texts are read as points in time: ISO-8601 or a strptime `pattern`, local to `timezone` without a zone.

    And as bytes: those of the text itself, or what it holds in base64.
    """

    timezone: str = "UTC"
    pattern: str | None = None
    bytes_in_base64: bool = False


ISO_IN_UTC = TimeRules()

_ANY_INTEGER = pa.decimal128(20, 0)

_ZONED = r"(?:[Zz]|[+-]\d{2}(?::?\d{2})?)$"
_EXCESS_FRACTION = r"(\.\d{6})\d+"


def conform(
    rows: pa.Table,
    schema: Schema,
    reject: Reject,
    *,
    times: TimeRules = ISO_IN_UTC,
    exempt: pa.ChunkedArray | None = None,
) -> pa.Table:
    """The rows with exactly the columns of `schema`; a column that isn't there is NULL, further ones are left out.

    Names match exactly, else without regard to case. Each unfit row is given to `reject` once and left out. Rows for
    which `exempt` is true (tombstones, which carry their key only) may be NULL where the schema says NOT NULL.
    """
    by_name = {name: position for position, name in enumerate(rows.column_names)}
    by_lower = {name.lower(): position for name, position in by_name.items()}
    unfit: dict[int, str] = {}
    columns: list[pa.ChunkedArray] = []
    for column in schema.columns:
        position = by_name.get(column.name, by_lower.get(column.name.lower()))
        if position is None:
            values = pa.chunked_array([pa.nulls(rows.num_rows, column.type)])
        else:
            values = _fitted(rows.column(position), column, unfit, times)
        if not column.nullable and values.null_count:
            nulls = values.is_null() if exempt is None else pc.and_not(values.is_null(), exempt)
            for index in np.flatnonzero(nulls.to_numpy()).tolist():
                unfit.setdefault(index, f'column "{column.name}" is NOT NULL')
        columns.append(values)
    if unfit:
        keep = np.ones(rows.num_rows, dtype=bool)
        keep[list(unfit)] = False
        mask = pa.array(keep)
        columns = [values.filter(mask) for values in columns]
        for index in sorted(unfit):
            reject(index, unfit[index])
    return pa.Table.from_arrays(columns, schema=schema.arrow)


def cast_column(values: pa.Array, type_: pa.DataType, *, times: TimeRules = ISO_IN_UTC) -> pa.Array:
    """One exact cast; raises `pa.ArrowInvalid` or a kin of it when any value doesn't fit."""
    source = values.type
    if source == type_:
        return values
    if values.null_count == len(values):
        return pa.nulls(len(values), type_)
    if pa.types.is_dictionary(source):
        return cast_column(values.dictionary_decode(), type_, times=times)
    if pa.types.is_string(source) or pa.types.is_large_string(source) or pa.types.is_string_view(source):
        return _cast_text(values, type_, times)
    if pa.types.is_floating(source) and pa.types.is_decimal(type_):
        # Through text: the shortest decimal of a float is what was written, its binary value is not.
        return values.cast(pa.string()).cast(type_)
    if pa.types.is_integer(source) and pa.types.is_decimal(type_):
        # Arrow asks for the digits of the integer's type, though the values may have fewer.
        return values.cast(_ANY_INTEGER).cast(type_)
    if pa.types.is_timestamp(type_):
        return _cast_timestamp(values, type_, times.timezone)
    if pa.types.is_struct(type_) and pa.types.is_struct(source):
        return _cast_struct(values, type_, times)
    if pa.types.is_list(type_) and (pa.types.is_list(source) or pa.types.is_large_list(source)):
        return _cast_list(values, type_, times)
    if pa.types.is_map(type_) and pa.types.is_map(source):
        return _cast_map(values, type_, times)
    if pa.types.is_map(type_) and pa.types.is_struct(source):
        return _map_of_fields(values, type_, times)
    if pa.types.is_string(type_) and pa.types.is_nested(source):
        raise pa.ArrowInvalid("a nested value is no text")
    return values.cast(type_)


def parse_timestamps(texts: pa.Array, *, times: TimeRules = ISO_IN_UTC) -> pa.Array:
    """Texts as instants. More than six fractional digits are cut off, as Spark does."""
    timezone = times.timezone
    if times.pattern is not None:
        return _as_instants(pc.strptime(texts, format=times.pattern, unit="us"), timezone)
    if pc.any(pc.match_substring_regex(texts, _EXCESS_FRACTION)).as_py():
        texts = pc.replace_substring_regex(texts, _EXCESS_FRACTION, r"\1")
    zoned = pc.match_substring_regex(texts, _ZONED)
    # A date alone ends in "-01" and looks like an offset of hours.
    zoned = pc.and_(zoned, pc.greater(pc.utf8_length(texts), 10))
    zoned_count = pc.sum(zoned).as_py() or 0
    if zoned_count == 0:
        return _as_instants(texts.cast(pa.timestamp("us")), timezone)
    instants = pa.timestamp("us", tz="UTC")
    if zoned_count == len(texts) - texts.null_count:
        return texts.cast(instants)
    nothing = pa.scalar(None, texts.type)
    with_zone = pc.if_else(zoned, texts, nothing).cast(instants)
    without = _as_instants(pc.if_else(zoned, nothing, texts).cast(pa.timestamp("us")), timezone)
    return pc.coalesce(with_zone, without)


def _fitted(values: pa.ChunkedArray, column: Column, unfit: dict[int, str], times: TimeRules) -> pa.ChunkedArray:
    if values.type == column.type:
        return values
    pieces: list[pa.Array] = []
    start = 0
    for chunk in values.chunks:
        pieces += _cast_piece(chunk, column, start, unfit, times)
        start += len(chunk)
    return pa.chunked_array(pieces, type=column.type)


def _cast_piece(
    values: pa.Array, column: Column, start: int, unfit: dict[int, str], times: TimeRules
) -> list[pa.Array]:
    """Cast what can be cast, halving until the values that can't are alone; those become NULL and unfit."""
    try:
        return [cast_column(values, column.type, times=times)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        if len(values) == 1:
            shown = _shown(values[0].as_py())
            hint = "; declare the column with more digits" if pa.types.is_decimal(column.type) else ""
            reason = f'column "{column.name}" is {render_type(column.type)}, not {shown}: {error}{hint}'
            unfit.setdefault(start, reason)
            return [pa.nulls(1, column.type)]
    half = len(values) // 2
    return [
        *_cast_piece(values[:half], column, start, unfit, times),
        *_cast_piece(values[half:], column, start + half, unfit, times),
    ]


def from_base64(text: str) -> bytes:
    """The bytes that a text holds; `ValueError` when it isn't base64."""
    return base64.b64decode(text.strip(), validate=True)


def _cast_text(texts: pa.Array, type_: pa.DataType, times: TimeRules) -> pa.Array:
    if pa.types.is_binary(type_) and times.bytes_in_base64:
        try:
            return pa.array([None if text is None else from_base64(text) for text in texts.to_pylist()], type_)
        except ValueError as error:
            raise pa.ArrowInvalid(f"not base64: {error}") from error
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return texts.cast(type_)
    trimmed = pc.utf8_trim_whitespace(texts)
    if pa.types.is_timestamp(type_):
        instants = parse_timestamps(trimmed, times=times)
        return instants if type_.tz else instants.cast(type_)
    return trimmed.cast(type_)


def _cast_timestamp(values: pa.Array, type_: pa.DataType, timezone: str) -> pa.Array:
    source = values.type
    if pa.types.is_date(source):
        values = values.cast(pa.timestamp("us"))
    elif not pa.types.is_timestamp(source):
        raise pa.ArrowInvalid("a number is no point in time")
    if values.type.unit == "ns":
        values = pc.floor_temporal(values, unit="microsecond")
    if type_.tz and values.type.tz is None:
        return _as_instants(values.cast(pa.timestamp("us")), timezone)
    return values.cast(type_)


def _as_instants(local: pa.Array, timezone: str) -> pa.Array:
    if timezone.upper() == "UTC":
        return local.cast(pa.timestamp("us", tz="UTC"))
    zoned = pc.assume_timezone(local, timezone, ambiguous="earliest", nonexistent="earliest")
    return zoned.cast(pa.timestamp("us", tz="UTC"))


def _cast_struct(values: pa.StructArray, type_: pa.StructType, times: TimeRules) -> pa.Array:
    by_lower = {field.name.lower(): position for position, field in enumerate(values.type)}
    children: list[pa.Array] = []
    flat = values.flatten()
    for field in type_:
        position = by_lower.get(field.name.lower())
        if position is None:
            children.append(pa.nulls(len(values), field.type))
        else:
            children.append(cast_column(flat[position], field.type, times=times))
    return pa.StructArray.from_arrays(children, fields=list(type_), mask=values.is_null())


def _cast_list(values: pa.ListArray, type_: pa.ListType, times: TimeRules) -> pa.Array:
    inner = cast_column(values.flatten(), type_.value_type, times=times)
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    # The offsets of a slice still count from the whole array, so they are built anew.
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), inner, type_, mask=values.is_null())


def _cast_map(values: pa.MapArray, type_: pa.MapType, times: TimeRules) -> pa.Array:
    offsets = values.offsets.to_numpy()
    first, length = offsets[0], offsets[-1] - offsets[0]
    keys = cast_column(values.keys.slice(first, length), type_.key_type, times=times)
    items = cast_column(values.items.slice(first, length), type_.item_type, times=times)
    return pa.MapArray.from_arrays(pa.array(offsets - first), keys, items, type_, mask=values.is_null())


def _map_of_fields(values: pa.StructArray, type_: pa.MapType, times: TimeRules) -> pa.Array:
    """Python's dicts arrive as structs, of all the names that any of them has: a NULL field is no entry."""
    names = [field.name for field in values.type]
    if not names:
        offsets = pa.array(np.zeros(len(values) + 1, dtype=np.int32))
        return pa.MapArray.from_arrays(
            offsets, pa.array([], type_.key_type), pa.array([], type_.item_type), type_, mask=values.is_null()
        )
    fields = [cast_column(child, type_.item_type, times=times) for child in values.flatten()]
    there = np.stack([field.is_valid().to_numpy(zero_copy_only=False) for field in fields], axis=1)
    rows, numbers = np.nonzero(there)
    items = pa.concat_arrays(fields).take(pa.array(numbers * len(values) + rows))
    keys = cast_column(pa.array(names), type_.key_type, times=times).take(pa.array(numbers))
    offsets = np.concatenate(([0], np.cumsum(there.sum(axis=1)))).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items, type_, mask=values.is_null())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
