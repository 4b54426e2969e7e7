"""Hashes and equality of Arrow rows against the same said in plain Python."""

import math
import os
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.model.types import parse_type
from velostream.tables.memory.hash_index import HashIndex, TooManyPairsError
from velostream.tables.memory.matching import hash_rows, rows_match, rows_without_null

without_deadline = settings(deadline=None, max_examples=50)
FLOATS = [0.0, -0.0, 1.5, -1.5, math.nan, math.inf, None]
VALUES = {
    "BOOLEAN": [True, False, None],
    "TINYINT": [-1, 0, 1, None],
    "SMALLINT": [-1, 256, None],
    "INT": [-1, 2**31 - 1, None],
    "BIGINT": [-1, 0, 2**63 - 1, -(2**63), None],
    "FLOAT": FLOATS,
    "DOUBLE": FLOATS,
    "DECIMAL(38,4)": [Decimal("1.5"), Decimal("-1.5"), Decimal(10) ** 30, Decimal(2) ** 64, None],
    "STRING": ["", "a", "b", "12345678", "123456789", "12345678\0", "ä" * 200, "ä" * 199 + "b", None],
    "BINARY": [b"", b"\0", b"\0\0", b"a", None],
    "DATE": [date(1, 1, 1), date(2024, 2, 29), None],
    "TIMESTAMP": [datetime(1969, 12, 31, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC), None],
    "ARRAY<DOUBLE>": [[], [0.0], [-0.0], [None], [math.nan, 1.0], [1.0, math.nan], [1.0, 1.0], [1.0], None],
    "STRUCT<a: BIGINT, b: STRING>": [{"a": 1, "b": "x"}, {"a": None, "b": "x"}, {"a": None, "b": None}, None],
    "MAP<STRING, BIGINT>": [[], [("a", 1)], [("a", 1), ("b", None)], [("b", 1)], None],
    "ARRAY<STRUCT<a: ARRAY<STRING>>>": [[{"a": ["x"]}], [{"a": None}], [None], [{"a": ["x", "y"]}, {"a": []}], None],
    "VOID": [None],
}


def canonical(value):
    """Equal for values that Spark's join takes for equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple(canonical(part) for part in value.values())
    if isinstance(value, list | tuple):
        return tuple(canonical(part) for part in value)
    return value


@pytest.mark.parametrize("sql_type", VALUES)
@without_deadline
@given(data=st.data())
def test_equal_values_and_only_those_match(sql_type, data):
    pairs = data.draw(st.lists(st.tuples(*[st.sampled_from(VALUES[sql_type])] * 2), max_size=40))
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    expected = [canonical(one) == canonical(other) for one, other in pairs]
    # Slices: an array is not always the beginning of its buffers.
    padding = VALUES[sql_type][:3]
    one = pa.array(padding + left, parse_type(sql_type)).slice(len(padding))
    other = pa.array(right + padding, parse_type(sql_type)).slice(0, len(right))
    assert rows_match([one], [other]).tolist() == expected
    same_hash = hash_rows([one]) == hash_rows([other])
    assert same_hash.tolist() == expected


@without_deadline
@given(st.lists(st.tuples(st.one_of(st.none(), st.text(max_size=30)), st.integers(-5, 5)), max_size=60), st.data())
def test_a_hash_does_not_depend_on_how_a_column_is_cut(rows, data):
    texts, numbers = (pa.array([row[i] for row in rows], type_) for i, type_ in ((0, pa.string()), (1, pa.int64())))
    cut = data.draw(st.integers(0, len(rows)))
    chunked = pa.chunked_array([texts.slice(0, cut), texts.slice(cut)])
    assert (hash_rows([texts, numbers]) == hash_rows([chunked, numbers])).all()


def test_a_hash_is_the_same_in_every_process():
    script = (
        "import pyarrow as pa; from velostream.tables.memory.matching import hash_rows;"
        "print(hash_rows([pa.array(['a', 'long' * 99, None]), pa.array([1, 2, 3])]).tolist())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True, text=True)
    here = hash_rows([pa.array(["a", "long" * 99, None]), pa.array([1, 2, 3])]).tolist()
    assert output.stdout.strip() == str(here)


def test_different_values_of_every_width_get_different_hashes():
    for column in (pa.array(np.arange(100_000)), pa.array([f"user_{i:08}" for i in range(100_000)])):
        assert len(np.unique(hash_rows([column]))) == 100_000


def test_composite_keys_are_not_interchangeable():
    left, right = pa.array([1, 2]), pa.array([2, 1])
    hashes = hash_rows([left, right])
    assert hashes[0] != hashes[1]


def test_rows_with_a_null_are_told():
    assert rows_without_null([pa.array([1, 2])]) is None
    complete = rows_without_null([pa.array([1, None, 3]), pa.array(["a", "b", None])])
    assert complete is not None
    assert complete.tolist() == [True, False, False]


@without_deadline
@given(st.lists(st.integers(0, 20)), st.lists(st.integers(0, 25)), st.integers(0, 30))
def test_an_index_finds_every_position_in_order(indexed, asked, split):
    def spread(values):
        return np.array(values, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    hashes, positions = spread(indexed), np.arange(len(indexed))
    whole = HashIndex.of(hashes, positions)
    grown = HashIndex.of(hashes[:split], positions[:split]).with_more(hashes[split:], positions[split:])
    expected = [(row, place) for row, value in enumerate(asked) for place, one in enumerate(indexed) if one == value]
    for index in (whole, grown):
        pairs = index.find(spread(asked))
        assert list(zip(pairs.rows.tolist(), pairs.positions.tolist(), strict=True)) == expected


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_a_saved_index_finds_the_same(tmp_path, count):
    hashes = hash_rows([pa.array(np.arange(count) % 300)])
    index = HashIndex.of(hashes, np.arange(count, dtype=np.int32))
    index.save(tmp_path / "index")
    loaded = HashIndex.load(tmp_path / "index")
    asked = hash_rows([pa.array(np.arange(-10, 400))])
    assert np.array_equal(loaded.find(asked).positions, index.find(asked).positions)
    assert len(loaded.find(asked).positions) == count


def test_too_many_pairs_are_refused_before_they_are_made():
    index = HashIndex.of(np.zeros(1000, dtype=np.uint64), np.arange(1000))
    asked = np.zeros(1000, dtype=np.uint64)
    with pytest.raises(TooManyPairsError):
        index.find(asked, most=999_999)
    assert len(index.find(asked, most=1_000_000).rows) == 1_000_000
