"""Avro schemas and Arrow types, both ways.

A union with null is a nullable type. A union of several types is the widest number where all are numbers, else STRING
with the value as JSON; so is a type that contains itself, for which a table has no type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from velostream.errors import UnsupportedError
from velostream.model.schema import Column, Schema
from velostream.model.types import TIMESTAMP, render_type
from velostream.model.variant import is_variant

AvroSchema = Any
"""A schema as its JSON is read: a name, a list of branches or an object."""

_LOCAL_TIMESTAMP = pa.timestamp("us")
_PRIMITIVE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.string(),
    "time-micros": pa.string(),
    "timestamp-millis": TIMESTAMP,
    "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": _LOCAL_TIMESTAMP,
    "local-timestamp-micros": _LOCAL_TIMESTAMP,
    "uuid": pa.string(),
}
_NUMBERS = (pa.int32(), pa.int64(), pa.float32(), pa.float64())
_WRITTEN: dict[pa.DataType, AvroSchema] = {
    pa.null(): "null",
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
    _LOCAL_TIMESTAMP: {"type": "long", "logicalType": "local-timestamp-micros"},
}
_LONGEST_DECIMAL = 38
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def columns_of(schema: AvroSchema) -> Schema:
    """Columns of the records of a schema; one that is no record has a single column `value`."""
    found = _Types().of(schema)
    if pa.types.is_struct(found):
        return Schema(tuple(Column(field.name, field.type) for field in found))
    return Schema((Column("value", found),))


def schema_of(rows: pa.Schema, *, name: str = "Row") -> AvroSchema:
    """The schema of rows to be written; every field may be null. `UnsupportedError` for what Avro has no form for."""
    return {"type": "record", "name": name, "fields": _fields(rows, name)}


class _Types:
    """Reads one schema, in which named types may be used again by their names."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}

    def of(self, schema: AvroSchema) -> pa.DataType:
        if isinstance(schema, str):
            found = _PRIMITIVE.get(schema)
            # A name that is still being read contains itself.
            return found if found is not None else self._named.get(schema) or pa.string()
        if isinstance(schema, list):
            return self._union(schema)
        logical = self._logical(schema)
        if logical is not None:
            return logical
        match schema["type"]:
            case "record" | "error":
                return self._record(schema)
            case "enum":
                return self._keep(schema, pa.string())
            case "fixed":
                return self._keep(schema, pa.binary())
            case "array":
                return pa.list_(self.of(schema["items"]))
            case "map":
                return pa.map_(pa.string(), self.of(schema["values"]))
            case inner:
                return self.of(inner)

    def _logical(self, schema: Mapping[str, Any]) -> pa.DataType | None:
        if schema.get("logicalType") != "decimal":
            return _LOGICAL.get(schema.get("logicalType", ""))
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        found = pa.decimal128(precision, scale) if 0 < precision <= _LONGEST_DECIMAL else pa.string()
        return self._keep(schema, found)

    def _record(self, schema: Mapping[str, Any]) -> pa.DataType:
        self._keep(schema, None)
        fields = [pa.field(field["name"], self.of(field["type"])) for field in schema["fields"]]
        return self._keep(schema, pa.struct(fields))

    def _union(self, branches: list[AvroSchema]) -> pa.DataType:
        types = {self.of(branch): None for branch in branches if branch != "null"}
        if len(types) == 1:
            return next(iter(types))
        if types and all(type_ in _NUMBERS for type_ in types):
            widest = max(types, key=_NUMBERS.index)
            # A long does not fit a float.
            return pa.float64() if pa.types.is_floating(widest) else widest
        return pa.string()

    def _keep(self, schema: Mapping[str, Any], type_: pa.DataType | None) -> pa.DataType:
        name = schema.get("name")
        if name is not None:
            self._named[name] = type_
            namespace = schema.get("namespace")
            if namespace:
                self._named[f"{namespace}.{name}"] = type_
        return type_


def _fields(fields: Any, path: str) -> list[AvroSchema]:
    for field in fields:
        if not _NAME.fullmatch(field.name):
            raise UnsupportedError(
                f'column "{field.name}" can\'t be written as Avro, whose names are letters, digits and underscores',
                hint=f"SELECT `{field.name}` AS {re.sub('[^A-Za-z0-9_]', '_', field.name)}",
                code="unsupported-format",
            )
    return [
        {"name": field.name, "type": _nullable(_written(field.type, f"{path}_{field.name}")), "default": None}
        for field in fields
    ]


def _nullable(schema: AvroSchema) -> AvroSchema:
    return schema if schema == "null" else ["null", schema]


def _written(type_: pa.DataType, path: str) -> AvroSchema:
    found = _WRITTEN.get(type_)
    if found is not None:
        return found
    if pa.types.is_decimal(type_):
        return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    if pa.types.is_struct(type_) and not is_variant(type_):
        return {"type": "record", "name": path, "fields": _fields(type_, path)}
    if pa.types.is_list(type_):
        return {"type": "array", "items": _nullable(_written(type_.value_type, f"{path}_item"))}
    if pa.types.is_map(type_) and pa.types.is_string(type_.key_type):
        return {"type": "map", "values": _nullable(_written(type_.item_type, f"{path}_value"))}
    raise UnsupportedError(
        f"type {render_type(type_)} can't be written as Avro",
        hint="CAST it to STRING",
        code="unsupported-format",
    )
