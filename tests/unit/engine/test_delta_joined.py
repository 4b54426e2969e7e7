"""Joins over Arrow columns, against comparing every row with every other: NULLs, duplicates, decimals, two widths."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.engine.maintain.delta_joined import JoinedRows
from velostream.errors import TableError
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Column, Schema
from velostream.sql.plan import JoinedQuery, JoinKind, JoinPart
from velostream.tables.memory.evaluate import CannotCompile

PRICE = pa.decimal128(6, 2)
LEFT = Schema((Column("a", pa.int32()), Column("p", PRICE), Column("t", pa.string())))
RIGHT = Schema((Column("b", pa.int64()), Column("p", PRICE), Column("n", pa.int64())))
READS = {"r0": LEFT, "r1": RIGHT}
ABOVE = Call(">", (ColumnRef("r1.n"), Literal(1, pa.int64())))


def rows(schema: Schema, chosen: random.Random, count: int) -> pa.Table:
    values = {
        pa.int32(): [None, 1, 2, 3],
        pa.int64(): [None, 1, 2, 3],
        PRICE: [None, Decimal("1.50"), Decimal("-0.01")],
        pa.string(): [None, "", "x"],
    }
    columns = {c.name: pa.array(chosen.choices(values[c.type], k=count), c.type) for c in schema.columns}
    return pa.table(columns)


def joined(part: JoinPart, left: pa.Table, right: pa.Table) -> Counter[tuple[object, ...]]:
    kept = part.kind in (JoinKind.SEMI, JoinKind.ANTI)
    names = ["r0.a", "r0.p", "r0.t", *(() if kept else ("r1.b", "r1.p", "r1.n"))]
    columns = (*LEFT.columns, *(() if kept else RIGHT.columns))
    gives = Schema(tuple(Column(f"c{number}", column.type) for number, column in enumerate(columns)))
    query = JoinedQuery("r0", (part,), None, tuple(map(ColumnRef, names)))
    found = JoinedRows(query, reads=READS, gives=gives).run({"r0": left, "r1": right})
    return Counter(tuple(row.values()) for row in found.to_pylist())


def expected(part: JoinPart, left: pa.Table, right: pa.Table) -> Counter[tuple[object, ...]]:
    pairs = [(name.removeprefix("r0."), other) for name, other in zip(part.left, part.right, strict=True)]
    found: Counter[tuple[object, ...]] = Counter()
    for one in left.to_pylist():
        met = [
            other
            for other in right.to_pylist()
            if all(one[name] is not None and one[name] == other[column] for name, column in pairs)
            and (part.residual is None or (other["n"] is not None and other["n"] > 1))
        ]
        match part.kind:
            case JoinKind.SEMI | JoinKind.ANTI:
                if bool(met) == (part.kind is JoinKind.SEMI):
                    found[tuple(one.values())] += 1
            case _:
                alone = [dict.fromkeys(RIGHT.names)] if part.kind is JoinKind.LEFT and not met else []
                for other in met or alone:
                    found[(*one.values(), *other.values())] += 1
    return found


@pytest.mark.parametrize("kind", JoinKind)
@pytest.mark.parametrize("residual", [None, ABOVE], ids=["", "residual"])
@pytest.mark.parametrize("keys", [(), (("r0.a", "b"),), (("r0.a", "b"), ("r0.p", "p"))], ids=["all", "one", "two"])
def test_rows_meet_as_in_sql(kind, residual, keys):
    part = JoinPart("r1", kind, tuple(name for name, _ in keys), tuple(name for _, name in keys), residual)
    chosen = random.Random(3)
    for counts in ((0, 4), (4, 0), (12, 9), (9, 30)):
        left, right = (rows(schema, chosen, count) for schema, count in zip((LEFT, RIGHT), counts, strict=True))
        assert joined(part, left, right) == expected(part, left, right)


def test_a_condition_keeps_what_is_true_and_an_expression_may_fail():
    part = JoinPart("r1", JoinKind.INNER, ("r0.a",), ("b",))
    left = pa.table({"a": [1, 2, 3], "p": [None] * 3, "t": ["x"] * 3}).cast(LEFT.arrow)
    right = pa.table({"b": [1, 2, 3], "p": [None] * 3, "n": [2, None, 0]}).cast(RIGHT.arrow)
    gives = Schema((Column("a", pa.int32()),))
    kept = JoinedRows(JoinedQuery("r0", (part,), ABOVE, (ColumnRef("r0.a"),)), reads=READS, gives=gives)
    assert kept.run({"r0": left, "r1": right}).to_pylist() == [{"a": 1}]
    assert kept.needed == {"r0": ("a",), "r1": ("b", "n")}
    rest = Call("%", (ColumnRef("r1.n"), ColumnRef("r1.n")))
    failing = JoinedQuery("r0", (part,), None, (rest,))
    with pytest.raises(TableError):
        JoinedRows(failing, reads=READS, gives=Schema((Column("a", pa.int64()),))).run({"r0": left, "r1": right})


def test_another_type_than_sparks_is_left_to_spark():
    query = JoinedQuery("r0", (), None, (ColumnRef("r0.a"),))
    with pytest.raises(CannotCompile):
        JoinedRows(query, reads=READS, gives=Schema((Column("a", pa.int64()),)))
