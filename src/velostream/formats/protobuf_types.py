"""Protobuf messages and Arrow values, both ways.

A field that can tell whether it was set is NULL when it wasn't; one that can't has its default. Enums are their names.
Timestamps, durations and the wrapper types are plain values. Decimals in a message of their own (`google.type.Decimal`,
`confluent.type.Decimal`) are exact text, which a declared DECIMAL column takes. A message that contains itself, and
what has no fixed shape (`Any`, `Struct`), is JSON text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.errors import UnsupportedError
from velostream.model.schema import Column, Schema
from velostream.model.types import TIMESTAMP

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_DOUBLE, _FLOAT, _INT64, _UINT64, _INT32, _FIXED64, _FIXED32, _BOOL, _STRING = range(1, 10)
_GROUP, _MESSAGE, _BYTES, _UINT32, _ENUM, _SFIXED32, _SFIXED64, _SINT32, _SINT64 = range(10, 19)
_SCALARS = {
    _DOUBLE: pa.float64(),
    _FLOAT: pa.float32(),
    _INT64: pa.int64(),
    _UINT64: pa.decimal128(20, 0),
    _INT32: pa.int32(),
    _FIXED64: pa.decimal128(20, 0),
    _FIXED32: pa.int64(),
    _BOOL: pa.bool_(),
    _STRING: pa.string(),
    _BYTES: pa.binary(),
    _UINT32: pa.int64(),
    _ENUM: pa.string(),
    _SFIXED32: pa.int32(),
    _SFIXED64: pa.int64(),
    _SINT32: pa.int32(),
    _SINT64: pa.int64(),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP = "google.protobuf.Timestamp"
_DURATION = "google.protobuf.Duration"
_GOOGLE_DECIMAL = "google.type.Decimal"
_CONFLUENT_DECIMAL = "confluent.type.Decimal"
_WITHOUT_SHAPE = ("google.protobuf.Any", "google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
_KNOWN = {
    _TIMESTAMP: TIMESTAMP,
    _DURATION: pa.duration("us"),
    _GOOGLE_DECIMAL: pa.string(),
    _CONFLUENT_DECIMAL: pa.string(),
} | dict.fromkeys(_WITHOUT_SHAPE, pa.string())


def columns_of(message: Descriptor) -> Schema:
    """Columns of the messages of a type."""
    return Schema(tuple(Column(field.name, _field_type(field, (message.full_name,))) for field in message.fields))


def read_columns(messages: Sequence[Any], message: Descriptor, names: Sequence[str]) -> dict[str, list[Any]]:
    """The values of the named fields, each of all messages; a name is found exactly, else without regard to case."""
    fields = {field.name: field for field in message.fields}
    by_lower = {name.lower(): field for name, field in fields.items()}
    columns: dict[str, list[Any]] = {}
    for name in names:
        field = fields.get(name) or by_lower.get(name.lower())
        if field is None:
            columns[name] = [None] * len(messages)
        elif _is_plain(field):
            columns[name] = [getattr(found, field.name) for found in messages]
        else:
            columns[name] = [_field_value(found, field, (message.full_name,)) for found in messages]
    return columns


def fill(target: Any, values: Mapping[str, Any], message: Descriptor) -> None:
    """Set the fields of a new message; a NULL leaves its field unset. Raises what the library raises for a misfit."""
    by_lower = {name.lower(): value for name, value in values.items()}
    for field in message.fields:
        value = values.get(field.name, by_lower.get(field.name.lower()))
        if value is not None:
            _set_field(target, field, value)


def _is_plain(field: FieldDescriptor) -> bool:
    """Whether a value is what the library gives, always there."""
    return not (field.is_repeated or field.has_presence or field.type in (_ENUM, _MESSAGE, _GROUP))


def _field_type(field: FieldDescriptor, within: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        parts = field.message_type.fields_by_name
        return pa.map_(_value_type(parts["key"], within), _value_type(parts["value"], within))
    type_ = _value_type(field, within)
    return pa.list_(type_) if field.is_repeated else type_


def _value_type(field: FieldDescriptor, within: tuple[str, ...]) -> pa.DataType:
    if field.type not in (_MESSAGE, _GROUP):
        return _SCALARS[field.type]
    message = field.message_type
    known = _KNOWN.get(message.full_name)
    if known is not None:
        return known
    if _is_wrapper(message):
        return _SCALARS[message.fields[0].type]
    if message.full_name in within or not message.fields:
        return pa.string()
    inner = (*within, message.full_name)
    return pa.struct([pa.field(part.name, _field_type(part, inner)) for part in message.fields])


def _field_value(message: Any, field: FieldDescriptor, within: tuple[str, ...]) -> Any:
    if field.is_repeated:
        values = getattr(message, field.name)
        if _is_map(field):
            part = field.message_type.fields_by_name["value"]
            return {key: _value(values[key], part, within) for key in values}
        return [_value(value, field, within) for value in values]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(getattr(message, field.name), field, within)


def _value(value: Any, field: FieldDescriptor, within: tuple[str, ...]) -> Any:
    if field.type == _ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if field.type not in (_MESSAGE, _GROUP):
        return value
    message = field.message_type
    match message.full_name:
        case name if name == _TIMESTAMP:
            return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        case name if name == _DURATION:
            return timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        case name if name == _GOOGLE_DECIMAL:
            return value.value or "0"
        case name if name == _CONFLUENT_DECIMAL:
            digits = str(abs(number := int.from_bytes(value.value, "big", signed=True)))
            return format(Decimal((int(number < 0), tuple(map(int, digits)), -value.scale)), "f")
        case name if name in _WITHOUT_SHAPE or name in within or not message.fields:
            return _json(value)
    if _is_wrapper(message):
        return value.value
    inner = (*within, message.full_name)
    return {part.name: _field_value(value, part, inner) for part in message.fields}


def _set_field(target: Any, field: FieldDescriptor, value: Any) -> None:
    if _is_map(field):
        pairs = value.items() if isinstance(value, Mapping) else value
        part = field.message_type.fields_by_name["value"]
        entries = getattr(target, field.name)
        for key, item in pairs:
            if part.type == _MESSAGE:
                _set_message(entries[key], item, part.message_type)
            else:
                entries[key] = _scalar(item, part)
    elif field.is_repeated:
        entries = getattr(target, field.name)
        for item in value:
            if field.type in (_MESSAGE, _GROUP):
                _set_message(entries.add(), item, field.message_type)
            else:
                entries.append(_scalar(item, field))
    elif field.type in (_MESSAGE, _GROUP):
        inner = getattr(target, field.name)
        inner.SetInParent()
        _set_message(inner, value, field.message_type)
    else:
        setattr(target, field.name, _scalar(value, field))


def _set_message(target: Any, value: Any, message: Descriptor) -> None:
    name = message.full_name
    if name in (_TIMESTAMP, _DURATION):
        length = value - _EPOCH if name == _TIMESTAMP else value
        target.seconds = length.days * 86_400 + length.seconds
        target.nanos = length.microseconds * 1000
    elif name == _GOOGLE_DECIMAL:
        target.value = format(value, "f") if isinstance(value, Decimal) else str(value)
    elif name == _CONFLUENT_DECIMAL:
        _set_confluent_decimal(target, Decimal(value))
    elif _is_wrapper(message):
        target.value = _scalar(value, message.fields[0])
    elif isinstance(value, Mapping):
        fill(target, value, message)
    else:
        raise UnsupportedError(
            f'message "{name}" can\'t be written from {type(value).__name__}',
            hint="SELECT a STRUCT with its fields",
            code="unsupported-format",
        )


def _set_confluent_decimal(target: Any, number: Decimal) -> None:
    sign, digits, exponent = number.as_tuple()
    scale = max(0, -int(exponent))
    whole = int("".join(map(str, digits))) * 10 ** max(0, int(exponent))
    signed = -whole if sign else whole
    target.value = signed.to_bytes(signed.bit_length() // 8 + 1, "big", signed=True)
    target.precision = max(len(digits), 1)
    target.scale = scale


def _scalar(value: Any, field: FieldDescriptor) -> Any:
    if field.type == _ENUM:
        return field.enum_type.values_by_name[value].number if isinstance(value, str) else value
    if field.type in (_UINT64, _FIXED64):
        return int(value)
    if field.type in (_DOUBLE, _FLOAT):
        return float(value)
    if field.type == _STRING and isinstance(value, Decimal):
        return format(value, "f")
    return str(value) if field.type == _STRING else value


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.type == _MESSAGE and field.is_repeated and field.message_type.GetOptions().map_entry)


def _is_wrapper(message: Descriptor) -> bool:
    return bool(message.file.name == "google/protobuf/wrappers.proto")


def _json(message: Any) -> str:
    from google.protobuf import json_format

    text: str = json_format.MessageToJson(message, indent=None, preserving_proto_field_name=True)
    return text
