"""Lowering: what a condition becomes, what is left to Spark, what is refused."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import ResolveError, ValidationError
from velostream.model.expression import Call, Case, Cast, ColumnRef, Literal
from velostream.model.schema import Schema
from velostream.sql.lower import NotLowerable, lower, type_of
from velostream.sql.parse import parse_expression

SCHEMA = Schema.of(
    ("i", "INT"),
    ("l", "BIGINT"),
    ("d", "DECIMAL(10,2)"),
    ("f", "DOUBLE"),
    ("r", "FLOAT"),
    ("s", "STRING"),
    ("b", "BOOLEAN"),
    ("day", "DATE"),
    ("at", "TIMESTAMP"),
    ("huge", "DECIMAL(38,10)"),
    ("nest", "STRUCT<a: INT>"),
)
INT, LONG, TEXT, BOOL = pa.int32(), pa.int64(), pa.string(), pa.bool_()
TRUE, FALSE, UNKNOWN = Literal(True, BOOL), Literal(False, BOOL), Literal(None, BOOL)


def lowered(text, parameters=None, **options):
    return lower(parse_expression(text), SCHEMA, parameters, text=text, **options)


def column(name):
    return ColumnRef(name)


@pytest.mark.parametrize(
    ("text", "value", "type_"),
    [
        ("1", 1, INT),
        ("-2147483648", -2147483648, INT),
        ("2147483648", 2147483648, LONG),
        ("-9223372036854775808", -(2**63), LONG),
        ("9223372036854775808", Decimal(2**63), pa.decimal128(19, 0)),
        ("123.45", Decimal("123.45"), pa.decimal128(5, 2)),
        ("0.50", Decimal("0.50"), pa.decimal128(2, 2)),
        (".5", Decimal("0.5"), pa.decimal128(1, 1)),
        ("1e3", 1000.0, pa.float64()),
        ("1L", 1, LONG),
        ("1.5D", 1.5, pa.float64()),
        ("1.50BD", Decimal("1.50"), pa.decimal128(3, 2)),
        ("'it''s'", "it's", TEXT),
        ("X'01fF'", b"\x01\xff", pa.binary()),
        ("TRUE", True, BOOL),
        ("NULL", None, pa.null()),
        ("DATE '2024-02-29'", date(2024, 2, 29), pa.date32()),
        (
            "TIMESTAMP '2024-01-01 10:00:00.5'",
            datetime(2024, 1, 1, 10, 0, 0, 500_000, UTC),
            pa.timestamp("us", tz="UTC"),
        ),
        ("TIMESTAMP '2024-01-01 10:00:00+02:00'", datetime(2024, 1, 1, 8, tzinfo=UTC), pa.timestamp("us", tz="UTC")),
    ],
)
def test_literals_are_typed_as_spark_types_them(text, value, type_):
    found = lowered(text)
    assert found == Literal(value, type_)
    assert type(found.value) is type(value)


@pytest.mark.parametrize(
    ("text", "value", "type_"),
    [
        ("1 + 2", 3, INT),
        ("12.3 + 45.67", Decimal("57.97"), pa.decimal128(5, 2)),  # B19
        ("129.95 * 350", Decimal("45482.50"), pa.decimal128(9, 2)),  # B19
        ("100.00 / 3.00", Decimal("33.333333"), pa.decimal128(11, 6)),  # B19
        ("-0.50", Decimal("-0.50"), pa.decimal128(2, 2)),
        ("7 / 2", 3.5, pa.float64()),
        ("-5 % 3", -2, INT),
        ("'1' + 1", 2, LONG),
        ("CAST('12.345' AS DECIMAL(10,2))", Decimal("12.35"), pa.decimal128(10, 2)),
        ("CAST(1.5 AS INT)", 1, INT),
        ("CAST(-2.5 AS DECIMAL(5,0))", Decimal(-3), pa.decimal128(5, 0)),
        ("CAST(1.005D AS DECIMAL(5,2))", Decimal("1.01"), pa.decimal128(5, 2)),
        ("CAST(' 7 ' AS INT)", 7, INT),
        ("CAST('yes' AS BOOLEAN)", True, BOOL),
        ("CAST('2024-5' AS DATE)", date(2024, 5, 1), pa.date32()),
        ("CAST(DATE '2024-01-02' AS STRING)", "2024-01-02", TEXT),
        ("CASE WHEN 1 > 2 THEN 'a' ELSE 'b' END", "b", TEXT),
        ("COALESCE(NULL, 2)", 2, INT),
        ("CONCAT('a', 1, NULL)", None, TEXT),
        ("SUBSTRING('hello', 0, 2)", "he", TEXT),
        ("LENGTH('é😀')", 2, INT),
        ("UPPER('abc')", "ABC", TEXT),
        ("NULLIF(1, 1)", None, INT),
    ],
)
def test_constants_are_computed_exactly(text, value, type_):
    assert lowered(text) == Literal(value, type_)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("1 = 1.0", True),  # B21
        ("1 IN ('1')", True),  # B21
        ("1 IN ('1', 1.0)", True),
        ("'1.5' IN (1, 1.5)", True),
        ("1.5 = 1.50", True),  # B19
        ("DATE '2024-01-01' = '2024-01-01'", True),
        ("DATE '2024-01-01' < TIMESTAMP '2024-01-01 10:00:00'", True),
        ("TRUE = 'yes'", True),
        ("9007199254740993 = 9007199254740992.0D", True),
        ("CAST('NaN' AS DOUBLE) = CAST('NaN' AS DOUBLE)", True),
        ("CAST('NaN' AS DOUBLE) > 1e300", True),
        ("-0.0D = 0.0D", True),
        ("1 > NULL", None),  # B16
        ("1 IN (NULL)", None),
        ("1 NOT IN (2, NULL)", None),
        ("1 NOT IN (1, NULL)", False),
        ("NULL AND FALSE", False),
        ("NULL OR TRUE", True),
        ("NULL <=> NULL", True),
        ("NULL IS DISTINCT FROM 1", True),
        ("2 BETWEEN '1' AND 3.5", True),
    ],
)
def test_constant_conditions_follow_ansi_coercion_and_null_logic(text, answer):
    assert lowered(text) == Literal(answer, BOOL)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i = 1", Call("=", (column("i"), Literal(1, INT)))),
        ("I = 1", Call("=", (column("i"), Literal(1, INT)))),
        ("1 < i", Call(">", (column("i"), Literal(1, INT)))),
        ("i = 1.0", Call("=", (column("i"), Literal(1, INT)))),
        ("i = '1'", Call("=", (column("i"), Literal(1, INT)))),
        ("d > 10", Call(">", (column("d"), Literal(Decimal("10.00"), pa.decimal128(10, 2))))),
        ("f = 1.5", Call("=", (column("f"), Literal(1.5, pa.float64())))),
        ("day >= '2024-01-01'", Call(">=", (column("day"), Literal(date(2024, 1, 1), pa.date32())))),
        ("i IN (3, 1, 3)", Call("in", (column("i"), Literal(3, INT), Literal(1, INT)))),
        ("i IS NOT NULL", Call("not", (Call("is_null", (column("i"),)),))),
        ("i <=> NULL", Call("is_null", (column("i"),))),
        ("b IS TRUE", Call("<=>", (column("b"), TRUE))),
        ("s LIKE 'a%'", Call("like", (column("s"), Literal("a%", TEXT)))),
    ],
)
def test_a_constant_takes_the_columns_type_so_that_an_index_can_answer(text, expected):
    assert lowered(text) == expected


@pytest.mark.parametrize(
    ("text", "cast_to"),
    [
        ("i = 1.5", pa.decimal128(11, 1)),
        ("i = 3000000000", LONG),
        ("d > 10.005", pa.decimal128(11, 3)),
        ("l = 1e0", pa.float64()),
        ("day < TIMESTAMP '2024-01-01 10:00:00'", pa.timestamp("us", tz="UTC")),
    ],
)
def test_otherwise_the_column_is_cast_to_the_common_type(text, cast_to):
    found = lowered(text)
    assert isinstance(found, Call)
    value, constant = found.arguments
    assert isinstance(value, Cast)
    assert value.type == cast_to
    assert isinstance(constant, Literal)
    assert constant.type == cast_to


def test_in_with_null_is_never_false():
    found = lowered("i IN (1, NULL)")
    assert found == Call("or", (Call("=", (column("i"), Literal(1, INT))), UNKNOWN))
    assert lowered("i IN (NULL)") == UNKNOWN


def test_between_is_two_comparisons():
    low, high = Literal(Decimal("1.00"), pa.decimal128(10, 2)), Literal(Decimal("2.00"), pa.decimal128(10, 2))
    assert lowered("d BETWEEN 1 AND 2") == Call(
        "and", (Call(">=", (column("d"), low)), Call("<=", (column("d"), high)))
    )


def test_a_simple_case_becomes_a_searched_one():
    found = lowered("CASE i WHEN 1 THEN 'one' WHEN 2 THEN s END")
    one, two = (Call("=", (column("i"), Literal(number, INT))) for number in (1, 2))
    assert found == Case(((one, Literal("one", TEXT)), (two, column("s"))), Literal(None, TEXT))


def test_case_branches_meet_in_one_type():
    found = lowered("CASE WHEN b THEN i ELSE d END")
    assert type_of(found, SCHEMA) == pa.decimal128(12, 2)


def test_a_thousand_alternatives_make_a_shallow_tree():
    found = lowered(" OR ".join(f"i = {number}" for number in range(1000)))
    depth, node = 0, found
    while isinstance(node, Call) and node.name == "or":
        depth, node = depth + 1, node.arguments[0]
    assert depth <= 10


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("d * 1.1", pa.decimal128(13, 3)),
        ("d * 2", pa.decimal128(12, 2)),
        ("d * i", pa.decimal128(21, 2)),
        ("d + l", pa.decimal128(23, 2)),
        ("i + l", LONG),
        ("i + 1.5D", pa.float64()),
        ("r + r", pa.float32()),
        ("r + i", pa.float64()),
        ("i / 2", pa.float64()),
        ("abs(d)", pa.decimal128(10, 2)),
        ("length(s)", INT),
        ("coalesce(i, l)", LONG),
        ("s || 'x'", TEXT),
        ("i > 1", BOOL),
    ],
)
def test_results_have_sparks_types(text, type_):
    assert type_of(lowered(text), SCHEMA) == type_


@pytest.mark.parametrize(
    "text",
    [
        "huge * huge",
        "huge = CAST(1.1 AS DECIMAL(38,30))",
        "s = 1",
        "s RLIKE 'a.b$'",
        "s LIKE 'a\\\\%'",
        "i % 1.5",
        "d / 3",
        "b > FALSE",
        "i IN (SELECT 1)",
        "nest.a = 1",
        "TRY_CAST(s AS INT) = 1",
        "CAST(s AS INT) = 1",
        "rand() > 0.5",
        "substring(s, -2)",
        "TRUE = 1",
        "i = CAST('1' AS VARIANT)",
    ],
)
def test_what_is_not_surely_sparks_answer_is_left_to_spark(text):
    with pytest.raises(NotLowerable) as left:
        lowered(text)
    assert left.value.reason


@pytest.mark.parametrize(
    "text",
    [
        "b AND i + 1 > 2",
        "b OR -i > 2",
        "CASE WHEN b THEN i * 2 END = 1",
        "coalesce(i, l + 1) = 1",
        "i + 1 BETWEEN 1 AND 5",
        "f > i / l",
        "(i + 1) / f > 1",
        "b AND i = 'abc'",
    ],
)
def test_what_can_fail_is_left_to_spark_where_a_condition_guards_it(text):
    with pytest.raises(NotLowerable):
        lowered(text)


@pytest.mark.parametrize("text", ["i + 1 > 2 AND b", "1 < i + 1", "i / 2 > f", "f / (i + 1) > 1", "i % 2 = 0"])
def test_what_can_fail_is_lowered_where_every_row_needs_it(text):
    assert lowered(text) is not None


@pytest.mark.parametrize(
    "text", ["i = 'abc'", "day = 'yesterday'", "1 / 0 = 1", "2147483647 + 1 > 0", "d > 1" + "0" * 40]
)
def test_constants_that_can_not_be_are_errors_with_a_place(text):
    with pytest.raises(ValidationError) as raised:
        lowered(text)
    assert raised.value.code == "invalid-value"
    assert raised.value.text == text


def test_an_unknown_column_is_an_error_with_near_names_and_place():  # B16
    text = "i = 1 AND\n  hug > 2"
    with pytest.raises(ResolveError) as raised:
        lowered(text)
    error = raised.value
    assert error.message == 'column "hug" does not exist'
    assert (error.line, error.column) == (2, 3)
    assert error.hint == 'did you mean "huge"?'
    assert error.caret() == "  hug > 2\n  ^^^"


def test_an_unknown_column_is_found_inside_what_spark_evaluates():
    with pytest.raises(ResolveError):
        lowered("round(nope, 2) = 1")


def test_qualifiers():
    assert lowered("t.i = 1", qualifiers=["T"]) == lowered("i = 1")
    with pytest.raises(ResolveError, match='table "u" does not exist'):
        lowered("u.i = 1", qualifiers=["t"])


def test_parameters_are_typed_literals():
    found = lowered("i = ? AND d > ? AND s = ?", [1, Decimal("1.50"), "x"])
    assert found == lowered("i = 1 AND d > 1.50 AND s = 'x'")
    assert lowered("at < :now", {"now": datetime(2024, 1, 1)}) == lowered("at < TIMESTAMP '2024-01-01 00:00:00Z'")  # noqa: DTZ001


def test_lowering_leaves_the_tree_as_it_was():
    for text in (
        "CASE i WHEN 1 THEN 'a' END",
        "if(b, i, l) = 1",
        "i IN (?, 2)",
        "s NOT LIKE 'a%' AND nullif(i, 1) = 2",
    ):
        tree = parse_expression(text)
        before = [(id(node), id(node.parent)) for node in tree.walk()]
        lower(tree, SCHEMA, [1] if "?" in text else None)
        assert [(id(node), id(node.parent)) for node in tree.walk()] == before
