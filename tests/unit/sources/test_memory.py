import json
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import FurtherColumnsError, OptionError, SourceError
from velostream.model.schema import Column, Schema
from velostream.model.spool import Spool
from velostream.sources import memory
from velostream.sources.base import Emits, Lag, SourceSpec
from velostream.sources.memory import MemorySource


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "feed")


def source_of(spool, *, columns=None, **options):
    values = {name.replace("_", "."): value for name, value in options.items()} | {"spool": str(spool.directory)}
    return MemorySource(SourceSpec("memory", "memory://orders", values, columns))


def read(source, start, end, schema=None):
    bad = []
    batches = [
        batch
        for partition in source.partitions(start, end)
        for batch in source.read(pickle.loads(pickle.dumps(partition)), schema or source.schema(), bad.append)
    ]
    return [row for batch in batches for row in batch.to_pylist()], bad


def test_an_empty_feed_has_no_schema_and_nothing_new(spool):
    source = source_of(spool)
    assert source.schema() is None
    start = source.initial_offset()
    assert source.latest_offset(start) == start
    assert source.partitions(start, start) == []


def test_rows_are_read_in_order_across_files(spool):
    spool.append(pa.table({"n": [1, 2]}))
    spool.append(pa.table({"n": [3]}))
    source = source_of(spool)
    start = source.initial_offset()
    end = json.loads(json.dumps(source.latest_offset(start)))
    assert read(source, start, end)[0] == [{"n": 1}, {"n": 2}, {"n": 3}]
    spool.append(pa.table({"n": [4]}))
    assert read(source, end, source.latest_offset(end))[0] == [{"n": 4}]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7])
def test_any_limit_gives_the_same_rows(spool, limit):
    for values in ([1, 2, 3], [], [4, 5], [6]):
        spool.append(pa.table({"n": pa.array(values, pa.int64())}))
    source = source_of(spool)
    position, rows = source.initial_offset(), []
    while (end := source.latest_offset(position, max_rows=limit)) != position:
        step, _ = read(source, position, end)
        assert 0 < len(step) <= limit
        assert source.reached(end, position)
        assert not source.reached(position, end)
        rows += step
        position = end
    assert [row["n"] for row in rows] == [1, 2, 3, 4, 5, 6]


def test_a_large_file_is_read_in_several_parts(spool, monkeypatch):
    monkeypatch.setattr(memory, "_ROWS_PER_PARTITION", 4)
    spool.append(pa.table({"n": list(range(10))}))
    spool.append(pa.table({"n": [10]}))
    source = source_of(spool)
    start = source.initial_offset()
    end = source.latest_offset(start)
    assert len(source.partitions(start, end)) == 3
    assert [row["n"] for row in read(source, start, end)[0]] == list(range(11))


def test_how_much_is_still_to_be_read_is_known(spool):
    for _ in range(3):
        spool.append(pa.table({"id": [1, 2, 3]}))
    source = source_of(spool)
    start = source.initial_offset()
    assert source.lag(start).rows == 9
    assert 0 <= source.lag(start).seconds < 60
    assert source.lag(source.latest_offset(start, max_rows=4)).rows == 5
    assert source.lag(source.latest_offset(start)) == Lag(0, 0.0)


def test_columns_that_come_later_are_told_or_left_out(spool):  # B10
    spool.append(pa.table({"id": [1]}))
    schema = source_of(spool).schema()
    spool.append(pa.table({"id": [2], "extra": [1.5]}))
    plain = source_of(spool)
    assert read(plain, plain.initial_offset(), plain.latest_offset(plain.initial_offset()), schema)
    assert plain.schema().names == ("id", "extra")
    adding = source_of(spool, schema_evolution="add")
    with pytest.raises(FurtherColumnsError) as lacking:
        read(adding, adding.initial_offset(), adding.latest_offset(adding.initial_offset()), schema)
    assert lacking.value.columns == [("extra", "DOUBLE")]


def test_no_column_is_added_under_a_name_of_the_engines(spool):
    spool.append(pa.table({"id": [1]}))
    schema = source_of(spool).schema()
    spool.append(pa.table({"id": [2], "_ORIGIN": ["here"]}))
    adding = source_of(spool, schema_evolution="add")
    rows, bad = read(adding, adding.initial_offset(), adding.latest_offset(adding.initial_offset()), schema)
    assert ([row["id"] for row in rows], bad) == ([1, 2], [])


def test_files_without_rows_are_nothing_new(spool):
    spool.append(pa.table({"n": pa.array([], pa.int64())}))
    source = source_of(spool)
    start = source.initial_offset()
    assert source.latest_offset(start) == start
    assert source.schema() == Schema.of(("n", "BIGINT"))


@pytest.mark.parametrize(("reset", "seen"), [("EARLIEST", [1, 2]), ("Latest", [2]), ("whenever", [1, 2])])
def test_where_reading_begins(spool, reset, seen):  # B8
    spool.append(pa.table({"n": [1]}))
    source = source_of(spool, auto_offset_reset=reset)
    start = source.initial_offset()
    spool.append(pa.table({"n": [2]}))
    assert [row["n"] for row in read(source, start, source.latest_offset(start))[0]] == seen
    assert bool(source.warnings) == (reset == "whenever")


def test_later_rows_are_cast_and_misfits_set_aside(spool):
    spool.append(pa.table({"id": [1], "price": pa.array([Decimal("1.50")], pa.decimal128(18, 2))}))
    spool.append(pa.table({"id": ["2", "x"], "extra": [1, 2]}))
    source = source_of(spool)
    start = source.initial_offset()
    rows, bad = read(source, start, source.latest_offset(start))
    assert rows == [{"id": 1, "price": Decimal("1.50"), "extra": None}, {"id": 2, "price": None, "extra": 1}]
    assert json.loads(bad[0].raw) == {"id": "x", "extra": 2}
    assert bad[0].position == "memory://orders batch 2 row 2"
    assert "BIGINT" in bad[0].reason


def test_declared_columns_win(spool):
    declared = Schema.of(("id", "STRING"))
    source = source_of(spool, columns=declared)
    assert source.schema() == declared
    spool.append(pa.table({"id": [1], "name": ["a"]}))
    start = source.initial_offset()
    assert read(source, start, source.latest_offset(start))[0] == [{"id": "1"}]


def deletion(**keys):
    rows = pa.table({name: [value] for name, value in keys.items()})
    return rows.append_column("_change", pa.array([-1], pa.int8()))


def test_upserts_carry_tombstones(spool):
    columns = Schema((Column("id", pa.int64(), nullable=False), Column("name", pa.string(), nullable=False)))
    spool.append(pa.table({"id": [1], "name": ["a"]}))
    spool.append(deletion(id=1))
    source = source_of(spool, columns=columns, changelog="upsert", key="id")
    assert source.capabilities.emits is Emits.UPSERTS
    assert source.schema().key == ("id",)
    start = source.initial_offset()
    rows, bad = read(source, start, source.latest_offset(start))
    assert rows == [{"id": 1, "name": "a", "_change": 1}, {"id": 1, "name": None, "_change": -1}]
    assert bad == []


def test_a_stream_passes_over_tombstones(spool):
    spool.append(pa.table({"id": [1], "name": ["a"]}))
    spool.append(deletion(id=1))
    source = source_of(spool)
    assert source.capabilities.is_stream
    start = source.initial_offset()
    assert read(source, start, source.latest_offset(start))[0] == [{"id": 1, "name": "a"}]


def test_rows_after_a_deletion_without_a_sign_are_rows(spool):
    spool.append(deletion(id=1))
    unsigned = pa.table({"id": [2]}).append_column("_change", pa.nulls(1, pa.int8()))
    spool.append(unsigned)
    for changelog, expected in (
        ("append", [{"id": 2}]),
        ("upsert", [{"id": 1, "_change": -1}, {"id": 2, "_change": 1}]),
    ):
        source = source_of(spool, changelog=changelog, key="id")
        start = source.initial_offset()
        assert read(source, start, source.latest_offset(start))[0] == expected


def test_the_end_of_the_feed_is_known(spool):
    source = source_of(spool)
    assert not source.finished
    spool.close()
    assert source.finished


def test_wrong_options_and_offsets_are_named(spool):
    with pytest.raises(OptionError, match="changelog"):
        source_of(spool, changelog="sometimes")
    with pytest.raises(SourceError, match="not an offset"):
        source_of(spool).latest_offset([3])
