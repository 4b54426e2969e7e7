"""Values on their way to a store and back."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from velostream.model.types import parse_type
from velostream.tables.memory.keys import hashable_values
from velostream.tables.relational.codec import (
    decode_decimals,
    decode_nested,
    decode_text,
    encode_as_text,
    encode_nested,
    encode_times_as_text,
)

patiently = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""On a busy machine, too."""
NESTED = (
    "STRUCT<d: DECIMAL(38,3), b: BINARY, f: DOUBLE, t: TIMESTAMP, i: INTERVAL, m: MAP<INT, ARRAY<DATE>>, s: STRING>"
)
_SMALL_TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
_STRUCTS = st.fixed_dictionaries(
    {
        "d": st.none() | st.decimals(-(10**30), 10**30, places=3),
        "b": st.none() | st.binary(),
        "f": st.none() | st.floats().map(lambda number: number + 0.0),
        "t": st.none() | _SMALL_TIMES,
        "i": st.none() | st.timedeltas(timedelta(days=-1000), timedelta(days=1000)),
        "m": st.none()
        | st.dictionaries(st.integers(-9, 9), st.lists(st.dates(), max_size=2), max_size=3).map(
            lambda found: list(found.items())
        ),
        "s": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    }
)


@patiently
@given(st.lists(st.none() | _STRUCTS, max_size=4))
def test_nested_values_come_back_from_json_as_they_were(values):
    array = pa.array(values, parse_type(NESTED))
    again = decode_nested(array.type)(encode_nested(array))
    assert again.type == array.type
    assert hashable_values(again) == hashable_values(array)


@patiently
@given(st.lists(st.none() | st.decimals(-(10**27), 10**27, places=10)))
def test_decimals_come_back_from_text_and_have_one_text_each(values):
    array = pa.array(values, pa.decimal128(38, 10))
    texts = encode_as_text(array)
    assert decode_text(array.type)(texts).equals(array)
    assert len({*texts}) == len({*values})


@patiently
@given(st.lists(_SMALL_TIMES, min_size=2))
def test_texts_of_times_have_the_order_of_the_times(values):
    array = pa.array(values, pa.timestamp("us", "UTC"))
    texts = encode_times_as_text(array)
    assert decode_text(array.type)(texts).equals(array)
    assert sorted(texts) == encode_times_as_text(pa.array(sorted(values), array.type))


def test_what_others_write_is_read():
    instants = pa.timestamp("us", "UTC")
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    written = ["2024-05-01T12:00:00+00:00", "2024-05-01 14:00:00+02:00", "2024-05-01 12:00:00", None]
    assert decode_text(instants)(written).to_pylist() == [noon, noon, noon, None]
    amounts = decode_decimals(pa.decimal128(10, 2))([1, 2.5, "3.25", Decimal("4.5"), 0.1, None])
    assert amounts.to_pylist() == [*map(Decimal, ("1.00", "2.50", "3.25", "4.50", "0.10")), None]


def test_a_number_with_more_digits_than_the_type_is_no_value_of_it():
    with pytest.raises(pa.ArrowInvalid):
        decode_decimals(pa.decimal128(10, 2))([math.pi])
