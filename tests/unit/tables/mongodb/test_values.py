"""Values as BSON and back: exact, and in the form the driver itself would give them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from bson import decode, encode
from bson.decimal128 import Decimal128
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.errors import TableError
from velostream.model.types import parse_type
from velostream.tables.mongodb.values import Values, escape


def through_bson(values, column):
    """What a document with each value holds once it was stored."""
    return [decode(encode({"v": value}))["v"] for value in values.encode(column)]


@settings(deadline=None)
@given(st.data(), st.integers(1, 38))
def test_decimals_come_back_exactly(data, precision):
    scale = data.draw(st.integers(0, precision))
    type_ = pa.decimal128(precision, scale)
    decimals = st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda unscaled: _decimal(unscaled, scale))
    column = pa.array(data.draw(st.lists(st.none() | decimals, max_size=5)), type_)
    values = Values(type_, dates=False)
    assert values.decode(through_bson(values, column)).equals(column)


def _decimal(unscaled, scale):
    """Whatever precision the present decimal context has."""
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


@settings(deadline=None)
@given(st.integers(-(10**34) + 1, 10**34 - 1), st.integers(0, 34))
def test_a_decimal_is_what_the_driver_makes_of_it(unscaled, scale):
    value = _decimal(unscaled, scale)
    (stored,) = Values(pa.decimal128(34, scale), dates=False).encode(pa.array([value], pa.decimal128(34, scale)))
    assert stored == Decimal128(value)


def test_decimals_of_other_programs_may_have_another_scale():
    values = Values(pa.decimal128(10, 2), dates=True)
    found = values.decode([Decimal128("1.5"), 7, None, Decimal128("1E+2")])
    assert found.to_pylist() == [Decimal("1.50"), Decimal("7.00"), None, Decimal("100.00")]
    with pytest.raises(TypeError):
        values.decode([1.5])


def test_instants_keep_their_microseconds_in_collections_of_ours_only():
    instant = datetime(2024, 3, 31, 1, 30, 0, 123456, tzinfo=UTC)
    column = pa.array([instant, None], parse_type("TIMESTAMP"))
    own = Values(column.type, dates=False)
    assert own.decode(through_bson(own, column)).equals(column)
    theirs = Values(column.type, dates=True)
    with pytest.raises(TableError) as caught:
        theirs.encode(column)
    assert caught.value.code == "wrong-type"
    whole = pa.array([instant.replace(microsecond=123000)], column.type)
    assert theirs.decode(through_bson(theirs, whole)).equals(whole)


@pytest.mark.parametrize("name", ["", "_id", "a.b", "$a", "%", "a\0b", "a%2Eb", "plain"])
def test_fields_have_names_that_mongodb_takes_and_no_two_columns_share(name):
    escaped = escape(name)
    assert escaped
    assert escaped != "_id"
    assert not set(escaped) & set(".$\0")
    others = {escape(other) for other in ("_id", "a.b", "$a", "%", "a%2Eb", "plain", "") if other != name}
    assert escaped not in others
