"""A cache in front of a table: what it saves, what it must never show."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest

from velostream.errors import OptionError, TableError
from velostream.model.change import Epoch, Mode
from velostream.model.schema import Schema
from velostream.tables.base import Snapshot, TableSpec, TableWrites
from velostream.tables.cache import CachedTable, commit_together, open_table
from velostream.tables.cache.options import CacheLimits
from velostream.tables.memory import CommitSequence, MemoryTable
from velostream.testing.table_cases import BAG, KEYED, TYPES, content, in_threads, keys, write


class SlowTable(MemoryTable):
    """A memory table that counts what it is asked for."""

    asked: list[object]
    snapshots = 0

    def snapshot(self, version: int | None = None) -> Snapshot:
        self.snapshots += 1
        counting = super().snapshot(version)
        get, lookup = counting.get, counting.lookup

        def counted_get(key):
            self.asked.append(key)
            return get(key)

        def counted_lookup(keys_, columns=None):
            self.asked.append(keys_.to_pylist())
            return lookup(keys_, columns)

        counting.get, counting.lookup = counted_get, counted_lookup  # type: ignore[method-assign]
        self._newest = None
        return counting


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def layered(
    *, schema: Schema = KEYED, max_size: int = 10, ttl: float = 60, versions: bool = True
) -> tuple[CachedTable, SlowTable, Clock]:
    behind = SlowTable.open(TableSpec("t", "t", schema))
    behind.__class__ = SlowTable
    behind.capabilities = replace(behind.capabilities, versions=versions)
    behind.asked = []
    clock = Clock()
    return CachedTable(behind, CacheLimits(max_size, timedelta(seconds=ttl)), clock=clock), behind, clock


def test_what_was_read_is_not_asked_again():
    table, behind, _ = layered()
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (3, "c")))
    for _ in range(2):
        assert table.snapshot().get(1) == {"id": 1, "name": "a", "amount": None}
        assert not table.snapshot().contains(9)
    assert behind.asked == [1, 9]
    behind.asked.clear()
    wanted = pa.array([2, 1, 9, None, 2, 3])
    expected = [{"_position": 0, "name": "b"}, {"_position": 1, "name": "a"}, {"_position": 4, "name": "b"}]
    for _ in range(2):
        found = table.snapshot().lookup(wanted, ["name"]).to_pylist()
        assert found == [*expected, {"_position": 5, "name": "c"}]
    assert behind.asked == [[2, 3]]
    assert table.snapshot().lookup(pa.array([1])).column_names == ["_position", *KEYED.names]


def test_what_is_known_is_answered_without_a_word_to_the_store():
    table, behind, _ = layered(versions=False)
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    table.snapshot().lookup(pa.array([1, 2, 9]))
    before = behind.snapshots
    assert table.snapshot().get(1)["name"] == "a"
    assert not table.snapshot().contains(9)
    assert table.snapshot().lookup(pa.array([2, 9, 1]), ["name"]).column("name").to_pylist() == ["b", "a"]
    assert behind.snapshots == before
    assert table.snapshot().version == behind.version


@pytest.mark.parametrize("versions", [True, False])
def test_our_writes_are_seen_at_once(versions):
    table, _, _ = layered(versions=versions)
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    steps = [
        (write(Mode.UPSERT, (1, "A")), "A"),
        (keys(1), None),
        (write(Mode.APPEND, (1, "again")), "again"),
        (write(Mode.REPLACE, (1, "replaced")), "replaced"),
    ]
    for step, expected in steps:
        table.snapshot().get(1)
        table.commit(step)
        row = table.snapshot().get(1)
        assert (None if row is None else row["name"]) == expected


def test_a_snapshot_from_before_a_write_neither_sees_nor_leaves_anything():
    table, _, _ = layered()
    table.commit(write(Mode.APPEND, (1, "a")))
    old = table.snapshot()
    table.commit(write(Mode.UPSERT, (1, "A")))
    assert table.snapshot().get(1)["name"] == "A"
    assert old.get(1)["name"] == "a"
    assert table.snapshot().get(1)["name"] == "A"


def test_writes_of_others_are_seen_when_the_time_is_up():
    table, behind, clock = layered(ttl=30)
    behind.commit(write(Mode.APPEND, (1, "a")))
    table.snapshot().get(1)
    behind.commit(write(Mode.UPSERT, (1, "theirs")))
    clock.now += 29
    assert table.snapshot().get(1)["name"] == "a"
    assert table.snapshot().scan().column("name").to_pylist() == ["theirs"]
    clock.now += 1
    assert table.snapshot().get(1)["name"] == "theirs"


def test_the_least_recently_used_leave():
    table, behind, _ = layered(max_size=2)
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (3, "c")))
    for key in (1, 2, 1, 3):
        table.snapshot().get(key)
    behind.asked.clear()
    for key in (1, 3, 2):
        table.snapshot().get(key)
    assert behind.asked == [2]
    stats = table.stats()
    assert (stats["cache_rows"], stats["cache_hits"], stats["cache_misses"]) == (2, 3, 4)
    assert stats["rows"] == 3


@pytest.mark.parametrize("type_", TYPES)
def test_every_type_comes_back_exactly(type_):
    schema = Schema.of(("k", "INT"), ("v", type_), key=["k"])
    table, _, _ = layered(schema=schema)
    values = [None, *TYPES[type_]]
    table.commit(write(Mode.APPEND, *enumerate(values), schema=schema))
    rows = table.snapshot().scan()
    for number in range(len(values)):
        table.snapshot().get(number)
    found = table.snapshot().lookup(pa.array(range(len(values)), pa.int32())).drop_columns(["_position"])
    assert found.schema.types == rows.schema.types
    assert content(found) == content(rows)


def test_a_transaction_clears_the_way():
    sequence = CommitSequence.open(None)
    tables = [
        CachedTable(sequence.create_table(name, name=name, schema=KEYED), CacheLimits(10, None)) for name in ("a", "b")
    ]
    for table in tables:
        table.commit(write(Mode.APPEND, (1, "old")))
        table.snapshot().get(1)
    tables[0].commit_together([TableWrites(table, [write(Mode.UPSERT, (1, "new"))]) for table in tables], Epoch("q", 1))
    assert [table.snapshot().get(1)["name"] for table in tables] == ["new", "new"]


def test_tables_with_and_without_a_cache_commit_together():
    sequence = CommitSequence.open(None)
    plain, behind = (sequence.create_table(name, name=name, schema=KEYED) for name in ("plain", "behind"))
    cached = CachedTable(behind, CacheLimits(10, None))
    assert cached.commit_group == plain.commit_group
    cached.snapshot().get(1)
    commit_together([TableWrites(table, [write(Mode.UPSERT, (1, "new"))]) for table in (plain, cached)], Epoch("q", 1))
    assert [table.snapshot().get(1)["name"] for table in (plain, cached)] == ["new", "new"]


def test_a_commit_that_fails_leaves_what_is_true():
    table, _, _ = layered()
    table.commit(write(Mode.APPEND, (1, "a")))
    with pytest.raises(TableError):
        table.commit(write(Mode.APPEND, (2, "b"), (1, "again")))
    assert table.snapshot().get(1)["name"] == "a"
    assert table.snapshot().get(2) is None


@pytest.mark.parametrize("versions", [True, False])
def test_readers_never_see_an_older_row_than_they_have_seen(versions):
    table, _, _ = layered(max_size=3, versions=versions)
    table.commit(write(Mode.APPEND, *((number, "0") for number in range(5))))
    done = threading.Event()

    def work() -> None:
        try:
            for step in range(1, 400):
                table.commit(write(Mode.UPSERT, *((number, str(step)) for number in range(5))))
        finally:
            done.set()

    def read() -> None:
        last = 0
        while not done.is_set():
            snapshot = table.snapshot()
            steps = {int(name) for name in snapshot.lookup(pa.array(range(5)), ["name"]).column("name").to_pylist()}
            assert len(steps) == 1
            single = [int(snapshot.get(number)["name"]) for number in range(5)]
            assert set(single) == steps if versions else single == sorted(single)
            assert last <= min(steps) <= min(single)
            last = max(single)

    in_threads([work, read, read, read])


def test_what_can_be_no_key_is_refused_as_without_a_cache():
    table, behind, _ = layered()
    for one in (table, behind):
        with pytest.raises(TableError) as caught:
            one.snapshot().get([1])
        assert caught.value.code == "wrong-type"


def test_the_layer_is_there_when_an_option_asks_for_it():
    spec = TableSpec("t", "t", KEYED, options={"cache.max_size": "5", "history": "2"})
    table = open_table(MemoryTable, spec)
    assert isinstance(table, CachedTable)
    assert isinstance(table.behind, MemoryTable)
    assert (table.kind, table.capabilities) == (MemoryTable.kind, MemoryTable.capabilities)
    assert isinstance(open_table(MemoryTable, TableSpec("t", "t", KEYED)), MemoryTable)
    for options in ({"cache.max_size": "x"}, {"cache.size": "5"}, {"cache.ttl": "soon"}):
        with pytest.raises(OptionError):
            open_table(MemoryTable, TableSpec("t", "t", KEYED, options=options))
    with pytest.raises(OptionError):
        open_table(MemoryTable, TableSpec("t", "t", BAG, options={"cache.ttl": "5s"}))


def test_a_version_is_never_newer_than_the_rows_that_were_read():
    table, _, _ = layered(versions=False)
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    for read in (lambda one: one.get(1), lambda one: one.lookup(pa.array([1])), lambda one: one.scan()):
        table.commit(write(Mode.UPSERT, (1, "read")))
        before = table.version
        asked_first, asked_late = table.snapshot(), table.snapshot()
        assert asked_first.version == before
        read(asked_first)
        read(asked_late)
        table.commit(write(Mode.UPSERT, (1, "changed")))
        assert asked_first.version == asked_late.version == before < table.version


@pytest.mark.parametrize("versions", [True, False])
def test_who_reads_to_write_does_not_read_the_cache(versions):
    table, behind, _ = layered(versions=versions)
    table.commit(write(Mode.APPEND, (1, "a")))
    assert table.snapshot().get(1)["name"] == "a"
    behind.commit(write(Mode.UPSERT, (1, "theirs")))
    with table.exclusive():
        with table.exclusive():
            assert table.get(1)["name"] == "theirs"
        assert table.snapshot().lookup(pa.array([1]), ["name"]).column("name").to_pylist() == ["theirs"]
        in_threads([lambda: _expect(table, "a")])
    _expect(table, "a")
    to_check = table.snapshot()
    assert to_check.version == behind.version
    assert to_check.get(1)["name"] == "theirs"
    assert to_check.contains(1)


def _expect(table: CachedTable, name: str) -> None:
    assert table.snapshot().get(1)["name"] == name
