"""Whole columns and single values decode to the same Python values, and those are Arrow's own."""

from __future__ import annotations

from datetime import date, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.tables.memory.reader import reader_of
from velostream.tables.memory.values import python_value, python_values

CASES = {
    "decimal": (pa.decimal128(18, 3), st.decimals(-(10**14), 10**14, places=3)),
    "long decimal": (pa.decimal128(38, 5), st.decimals(-(10**30), 10**30, places=5)),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes()),
    "local timestamp": (pa.timestamp("us"), st.datetimes()),
    "date": (pa.date32(), st.dates()),
    "text": (pa.string(), st.text(max_size=4)),
    "bytes": (pa.binary(), st.binary(max_size=4)),
    "boolean": (pa.bool_(), st.booleans()),
    "byte": (pa.int8(), st.integers(-128, 127)),
    "integer": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "list": (pa.list_(pa.int32()), st.lists(st.integers(0, 9), max_size=2)),
}


@pytest.mark.parametrize("case", sorted(CASES))
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_columns_and_single_values_agree_with_arrow(case, data):
    type_, strategy = CASES[case]
    values = data.draw(st.lists(st.none() | strategy, max_size=6))
    start = data.draw(st.integers(0, len(values)))
    array = pa.array(values, type_).slice(start)
    plain = array.cast(pa.timestamp("us")) if pa.types.is_timestamp(type_) else array
    expected = [repr(value) for value in plain.to_pylist()]
    assert [repr(value) for value in python_values(array)] == expected
    chunked = pa.chunked_array([array, array.slice(0, 1), array.slice(0, 0)], type_)
    assert [repr(value) for value in python_values(chunked)] == expected + expected[:1]
    assert [repr(python_value(scalar)) for scalar in array] == expected
    read = reader_of(array, type_)
    assert [repr(read(row)) for row in range(len(array))] == expected


def test_the_first_and_the_last_moment():
    moments = [datetime.min, datetime.max, None]  # noqa: DTZ901 - naive is UTC here
    assert python_values(pa.array(moments, pa.timestamp("us"))) == moments
    assert python_values(pa.array([date.min, date.max], pa.date32())) == [date.min, date.max]
    with pytest.raises((ValueError, OverflowError)):
        python_values(pa.array([2**62], pa.int64()).cast(pa.timestamp("us")))
