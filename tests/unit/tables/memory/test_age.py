"""Rows that leave by age, versions that are forgotten, bases written beside the commits, and figures about it all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import TableError
from velostream.model.change import Epoch, Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Schema
from velostream.tables.memory import CommitSequence, Part

from .conftest import content, tuples, write

PEOPLE = Schema.of(("id", "BIGINT"), ("name", "STRING"), key=["id"])


def eventually(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        threading.Event().wait(0.005)


@pytest.fixture
def clock(sequence, monkeypatch):
    """Time as the tables see it, in seconds, set by the test, which alone removes what is old: no housekeeper does."""
    now = [1_000_000.0]
    monkeypatch.setattr("velostream.tables.memory.generation.time.time_ns", lambda: int(now[0] * 1e9))
    monkeypatch.setattr("velostream.tables.memory.table.time.time_ns", lambda: int(now[0] * 1e9))
    monkeypatch.setattr("velostream.tables.memory.table.time.time", lambda: now[0])
    with sequence.exclusive():
        yield now


@pytest.mark.parametrize("option", ["retention", "ttl"])
@pytest.mark.parametrize("keyed", [True, False])
def test_rows_leave_when_they_are_old(sequence, option, keyed):
    schema = PEOPLE if keyed else Schema(PEOPLE.columns)
    table = sequence.create_table("t", name="t", schema=schema, options={option: "80ms"})
    heard: list[int] = []
    sequence.listen(lambda commit: heard.append(commit.changed["t"].removed))
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    eventually(lambda: table.snapshot().count() == 0)
    assert sum(heard) == 2
    assert content(table.changes(1).arrow) == content(
        pa.table({"id": [1, 2], "name": ["a", "b"], "_change": pa.array([-1, -1], pa.int8())})
    )
    table.commit(write(Mode.APPEND, (3, "c")))
    eventually(lambda: table.snapshot().count() == 0)


def test_age_is_counted_from_the_last_write(sequence, clock):
    table = sequence.create_table("t", name="t", schema=PEOPLE, options={"retention": "1h", "ttl": "10s"})
    assert table.write_records(Mode.APPEND, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    clock[0] += 8
    table.commit(write(Mode.UPSERT, (1, "written again"), (3, "c")))
    assert table.expired() is None
    clock[0] += 3
    leaving = table.expired()
    assert leaving.mode is Mode.DELETE
    assert leaving.rows.to_pylist() == [{"id": 2}]
    table.commit(leaving)
    assert table.seconds_to_expiry() == pytest.approx(7)
    clock[0] += 7
    assert table.expired().rows["id"].to_pylist() == [1, 3]


def test_of_equal_rows_of_a_bag_the_oldest_leaves(sequence, clock):
    table = sequence.create_table("t", name="t", schema=Schema(PEOPLE.columns), options={"ttl": "10s"})
    for _ in range(3):
        table.commit(write(Mode.APPEND, (1, "a")))
        clock[0] += 4
    assert table.expired().rows.num_rows == 1
    table.commit(table.expired())
    assert table.snapshot().count() == 2
    assert table.seconds_to_expiry() == pytest.approx(2)


def test_a_clock_that_goes_back_makes_nothing_older(sequence, clock):
    table = sequence.create_table("t", name="t", schema=PEOPLE, options={"ttl": "10s"})
    table.commit(write(Mode.APPEND, (1, "a")))
    clock[0] -= 1000
    table.commit(write(Mode.APPEND, (2, "b")))
    clock[0] += 1009
    assert table.expired() is None
    clock[0] += 1
    assert table.expired().rows["id"].to_pylist() == [1, 2]


@pytest.mark.parametrize("with_base", [False, True])
def test_rows_grow_old_over_restarts(reopened, with_base):  # B55
    sequence = reopened()
    table = sequence.create_table("t", name="t", schema=PEOPLE, options={"retention": "1h"})
    sequence.create_table("other", name="other", schema=PEOPLE).commit(write(Mode.APPEND, (1, "a")))
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    if with_base:
        sequence.write_base()
    table.commit(write(Mode.UPSERT, (2, "c"), (3, "d")))
    before = table.seconds_to_expiry()
    sequence = reopened()
    table = sequence.table("t")
    assert 3590 < table.seconds_to_expiry() <= before
    assert tuples(table.snapshot().scan()) == [(1, "a"), (2, "c"), (3, "d")]
    assert sequence.table("other").seconds_to_expiry() is None


def test_rows_that_became_old_meanwhile_leave_after_a_restart(reopened):
    sequence = reopened()
    table = sequence.create_table("t", name="t", schema=PEOPLE, options={"retention": "300ms"})
    table.commit(write(Mode.APPEND, (1, "a")))
    sequence = reopened()
    eventually(lambda: sequence.table("t").snapshot().count() == 0)
    assert reopened().table("t").snapshot().count() == 0


def test_a_dropped_table_ages_no_more(sequence):
    table = sequence.create_table("t", name="t", schema=PEOPLE, options={"ttl": "20ms"})
    other = sequence.create_table("o", name="o", schema=PEOPLE, options={"ttl": "60ms"})
    with sequence.exclusive():
        table.commit(write(Mode.APPEND, (1, "a")))
        other.commit(write(Mode.APPEND, (1, "a")))
        sequence.drop_table("t")
    eventually(lambda: other.snapshot().count() == 0)
    assert table.snapshot().count() == 1


def test_history_max_forgets_what_others_still_hold(sequence):
    table = sequence.create_table("t", name="t", schema=PEOPLE, options={"history": "1", "history.max": "3"})
    pin = sequence.pin(0)
    sequence.commit(Part(epoch=Epoch("q", 1), reads={"t": 0}))
    for number in range(6):
        table.commit(write(Mode.UPSERT, (1, str(number))))
    assert table.version == 7
    assert [table.snapshot(version).get(1)["name"] for version in (4, 5, 6, 7)] == ["2", "3", "4", "5"]
    assert tuples(table.changes(4).arrow) == [(1, "2", -1), (1, "5", 1)]
    for version in (1, 3):
        for ask in (table.snapshot, table.changes):
            with pytest.raises(TableError) as caught:
                ask(version)
            assert caught.value.code == "changes-expired"
    pin.release()


def test_history_max_bounds_what_is_kept(sequence):
    table = sequence.create_table("t", name="t", schema=PEOPLE, options={"history.max": "2"})
    with sequence.pin():
        for number in range(30):
            table.commit(write(Mode.UPSERT, *((row, f"{number}") for row in range(1000))))
    assert table.stats()["dead_rows"] < 7000


def test_a_base_is_written_beside_the_commits(reopened, tmp_path, monkeypatch):
    """Commits go on while a base can't be finished, and everything is there afterwards."""
    monkeypatch.setattr("velostream.tables.memory.store._SMALLEST_LOG_TO_MERGE", 20_000)
    began, go_on = threading.Event(), threading.Event()
    from velostream.tables.memory import store

    write_rows = store.write_rows

    def slowly(*args, **options):
        began.set()
        assert go_on.wait(20)
        return write_rows(*args, **options)

    monkeypatch.setattr("velostream.tables.memory.store.write_rows", slowly)
    sequence = reopened()
    table = sequence.create_table("t", name="t", schema=PEOPLE)
    number = 0
    while not began.is_set():
        table.commit(write(Mode.UPSERT, *((row, f"{number}") for row in range(20))))
        number += 1
        assert number < 5000
    for _ in range(5):
        table.commit(write(Mode.UPSERT, *((row, f"{number}") for row in range(20))))
        number += 1
    assert not (tmp_path / "log" / "base.json").exists()
    go_on.set()
    eventually((tmp_path / "log" / "base.json").exists)
    assert set(tuples(reopened().table("t").snapshot().scan())) == {(row, f"{number - 1}") for row in range(20)}


def test_figures(sequence):
    schema = Schema.of(("id", "BIGINT"), ("name", "STRING"), ("d", "DECIMAL(5,2)"), ("a", "ARRAY<INT>"), key=["id"])
    table = sequence.create_table("t", name="t", schema=schema, options={"index": "name"})
    assert table.stats()["columns"]["d"].min is None
    rows = [{"id": n, "name": None if n % 5 == 0 else f"n{n % 3}", "d": Decimal(n), "a": [n]} for n in range(100)]
    table.commit(Write(Mode.APPEND, pa.Table.from_pylist(rows, schema.arrow)))
    stats = table.stats()
    assert (stats["rows"], stats["version"], stats["spilled_bytes"]) == (100, 1, 0)
    assert stats["bytes"] > 100 * 30
    columns = stats["columns"]
    assert (columns["name"].nulls, columns["name"].min, columns["name"].max, columns["name"].distinct) == (
        20,
        "n0",
        "n2",
        3,
    )
    assert (columns["d"].min, columns["d"].max, columns["d"].distinct) == (Decimal("0.00"), Decimal("99.00"), 100)
    assert columns["a"].min is None
    assert list(columns) == ["id", "name", "d", "a"]
    table.commit(write(Mode.DELETE, *((n,) for n in range(50)), columns=("id",)))
    assert table.stats()["columns"]["id"].min == 50
    table.snapshot().count(Call("=", (ColumnRef("name"), Literal("n1", pa.string()))))
    table.snapshot().count(Call(">", (ColumnRef("id"), Literal(70, pa.int64()))))
    table.snapshot().scan(Call("=", (ColumnRef("id"), Literal(70, pa.int64()))))
    stats = table.stats()
    assert (stats["queries"], stats["index_hits"]) == (3, 2)


def test_distinct_values_are_estimated(sequence):
    schema = Schema.of(("few", "BIGINT"), ("all", "BIGINT"))
    table = sequence.create_table("t", name="t", schema=schema)
    numbers = pa.array(range(100_000), pa.int64())
    few = pa.array([number % 500 for number in range(100_000)], pa.int64())
    table.commit(Write(Mode.APPEND, pa.table({"few": few, "all": numbers})))
    columns = table.stats()["columns"]
    assert columns["few"].distinct == 500
    assert columns["all"].distinct == 100_000


def test_closing_waits_for_the_housekeeper():
    before = set(threading.enumerate())
    sequence = CommitSequence.open(None)
    table = sequence.create_table("t", name="t", schema=PEOPLE, options={"ttl": "1ms"})
    for number in range(50):
        table.commit(write(Mode.APPEND, (number, "a")))
    sequence.close()
    assert set(threading.enumerate()) <= before
