"""Expressions give Spark's answers in ANSI mode, or say that only Spark can."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext

import pyarrow as pa
import pytest

from velostream.errors import NotFoundError, TableError
from velostream.model.expression import Call, Case, Cast, ColumnRef, Expression, Literal
from velostream.tables.memory import CannotCompile, evaluate_expression

INT, BIGINT, DOUBLE, STRING, BOOLEAN = pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.bool_()
MOMENT = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
ROWS = pa.table(
    {
        "i": pa.array([1, -7, None, 7], INT),
        "l": pa.array([10, 20, None, 2**53 + 1], BIGINT),
        "d": pa.array([Decimal("1.50"), Decimal("-2.25"), None, Decimal("0.30")], pa.decimal128(10, 2)),
        "f": pa.array([1.0, math.nan, None, -0.0]),
        "s": pa.array(["abc", "ÄÖß ", None, "a%c\nx"]),
        "t": pa.array([MOMENT, MOMENT, None, MOMENT], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2024, 2, 29), None, None, date(1969, 1, 1)]),
        "b": pa.array([True, False, None, True]),
        "x": pa.array([b"\xff", b"a", None, b""]),
        "n": pa.array([[1], None, [], [2]], pa.list_(INT)),
    }
)
TYPES = dict(zip(ROWS.column_names, ROWS.schema.types, strict=True))


def column(name: str) -> ColumnRef:
    return ColumnRef(name)


def call(name: str, *arguments: object) -> Call:
    """Strings that name a column are that column; other constants take the type of the first column."""
    refs = [argument for argument in arguments if isinstance(argument, str) and argument in TYPES]
    type_ = TYPES[refs[0]] if refs else INT
    return Call(name, tuple(_argument(argument, type_) for argument in arguments))


def _argument(argument: object, type_: pa.DataType) -> Expression:
    if isinstance(argument, Call | Cast | Case | Literal | ColumnRef):
        return argument
    if isinstance(argument, str) and argument in TYPES:
        return ColumnRef(argument)
    return Literal(argument, type_)


def values(expression: Expression) -> list[object]:
    return evaluate_expression(expression, ROWS).to_pylist()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (call("=", "i", 7), [False, False, None, True]),
        (call("<>", "i", 7), [True, True, None, False]),
        (call("<", "s", "c"), [True, False, None, True]),
        (call(">=", "x", b"a"), [True, True, None, False]),
        (call("<=>", "i", 7), [False, False, False, True]),
        (call("<=>", "i", None), [False, False, True, False]),
        (call("=", "i", None), [None, None, None, None]),
        (call("=", "d", Decimal("1.50")), [True, False, None, False]),
        (call("=", "f", math.nan), [False, True, None, False]),
        (call("=", "f", 0.0), [False, False, None, True]),
        (call(">", "f", 1e308), [False, True, None, False]),
        (call("<", "f", math.nan), [True, False, None, True]),
        (call("<=", "f", math.nan), [True, True, None, True]),
        (call(">=", "f", math.inf), [False, True, None, False]),
        (call("<>", "f", math.nan), [True, False, None, True]),
        (call("<=>", "f", math.nan), [False, True, False, False]),
        (call("in", "i", 1, 7), [True, False, None, True]),
        (call("in", "i", 1, None), [True, None, None, None]),
        (call("in", "f", math.nan, 1.0), [True, True, None, False]),
        (call("is_null", "i"), [False, False, True, False]),
        (call("is_null", "f"), [False, False, True, False]),
        (call("is_null", "n"), [False, True, False, False]),
    ],
)
def test_comparisons(expression, expected):  # B15, B16
    assert values(expression) == expected


TRUE, FALSE, UNKNOWN = (Literal(value, BOOLEAN) for value in (True, False, None))


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        (TRUE, TRUE, True, True),
        (TRUE, FALSE, False, True),
        (TRUE, UNKNOWN, None, True),
        (FALSE, UNKNOWN, False, None),
        (UNKNOWN, UNKNOWN, None, None),
        (FALSE, FALSE, False, False),
    ],
)
def test_three_valued_logic(left, right, both, either):
    for one, other in ((left, right), (right, left)):
        assert values(Call("and", (one, other)))[0] is both
        assert values(Call("or", (one, other)))[0] is either
    assert values(call("not", "b")) == [False, True, None, False]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (call("+", "i", 1), [2, -6, None, 8]),
        (call("-", "i", 1), [0, -8, None, 6]),
        (call("*", "i", -2), [-2, 14, None, -14]),
        (call("%", "i", 3), [1, -1, None, 1]),
        (call("%", "i", -1), [0, 0, None, 0]),
        (call("neg", "d"), [Decimal("-1.50"), Decimal("2.25"), None, Decimal("-0.30")]),
        (call("abs", "i"), [1, 7, None, 7]),
        (call("+", "d", "d"), [Decimal("3.00"), Decimal("-4.50"), None, Decimal("0.60")]),
        (
            Call("*", (column("d"), Literal(Decimal("0.125"), pa.decimal128(3, 3)))),
            [Decimal("0.18750"), Decimal("-0.28125"), None, Decimal("0.03750")],
        ),
        (Call("/", (Cast(column("i"), DOUBLE), Literal(2.0, DOUBLE))), [0.5, -3.5, None, 3.5]),
    ],
)
def test_arithmetic(expression, expected):  # B19
    assert values(expression) == expected


def test_decimals_get_the_type_spark_gives_them():
    product = Call("*", (column("d"), Literal(Decimal("0.125"), pa.decimal128(3, 3))))
    assert evaluate_expression(product, ROWS).type == pa.decimal128(14, 5)
    assert evaluate_expression(call("+", "d", "d"), ROWS).type == pa.decimal128(11, 2)


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        (call("+", "i", 2**31 - 1), "arithmetic-overflow"),
        (call("*", "l", 2**62), "arithmetic-overflow"),
        (Call("neg", (Literal(-(2**31), INT),)), "arithmetic-overflow"),
        (Call("abs", (Literal(-(2**63), BIGINT),)), "arithmetic-overflow"),
        (Cast(column("l"), INT), "arithmetic-overflow"),
        (call("%", "i", 0), "divide-by-zero"),
        (call("/", "f", 0.0), "divide-by-zero"),
        (call("/", "f", "f"), "divide-by-zero"),
    ],
)
def test_what_ansi_mode_refuses(expression, code):
    with pytest.raises(TableError) as caught:
        values(expression)
    assert caught.value.code == code


def test_a_null_divided_by_zero_is_null():
    assert values(Call("%", (Literal(None, INT), Literal(0, INT)))) == [None] * 4


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (call("lower", "s"), ["abc", "äöß ", None, "a%c\nx"]),
        (call("upper", "s"), ["ABC", "ÄÖSS ", None, "A%C\nX"]),
        (call("length", "s"), [3, 4, None, 5]),
        (call("length", "x"), [1, 1, None, 0]),
        (call("trim", "s"), ["abc", "ÄÖß", None, "a%c\nx"]),
        (call("concat", "s", "-", "s"), ["abc-abc", "ÄÖß -ÄÖß ", None, "a%c\nx-a%c\nx"]),
        (Call("substring", (column("s"), Literal(2, INT), Literal(2, INT))), ["bc", "Öß", None, "%c"]),
        (Call("substring", (column("s"), Literal(3, INT))), ["c", "ß ", None, "c\nx"]),
        (call("like", "s", "a%"), [True, False, None, True]),
        (call("like", "s", "a_c"), [True, False, None, False]),
        (call("like", "s", "a%c_x"), [False, False, None, True]),
        (call("like", "s", "ÄÖ__"), [False, True, None, False]),
        (call("like", "s", "c"), [False, False, None, False]),
        (call("like", "s", "a!%%", "!"), [False, False, None, True]),
        (call("rlike", "s", "(c|z)+"), [True, False, None, True]),
        (call("rlike", "s", "^a[bc]"), [True, False, None, False]),
    ],
)
def test_text(expression, expected):
    assert values(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (Cast(column("d"), DOUBLE), [1.5, -2.25, None, 0.3]),
        (Cast(column("l"), DOUBLE), [10.0, 20.0, None, 9007199254740992.0]),
        (Cast(column("i"), STRING), ["1", "-7", None, "7"]),
        (Cast(column("i"), BIGINT), [1, -7, None, 7]),
        (Cast(column("i"), pa.decimal128(12, 2)), [Decimal("1.00"), Decimal("-7.00"), None, Decimal("7.00")]),
        (Cast(column("t"), pa.date32()), [date(1969, 12, 31), date(1969, 12, 31), None, date(1969, 12, 31)]),
        (
            Cast(column("day"), pa.timestamp("us", "UTC")),
            [datetime(2024, 2, 29, tzinfo=UTC), None, None, datetime(1969, 1, 1, tzinfo=UTC)],
        ),
        (Cast(Literal(None, pa.null()), INT), [None] * 4),
    ],
)
def test_casts(expression, expected):
    assert values(expression) == expected


def test_every_short_decimal_becomes_the_nearest_double():
    texts = [f"{number / 1000:.3f}" for number in range(-5000, 5000, 7)]
    rows = pa.table({"d": pa.array([Decimal(text) for text in texts], pa.decimal128(10, 3))})
    assert evaluate_expression(Cast(column("d"), DOUBLE), rows).to_pylist() == [float(text) for text in texts]


def test_case_and_coalesce_choose_per_row():
    chosen = Case(((call(">", "i", 0), column("s")), (column("b"), Literal("never", STRING))), Literal("no", STRING))
    assert values(chosen) == ["abc", "no", "no", "a%c\nx"]
    assert values(Case(((call(">", "i", 0), column("i")),))) == [1, None, None, 7]
    assert values(call("coalesce", "s", "?")) == ["abc", "ÄÖß ", "?", "a%c\nx"]


@pytest.mark.parametrize(
    "expression",
    [
        call("=", "i", Literal(1, BIGINT)),
        call("=", "n", "n"),
        call("/", "d", "d"),
        call("%", "f", 2.0),
        call("like", "s", "a\\%"),
        call("like", "s", "s"),
        call("rlike", "s", "a.b"),
        call("rlike", "s", "a$"),
        call("rlike", "s", "("),
        call("substring", "s", Literal(-1, INT)),
        call("sha2", "s", Literal(256, INT)),
        Cast(column("s"), INT),
        Cast(column("f"), INT),
        Cast(column("d"), pa.decimal128(5, 1)),
        call("and", "b", call("=", call("+", "i", 1), 2)),
        Case(((column("b"), call("%", "i", 2)),)),
        call("coalesce", "i", call("+", "i", 1)),
        Call("*", (Literal(Decimal(1), pa.decimal128(38, 2)), Literal(Decimal(1), pa.decimal128(38, 2)))),
        Call("*", (Literal(Decimal(1), pa.decimal128(30, 20)), Literal(Decimal(1), pa.decimal128(30, 20)))),
        Case(((column("b"), Call("+", (Literal(Decimal(1), pa.decimal128(38)),) * 2)),)),
    ],
)
def test_what_only_spark_evaluates(expression):
    with pytest.raises(CannotCompile):
        values(expression)


WIDE = pa.table(
    {
        "h": pa.array([Decimal("9" * 34 + ".99"), Decimal("-0.01"), None, Decimal(0)], pa.decimal128(38, 2)),
        "e": pa.array([Decimal("-9.0"), Decimal("1.5"), Decimal(2), None], pa.decimal128(20, 1)),
    }
)


@pytest.mark.parametrize(
    ("operator", "compute", "scale"),
    [("+", Decimal.__add__, 2), ("-", Decimal.__sub__, 2), ("*", Decimal.__mul__, 3)],
)
@pytest.mark.parametrize("first", [0, 1], ids=["38 digits", "few digits"])
def test_decimals_that_could_be_too_wide_are_exact(operator, compute, scale, first):  # B19
    rows = WIDE.slice(first)
    found = evaluate_expression(Call(operator, (column("h"), column("e"))), rows)
    assert found.type == pa.decimal128(38, scale)
    with localcontext(prec=80):
        pairs = zip(rows["h"].to_pylist(), rows["e"].to_pylist(), strict=True)
        assert found.to_pylist() == [None if None in pair else compute(*pair) for pair in pairs]


@pytest.mark.parametrize("operator", ["+", "-", "*"])
def test_a_decimal_of_more_than_38_digits_is_an_error(operator):  # B19
    most = Literal(Decimal("9" * 36), pa.decimal128(38, 2))
    other = {"+": Literal(Decimal(1), pa.decimal128(3)), "-": Literal(Decimal(-1), pa.decimal128(3))}
    with pytest.raises(TableError, match="out of the range of DECIMAL"):
        values(Call(operator, (most, other.get(operator, Literal(Decimal(10), pa.decimal128(2))))))


def test_an_unknown_column_is_an_error():  # B16
    with pytest.raises(NotFoundError, match='column "ii" does not exist'):
        values(Call("is_null", (ColumnRef("ii"),)))
