import json
import pickle
import time
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.errors import OptionError, SourceError
from velostream.sources.base import SourceSpec
from velostream.sources.generator import GeneratorSource

FIELDS = (
    "id:sequence,u:choice(a|b|c),n:int(-5,5),p:decimal(10,500,2),d:double(0,1),l:label(user_,10),b:boolean(20),"
    "ts:timestamp,every:timestamp(1m),day:date(3)"
)


def source_of(uri="generator://x", kind="generator", **options):
    return GeneratorSource(SourceSpec(kind, uri, {name.replace("_", "."): value for name, value in options.items()}))


def rows_of(source, first, last, started=1_700_000_000_000_000):
    start, end = ({"rows": edge, "started": started} for edge in (first, last))
    reader = pickle.loads(pickle.dumps(source))
    return [
        row
        for partition in source.partitions(start, end)
        for batch in reader.read(partition, source.schema(), print)
        for row in batch.to_pylist()
    ]


def test_every_kind_of_field():
    source = source_of(fields=FIELDS, rows="2000")
    assert {column.name: column.sql_type for column in source.schema().columns} == {
        "id": "BIGINT",
        "u": "STRING",
        "n": "BIGINT",
        "p": "DECIMAL(18,2)",
        "d": "DOUBLE",
        "l": "STRING",
        "b": "BOOLEAN",
        "ts": "TIMESTAMP",
        "every": "TIMESTAMP",
        "day": "DATE",
    }
    rows = rows_of(source, 0, 2000)
    assert [row["id"] for row in rows] == list(range(1, 2001))
    assert {row["u"] for row in rows} == {"a", "b", "c"}
    assert {row["n"] for row in rows} == set(range(-5, 6))
    assert all(Decimal(10) <= row["p"] <= Decimal(500) and row["p"].as_tuple().exponent == -2 for row in rows)
    assert all(0 <= row["d"] < 1 for row in rows)
    assert {row["l"] for row in rows} == {f"user_{n}" for n in range(10)}
    assert 300 < sum(row["b"] for row in rows) < 500
    assert rows[1]["every"] - rows[0]["every"] == timedelta(minutes=1)
    assert len({row["day"] for row in rows}) == 3


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 300_000), st.integers(0, 300), st.integers(0, 300))
def test_a_row_depends_on_seed_and_number_alone(first, left, right):
    source = source_of(fields=FIELDS, rows="1000000", seed="7")
    whole = rows_of(source, first, first + left + right)
    assert whole == rows_of(source, first, first + left) + rows_of(source, first + left, first + left + right)


def test_another_seed_gives_other_rows():
    def prices(seed):
        return [row["n"] for row in rows_of(source_of(fields="n:int(0,1000000)", seed=seed, rows="9"), 0, 9)]

    assert prices("1") == prices("1") != prices("2")


def test_negative_decimals_are_exact():
    rows = rows_of(source_of(fields="p:decimal(-1.50,-1.50,2)", rows="1"), 0, 1)
    assert rows == [{"p": Decimal("-1.50")}]


def test_rate_gives_numbered_moments():
    source = source_of("rate://?rows.per.second=4&rows=10", "rate")
    rows = rows_of(source, 0, 3, started=0)
    assert [row["value"] for row in rows] == [0, 1, 2]
    assert rows[1]["timestamp"] - rows[0]["timestamp"] == timedelta(milliseconds=250)


def test_rows_come_as_time_goes_by():
    source = source_of(rows_per_second="1000", rows="5000")
    assert source.capabilities.is_stream
    now = time.time_ns() // 1_000
    start = {"rows": 0, "started": now - 2_000_000}
    end = json.loads(json.dumps(source.latest_offset(start)))
    assert 2_000 <= end["rows"] < 5_000
    assert source.latest_offset(start, max_rows=10)["rows"] == 10
    assert source.latest_offset({"rows": 0, "started": now - 60_000_000})["rows"] == 5_000
    future = {"rows": 7, "started": now + 60_000_000}
    assert source.latest_offset(future) == future
    assert source.reached(end, start)
    assert not source.reached(start, end)


def test_without_a_rate_all_rows_are_there_at_once():
    source = source_of(rows="1_000_000")
    start = source.initial_offset()
    end = source.latest_offset(start)
    assert end["rows"] == 1_000_000
    assert source.latest_offset(end) == end
    assert len(source.partitions(start, end)) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"fields": "x"},
        {"fields": "x:what"},
        {"fields": "x:int(5)"},
        {"fields": "x:int(5,1)"},
        {"fields": "x:int(a,b)"},
        {"fields": "x:decimal(a,b,c)"},
        {"fields": "x:choice()"},
        {"fields": "x:label(u,0)"},
        {"fields": "x:timestamp(soon)"},
        {"fields": "x:int(1,2),X:int(1,2)"},
        {"fields": " , "},
        {"rows.per.second": "0"},
        {"rows.per.second": "nan"},
        {"rows": "many"},
    ],
)
def test_nonsense_is_refused_at_once(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        GeneratorSource(SourceSpec("generator", "generator://x", options))


def test_a_foreign_offset_is_refused():
    with pytest.raises(SourceError, match="not an offset"):
        source_of(rows="1").latest_offset({"files": []})
