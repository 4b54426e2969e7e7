"""Each mode of a write is resolved to the net change it means."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.errors import NotFoundError, TableError
from velostream.model.change import Mode, Scope, Write
from velostream.model.schema import Column, Schema
from velostream.tables.memory import CommitSequence, MemoryTable, Part, compare, hashed, stage

from .conftest import changes, tuples, write


def now(table: MemoryTable) -> list[tuple[object, ...]]:
    return tuples(table.snapshot().scan())


def test_append_adds_rows(people):
    assert people.commit(write(Mode.APPEND, (1, "a"), (2, "b"))) == 1
    assert now(people) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("rows", [[(2, "new"), (1, "again")], [(3, "x"), (3, "y")]], ids=["existing", "in the batch"])
def test_append_of_a_taken_key_applies_nothing(people, rows):  # B49
    people.commit(write(Mode.APPEND, (1, "a")))
    with pytest.raises(TableError, match='exists already in table "people"') as caught:
        people.commit(write(Mode.APPEND, *rows))
    assert caught.value.code == "duplicate-key"
    assert now(people) == [(1, "a")]
    assert people.version == 1


def test_a_deleted_key_can_be_appended_again(people):
    people.commit(write(Mode.APPEND, (1, "a")))
    people.commit(write(Mode.DELETE, (1,), columns=("id",)))
    people.commit(write(Mode.APPEND, (1, "b")))
    assert now(people) == [(1, "b")]
    assert [people.snapshot(version).get(1) for version in (1, 2, 3)] == [
        {"id": 1, "name": "a"},
        None,
        {"id": 1, "name": "b"},
    ]


def test_upsert_lets_the_later_row_win(people):  # B46
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    people.commit(write(Mode.UPSERT, (1, "x"), (3, "c"), (1, "y")))
    assert now(people) == [(1, "y"), (2, "b"), (3, "c")]


def test_upsert_of_equal_rows_is_no_commit(people, sequence):
    people.commit(write(Mode.APPEND, (1, "a"), (2, None)))
    assert people.commit(write(Mode.UPSERT, (2, None), (1, "a"))) == 1
    assert sequence.sequence == 1


def test_upsert_removes_only_what_changed(people):
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    people.commit(write(Mode.UPSERT, (1, "a"), (2, "B")))
    assert people.changes(1).arrow.to_pylist() == [
        {"id": 2, "name": "b", "_change": -1},
        {"id": 2, "name": "B", "_change": 1},
    ]


def test_a_change_taken_back_is_no_change(people):
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    people.commit(write(Mode.UPSERT, (1, "x"), (2, "c")))
    people.commit(write(Mode.UPSERT, (1, "a")))
    assert tuples(people.changes(1).arrow) == [(2, "b", -1), (2, "c", 1)]


def test_upsert_into_a_bag_appends(bag):
    bag.commit(write(Mode.UPSERT, (1, "a"), (1, "a")))
    assert now(bag) == [(1, "a"), (1, "a")]


def test_delete_by_key_passes_over_missing_ones(people):  # B46
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    people.commit(write(Mode.DELETE, (2,), (9,), (2,), columns=("id",)))
    assert now(people) == [(1, "a")]


def test_delete_needs_the_key_columns_only_and_ignores_the_rest(people):
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    people.commit(write(Mode.DELETE, (2, "another name")))
    assert now(people) == [(1, "a")]
    with pytest.raises(TableError, match='column "id" of table "people" is not given'):
        people.commit(Write(Mode.DELETE, pa.table({"name": ["a"]})))


def test_delete_from_a_bag_removes_one_equal_row_each(bag):
    bag.commit(write(Mode.APPEND, (1, "a"), (1, "a"), (1, "a"), (2, None), (3, "c")))
    bag.commit(write(Mode.DELETE, (1, "a"), (2, None), (1, "a"), (7, "nobody")))
    assert now(bag) == [(1, "a"), (3, "c")]


def test_changes_apply_in_order_per_key(people):  # B48
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (3, "c")))
    there_and_back = [(4, "d", 1), (4, "d", -1), (3, "c", -1), (3, "c", 1)]
    people.commit(changes((1, "a", -1), (1, "a2", 1), (2, "b", -1), *there_and_back))
    assert now(people) == [(1, "a2"), (3, "c")]
    assert tuples(people.changes(1).arrow) == [(1, "a", -1), (1, "a2", 1), (2, "b", -1)]


def test_a_removal_may_carry_nothing_but_the_key(sequence):
    schema = Schema((Column("id", pa.int64()), Column("name", pa.string(), nullable=False)), ("id",))
    table = sequence.create_table("t", name="t", schema=schema)
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    table.commit(changes((1, None, -1)))
    assert now(table) == [(2, "b")]
    with pytest.raises(TableError) as caught:
        table.commit(changes((3, None, 1)))
    assert caught.value.code == "not-null"


def test_changes_of_a_bag_are_counted_in_order(bag):
    bag.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (2, "b")))
    bag.commit(changes((9, "z", -1), (9, "z", 1), (2, "b", -1), (1, "a", -1), (1, "a", 1), (5, "e", 1), (5, "e", -1)))
    assert now(bag) == [(1, "a"), (2, "b"), (9, "z")]
    assert tuples(bag.changes(1).arrow) == [(2, "b", -1), (9, "z", 1)]


@pytest.mark.parametrize("sign", [0, 2, None])
def test_a_sign_is_one_or_minus_one(people, sign):
    with pytest.raises(TableError, match='column "_change" of table "people" takes 1 and -1 only'):
        people.commit(changes((1, "a", sign)))


def test_changes_need_their_sign_column(people):
    with pytest.raises(TableError, match='lack the column "_change"'):
        people.commit(Write(Mode.CHANGES, pa.table({"id": [1], "name": ["a"]})))


@pytest.mark.parametrize("keyed", [True, False])
def test_replace_commits_the_minimal_difference(keyed, people, bag):
    table = people if keyed else bag
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (3, None)))
    table.commit(write(Mode.REPLACE, (3, None), (2, "B"), (4, "d")))
    assert tuples(table.changes(1).arrow) == [(1, "a", -1), (2, "B", 1), (2, "b", -1), (4, "d", 1)]


@pytest.mark.parametrize("keyed", [True, False])
def test_replace_by_the_same_rows_is_no_commit(keyed, people, bag, sequence):
    table = people if keyed else bag
    table.commit(write(Mode.APPEND, (1, "a"), (2, None), (3, "c")))
    table.commit(write(Mode.REPLACE, (3, "c"), (2, None), (1, "a")))
    assert sequence.sequence == 1


def test_replace_of_a_bag_counts_duplicates(bag):
    bag.commit(write(Mode.APPEND, (1, "a"), (1, "a"), (1, "a"), (2, "b")))
    bag.commit(write(Mode.REPLACE, (1, "a"), (2, "b"), (2, "b")))
    assert tuples(bag.changes(1).arrow) == [(1, "a", -1), (1, "a", -1), (2, "b", 1)]


@pytest.mark.parametrize("keyed", [True, False])
def test_replace_of_a_scope_leaves_the_rest(keyed, people, bag):
    table = people if keyed else bag
    table.commit(write(Mode.APPEND, (1, "x"), (2, "x"), (3, "y"), (4, None)))
    rows = pa.table({"id": pa.array([2, 5], pa.int64())})
    table.commit(Write(Mode.REPLACE, rows, Scope("NAME", "x")))
    assert tuples(table.changes(1).arrow) == [(1, "x", -1), (5, "x", 1)]
    table.commit(Write(Mode.REPLACE, rows.slice(0, 0), Scope("name", None)))
    assert tuples(table.changes(2).arrow) == [(4, None, -1)]


def test_replace_of_a_scope_takes_a_key_from_elsewhere(people):
    people.commit(write(Mode.APPEND, (1, "x"), (2, "y")))
    people.commit(Write(Mode.REPLACE, pa.table({"id": pa.array([2], pa.int64())}), Scope("name", "x")))
    assert now(people) == [(2, "x")]


def test_several_writes_of_one_commit_see_one_another(people, sequence):
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    steps = [
        write(Mode.UPSERT, (1, "x"), (3, "c")),
        write(Mode.DELETE, (3,), columns=("id",)),
        write(Mode.UPSERT, (1, "a"), (4, "d")),
        write(Mode.APPEND, (3, "again")),
        changes((2, None, -1)),
        write(Mode.UPSERT, (4, "D")),
    ]
    commit = sequence.commit(Part(writes=[(people, step) for step in steps]))
    assert now(people) == [(1, "a"), (3, "again"), (4, "D")]
    assert tuples(people.changes(1).arrow) == [(2, "b", -1), (3, "again", 1), (4, "D", 1)]
    assert (commit.changed["people"].added, commit.changed["people"].removed) == (2, 1)


@pytest.mark.parametrize("keyed", [True, False])
def test_what_one_write_removes_and_the_next_adds_again_has_not_changed(keyed, people, bag, sequence):
    table = people if keyed else bag
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (3, "c")))
    steps = [changes((1, "a", -1), (2, "b", -1), (3, "c", -1)), changes((1, "a", 1), (2, "B", 1), (3, "c", 1))]
    sequence.commit(Part(writes=[(table, step) for step in steps]))
    assert tuples(table.changes(1).arrow) == [(2, "B", 1), (2, "b", -1)]


def test_several_writes_to_a_bag_in_one_commit_see_one_another(bag, sequence):
    bag.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    steps = [
        write(Mode.APPEND, (3, "c"), (3, "c")),
        write(Mode.DELETE, (3, "c"), (1, "a")),
        changes((1, "a", 1), (2, "b", -1), (2, "b", -1)),
        write(Mode.REPLACE, (1, "a"), (3, "c"), (4, "d")),
    ]
    sequence.commit(Part(writes=[(bag, step) for step in steps]))
    assert now(bag) == [(1, "a"), (3, "c"), (4, "d")]
    assert tuples(bag.changes(1).arrow) == [(2, "b", -1), (3, "c", 1), (4, "d", 1)]


def test_a_write_that_fails_takes_the_whole_commit_along(people, bag, sequence):  # B50
    people.commit(write(Mode.APPEND, (1, "a")))
    with pytest.raises(TableError):
        sequence.commit(
            Part(writes=[(bag, write(Mode.APPEND, (7, "x")))]), Part(writes=[(people, write(Mode.APPEND, (1, "b")))])
        )
    assert now(bag) == []
    assert sequence.sequence == 1


def test_null_is_a_key_value(people):
    people.commit(write(Mode.UPSERT, (None, "a"), (1, "b")))
    people.commit(write(Mode.UPSERT, (None, "c")))
    assert now(people) == [(1, "b"), (None, "c")]
    assert people.snapshot().get(None) == {"id": None, "name": "c"}
    assert people.snapshot().lookup(pa.array([None, 1], pa.int64())).column("id").to_pylist() == [1]


NESTED = Schema.of(
    ("f", "DOUBLE"),
    ("d", "DECIMAL(38,10)"),
    ("m", "MAP<STRING, ARRAY<DOUBLE>>"),
    ("s", "STRUCT<a: INT, t: TIMESTAMP>"),
)


def test_equality_is_by_value_at_any_depth(sequence: CommitSequence):
    table = sequence.create_table("t", name="t", schema=NESTED)

    def rows(*values: tuple[object, ...]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(NESTED.names, value, strict=True)) for value in values], NESTED.arrow)

    table.commit(
        Write(
            Mode.APPEND,
            rows(
                (math.nan, Decimal("1.5"), [("a", [math.nan]), ("b", [0.0])], {"a": 1, "t": None}),
                (0.0, None, None, None),
                (None, Decimal("-99999999999999999999999999.9"), [], {"a": None, "t": None}),
            ),
        )
    )
    again = rows(
        (None, Decimal("-99999999999999999999999999.90"), [], {"a": None, "t": None}),
        (-0.0, None, None, None),
        (math.nan, Decimal("1.50"), [("b", [-0.0]), ("a", [math.nan])], {"a": 1, "t": None}),
    )
    assert table.commit(Write(Mode.REPLACE, again)) == 1
    table.commit(Write(Mode.DELETE, again.slice(2)))
    assert table.snapshot().count() == 2


def without_telling_hashes(monkeypatch):
    """Hashes only sort candidates; here all rows share one."""
    for module in (compare, stage, hashed):
        name = "hash_rows" if module is hashed else "row_hashes"
        monkeypatch.setattr(module, name, lambda rows: np.zeros(len(rows[0]), dtype=np.uint64))
    monkeypatch.setattr(compare, "_FEW_ROWS", 0)


def test_rows_with_equal_hashes_are_told_apart(bag, monkeypatch):
    without_telling_hashes(monkeypatch)
    bag.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (2, "b"), (3, "c")))
    bag.commit(write(Mode.DELETE, (2, "b"), (4, "d")))
    assert now(bag) == [(1, "a"), (2, "b"), (3, "c")]
    bag.commit(write(Mode.REPLACE, (3, "c"), (2, "b"), (5, "e")))
    assert tuples(bag.changes(2).arrow) == [(1, "a", -1), (5, "e", 1)]


SOME = st.sampled_from([(1, "a"), (1, None), (2, "a"), (2, "b"), (None, None)])
SIGNED = st.lists(st.tuples(SOME, st.sampled_from([1, -1])), min_size=1, max_size=12)


@pytest.mark.parametrize("telling", [True, False], ids=["hashes tell", "all share one hash"])
@given(commits=st.lists(st.lists(SIGNED, min_size=1, max_size=3), min_size=1, max_size=5))
@settings(deadline=None)
def test_a_bag_counts_what_comes_and_goes_in_its_order(telling, commits):
    with pytest.MonkeyPatch.context() as patching:
        if not telling:
            without_telling_hashes(patching)
        with_model(commits)


def with_model(commits: list[list[list[tuple[tuple[object, ...], int]]]]) -> None:
    sequence = CommitSequence.open(None)
    bag = sequence.create_table("bag", name="bag", schema=Schema.of(("id", "BIGINT"), ("name", "STRING")))
    model: Counter[tuple[object, ...]] = Counter()
    for steps in commits:
        before = Counter(model)
        for row, sign in (change for step in steps for change in step):
            # A removal that finds no row does nothing.
            model[row] = max(0, model[row] + sign)
        writes = [(bag, changes(*((*row, sign) for row, sign in step))) for step in steps]
        commit = sequence.commit(Part(writes=writes))
        assert Counter(map(tuple, (row.values() for row in bag.snapshot().scan().to_pylist()))) == +model
        added, removed = commit.changed.get("bag", (0, 0))
        assert (added, removed) == ((model - before).total(), (before - model).total())
    sequence.close()


def test_a_bag_counts_many_rows_as_it_counts_few(bag):
    """More rows than are compared one by one, twice each, with text of every length; some rows come back."""
    rows = [(number, "x" * (number % 40)) for number in range(3000)]
    bag.commit(write(Mode.APPEND, *rows, *rows))
    bag.commit(changes(*((*row, -1) for row in rows), *((*row, 1) for row in rows[:1000])))
    assert Counter(now(bag)) == Counter(rows + rows[:1000])
    bag.commit(write(Mode.REPLACE, *rows[500:]))
    assert tuples(bag.changes(2).arrow) == sorted(((*row, -1) for row in [*rows[:500], *rows[:1000]]), key=repr)


def test_rows_written_one_by_one_are_removed_by_value_too(bag):
    bag.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    bag.commit(write(Mode.DELETE, (2, "b")))
    assert bag.write_records(Mode.APPEND, [{"id": 2, "name": "b"}, {"id": 3, "name": "c"}])
    bag.commit(write(Mode.DELETE, (2, "b"), (1, "a")))
    assert now(bag) == [(3, "c")]


def test_columns_match_in_any_case_and_missing_ones_are_null(people):
    people.commit(Write(Mode.APPEND, pa.table({"ID": pa.array([1], pa.int32())})))
    assert now(people) == [(1, None)]


def test_an_unknown_column_names_the_near_one(people):  # B16
    with pytest.raises(NotFoundError, match='column "nam" does not exist') as caught:
        people.commit(Write(Mode.APPEND, pa.table({"id": [1], "nam": ["a"]})))
    assert caught.value.hint == 'did you mean "name"?'
