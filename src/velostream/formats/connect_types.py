"""Values as Kafka Connect and Debezium write them in JSON, by the schema that comes with them.

A decimal in the mode `precise` is the base64 of its unscaled integer, big-endian in two's complement, and its scale
stands in the schema, or next to the value where each has its own. Points in time are numbers since 1970.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa

from velostream.model.types import TIMESTAMP

Convert = Callable[[Any], Any]

_LONGEST_DECIMAL = 38
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - what has no zone here is local to the option `timezone`
_SIMPLE = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "string": pa.string(),
}


@dataclass(frozen=True, slots=True)
class ConnectType:
    """What a field is, and how its JSON becomes the value."""

    type: pa.DataType | None
    """None where only the values tell: a decimal whose scale is each value's own."""
    convert: Convert


def connect_type(schema: Mapping[str, Any]) -> ConnectType:
    """The type of a field by its schema; what isn't known by name is what its basic type says."""
    name = schema.get("name") or ""
    if name == "org.apache.kafka.connect.data.Decimal":
        return _decimal(schema.get("parameters") or {})
    if name in _NAMED:
        return _NAMED[name]
    match schema["type"]:
        case "struct":
            return _struct(schema)
        case "array":
            items = connect_type(schema["items"])
            return ConnectType(pa.list_(items.type or pa.string()), partial(_each, items.convert))
        case "map":
            keys, values = connect_type(schema["keys"]), connect_type(schema["values"])
            return ConnectType(pa.map_(keys.type or pa.string(), values.type or pa.string()), partial(_map, values))
        case "bytes":
            return ConnectType(pa.binary(), _bytes)
        case simple:
            return ConnectType(_SIMPLE.get(simple, pa.string()), _as_is)


def unscaled(text: str, scale: int) -> Decimal:
    """The decimal whose unscaled integer is in base64."""
    return _scaled(int.from_bytes(base64.b64decode(text), "big", signed=True), scale)


def _scaled(number: int, scale: int) -> Decimal:
    # Built of digits: arithmetic would round to the context's precision.
    digits = tuple(map(int, str(abs(number))))
    return Decimal((1 if number < 0 else 0, digits, -scale))


def _decimal(parameters: Mapping[str, Any]) -> ConnectType:
    scale = int(parameters.get("scale", 0))
    precision = int(parameters.get("connect.decimal.precision", _LONGEST_DECIMAL))
    fits = 0 <= scale <= precision <= _LONGEST_DECIMAL
    return ConnectType(pa.decimal128(precision, scale) if fits else pa.string(), partial(unscaled, scale=scale))


def _struct(schema: Mapping[str, Any]) -> ConnectType:
    fields = {field["field"]: connect_type(field) for field in schema["fields"]}
    type_ = pa.struct([pa.field(name, found.type or pa.string()) for name, found in fields.items()])
    return ConnectType(type_, partial(_fields, fields))


def _fields(fields: Mapping[str, ConnectType], value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if (inner := value.get(name)) is None else found.convert(inner) for name, found in fields.items()
    }


def _each(convert: Convert, values: list[Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in values]


def _map(values: ConnectType, pairs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: None if value is None else values.convert(value) for key, value in pairs.items()}


def _as_is(value: Any) -> Any:
    return value


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _variable_scale(value: Mapping[str, Any]) -> Decimal:
    return unscaled(value["value"], int(value["scale"]))


def _date(days: int) -> date:
    return date(1970, 1, 1) + timedelta(days=days)


def _local(number: int, *, per_second: int) -> datetime:
    return _EPOCH + timedelta(microseconds=number * 1_000_000 // per_second)


def _instant(number: int, *, per_second: int) -> datetime:
    return _local(number, per_second=per_second).replace(tzinfo=UTC)


def _time_of_day(number: int, *, per_second: int) -> str:
    moment: time = _local(number, per_second=per_second).time()
    return moment.isoformat()


_NAMED = {
    "io.debezium.data.VariableScaleDecimal": ConnectType(None, _variable_scale),
    "io.debezium.time.Date": ConnectType(pa.date32(), _date),
    "org.apache.kafka.connect.data.Date": ConnectType(pa.date32(), _date),
    "io.debezium.time.Timestamp": ConnectType(TIMESTAMP, partial(_local, per_second=10**3)),
    "io.debezium.time.MicroTimestamp": ConnectType(TIMESTAMP, partial(_local, per_second=10**6)),
    "io.debezium.time.NanoTimestamp": ConnectType(TIMESTAMP, partial(_local, per_second=10**9)),
    "org.apache.kafka.connect.data.Timestamp": ConnectType(TIMESTAMP, partial(_instant, per_second=10**3)),
    "io.debezium.time.ZonedTimestamp": ConnectType(TIMESTAMP, _as_is),
    "io.debezium.time.Time": ConnectType(pa.string(), partial(_time_of_day, per_second=10**3)),
    "io.debezium.time.MicroTime": ConnectType(pa.string(), partial(_time_of_day, per_second=10**6)),
    "io.debezium.time.NanoTime": ConnectType(pa.string(), partial(_time_of_day, per_second=10**9)),
    "org.apache.kafka.connect.data.Time": ConnectType(pa.string(), partial(_time_of_day, per_second=10**3)),
}
