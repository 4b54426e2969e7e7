from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.model.conform import TimeRules, conform, parse_timestamps
from velostream.model.schema import Column, Schema


def conformed(rows, schema, **options):
    rejected = {}
    table = conform(rows, schema, rejected.__setitem__, **options)
    assert table.schema == schema.arrow
    return table.to_pylist(), rejected


def test_columns_are_found_by_name_and_the_rest_is_null():
    schema = Schema.of(("a", "BIGINT"), ("B", "STRING"), ("c", "DOUBLE"))
    rows = pa.table({"b": ["x"], "a": [1], "z": [9]})
    assert conformed(rows, schema) == ([{"a": 1, "B": "x", "c": None}], {})


@pytest.mark.parametrize(
    ("values", "type_", "kept", "rejected"),
    [
        (pa.array(["1", " 2 ", "x", None]), "BIGINT", [1, 2, None], [2]),
        (pa.array(["1.5", "1.555"]), "DECIMAL(10,2)", [Decimal("1.50")], [1]),
        (pa.array([1, None, 100_000_000, -7]), "DECIMAL(10,2)", [Decimal("1.00"), None, Decimal("-7.00")], [2]),
        (pa.array([2**63 - 1]), "DECIMAL(38,10)", [Decimal("9223372036854775807.0000000000")], []),
        (pa.array([[1], [None]]), "ARRAY<DECIMAL(3,2)>", [[Decimal("1.00")], [None]], []),
        (
            pa.array([{"a": 1, "b": None}, None, {"a": 2, "b": 3}, {"a": None, "b": None}]),
            "MAP<STRING, DECIMAL(5,1)>",
            [[("a", Decimal("1.0"))], None, [("a", Decimal("2.0")), ("b", Decimal("3.0"))], []],
            [],
        ),
        (pa.array([{"a": 1}, {"a": 10**9}]), "MAP<STRING, INT>", [[("a", 1)], [("a", 10**9)]], []),
        (pa.array([{"a": 1}, {"a": 10**10}]), "MAP<STRING, INT>", [[("a", 1)]], [1]),
        (pa.array([{}, None], pa.struct([])), "MAP<STRING, INT>", [[], None], []),
        (
            pa.array([[("1", 2)], None, [("3", None)]], pa.map_(pa.string(), pa.int64()))[1:],
            "MAP<BIGINT, DECIMAL(5,1)>",
            [None, [(3, None)]],
            [],
        ),
        (pa.array([0.1, 1.005]), "DECIMAL(10,2)", [Decimal("0.10")], [1]),
        (pa.array([1, 2**40]), "INT", [1], [1]),
        (pa.array([Decimal("1.50"), Decimal("1.25")]), "DECIMAL(10,1)", [Decimal("1.5")], [1]),
        (pa.array([1, 2]), "STRING", ["1", "2"], []),
        (pa.array(["true", "no way"]), "BOOLEAN", [True], [1]),
        (pa.array(["2024-01-02", "soon"]), "DATE", [date(2024, 1, 2)], [1]),
        (pa.array([{"a": "1"}, {"a": "x"}]), "STRUCT<a: BIGINT, b: STRING>", [{"a": 1, "b": None}], [1]),
        (pa.array([["1"], None, ["2", "3"]]), "ARRAY<BIGINT>", [[1], None, [2, 3]], []),
        (pa.array([1]), "TIMESTAMP", [], [0]),
        (pa.array([None]), "BIGINT", [None], []),
        (pa.array([{"a": 1}]), "STRING", [], [0]),
        (pa.array([], pa.string()), "ARRAY<BIGINT>", [], []),
        (pa.array(["x", None]), "ARRAY<BIGINT>", [None], [0]),
    ],
)
def test_casts_are_exact_or_set_the_row_aside(values, type_, kept, rejected):
    rows, unfit = conformed(pa.table({"x": values}), Schema.of(("x", type_)))
    assert ([row["x"] for row in rows], list(unfit)) == (kept, rejected)


def test_sliced_nested_values_keep_their_places():
    values = pa.array([["0"], ["1", "2"], None, ["3"]]).slice(1)
    rows, _ = conformed(pa.table({"x": values}), Schema.of(("x", "ARRAY<BIGINT>")))
    assert [row["x"] for row in rows] == [[1, 2], None, [3]]
    structs = pa.array([{"a": "0"}, None, {"a": "2"}]).slice(1)
    rows, _ = conformed(pa.table({"x": structs}), Schema.of(("x", "STRUCT<a: BIGINT>")))
    assert [row["x"] for row in rows] == [None, {"a": 2}]


def test_null_in_a_not_null_column_sets_the_row_aside_once():  # B13
    schema = Schema((Column("a", pa.int64(), nullable=False), Column("b", pa.int64(), nullable=False)))
    rows, rejected = conformed(pa.table({"a": [1, None], "b": [1, None]}), schema)
    assert (rows, rejected) == ([{"a": 1, "b": 1}], {1: 'column "a" is NOT NULL'})


def test_a_tombstone_may_lack_what_others_must_have():
    schema = Schema((Column("a", pa.int64(), nullable=False),))
    exempt = pa.chunked_array([[True, False]])
    rows, rejected = conformed(pa.table({"a": pa.nulls(2, pa.int64())}), schema, exempt=exempt)
    assert (len(rows), list(rejected)) == (1, [1])


def test_timestamps_with_and_without_zones_in_one_column():
    texts = pa.array(
        ["2024-01-01 10:00:00", "2024-01-01T10:00:00+02:00", "2024-01-01T10:00:00.123456789Z", "2024-01-01", None]
    )
    hours = [moment and moment.hour for moment in parse_timestamps(texts).to_pylist()]
    assert hours == [10, 8, 10, 0, None]
    assert parse_timestamps(texts).to_pylist()[2] == datetime(2024, 1, 1, 10, 0, 0, 123456, tzinfo=UTC)
    in_berlin = parse_timestamps(texts, times=TimeRules("Europe/Berlin")).to_pylist()
    assert [moment and moment.hour for moment in in_berlin] == [9, 8, 10, 23, None]


def test_timestamps_of_a_pattern():
    parsed = parse_timestamps(pa.array(["31.12.2024 23:59"]), times=TimeRules(pattern="%d.%m.%Y %H:%M"))
    assert parsed.to_pylist() == [datetime(2024, 12, 31, 23, 59, tzinfo=UTC)]


def test_nanoseconds_are_cut_to_microseconds():
    rows, _ = conformed(pa.table({"t": pa.array([1_001], pa.timestamp("ns"))}), Schema.of(("t", "TIMESTAMP")))
    assert rows == [{"t": datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)}]
