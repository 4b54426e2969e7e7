"""VARIANTs in bytes: Spark's own reader and writer, which need no JVM, are what ours are compared with."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal
from pyspark.sql.variant_utils import VariantUtils

from velostream.errors import QueryError, ValidationError
from velostream.model.rows import rows_to_arrow
from velostream.model.schema import Schema
from velostream.model.types import normal_type, parse_type, render_type
from velostream.model.variant import VARIANT, decoded, encoded, holds_variant, is_variant

WHOLE = st.integers(-(2**63), 2**63 - 1)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**20), max_value=10**20)
PLAIN = st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False) | st.text() | DECIMALS
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(VALUES)
def test_values_come_back(value):
    assert decoded(encoded(value)) == value


@given(
    st.recursive(
        st.none() | st.booleans() | WHOLE | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)
    )
)
def test_bytes_are_those_of_spark(value):
    text = json.dumps(value)
    theirs = dict(zip(("value", "metadata"), map(bytes, VariantUtils.parse_json(text)), strict=True))
    assert decoded(theirs) == value
    assert VariantUtils.to_python(**encoded(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        {str(number): number for number in range(300)},
        list(range(1000)),
        ["x" * 63, "x" * 64, "x" * 70_000],
        {"z": 1, "ä": 2, "😀": 3, "\uffff": 4, "": 5},
        b"\x00bytes",
        date(2024, 2, 29),
        Decimal("-0.50"),
        Decimal(99999999999999999999999999999999999999),
        2**100,
    ],
    ids=repr,
)
def test_long_and_odd_values(value):
    assert decoded(encoded(value)) == value
    if not (isinstance(value, Decimal | int) and len(str(value)) > 28):  # Spark's reader in Python rounds these
        assert VariantUtils.to_python(**encoded(value)) == value


def test_digits_and_zones():
    assert str(decoded(encoded(Decimal("1.50")))) == "1.50"
    moment = datetime(2024, 2, 29, 12, 30, 0, 5, tzinfo=UTC)
    assert decoded(encoded(moment)) == moment.replace(tzinfo=None)
    assert VariantUtils.to_python(**encoded(moment)) == moment


def test_what_has_the_bytes_already_is_taken_as_it_is():
    theirs = VariantVal(*map(bytearray, VariantUtils.parse_json('{"a": [1, 2.5]}')))
    assert decoded(encoded(theirs)) == {"a": [1, Decimal("2.5")]}
    assert encoded(encoded({"a": 1})) == encoded({"a": 1})
    assert decoded(encoded({"value": 1, "metadata": "m"})) == {"value": 1, "metadata": "m"}


@pytest.mark.parametrize("value", [object(), Decimal("NaN"), Decimal(10**40), 10**40, Decimal("1e-39")])
def test_what_no_variant_holds(value):
    with pytest.raises(ValueError, match="VARIANT holds no"):
        encoded(value)


def test_the_type_has_a_name_and_is_no_struct():
    assert parse_type("variant") is VARIANT
    assert render_type(parse_type("ARRAY<STRUCT<v VARIANT>>")) == "ARRAY<STRUCT<v: VARIANT>>"
    assert is_variant(normal_type(pa.list_(VARIANT)).value_type)
    assert not holds_variant(parse_type("STRUCT<value BINARY, metadata BINARY>"))
    assert holds_variant(parse_type("MAP<STRING, ARRAY<VARIANT>>"))
    with pytest.raises(ValidationError, match="can't be part of a key"):
        Schema.of(("v", "VARIANT"), key=["v"])


def test_rows_of_python_become_variants():
    schema = Schema.of(("v", "VARIANT"), ("inside", "MAP<STRING, VARIANT>"))
    rows = rows_to_arrow([{"v": {"a": 1}, "inside": {"x": [1]}}, {"v": None, "inside": None}], schema)
    assert is_variant(rows.schema.field("v").type)
    assert [decoded(value) for value in rows.column("v").to_pylist()] == [{"a": 1}, None]


@pytest.mark.parametrize("brackets", ['{"a":', "["])
def test_values_are_read_that_are_nested_more_deeply_than_functions_are(brackets):
    metadata = bytes(VariantUtils.parse_json('{"a":1}')[1])
    value = bytes(VariantUtils.parse_json("1")[0])
    for _ in range(900):
        size, width = len(value), (len(value).bit_length() + 7) // 8
        offsets = bytes(width) + size.to_bytes(width, "little")
        inner = b"\x01\x00" if "{" in brackets else b"\x01"
        value = bytes([(width - 1) << 2 | (2 if "{" in brackets else 3)]) + inner + offsets + value
    found = decoded({"value": value, "metadata": metadata})
    for _ in range(900):
        found = found["a"] if "{" in brackets else found[0]
    assert found == 1


def test_values_that_are_nested_too_deeply_to_be_written_are_refused():
    value = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(ValueError, match="nested too deeply"):
        encoded(value)


@pytest.mark.parametrize(
    "given",
    [
        {"value": b"", "metadata": b""},
        {"value": b"\x10\x01", "metadata": b"\x01\x00\x00"},
        {"value": b"\x05\xff", "metadata": b"\x01\x00\x00"},
        {"value": b"\x02\x01\x07\x00\x01\x00", "metadata": b"\x01\x00\x00"},
        {"value": bytes([11 << 2, 255, 255, 255, 127]), "metadata": b"\x01\x00\x00"},
        {"value": bytes([63 << 2]), "metadata": b"\x01\x00\x00"},
    ],
)
def test_bytes_that_are_no_variant_are_refused_and_told(given):
    with pytest.raises(ValueError, match=r"."):
        encoded(given)
    with pytest.raises(QueryError) as caught:
        decoded(given)
    assert caught.value.code == "malformed-variant"
    assert caught.value.detail


@pytest.mark.parametrize("missing", ["value", "metadata"])
def test_a_struct_that_lacks_bytes_is_malformed(missing):
    with pytest.raises(QueryError, match="can't be read") as caught:
        decoded(encoded(1) | {missing: None})
    assert caught.value.code == "malformed-variant"
