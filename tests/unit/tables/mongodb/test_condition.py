"""Which part of a condition becomes a filter document, and what that document says."""

from __future__ import annotations

import math
from decimal import Decimal

import pyarrow as pa
import pytest
from bson.decimal128 import Decimal128
from bson.regex import Regex

from velostream.errors import NotFoundError
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Schema
from velostream.tables.memory.evaluate import CannotCompile
from velostream.tables.mongodb.condition import compile_filter
from velostream.tables.mongodb.layout import Layout

SCHEMA = Schema.of(
    ("id", "BIGINT"),
    ("dotted.name", "STRING"),
    ("price", "DECIMAL(10,2)"),
    ("long", "DECIMAL(38,0)"),
    ("score", "DOUBLE"),
    ("data", "BINARY"),
    ("flag", "BOOLEAN"),
    key=["id"],
)
LAYOUT = Layout("t", SCHEMA, own=True)


def compared(operator, column, value):
    return Call(operator, (ColumnRef(column), Literal(value, SCHEMA.column(column).type)))


def compiled(condition, indexes=()):
    return compile_filter(condition, LAYOUT, list(indexes))


@pytest.mark.parametrize(
    ("condition", "filter_"),
    [
        (compared("=", "id", 3), {"_id": {"$eq": 3}}),
        (compared("<>", "id", 3), {"_id": {"$nin": [3, None]}}),
        (Call("not", (compared("<", "id", 3),)), {"_id": {"$gte": 3}}),
        (compared("<=>", "id", None), {"_id": None}),
        (compared("=", "id", None), {"$nor": [{}]}),
        (compared("=", "dotted.name", "$x"), {"dotted%2Ename": {"$eq": "$x"}}),
        (compared("like", "dotted.name", "a.%"), {"dotted%2Ename": Regex("^a\\.", "s")}),
        (compared("like", "dotted.name", "a"), {"dotted%2Ename": {"$eq": "a"}}),
        (compared(">=", "price", Decimal("1.50")), {"price": {"$gte": Decimal128("1.50")}}),
        (compared("=", "long", Decimal(10**37)), {"long": {"$eq": "1" + "0" * 37}}),
        (compared("<", "score", 0.5), {"score": {"$lt": 0.5}}),
        (Call("is_null", (ColumnRef("score"),)), {"score": None}),
        (Call("not", (ColumnRef("flag"),)), {"flag": False}),
        (
            Call("or", (compared("=", "id", 1), ColumnRef("flag"))),
            {"$or": [{"_id": {"$eq": 1}}, {"flag": True}]},
        ),
    ],
)
def test_what_the_server_answers_as_sql_does_is_pushed_down(condition, filter_):
    found = compiled(condition)
    assert (found.filter, found.remainder) == (filter_, None)


def test_nan_is_above_every_number():
    assert compiled(compared(">", "score", 0.5)).filter["$or"][0] == {"score": {"$gt": 0.5}}
    assert math.isnan(compiled(compared(">", "score", 0.5)).filter["$or"][1]["score"]["$eq"])
    assert compiled(compared(">", "score", math.nan)).filter == {"$nor": [{}]}


@pytest.mark.parametrize(
    "condition",
    [
        compared("<", "data", b"a"),
        compared("<", "long", Decimal(5)),
        compared("like", "dotted.name", "%a"),
        Call("=", (ColumnRef("id"), ColumnRef("id"))),
        Call("=", (Call("lower", (ColumnRef("dotted.name"),)), Literal("a", pa.string()))),
    ],
)
def test_what_the_server_would_answer_otherwise_stays_with_us(condition):
    found = compiled(Call("and", (condition, compared("=", "id", 1))))
    assert (found.filter, found.remainder, found.access) == ({"_id": {"$eq": 1}}, condition, "key")


def test_access_is_said():
    condition = compared("=", "price", Decimal(1))
    assert compiled(condition).access == "scan"
    assert compiled(condition, [("price", "score")]).access == "index"


def test_what_nobody_evaluates_is_refused():
    with pytest.raises(NotFoundError):
        compiled(Call("=", (ColumnRef("nam"), Literal(1, pa.int64()))))
    with pytest.raises(CannotCompile):
        compiled(Call("soundex", (ColumnRef("dotted.name"),)))
