"""ClickHouse as a source: values, ways of reading, and what goes wrong.

The engine is the real one, out of `chdb`; the HTTP layer in front of it stands in for the server's. So this says
nothing about a server's own HTTP: its compression, its timeouts, results that break off in the middle.
"""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import Category, SourceError, StoreError, render_text
from velostream.model.change import CHANGE
from velostream.sources.base import SourceSpec
from velostream.sources.clickhouse import ClickhouseSource
from velostream.sources.clickhouse_types import read_as
from velostream.testing.services.clickhouse import ClickhouseService


@pytest.fixture(scope="module")
def url():
    return ClickhouseService.shared().new_database()


@pytest.fixture
def run(url):
    return ClickhouseService(url=url).execute


def source(url, **options):
    return ClickhouseSource(
        SourceSpec("clickhouse", url, {name.replace("__", "."): value for name, value in options.items()})
    )


def rows_of(source, *, bad=None):
    schema = source.schema()
    found = []
    for part in source.partitions(None, source.latest_offset(None)):
        for batch in source.read(part, schema, (bad if bad is not None else []).append):
            assert batch.schema == schema.arrow
            found += batch.to_pylist()
    source.close()
    return found


def test_every_type_comes_without_loss(url, run):
    run(
        """CREATE TABLE everything (i8 Int8, u8 UInt8, u32 UInt32, u64 UInt64, i128 Int128, b Bool, f32 Float32,
           f64 Nullable(Float64), d Decimal(18, 4), wide Decimal(60, 2), s String, code FixedString(3),
           low LowCardinality(Nullable(String)), day Date, day32 Date32, at DateTime('Asia/Tokyo'),
           at6 DateTime64(6, 'UTC'), at9 DateTime64(9, 'UTC'), u UUID, e Enum8('glad' = 1, 'sad' = 2), ip IPv4,
           j JSON, ids Array(Nullable(UUID)), times Map(String, DateTime('UTC')),
           pair Tuple(String, UInt8), named Tuple(x Int32, `the y` Array(Enum8('a' = 1))),
           lines Nested(sku String, price Decimal(9, 2))) ENGINE = MergeTree ORDER BY i8"""
    )
    run(
        """INSERT INTO everything VALUES (-1, 255, 4294967295, 18446744073709551615, -5, true, 0.5, NULL, 12.3400,
           1.25, 'ü "q" \\\\ 😀', 'ab', NULL, '2024-02-29', '1950-01-01', '2024-01-02 03:04:05',
           '2024-01-02 03:04:05.123456', '2024-01-02 03:04:05.123456789', '00000000-0000-0000-0000-000000000007',
           'sad', '1.2.3.4', '{"a": 1}', ['00000000-0000-0000-0000-000000000007', NULL],
           map('a', '2024-01-02 03:04:05'), ('x', 1), (1, ['a']), ['p', 'q'], [1.50, 2.00])"""
    )
    found = source(url, table="everything")
    fields = {column.name: column.sql_type for column in found.schema().columns}
    assert fields["u64"] == "DECIMAL(20,0)"
    assert fields["named"] == "STRUCT<x: INT, `the y`: ARRAY<STRING>>"
    (row,) = rows_of(found)
    moment = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert row == {
        "i8": -1,
        "u8": 255,
        "u32": 4294967295,
        "u64": Decimal(18446744073709551615),
        "i128": "-5",
        "b": True,
        "f32": 0.5,
        "f64": None,
        "d": Decimal("12.3400"),
        "wide": "1.25",
        "s": 'ü "q" \\ 😀',
        "code": b"ab\0",
        "low": None,
        "day": date(2024, 2, 29),
        "day32": date(1950, 1, 1),
        "at": datetime(2024, 1, 1, 18, 4, 5, tzinfo=UTC),
        "at6": moment.replace(microsecond=123456),
        "at9": moment.replace(microsecond=123456),
        "u": "00000000-0000-0000-0000-000000000007",
        "e": "sad",
        "ip": "1.2.3.4",
        "j": '{"a":1}',
        "ids": ["00000000-0000-0000-0000-000000000007", None],
        "times": [("a", moment)],
        "pair": {"1": "x", "2": 1},
        "named": {"x": 1, "the y": ["a"]},
        "lines.sku": ["p", "q"],
        "lines.price": [Decimal("1.50"), Decimal("2.00")],
    }


@pytest.mark.parametrize(
    ("store_type", "ours", "asked"),
    [
        ("LowCardinality(Nullable(FixedString(2)))", pa.binary(), "Nullable(FixedString(2))"),
        ("SimpleAggregateFunction(sum, UInt64)", pa.decimal128(20, 0), "UInt64"),
        ("Nested(\n    a UUID,\n    b Int8)", pa.list_(pa.struct({"a": pa.string(), "b": pa.int8()})), None),
        ("Map(UUID, Array(Date))", pa.map_(pa.string(), pa.list_(pa.date32())), "Map(String, Array(Date32))"),
        ("Variant(String, UInt8)", pa.string(), "Nullable(String)"),
        ("Decimal(76, 3)", pa.string(), "String"),
    ],
)
def test_types_of_types(store_type, ours, asked):
    found = read_as(store_type)
    assert found.type == ours
    assert asked is None or found.store_type == asked


def test_nulls_are_where_types_hide_them(url, run):
    run(
        "CREATE TABLE hidden (k Int8, a SimpleAggregateFunction(any, Nullable(String)), v Variant(String, UInt8), "
        "s AggregateFunction(sum, UInt8)) ENGINE = Memory"
    )
    run("INSERT INTO hidden SELECT 1, NULL, NULL, sumState(toUInt8(3))")
    shown = source(url, query="SELECT k, a, v, finalizeAggregation(s) AS total FROM hidden")
    assert rows_of(shown) == [{"k": 1, "a": None, "v": None, "total": Decimal(3)}]
    assert rows_of(source(url, table="hidden"))[0]["s"] == (3).to_bytes(8, "little")


def test_bytes_that_are_no_text_are_set_aside(url, run):
    run("CREATE TABLE texts (n Int32, s String) ENGINE = Memory")
    run("INSERT INTO texts SELECT 1, 'fine' UNION ALL SELECT 2, unhex('ff')")
    bad = []
    assert rows_of(source(url, table="texts"), bad=bad) == [{"n": 1, "s": "fine"}]
    assert "UTF8" in bad[0].reason
    as_bytes = source(url, table="texts", record__schema="n INT, s BINARY", order__by="n")
    assert rows_of(as_bytes)[1] == {"n": 2, "s": b"\xff"}


def test_queries_views_and_conditions_are_read_with_bound_values(url, run):
    run("CREATE TABLE sales (id UInt32, sku String, n Int64) ENGINE = MergeTree ORDER BY id")
    run(
        "CREATE MATERIALIZED VIEW sold ENGINE = SummingMergeTree ORDER BY sku "
        "AS SELECT sku, sum(n) AS n FROM sales GROUP BY sku"
    )
    run("INSERT INTO sales VALUES (1, 'a', 2), (2, 'b', 3), (3, 'a', 4)")
    assert rows_of(source(url, table="sold", order__by="sku")) == [{"sku": "a", "n": 6}, {"sku": "b", "n": 3}]
    query = "SELECT id, n FROM sales WHERE sku = ? AND n > ? ORDER BY id DESC"
    asked = source(url, query=query, query__params='["a", 1]', compression="zstd")
    assert rows_of(asked) == [{"id": 3, "n": 4}, {"id": 1, "n": 2}]
    narrow = source(url, table="sales", where="sku = 'a' OR id = 2", order__by="n DESC", limit="2")
    assert [row["id"] for row in rows_of(narrow)] == [3, 2]


def test_parts_have_every_row_once(url, run, monkeypatch):
    monkeypatch.setattr("velostream.sources.clickhouse_driver._ROWS_WORTH_A_PART", 100)
    run("CREATE TABLE large (n UInt64, day Date) ENGINE = MergeTree ORDER BY (toYYYYMM(day), n)")
    run("INSERT INTO large SELECT number, toDate('2024-01-01') + number % 90 FROM numbers(1000)")
    large = source(url, table="large", parallel__readers="3", compression="none")
    assert len(large.partitions(None, True)) == 3
    assert sorted(row["n"] for row in rows_of(large)) == list(range(1000))


@pytest.mark.parametrize(
    ("type_", "first", "second", "overlap"),
    [
        ("DateTime64(6, 'UTC')", "'2024-01-02 03:04:05.000001'", "'2024-01-02 03:04:06.5'", "1ms"),
        ("Decimal(18, 2)", "1.25", "9.50", "1"),
        ("Date", "'2024-02-28'", "'2024-03-01'", "1d"),
        ("String", "'a'", "'b'", "0"),
    ],
)
def test_newer_values_of_a_column_are_asked_for(url, run, type_, first, second, overlap):
    run("DROP TABLE IF EXISTS growing")
    run(f"CREATE TABLE growing (id Int32, v {type_}) ENGINE = MergeTree ORDER BY id")
    run(f"INSERT INTO growing VALUES (1, {first})")
    growing = source(url, table="growing", key="id", incremental__column="v", incremental__overlap=overlap)
    schema, start = growing.schema(), growing.latest_offset(None)
    run(f"INSERT INTO growing VALUES (2, {second})")
    end = growing.latest_offset(start)
    (part,) = growing.partitions(start, end)
    (batch,) = growing.read(part, schema, lambda _: None)
    assert [(row["id"], row[CHANGE]) for row in batch.to_pylist()] == [(2, 1)]
    assert growing.latest_offset(end) == end


def test_trouble_is_of_a_category_and_shows_no_password(url):
    host = url.partition("@")[2]
    wrong = source(f"clickhouse://default:p4ssw0rd@{host}", table="t")
    with pytest.raises(SourceError) as refused:
        wrong.schema()
    assert refused.value.category is Category.AUTHENTICATION
    assert "p4ssw0rd" not in render_text(refused.value) + repr(wrong.driver)
    with pytest.raises(SourceError) as no_database:
        source(url, table="t", database="nowhere").schema()
    assert no_database.value.category is Category.MISSING
    with pytest.raises(SourceError) as no_sql:
        source(url, query="SELEKT 1").schema()
    assert no_sql.value.category is Category.CONFIGURATION


def test_a_server_that_went_away_is_read_when_it_is_back():
    with ClickhouseService() as server:
        server.execute("CREATE TABLE t (id Int32) ENGINE = MergeTree ORDER BY id")
        server.execute("INSERT INTO t VALUES (1)")
        found = source(server.url, table="t", connect__timeout="1s")
        assert found.schema().names == ("id",)
        with server.stopped(), pytest.raises(SourceError) as away:
            rows_of(found)
        assert away.value.category is Category.NETWORK
        assert rows_of(found) == [{"id": 1}]


def test_a_missing_driver_is_named(url, monkeypatch):
    monkeypatch.setitem(sys.modules, "clickhouse_connect.driver.exceptions", None)
    with pytest.raises(StoreError) as missing:
        source(url, table="t").schema()
    assert "velostream[clickhouse]" in missing.value.hint
