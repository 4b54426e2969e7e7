"""One order of commits for all tables: epochs, pins, listeners, and readers that never see half of one."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from velostream.errors import ClosedError, NotFoundError, OptionError, StateError, TableError
from velostream.model.change import Epoch, Mode
from velostream.model.schema import Schema
from velostream.tables.memory import Changed, Part

from .conftest import content, tuples, write


def test_a_commit_of_several_tables_has_one_number(people, bag, sequence):
    commit = sequence.commit(
        Part(writes=[(people, write(Mode.APPEND, (1, "a"))), (bag, write(Mode.APPEND, (1, "a"), (2, "b")))])
    )
    assert commit.sequence == people.version == bag.version == 1
    assert commit.changed == {"people": Changed(1, 0), "bag": Changed(2, 0)}


def test_a_version_is_the_number_of_the_last_change(people, bag, sequence):
    people.commit(write(Mode.APPEND, (1, "a")))
    bag.commit(write(Mode.APPEND, (1, "a")))
    assert (people.version, bag.version, sequence.sequence) == (1, 2, 2)
    assert people.snapshot(2).version == 1


def test_a_repeated_epoch_changes_nothing(people, sequence):
    first = Part([(people, write(Mode.UPSERT, (1, "a")))], Epoch("q", 5), position={"offset": 10}, reads={"s": 3})
    sequence.commit(first)
    for number in (5, 4):
        repeat = Part([(people, write(Mode.UPSERT, (1, "other")))], Epoch("q", number), position={"offset": 99})
        assert sequence.commit(repeat).sequence == 1
    assert tuples(people.snapshot().scan()) == [(1, "a")]
    state = sequence.writer("q")
    assert state is not None
    assert (state.epoch, state.position, dict(state.reads), state.sequence) == (5, {"offset": 10}, {"s": 3}, 1)


def test_only_the_repeated_part_of_a_commit_is_left_out(people, bag, sequence):
    sequence.commit(Part([(people, write(Mode.UPSERT, (1, "a")))], Epoch("q", 1)))
    sequence.commit(
        Part([(people, write(Mode.UPSERT, (1, "b")))], Epoch("q", 1)),
        Part([(bag, write(Mode.APPEND, (2, "x")))], Epoch("r", 1)),
    )
    assert tuples(people.snapshot().scan()) == [(1, "a")]
    assert tuples(bag.snapshot().scan()) == [(2, "x")]


def test_the_same_epoch_twice_in_one_commit_counts_once(bag, sequence):
    part = Part([(bag, write(Mode.APPEND, (2, "x")))], Epoch("r", 1))
    sequence.commit(part, part)
    assert tuples(bag.snapshot().scan()) == [(2, "x")]


def test_an_epoch_without_rows_changes_no_version(people, sequence):
    people.commit(write(Mode.APPEND, (1, "a")))
    commit = sequence.commit(Part(epoch=Epoch("q", 1), position=[1]))
    assert commit.changed == {}
    assert people.version == 1
    assert sequence.writer("q").position == [1]


def test_nothing_to_do_is_no_commit(people, sequence):
    assert sequence.commit(Part(writes=[(people, write(Mode.DELETE, (1,), columns=("id",)))])).sequence == 0


def test_a_forgotten_writer_begins_again(bag, sequence):
    sequence.commit(Part([(bag, write(Mode.APPEND, (1, "x")))], Epoch("q", 7)))
    sequence.forget_writer("q")
    assert sequence.writer("q") is None
    sequence.commit(Part([(bag, write(Mode.APPEND, (2, "y")))], Epoch("q", 0)))
    assert bag.snapshot().count() == 2


def test_create_gives_the_table_that_is_there_if_it_fits(people, sequence):
    again = sequence.create_table("people", name="people", schema=people.schema)
    assert again is people
    with pytest.raises(StateError, match="is stored with other columns") as caught:
        sequence.create_table("people", name="people", schema=Schema.of(("id", "INT"), key=["id"]))
    assert caught.value.code == "schema-mismatch"


def test_options_are_checked(sequence, people):  # B12
    for options in ({"histroy": "7"}, {"history": "many"}):
        with pytest.raises(OptionError):
            sequence.create_table("t", name="t", schema=people.schema, options=options)
    with pytest.raises(NotFoundError, match='column "nam" does not exist'):
        sequence.create_table("t", name="t", schema=people.schema, options={"index": "id; nam"})
    assert sequence.table_ids() == ("people",)
    table = sequence.create_table("t", name="t", schema=people.schema, options={"index": "NAME, id; name"})
    assert table.indexes == (("id",), ("name", "id"), ("name",))


def test_a_dropped_table_takes_no_commit_and_stays_readable(people, sequence):
    people.commit(write(Mode.APPEND, (1, "a")))
    snapshot = people.snapshot()
    sequence.drop_table("people")
    assert sequence.table_ids() == ()
    assert tuples(snapshot.scan()) == [(1, "a")]
    with pytest.raises(NotFoundError, match='table "people" does not exist'):
        people.commit(write(Mode.APPEND, (2, "b")))
    with pytest.raises(NotFoundError):
        sequence.table("people")


def test_a_closed_sequence_refuses_commits(people, sequence):
    people.commit(write(Mode.APPEND, (1, "a")))
    snapshot = people.snapshot()
    sequence.close()
    with pytest.raises(ClosedError):
        people.commit(write(Mode.APPEND, (2, "b")))
    assert snapshot.count() == 1


def test_listeners_hear_of_every_commit_in_order_and_may_commit(people, bag, sequence):
    heard: list[int] = []

    def follow(commit):
        heard.append(commit.sequence)
        if "people" in commit.changed:
            bag.commit(write(Mode.APPEND, (commit.sequence, "seen")))

    stop = sequence.listen(follow)
    people.commit(write(Mode.APPEND, (1, "a")))
    people.commit(write(Mode.APPEND, (2, "b")))
    assert heard == [1, 2, 3, 4]
    stop()
    people.commit(write(Mode.APPEND, (3, "c")))
    assert heard == [1, 2, 3, 4]


def test_listeners_are_called_outside_of_the_lock(people, sequence):
    def commit_elsewhere(commit):
        if commit.sequence == 1:
            thread = threading.Thread(target=people.commit, args=(write(Mode.APPEND, (2, "b")),))
            thread.start()
            thread.join(timeout=10)
            assert not thread.is_alive()

    sequence.listen(commit_elsewhere)
    with sequence.exclusive():
        people.commit(write(Mode.APPEND, (1, "a")))
        assert people.version == 1
    assert people.version == 2


def test_a_failing_listener_disturbs_nobody(people, sequence, caplog):
    heard: list[int] = []
    sequence.listen(lambda _: 1 / 0)
    sequence.listen(lambda commit: heard.append(commit.sequence))
    people.commit(write(Mode.APPEND, (1, "a")))
    assert heard == [1]
    assert "a listener of commits failed" in caplog.text


def test_exclusive_holds_off_other_threads(people, sequence):
    people.commit(write(Mode.APPEND, (1, "0")))

    def increment() -> None:
        for _ in range(50):
            with people.exclusive():
                current = int(people.snapshot().get(1)["name"])
                people.commit(write(Mode.UPSERT, (1, str(current + 1))))

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert people.snapshot().get(1)["name"] == "200"


@pytest.mark.parametrize("fewest_dead", [4096, 30], ids=["rows stay", "rows are renumbered"])
def test_readers_never_see_half_a_commit(sequence, monkeypatch, fewest_dead):  # B33, B50
    """Two tables always hold the same rows, a multiple of ten; readers check it while a writer changes both."""
    monkeypatch.setattr("velostream.tables.memory.table._FEWEST_DEAD_ROWS", fewest_dead)
    schema = Schema.of(("id", "BIGINT"), ("name", "STRING"), key=["id"])
    left = sequence.create_table("left", name="left", schema=schema, options={"index": "name"})
    right = sequence.create_table("right", name="right", schema=schema)
    done = threading.Event()
    torn: list[object] = []
    reads = [0]

    def read() -> None:
        while not done.is_set():
            both = sequence.snapshot(["left", "right"])
            if content(both["left"].scan()) != content(both["right"].scan()):
                torn.append(both)
            alone = left.snapshot()
            ids = alone.scan().column("id")
            if alone.count() != len(ids) or len(ids) % 10 or alone.lookup(ids).num_rows != len(ids):
                torn.append(alone)
            if not all(alone.contains(key) for key in ids.to_pylist()):
                torn.append(alone)
            reads[0] += 1

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    batch = 0
    while batch < 150 or reads[0] < 30:
        added = write(Mode.UPSERT, *((batch * 10 + row, str(batch)) for row in range(10)))
        gone = write(Mode.DELETE, *(((batch - 20) * 10 + row,) for row in range(10)), columns=("id",))
        sequence.commit(*(Part([(table, added), (table, gone)]) for table in (left, right)))
        batch += 1
    done.set()
    for thread in threads:
        thread.join()
    assert torn == []


def test_snapshots_of_several_tables_are_of_one_number(people, bag, sequence):
    sequence.commit(Part([(people, write(Mode.APPEND, (1, "a"))), (bag, write(Mode.APPEND, (1, "a")))]))
    sequence.commit(Part([(people, write(Mode.APPEND, (2, "b"))), (bag, write(Mode.APPEND, (2, "b")))]))
    older = sequence.snapshot(["people", "bag"], 1)
    assert tuples(older["people"].scan()) == tuples(older["bag"].scan()) == [(1, "a")]


def churn(table, times: int, rows: int = 1000) -> None:
    for number in range(times):
        table.commit(write(Mode.UPSERT, *((row, f"{number}.{row}") for row in range(rows))))


def test_dead_rows_are_given_back(people):
    churn(people, 20)
    stats = people.stats()
    assert stats["rows"] == 1000
    assert stats["dead_rows"] < 6000
    assert people.snapshot().get(7)["name"] == "19.7"
    with pytest.raises(TableError) as caught:
        people.snapshot(1)
    assert caught.value.code == "changes-expired"
    with pytest.raises(TableError) as caught:
        people.changes(1)
    assert caught.value.code == "changes-expired"


def test_a_pin_keeps_versions_readable_until_released(people, sequence):
    churn(people, 2)
    with sequence.pin() as pin:
        kept = content(people.snapshot().scan())
        churn(people, 20)
        assert content(people.snapshot(pin.sequence).scan()) == kept
        assert len(people.changes(pin.sequence).arrow) == 2000
        assert people.snapshot(pin.sequence).get(7)["name"] == "1.7"
    churn(people, 20)
    with pytest.raises(TableError):
        people.snapshot(pin.sequence)


def test_what_a_writer_reads_stays_readable(people, sequence):
    churn(people, 1)
    sequence.commit(Part(epoch=Epoch("view", 1), reads={"people": people.version}))
    churn(people, 20)
    assert len(people.changes(1).arrow) == 2000
    sequence.commit(Part(epoch=Epoch("view", 2), reads={"people": people.version}))
    churn(people, 20)
    with pytest.raises(TableError):
        people.changes(1)


def test_the_option_history_keeps_that_many_versions(sequence, people):
    table = sequence.create_table("kept", name="kept", schema=people.schema, options={"history": "7"})
    churn(table, 40)
    assert [table.snapshot(version).get(7)["name"] for version in (33, 40)] == ["32.7", "39.7"]
    assert len(table.changes(33).arrow) == 2000
    with pytest.raises(TableError):
        table.snapshot(10)


def test_a_snapshot_outlives_the_renumbering(people, sequence):
    people.create_index(["name"])
    churn(people, 2)
    old = people.snapshot()
    expected = content(old.scan())
    churn(people, 20)
    assert content(old.scan()) == expected
    assert old.get(7)["name"] == "1.7"
    assert old.lookup(pa.array([7, 2000])).column("name").to_pylist() == ["1.7"]
    assert old.lookup_by(["name"], pa.array(["1.7", "19.7"])).column("id").to_pylist() == [7]
    assert people.snapshot().lookup_by(["name"], pa.array(["1.7", "19.7"])).column("id").to_pylist() == [7]


def test_a_version_that_is_not_there_yet_is_said_so(people):
    people.commit(write(Mode.APPEND, (1, "a")))
    for ask in (people.snapshot, people.changes):
        with pytest.raises(TableError, match='version 9 of table "people" does not exist yet'):
            ask(9)


def test_many_small_commits_stay_cheap(people):
    for number in range(2000):
        people.commit(write(Mode.UPSERT, (number, "a")))
    assert people.stats()["chunks"] < 50
    assert people.snapshot().count() == 2000
    assert people.changes(1990).arrow.num_rows == 10


def test_when_a_table_was_last_changed(sequence, people, bag):
    assert sequence.changed_at(people.id) is None
    before = datetime.now(UTC)
    for table in (people, bag):
        table.commit(write(Mode.APPEND, (1, "a")))
    for table in (people, bag):
        moment = sequence.changed_at(table.id)
        assert moment is not None
        assert before - timedelta(milliseconds=1) <= moment <= datetime.now(UTC)
    assert sequence.changed_at("unknown") is None
