"""Conditions find the same rows by key, by index and by scan, and never a stale answer."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.errors import NotFoundError, TableError
from velostream.model.change import Mode, Write
from velostream.model.expression import Call, ColumnRef, Expression, Literal
from velostream.model.schema import Schema
from velostream.tables.memory import CannotCompile, CommitSequence, MemoryTable

from .conftest import tuples, write

BIGINT, STRING = pa.int64(), pa.string()
ID, NAME = ColumnRef("ID"), ColumnRef("name")


def equal(column: ColumnRef, value: object, type_: pa.DataType) -> Call:
    return Call("=", (column, Literal(value, type_)))


def both(*parts: Expression) -> Expression:
    return parts[0] if len(parts) == 1 else Call("and", (parts[0], both(*parts[1:])))


@pytest.fixture
def filled(people: MemoryTable) -> MemoryTable:
    people.commit(write(Mode.APPEND, *((row, f"n{row % 3}") for row in range(10)), (10, None)))
    people.commit(write(Mode.UPSERT, (1, "n2"), (2, "n0")))
    people.commit(write(Mode.DELETE, (9,), columns=("id",)))
    return people


def test_a_key_is_looked_up_and_the_rest_filtered(filled):  # B20
    plan = filled.compile_condition(equal(ID, 4, BIGINT))
    assert (plan.access, plan.remainder) == ("key", None)
    condition = both(equal(NAME, "n1", STRING), equal(ID, 4, BIGINT))
    assert filled.compile_condition(condition).access == "key"
    assert tuples(filled.snapshot().scan(condition)) == [(4, "n1")]
    assert filled.snapshot().count(both(equal(ID, 4, BIGINT), equal(NAME, "n2", STRING))) == 0
    assert filled.snapshot().count(Call("in", (ID, *(Literal(key, BIGINT) for key in (4, 9, 77, 0))))) == 2


def test_an_index_is_used_once_it_is_there(filled):
    condition = equal(NAME, "n2", STRING)
    plan = filled.compile_condition(condition)
    before = tuples(filled.snapshot().scan(condition))
    assert plan.access == "scan"
    filled.create_index(["name"])
    filled.create_index(["name"])
    assert plan.access == "index"
    assert tuples(filled.snapshot().scan(condition)) == before == [(1, "n2"), (5, "n2"), (8, "n2")]
    assert tuples(filled.snapshot(1).scan(condition)) == [(2, "n2"), (5, "n2"), (8, "n2")]
    filled.drop_index(["name"])
    assert plan.access == "scan"
    assert tuples(filled.snapshot().scan(condition)) == before


def test_a_composite_key_needs_all_its_columns(sequence):
    schema = Schema.of(("a", "BIGINT"), ("b", "STRING"), ("v", "BIGINT"), key=["a", "b"])
    table = sequence.create_table("t", name="t", schema=schema)
    table.commit(Write(Mode.APPEND, pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "v": [1, 2, 3]})))
    a, b = equal(ColumnRef("a"), 1, BIGINT), equal(ColumnRef("b"), "y", STRING)
    assert table.compile_condition(a).access == "scan"
    assert table.compile_condition(both(b, a)).access == "key"
    assert table.snapshot().scan(both(b, a)).column("v").to_pylist() == [2]
    several = both(a, Call("in", (ColumnRef("b"), Literal("x", STRING), Literal("y", STRING))))
    assert table.compile_condition(several).access == "key"
    assert table.snapshot().scan(several).column("v").to_pylist() == [1, 2]


def test_null_constants_match_nothing(filled):
    for condition in (equal(ID, None, BIGINT), equal(NAME, None, STRING)):
        assert filled.snapshot().count(condition) == 0
    filled.create_index(["name"])
    assert filled.snapshot().count(equal(NAME, None, STRING)) == 0
    assert filled.snapshot().count(Call("is_null", (NAME,))) == 1


def test_plans_are_cached_and_never_stale(filled):  # B23
    condition = equal(NAME, "n0", STRING)
    counts = [filled.snapshot().count(condition)]
    filled.commit(write(Mode.UPSERT, (50, "n0")))
    counts.append(filled.snapshot().count(condition))
    filled.create_index(["name"])
    filled.commit(write(Mode.UPSERT, (51, "n0")))
    counts.append(filled.snapshot().count(condition))
    assert counts == [4, 5, 6]
    stats = filled.stats()
    assert (stats["plan_cache_hits"], stats["plan_cache_misses"]) == (2, 1)


def test_the_cache_forgets_the_oldest(people, monkeypatch):
    monkeypatch.setattr("velostream.tables.memory.condition._CACHED_PLANS", 3)
    for number in (0, 1, 2, 3, 0):
        people.snapshot().count(equal(ID, number, BIGINT))
    assert people.stats()["plan_cache_misses"] == 5


def test_removed_rows_cause_no_errors(people):
    people.commit(write(Mode.APPEND, (0, "a"), (5, "b")))
    people.commit(write(Mode.DELETE, (0,), columns=("id",)))
    condition = Call("=", (Call("%", (Literal(10, BIGINT), ID)), Literal(0, BIGINT)))
    assert people.snapshot().count(condition) == 1
    with pytest.raises(TableError) as caught:
        people.snapshot(1).count(condition)
    assert caught.value.code == "divide-by-zero"


def test_what_cannot_be_compiled_is_said_before_any_row_is_read(people):
    with pytest.raises(CannotCompile):
        people.compile_condition(Call("sha", (NAME,)))
    with pytest.raises(CannotCompile):
        people.compile_condition(NAME)
    with pytest.raises(NotFoundError):
        people.compile_condition(Call("is_null", (ColumnRef("nam"),)))


def test_a_condition_of_thousands_of_parts(people):
    people.commit(write(Mode.APPEND, (1, "a")))
    parts: list[Expression] = [Call("<>", (ID, Literal(-number, BIGINT))) for number in range(1, 3000)]
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [*(Call("and", pair) for pair in pairs), *parts[len(parts) // 2 * 2 :]]
    assert people.snapshot().count(both(equal(ID, 1, BIGINT), parts[0])) == 1


PARTS = st.one_of(
    st.builds(lambda value: equal(ID, value, BIGINT), st.integers(0, 12)),
    st.builds(lambda value: equal(NAME, value, STRING), st.sampled_from(["a", "b", "c", None])),
    st.builds(lambda value: Call(">", (ID, Literal(value, BIGINT))), st.integers(0, 12)),
    st.builds(
        lambda items: Call("in", (NAME, *(Literal(item, STRING) for item in items))),
        st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=3),
    ),
    st.just(Call("is_null", (NAME,))),
)
ROWS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["a", "b", "c", None])), max_size=12)


@settings(max_examples=80, deadline=None)
@given(ROWS, ROWS, st.lists(PARTS, min_size=1, max_size=4), st.booleans())
def test_every_access_finds_the_same_rows(first, second, parts, negated):
    sequence = CommitSequence.open(None)
    schema = Schema.of(("id", "BIGINT"), ("name", "STRING"), key=["id"])
    indexed = sequence.create_table("i", name="i", schema=schema, options={"index": "name;name,id"})
    plain = sequence.create_table("p", name="p", schema=Schema(schema.columns))
    condition = both(*parts)
    if negated:
        condition = both(Call("not", (parts[0],)), *parts)
    for rows in (first, second):
        indexed.commit(write(Mode.UPSERT, *rows))
        plain.commit(Write(Mode.REPLACE, indexed.snapshot().scan()))
    assert plain.compile_condition(condition).access == "scan"
    found = indexed.snapshot().scan(condition)
    assert tuples(found) == tuples(plain.snapshot().scan(condition))
    assert indexed.snapshot().count(condition) == found.num_rows
