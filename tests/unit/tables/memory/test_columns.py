"""A table gets further columns while it is used: rows from before have NULL there, whoever reads them and whenever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from velostream.errors import StateError
from velostream.model.change import Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Column, Schema
from velostream.tables.memory import CommitSequence, MemoryTable

from .conftest import changes, content, tuples, write
from .test_forms import FORMS, tiny  # noqa: F401 - a fixture

PEOPLE = Schema.of(("id", "BIGINT"), ("name", "STRING"), key=["id"])
WIDER = Schema((*PEOPLE.columns, Column("age", pa.int32()), Column("price", pa.decimal128(10, 2))), PEOPLE.key)
STORES = {"plain": {}, **FORMS}


def wide(mode: Mode, *rows: tuple[object, ...]) -> Write:
    return Write(mode, pa.table([list(column) for column in zip(*rows, strict=True)], schema=WIDER.arrow))


def with_nulls(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [(*row, None, None) for row in rows]


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "bag"])
@pytest.mark.parametrize("store", STORES)
@pytest.mark.usefixtures("tiny")
def test_every_version_is_what_it_was_with_nulls_in_the_columns_that_came_later(tmp_path, store, keyed):  # B10
    options = STORES[store] | {"history": "100", "spill.path": str(tmp_path)} if store != "plain" else {}
    narrow = PEOPLE if keyed else Schema(PEOPLE.columns)
    wider = WIDER if keyed else Schema(WIDER.columns)
    sequence = CommitSequence.open(None)
    pin = sequence.pin(0)
    table = sequence.create_table("t", name="t", schema=narrow, options=options)
    for number in range(20):
        table.commit(write(Mode.UPSERT, (number, f"n{number}"), (number % 3, "again")))
        if number % 4 == 0:
            table.commit(changes((number, f"n{number}", -1)))
    before = [tuples(table.snapshot(version).scan()) for version in range(sequence.sequence + 1)]
    old = table.snapshot()
    sequence.add_columns("t", wider)

    assert table.schema == wider
    assert old.schema == narrow
    assert tuples(old.scan()) == before[-1]
    assert [tuples(table.snapshot(version).scan()) for version in range(len(before))] == list(map(with_nulls, before))
    table.commit(wide(Mode.UPSERT, (100, "new", 7, 3), (1, "again", 8, None)))
    assert (100, "new", 7) in [row[:3] for row in tuples(table.snapshot().scan())]
    older = Call("is_null", (ColumnRef("age"),))
    assert table.snapshot().count(older) == len(before[-1]) - (1 if keyed else 0)
    signed = table.changes(len(before) - 1).arrow
    assert sorted(signed["_change"].to_pylist()) == ([-1, 1, 1] if keyed else [1, 1])
    if keyed:
        assert table.get(1)["age"] == 8
        assert table.get(2)["age"] is None
        table.commit(write(Mode.DELETE, (2,), columns=("id",)))
        assert table.get(2) is None
    else:
        # A row from before is found by its value, in which the new columns are NULL.
        table.commit(changes((19, "n19", -1)))
        assert 19 not in table.snapshot().scan(columns=["id"])["id"].to_pylist()
    pin.release()
    sequence.close()


def test_rows_one_by_one_go_on_with_the_new_columns(people: MemoryTable, sequence: CommitSequence):
    people.write_records(Mode.UPSERT, [{"id": 1, "name": "a"}])
    people.update_records([{"id": 1, "name": "b"}])
    row = people.get(1)
    sequence.add_columns("people", WIDER)
    assert dict(row) == {"id": 1, "name": "b"}
    assert dict(people.get(1)) == {"id": 1, "name": "b", "age": None, "price": None}
    people.update_records([{"id": 1, "age": 5}])
    people.write_records(Mode.UPSERT, [{"id": 2, "name": "c", "age": 6, "price": None}])
    assert [row["age"] for row in people.snapshot().scan().to_pylist()] == [5, 6]


def test_indexes_know_rows_of_before_and_after(people: MemoryTable, sequence: CommitSequence):
    people.create_index(["name"])
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    sequence.add_columns("people", WIDER)
    people.create_index(["age"])
    people.commit(wide(Mode.APPEND, (3, "a", 9, None)))
    same_name = Call("=", (ColumnRef("name"), Literal("a", pa.string())))
    of_nine = Call("=", (ColumnRef("age"), Literal(9, pa.int32())))
    assert people.snapshot().scan(same_name)["id"].to_pylist() == [1, 3]
    assert people.snapshot().scan(of_nine)["id"].to_pylist() == [3]


def test_what_is_no_further_nullable_column_at_the_end_is_refused(people: MemoryTable, sequence: CommitSequence):
    others = [
        Schema(WIDER.columns[1:], ()),
        Schema(WIDER.columns, ("name",)),
        Schema((*PEOPLE.columns, Column("age", pa.int32(), nullable=False)), PEOPLE.key),
        Schema((Column("age", pa.int32()), *PEOPLE.columns), PEOPLE.key),
        Schema(PEOPLE.columns[:1], PEOPLE.key),
    ]
    for schema in others:
        with pytest.raises(StateError) as refused:
            sequence.add_columns("people", schema)
        assert refused.value.code == "schema-mismatch"
    assert people.schema == PEOPLE
    sequence.add_columns("people", PEOPLE)


@pytest.mark.parametrize("base", ["none", "before", "after", "both"])
def test_they_are_there_after_a_restart(reopened, base):  # B55
    sequence = reopened()
    table = sequence.create_table("people", name="people", schema=PEOPLE)
    table.create_index(["name"])
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (3, "c")))
    table.commit(write(Mode.DELETE, (2,), columns=("id",)))
    if base in ("before", "both"):
        sequence.write_base()
    table.commit(write(Mode.APPEND, (4, "d")))
    sequence.add_columns("people", WIDER)
    if base in ("after", "both"):
        sequence.write_base()
    table.commit(wide(Mode.UPSERT, (5, "e", 1, None), (1, "a", 2, 3)))
    expected = [content(table.snapshot(version).scan()) for version in (sequence.sequence - 1, sequence.sequence)]
    for _ in range(2):
        sequence = reopened()
        table = sequence.table("people")
        assert table.schema == WIDER
        last = sequence.sequence
        assert [content(table.snapshot(version).scan()) for version in (last, last)][1:] == expected[1:]
        assert table.get(1)["age"] == 2
        assert table.get(3)["age"] is None
        assert table.get(2) is None
        sequence.write_base()


def test_a_column_that_is_no_record_of_the_log_yet_was_never_added(tmp_path: Path):
    sequence = CommitSequence.open(tmp_path)
    table = sequence.create_table("people", name="people", schema=PEOPLE)
    table.commit(write(Mode.APPEND, (1, "a")))
    sequence.add_columns("people", WIDER)
    sequence.close()
    log = max(tmp_path.glob("log-*"))
    os.truncate(log, log.stat().st_size - 3)
    sequence = CommitSequence.open(tmp_path)
    assert sequence.table("people").schema == PEOPLE
    sequence.add_columns("people", WIDER)
    assert tuples(sequence.table("people").snapshot().scan()) == [(1, "a", None, None)]
    sequence.close()


_GROWING = """
import sys
from pathlib import Path

import pyarrow as pa

from velostream.model.change import Epoch, Mode, Write
from velostream.model.schema import Column, Schema
from velostream.tables.memory import CommitSequence, Part, store

store._SMALLEST_LOG_TO_MERGE = 20_000
sequence = CommitSequence.open(Path(sys.argv[1]))
if "t" not in sequence.table_ids():
    sequence.create_table("t", name="t", schema=Schema.of(("id", "BIGINT"), key=["id"]))
table = sequence.table("t")
last = sequence.writer("w")
step = 0 if last is None else last.epoch + 1
while True:
    if step % 10 == 0 and f"c{step}" not in table.schema.names:
        schema = table.schema
        sequence.add_columns("t", Schema((*schema.columns, Column(f"c{step}", pa.int64())), schema.key))
    rows = pa.table({"id": [step], f"c{step // 10 * 10}": [step]})
    sequence.commit(Part([(table, Write(Mode.UPSERT, rows))], Epoch("w", step), position=step))
    print(step, flush=True)
    step += 1
"""


def test_a_process_killed_while_columns_come_goes_on_where_it_was(tmp_path: Path):  # B55
    acknowledged = -1
    for wanted in (15, 37, 60, 101):
        with subprocess.Popen(
            [sys.executable, "-c", _GROWING, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            for line in process.stdout:
                acknowledged = int(line)
                if acknowledged >= wanted:
                    break
            process.send_signal(signal.SIGKILL)
    sequence = CommitSequence.open(tmp_path)
    table = sequence.table("t")
    done = sequence.writer("w").epoch
    assert done >= acknowledged
    assert set(table.schema.names) >= {"id", *(f"c{step}" for step in range(0, done + 1, 10))}
    for row in table.snapshot().scan().to_pylist():
        own = f"c{row['id'] // 10 * 10}"
        assert {name for name, value in row.items() if value is not None} == {"id", own}
        assert row[own] == row["id"]
    assert len(table) == done + 1
    sequence.close()
