"""Parameters: bound in the order they are written, typed by their Python type, counted."""

import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from velostream.errors import ValidationError
from velostream.model.expression import Literal
from velostream.model.schema import Schema
from velostream.sql.lower import lower
from velostream.sql.parameters import bind, bind_all
from velostream.sql.parse import parse_expression

NOTHING = Schema(())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, Literal(True, pa.bool_())),
        (1, Literal(1, pa.int32())),
        (-(2**31), Literal(-(2**31), pa.int32())),
        (2**40, Literal(2**40, pa.int64())),
        (-(2**63), Literal(-(2**63), pa.int64())),
        (10**20, Literal(Decimal(10**20), pa.decimal128(21, 0))),
        (1.5, Literal(1.5, pa.float64())),
        (-1e-300, Literal(-1e-300, pa.float64())),
        (float("inf"), Literal(float("inf"), pa.float64())),
        (Decimal("1.50"), Literal(Decimal("1.50"), pa.decimal128(3, 2))),
        (Decimal("-0.001"), Literal(Decimal("-0.001"), pa.decimal128(3, 3))),
        (Decimal("1E+3"), Literal(Decimal(1000), pa.decimal128(4, 0))),
        ("it's \\ \n", Literal("it's \\ \n", pa.string())),
        (b"\x00\xff", Literal(b"\x00\xff", pa.binary())),
        (date(2024, 2, 29), Literal(date(2024, 2, 29), pa.date32())),
        (
            datetime(2024, 1, 1, 1, 2, 3, 4),  # noqa: DTZ001 - a naive one is UTC
            Literal(datetime(2024, 1, 1, 1, 2, 3, 4, UTC), pa.timestamp("us", tz="UTC")),
        ),
        (
            datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
            Literal(datetime(2024, 1, 1, tzinfo=UTC), pa.timestamp("us", tz="UTC")),
        ),
        (uuid.UUID(int=1), Literal(str(uuid.UUID(int=1)), pa.string())),
        (np.int64(5), Literal(5, pa.int32())),
        (np.float64(0.1), Literal(0.1, pa.float64())),
        (None, Literal(None, pa.null())),
    ],
)
def test_a_python_value_is_a_literal_of_its_type(value, expected):
    found = lower(parse_expression("?"), NOTHING, [value])
    assert found == expected
    assert type(found.value) is type(expected.value)


@pytest.mark.parametrize("value", ["it's", "back\\slash", "two\nlines", "; DROP TABLE t --", "%_'"])
def test_text_survives_being_written_as_spark_sql(value):
    rendered = bind(parse_expression("?"), [value]).sql(dialect="spark")
    assert sqlglot.parse_one(rendered, read="spark").this == value


def test_positions_are_those_of_the_text_not_of_the_tree():
    tree = sqlglot.parse_one("WITH q AS (SELECT ? AS a) SELECT ? FROM q WHERE a IN (?, ?) LIMIT ?", read="spark")
    bound = bind(tree, [1, 2, 3, 4, 5])
    assert bound.sql() == "WITH q AS (SELECT 1 AS a) SELECT 2 FROM q WHERE a IN (3, 4) LIMIT 5"
    assert tree.find(exp.Placeholder) is not None


def test_the_trees_of_one_statement_share_the_parameters():
    first, second = bind_all([parse_expression("?"), parse_expression("? = ?")], ["a", 1, 2])
    assert (first.sql(), second.sql()) == ("'a'", "1 = 2")


def test_names_may_be_used_twice():
    assert bind(parse_expression(":a + :b + :a"), {"a": 1, "b": 2}).sql() == "1 + 2 + 1"


@pytest.mark.parametrize(
    ("text", "parameters", "code"),
    [
        ("? + ?", [1], "missing-parameter"),
        ("? + 1", None, "missing-parameter"),
        ("1 + 1", [1], "extra-parameter"),
        ("? + 1", [1, 2], "extra-parameter"),
        (":a + 1", {"b": 1}, "missing-parameter"),
        (":a + 1", [1], "missing-parameter"),
        (":a + 1", None, "missing-parameter"),
        (":a + 1", {"a": 1, "b": 2}, "extra-parameter"),
        ("? + 1", {"a": 1}, "missing-parameter"),
        ("? + :a", [1], "mixed-parameters"),
        ("?", [object()], "parameter-type"),
        ("?", [Decimal("NaN")], "parameter-type"),
        ("? = 1", 5, "parameter-type"),
        ("? = 1", "a", "parameter-type"),
    ],
)
def test_wrong_parameters_are_clear_errors(text, parameters, code):
    with pytest.raises(ValidationError) as raised:
        bind(parse_expression(text), parameters, text=text)
    assert raised.value.code == code


def test_a_wrong_name_hints_at_the_near_one():
    with pytest.raises(ValidationError) as raised:
        bind(parse_expression(":amount > 1"), {"amuont": 1})
    assert raised.value.hint == 'did you mean "amuont"?'
