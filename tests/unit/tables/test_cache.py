"""The kind `cache`: what is used last stays, what is too old goes, and both show as what they are."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import OptionError
from velostream.model.change import CHANGE, Mode, Write
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec
from velostream.tables.cache.options import CacheLimits
from velostream.tables.cache.table import CacheTable
from velostream.tables.memory.table import MemoryTable
from velostream.testing.table_cases import BAG, KEYED, TYPES, changes, equals, keys, rows_of, write


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def cache(*, schema: Schema = KEYED, directory=None, **options: str) -> CacheTable:
    return CacheTable.open(TableSpec("t", "t", schema, options=options, directory=directory))


def ids(table: CacheTable) -> list[int]:
    """The ids there are, without using any row."""
    return sorted(table.snapshot().scan().column("id").to_pylist())


@pytest.fixture
def three() -> CacheTable:
    """A full cache: 1 was written first, 3 last."""
    table = cache(max_size="3")
    for number in (1, 2, 3):
        table.commit(write(Mode.APPEND, (number, f"n{number}")))
    return table


def test_the_row_written_first_goes_first(three):  # B52
    three.commit(write(Mode.APPEND, (4, "n4")))
    assert ids(three) == [2, 3, 4]


@pytest.mark.parametrize(
    "read",
    [
        lambda snapshot: snapshot.get(1),
        lambda snapshot: snapshot.contains(1),
        lambda snapshot: snapshot.lookup(pa.array([1])),
        lambda snapshot: snapshot.lookup(pa.array([1]), ["name"]),
        lambda snapshot: snapshot.lookup_by(["name"], pa.array(["n1"]), ["amount"]),
        lambda snapshot: snapshot.scan(equals("id", 1, pa.int64())),
        lambda snapshot: snapshot.scan(equals("name", "n1", pa.string()), ["amount"]),
        lambda snapshot: snapshot.count(equals("name", "n1", pa.string())),
    ],
)
def test_any_read_counts_as_use(three, read):  # B52
    assert read(three.snapshot())
    three.commit(write(Mode.APPEND, (4, "n4")))
    assert ids(three) == [1, 3, 4]


@pytest.mark.parametrize(
    "again", [write(Mode.UPSERT, (1, "n1")), write(Mode.UPSERT, (1, "new")), changes(((1, "n1"), -1), ((1, "n1"), 1))]
)
def test_writing_counts_as_use(three, again):
    three.commit(again)
    three.commit(write(Mode.APPEND, (4, "n4")))
    assert ids(three) == [1, 3, 4]


def test_reads_that_find_nothing_or_everything_leave_the_order(three):
    three.snapshot().get(99)
    three.snapshot().scan()
    three.snapshot().scan(equals("id", 99, pa.int64()))
    three.commit(write(Mode.APPEND, (4, "n4")))
    assert ids(three) == [2, 3, 4]


def test_a_write_of_more_rows_than_fit_keeps_its_last(three):
    three.commit(write(Mode.APPEND, *((number, "x") for number in range(10, 20))))
    assert ids(three) == [17, 18, 19]
    assert three.stats()["evicted"] == 10


def test_an_evicted_row_is_a_change_of_a_version_of_its_own(three):
    before, snapshot = three.version, three.snapshot()
    three.commit(write(Mode.APPEND, (4, "n4")))
    assert three.version == before + 2
    changed = three.changes(before).arrow
    assert list(zip(changed.column("id").to_pylist(), changed.column(CHANGE).to_pylist(), strict=True)) == [
        (1, -1),
        (4, 1),
    ]
    assert snapshot.contains(1)


def test_deleted_rows_make_room(three):
    three.commit(keys(3))
    three.commit(write(Mode.APPEND, (4, "n4")))
    assert ids(three) == [1, 2, 4]
    three.commit(write(Mode.REPLACE, (7, "a"), (8, "b")))
    three.commit(write(Mode.APPEND, (9, "c")))
    assert ids(three) == [7, 8, 9]


def test_rows_without_a_key_are_used_by_their_values():
    table = cache(schema=BAG, max_size="3")
    for number in (1, 2, 1):
        table.commit(write(Mode.APPEND, (number, f"n{number}")))
    table.snapshot().scan(equals("id", 2, pa.int64()))
    table.commit(write(Mode.APPEND, (4, "n4")))
    assert ids(table) == [1, 2, 4]
    table.commit(write(Mode.APPEND, (5, "n5")))
    assert ids(table) == [2, 4, 5]


@pytest.mark.parametrize("type_", TYPES)
def test_rows_of_any_type_are_evicted(type_):
    for key in ([], ["v"] if "<" not in type_ else []):
        schema = Schema.of(("v", type_), ("n", "INT"), key=key)
        table = cache(schema=schema, max_size="1")
        for number, value in enumerate([*TYPES[type_], None]):
            table.commit(write(Mode.APPEND, (value, number), schema=schema))
        assert table.snapshot().scan().to_pylist() == [{"v": None, "n": len(TYPES[type_])}]


def timed(ttl: str, *, max_size: str = "10") -> tuple[CacheTable, Clock]:
    clock = Clock()
    given = CacheTable.open(TableSpec("t", "t", KEYED, options={"ttl": ttl, "max_size": max_size}))
    given.close()
    return CacheTable(MemoryTable.open(TableSpec("t", "t", KEYED)), given.limits, clock=clock), clock


def test_rows_expire():  # B52
    table, clock = timed("30s")
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    clock.now += 20
    table.commit(write(Mode.UPSERT, (1, "a"), (3, "c")))
    table.snapshot().get(2)
    before, stamp = table.version, table.stamp()
    clock.now += 10
    assert table.snapshot().get(2) is None
    assert ids(table) == [1, 3]
    assert table.version == before + 1
    assert table.stamp() != stamp
    assert table.changes(before).arrow.column(CHANGE).to_pylist() == [-1]
    clock.now += 20
    assert table.version == before + 2
    assert table.stats()["expired"] == 3


def test_an_expired_key_can_be_inserted_again():
    table, clock = timed("30s")
    table.commit(write(Mode.APPEND, (1, "a")))
    clock.now += 30
    table.commit(write(Mode.APPEND, (1, "b")))
    assert table.snapshot().scan().to_pylist() == rows_of(KEYED, (1, "b")).to_pylist()


def test_the_hit_rate_counts_what_was_asked_for(three):  # B52
    assert three.stats()["hit_rate"] == 0.0
    snapshot = three.snapshot()
    snapshot.get(1)
    snapshot.get(9)
    snapshot.lookup(pa.array([1, 2, 9, 1]))
    snapshot.scan(equals("id", 9, pa.int64()))
    snapshot.count(equals("name", "n1", pa.string()))
    snapshot.scan()
    stats = three.stats()
    assert (stats["hits"], stats["misses"], stats["max_size"], stats["rows"]) == (5, 3, 3, 3)
    assert stats["hit_rate"] == pytest.approx(5 / 8)


@pytest.mark.parametrize(("name", "value"), [("max_size", "many"), ("max_size", "0"), ("ttl", "soon"), ("max", "1")])
def test_options_are_checked(name, value):  # B52
    with pytest.raises(OptionError):
        cache(**{name: value})


def test_ten_thousand_rows_are_kept_by_default():  # B52
    table = cache()
    table.commit(write(Mode.APPEND, *((number, "x") for number in range(10_500))))
    assert ids(table) == list(range(500, 10_500))


def test_a_durable_cache_is_found_again_within_its_size(tmp_path):
    table = cache(directory=tmp_path, max_size="3")
    table.commit(write(Mode.APPEND, *((number, "x", Decimal(number)) for number in range(3))))
    table.close()
    table = cache(directory=tmp_path, max_size="2")
    assert ids(table) == [1, 2]
    table.commit(Write(Mode.DELETE, pa.table({"id": [1, 2]})))
    assert ids(table) == []


def test_limits_are_read_from_options():
    table = cache(max_size="3", ttl="2m")
    assert table.limits == CacheLimits(3, table.limits.ttl)
    assert table.limits.ttl is not None
    assert table.limits.ttl.total_seconds() == 120
