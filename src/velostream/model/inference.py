"""What type a column has, judged by its values.

The narrowest type that holds every value seen: BOOLEAN, BIGINT, DECIMAL, DOUBLE, DATE, TIMESTAMP, else STRING;
objects and lists stay nested. Formats and the Python-side feeds share these rules; a format adds what it knows of text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pyarrow as pa

from velostream.model.types import TIMESTAMP

MIN_SCALE = 2
SHORT_PRECISION = 18
LONG_PRECISION = 38


class Kind(StrEnum):
    """Families of values that share a column type."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    DECIMAL = "decimal"
    DOUBLE = "double"
    DATE = "date"
    TIMESTAMP = "timestamp"
    INTERVAL = "interval"
    TEXT = "text"
    BINARY = "binary"
    STRUCT = "struct"
    ARRAY = "array"


_SIMPLE_TYPES: dict[Kind, pa.DataType] = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.DOUBLE: pa.float64(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: TIMESTAMP,
    Kind.INTERVAL: pa.duration("us"),
    Kind.TEXT: pa.string(),
    Kind.BINARY: pa.binary(),
}

TextKind = Callable[[str], Kind]
"""Says what a text in the data stands for; Python strings are always text."""


def plain_text(_: str) -> Kind:
    return Kind.TEXT


class ObservedType:
    """Collects evidence about one column, value by value, and answers with the narrowest type."""

    def __init__(self, text_kind: TextKind = plain_text) -> None:
        self._text_kind = text_kind
        self._kinds: set[Kind] = set()
        self._whole_digits = 0
        self._scale = 0
        self._fields: dict[str, ObservedType] = {}
        self._element: ObservedType | None = None

    def observe(self, value: Any) -> None:
        """Take one value into account; None says nothing about the type."""
        if value is None:
            return
        kind = self._kind(value)
        self._kinds.add(kind)
        if kind is Kind.STRUCT:
            for name, inner in value.items():
                field = self._fields.get(name)
                if field is None:
                    field = self._fields[name] = ObservedType(self._text_kind)
                field.observe(inner)
        elif kind is Kind.ARRAY:
            if self._element is None:
                self._element = ObservedType(self._text_kind)
            for inner in value:
                self._element.observe(inner)
        elif kind is Kind.INTEGER:
            self._whole_digits = max(self._whole_digits, whole_digits(value))
        elif kind is Kind.DECIMAL:
            self.observe_decimal(*decimal_digits(value))

    def observe_decimal(self, whole: int, scale: int) -> None:
        """Take a decimal of so many digits before and after the point into account."""
        self._kinds.add(Kind.DECIMAL)
        self._whole_digits = max(self._whole_digits, whole)
        self._scale = max(self._scale, scale)

    def observe_kind(self, kind: Kind) -> None:
        """Take a value into account of which only the family is known."""
        self._kinds.add(kind)

    def observe_whole_digits(self, digits: int) -> None:
        """Take a whole number of so many digits into account (19 stands for "does not fit BIGINT")."""
        self._kinds.add(Kind.INTEGER)
        self._whole_digits = max(self._whole_digits, digits)

    def type(self) -> pa.DataType:
        """The narrowest type for all values so far; STRING when there was none or they don't agree."""
        kinds = self._kinds
        if kinds == {Kind.STRUCT} and self._fields:
            return pa.struct([pa.field(name, field.type()) for name, field in self._fields.items()])
        if kinds == {Kind.ARRAY}:
            return pa.list_(self._element.type() if self._element else pa.string())
        if kinds == {Kind.INTEGER}:
            return self._integer_type()
        if kinds in ({Kind.DECIMAL}, {Kind.DECIMAL, Kind.INTEGER}):
            return self._decimal_type(max(MIN_SCALE, self._scale))
        if kinds and kinds <= {Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE}:
            return pa.float64()
        if kinds == {Kind.DATE, Kind.TIMESTAMP}:
            return TIMESTAMP
        if len(kinds) == 1:
            return _SIMPLE_TYPES.get(next(iter(kinds)), pa.string())
        return pa.string()

    def _integer_type(self) -> pa.DataType:
        if self._whole_digits <= SHORT_PRECISION:
            return pa.int64()
        return self._decimal_type(0)

    def _decimal_type(self, scale: int) -> pa.DataType:
        digits = self._whole_digits + scale
        if digits <= SHORT_PRECISION:
            return pa.decimal128(SHORT_PRECISION, scale)
        return pa.decimal128(LONG_PRECISION, scale) if digits <= LONG_PRECISION else pa.string()

    def _kind(self, value: Any) -> Kind:
        match value:
            case bool():
                return Kind.BOOLEAN
            case int():
                return Kind.INTEGER
            case float():
                return Kind.DOUBLE
            case str():
                return self._text_kind(value)
            case Decimal():
                return Kind.DECIMAL if value.is_finite() else Kind.DOUBLE
            case datetime():
                return Kind.TIMESTAMP
            case date():
                return Kind.DATE
            case timedelta():
                return Kind.INTERVAL
            case bytes() | bytearray() | memoryview():
                return Kind.BINARY
            case Mapping():
                return Kind.STRUCT
            case list() | tuple():
                return Kind.ARRAY
            case _:
                return Kind.TEXT


def is_empty(value: Any) -> bool:
    """Whether a value says nothing about its type: NULL, and a list or an object that holds nothing else."""
    if isinstance(value, Mapping):
        return all(map(is_empty, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_empty, value))
    return value is None


def names_with_values(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The fields that have a value in some record, in the order of their first one. Others have no type as yet."""
    return list(dict.fromkeys(name for record in records for name, value in record.items() if not is_empty(value)))


def is_untyped(type_: pa.DataType) -> bool:
    """Whether Arrow found no type for any of the values: each of them is empty."""
    if pa.types.is_struct(type_):
        return all(is_untyped(field.type) for field in type_)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return is_untyped(type_.value_type)
    return bool(pa.types.is_null(type_))


def whole_digits(number: int) -> int:
    """Digits a whole number needs; at most 18 exactly when BIGINT surely holds it, 18 for all of BIGINT's range."""
    if -(2**63) <= number < 2**63:
        return min(SHORT_PRECISION, len(str(abs(number))))
    return len(str(abs(number)))


def decimal_digits(number: Decimal) -> tuple[int, int]:
    """Digits before and after the decimal point of a finite number."""
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise TypeError(f"{number} is not a finite number")
    scale = max(0, -exponent)
    return max(0, len(digits) + exponent if digits != (0,) else 0), scale
