"""How columns of ClickHouse's types are read as ours: which types they get, and as what the server is to give them.

ClickHouse writes most types to Arrow as they are. Those that it writes as bare numbers (enumerations, seconds,
addresses) or that Arrow has no type for are cast by the server, within arrays, maps and tuples too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from velostream.model.clickhouse import type_arguments
from velostream.model.types import TIMESTAMP

_MOST_DIGITS = 38
_INSTANT = "DateTime64(6, 'UTC')"
_PLAIN: dict[str, pa.DataType] = {
    "Bool": pa.bool_(),
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt8": pa.int16(),
    "UInt16": pa.int32(),
    "UInt32": pa.int64(),
    "UInt64": pa.decimal128(20, 0),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "String": pa.string(),
    "FixedString": pa.binary(),
}
"""Types that need no cast: unsigned integers are given as such, and hold no more than ours."""


@dataclass(frozen=True, slots=True)
class ReadAs:
    """Our type for a type of ClickHouse's, and the type that it is read as."""

    type: pa.DataType
    store_type: str

    @property
    def nullable(self) -> bool:
        return self.store_type.startswith("Nullable(")


def read_as(store_type: str) -> ReadAs:
    """How a column is read whose type the server names so; what has no type of ours as its text."""
    name, _, rest = " ".join(store_type.split()).partition("(")
    inside = rest[:-1]
    compose = _COMPOSED.get(name)
    if compose is not None:
        return compose(list(type_arguments(inside)))
    if name in _PLAIN:
        return ReadAs(_PLAIN[name], f"{name}({inside})" if inside else name)
    if name in ("Date", "Date32"):
        return ReadAs(pa.date32(), "Date32")
    if name in ("DateTime", "DateTime64"):
        return ReadAs(TIMESTAMP, _INSTANT)
    decimal = re.fullmatch(r"(\d+), (\d+)", inside) if name == "Decimal" else None
    if decimal is not None and int(decimal[1]) <= _MOST_DIGITS:
        return ReadAs(pa.decimal128(int(decimal[1]), int(decimal[2])), f"Decimal({inside})")
    if name == "AggregateFunction":
        return ReadAs(pa.binary(), "String")
    # These two have NULLs of their own.
    return ReadAs(pa.string(), "Nullable(String)" if name in ("Variant", "Dynamic") else "String")


def _nullable(arguments: Sequence[str]) -> ReadAs:
    inner = read_as(arguments[0])
    return ReadAs(inner.type, f"Nullable({inner.store_type})")


def _as_its_own(arguments: Sequence[str]) -> ReadAs:
    return read_as(arguments[-1])


def _array(arguments: Sequence[str]) -> ReadAs:
    element = read_as(arguments[0])
    return ReadAs(pa.list_(element.type), f"Array({element.store_type})")


def _map(arguments: Sequence[str]) -> ReadAs:
    key, item = map(read_as, arguments)
    return ReadAs(pa.map_(key.type, item.type), f"Map({key.store_type}, {item.store_type})")


def _tuple(arguments: Sequence[str]) -> ReadAs:
    members = [_member(argument, place) for place, argument in enumerate(arguments, 1)]
    fields = [pa.field(name.strip("`"), member.type) for name, member, _ in members]
    stored = (f"{name} {member.store_type}" if named else member.store_type for name, member, named in members)
    return ReadAs(pa.struct(fields), f"Tuple({', '.join(stored)})")


def _nested(arguments: Sequence[str]) -> ReadAs:
    rows = _tuple(arguments)
    return ReadAs(pa.list_(rows.type), f"Array({rows.store_type})")


def _member(text: str, place: int) -> tuple[str, ReadAs, bool]:
    """A member of a tuple: its name or else its place, how it is read, and whether it has a name."""
    named = re.match(r"(`(?:[^`\\]|\\.)*`|\w+) (?=\S)", text)
    return (named[1], read_as(text[named.end() :]), True) if named else (str(place), read_as(text), False)


_COMPOSED: dict[str, Callable[[Sequence[str]], ReadAs]] = {
    "Nullable": _nullable,
    "LowCardinality": _as_its_own,
    "SimpleAggregateFunction": _as_its_own,
    "Array": _array,
    "Map": _map,
    "Tuple": _tuple,
    "Nested": _nested,
}
