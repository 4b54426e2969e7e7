"""Types of PostgreSQL as ours, and its texts of values as Arrow columns.

Both a cursor and the log give values as texts, as the types' own output functions write them; so there is one way in.
What has no type of ours (intervals with months, ranges, addresses, JSON, …) stays the text that PostgreSQL writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from velostream.model.conform import Reject, TimeRules, conform
from velostream.model.schema import Column, Schema
from velostream.model.types import TIMESTAMP

UNBOUNDED_NUMERIC = pa.decimal128(38, 18)
"""What a numeric without precision is read as; a value that doesn't fit becomes a dead letter, unless the column is
declared with another scale."""

SESSION_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "xmlbinary": "base64",
}
"""What the texts depend on."""

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "oid": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp without time zone": TIMESTAMP,
    "timestamp with time zone": TIMESTAMP,
}
_MOST_DIGITS = 38
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_LENGTH = re.compile(r"\(\d+\)")
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}"]+)', re.DOTALL)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def type_of(name: str) -> pa.DataType:
    """Our type for one that `format_type` names."""
    if name.endswith("[]"):
        return pa.list_(type_of(name.removesuffix("[]")))
    if name == "numeric":
        return UNBOUNDED_NUMERIC
    numeric = _NUMERIC.fullmatch(name)
    if numeric is not None:
        precision, scale = int(numeric[1]), int(numeric[2])
        if scale < 0:
            precision, scale = precision - scale, 0
        precision = max(precision, scale)
        return pa.decimal128(min(precision, _MOST_DIGITS), min(scale, _MOST_DIGITS))
    return _SIMPLE.get(_LENGTH.sub("", name), pa.string())


def columns_of_texts(
    columns: dict[str, pa.Array],
    schema: Schema,
    reject: Reject,
    *,
    times: TimeRules,
    exempt: pa.ChunkedArray | None = None,
) -> pa.Table:
    """Texts as the types of a schema. Rows that don't fit are given to `reject` and left out, see `conform`.

    Columns that aren't texts are taken as they are.
    """
    by_lower = {column.name.lower(): column for column in schema.columns}
    prepared: dict[str, pa.Array] = {}
    unfit: dict[int, str] = {}
    for name, texts in columns.items():
        column = by_lower.get(name.lower())
        decode = None if column is None or not pa.types.is_string(texts.type) else _decoder(column.type)
        if column is None or decode is None:
            prepared[name] = texts
        else:
            prepared[name] = _decoded(texts, column, decode, unfit)
    rows = pa.table(prepared)
    if not unfit:
        return conform(rows, schema, reject, times=times, exempt=exempt)
    kept = [index for index in range(rows.num_rows) if index not in unfit]
    for index in sorted(unfit):
        reject(index, unfit[index])
    positions = pa.array(kept, pa.int64())
    return conform(
        rows.take(positions),
        schema,
        lambda index, reason: reject(kept[index], reason),
        times=times,
        exempt=None if exempt is None else exempt.take(positions),
    )


_Decode = Callable[[str], Any]

_TRUTHS = {"t": True, "true": True, "1": True, "f": False, "false": False, "0": False}
_WRITTEN_TRUTHS = pa.array(["t", "f", None], pa.string())
"""What PostgreSQL itself writes for a boolean."""


def _decoder(type_: pa.DataType) -> _Decode | None:
    """How a text becomes a value, where Arrow can't do that itself."""
    if pa.types.is_boolean(type_):
        return _truth
    if pa.types.is_binary(type_):
        return lambda text: bytes.fromhex(text.removeprefix("\\x"))
    if pa.types.is_list(type_):
        element = _decoder(type_.value_type)
        return lambda text: _elements(text, element)
    return None


def _decoded(texts: pa.Array, column: Column, decode: _Decode, unfit: dict[int, str]) -> pa.Array:
    if pa.types.is_boolean(column.type) and pc.all(pc.is_in(texts, value_set=_WRITTEN_TRUTHS)).as_py():
        return pc.equal(texts, "t")
    values: list[Any] = []
    for index, text in enumerate(texts.to_pylist()):
        value = None
        if text is not None:
            try:
                value = decode(text)
            except ValueError as error:
                unfit.setdefault(index, f'column "{column.name}": {error}')
        values.append(value)
    if not pa.types.is_list(column.type):
        return pa.array(values, column.type)
    element = column.type.value_type
    plain = pa.types.is_boolean(element) or pa.types.is_binary(element)
    return pa.array(values, pa.list_(element if plain else pa.string()))


def _truth(text: str) -> bool:
    """A boolean, or what a column of another type that is declared BOOLEAN holds instead."""
    lower = text.strip().lower()
    if lower not in _TRUTHS:
        raise ValueError(f"not a truth value: {text[:60]}")
    return _TRUTHS[lower]


def _elements(text: str, decode: _Decode | None) -> Sequence[Any]:
    """The elements of an array's text; of more than one dimension it can't be a list of our type."""
    if not (text.startswith("{") and text.endswith("}")) or "{" in _QUOTED.sub("", text)[1:]:
        raise ValueError(f"an array of one dimension is expected, not {text[:60]}")
    found: list[Any] = []
    for quoted, plain in _ELEMENT.findall(text[1:-1]):
        if plain == "NULL":
            found.append(None)
            continue
        value = plain or _ESCAPED.sub(r"\1", quoted)
        found.append(value if decode is None else decode(value))
    return found
