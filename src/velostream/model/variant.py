"""VARIANT: values whose types are in the data, in the bytes that Spark keeps them in.

In Arrow a VARIANT is the struct that Spark transfers: `value` and `metadata`, the latter marked in its field. Here its
bytes are made of Python values and read as such: None, bool, int, float, Decimal, str, bytes, date, datetime, list and
dict, by the format's specification (Apache Parquet, "Variant Binary Encoding", version 1).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa

from velostream.errors import Category, QueryError

VARIANT = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={b"variant": b"true"})])
"""Spark says NOT NULL of both fields, which Arrow refuses to cast where the whole is NULL."""

_PRIMITIVE, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)
_NULL, _TRUE, _FALSE, _INT8, _INT16, _INT32, _INT64, _DOUBLE = range(8)
_DECIMAL4, _DECIMAL8, _DECIMAL16, _DATE, _INSTANT, _LOCAL, _FLOAT, _BYTES, _TEXT = range(8, 17)
_INTEGERS = {_INT8: 1, _INT16: 2, _INT32: 4, _INT64: 8}
_DECIMALS = {_DECIMAL4: 4, _DECIMAL8: 8, _DECIMAL16: 16}
_DIGITS = {_DECIMAL4: 9, _DECIMAL8: 18, _DECIMAL16: 38}
_MOST_SHORT = 63
_MOST_SMALL = 255
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - naive datetimes are UTC here
_FIRST_DAY = _EPOCH.date()
_MICROSECOND = timedelta(microseconds=1)
_EXACT = Context(prec=40)


def is_variant(type_: pa.DataType) -> bool:
    """Whether an Arrow type is VARIANT, and no struct of two binary fields."""
    if not pa.types.is_struct(type_) or type_.num_fields != len(VARIANT):
        return False
    marked = type_.field(1).metadata or {}
    return type_.field(0).name == "value" and marked.get(b"variant") == b"true"


def holds_variant(type_: pa.DataType) -> bool:
    """Whether a type is VARIANT, or has it somewhere inside."""
    return is_variant(type_) or any(holds_variant(type_.field(number).type) for number in range(type_.num_fields))


def encoded(value: Any) -> dict[str, bytes]:
    """A Python value as the struct that Arrow takes; `ValueError` for one that no VARIANT can be.

    What has `value` and `metadata` already, be it PySpark's VariantVal or such a struct, is taken as it is if it can be
    read.
    """
    given = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    if given.keys() == {"value", "metadata"} and all(isinstance(part, bytes | bytearray) for part in given.values()):
        parts = {name: bytes(given[name]) for name in ("value", "metadata")}
        _read(parts)
        return parts
    names: dict[str, int] = {}
    try:
        body = _value(value, names)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    texts = [name.encode() for name in names]
    size = _width(max(len(texts), sum(map(len, texts))))
    metadata = bytes([1 | (size - 1) << 6]) + _number(len(texts), size) + _offsets(texts, size) + b"".join(texts)
    return {"value": body, "metadata": metadata}


def decoded(given: Mapping[str, bytes | None] | None) -> Any:
    """The Python value of such a struct. Timestamps are naive, in UTC; a null inside is None, as NULL is."""
    if given is None:
        return None
    try:
        return _read(given)
    except ValueError as error:
        raise QueryError(
            "a VARIANT can't be read", detail=str(error), code="malformed-variant", category=Category.DATA
        ) from error


def decoder_within(type_: pa.DataType) -> Callable[[Any], Any] | None:
    """What decodes the VARIANTs inside of a Python value of a type; None where there are none."""
    if is_variant(type_):
        return decoded
    if not holds_variant(type_):
        return None
    if pa.types.is_struct(type_):
        fields = {field.name: decoder_within(field.type) for field in type_}
        return lambda value: value and {name: _applied(fields[name], one) for name, one in value.items()}
    if pa.types.is_map(type_):
        item = decoder_within(type_.item_type)
        return lambda value: value and {name: _applied(item, one) for name, one in value.items()}
    element = decoder_within(type_.value_type)
    return lambda value: value and [_applied(element, one) for one in value]


def _read(given: Mapping[str, bytes | None]) -> Any:
    """The Python value of the bytes; `ValueError` when they are no VARIANT, or one that Python has no value for."""
    if given["value"] is None or given["metadata"] is None:
        raise ValueError("it has no bytes")
    try:
        return _Reader(given["value"], given["metadata"]).read()
    except (IndexError, OverflowError, struct.error) as error:
        raise ValueError(f"its bytes have no meaning: {error}") from error


def _applied(decode: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if decode is None or value is None else decode(value)


def _value(value: Any, names: dict[str, int]) -> bytes:
    match value:
        case None:
            return _primitive(_NULL)
        case bool():
            return _primitive(_TRUE if value else _FALSE)
        case int():
            return _integer(value)
        case float():
            return _primitive(_DOUBLE, struct.pack("<d", value))
        case Decimal():
            return _decimal(value)
        case str():
            text = value.encode()
            if len(text) <= _MOST_SHORT:
                return bytes([len(text) << 2 | _SHORT_TEXT]) + text
            return _primitive(_TEXT, _number(len(text), 4) + text)
        case bytes() | bytearray():
            return _primitive(_BYTES, _number(len(value), 4) + value)
        case datetime():
            naive = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return _primitive(_INSTANT, _signed((naive - _EPOCH) // _MICROSECOND, 8))
        case date():
            return _primitive(_DATE, _signed((value - _FIRST_DAY).days, 4))
        case Mapping():
            return _object({str(name): inner for name, inner in value.items()}, names)
        case list() | tuple():
            return _array([_value(inner, names) for inner in value])
    raise ValueError(f"a VARIANT holds no {type(value).__name__}")


def _integer(value: int) -> bytes:
    for kind, size in _INTEGERS.items():
        if -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1:
            return _primitive(kind, _signed(value, size))
    return _decimal(Decimal(value))


def _decimal(value: Decimal) -> bytes:
    if not value.is_finite():
        raise ValueError("a VARIANT holds no decimal that isn't finite")
    scale = max(0, -int(value.as_tuple().exponent))
    number = int(value.scaleb(scale, context=_EXACT)) if value.adjusted() < _EXACT.prec - scale else 10**_EXACT.prec
    for kind, size in _DECIMALS.items():
        if max(len(str(abs(number))), scale) <= _DIGITS[kind]:
            return _primitive(kind, bytes([scale]) + _signed(number, size))
    raise ValueError("a VARIANT holds no decimal of more than 38 digits")


def _object(fields: Mapping[str, Any], names: dict[str, int]) -> bytes:
    # Readers look fields up in the order in which Java compares texts.
    ordered = sorted(fields, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    places: dict[str, int] = {}
    content = b""
    for name, value in fields.items():
        names.setdefault(name, len(names))
        places[name] = len(content)
        content += _value(value, names)
    id_size, size = _width(max((names[name] for name in ordered), default=0)), _width(len(content))
    large = len(fields) > _MOST_SMALL
    header = (size - 1) | (id_size - 1) << 2 | large << 4
    count = _number(len(fields), 4 if large else 1)
    ids = b"".join(_number(names[name], id_size) for name in ordered)
    offsets = b"".join(_number(place, size) for place in (*(places[name] for name in ordered), len(content)))
    return bytes([header << 2 | _OBJECT]) + count + ids + offsets + content


def _array(values: Sequence[bytes]) -> bytes:
    size, large = _width(sum(map(len, values))), len(values) > _MOST_SMALL
    count = _number(len(values), 4 if large else 1)
    header = (size - 1) | large << 2
    return bytes([header << 2 | _ARRAY]) + count + _offsets(values, size) + b"".join(values)


def _primitive(kind: int, content: bytes = b"") -> bytes:
    return bytes([kind << 2 | _PRIMITIVE]) + content


def _offsets(parts: Sequence[bytes], size: int) -> bytes:
    at, found = 0, [_number(0, size)]
    for part in parts:
        at += len(part)
        found.append(_number(at, size))
    return b"".join(found)


def _width(largest: int) -> int:
    return max(1, (largest.bit_length() + 7) // 8)


def _number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def _signed(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little", signed=True)


class _Reader:
    """Reads one VARIANT."""

    def __init__(self, value: bytes, metadata: bytes) -> None:
        self._value = value
        size = (metadata[0] >> 6) + 1
        count = _at(metadata, 1, size)
        ends = [_at(metadata, 1 + size * (1 + place), size) for place in range(count + 1)]
        texts = metadata[1 + size * (2 + count) :]
        self._names = [texts[start:end].decode() for start, end in pairwise(ends)]

    def read(self) -> Any:
        """The whole value. It may be nested more deeply than Python calls functions."""
        whole: list[Any] = []
        waiting: list[tuple[Callable[[Any], None], int]] = [(whole.append, 0)]
        while waiting:
            put, place = waiting.pop()
            kind, header = self._value[place] & 3, self._value[place] >> 2
            if kind == _SHORT_TEXT:
                put(self._text(place + 1, header))
            elif kind == _OBJECT:
                fields: dict[str, Any] = {}
                put(fields)
                found = [(partial(fields.__setitem__, name), at) for name, at in self._fields(place + 1, header)]
                waiting += reversed(found)
            elif kind == _ARRAY:
                elements: list[Any] = []
                put(elements)
                start, ends = self._children(place + 1, 4 if header >> 2 & 1 else 1, 0, (header & 3) + 1)
                waiting += [(elements.append, start + offset) for offset in reversed(ends)]
            else:
                put(self._primitive(header, place + 1))
        return whole[0]

    def _fields(self, place: int, header: int) -> Iterator[tuple[str, int]]:
        """The fields of an object, each with the place where its value begins."""
        count_size, id_size = (4 if header >> 4 & 1 else 1), (header >> 2 & 3) + 1
        start, ends = self._children(place, count_size, id_size, (header & 3) + 1)
        for number, offset in enumerate(ends):
            yield self._names[_at(self._value, place + count_size + number * id_size, id_size)], start + offset

    def _children(self, place: int, count_size: int, id_size: int, size: int) -> tuple[int, list[int]]:
        """Where the children of an object or array begin, and each of them after that."""
        count = _at(self._value, place, count_size)
        offsets = place + count_size + count * id_size
        return offsets + (count + 1) * size, [_at(self._value, offsets + n * size, size) for n in range(count)]

    def _text(self, place: int, length: int) -> str:
        return self._bytes(place, length).decode()

    def _bytes(self, place: int, length: int) -> bytes:
        found = self._value[place : place + length]
        if len(found) < length:
            raise IndexError("they end too soon")
        return bytes(found)

    def _primitive(self, kind: int, place: int) -> Any:
        data = self._value
        if kind in _INTEGERS:
            return _at(data, place, _INTEGERS[kind], signed=True)
        if kind in _DECIMALS:
            return _EXACT.scaleb(Decimal(_at(data, place + 1, _DECIMALS[kind], signed=True)), -data[place])
        match kind:
            case 0 | 1 | 2:
                return (None, True, False)[kind]
            case 7:
                return struct.unpack_from("<d", data, place)[0]
            case 14:
                return struct.unpack_from("<f", data, place)[0]
            case 11:
                return _FIRST_DAY + timedelta(days=_at(data, place, 4, signed=True))
            case 12 | 13:
                return _EPOCH + timedelta(microseconds=_at(data, place, 8, signed=True))
            case 15:
                return self._bytes(place + 4, _at(data, place, 4))
            case 16:
                return self._text(place + 4, _at(data, place, 4))
        raise ValueError(f"a VARIANT of the kind {kind} is not known")


def _at(data: bytes, place: int, size: int, *, signed: bool = False) -> int:
    found = data[place : place + size]
    if len(found) < size:
        raise IndexError("they end too soon")
    return int.from_bytes(found, "little", signed=signed)
