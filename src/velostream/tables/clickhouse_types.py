"""How values of ClickHouse's types are read as ours, and bound to be compared with.

Texts come as bytes, times as the integers that ClickHouse stores, so that nothing is decoded, rounded or moved to
another zone on the way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from velostream.errors import UnsupportedError
from velostream.model.clickhouse import Bound, bare_type, type_arguments
from velostream.model.types import render_type
from velostream.tables.relational.codec import Codec, Encoder

READ_FORMATS = {"String": "bytes", "FixedString": "bytes", "DateTime": "int", "DateTime64": "int"}
"""What the driver is asked for."""

Reader = Callable[[Any], Any]
"""A value as the driver gives it, which isn't NULL, as Arrow takes it."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - naive datetimes are UTC here
_MICROSECOND = timedelta(microseconds=1)
_PLACES_OF_A_MICROSECOND = 6
_WIDEST_INTEGER = 64
_DIGITS_OF_64_BITS = 20
_FIRST_DAY, _LAST_DAY = date(1900, 1, 1), date(2299, 12, 31)
"""Of Date32 and DateTime64: what lies outside would be moved to the nearest of them without a word."""


def foreign_codec(type_: pa.DataType, store_type: str) -> Codec | None:
    """How a column of a table, whose type `system.columns` names, is read as our type; None when it doesn't fit."""
    read = _reader(type_, store_type)
    if read is None:
        return None

    def decode(values: Sequence[Any]) -> pa.Array:
        return pa.array([None if value is None else read(value) for value in values], type_)

    bound = _bound(type_)
    equality: str | None = "{}"
    order: str | None = "{}"
    if bound is None:
        bound, equality, order = _refused, None, None
    elif pa.types.is_floating(type_):
        # To Spark NaN equals NaN, and -0.0 equals 0.0.
        equality, order = "toString({} + 0.0)", None
    elif pa.types.is_string(type_) and bare_type(store_type) != "String":
        equality, order = "toString({})", None
    elif bare_type(store_type).startswith("FixedString"):
        # Compared as it is it equals texts without its last zeros, too.
        equality = order = "hex({})"
    return Codec(type_, store_type, bound, decode, equality=equality, order=order)


def _reader(type_: pa.DataType, store_type: str) -> Reader | None:
    """How values are read; None where some of the column's values would be none of the type."""
    bare = bare_type(store_type)
    name, _, rest = bare.partition("(")
    if pa.types.is_list(type_) and name == "Array":
        return _list_reader(type_, rest[:-1])
    if pa.types.is_map(type_) and name == "Map":
        return _map_reader(type_, *type_arguments(rest[:-1]))
    if pa.types.is_struct(type_) and name == "Tuple":
        return _struct_reader(type_, list(type_arguments(rest[:-1])))
    if pa.types.is_timestamp(type_) and name in ("DateTime", "DateTime64"):
        return _instant_reader(0 if name == "DateTime" else int(rest.partition(",")[0].rstrip(")")))
    if pa.types.is_string(type_):
        if name == "String":
            return bytes.decode
        return str if name in ("UUID", "Enum8", "Enum16") else None
    return _unchanged if _holds(type_, name, bare) else None


def _holds(type_: pa.DataType, name: str, bare: str) -> bool:
    """Whether all values of a plain type of ClickHouse's are values of ours."""
    number = re.fullmatch(r"(U?)Int(\d+)", name)
    if pa.types.is_boolean(type_):
        return name == "Bool"
    if pa.types.is_integer(type_):
        # One of the bits of ours is the sign.
        return number is not None and int(number[2]) + bool(number[1]) <= int(type_.bit_width)
    if pa.types.is_decimal(type_):
        if number is not None:
            return int(number[2]) <= _WIDEST_INTEGER and bool(type_.precision - type_.scale >= _DIGITS_OF_64_BITS)
        decimal = re.fullmatch(r"Decimal\((\d+), (\d+)\)", bare)
        if decimal is None:
            return False
        digits, places = int(decimal[1]), int(decimal[2])
        return bool(places <= type_.scale and digits - places <= type_.precision - type_.scale)
    if pa.types.is_floating(type_):
        return name == "Float32" or (name == "Float64" and bool(type_ == pa.float64()))
    if pa.types.is_binary(type_):
        return name in ("String", "FixedString")
    return bool(pa.types.is_date(type_)) and name in ("Date", "Date32")


def _list_reader(type_: pa.DataType, element: str) -> Reader | None:
    read = _reader(type_.value_type, element)
    if read is None:
        return None
    return lambda values: [None if value is None else read(value) for value in values]


def _map_reader(type_: pa.DataType, key: str, item: str) -> Reader | None:
    read_key, read_item = _reader(type_.key_type, key), _reader(type_.item_type, item)
    if read_key is None or read_item is None:
        return None
    return lambda found: [(read_key(k), None if v is None else read_item(v)) for k, v in found.items()]


def _struct_reader(type_: pa.DataType, members: Sequence[str]) -> Reader | None:
    """Of a tuple whose members have the names of the fields."""
    stored = dict(member.split(" ", 1) for member in members if re.match(r"\w+ ", member))
    readers = {field.name: _reader(field.type, stored.get(field.name, "")) for field in type_}
    known = {name: read for name, read in readers.items() if read is not None}
    if len(known) < len(readers):
        return None
    return lambda found: {name: None if found[name] is None else read(found[name]) for name, read in known.items()}


def _instant_reader(places: int) -> Reader | None:
    """From the number of ticks with so many places of a second."""
    if places > _PLACES_OF_A_MICROSECOND:
        return None
    ticks = 10 ** (_PLACES_OF_A_MICROSECOND - places)
    return lambda value: _EPOCH + value * ticks * _MICROSECOND


def _unchanged(value: Any) -> Any:
    return value


def _bound(type_: pa.DataType) -> Encoder | None:
    """Values to bind, None for those that no column can hold; None for types that aren't compared."""
    if pa.types.is_boolean(type_):
        return _bound_as("Bool", _unchanged)
    if pa.types.is_integer(type_):
        return _bound_as("Int64", _unchanged)
    if pa.types.is_decimal(type_):
        return _bound_as(f"Decimal({type_.precision}, {type_.scale})", _unchanged)
    if pa.types.is_floating(type_):
        return _bound_as("Float64", _unchanged)
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return _bound_as("String", _unchanged)
    if pa.types.is_date(type_):
        return _bound_as("Date32", lambda day: day if _FIRST_DAY <= day <= _LAST_DAY else None)
    if pa.types.is_timestamp(type_):
        return _bound_as("DateTime64(6, 'UTC')", _instant_text)
    return None


def _bound_as(store_type: str, convert: Reader) -> Encoder:
    def encode(array: pa.Array) -> Sequence[Any]:
        found = (None if value is None else convert(value) for value in array.to_pylist())
        return [None if value is None else Bound(store_type, value) for value in found]

    return encode


def _instant_text(value: datetime) -> str | None:
    naive = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    return naive.isoformat(sep=" ", timespec="microseconds") if _FIRST_DAY <= naive.date() <= _LAST_DAY else None


def _refused(array: pa.Array) -> Sequence[Any]:
    refused = UnsupportedError.capability("clickhouse", "lookup")
    refused.detail = f"rows can't be looked up by a column of type {render_type(array.type)}"
    raise refused
