from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from velostream.errors import TableError
from velostream.model.rows import json_text, records_to_arrow, rows_to_arrow
from velostream.model.schema import Schema


def types(table):
    return {column.name: column.sql_type for column in Schema.from_arrow(table.schema).columns}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([Decimal("1.5"), Decimal("10.25")], "DECIMAL(18,2)"),
        ([Decimal("0.12345")], "DECIMAL(18,5)"),
        ([Decimal(5), 7], "DECIMAL(18,2)"),
        ([Decimal("12345678901234567.25")], "DECIMAL(38,2)"),
        ([Decimal("1E+3")], "DECIMAL(18,2)"),
        ([1, 2**62], "BIGINT"),
        ([2**63], "DECIMAL(38,0)"),
        ([10**40], "STRING"),
        ([1.5, 2], "DOUBLE"),
        ([Decimal("1.5"), 2.5], "DOUBLE"),
        ([True, None], "BOOLEAN"),
        ([True, 1], "STRING"),
        (["2024-01-01"], "STRING"),
        ([date(2024, 1, 1)], "DATE"),
        ([datetime(2024, 1, 1, tzinfo=UTC), date(2024, 1, 2)], "TIMESTAMP"),
        ([b"x"], "BINARY"),
        ([timedelta(seconds=1)], "INTERVAL DAY TO SECOND"),
        ([{"a": 1, "b": [Decimal("1.5")]}, {"c": "x"}], "STRUCT<a: BIGINT, b: ARRAY<DECIMAL(18,2)>, c: STRING>"),
        ([[], None], "ARRAY<STRING>"),
        ([None], "STRING"),
        ([{}], "STRING"),
        ([1, "x"], "STRING"),
        ([UUID(int=1)], "STRING"),
        ([np.int64(3)], "BIGINT"),
        ([np.float64(3)], "DOUBLE"),
        ([pd.NaT, pd.Timestamp("2024-01-01")], "TIMESTAMP"),
        ([pd.NA, 1], "BIGINT"),
    ],
)
def test_types_are_the_narrowest_that_hold_the_values(values, expected):
    assert types(rows_to_arrow([{"x": value} for value in values])) == {"x": expected}


def test_decimals_stay_exact():
    table = rows_to_arrow([{"x": Decimal("123.45")}, {"x": Decimal("-0.5")}, {"x": 3}])
    assert table["x"].to_pylist() == [Decimal("123.45"), Decimal("-0.50"), Decimal("3.00")]


def test_zeros_that_do_not_fit_are_dropped_without_rounding():
    number = "1234567890123456789012345678.0123456789"
    # A text among them, so that the values are fitted one by one.
    rows = rows_to_arrow([{"n": Decimal(number + "0")}, {"n": number}], Schema.of(("n", "DECIMAL(38,10)")))
    assert rows["n"].to_pylist() == [Decimal(number)] * 2


def test_columns_come_in_order_of_first_appearance():
    table = rows_to_arrow([{"b": 1}, {"a": 2, "b": 3}])
    assert table.to_pylist() == [{"b": 1, "a": None}, {"b": 3, "a": 2}]


def test_a_naive_datetime_is_utc():
    table = rows_to_arrow([{"t": datetime(2024, 1, 1, 12)}])  # noqa: DTZ001 - what the test is about
    assert table["t"].to_pylist() == [datetime(2024, 1, 1, 12, tzinfo=UTC)]


def test_mixed_values_become_text():
    table = rows_to_arrow([{"x": 1}, {"x": "a"}, {"x": {"k": Decimal("1.50")}}, {"x": True}, {"x": None}])
    assert table["x"].to_pylist() == ["1", "a", '{"k":1.50}', "true", None]


def test_a_schema_rules_over_the_values():
    schema = Schema.of(("id", "BIGINT"), ("price", "DECIMAL(10,2)"), ("at", "TIMESTAMP"), ("name", "STRING"))
    table = rows_to_arrow([{"ID": "7", "price": 1.1, "at": "2024-01-01T00:00:00+01:00", "name": 5, "more": 1}], schema)
    assert table.schema == schema.arrow
    assert table.to_pylist() == [
        {"id": 7, "price": Decimal("1.10"), "at": datetime(2023, 12, 31, 23, tzinfo=UTC), "name": "5"}
    ]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("BIGINT", "x"),
        ("BIGINT", 1.5),
        ("BIGINT", 2**70),
        ("BIGINT", True),
        ("INT", 2**40),
        ("DECIMAL(10,2)", Decimal("1.005")),
        ("DECIMAL(4,2)", Decimal("123.45")),
        ("DECIMAL(10,2)", float("nan")),
        ("DATE", "yesterday"),
        ("DATE", datetime(2024, 1, 1, 5, tzinfo=UTC)),
        ("TIMESTAMP", 5),
        ("BOOLEAN", "maybe"),
        ("STRUCT<a: BIGINT>", 5),
        ("ARRAY<BIGINT>", "x"),
        ("ARRAY<BIGINT>", ["x"]),
        ("DOUBLE", "many"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_row(type_, value):
    with pytest.raises(TableError, match="row 2 does not fit") as caught:
        rows_to_arrow([{"x": None}, {"x": value}], Schema.of(("x", type_)))
    assert caught.value.code == "wrong-type"


def test_records_that_do_not_fit_are_set_aside_and_the_others_kept():
    rejected = []
    table = records_to_arrow(
        [{"x": 1}, {"x": "no"}, {"x": 3}], Schema.of(("x", "BIGINT")), lambda *why: rejected.append(why[0])
    )
    assert (table["x"].to_pylist(), rejected) == ([1, 3], [1])


def test_frames_and_arrow_data_are_taken_as_they_are():
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None]})
    expected = [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert rows_to_arrow(frame).to_pylist() == expected
    assert rows_to_arrow(pa.Table.from_pandas(frame)).to_pylist() == expected
    assert rows_to_arrow(pa.RecordBatch.from_pandas(frame)).to_pylist() == expected
    large = pa.table({"s": pa.array(["a"], pa.large_string()), "d": pa.array(["x"]).dictionary_encode()})
    assert rows_to_arrow(large).schema == pa.schema([("s", pa.string()), ("d", pa.string())])


def test_a_row_that_is_no_mapping_is_refused():
    with pytest.raises(TableError, match="mapping"):
        rows_to_arrow([1, 2])


def test_maps_are_taken_from_dicts():
    table = rows_to_arrow([{"m": {"a": "1"}}], Schema.of(("m", "MAP<STRING, BIGINT>")))
    assert table["m"].to_pylist() == [[("a", 1)]]


def test_json_keeps_every_digit():
    assert json_text({"d": Decimal("1.50"), "n": 2**70, "t": True}) == b'{"d":1.50,"n":1180591620717411303424,"t":true}'


def test_what_has_no_value_is_no_further_column():
    known = Schema.of(("id", "BIGINT"))
    rows = [{"id": 1, "x": None, "y": [], "Z": None}, {"id": 2, "z": True}]
    assert types(rows_to_arrow(rows, known, further=True)) == {"id": "BIGINT", "Z": "BOOLEAN"}
    table = pa.table(
        {"id": [1], "x": pa.nulls(1), "y": pa.array([[]], pa.list_(pa.null())), "z": pa.nulls(1, pa.bool_())}
    )
    assert types(rows_to_arrow(table, known, further=True)) == {"id": "BIGINT", "z": "BOOLEAN"}
    mixed = rows_to_arrow([{"id": 1, "x": []}, {"id": 2, "x": 3}], known, further=True)
    assert mixed["x"].to_pylist() == ["[]", "3"]
    assert rows_to_arrow(rows, known, further=True)["Z"].to_pylist() == [None, True]
