"""Answers from a snapshot: Spark's values and types without Spark."""

import itertools
import math
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.engine.passthrough import answer
from velostream.errors import QueryError
from velostream.model.change import Mode, Write
from velostream.sql.lower import NotLowerable, lower
from velostream.sql.parse import parse_expression
from velostream.sql.plan import AggregateFunction, Item, Order, PassthroughPlan

COUNT, SUM, AVG, MIN, MAX = AggregateFunction


@pytest.fixture
def ask(make_table):
    """Answers items over one column `x` of the given type."""
    numbers = itertools.count()

    def ask(type_, values, *items, where=None, **rest):
        table = make_table(f"t{next(numbers)}", ("x", type_), ("n", "INT"))
        column = table.schema.column("x").type
        rows = pa.table({"x": pa.array(values, column), "n": pa.array(range(len(values)), pa.int32())})
        table.commit(Write(Mode.APPEND, rows))
        condition = None if where is None else lower(parse_expression(where), table.schema)
        return answer(PassthroughPlan(table.name, items, condition, **rest), table.snapshot())

    return ask


def aggregate(function, *, distinct=False):
    return Item("value", "x", function, distinct)


def only(table):
    return table.column(0)[0].as_py()


@pytest.mark.parametrize(
    ("function", "distinct", "expected"),
    [
        (COUNT, False, 5),
        (SUM, False, 90),
        (AVG, False, 18.0),
        (COUNT, True, 3),
        (SUM, True, 60),
        (MIN, False, 10),
        (MAX, True, 30),
    ],
)
def test_aggregates_of_amounts(ask, function, distinct, expected):  # B17
    found = ask("INT", [10, 20, 30, 20, 10], aggregate(function, distinct=distinct))
    assert only(found) == expected


def test_an_aggregate_under_a_condition(ask):  # B17
    assert only(ask("INT", [10, 20, 30, 20, 10], aggregate(SUM), where="x > 15")) == 70


@pytest.mark.parametrize("values", [[], [None, None]])
@pytest.mark.parametrize(
    ("type_", "function", "result"),
    [
        ("INT", SUM, pa.int64()),
        ("INT", AVG, pa.float64()),
        ("TINYINT", MAX, pa.int8()),
        ("DECIMAL(10,2)", SUM, pa.decimal128(20, 2)),
        ("DECIMAL(10,2)", AVG, pa.decimal128(14, 6)),
        ("DECIMAL(35,2)", SUM, pa.decimal128(38, 2)),
        ("DECIMAL(38,36)", AVG, pa.decimal128(38, 38)),
        ("FLOAT", SUM, pa.float64()),
        ("STRING", MIN, pa.string()),
    ],
)
def test_over_no_values_there_is_a_typed_null(ask, values, type_, function, result):  # B17
    found = ask(type_, values, aggregate(function))
    assert found.column(0).type == result
    assert only(found) is None


def test_counts_over_no_rows_are_zero(ask):
    found = ask("INT", [], Item("rows", None, COUNT), Item("values", "x", COUNT))
    assert found.to_pylist() == [{"rows": 0, "values": 0}]


def test_count_of_rows_counts_nulls_too(ask):
    found = ask("INT", [1, None], Item("rows", None, COUNT), Item("values", "x", COUNT))
    assert found.to_pylist() == [{"rows": 2, "values": 1}]


def test_decimal_sums_are_exact(ask):  # B19
    found = ask("DECIMAL(10,2)", [Decimal("123.45"), Decimal("678.90")], aggregate(SUM))
    assert only(found) == Decimal("802.35")


def test_decimal_averages_round_half_up(ask):
    values = [Decimal("0.01"), Decimal("0.00"), Decimal("0.00")]
    assert only(ask("DECIMAL(5,2)", values, aggregate(AVG))) == Decimal("0.003333")
    assert only(ask("DECIMAL(5,2)", [Decimal("-0.01")] * 2 + [Decimal(0)], aggregate(AVG))) == Decimal("-0.006667")


def test_sums_beyond_the_type_are_errors(ask):  # B19
    with pytest.raises(QueryError, match="out of the range of BIGINT"):
        ask("BIGINT", [2**63 - 1, 1], aggregate(SUM))
    nines = Decimal("9" * 38)
    with pytest.raises(QueryError, match=r"DECIMAL\(38,0\)"):
        ask("DECIMAL(38,0)", [nines, nines], aggregate(SUM))
    assert only(ask("BIGINT", [2**63 - 1, 1, -1], aggregate(SUM))) == 2**63 - 1
    assert only(ask("DECIMAL(38,0)", [nines, nines, nines.copy_negate()], aggregate(SUM))) == nines


def test_nan_is_the_largest_number(ask):
    values = [1.0, math.nan, -math.inf, None]
    assert math.isnan(only(ask("DOUBLE", values, aggregate(MAX))))
    assert only(ask("DOUBLE", values, aggregate(MIN))) == -math.inf
    assert math.isnan(only(ask("DOUBLE", [math.nan], aggregate(MIN))))
    assert math.isnan(only(ask("DOUBLE", values, aggregate(SUM))))


def test_nan_and_the_zeros_are_one_value_each_among_distinct_ones(ask):
    assert only(ask("DOUBLE", [0.0, -0.0, math.nan, math.nan, 1.0], aggregate(COUNT, distinct=True))) == 3


@pytest.mark.parametrize(
    ("type_", "values", "smallest", "largest"),
    [
        ("STRING", ["b", "a", "é", "B"], "B", "é"),
        ("BOOLEAN", [True, False, None], False, True),
        ("DATE", [date(2024, 1, 2), date(1969, 1, 1)], date(1969, 1, 1), date(2024, 1, 2)),
        ("BINARY", [b"\x80", b"\x7f"], b"\x7f", b"\x80"),
        ("DECIMAL(5,2)", [Decimal("-0.50"), Decimal("1.50")], Decimal("-0.50"), Decimal("1.50")),
    ],
)
def test_min_and_max_of_everything_that_has_an_order(ask, type_, values, smallest, largest):  # B18
    found = ask(type_, values, Item("a", "x", MIN), Item("b", "x", MAX))
    assert found.to_pylist() == [{"a": smallest, "b": largest}]


def test_what_spark_has_to_sum_is_not_answered(ask):
    with pytest.raises(NotLowerable):
        ask("STRING", ["1"], aggregate(SUM))


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (Order("x"), [None, 1.0, 2.0, math.inf, math.nan]),
        (Order("x", nulls_first=False), [1.0, 2.0, math.inf, math.nan, None]),
        (Order("x", descending=True, nulls_first=False), [math.nan, math.inf, 2.0, 1.0, None]),
        (Order("x", descending=True), [None, math.nan, math.inf, 2.0, 1.0]),
    ],
)
def test_order_of_nulls_and_nan(ask, order, expected):
    found = ask("DOUBLE", [2.0, None, math.nan, 1.0, math.inf], Item("x", "x"), order=(order,)).column(0).to_pylist()
    assert list(map(str, found)) == list(map(str, expected))


def test_equal_rows_keep_their_order(ask):
    found = ask("INT", [1, 0, 1, 0], Item("n", "n"), order=(Order("x", descending=True),))
    assert found.column(0).to_pylist() == [0, 2, 1, 3]


def test_limit_and_offset(ask):
    found = ask("INT", [5, 4, 3, 2, 1], Item("x", "x"), order=(Order("x"),), limit=2, offset=1)
    assert found.column(0).to_pylist() == [2, 3]
    assert ask("INT", [1], Item("x", "x"), offset=5).num_rows == 0
    assert ask("INT", [1], Item("n", None, COUNT), limit=0).num_rows == 0


def test_a_column_may_be_selected_twice_and_renamed(ask):  # B30
    found = ask("INT", [7], Item("x", "x"), Item("x", "x"), Item("y", "n"))
    assert found.column_names == ["x", "x", "y"]
    assert [column.to_pylist() for column in found.columns] == [[7], [7], [0]]


def test_the_condition_filters_and_orders_by_what_is_not_selected(ask):
    found = ask("INT", [3, 1, 2, None], Item("n", "n"), where="x >= 2", order=(Order("x"),))
    assert found.column(0).to_pylist() == [2, 0]


def groups(ask, type_, values, *functions):
    items = [Item("n", "n"), *(Item(str(function), "x", function) for function in functions)]
    return ask(type_, values, *items, groups=("n",), order=(Order("n", descending=True),), limit=2)


def test_groups_have_sparks_types_and_an_order(ask):
    found = groups(ask, "DECIMAL(10,2)", [Decimal("1.50"), None, Decimal("2.25")], COUNT, SUM, AVG, MIN)
    assert found.schema.types == [
        pa.int32(),
        pa.int64(),
        pa.decimal128(20, 2),
        pa.decimal128(14, 6),
        pa.decimal128(10, 2),
    ]
    assert list(map(tuple, map(dict.values, found.to_pylist()))) == [
        (2, 1, Decimal("2.25"), Decimal("2.250000"), Decimal("2.25")),
        (1, 0, None, None, None),
    ]
    assert groups(ask, "BIGINT", [7], SUM, AVG).to_pylist() == [{"n": 0, "sum": 7, "avg": 7.0}]


def test_a_group_may_be_of_nulls_and_there_is_none_without_rows(ask):
    items = (Item("x", "x"), Item("rows", None, COUNT), Item("different", "n", COUNT, distinct=True))
    found = ask("STRING", ["a", None, None, "a", ""], *items, groups=("x",), order=(Order("x"),))
    assert list(map(tuple, map(dict.values, found.to_pylist()))) == [(None, 2, 2), ("", 1, 1), ("a", 2, 2)]
    assert ask("STRING", [], *items, groups=("x",)).num_rows == 0


def test_the_sum_of_a_group_may_overflow(ask):
    items = (Item("s", "x", SUM),)
    with pytest.raises(QueryError, match="out of the range of BIGINT"):
        ask("BIGINT", [2**62, 2**62], *items, where="n >= 0", groups=("x",))
    wide = [Decimal("9" * 38)] * 2
    with pytest.raises(QueryError, match="out of the range"):
        ask("DECIMAL(38,0)", wide, *items, groups=("x",))
