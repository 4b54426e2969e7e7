"""However a table keeps its rows (packed, keys by hash, in mapped files), it is the same table."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.errors import OptionError
from velostream.model.change import Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Schema
from velostream.tables.memory import CommitSequence
from velostream.tables.memory.hashed import key_hasher
from velostream.tables.memory.keys import key_values
from velostream.tables.memory.matching import hash_rows
from velostream.tables.memory.packing import pack, unpack

from .conftest import content, tuples, write

PEOPLE = Schema.of(("id", "BIGINT"), ("name", "STRING"), key=["id"])
FORMS = {
    "compact": {"table_model": "compact"},
    "spilled": {"memory.limit": "1"},
    "both": {"table_model": "compact", "memory.limit": "1"},
    "compressed": {"table_model": "compact", "compression": "zstd"},
    "all": {"table_model": "compact", "compression": "lz4", "memory.limit": "1"},
}


@pytest.fixture
def tiny() -> Iterator[None]:
    """Everything that needs many rows elsewhere happens with a handful."""
    with pytest.MonkeyPatch.context() as patched:
        _make_tiny(patched)
        yield


def _make_tiny(patched: pytest.MonkeyPatch) -> None:
    patched.setattr("velostream.tables.memory.settings._PACKED_ROWS", 3)
    patched.setattr("velostream.tables.memory.compressed._WORTH_IT", 1000.0)
    patched.setattr("velostream.tables.memory.compressed._MOST_DECODED_BYTES", 1)
    patched.setattr("velostream.tables.memory.index._FEWEST_HASHED", 2)
    patched.setattr("velostream.tables.memory.index._MOST_RECENT", 3)
    patched.setattr("velostream.tables.memory.generation._WORTH_HASHING", 2)
    patched.setattr("velostream.tables.memory.generation.MOST_ROWS", 4)
    patched.setattr("velostream.tables.memory.snapshot._WORTH_HASHING", 2)
    patched.setattr("velostream.tables.memory.table._FEWEST_DEAD_ROWS", 8)


KEYS = st.integers(0, 8)
NAMES = st.sampled_from([None, "a", "b"])
ROWS = st.lists(st.tuples(KEYS, NAMES), min_size=1, max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("put"), ROWS),
    st.tuples(st.just("update"), ROWS),
    st.tuples(st.just("delete"), st.lists(KEYS, min_size=1, max_size=3)),
    st.tuples(st.just("upsert"), ROWS),
    st.tuples(st.just("replace"), ROWS),
    st.tuples(st.just("remove"), st.lists(KEYS, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["reopen", "base"]), st.none()),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(STEPS, max_size=15), st.sampled_from(sorted(FORMS)), st.booleans())
def test_any_program_equals_a_dict_after_every_restart(tmp_path_factory, steps, form, durable):  # B53, B55
    with pytest.MonkeyPatch.context() as patched:
        _make_tiny(patched)
        directory = tmp_path_factory.mktemp("log") if durable else None
        sequence = CommitSequence.open(directory)
        table = sequence.create_table("t", name="t", schema=PEOPLE, options={**FORMS[form], "index": "name"})
        model: dict[int, str | None] = {}
        for step, given_rows in steps:
            before = dict(model)
            match step:
                case "put":
                    records = [{"id": key, "name": name} for key, name in given_rows]
                    if not table.write_records(Mode.UPSERT, records):
                        table.commit(write(Mode.UPSERT, *given_rows))
                    model |= dict(given_rows)
                case "update":
                    if table.update_records([{"id": key, "name": name} for key, name in given_rows]) is not None:
                        model |= {key: name for key, name in given_rows if key in model}
                case "delete":
                    if table.delete_keys(given_rows) is not None:
                        model = {key: name for key, name in model.items() if key not in given_rows}
                case "upsert":
                    table.commit(write(Mode.UPSERT, *given_rows))
                    model |= dict(given_rows)
                case "replace":
                    table.commit(write(Mode.REPLACE, *given_rows))
                    model = dict(given_rows)
                case "remove":
                    table.commit(write(Mode.DELETE, *((key,) for key in given_rows), columns=("id",)))
                    model = {key: name for key, name in model.items() if key not in given_rows}
                case "base":
                    sequence.write_base()
                case "reopen" if durable:
                    sequence.close()
                    sequence = CommitSequence.open(directory)
                    table = sequence.table("t")
            _check(table, model)
            older = table.snapshot()
            if model != before:
                table.commit(write(Mode.UPSERT, (99, "later")))
                table.commit(write(Mode.DELETE, (99,), columns=("id",)))
                _check_snapshot(older, model)
        sequence.close()


def _check(table, model):
    _check_snapshot(table.snapshot(), model)
    assert table.stats()["rows"] == len(model)


def _check_snapshot(snapshot, model):
    assert dict(tuples(snapshot.scan())) == model
    assert len(snapshot) == len(model)
    assert {key: snapshot.get(key)["name"] for key in range(10) if snapshot.contains(key)} == model
    wanted = pa.array([None, *range(10), 3], pa.int64())
    found = snapshot.lookup(wanted)
    assert found["_position"].to_pylist() == [n for n, key in enumerate(wanted.to_pylist()) if key in model]
    assert found["name"].to_pylist() == [model[key] for key in wanted.to_pylist() if key in model]
    for name in ("a", "b"):
        condition = Call("=", (ColumnRef("name"), Literal(name, pa.string())))
        having = sorted(key for key, value in model.items() if value == name)
        assert sorted(snapshot.scan(condition)["id"].to_pylist()) == having
        assert sorted(row["id"] for row in snapshot.find(condition)) == having


TYPED = Schema.of(
    ("s", "STRING"),
    ("x", "BINARY"),
    ("i", "INT"),
    ("n", "BIGINT"),
    ("d", "DECIMAL(12,3)"),
    ("w", "DECIMAL(38,3)"),
    ("f", "DOUBLE"),
    ("at", "TIMESTAMP"),
    ("day", "DATE"),
    ("b", "BOOLEAN"),
    ("m", "ARRAY<STRING>"),
)
TYPED_ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "s": st.none() | st.sampled_from(["", "a", "ü", "long " * 5]),
            "x": st.none() | st.binary(max_size=3),
            "i": st.none() | st.integers(-(2**31), 2**31 - 1) | st.integers(-5, 5),
            "n": st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200),
            "d": st.none() | st.decimals(-(10**8), 10**8, places=3),
            "w": st.none() | st.decimals(-(10**30), 10**30, places=3),
            "f": st.none() | st.floats(),
            "b": st.none() | st.booleans(),
            "m": st.none() | st.lists(st.none() | st.text(max_size=2), max_size=2),
        },
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=80, deadline=None)
@given(TYPED_ROWS, st.data())
def test_packing_changes_no_value(rows, data):
    schema = TYPED.arrow
    batch = pa.RecordBatch.from_pylist(rows, schema)
    assert content(pa.table(unpack(pack(batch), schema))) == content(pa.table(batch))
    start = data.draw(st.integers(0, len(rows)))
    part = batch.slice(start)
    assert content(pa.table(unpack(pack(part), schema))) == content(pa.table(part))
    assert content(pa.table(unpack(pack(batch).slice(start), schema))) == content(pa.table(part))


@settings(max_examples=40, deadline=None)
@given(TYPED_ROWS, st.sampled_from(sorted(FORMS)))
def test_single_values_of_packed_and_mapped_chunks(rows, form):
    with pytest.MonkeyPatch.context() as patched:
        _make_tiny(patched)
        sequence = CommitSequence.open(None)
        given_rows = pa.Table.from_pylist(rows, TYPED.arrow)
        plain = sequence.create_table("p", name="p", schema=TYPED)
        other = sequence.create_table("o", name="o", schema=TYPED, options=FORMS[form])
        for table in (plain, other):
            table.commit(Write(Mode.APPEND, given_rows))
        everything = Literal(True, pa.bool_())
        assert [repr(row) for row in other.snapshot().find(everything)] == [
            repr(row) for row in plain.snapshot().find(everything)
        ]


KEY_TYPES = Schema.of(
    ("s", "STRING"),
    ("x", "BINARY"),
    ("i", "INT"),
    ("n", "BIGINT"),
    ("d", "DECIMAL(12,3)"),
    ("w", "DECIMAL(38,3)"),
    ("f", "DOUBLE"),
    ("at", "TIMESTAMP"),
    ("day", "DATE"),
    ("b", "BOOLEAN"),
)


@settings(max_examples=150, deadline=None)
@given(
    TYPED_ROWS, st.text(min_size=250, max_size=400), st.lists(st.sampled_from(KEY_TYPES.names), min_size=1, unique=True)
)
def test_single_keys_hash_as_columns_do(rows, long, names):
    rows = [{**row, "at": 5, "day": 7} for row in rows] + [{"s": long}]
    table = pa.Table.from_pylist(rows, TYPED.arrow).select(names)
    hash_key = key_hasher([TYPED.column(name).type for name in names])
    hashed = hash_rows([table.column(name) for name in names])
    assert [hash_key(key) for key in key_values(table, names)] == hashed.tolist()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("form", sorted(FORMS))
def test_keys_of_every_type_are_found(sequence, form):
    key = [name for name in KEY_TYPES.names if name != "m"]
    rows = pa.Table.from_pylist(
        [
            {
                "s": "a",
                "x": b"",
                "i": 1,
                "n": -1,
                "d": Decimal("1.5"),
                "w": Decimal(-2),
                "f": float("nan"),
                "b": True,
            },
            {"s": None, "f": -0.0, "at": 1, "day": 1},
            {"s": "ü" * 300, "n": 2**62},
            {},
        ],
        KEY_TYPES.arrow,
    )
    for number, names in enumerate([key, *([name] for name in key)]):
        schema = Schema(KEY_TYPES.columns, tuple(names))
        table = sequence.create_table(str(number), name="t", schema=schema, options=FORMS[form])
        table.commit(Write(Mode.UPSERT, rows))
        distinct = {key: row for row, key in enumerate(key_values(rows, names))}
        assert table.snapshot().count() == len(distinct)
        for row in table.snapshot().rows():
            given_key = row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)
            assert table.contains(given_key)
            assert repr(table.get(given_key)) == repr(row)
        assert not table.contains(object())
        assert not table.contains("no such key")


def wide_rows(start: int, count: int) -> pa.Table:
    texts = [f"{number:08}" * 32 for number in range(start, start + count)]
    return pa.table({"id": pa.array(range(start, start + count), pa.int64()), "name": texts})


@pytest.mark.parametrize("model", [{}, FORMS["compressed"]], ids=["normal", "compressed"])
def test_four_times_the_limit_stays_within_it(sequence, tmp_path, model):  # B53
    limit = 4 << 20
    options = {"memory.limit": "4MB", "spill.path": str(tmp_path), **model}
    table = sequence.create_table("t", name="t", schema=PEOPLE, options=options)
    before = pa.total_allocated_bytes()
    rows = 64_000
    for start in range(0, rows, 2000):
        table.commit(Write(Mode.APPEND, wide_rows(start, 2000)))
        assert table.stats()["bytes"] <= 1.25 * limit
        assert pa.total_allocated_bytes() - before <= 1.25 * limit
    for number in range(3000):
        assert table.write_records(Mode.UPSERT, [{"id": number, "name": f"changed {number}"}])
        assert number % 100 or table.stats()["bytes"] <= 1.25 * limit
    assert table.stats()["spilled_bytes"] > 3 * limit
    assert list(tmp_path.iterdir()) == []
    chosen = np.random.default_rng(1).permutation(rows)[:5000]
    found = table.snapshot().lookup(pa.array(chosen))
    expected = [f"changed {key}" if key < 3000 else f"{key:08}" * 32 for key in chosen.tolist()]
    assert found["name"].to_pylist() == expected
    for key in chosen[:200].tolist():
        assert table.get(key)["id"] == key
    assert not table.contains(rows)
    assert table.snapshot().count() == rows


def test_without_room_for_files_rows_stay_in_memory(sequence, tmp_path, caplog, monkeypatch):
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("velostream.tables.memory.generation.mapped_batch", no_room)
    options = {"memory.limit": "1KB", "spill.path": str(tmp_path)}
    table = sequence.create_table("t", name="t", schema=PEOPLE, options=options)
    with caplog.at_level(logging.WARNING):
        table.commit(Write(Mode.APPEND, wide_rows(0, 100)))
    assert 'table "t" takes more memory than its limit: [Errno 28]' in caplog.text
    assert table.snapshot().count() == 100
    assert table.get(7)["id"] == 7


def test_a_compact_table_takes_less(sequence):
    columns = {
        "id": pa.array(range(50_000), pa.int64()),
        "name": pa.array([f"name {number % 100}" for number in range(50_000)]),
    }
    sizes = []
    for model in ("normal", "compact"):
        table = sequence.create_table(model, name=model, schema=PEOPLE, options={"table_model": model})
        table.commit(Write(Mode.APPEND, pa.table(columns)))
        sizes.append(table.stats()["bytes"])
        assert Counter(table.snapshot().scan()["name"].to_pylist()) == Counter(columns["name"].to_pylist())
        assert table.get(49_999) == {"id": 49_999, "name": "name 99"}
    assert sizes[1] < 0.4 * sizes[0]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"table_model": "small"}, "table_model"),
        ({"memory.limit": "much"}, "memory.limit"),
        ({"memory.limit": "-1"}, "memory.limit"),
        ({"retention": "soon"}, "retention"),
        ({"history.max": "few"}, "history.max"),
        ({"history": "5", "history.max": "2"}, "history.max"),
        ({"memory.limit": "1", "spill.path": "/dev/null/folder"}, "spill.path"),
    ],
)
def test_wrong_values_are_refused(sequence, options, name):  # B12
    with pytest.raises(OptionError, match=f'option "{name}" has the invalid value') as caught:
        sequence.create_table("t", name="t", schema=PEOPLE, options=options)
    assert caught.value.code == "invalid-option-value"


def test_a_spill_path_is_where_files_go(sequence, tmp_path, monkeypatch):
    seen: list[Path] = []

    def watched(batch, directory):
        seen.append(directory)
        return batch

    monkeypatch.setattr("velostream.tables.memory.generation.mapped_batch", watched)
    folder = tmp_path / "made" / "for it"
    options = {"memory.limit": "1", "spill.path": str(folder)}
    sequence.create_table("t", name="t", schema=PEOPLE, options=options).commit(write(Mode.APPEND, (1, "a")))
    assert seen == [folder]
    assert folder.is_dir()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_chunks_take_less_and_keep_little_decoded(sequence, monkeypatch, codec):
    monkeypatch.setattr("velostream.tables.memory.settings._PACKED_ROWS", 1000)
    monkeypatch.setattr("velostream.tables.memory.compressed._MOST_DECODED_BYTES", 300_000)
    rows = wide_rows(0, 5000)
    packed, compressed = (
        sequence.create_table(name, name=name, schema=PEOPLE, options={"table_model": "compact", "compression": name})
        for name in ("none", codec)
    )
    for table in (packed, compressed):
        table.commit(Write(Mode.APPEND, rows))
    before = compressed.stats()["bytes"]
    assert before < packed.stats()["bytes"] / 2
    assert content(compressed.snapshot().scan()) == content(rows)
    for key in (0, 4999, 17, 2500, 18):
        assert compressed.get(key)["name"] == f"{key:08}" * 32
    assert compressed.stats()["bytes"] <= before + 300_000


def test_only_a_compact_table_is_compressed(sequence):
    with pytest.raises(OptionError, match="compression") as caught:
        sequence.create_table("t", name="t", schema=PEOPLE, options={"compression": "lz4"})
    assert caught.value.code == "invalid-option-value"
    with pytest.raises(OptionError):
        sequence.create_table("t", name="t", schema=PEOPLE, options={"table_model": "compact", "compression": "gzip"})
