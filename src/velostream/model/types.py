"""SQL type names and Arrow types, both ways.

Arrow is the type language inside the package; SQL text is what people and Spark write. TIMESTAMP is
microseconds in UTC (an instant), TIMESTAMP_NTZ is without a zone.
"""

from __future__ import annotations

import re

import pyarrow as pa

from velostream.errors import ValidationError
from velostream.model.variant import VARIANT, is_variant

TIMESTAMP = pa.timestamp("us", tz="UTC")

_SIMPLE: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "BOOL": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "BYTES": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_LTZ": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "DECIMAL": pa.decimal128(10, 0),
    "NUMERIC": pa.decimal128(10, 0),
    "DEC": pa.decimal128(10, 0),
    "INTERVAL": pa.duration("us"),
    "VOID": pa.null(),
    "VARIANT": VARIANT,
}

_RENDERED: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BINARY",
    pa.large_binary(): "BINARY",
    pa.date32(): "DATE",
    pa.duration("us"): "INTERVAL DAY TO SECOND",
    pa.null(): "VOID",
}

_TOKEN = re.compile(r"\s*(`[^`]+`|\"[^\"]+\"|[A-Za-z_][\w]*|\d+|[<>(),:])")


def parse_type(text: str) -> pa.DataType:
    """The Arrow type a SQL type name stands for; `ValidationError` when there is none."""
    parser = _TypeParser(text)
    found = parser.type()
    if parser.peek() is not None:
        raise parser.error()
    return found


def render_type(type_: pa.DataType) -> str:
    """The SQL name of an Arrow type, such that `parse_type` gives the type back."""
    if type_ in _RENDERED:
        return _RENDERED[type_]
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP" if type_.tz else "TIMESTAMP_NTZ"
    if pa.types.is_map(type_):
        return f"MAP<{render_type(type_.key_type)}, {render_type(type_.item_type)}>"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"ARRAY<{render_type(type_.value_type)}>"
    if is_variant(type_):
        return "VARIANT"
    if pa.types.is_struct(type_):
        fields = ", ".join(f"{_quote(field.name)}: {render_type(field.type)}" for field in type_)
        return f"STRUCT<{fields}>"
    if pa.types.is_dictionary(type_):
        return render_type(type_.value_type)
    return str(type_).upper()


def normal_type(type_: pa.DataType) -> pa.DataType:
    """The one Arrow type we keep for a SQL type: no large or dictionary variants, timestamps in µs UTC."""
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_dictionary(type_):
        return normal_type(type_.value_type)
    if pa.types.is_timestamp(type_):
        return TIMESTAMP if type_.tz else pa.timestamp("us")
    if pa.types.is_date64(type_):
        return pa.date32()
    if pa.types.is_map(type_):
        return pa.map_(normal_type(type_.key_type), normal_type(type_.item_type))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return pa.list_(normal_type(type_.value_type))
    if is_variant(type_):
        return VARIANT
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, normal_type(field.type)) for field in type_])
    if pa.types.is_unsigned_integer(type_):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(type_.bit_width, pa.decimal128(20, 0))
    if pa.types.is_float16(type_):
        return pa.float32()
    if pa.types.is_decimal(type_):
        return pa.decimal128(min(type_.precision, 38), type_.scale)
    return type_


def _quote(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name}`"


class _TypeParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.error()
            self.tokens.append(match.group(1))
            position = match.end()
        self.index = 0

    def error(self) -> ValidationError:
        return ValidationError(
            f'type "{self.text.strip()}" is not known',
            hint="BOOLEAN, INT, BIGINT, DOUBLE, DECIMAL(p,s), STRING, BINARY, DATE, TIMESTAMP, ARRAY<T>, MAP<K,V>, "
            "STRUCT<…>, VARIANT",
            code="unknown-type",
        )

    def peek(self) -> str | None:
        return self.tokens[self.index] if self.index < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if token is None or (expected is not None and token != expected):
            raise self.error()
        self.index += 1
        return token

    def type(self) -> pa.DataType:
        name = self.take().upper()
        if name == "ARRAY":
            self.take("<")
            element = self.type()
            self.take(">")
            return pa.list_(element)
        if name == "MAP":
            self.take("<")
            key = self.type()
            self.take(",")
            item = self.type()
            self.take(">")
            return pa.map_(key, item)
        if name == "STRUCT":
            return self.struct()
        if name not in _SIMPLE:
            raise self.error()
        numbers = self.numbers()
        if pa.types.is_decimal(_SIMPLE[name]):
            precision = numbers[0] if numbers else 10
            scale = numbers[1] if len(numbers) > 1 else 0
            if len(numbers) > 2 or not (1 <= precision <= 38 and 0 <= scale <= precision):
                raise self.error()
            return pa.decimal128(precision, scale)
        if numbers and (len(numbers) > 1 or name not in ("VARCHAR", "CHAR")):
            raise self.error()
        if name == "DOUBLE" and (self.peek() or "").upper() == "PRECISION":
            self.take()
        if name == "INTERVAL" and (self.peek() or "").upper() == "DAY":
            for word in ("DAY", "TO", "SECOND"):
                if self.take().upper() != word:
                    raise self.error()
        return _SIMPLE[name]

    def numbers(self) -> list[int]:
        found: list[int] = []
        if self.peek() != "(":
            return found
        self.take("(")
        while True:
            token = self.take()
            if not token.isdigit():
                raise self.error()
            found.append(int(token))
            if self.take() == ")":
                return found

    def struct(self) -> pa.DataType:
        self.take("<")
        fields: list[pa.Field] = []
        while self.peek() != ">":
            name = self.take().strip('`"')
            if self.peek() == ":":
                self.take()
            fields.append(pa.field(name, self.type()))
            if self.peek() == ",":
                self.take()
        self.take(">")
        return pa.struct(fields)
