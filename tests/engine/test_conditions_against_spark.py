"""Conditions, values and aggregates that tables compute themselves equal Spark's, for generated data and expressions.

Everything is generated from fixed seeds and asked of Spark in few queries: one more costs more than a thousand rows.
"""

import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from velostream.engine.passthrough import answer
from velostream.engine.spark import SparkRuntime
from velostream.errors import VelostreamError
from velostream.model.change import Mode, Write
from velostream.model.expression import Literal
from velostream.model.schema import Schema
from velostream.model.types import normal_type
from velostream.sql.lower import NotLowerable, lower, type_of
from velostream.sql.parse import parse_expression
from velostream.sql.plan import AggregateFunction, Item, Order, PassthroughPlan
from velostream.tables.memory import CommitSequence
from velostream.tables.memory.evaluate import evaluate_expression

SCHEMA = Schema.of(
    ("id", "INT"),
    ("i", "INT"),
    ("l", "BIGINT"),
    ("t", "TINYINT"),
    ("d", "DECIMAL(10,2)"),
    ("e", "DECIMAL(20,5)"),
    ("h", "DECIMAL(38,6)"),
    ("f", "DOUBLE"),
    ("r", "FLOAT"),
    ("s", "STRING"),
    ("u", "STRING"),
    ("b", "BOOLEAN"),
    ("c", "BOOLEAN"),
    ("day", "DATE"),
    ("at", "TIMESTAMP"),
    ("y", "BINARY"),
    key=["id"],
)
ROWS = 80
ITEMS_PER_QUERY = 60
FAILURES_CHECKED = 8
TEXTS = [
    "",
    "a",
    "A",
    "abc",
    "abd",
    "b",
    "é",
    "ß",
    "Straße",
    "İ",
    "ΑΣ",
    "😀",
    "x y",
    " x ",
    "1",
    "12",
    "a%b",
    "a_b",
    "l1\nl2",
]
FLOATS = [0.0, -0.0, 1.0, -1.5, 0.1, 1e300, -1e-300, 2.0**53, math.inf, -math.inf, math.nan]
DATES = [
    date(1970, 1, 1),
    date(1969, 12, 31),
    date(2024, 2, 29),
    date(2023, 12, 31),
    date(1900, 1, 1),
    date(9999, 12, 31),
]


def generated_rows(seed):
    chance = random.Random(seed)

    def maybe(value):
        return None if chance.random() < 0.15 else value

    def number(scale, digits):
        return Decimal(chance.choice([0, 1, -1, chance.randrange(-(10**digits), 10**digits)])).scaleb(-scale)

    rows = []
    for number_of_row in range(ROWS):
        real = chance.choice([*FLOATS, chance.uniform(-5, 5)])
        moment = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(
            microseconds=chance.choice([0, 1, -1, chance.randrange(10**12)])
        )
        rows.append(
            {
                "id": number_of_row,
                "i": maybe(chance.choice([0, 1, 2, -1, 7, chance.randrange(-(10**6), 10**6)])),
                "l": maybe(chance.choice([0, 1, -1, 2**53 + 1, chance.randrange(-(10**12), 10**12)])),
                "t": maybe(chance.randrange(-60, 60)),
                "d": maybe(number(2, 3)),
                "e": maybe(number(5, 14)),
                "h": maybe(number(6, 30)),
                "f": maybe(real),
                "r": maybe(chance.choice([0.0, -0.0, 1.5, 0.1, math.nan, math.inf])),
                "s": maybe(chance.choice(TEXTS)),
                "u": maybe(chance.choice(TEXTS)),
                "b": maybe(chance.random() < 0.5),
                "c": maybe(chance.random() < 0.5),
                "day": maybe(chance.choice(DATES)),
                "at": maybe(moment),
                "y": maybe(chance.choice([b"", b"a", b"\x7f", b"\x80", b"a\x00"])),
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA.arrow)


class Expressions:
    """Random expressions over the columns, most of which are well typed."""

    def __init__(self, seed):
        self.chance = random.Random(seed)

    def pick(self, *options):
        return self.chance.choice(options)

    def condition(self, depth=3):
        if depth == 0 or self.chance.random() < 0.3:
            return self.simple()
        left, right = self.condition(depth - 1), self.condition(depth - 1)
        return self.pick(f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})", f"({left}) = ({right})")

    def simple(self):
        kind = self.pick(self.numbers, self.numbers, self.numbers, self.texts, self.times, self.truths, self.bytes)
        return kind()

    def compared(self, left, right):
        return f"{left} {self.pick('=', '<>', '<', '<=', '>', '>=', '<=>', '=')} {right}"

    def numbers(self):
        left = self.pick(self.number(), self.number(2))
        return self.pick(
            self.compared(left, self.number(1)),
            self.compared(left, self.number(1)),
            self.compared(self.number(), "NULL"),
            f"{self.number()} BETWEEN {self.number()} AND {self.number()}",
            f"{self.number()} {self.pick('', 'NOT ')}IN ({self.number_list()})",
            f"{left} IS {self.pick('', 'NOT ')}NULL",
            f"{self.number()} IS {self.pick('', 'NOT ')}DISTINCT FROM {self.number()}",
        )

    def number_list(self):
        return ", ".join(
            self.pick(self.number_literal(), self.number_literal(), "NULL", "'1'")
            for _ in range(self.chance.randrange(1, 5))
        )

    def number_literal(self):
        return self.pick(
            "0", "1", "2", "-1", "7", "1.0", "0.5", "-1.50", "10.005", "1e0", "0.1", "3000000000", "9007199254740993",
            "0.1D", "CAST('NaN' AS DOUBLE)", "CAST(1.5 AS FLOAT)", "1Y", "5L", "123456789012345.678", "'1'", "-0.0D",
        )  # fmt: skip

    def number(self, depth=0):
        column = self.pick("i", "l", "t", "d", "e", "h", "f", "r")
        if depth == 0:
            return self.pick(column, column, self.number_literal())
        left, right = self.number(depth - 1), self.number(depth - 1)
        return self.pick(
            f"({left} + {right})",
            f"({left} - {right})",
            f"({left} * {right})",
            f"({left} / {self.pick('2', '0.5D', '4e0', 'f', '-8')})",
            f"({self.pick('i', 'l', 't')} % {self.pick('2', '3', '-1', '7')})",
            f"(-{left})" if not left.startswith("-") and "'" not in left else left,
            f"abs({left})",
            f"coalesce({left}, {right})",
            f"CASE WHEN {self.pick('b', 'i > 0', 's = u')} THEN {left} ELSE {right} END",
            f"CASE {self.pick('i', 't')} WHEN 1 THEN {left} WHEN 2 THEN {right} END",
            f"CAST({self.pick('i', 't', 'l')} AS {self.pick('BIGINT', 'DECIMAL(20,2)', 'DOUBLE')})",
            f"nullif({left}, {right})",
            f"length({self.text()})",
        )

    def texts(self):
        left = self.text(1)
        return self.pick(
            self.compared(left, self.text()),
            self.compared(left, self.text()),
            f"{left} {self.pick('', 'NOT ')}LIKE '{self.pick('a%', '%b', '_', '%', 'a_b', '', 'l1%2', '%ß%', 'A')}'",
            f"{left} RLIKE '{self.pick('^a', 'b', '[0-9]+', '^(a|x)', 'ab?c', 'A|1')}'",
            f"{left} {self.pick('', 'NOT ')}IN ('a', 'é', {self.pick('NULL', quoted('abc'))})",
            f"{left} BETWEEN 'a' AND 'b'",
        )

    def text(self, depth=0):
        base = self.pick("s", "u", "s", quoted(self.pick("a", "abc", "é", "😀", "", "it''s")))
        if depth == 0:
            return base
        return self.pick(
            base,
            f"lower({base})",
            f"upper({base})",
            f"trim({base})",
            f"concat({base}, {self.text()})",
            f"{base} || {self.text()}",
            f"substring({base}, {self.pick(0, 1, 2)}, {self.pick(0, 1, 3)})",
            f"coalesce({base}, {self.text()})",
        )

    def times(self):
        moment = self.pick("day", "at", "at", "DATE '2024-02-29'", "TIMESTAMP '2024-01-01 00:00:00'")
        other = self.pick(
            "day", "at", "'2024-02-29'", "'2024-01-01 00:00:00.000001'", "DATE '1969-12-31'", "'1970-01-01'"
        )
        return self.pick(self.compared(moment, other), f"{moment} IN ({other}, NULL)", f"CAST(at AS DATE) = {moment}")

    def truths(self):
        return self.pick(
            "b", "c", "b = c", "b <=> c", "NOT b", "b IS TRUE", "c IS NOT FALSE", "b IS NULL", "b = 'true'", "TRUE",
            "FALSE", "CAST(NULL AS BOOLEAN)", "CASE WHEN b THEN c ELSE i > 0 END", "b <> NULL",
        )  # fmt: skip

    def bytes(self):
        return self.pick(self.compared("y", self.pick("X'61'", "X'7F'", "X''", "y")), "y IS NULL", "y IN (X'80', X'')")


def quoted(text):
    return f"'{text}'"


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    runtime = SparkRuntime(directory=tmp_path_factory.mktemp("spark"))
    try:
        session = runtime.session()
        # Compiling thousands of expressions to Java takes far longer than interpreting them for a few rows.
        session.conf.set("spark.sql.codegen.wholeStage", "false")
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        yield session
    finally:
        runtime.stop()


@pytest.fixture(scope="module")
def rows(session):
    rows = generated_rows(1)
    session.createDataFrame(rows).createOrReplaceTempView("rows")
    return rows


def in_spark(session, items, tail="FROM rows ORDER BY id"):
    """What Spark answers to each item: a column, or the error it gives instead."""
    names = [f"c{number}" for number in range(len(items))]
    listed = ", ".join(f"{item} AS {name}" for item, name in zip(items, names, strict=True))
    try:
        frame = session.sql(f"SELECT {listed} {tail}")
        found = frame.toArrow()
    except PySparkException as error:
        if len(items) == 1:
            return [error]
        middle = len(items) // 2
        return in_spark(session, items[:middle], tail) + in_spark(session, items[middle:], tail)
    return [column.cast(normal_type(column.type)) for column in found.columns]


def ours(text, rows):
    """Our column for an expression, or our error; `NotLowerable` when it is Spark's to evaluate."""
    try:
        expression = lower(parse_expression(text), SCHEMA, text=text)
        if isinstance(expression, Literal):
            return pa.chunked_array([[expression.value] * rows.num_rows], expression.type)
        found = evaluate_expression(expression, rows)
    except VelostreamError as error:
        return error
    assert found.type == type_of(expression, SCHEMA)
    return found


def same(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=1e-12)
    return left == right and type(left) is type(right)


def check(session, texts, rows):
    """Compare every expression that we evaluate; how many there were."""
    answered, failed = {}, {}
    for text in texts:
        try:
            found = ours(text, rows)
        except NotLowerable:
            continue
        (failed if isinstance(found, VelostreamError) else answered)[text] = found
    wrong = []
    for text in list(failed)[:FAILURES_CHECKED]:
        (theirs,) = in_spark(session, [text])
        if not isinstance(theirs, PySparkException):
            wrong.append(f"{text}\n    ours: {failed[text]!r}\n    Spark: {theirs.to_pylist()}")
    items = list(answered)
    for start in range(0, len(items), ITEMS_PER_QUERY):
        batch = items[start : start + ITEMS_PER_QUERY]
        for text, theirs in zip(batch, in_spark(session, batch), strict=True):
            wrong += difference(text, answered[text], theirs, rows)
    assert not wrong, f"{len(wrong)} of {len(answered)}\n" + "\n".join(wrong[:10])
    return len(answered)


def difference(text, mine, theirs, rows):
    if isinstance(theirs, PySparkException):
        return [f"{text}\n    ours: {mine.to_pylist()}\n    Spark: {theirs}"]
    if mine.type != theirs.type and not pa.types.is_null(mine.type):
        return [f"{text}\n    ours: {mine.type}\n    Spark: {theirs.type}"]
    for number, pair in enumerate(zip(mine.to_pylist(), theirs.to_pylist(), strict=True)):
        if not same(*pair):
            return [f"{text}\n    row {number}: {rows.slice(number, 1).to_pylist()}\n    ours, Spark: {pair}"]
    return []


def test_conditions_are_sparks(session, rows):  # B15, B16, B21
    generator = Expressions(2)
    texts = list(dict.fromkeys(generator.condition(2) for _ in range(500)))
    assert check(session, texts, rows) > 200


def test_values_have_sparks_types_and_values(session, rows):  # B19
    generator = Expressions(3)
    texts = list(dict.fromkeys(generator.pick(generator.number(2), generator.text(1)) for _ in range(400)))
    assert check(session, texts, rows) > 120


def test_every_aggregate_is_sparks(session, rows):  # B17, B18, B19
    table = stored(rows)
    numeric = ["i", "l", "t", "d", "e", "f", "r"]
    items = [Item("n", None, AggregateFunction.COUNT)]
    for column in SCHEMA.names:
        functions = [AggregateFunction.COUNT, AggregateFunction.MIN, AggregateFunction.MAX]
        if column in numeric:
            functions += [AggregateFunction.SUM, AggregateFunction.AVG]
        distinct = (False, True) if column in ("i", "d", "f", "s") else (False,)
        items += [Item(f"{f} {column} {d}", column, f, d) for f in functions for d in distinct]
    for where in (None, "id < 0", "id = 3"):
        condition = None if where is None else lower(parse_expression(where), SCHEMA)
        found = answer(PassthroughPlan("t", tuple(items), condition), table.snapshot())
        selected = [
            "count(*)" if item.column is None else f"{item.function}({'DISTINCT ' * item.distinct}{item.column})"
            for item in items
        ]
        expected = in_spark(session, selected, f"FROM rows WHERE {where or 'TRUE'}")
        for item, mine, theirs in zip(items, found.columns, expected, strict=True):
            assert mine.type == theirs.type, (item, where)
            assert same(mine[0].as_py(), theirs[0].as_py()), (item, where, mine, theirs)


@pytest.mark.parametrize("group", ["t", "d", "s", "at"])
def test_groups_are_sparks(session, rows, group):  # B17, B19
    functions = {
        AggregateFunction.COUNT: SCHEMA.names,
        AggregateFunction.SUM: ("i", "t", "d", "e"),
        AggregateFunction.AVG: ("i", "t", "d", "e"),
        AggregateFunction.MIN: ("i", "d", "s", "b", "at", "y"),
        AggregateFunction.MAX: ("i", "d", "s", "b", "at", "y"),
    }
    items = [Item(group, group), Item("rows", None, AggregateFunction.COUNT)]
    items += [Item(f"{function} {name}", name, function) for function, names in functions.items() for name in names]
    items += [Item(f"different {name}", name, AggregateFunction.COUNT, distinct=True) for name in ("i", "d", "s", "at")]
    plan = PassthroughPlan("t", tuple(items), order=(Order(group),), groups=(group,))
    found = answer(plan, stored(rows).snapshot())
    expected = in_spark(
        session,
        [group, "count(*)", *(f"{i.function}({'DISTINCT ' * i.distinct}{i.column})" for i in items[2:])],
        f"FROM rows GROUP BY {group} ORDER BY {group} NULLS FIRST",
    )
    for item, mine, theirs in zip(items, found.columns, expected, strict=True):
        assert mine.type == theirs.type, item
        assert all(map(same, mine.to_pylist(), theirs.to_pylist())), (item, mine, theirs)


@pytest.mark.parametrize("column", ["i", "d", "f", "r", "s", "b", "at", "y"])
def test_order_is_sparks(session, rows, column):
    table = stored(rows)
    for descending in (False, True):
        for nulls_first in (False, True):
            order = (Order(column, descending, nulls_first), Order("id"))
            plan = PassthroughPlan("t", (Item("id", "id"),), order=order, limit=70, offset=3)
            words = f"{'DESC' if descending else 'ASC'} NULLS {'FIRST' if nulls_first else 'LAST'}"
            (expected,) = in_spark(session, ["id"], f"FROM rows ORDER BY {column} {words}, id LIMIT 70 OFFSET 3")
            assert answer(plan, table.snapshot()).column(0).to_pylist() == expected.to_pylist()


def stored(rows):
    table = CommitSequence.open(None).create_table("t", name="t", schema=SCHEMA)
    table.commit(Write(Mode.APPEND, rows))
    return table


def test_decimals_beyond_38_digits_are_sparks(session):  # B19
    nines = 10**38 - 1
    q = [Decimal(number) for number in (nines, nines - 1, -nines, nines, -nines)]
    rows = pa.table(
        {
            "p": pa.array([Decimal(number) for number in (0, 1, -1, 10**19, 10**37)], pa.decimal128(38)),
            "q": pa.array(q, pa.decimal128(38)),
            "r": pa.array([Decimal(number) for number in (1, 10, -1, 10**18, 9)], pa.decimal128(20)),
            "c": pa.array([Decimal("0.01"), None, Decimal("-0.01"), Decimal("1.00"), Decimal("5.55")]),
        }
    )
    schema = Schema.from_arrow(rows.schema)
    session.createDataFrame(rows).createOrReplaceTempView("wide")
    compared = 0
    for text in ("p * r", "p + q", "q - p", "q + r", "r - q", "r * r", "p * c", "q * c", "c + q", "r * c * r", "p - 1"):
        expression = lower(parse_expression(text), schema, text=text)
        for number in range(rows.num_rows):
            row = rows.slice(number, 1)
            where = " AND ".join(f"{name} <=> {row[name][0].as_py() or 'NULL'}" for name in rows.column_names[1:])
            (theirs,) = in_spark(session, [text], f"FROM wide WHERE {where}")
            try:
                mine = evaluate_expression(expression, row)
            except VelostreamError:
                assert isinstance(theirs, PySparkException), (text, row)
            else:
                assert not isinstance(theirs, PySparkException), (text, row, theirs)
                assert (mine.type, mine.to_pylist()) == (theirs.type, theirs.to_pylist()), (text, row)
            compared += 1
    assert compared == 55
