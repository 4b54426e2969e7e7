"""What is committed is there after a restart, and damage is told apart from a crash."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.errors import StateError
from velostream.model.change import Epoch, Mode, Write
from velostream.model.schema import Column, Schema
from velostream.tables.memory import CommitSequence, MemoryTable, Part
from velostream.tables.memory.files import SystemFile

from .conftest import changes, content, tuples, write

PEOPLE = Schema.of(("id", "BIGINT"), ("name", "STRING"), key=["id"])


def open_people(sequence: CommitSequence) -> MemoryTable:
    return sequence.create_table("people", name="people", schema=PEOPLE)


def history(table: MemoryTable, versions: range) -> list[object]:
    """Everything readers can see of several versions."""
    return [
        (
            content(table.snapshot(version).scan()),
            [table.snapshot(version).get(key) for key in range(5)],
            content(table.changes(version).arrow),
        )
        for version in versions
    ]


def fill(table: MemoryTable) -> None:
    table.commit(write(Mode.APPEND, (0, "a"), (1, "b"), (2, None)))
    table.commit(write(Mode.UPSERT, (1, "B"), (3, "c")))
    table.commit(write(Mode.DELETE, (0,), columns=("id",)))
    table.commit(changes((0, "again", 1), (3, "c", -1)))


def test_recovery_equals_before(reopened):  # B55
    sequence = reopened()
    table = open_people(sequence)
    fill(table)
    sequence.commit(Part(epoch=Epoch("q", 4), position={"at": [1, "x"]}, reads={"people": 2}))
    before = history(table, range(5))
    sequence = reopened()
    table = sequence.table("people")
    assert sequence.sequence == 5
    assert table.version == 4
    assert table.schema == PEOPLE
    assert sequence.writer("q").position == {"at": [1, "x"]}
    assert dict(sequence.writer("q").reads) == {"people": 2}
    assert history(table, range(5)) == before
    assert open_people(sequence) is table


def test_a_base_replaces_the_log_and_keeps_what_writers_read(reopened, tmp_path):
    sequence = reopened()
    table = open_people(sequence)
    fill(table)
    sequence.commit(Part(epoch=Epoch("q", 4), reads={"people": 2}))
    before = history(table, range(2, 5))
    sequence.write_base()
    table.commit(write(Mode.UPSERT, (1, "after"), (9, "new")))
    table.commit(write(Mode.DELETE, (2,), (9,), columns=("id",)))
    after = history(table, range(2, 8))
    names = sorted(path.name for path in (tmp_path / "log").iterdir())
    assert names == ["base.json", "log-0000000002.bin", "table-0000000001.arrow"]
    table = reopened().table("people")
    assert history(table, range(2, 8)) == after
    assert [seen[:2] for seen in history(table, range(2, 5))] == [seen[:2] for seen in before]
    with pytest.raises(Exception, match="not kept any more"):
        table.snapshot(1)


@pytest.mark.parametrize("with_base", [False, True])
def test_rows_keep_their_names_over_renumbering_bases_and_restarts(reopened, with_base):
    """Removals are logged by row id; here the rows that are left move together twice before more are removed."""
    sequence = reopened()
    table = open_people(sequence)
    table.commit(write(Mode.APPEND, *((row, str(row)) for row in range(6000))))
    table.commit(write(Mode.DELETE, *((row,) for row in range(6000) if row % 6), columns=("id",)))
    assert table.stats()["dead_rows"] == 0
    table.commit(write(Mode.APPEND, *((row, str(row)) for row in range(10_000, 15_000))))
    table.commit(write(Mode.DELETE, *((row,) for row in range(15_000) if row % 4), columns=("id",)))
    assert table.stats()["dead_rows"] == 0
    if with_base:
        sequence.write_base()
    for step in (5, 7):
        table.commit(write(Mode.DELETE, *((row,) for row in range(0, 15_000, step)), columns=("id",)))
        table.commit(write(Mode.UPSERT, (step, "new")))
        before = content(table.snapshot().scan())
        sequence = reopened()
        table = sequence.table("people")
        assert content(table.snapshot().scan()) == before
    left = [row for row in [*range(0, 6000, 6), *range(10_000, 15_000)] if row % 4 == 0 and row % 5 and row % 7]
    assert {row for row, _ in tuples(table.snapshot().scan())} == {*left, 5, 7}


def test_tables_indexes_and_writers_come_and_go_durably(reopened):
    sequence = reopened()
    table = open_people(sequence)
    sequence.create_table("other", name="other", schema=Schema.of(("x", "INT")))
    table.create_index(["name"])
    table.create_index(["name", "id"])
    table.drop_index(["NAME", "id"])
    table.drop_index(["id"])
    sequence.commit(Part(epoch=Epoch("q", 1)))
    sequence.commit(Part(epoch=Epoch("r", 1)))
    sequence.drop_table("other")
    sequence.forget_writer("q")
    for with_base in (False, True):
        if with_base:
            sequence.write_base()
        sequence = reopened()
        assert sequence.table_ids() == ("people",)
        assert sequence.table("people").indexes == (("id",), ("name",))
        assert sequence.writer("q") is None
        assert sequence.writer("r").epoch == 1


def test_unchanged_tables_are_not_written_again(reopened, tmp_path):
    sequence = reopened()
    table = open_people(sequence)
    other = sequence.create_table("other", name="other", schema=Schema.of(("id", "BIGINT"), ("name", "STRING")))
    fill(table)
    other.commit(write(Mode.APPEND, (1, "x")))
    sequence.write_base()
    other.commit(write(Mode.APPEND, (2, "y")))
    sequence.write_base()
    names = sorted(path.name for path in (tmp_path / "log").glob("*.arrow"))
    assert names == ["table-0000000001.arrow", "table-0000000003.arrow"]
    sequence = reopened()
    assert sequence.table("people").snapshot().count() == 3
    assert sequence.table("other").snapshot().count() == 2


def test_every_type_survives(reopened):
    schema = Schema(
        (
            Column('any "name"; DROP TABLE x --', pa.int64()),
            *Schema.of(
                ("row_id", "DECIMAL(38,18)"),
                ("added", "TIMESTAMP"),
                ("b", "BINARY"),
                ("v", "VOID"),
                ("i", "INTERVAL"),
                ("n", "ARRAY<STRUCT<k: STRING, m: MAP<STRING, DATE>>>"),
            ).columns,
        )
    )
    sequence = reopened()
    table = sequence.create_table("t", name="t", schema=schema)
    full = {"n": [{"k": "ü", "m": [("d", None)]}, None], "b": b"\0\xff", "added": 0}
    rows = pa.Table.from_pylist([{}, full], schema.arrow)
    table.commit(Write(Mode.APPEND, rows))
    before = table.snapshot().scan()
    assert reopened().table("t").snapshot().scan().equals(before)
    sequence = reopened()
    sequence.write_base()
    assert reopened().table("t").snapshot().scan().equals(before)


def segment(tmp_path: Path) -> Path:
    return max((tmp_path / "log").glob("log-*.bin"))


@pytest.mark.parametrize("cut", [1, 8, 20, 100])
def test_a_torn_last_record_is_cut_off(reopened, tmp_path, cut):
    sequence = reopened()
    table = open_people(sequence)
    table.commit(write(Mode.APPEND, (1, "a")))
    table.commit(write(Mode.APPEND, (2, "b")))
    sequence.close()
    data = segment(tmp_path).read_bytes()
    segment(tmp_path).write_bytes(data[:-cut])
    sequence = reopened()
    table = sequence.table("people")
    assert tuples(table.snapshot().scan()) == [(1, "a")]
    table.commit(write(Mode.APPEND, (3, "c")))
    assert tuples(reopened().table("people").snapshot().scan()) == [(1, "a"), (3, "c")]


def test_a_torn_record_is_cut_off_before_the_log_goes_on_elsewhere(reopened, tmp_path, monkeypatch):
    """Torn at the end of a segment that is not the last one any more it would look like damage."""
    sequence = reopened()
    open_people(sequence).commit(write(Mode.APPEND, (1, "a")))
    sequence.close()
    with segment(tmp_path).open("ab") as file:
        file.write(b"VREC half a record")
    sequence = reopened()
    with monkeypatch.context() as patched:
        patched.setattr("velostream.tables.memory.store.write_base", _no_room)
        with pytest.raises(StateError):
            sequence.write_base()
    assert len(list((tmp_path / "log").glob("log-*.bin"))) == 2
    assert tuples(reopened().table("people").snapshot().scan()) == [(1, "a")]


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_last_record_of_zeros_is_cut_off(reopened, tmp_path):
    """A crash may leave the length of a file without its content."""
    sequence = reopened()
    open_people(sequence).commit(write(Mode.APPEND, (1, "a")))
    sequence.close()
    with segment(tmp_path).open("ab") as file:
        file.write(b"\0" * 512)
    assert tuples(reopened().table("people").snapshot().scan()) == [(1, "a")]


@pytest.mark.parametrize("length", [0, 3])
def test_a_segment_that_was_just_begun_is_empty(reopened, tmp_path, length):
    sequence = reopened()
    open_people(sequence).commit(write(Mode.APPEND, (1, "a")))
    sequence.write_base()
    sequence.close()
    segment(tmp_path).write_bytes(b"VELOLOG1"[:length])
    sequence = reopened()
    sequence.table("people").commit(write(Mode.APPEND, (2, "b")))
    assert reopened().table("people").snapshot().count() == 2


@pytest.mark.parametrize("place", ["prefix", "body"])
def test_damage_in_the_middle_is_an_error(reopened, tmp_path, place):
    sequence = reopened()
    table = open_people(sequence)
    start = segment(tmp_path).stat().st_size
    table.commit(write(Mode.APPEND, (1, "a")))
    table.commit(write(Mode.APPEND, (2, "b")))
    sequence.close()
    data = bytearray(segment(tmp_path).read_bytes())
    data[start + (9 if place == "prefix" else 80)] ^= 0xFF
    segment(tmp_path).write_bytes(data)
    with pytest.raises(StateError, match="is damaged") as caught:
        reopened()
    assert caught.value.code == "state-corrupt"


def test_a_missing_segment_is_an_error(reopened, tmp_path):
    sequence = reopened()
    open_people(sequence)
    sequence.write_base()
    sequence.close()
    segment(tmp_path).rename(tmp_path / "log" / "log-0000000009.bin")
    with pytest.raises(StateError, match="is damaged"):
        reopened()


@pytest.mark.parametrize("name", ["base.json", "table-0000000001.arrow"])
def test_a_damaged_base_is_an_error(reopened, tmp_path, name):
    sequence = reopened()
    fill(open_people(sequence))
    sequence.write_base()
    sequence.close()
    path = tmp_path / "log" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x01
    path.write_bytes(data)
    with pytest.raises(StateError, match="does not match its checksum"):
        reopened()


def test_leftovers_of_a_base_that_was_never_finished_are_removed(reopened, tmp_path):
    sequence = reopened()
    fill(open_people(sequence))
    sequence.close()
    for name in ("table-0000000007.arrow", "table-0000000008.tmp", "base.tmp"):
        (tmp_path / "log" / name).write_bytes(b"half")
    assert reopened().table("people").snapshot().count() == 3
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["log-0000000001.bin"]


class FailingFile(SystemFile):
    """A disk that is full, or whose sync fails, on demand."""

    fail: str | None = None

    def write(self, data: bytes) -> None:
        if FailingFile.fail == "write":
            super().write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(data)

    def sync(self) -> None:
        if FailingFile.fail == "sync":
            raise OSError(errno.EIO, "Input/output error")
        super().sync()

    def truncate(self, size: int) -> None:
        if FailingFile.fail is not None and FailingFile.cannot_truncate:
            raise OSError(errno.EIO, "Input/output error")
        super().truncate(size)

    cannot_truncate = False


@pytest.mark.parametrize("fail", ["write", "sync"])
@pytest.mark.parametrize("cannot_truncate", [False, True])
def test_a_commit_that_cannot_be_written_is_not_applied(tmp_path, monkeypatch, fail, cannot_truncate):  # B56
    sequence = CommitSequence.open(tmp_path, open_file=FailingFile)
    table = open_people(sequence)
    table.commit(write(Mode.APPEND, (1, "a")))
    monkeypatch.setattr(FailingFile, "fail", fail)
    monkeypatch.setattr(FailingFile, "cannot_truncate", cannot_truncate)
    heard: list[int] = []
    sequence.listen(lambda commit: heard.append(commit.sequence))
    for _ in range(2):
        with pytest.raises(StateError) as caught:
            table.commit(write(Mode.APPEND, (2, "b")), Epoch("q", 1))
        assert caught.value.code == "log-write-failed"
        with pytest.raises(StateError):
            sequence.create_table("other", name="other", schema=PEOPLE)
    assert heard == []
    assert sequence.writer("q") is None
    assert sequence.table_ids() == ("people",)
    assert tuples(table.snapshot().scan()) == [(1, "a")]
    monkeypatch.setattr(FailingFile, "fail", None)
    table.commit(write(Mode.APPEND, (3, "c")), Epoch("q", 1))
    assert heard == [2]
    sequence.close()
    sequence = CommitSequence.open(tmp_path)
    assert tuples(sequence.table("people").snapshot().scan()) == [(1, "a"), (3, "c")]
    assert sequence.sequence == 2
    sequence.close()


def test_a_base_that_cannot_be_written_leaves_the_one_before(reopened, tmp_path, monkeypatch):
    sequence = reopened()
    table = open_people(sequence)
    fill(table)
    sequence.write_base()
    table.commit(write(Mode.APPEND, (7, "x")))

    with monkeypatch.context() as patched:
        patched.setattr("velostream.tables.memory.base_files.sync_file", _no_room)
        with pytest.raises(StateError, match="could not be written") as caught:
            sequence.write_base()
        assert caught.value.code == "base-write-failed"
    table.commit(write(Mode.APPEND, (8, "y")))
    assert reopened().table("people").snapshot().count() == 5


KEYS = st.integers(0, 6)
NAMES = st.sampled_from([None, "a", "b"])
ROWS = st.lists(st.tuples(KEYS, NAMES), max_size=4)
STEPS = st.one_of(
    ROWS.map(lambda rows: write(Mode.UPSERT, *rows)),
    ROWS.map(lambda rows: write(Mode.REPLACE, *rows)),
    st.lists(st.tuples(KEYS), max_size=3).map(lambda keys: write(Mode.DELETE, *keys, columns=("id",))),
    st.lists(st.tuples(KEYS, NAMES, st.sampled_from([1, -1])), max_size=4).map(lambda rows: changes(*rows)),
    st.sampled_from(["reopen", "base"]),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, max_size=15), st.booleans())
def test_any_history_survives_restarts_and_bases(tmp_path_factory, steps, keyed):
    directory = tmp_path_factory.mktemp("log")
    schema = PEOPLE if keyed else Schema(PEOPLE.columns)
    durable = CommitSequence.open(directory)
    plain = CommitSequence.open(None)
    one = durable.create_table("t", name="t", schema=schema)
    other = plain.create_table("t", name="t", schema=schema)
    pin = durable.pin(0)
    for step in steps:
        if step == "base":
            durable.write_base()
        elif step == "reopen":
            pin.release()
            durable.close()
            durable = CommitSequence.open(directory)
            one, pin = durable.table("t"), durable.pin(0)
        elif keyed or step.mode is not Mode.DELETE:
            assert one.commit(step) == other.commit(step)
    pin.release()
    durable.close()
    durable = CommitSequence.open(directory)
    one = durable.table("t")
    assert one.version == other.version
    for version in range(other.version + 1):
        assert content(one.snapshot(version).scan()) == content(other.snapshot(version).scan())
        assert content(one.changes(version).arrow) == content(other.changes(version).arrow)
    durable.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS.filter(lambda step: not isinstance(step, str)), max_size=10), st.booleans(), st.data())
def test_a_version_plus_its_changes_is_the_later_version(steps, keyed, data):
    sequence = CommitSequence.open(None)
    table = sequence.create_table("t", name="t", schema=PEOPLE if keyed else Schema(PEOPLE.columns))
    for step in steps:
        if keyed or step.mode is not Mode.DELETE:
            table.commit(step)
    since = data.draw(st.integers(0, table.version))
    until = data.draw(st.integers(since, table.version))
    batch = table.changes(since, until).arrow
    expected = content(table.snapshot(since).scan())
    signs = batch.column("_change").to_pylist()
    assert signs == sorted(signs)
    for row, sign in zip(batch.drop_columns(["_change"]).to_pylist(), signs, strict=True):
        key = tuple(row.values())
        assert sign > 0 or expected[key] > 0
        expected[key] += sign
    assert +expected == content(table.snapshot(until).scan())
    removed = {tuple(row.values())[:-1] for row in batch.to_pylist() if row["_change"] < 0}
    added = {tuple(row.values())[:-1] for row in batch.to_pylist() if row["_change"] > 0}
    assert not removed & added
