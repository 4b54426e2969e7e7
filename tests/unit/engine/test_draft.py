"""Drafts: a version with writes on top reads as the table would, and gives the write that makes it so."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.engine.draft import DraftTable
from velostream.errors import TableError
from velostream.model.change import CHANGE, Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Schema
from velostream.tables.memory import CommitSequence

KEYED = Schema.of(("id", "INT"), ("v", "STRING"), key=["id"])
BAG = Schema.of(("id", "INT"), ("v", "STRING"))


def rows(*values):
    return pa.table({"id": pa.array([value[0] for value in values], pa.int32()), "v": [value[1] for value in values]})


def keys(*values):
    return pa.table({"id": pa.array(values, pa.int32())})


def changes(*values):
    signed = rows(*[value[1:] for value in values])
    return signed.append_column(CHANGE, pa.array([value[0] for value in values], pa.int8()))


def table_of(schema, *values):
    table = CommitSequence.open(None).create_table("t", name="t", schema=schema)
    table.commit(Write(Mode.APPEND, rows(*values)))
    return table


def content(snapshot):
    return sorted(tuple(row.values()) for row in snapshot.scan().to_pylist())


names = st.sampled_from("abc")
pairs = st.lists(st.tuples(st.integers(0, 4), names), max_size=4)
distinct_pairs = pairs.map(lambda given: list(dict(given).items()))
keyed_writes = st.one_of(
    distinct_pairs.map(lambda given: Write(Mode.APPEND, rows(*given))),
    pairs.map(lambda given: Write(Mode.UPSERT, rows(*given))),
    st.lists(st.integers(0, 4), max_size=3).map(lambda given: Write(Mode.DELETE, keys(*given))),
    st.lists(st.tuples(st.sampled_from([-1, 1]), st.integers(0, 4), names), max_size=4).map(
        lambda given: Write(Mode.CHANGES, changes(*given))
    ),
    distinct_pairs.map(lambda given: Write(Mode.REPLACE, rows(*given))),
)


@settings(max_examples=150, deadline=None)
@given(held=distinct_pairs, writes=st.lists(keyed_writes, max_size=5))
def test_a_keyed_draft_is_what_the_table_would_be(held, writes):
    table, model = table_of(KEYED, *held), table_of(KEYED, *held)
    draft = DraftTable(table, table.snapshot())
    for write in writes:
        refused = []
        for one in (draft, model):
            try:
                one.commit(write)
                if one is draft:
                    draft.settle()
            except TableError as error:
                refused.append(error.code)
        assert len(refused) in (0, 2)
        assert content(draft.snapshot()) == content(model.snapshot())
    snapshot, wanted = draft.snapshot(), model.snapshot()
    condition = Call("=", (ColumnRef("v"), Literal("a", pa.string())))
    assert snapshot.count() == wanted.count()
    assert snapshot.count(condition) == wanted.count(condition)
    for key in range(5):
        assert snapshot.contains(key) == wanted.contains(key)
        assert (snapshot.get(key) or {}) == (wanted.get(key) or {})
    asked = pa.array([3, 0, 7, 3], pa.int32())
    assert snapshot.lookup(asked).to_pylist() == wanted.lookup(asked).to_pylist()
    for write in draft.writes():
        table.commit(write)
    assert content(table.snapshot()) == content(wanted)


@settings(max_examples=100, deadline=None)
@given(
    held=pairs,
    steps=st.lists(st.one_of(pairs, st.integers(1, 3)), max_size=5),
)
def test_a_draft_of_a_bag_is_what_the_table_would_be(held, steps):
    table, model = table_of(BAG, *held), table_of(BAG, *held)
    draft = DraftTable(table, table.snapshot())
    for step in steps:
        if isinstance(step, int):
            write = Write(Mode.DELETE, model.snapshot().scan().slice(0, step))
        else:
            write = Write(Mode.APPEND, rows(*step))
        draft.commit(write)
        model.commit(write)
        assert content(draft.snapshot()) == content(model.snapshot())
    assert draft.snapshot().count() == model.snapshot().count()
    on = pa.array([0, 1, 2], pa.int32())
    found, wanted = (one.snapshot().lookup_by(["id"], on).to_pylist() for one in (draft, model))
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    for write in draft.writes():
        table.commit(write)
    assert content(table.snapshot()) == content(model.snapshot())


def test_a_refused_write_leaves_the_draft_as_it_was():
    table = table_of(KEYED, (1, "a"))
    draft = DraftTable(table, table.snapshot())
    draft.commit(Write(Mode.UPSERT, rows((2, "b"))))
    draft.settle()
    draft.commit(Write(Mode.APPEND, rows((3, "c"), (1, "x"))))
    with pytest.raises(TableError, match="key 1"):
        draft.settle()
    assert content(draft.snapshot()) == [(1, "a"), (2, "b")]


def test_writes_nobody_looked_at_are_passed_on_as_they_are():
    table = table_of(KEYED, (1, "a"))
    draft = DraftTable(table, table.snapshot())
    write = Write(Mode.UPSERT, rows((1, "b")))
    draft.commit(write)
    assert list(draft.writes()) == [write]


@pytest.mark.parametrize(
    ("meanwhile", "conflict"),
    [
        (Write(Mode.UPSERT, rows((1, "other"))), True),
        (Write(Mode.DELETE, keys(1)), True),
        (Write(Mode.APPEND, rows((9, "other"))), True),
        (Write(Mode.UPSERT, rows((2, "other"))), False),
        (Write(Mode.APPEND, rows((5, "other"))), False),
    ],
)
def test_conflicts_are_by_key(meanwhile, conflict):
    table = table_of(KEYED, (1, "a"), (2, "b"))
    draft = DraftTable(table, table.snapshot())
    draft.commit(Write(Mode.UPSERT, rows((1, "mine"), (9, "new"))))
    draft.settle()
    table.commit(meanwhile)
    if conflict:
        with pytest.raises(TableError) as raised:
            draft.check_unchanged(table.snapshot())
        assert (raised.value.code, raised.value.category.retriable) == ("write-conflict", True)
    else:
        draft.check_unchanged(table.snapshot())


def test_conflicts_of_bags_are_by_row():
    table = table_of(BAG, (1, "a"), (1, "a"), (2, "b"))
    drafts = [DraftTable(table, table.snapshot()) for _ in range(2)]
    for draft in drafts:
        draft.commit(Write(Mode.DELETE, rows((1, "a"))))
        draft.settle()
    table.commit(Write(Mode.DELETE, rows((1, "a"))))
    drafts[0].check_unchanged(table.snapshot())
    table.commit(Write(Mode.DELETE, rows((1, "a"))))
    with pytest.raises(TableError):
        drafts[1].check_unchanged(table.snapshot())
