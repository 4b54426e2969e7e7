"""How values lie in MySQL and MariaDB: native types where those lose nothing, text where they do.

Neither NaN nor infinity is a number there, so floats are the shortest text that stands for them; a decimal with more
than 30 places behind the point, where MySQL's end, is text as well. Times are DATETIME(6) in UTC, which reaches from
year 1 to 9999; TIMESTAMP doesn't. Text is in a collation that compares bytes and doesn't pad.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import TableError
from velostream.tables.relational.codec import (
    Codec,
    Decoder,
    Encoder,
    decode_as,
    decode_booleans,
    decode_bytes,
    decode_microseconds,
    decode_nested,
    decode_text,
    encode_booleans_as_integers,
    encode_microseconds,
    encode_nested,
    plain,
    refuse_rounding,
)

_MOST_PLACES = 30
_SHORT_TEXT = "VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin"


@dataclass(frozen=True, slots=True)
class MysqlCodec(Codec):
    """A codec that also says how values come out of a JSON document, which is how many of them are bound at once."""

    json: Callable[[pa.Array], Sequence[Any]] = plain
    """An array as what JSON holds."""
    json_type: str = "LONGTEXT"
    """The type that JSON_TABLE gives it."""
    json_value: str = "{}"
    """What to make of that to have the value."""
    long: bool = False
    """Whether values may be too long for an index."""


def own_codec(type_: pa.DataType, collation: str) -> MysqlCodec:
    """How a column of a table that we make is stored."""
    if pa.types.is_boolean(type_):
        return MysqlCodec(
            type_,
            "TINYINT(1)",
            encode_booleans_as_integers,
            decode_booleans,
            json=encode_booleans_as_integers,
            json_type="TINYINT",
        )
    if pa.types.is_integer(type_):
        name = _INTEGERS[type_.bit_width]
        return MysqlCodec(type_, name, plain, decode_as(type_), json=_as_text, json_type=name)
    if pa.types.is_floating(type_):
        return MysqlCodec(
            type_,
            _SHORT_TEXT,
            _float_texts,
            _decode_floats(type_),
            order=None,
            json=_float_texts,
            json_type=_SHORT_TEXT,
        )
    if pa.types.is_decimal(type_):
        if type_.scale > _MOST_PLACES:
            return MysqlCodec(
                type_, _SHORT_TEXT, _as_text, decode_text(type_), order=None, json=_as_text, json_type=_SHORT_TEXT
            )
        name = f"DECIMAL({type_.precision},{type_.scale})"
        return MysqlCodec(type_, name, _python, decode_as(type_), json=_as_text, json_type=name)
    if pa.types.is_string(type_):
        return MysqlCodec(
            type_,
            f"LONGTEXT CHARACTER SET utf8mb4 COLLATE {collation}",
            plain,
            decode_as(type_),
            json=_hexadecimal,
            json_value=f"CONVERT(UNHEX({{}}) USING utf8mb4) COLLATE {collation}",
            long=True,
        )
    if pa.types.is_binary(type_):
        return MysqlCodec(type_, "LONGBLOB", plain, decode_bytes, json=_hexadecimal, json_value="UNHEX({})", long=True)
    if pa.types.is_date(type_):
        return MysqlCodec(type_, "DATE", _python, decode_as(type_), json=_as_text, json_type="DATE")
    if pa.types.is_timestamp(type_):
        return MysqlCodec(
            type_,
            "DATETIME(6)",
            plain,
            _decode_datetimes(type_),
            json=_naive_texts,
            json_type="DATETIME(6)",
        )
    if pa.types.is_duration(type_):
        return MysqlCodec(
            type_,
            "BIGINT",
            encode_microseconds,
            decode_microseconds(type_),
            json=encode_microseconds,
            json_type="BIGINT",
        )
    if pa.types.is_null(type_):
        return MysqlCodec(type_, "TINYINT", _python, decode_as(type_), json_type="TINYINT")
    return MysqlCodec(
        type_,
        "JSON",
        encode_nested,
        decode_nested(type_),
        equality=None,
        order=None,
        json=lambda array: _hexadecimal(pa.array(encode_nested(array), pa.string())),
        json_value=f"CONVERT(UNHEX({{}}) USING utf8mb4) COLLATE {collation}",
        long=True,
    )


def foreign_codec(type_: pa.DataType, store_type: str, collation: str) -> MysqlCodec | None:
    """How a column of a user's table is read and written as our type; `store_type` as information_schema has it."""
    ours = own_codec(type_, collation)
    name, _, foreign_collation = store_type.lower().partition(" collate ")
    bare = re.sub(r"\(.*\)", "", name).strip()

    def like_ours(**changes: Any) -> MysqlCodec:
        fields = {
            "encode": ours.encode,
            "decode": ours.decode,
            "equality": ours.equality,
            "order": ours.order,
            "json": ours.json,
            "json_type": ours.json_type,
            "json_value": ours.json_value,
            "long": ours.long,
        }
        return MysqlCodec(type_, store_type, **(fields | changes))

    if pa.types.is_boolean(type_):
        return like_ours() if name == "tinyint(1)" else None
    if pa.types.is_integer(type_):
        return like_ours() if _integer_fits(name, bare, type_) else None
    if pa.types.is_floating(type_):
        # Of a FLOAT the server tells six digits only.
        return (
            like_ours(encode=_finite, decode=decode_as(type_), json=_finite, json_type="DOUBLE", order="{}")
            if (bare, type_) == ("double", pa.float64())
            else None
        )
    if pa.types.is_decimal(type_):
        return _foreign_decimals(type_, store_type, name)
    if pa.types.is_string(type_):
        if bare not in _TEXTS:
            return None
        exact = "CAST(CONVERT({} USING utf8mb4) AS BINARY)" if foreign_collation != collation else "{}"
        return like_ours(equality=exact, order=exact)
    if pa.types.is_binary(type_):
        return like_ours() if bare in _BYTES else None
    if pa.types.is_timestamp(type_):
        return (
            like_ours(encode=_unrounded(plain, _places(name)), json=_unrounded(_naive_texts, _places(name)))
            if bare in ("datetime", "timestamp")
            else None
        )
    if pa.types.is_duration(type_):
        return None
    if pa.types.is_nested(type_):
        return like_ours() if bare in ("json", "longtext") else None
    return like_ours() if bare == ours.store_type.lower() else None


def _foreign_decimals(type_: pa.DataType, store_type: str, name: str) -> MysqlCodec | None:
    match = re.match(r"decimal\((\d+),(\d+)\)", name)
    if match is None:
        return None
    places = int(match[2])
    if places > type_.scale or int(match[1]) - places > type_.precision - type_.scale:
        return None
    return MysqlCodec(
        type_,
        store_type,
        _unrounded(_python, places),
        decode_as(type_),
        json=_unrounded(_as_text, places),
        json_type=f"DECIMAL({type_.precision},{min(type_.scale, _MOST_PLACES)})",
    )


def _integer_fits(name: str, bare: str, type_: pa.DataType) -> bool:
    """Whether all values of the column are ours."""
    bits = _INTEGER_BITS.get(bare.partition(" ")[0])
    return bits is not None and bool(bits + ("unsigned" in name) <= type_.bit_width)


def _places(name: str) -> int:
    match = re.search(r"\((\d+)\)", name)
    return 0 if match is None else int(match[1])


def _unrounded(encode: Encoder, places: int) -> Encoder:
    """What the server would round to its places is refused instead."""

    def checked(array: pa.Array) -> Sequence[Any]:
        refuse_rounding(array, places=places)
        return encode(array)

    return checked


def _python(array: pa.Array) -> Sequence[Any]:
    return list(array.to_pylist())


def _as_text(array: pa.Array) -> Sequence[Any]:
    return list(array.cast(pa.string()).to_pylist())


def _finite(array: pa.Array) -> Sequence[Any]:
    if pc.all(pc.is_finite(array)).as_py() is False:
        raise TableError("MySQL's DOUBLE knows neither NaN nor infinity", code="wrong-type")
    return _python(array)


def _float_texts(array: pa.Array) -> Sequence[Any]:
    return _as_text(pc.add(array, pa.scalar(0.0, array.type)))


def _decode_floats(type_: pa.DataType) -> Decoder:
    return lambda values: pa.array(values, pa.string()).cast(type_)


def _hexadecimal(array: pa.Array) -> Sequence[Any]:
    values = array.cast(pa.binary()).to_pylist()
    return [None if value is None else value.hex() for value in values]


def _naive_texts(array: pa.Array) -> Sequence[Any]:
    return _as_text(array.cast(pa.int64()).cast(pa.timestamp("us")))


def _decode_datetimes(type_: pa.DataType) -> Decoder:
    return lambda values: pa.array(values, pa.timestamp("us")).cast(pa.int64()).cast(type_)


_INTEGERS = {8: "TINYINT", 16: "SMALLINT", 32: "INT", 64: "BIGINT"}
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "uuid"})
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
