"""Upserts by a writer who knows the keys, and maybe the places, of its rows: nobody can tell them from others."""

from __future__ import annotations

import random

import pytest

from velostream.model.change import Mode
from velostream.tables.memory import Part
from velostream.tables.memory.keys import key_values
from velostream.tables.memory.stage import KeyedUpsert

from .conftest import content, tuples, write

EARLIER = {"an upsert": write(Mode.UPSERT, (3, "y")), "a removal": write(Mode.DELETE, (1,), columns=("id",))}


def keyed(*rows, seen=None):
    given = write(Mode.UPSERT, *rows)
    keys = key_values(given.rows, ("id",))
    if seen is None:
        return KeyedUpsert(Mode.UPSERT, given.rows, keys=keys)
    return KeyedUpsert(Mode.UPSERT, given.rows, keys=keys, seen=seen, places=seen.positions_of_keys(keys))


@pytest.mark.parametrize("seed", range(8))
def test_every_version_is_that_of_plain_upserts(sequence, people, monkeypatch, seed):
    monkeypatch.setattr("velostream.tables.memory.table._FEWEST_DEAD_ROWS", 8)
    chosen = random.Random(seed)
    plain = sequence.create_table("plain", name="plain", schema=people.schema)
    snapshots = []
    for number in range(40):
        ids = chosen.sample(range(12), chosen.randint(1, 8))
        if chosen.random() < 0.2:
            gone = write(Mode.DELETE, *((one,) for one in ids), columns=("id",))
            sequence.commit(Part([(people, gone), (plain, gone)]))
        # Every row is another one: what is replaced by an equal row depends on who says where it is.
        rows = [(one, f"{number}.{one}") for one in ids]
        seen = people.snapshot() if chosen.random() < 0.7 else None
        sequence.commit(Part([(people, keyed(*rows, seen=seen)), (plain, write(Mode.UPSERT, *rows))]))
        snapshots.append((people.snapshot(), plain.snapshot()))
    for ours, other in snapshots:
        assert content(ours.scan()) == content(other.scan())
        for key in range(12):
            assert ours.get(key) == other.get(key)
        keys = list(range(12))
        assert (ours.positions_of_keys(keys) >= 0).tolist() == (other.positions_of_keys(keys) >= 0).tolist()


def test_equal_rows_stay_where_places_are_not_told(people, sequence):
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    people.commit(keyed((2, "b"), (1, "a")))
    assert sequence.sequence == 1
    people.commit(keyed((2, "c"), (1, "a")))
    assert tuples(people.changes(1).arrow) == [(2, "b", -1), (2, "c", 1)]


@pytest.mark.parametrize("first", EARLIER)
@pytest.mark.parametrize("together", [False, True], ids=["commit before", "same commit"])
def test_places_are_not_taken_from_a_state_that_has_passed(people, sequence, first, together):
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    upsert = keyed((1, "x"), (3, "z"), seen=people.snapshot())
    for writes in [(EARLIER[first], upsert)] if together else [(EARLIER[first],), (upsert,)]:
        sequence.commit(Part([(people, one) for one in writes]))
    assert sorted(tuples(people.snapshot().scan())) == [(1, "x"), (2, "b"), (3, "z")]
    assert [people.snapshot().get(key)["name"] for key in (1, 3)] == ["x", "z"]


def test_places_are_not_taken_from_other_numbers_of_the_rows(people, monkeypatch):
    monkeypatch.setattr("velostream.tables.memory.table._FEWEST_DEAD_ROWS", 1)
    people.commit(write(Mode.APPEND, *((one, "old") for one in range(4))))
    seen = people.snapshot()
    upsert = keyed((3, "new"), seen=seen)
    people.commit(write(Mode.UPSERT, *((one, "newer") for one in range(4))))
    people.commit(upsert)
    assert sorted(tuples(people.snapshot().scan())) == [(0, "newer"), (1, "newer"), (2, "newer"), (3, "new")]


def test_they_are_recovered_from_the_log(reopened, people):
    table = reopened().create_table("kept", name="kept", schema=people.schema)
    for number in range(5):
        rows = [(one, f"{number}.{one}") for one in range(number, number + 3)]
        table.commit(keyed(*rows, seen=table.snapshot()))
    expected = content(table.snapshot().scan())
    assert content(reopened().table("kept").snapshot().scan()) == expected
