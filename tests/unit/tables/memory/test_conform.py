"""Rows are taken as they are or refused; no value changes on the way in."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import NotFoundError, TableError
from velostream.model.schema import Column, Schema
from velostream.model.types import parse_type
from velostream.tables.memory.conform import conform

MOMENT = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
UTC_US = pa.timestamp("us", "UTC")


def one(values: pa.Array, type_: str) -> list[object]:
    schema = Schema((Column("c", parse_type(type_)),))
    return conform(pa.table({"C": values}), table="t", schema=schema).column("c").to_pylist()


@pytest.mark.parametrize(
    ("given", "type_", "expected"),
    [
        (pa.array([1], pa.int8()), "BIGINT", [1]),
        (pa.array([1], pa.int64()), "INT", [1]),
        (pa.array([1, None], pa.uint64()), "DECIMAL(20,0)", [Decimal(1), None]),
        (pa.array([12], pa.int64()), "DECIMAL(4,2)", [Decimal("12.00")]),
        (pa.array([3], pa.int64()), "DOUBLE", [3.0]),
        (pa.array([Decimal("1.500")]), "DECIMAL(3,1)", [Decimal("1.5")]),
        (pa.array([Decimal("2.00")]), "BIGINT", [2]),
        (pa.array([Decimal("0.5")]), "DOUBLE", [0.5]),
        (pa.array([0.5], pa.float32()), "DOUBLE", [0.5]),
        (pa.array(["a", None]).dictionary_encode(), "STRING", ["a", None]),
        (pa.array(["a"], pa.large_string()), "STRING", ["a"]),
        (pa.array([b"a"], pa.large_binary()), "BINARY", [b"a"]),
        (pa.nulls(2), "STRUCT<a: INT>", [None, None]),
        (pa.array([date(2024, 1, 2)]), "TIMESTAMP", [datetime(2024, 1, 2, tzinfo=UTC)]),
        (pa.array([MOMENT], pa.timestamp("ns", "Europe/Berlin")), "TIMESTAMP", [MOMENT]),
        (pa.array([MOMENT.replace(tzinfo=None)], pa.timestamp("ms")), "TIMESTAMP", [MOMENT]),
        (pa.array([MOMENT], UTC_US), "TIMESTAMP_NTZ", [MOMENT.replace(tzinfo=None)]),
        (pa.array([[1], None, []], pa.list_(pa.int8())), "ARRAY<BIGINT>", [[1], None, []]),
        (pa.array([[0], [1], None], pa.large_list(pa.int8())).slice(1), "ARRAY<BIGINT>", [[1], None]),
        (
            pa.array([{"B": 1, "a": "x"}, None]),
            "STRUCT<a: STRING, b: INT, c: INT>",
            [{"a": "x", "b": 1, "c": None}, None],
        ),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), "MAP<STRING, BIGINT>", [[("k", 1)]]),
    ],
)
def test_types_widen_where_no_value_changes(given, type_, expected):
    assert one(given, type_) == expected


@pytest.mark.parametrize(
    ("given", "type_"),
    [
        (pa.array([1.0]), "BIGINT"),
        (pa.array([1.0]), "DECIMAL(10,2)"),
        (pa.array(["1.5"]), "DECIMAL(10,2)"),
        (pa.array(["1"]), "BIGINT"),
        (pa.array([1]), "STRING"),
        (pa.array([True]), "BIGINT"),
        (pa.array([1]), "BOOLEAN"),
        (pa.array([2**40]), "INT"),
        (pa.array([2**53 + 1]), "DOUBLE"),
        (pa.array([100]), "DECIMAL(4,2)"),
        (pa.array([Decimal("1.55")]), "DECIMAL(10,1)"),
        (pa.array([Decimal("2.5")]), "BIGINT"),
        (pa.array([MOMENT], UTC_US), "DATE"),
        (pa.array(["2024-01-01"]), "DATE"),
        (pa.array([1], pa.timestamp("ns")), "TIMESTAMP"),
        (pa.array([{"a": 1, "z": 2}]), "STRUCT<a: BIGINT>"),
        (pa.array([[1.5]]), "ARRAY<INT>"),
    ],
)
def test_what_would_change_is_refused(given, type_):
    with pytest.raises(TableError, match='column "c" of table "t" is') as caught:
        one(given, type_)
    assert caught.value.code == "wrong-type"


def test_not_null_is_held():  # B13
    schema = Schema((Column("a", pa.int64()), Column("b", pa.string(), nullable=False)))
    for rows in (pa.table({"a": [1]}), pa.table({"a": [1], "b": pa.array([None], pa.string())})):
        with pytest.raises(TableError, match='column "b" of table "t" is NOT NULL') as caught:
            conform(rows, table="t", schema=schema)
        assert caught.value.code == "not-null"


def test_names_are_checked():
    schema = Schema.of(("customer", "INT"))
    with pytest.raises(NotFoundError, match='column "custmer" does not exist'):
        conform(pa.table({"custmer": [1]}), table="t", schema=schema)
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["customer", "CUSTOMER"])
    with pytest.raises(TableError, match="is given twice"):
        conform(twice, table="t", schema=schema)
