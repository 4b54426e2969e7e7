"""States named by an instant: over restarts and bases too, and refused where nothing is kept of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from velostream.errors import TableError
from velostream.model.change import Mode
from velostream.model.schema import Schema
from velostream.tables.memory import CommitSequence
from velostream.tables.memory import times as module
from velostream.tables.memory.times import CommitTimes

from .conftest import tuples, write

PEOPLE = Schema.of(("id", "BIGINT"), ("name", "STRING"), key=["id"])
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """A wall clock that stands still until it is set."""

    class Clock:
        now = START

        def time_ns(self) -> int:
            return int(self.now.timestamp() * 1000) * 1_000_000

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def named(sequence: CommitSequence, **options: str):
    return sequence.create_table("people", name="people", schema=PEOPLE, options=options)


def test_an_instant_names_the_newest_version_at_or_before_it(clock):
    table = named(CommitSequence(), history="10")
    for minute in range(3):
        clock.now = START + timedelta(minutes=minute)
        table.commit(write(Mode.UPSERT, (1, f"at {minute}")))
    for seconds, name in ((0, "at 0"), (59, "at 0"), (60, "at 1"), (119, "at 1"), (1e6, "at 2")):
        version = table.version_at(START + timedelta(seconds=seconds))
        assert tuples(table.snapshot(version).scan()) == [(1, name)]
    with pytest.raises(TableError, match="no version of 2025-12-31 23:59:59") as caught:
        table.version_at(START - timedelta(seconds=1))
    assert caught.value.code == "changes-expired"


def test_a_table_has_no_version_of_before_its_first_commit(clock, people, sequence):
    people.commit(write(Mode.APPEND, (1, "a")))
    later = sequence.create_table("later", name="later", schema=PEOPLE)
    with pytest.raises(TableError, match="no version"):
        later.version_at(START)


def test_what_is_out_of_history_is_refused(clock):
    table = named(CommitSequence(), **{"history.max": "1"})
    for minute in range(3):
        clock.now = START + timedelta(minutes=minute)
        table.commit(write(Mode.UPSERT, (1, f"at {minute}")))
    assert table.version_at(START + timedelta(minutes=1)) == 2
    with pytest.raises(TableError, match="no version"):
        table.version_at(START)


def test_a_clock_that_is_set_back_never_hides_a_commit(clock, people):
    people.commit(write(Mode.APPEND, (1, "a")))
    clock.now = START - timedelta(days=1)
    people.commit(write(Mode.APPEND, (2, "b")))
    assert people.version_at(START) == 2


@pytest.mark.parametrize("with_base", [False, True])
def test_times_survive_a_restart(tmp_path, with_base):
    sequence = CommitSequence.open(tmp_path)
    table = named(sequence, history="10")
    table.commit(write(Mode.UPSERT, (1, "first")))
    between = datetime.now(UTC)
    while datetime.now(UTC) - between < timedelta(milliseconds=2):
        pass
    table.commit(write(Mode.UPSERT, (1, "second")))
    if with_base:
        sequence.write_base()
    sequence.close()
    again = CommitSequence.open(tmp_path)
    known = again.table("people")
    assert tuples(known.snapshot(known.version_at(between)).scan()) == [(1, "first")]
    assert tuples(known.snapshot(known.version_at(datetime.now(UTC))).scan()) == [(1, "second")]
    again.close()


def test_the_oldest_times_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 8)
    times = CommitTimes((milliseconds, milliseconds + 1) for milliseconds in range(20))
    assert times.number_at(datetime.fromtimestamp(0.002, UTC)) is None
    assert [times.number_at(datetime.fromtimestamp(ms / 1000, UTC)) for ms in (16, 19, 30)] == [17, 20, 20]
