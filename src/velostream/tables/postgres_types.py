"""How values lie in PostgreSQL: native types without loss, and whole columns as the text that COPY and arrays take.

Two things PostgreSQL can't hold are escaped. Text has no U+0000: it is stored as U+0001 U+0001, and U+0001 itself as
U+0001 U+0002, which keeps the order of texts and leaves all others as they are. JSON inherits that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from velostream.tables.relational.codec import (
    Codec,
    Decoder,
    Encoder,
    decode_as,
    decode_bytes,
    decode_microseconds,
    decode_nested,
    encode_floats,
    encode_nested,
    plain,
    refuse_rounding,
)

_EPOCH_DAYS = 10_957
"""PostgreSQL counts from 2000-01-01."""
_EPOCH_MICROSECONDS = _EPOCH_DAYS * 86_400_000_000
_ESCAPE = "\x01"
_NUL_ESCAPED = "\x01\x01"
_ESCAPE_ESCAPED = "\x01\x02"
_JSON_NUL = "\\u0000"
_JSON_ESCAPE = "\\u0001"


@dataclass(frozen=True, slots=True)
class PostgresCodec(Codec):
    """A codec that also gives whole columns as text."""

    texts: Callable[[pa.Array], pa.Array] = lambda array: array
    """An array whose text, as Arrow writes it, PostgreSQL reads as the column's type."""
    comparable: str = "{}"
    """What to make of the column so that IS DISTINCT FROM works on it."""

    @property
    def bare_type(self) -> str:
        """The type without what only a column definition may say; a cast to a length would cut texts in silence."""
        bare = re.sub(r"\(.*?\)", "", self.store_type.partition(" COLLATE ")[0])
        return re.sub(r"^character\b(?! varying)", "bpchar", bare)

    @property
    def is_array(self) -> bool:
        return self.bare_type.endswith("[]")


def own_codec(type_: pa.DataType) -> PostgresCodec:
    """How a column of a table that we make is stored."""
    if pa.types.is_boolean(type_):
        return PostgresCodec(type_, "boolean", _python, decode_as(type_))
    if pa.types.is_integer(type_):
        return PostgresCodec(type_, _INTEGERS[type_.bit_width], plain, decode_as(type_))
    if pa.types.is_floating(type_):
        name = "real" if type_ == pa.float32() else "double precision"
        return PostgresCodec(type_, name, encode_floats, decode_as(type_), texts=_without_negative_zero)
    if pa.types.is_decimal(type_):
        return PostgresCodec(type_, f"numeric({type_.precision},{type_.scale})", _python, decode_as(type_))
    if pa.types.is_string(type_):
        return PostgresCodec(type_, 'text COLLATE "C"', _encode_escaped, _decode_escaped, texts=escape)
    if pa.types.is_binary(type_):
        return PostgresCodec(type_, "bytea", plain, decode_bytes, texts=_hexadecimal)
    if pa.types.is_date(type_):
        return PostgresCodec(type_, "date", _python, _decode_days(type_))
    if pa.types.is_timestamp(type_):
        name = "timestamp with time zone" if type_.tz else "timestamp without time zone"
        return PostgresCodec(type_, name, _python, _decode_microseconds(type_))
    if pa.types.is_duration(type_):
        return PostgresCodec(type_, "interval", _python, decode_microseconds(type_), texts=_microseconds)
    if pa.types.is_null(type_):
        return PostgresCodec(type_, "text", _python, decode_as(type_))
    return PostgresCodec(
        type_, "jsonb", _encode_json, _decode_json(type_), equality=None, order=None, texts=_texts_of(_encode_json)
    )


def foreign_codec(type_: pa.DataType, store_type: str) -> PostgresCodec | None:
    """How a column of a user's table, whose type `format_type` names, is read and written as our type."""
    ours = own_codec(type_)
    name = store_type.removesuffix(NONDETERMINISTIC)
    bare = re.sub(r"\(.*\)", "", name)

    def like_ours(**changes: Any) -> PostgresCodec:
        fields = {"equality": ours.equality, "order": ours.order, "texts": ours.texts} | changes
        return PostgresCodec(type_, name, ours.encode, ours.decode, **fields)

    if pa.types.is_integer(type_):
        return like_ours() if _INTEGER_BITS.get(bare, 99) <= type_.bit_width else None
    if pa.types.is_decimal(type_):
        return like_ours(texts=_unrounded(name)) if _decimal_fits(name, type_) else None
    if pa.types.is_string(type_):
        return _foreign_text(type_, name, bare, nondeterministic=store_type.endswith(NONDETERMINISTIC))
    if pa.types.is_timestamp(type_):
        # One without a zone is taken in the session's, which is UTC.
        return like_ours(texts=_unrounded(name)) if bare.startswith("timestamp") else None
    if pa.types.is_nested(type_):
        if bare == "json":
            return like_ours(comparable="{}::text")
        if bare.endswith("[]") and pa.types.is_list(type_):
            return _foreign_array(type_, name)
    return like_ours() if bare == ours.bare_type else None


NONDETERMINISTIC = " nondeterministic"
"""Marks the type of a column whose collation calls different texts equal."""


def _unrounded(name: str) -> Callable[[pa.Array], pa.Array]:
    """What PostgreSQL would round to the places that its type names is refused instead."""
    places = re.search(r"(\d+)\)", name)
    if places is None:
        return lambda array: array

    def checked(array: pa.Array) -> pa.Array:
        refuse_rounding(array, places=int(places[1]))
        return array

    return checked


def _foreign_text(type_: pa.DataType, name: str, bare: str, *, nondeterministic: bool) -> PostgresCodec | None:
    order = '({})::text COLLATE "C"'
    if bare in ("text", "character varying"):
        equality = order if nondeterministic else "{}"
        return PostgresCodec(type_, name, plain, decode_as(type_), equality=equality, order=order)
    if bare in ("character", "uuid", "json", "jsonb", "name", "citext", "xml", "inet", "cidr"):
        comparable = "{}::text" if bare in ("json", "xml") else "{}"
        return PostgresCodec(type_, name, plain, _decode_as_text, equality=None, order=None, comparable=comparable)
    return None


def _foreign_array(type_: pa.DataType, name: str) -> PostgresCodec | None:
    element = foreign_codec(type_.value_type, name.removesuffix("[]"))
    if element is None or pa.types.is_nested(type_.value_type):
        return None

    def literals(array: pa.Array) -> pa.Array:
        texts = [array_literal(element.texts(pa.array(value.values))) if value.is_valid else None for value in array]
        return pa.array(texts, pa.string())

    def decode(values: Sequence[Any]) -> pa.Array:
        flat = element.decode([item for value in values if value is not None for item in value])
        lengths = pa.array([None if value is None else len(value) for value in values], pa.int32())
        offsets = pc.cumulative_sum(pc.fill_null(lengths, 0))
        starts = pa.concat_arrays([pa.array([0], pa.int32()), offsets])
        return pa.ListArray.from_arrays(starts, flat, mask=lengths.is_null()).cast(type_)

    return PostgresCodec(type_, name, _python, decode, equality=None, order=None, texts=literals)


def array_literal(array: pa.Array) -> str:
    """A column as the text of one PostgreSQL array."""
    texts = array.cast(pa.string())
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
        texts = pc.binary_join_element_wise('"', escaped, '"', "")
    texts = pc.fill_null(texts, "NULL")
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return "{" + str(pc.binary_join(whole, ",")[0]) + "}"


def escape(array: pa.Array) -> pa.Array:
    """Texts such that PostgreSQL can hold them."""
    if not _any_has(array, "\0") and not _any_has(array, _ESCAPE):
        return array
    return pc.replace_substring(pc.replace_substring(array, _ESCAPE, _ESCAPE_ESCAPED), "\0", _NUL_ESCAPED)


def _unescape(array: pa.Array) -> pa.Array:
    if not _any_has(array, _ESCAPE):
        return array
    return pc.replace_substring(pc.replace_substring(array, _NUL_ESCAPED, "\0"), _ESCAPE_ESCAPED, _ESCAPE)


def _any_has(array: pa.Array, part: str) -> bool:
    return bool(pc.any(pc.match_substring(array, part)).as_py())


def _encode_escaped(array: pa.Array) -> Sequence[Any]:
    return list(escape(array).to_pylist())


def _decode_escaped(values: Sequence[Any]) -> pa.Array:
    return _unescape(pa.array(values, pa.string()))


def _decode_as_text(values: Sequence[Any]) -> pa.Array:
    """Texts of types that the driver gives as objects of their own, or as bytes where it doesn't know them."""
    texts = (value.decode() if isinstance(value, bytes) else value for value in values)
    return pa.array([None if text is None else str(text) for text in texts], pa.string())


def _encode_json(array: pa.Array) -> Sequence[Any]:
    return [None if text is None else _changed_strings(text, _JSON_NUL, escape) for text in encode_nested(array)]


def _decode_json(type_: pa.DataType) -> Decoder:
    decode = decode_nested(type_)
    return lambda values: decode(
        [None if text is None else _changed_strings(text, _JSON_ESCAPE, _unescape) for text in values]
    )


def _changed_strings(text: str, sign: str, change: Callable[[pa.Array], pa.Array]) -> str:
    """JSON with its strings changed, where the text has a sign that there may be need for it."""
    if sign not in text and _JSON_ESCAPE not in text:
        return text

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return change(pa.array([value], pa.string()))[0].as_py()
        if isinstance(value, list):
            return [changed(item) for item in value]
        if isinstance(value, dict):
            return {name: changed(item) for name, item in value.items()}
        return value

    return orjson.dumps(changed(orjson.loads(text))).decode()


def _python(array: pa.Array) -> Sequence[Any]:
    return list(array.to_pylist())


def _texts_of(encode: Encoder) -> Callable[[pa.Array], pa.Array]:
    return lambda array: pa.array(encode(array), pa.string())


def _without_negative_zero(array: pa.Array) -> pa.Array:
    return pc.add(array, pa.scalar(0.0, array.type))


def _hexadecimal(array: pa.Array) -> pa.Array:
    return pa.array([None if value is None else "\\x" + value.hex() for value in array.to_pylist()], pa.string())


def _microseconds(array: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(array.cast(pa.int64()).cast(pa.string()), "microseconds", " ")


def _decode_days(type_: pa.DataType) -> Decoder:
    days = pa.scalar(_EPOCH_DAYS, pa.int32())
    return lambda values: pc.add_checked(pa.array(values, pa.int32()), days).cast(type_)


def _decode_microseconds(type_: pa.DataType) -> Decoder:
    microseconds = pa.scalar(_EPOCH_MICROSECONDS)
    return lambda values: pc.add_checked(pa.array(values, pa.int64()), microseconds).cast(type_)


_INTEGERS = {8: "smallint", 16: "smallint", 32: "integer", 64: "bigint"}
_INTEGER_BITS = {"smallint": 16, "integer": 32, "bigint": 64}


def _decimal_fits(store_type: str, type_: pa.DataType) -> bool:
    """Whether all values of a numeric column, or none that can be told from its type, are beyond ours."""
    match = re.fullmatch(r"numeric(?:\((\d+),(\d+)\))?", store_type)
    if match is None:
        return False
    if match[1] is None:
        return True
    precision, scale = int(match[1]), int(match[2])
    return bool(scale <= type_.scale and precision - scale <= type_.precision - type_.scale)
