"""Replicas follow their table: whatever is published is what a snapshot of that number holds."""

import math
import pickle
import threading
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from velostream.engine import replica as module
from velostream.engine.replica import ReplicaPublisher, open_replica
from velostream.errors import TableError
from velostream.model.change import ChangeBatch, Mode, Write
from velostream.model.schema import Schema
from velostream.tables.memory import CommitSequence

USERS = Schema.of(("id", "BIGINT"), ("city", "STRING"), ("score", "DOUBLE"), key=["id"])
VISITS = Schema.of(("city", "STRING"), ("tags", "ARRAY<STRING>"), ("score", "DOUBLE"))


@pytest.fixture
def sequence():
    return CommitSequence()


@pytest.fixture
def publisher(tmp_path):
    return ReplicaPublisher(tmp_path / "replicas")


@pytest.fixture(autouse=True)
def fresh_worker():
    module._opened.clear()


def users(sequence, *rows):
    table = sequence.create_table("users", name="users", schema=USERS)
    table.commit(Write(Mode.APPEND, users_table(*rows)))
    return table


def users_table(*rows):
    return pa.table(list(map(list, zip(*rows, strict=True))) or [[], [], []], schema=USERS.arrow)


def found(replica, *keys, columns=("id", "city", "score")):
    """`(number of the key, row…)` for each match."""
    arrays = [
        pa.array(list(values), type_) for values, type_ in zip(zip(*keys, strict=True), types(replica), strict=True)
    ]
    positions, rows = open_replica(replica).lookup(arrays, columns)
    return list(zip(positions.tolist(), *(column.to_pylist() for column in rows.columns), strict=True))


def types(replica):
    schema = open_replica(replica).schema
    return [schema.field(name).type for name in replica.columns]


def test_a_batch_finds_its_rows_in_the_order_of_its_keys(sequence, publisher):  # B28
    table = users(sequence, (1, "oslo", 0.5), (2, "rome", None), (3, "oslo", 1.5))
    replica = publisher.publish(table, columns=("id",), at=sequence.sequence)
    assert found(replica, (3,), (9,), (None,), (1,), (3,)) == [
        (0, 3, "oslo", 1.5),
        (3, 1, "oslo", 0.5),
        (4, 3, "oslo", 1.5),
    ]


def test_duplicates_give_one_row_each_in_table_order(sequence, publisher):  # B28
    table = users(sequence, (1, "oslo", 0.5), (2, "rome", None), (3, "oslo", 1.5))
    replica = publisher.publish(table, columns=("city",), at=sequence.sequence)
    assert found(replica, ("rome",), ("oslo",), columns=("id",)) == [(0, 2), (1, 1), (1, 3)]


def test_a_composite_key_needs_every_part(sequence, publisher):
    table = users(sequence, (1, "oslo", 0.5), (2, "rome", None), (3, "oslo", 1.5))
    replica = publisher.publish(table, columns=("city", "id"), at=sequence.sequence)
    assert found(replica, ("oslo", 3), ("rome", 3), ("oslo", None), columns=("score",)) == [(0, 1.5)]


def test_nan_matches_nan_and_zero_its_negative(sequence, publisher):
    table = users(sequence, (1, "a", math.nan), (2, "b", -0.0), (3, "c", None))
    replica = publisher.publish(table, columns=("score",), at=sequence.sequence)
    assert found(replica, (math.nan,), (0.0,), (None,), columns=("id",)) == [(0, 1), (1, 2)]


def test_an_empty_table_and_an_empty_batch_find_nothing(sequence, publisher):
    table = users(sequence)
    replica = publisher.publish(table, columns=("id",), at=sequence.sequence)
    assert found(replica, (1,)) == []
    positions, rows = open_replica(replica).lookup([pa.array([], pa.int64())], ["city"])
    assert (len(positions), rows.num_rows) == (0, 0)
    table.commit(Write(Mode.APPEND, users_table((1, "oslo", None))))
    assert found(publisher.publish(table, columns=("id",), at=sequence.sequence), (1,)) == [(0, 1, "oslo", None)]


def test_rows_that_are_not_there_are_taken_as_nulls(sequence, publisher):
    table = users(sequence, (1, "oslo", 0.5))
    opened = open_replica(publisher.publish(table, columns=("id",), at=sequence.sequence))
    (cities,) = opened.take(np.array([0, -1]), ["city"])
    assert cities.to_pylist() == ["oslo", None]


def test_a_change_is_published_as_a_change(sequence, publisher):  # B33
    table = users(sequence, *((number, "oslo", 0.0) for number in range(1000)))
    first = publisher.publish(table, columns=("id",), at=sequence.sequence)
    assert found(first, (7,), columns=("city",)) == [(0, "oslo")]
    table.commit(Write(Mode.UPSERT, users_table((7, "rome", 0.0), (5000, "bonn", 0.0))))
    table.commit(Write(Mode.DELETE, pa.table({"id": pa.array([8])})))
    second = publisher.publish(table, columns=("id",), at=sequence.sequence)
    assert (second.folder, second.deltas) == (first.folder, 1)
    assert found(second, (7,), (8,), (5000,), columns=("city",)) == [(0, "rome"), (2, "bonn")]
    # The worker has gone on, yet a batch pinned to the older number sees what it saw.
    assert found(first, (7,), (8,), (5000,), columns=("city",)) == [(0, "oslo"), (1, "oslo")]


def test_several_lookups_of_a_table_share_its_rows(sequence, publisher):
    table = users(sequence, (1, "oslo", 0.5))
    by_id = publisher.publish(table, columns=("id",), at=sequence.sequence)
    by_city = publisher.publish(table, columns=("CITY",), at=sequence.sequence)
    assert by_id.base_path == by_city.base_path
    assert by_id.index_path != by_city.index_path
    table.commit(Write(Mode.UPSERT, users_table((1, "rome", 0.5))))
    for columns, key in ((("id",), (1,)), (("city",), ("rome",))):
        replica = publisher.publish(table, columns=columns, at=sequence.sequence)
        assert found(replica, key, columns=("id", "city")) == [(0, 1, "rome")]


def test_the_same_number_is_the_same_replica(sequence, publisher):
    table = users(sequence, (1, "oslo", 0.5))
    other = sequence.create_table("other", name="other", schema=USERS)
    first = publisher.publish(table, columns=("id",), at=sequence.sequence)
    assert publisher.publish(table, columns=("id",), at=sequence.sequence) is first
    other.commit(Write(Mode.APPEND, users_table((1, "oslo", 0.5))))
    # Another table's commit moves the sequence, not this table.
    assert publisher.publish(table, columns=("id",), at=sequence.sequence) is first


def test_a_replica_is_small_and_travels(sequence, publisher):
    table = users(sequence, *((number, "oslo", 0.0) for number in range(5000)))
    publisher.publish(table, columns=("id",), at=sequence.sequence)
    for number in range(20):
        table.commit(Write(Mode.UPSERT, users_table((number, "rome", 0.0))))
        replica = publisher.publish(table, columns=("id",), at=sequence.sequence)
    assert replica.deltas == 20
    assert len(pickle.dumps(replica)) < 500
    assert found(pickle.loads(pickle.dumps(replica)), (19,), (20,), columns=("city",)) == [(0, "rome"), (1, "oslo")]


def test_an_older_number_can_be_published_again(sequence, publisher):
    table = users(sequence, (1, "oslo", 0.5))
    with sequence.pin() as pin:
        for city in ("rome", "bonn"):
            table.commit(Write(Mode.UPSERT, users_table((1, city, 0.5))))
        newest = publisher.publish(table, columns=("id",), at=sequence.sequence)
        older = publisher.publish(table, columns=("id",), at=pin.sequence)
        assert older.version < newest.version
        assert found(older, (1,), columns=("city",)) == [(0, "oslo")]
        assert found(newest, (1,), columns=("city",)) == [(0, "bonn")]
        table.commit(Write(Mode.UPSERT, users_table((1, "wien", 0.5))))
        # The replay of an old batch does not cost the others their base.
        assert publisher.publish(table, columns=("id",), at=sequence.sequence).folder == newest.folder


def test_a_number_the_table_does_not_know_is_refused(sequence, publisher):
    table = users(sequence, (1, "oslo", 0.5))
    with pytest.raises(TableError):
        publisher.publish(table, columns=("id",), at=sequence.sequence + 1)


def test_when_the_history_is_gone_a_new_base_does(sequence, publisher, monkeypatch):
    table = users(sequence, (1, "oslo", 0.5))
    first = publisher.publish(table, columns=("id",), at=sequence.sequence)
    table.commit(Write(Mode.UPSERT, users_table((1, "rome", 0.5))))

    def expired(since, until=None):
        raise TableError.version_gone("users", since, oldest=since + 1)

    monkeypatch.setattr(table, "changes", expired)
    second = publisher.publish(table, columns=("id",), at=sequence.sequence)
    assert second.folder != first.folder
    assert found(second, (1,), columns=("city",)) == [(0, "rome")]


def test_a_removed_row_that_nobody_knows_makes_a_new_base(sequence, publisher, monkeypatch):
    table = users(sequence, (1, "oslo", 0.5))
    first = publisher.publish(table, columns=("id",), at=sequence.sequence)
    table.commit(Write(Mode.UPSERT, users_table((1, "rome", 0.5))))
    strange = users_table((99, "nowhere", 0.5)).append_column("_change", pa.array([-1], pa.int8()))
    monkeypatch.setattr(table, "changes", lambda *_: ChangeBatch(table.version, strange))
    second = publisher.publish(table, columns=("id",), at=sequence.sequence)
    assert second.folder != first.folder
    assert found(second, (1,), columns=("city",)) == [(0, "rome")]


def test_many_changes_make_a_new_base_and_old_files_go(sequence, publisher, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FEWEST_CHANGES", 10)
    table = users(sequence, *((number, "oslo", 0.0) for number in range(20)))
    held = publisher.publish(table, columns=("id",), at=sequence.sequence)
    folders = [held.folder]
    for number in range(60):
        table.commit(Write(Mode.UPSERT, users_table((number % 20, f"city {number}", 0.0))))
        replica = publisher.publish(table, columns=("id",), at=sequence.sequence)
        assert found(replica, (number % 20,), columns=("city",)) == [(0, f"city {number}")]
        folders += [replica.folder] if replica.folder not in folders else []
    assert len(folders) > 5
    left = sorted(str(path) for path in (tmp_path / "replicas").glob("*/*/*"))
    # The two newest, and the one that somebody still holds; also for a worker that starts anew.
    assert left == sorted([held.folder, *folders[-2:]])
    module._opened.clear()
    assert found(held, (3,), columns=("city",)) == [(0, "oslo")]
    del held
    table.commit(Write(Mode.APPEND, users_table(*((number, "x", 0.0) for number in range(100, 120)))))
    publisher.publish(table, columns=("id",), at=sequence.sequence)
    assert not any(path == folders[0] for path in map(str, (tmp_path / "replicas").glob("*/*/*")))


def test_many_small_changes_make_a_new_base_too(sequence, publisher, monkeypatch):
    monkeypatch.setattr(module, "_FEWEST_DELTAS", 3)
    table = users(sequence, (1, "oslo", 0.5))
    deltas = []
    for number in range(9):
        table.commit(Write(Mode.UPSERT, users_table((1, f"city {number}", 0.5))))
        deltas.append(publisher.publish(table, columns=("id",), at=sequence.sequence).deltas)
    assert deltas == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_equal_rows_of_a_bag_go_one_by_one(sequence, publisher):
    table = sequence.create_table("visits", name="visits", schema=VISITS)
    row = ("oslo", ["a", None], -0.0)
    rows = pa.table([[one] * 3 for one in row], schema=VISITS.arrow)
    table.commit(Write(Mode.APPEND, rows))
    base = publisher.publish(table, columns=("city",), at=sequence.sequence)
    for left in (2, 1, 0):
        table.commit(Write(Mode.DELETE, rows.slice(0, 1)))
        replica = publisher.publish(table, columns=("city",), at=sequence.sequence)
        assert replica.folder == base.folder
        assert len(found(replica, ("oslo",), columns=("tags",))) == left


def test_a_dropped_table_leaves_no_files(sequence, publisher, tmp_path):
    publisher.publish(users(sequence, (1, "oslo", 0.5)), columns=("id",), at=sequence.sequence)
    assert list((tmp_path / "replicas").glob("*/*"))
    sequence.drop_table("users")
    assert not list((tmp_path / "replicas").glob("*/*"))


def test_threads_publish_at_the_same_time(sequence, publisher):
    table = users(sequence, *((number, "oslo", 0.0) for number in range(200)))
    failures = []

    def run(number):
        try:
            for turn in range(20):
                table.commit(Write(Mode.UPSERT, users_table((number, f"{turn}", 0.0))))
                replica = publisher.publish(table, columns=("id",), at=sequence.sequence)
                assert found(replica, (number,), columns=("city",)) == [(0, f"{turn}")]
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


CITIES = st.sampled_from(["oslo", "rome", "bonn", None])
SCORES = st.sampled_from([0.0, -0.0, math.nan, 1.5, None])
TAGS = st.sampled_from([["a"], ["a", None], [], None])


class ReplicaMachine(RuleBasedStateMachine):
    """Random commits to a keyed table and a bag; published versions are compared with the tables' own snapshots."""

    @initialize()
    def start(self):
        module._opened.clear()
        self.sequence = CommitSequence()
        self.folder = self.tmp_path_factory.mktemp("machine")
        self.publisher = ReplicaPublisher(self.folder / "replicas")
        self.keyed = self.sequence.create_table("keyed", name="keyed", schema=USERS)
        self.bag = self.sequence.create_table("bag", name="bag", schema=VISITS)
        self.held = []

    @rule(rows=st.dictionaries(st.integers(0, 9), st.tuples(CITIES, SCORES), min_size=1))
    def upsert(self, rows):
        self.keyed.commit(Write(Mode.UPSERT, users_table(*((key, *rest) for key, rest in rows.items()))))

    @rule(keys=st.sets(st.integers(0, 9), min_size=1))
    def delete(self, keys):
        self.keyed.commit(Write(Mode.DELETE, pa.table({"id": pa.array(sorted(keys))})))

    @rule(rows=st.lists(st.tuples(CITIES, TAGS, SCORES), min_size=1, max_size=6))
    def append(self, rows):
        columns = list(map(list, zip(*rows, strict=True)))
        self.bag.commit(Write(Mode.APPEND, pa.table(columns, schema=VISITS.arrow)))

    @rule(share=st.floats(0, 1))
    def remove(self, share):
        rows = self.bag.snapshot().scan()
        self.bag.commit(Write(Mode.DELETE, rows.slice(0, int(rows.num_rows * share))))

    @rule()
    def publish(self):
        at = self.sequence.sequence
        for table, columns in ((self.keyed, ("id",)), (self.keyed, ("city",)), (self.bag, ("city", "score"))):
            replica = self.publisher.publish(table, columns=columns, at=at)
            self.held.append((replica, table.snapshot(at).scan()))
        self.held = self.held[-12:]

    @rule()
    def restart_the_worker(self):
        module._opened.clear()

    @invariant()
    def every_published_version_is_its_snapshot(self):
        for replica, rows in self.held:
            keys = [
                pa.concat_arrays(rows.column(name).chunks or [pa.array([], rows.column(name).type)])
                for name in replica.columns
            ]
            positions, matches = open_replica(replica).lookup(keys, rows.column_names)
            assert Counter(by_row(positions, matches)) == Counter(expected_matches(rows, replica.columns))


def by_row(positions, rows):
    return [(position, canonical(row)) for position, row in zip(positions.tolist(), rows.to_pylist(), strict=True)]


def canonical(row):
    return repr({name: 0.0 if value == 0 else value for name, value in row.items()})


def expected_matches(rows, columns):
    """The rows looked up by their own keys."""
    listed = rows.to_pylist()
    for number, one in enumerate(listed):
        for other in listed:
            if all(
                one[name] is not None and canonical({name: one[name]}) == canonical({name: other[name]})
                for name in columns
            ):
                yield number, canonical(other)


def test_random_histories(tmp_path_factory):
    class Machine(ReplicaMachine):
        pass

    Machine.tmp_path_factory = tmp_path_factory
    run_state_machine_as_test(Machine, settings=settings(max_examples=25, stateful_step_count=20, deadline=None))
