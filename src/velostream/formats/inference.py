"""What texts in data stand for: the narrowest type of a CSV column, dates and timestamps in JSON strings."""

from __future__ import annotations

import re
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from velostream.model.conform import ISO_IN_UTC, TimeRules
from velostream.model.inference import Kind, ObservedType, TextKind, whole_digits

_BOOLEAN = r"(?i)^(?:true|false)$"
_INTEGER = r"^-?(?:0|[1-9][0-9]*)$"
_DECIMAL = r"^-?(?:0|[1-9][0-9]*)?\.[0-9]+$"
_DOUBLE = r"^(?:[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][+-]?[0-9]+|[Nn]a[Nn]|[+-]?[Ii]nf(?:inity)?)$"
_DATE = r"^[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])$"
_TIMESTAMP = (
    r"^[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])[ T](?:[01][0-9]|2[0-3]):[0-5][0-9]"
    r"(?::[0-5][0-9](?:\.[0-9]{1,9})?)?(?:[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?$"
)
_DATE_TEXT = re.compile(_DATE)
_TIMESTAMP_TEXT = re.compile(_TIMESTAMP)
_SAFE_DIGITS = 18


def json_text_kinds(times: TimeRules) -> TextKind:
    """Says what a JSON string stands for: a date or timestamp as `times` has them, else text."""
    pattern = times.pattern
    if pattern is None:
        return _iso_kind

    def kind(text: str) -> Kind:
        try:
            datetime.strptime(text, pattern)  # noqa: DTZ007 - only whether it can be read is asked
        except ValueError:
            return _iso_kind(text)
        return Kind.TIMESTAMP

    return kind


def _iso_kind(text: str) -> Kind:
    """Numbers in quotes stay text."""
    if len(text) < 10 or text[4:5] != "-":
        return Kind.TEXT
    if _DATE_TEXT.match(text):
        return Kind.DATE
    return Kind.TIMESTAMP if _TIMESTAMP_TEXT.match(text) else Kind.TEXT


def observe_texts(observed: ObservedType, texts: pa.Array | pa.ChunkedArray, *, times: TimeRules = ISO_IN_UTC) -> None:
    """Take a column of texts as written in a file into account; empty ones say nothing.

    A number with leading zeros is text: it is an identifier more often than a number, and zeros can't be given back.
    """
    values = pc.unique(pc.utf8_trim_whitespace(texts)).drop_null()
    values = values.filter(pc.not_equal(values, ""))
    if not len(values):
        return
    if times.pattern is not None and _all_match(values, times.pattern):
        observed.observe_kind(Kind.TIMESTAMP)
        return
    for pattern, take in _READINGS:
        matches = pc.match_substring_regex(values, pattern)
        if pc.any(matches).as_py():
            take(observed, values.filter(matches))
            values = values.filter(pc.invert(matches))
        if not len(values):
            return
    observed.observe_kind(Kind.TEXT)


def _all_match(values: pa.Array, pattern: str) -> bool:
    """Whether each text is a timestamp of that form; one that isn't makes numbers of eight digits numbers again."""
    return not pc.strptime(values, format=pattern, unit="us", error_is_null=True).null_count


def _take_integers(observed: ObservedType, values: pa.Array) -> None:
    lengths = pc.utf8_length(values)
    longest = pc.max(lengths).as_py()
    if longest <= _SAFE_DIGITS:
        observed.observe_whole_digits(longest)
        return
    for text in values.filter(pc.greater(lengths, _SAFE_DIGITS)).to_pylist():
        observed.observe_whole_digits(whole_digits(int(text)))


def _take_decimals(observed: ObservedType, values: pa.Array) -> None:
    digits = pc.utf8_ltrim(values, "-")
    point = pc.find_substring(digits, ".")
    # A zero before the point takes no digit of the type's precision.
    before = pc.if_else(pc.starts_with(digits, "0."), 0, point)
    after = pc.subtract(pc.subtract(pc.utf8_length(digits), point), 1)
    observed.observe_decimal(pc.max(before).as_py(), pc.max(after).as_py())


def _take_dates(observed: ObservedType, values: pa.Array) -> None:
    observed.observe_kind(Kind.DATE if _castable(values, pa.date32()) else Kind.TEXT)


def _castable(values: pa.Array, type_: pa.DataType) -> bool:
    try:
        values.cast(type_)
    except pa.ArrowInvalid:
        return False
    return True


_READINGS = (
    (_BOOLEAN, lambda observed, _: observed.observe_kind(Kind.BOOLEAN)),
    (_INTEGER, _take_integers),
    (_DECIMAL, _take_decimals),
    (_DOUBLE, lambda observed, _: observed.observe_kind(Kind.DOUBLE)),
    (_DATE, _take_dates),
    (_TIMESTAMP, lambda observed, _: observed.observe_kind(Kind.TIMESTAMP)),
)
