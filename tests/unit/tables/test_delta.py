"""The kind `delta`: what other readers and writers of the same Delta table see and do."""

from __future__ import annotations

import json
import sys
import threading
from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Lake
from deltalake import write_deltalake

from velostream.errors import AlreadyExistsError, OptionError, StateError, StoreError, TableError, UnsupportedError
from velostream.model.change import CHANGE, Epoch, Mode, Write
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec
from velostream.tables.delta import DeltaTable
from velostream.testing.table_cases import BAG, KEYED, content, equals, in_threads, keys, rows_of, write


def open_table(folder, *, schema: Schema = KEYED, name: str = "t", id_: str = "id", **options: str) -> DeltaTable:
    given = {"url": str(folder), **{option.replace("_", "."): value for option, value in options.items()}}
    return DeltaTable.open(TableSpec(id_, name, schema, options=given))


@pytest.fixture
def lake(tmp_path):
    """A table of somebody else's, keyed by nothing Delta knows of."""
    write_deltalake(tmp_path / "t", rows_of(KEYED, (1, "a", Decimal("1.50")), (2, None)))
    return tmp_path


def test_other_readers_see_what_we_commit(tmp_path):
    schema = Schema.of(("id", "BIGINT"), ("at", "TIMESTAMP_NTZ"), ("took", "INTERVAL"), key=["id"])
    table = open_table(tmp_path, schema=schema)
    table.commit(write(Mode.APPEND, (1, None, timedelta(seconds=2)), (2, None, None), schema=schema), Epoch("q", 7))
    table.commit(write(Mode.DELETE, (2,), schema=schema.select(["id"])))
    theirs = Lake(tmp_path / "t")
    assert theirs.version() == table.version == 2
    assert theirs.transaction_version("velostream:q") == 7
    assert theirs.to_pyarrow_table().to_pylist() == [{"id": 1, "at": None, "took": 2_000_000}]


def test_a_table_of_somebody_else_is_adopted_and_stays(lake):
    table = open_table(lake)
    assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a", Decimal("1.50")), (2, None)))
    table.commit(write(Mode.UPSERT, (2, "b")), Epoch("q", 1))
    write_deltalake(lake / "t", rows_of(KEYED, (3, "theirs")), mode="append")
    Lake(lake / "t").delete("id = 1")
    assert content(table.snapshot().scan()) == content(rows_of(KEYED, (2, "b"), (3, "theirs")))
    table.commit(keys(3))
    assert Lake(lake / "t").to_pyarrow_table().column("name").to_pylist() == ["b"]
    table.drop()
    assert Lake.is_deltatable(str(lake / "t"))


def test_changes_of_other_writers_are_told(lake):
    table = open_table(lake)
    since = table.follow()
    write_deltalake(lake / "t", rows_of(KEYED, (3, "c")), mode="append")
    Lake(lake / "t").update(updates={"name": "'A'"}, predicate="id = 1")
    Lake(lake / "t").optimize.compact()
    changed = table.changes(since).arrow.select(["id", "name", CHANGE]).to_pylist()
    assert [tuple(row.values()) for row in changed] == [(1, "a", -1), (1, "A", 1), (3, "c", 1)]
    before = table.version
    Lake(lake / "t").optimize.compact()
    assert table.version == before


def test_a_url_that_is_a_delta_table_is_that_table(lake):
    assert open_table(lake / "t", name="other").snapshot().count() == 2
    assert open_table(lake / "t", name="other", table="below").snapshot().count() == 0


def test_what_is_there_already_is_adopted_refused_or_replaced(lake):
    with pytest.raises(AlreadyExistsError):
        open_table(lake, if_exists="fail")
    assert open_table(lake, if_exists="adopt").snapshot().count() == 2
    table = open_table(lake, if_exists="replace")
    assert table.snapshot().count() == 0
    table.commit(write(Mode.APPEND, (1, "ours")))
    for choice in ("replace", "fail"):
        assert open_table(lake, if_exists=choice).snapshot().count() == 1


@pytest.mark.parametrize(
    "schema",
    [
        Schema.of(("id", "BIGINT"), ("name", "STRING")),
        Schema.of(("id", "INT"), ("name", "STRING"), ("amount", "DECIMAL(10,2)")),
        Schema.of(("id", "BIGINT"), ("name", "STRING"), ("price", "DECIMAL(10,2)")),
    ],
)
def test_other_columns_are_refused(lake, schema):
    with pytest.raises(StateError) as caught:
        open_table(lake, schema=schema)
    assert caught.value.code == "schema-mismatch"
    assert "decimal128(10, 2)" in caught.value.detail


def test_a_table_we_could_misread_is_refused(tmp_path):
    write_deltalake(tmp_path / "u", rows_of(KEYED, (1, "a")))
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}}
    protocol["protocol"]["writerFeatures"] = ["deletionVectors"]
    (tmp_path / "u" / "_delta_log" / f"{1:020}.json").write_text(json.dumps(protocol))
    with pytest.raises(StateError) as caught:
        open_table(tmp_path, name="u")
    assert "deletionVectors" in caught.value.detail


def test_a_partition_we_could_not_name_is_read_and_not_written(tmp_path):
    write_deltalake(tmp_path / "t", rows_of(KEYED, (1, "a", Decimal("1.50"))), partition_by=["amount"])
    with pytest.raises(StateError) as caught:
        open_table(tmp_path)
    assert "partitions by amount decimal128(10, 2)" in caught.value.detail
    table = open_table(tmp_path, access="read-only")
    assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a", Decimal("1.50"))))


@pytest.mark.parametrize("properties", [{"delta.enableChangeDataFeed": "true"}, {"delta.appendOnly": "true"}])
def test_a_table_whose_rules_we_would_break_is_refused(tmp_path, properties):
    write_deltalake(tmp_path / "t", rows_of(KEYED, (1, "a")), configuration=properties)
    with pytest.raises(StateError) as caught:
        open_table(tmp_path)
    assert next(iter(properties)) in caught.value.detail


def test_a_table_with_constraints_is_refused(tmp_path):
    write_deltalake(tmp_path / "t", rows_of(KEYED, (1, "a")))
    Lake(tmp_path / "t").alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(StateError) as caught:
        open_table(tmp_path)
    assert "delta.constraints.positive" in caught.value.detail
    reader = open_table(tmp_path, access="read-only")
    assert reader.snapshot().get(1)["name"] == "a"
    with pytest.raises(UnsupportedError):
        reader.commit(write(Mode.APPEND, (-1, "b")))


@pytest.mark.parametrize("url", ["s3:///lake", "http://host/lake", "file://host/lake"])
def test_only_paths_are_understood(url):
    with pytest.raises(OptionError):
        open_table(url)


def test_files_are_kept_few(tmp_path):
    table = open_table(tmp_path, schema=BAG)
    for number in range(60):
        table.commit(write(Mode.APPEND, (number, "x")))
    assert len(table.snapshot().state.files) <= 25
    assert table.snapshot().scan().column("id").to_pylist() == list(range(60))
    assert table.changes(table.version - 40).arrow.num_rows == 40


def test_only_files_with_changed_rows_are_written_anew(tmp_path):
    table = open_table(tmp_path)
    for number in range(3):
        table.commit(write(Mode.APPEND, (2 * number, "x"), (2 * number + 1, "y")))
    before = table.snapshot().state.files
    table.commit(write(Mode.UPSERT, (2, "new")))
    after = table.snapshot().state.files
    assert set(before) - set(after) == {before[1]}
    assert [file.rows for file in after] == [2, 2, 2]


def test_a_version_whose_files_or_log_are_gone_is_said_to_be(tmp_path):
    table = open_table(tmp_path)
    old = table.commit(write(Mode.APPEND, (1, "a")))
    table.commit(write(Mode.UPSERT, (1, "b")))
    Lake(tmp_path / "t").vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    for read in (lambda: table.snapshot(old).scan(), lambda: table.changes(old)):
        with pytest.raises(TableError) as caught:
            read()
        assert caught.value.code == "changes-expired"
    assert table.snapshot().get(1)["name"] == "b"


def test_an_exclusive_stretch_notices_other_processes(tmp_path):
    table, other = open_table(tmp_path), open_table(tmp_path)
    with table.exclusive():
        assert table.snapshot().count() == 0
        other.commit(write(Mode.APPEND, (1, "theirs")))
        with pytest.raises(TableError) as caught:
            table.commit(write(Mode.APPEND, (2, "ours")))
    assert caught.value.code == "write-conflict"
    with table.exclusive():
        table.commit(write(Mode.APPEND, (2, "ours")))
        table.commit(write(Mode.APPEND, (3, "ours")))
    assert other.snapshot().count() == 3


def test_a_lost_race_leaves_no_files(tmp_path, monkeypatch):
    table, other = open_table(tmp_path), open_table(tmp_path)
    write_files = table._files.write

    def write_too_late(rows, *, version):
        written = write_files(rows, version=version)
        if version == 1:
            other.commit(write(Mode.APPEND, (1, "other")))
        return written

    monkeypatch.setattr(table._files, "write", write_too_late)
    table.commit(write(Mode.APPEND, (2, "ours")))
    assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "other"), (2, "ours")))
    assert {path.name for path in (tmp_path / "t").glob("*.parquet")} == {
        file.path for version in (1, 2) for file in table.snapshot(version).state.files
    }


def test_a_commit_that_fails_leaves_no_files_unless_it_may_be_in_the_log(tmp_path, monkeypatch):
    table = open_table(tmp_path)
    commit = table._writing.commit

    def fail_before(*_args, **_changes):
        raise StoreError("the store is away")

    def fail_after(*args, **changes):
        commit(*args, **changes)
        raise StoreError("the store is away")

    for failing, rows in ((fail_before, 0), (fail_after, 1)):
        monkeypatch.setattr(table._writing, "commit", failing)
        with pytest.raises(StoreError):
            table.commit(write(Mode.APPEND, (1, "a")))
        assert len(list((tmp_path / "t").glob("*.parquet"))) == table.snapshot().count() == rows


def test_readers_do_not_disturb_commits(tmp_path):
    table = open_table(tmp_path)
    table.commit(write(Mode.APPEND, (0, "a")))
    written = threading.Event()

    def read() -> None:
        while not written.is_set():
            table.snapshot().scan()

    def commit() -> None:
        try:
            for number in range(1, 20):
                table.commit(write(Mode.UPSERT, (number, "a")))
        finally:
            written.set()

    in_threads([commit, read, read])
    assert table.snapshot().count() == 20


def test_conditions_leave_out_row_groups(tmp_path):
    table = open_table(tmp_path)
    for start in (0, 100):
        table.commit(write(Mode.APPEND, *((number, f"n{number}") for number in range(start, start + 100))))
    compiled = table.compile_condition(equals("id", 150, pa.int64()))
    assert (compiled.access, compiled.remainder) == ("key", equals("id", 150, pa.int64()))
    first, second = table.snapshot().state.files
    files = table._files
    assert (files.may_have(first, compiled.pruning), files.may_have(second, compiled.pruning)) == (False, True)


def test_a_table_without_a_url_lives_in_its_directory(tmp_path):
    table = DeltaTable.open(TableSpec("id", "t", KEYED, directory=tmp_path / "own"))
    table.commit(Write(Mode.APPEND, rows_of(KEYED, (1, "a"))))
    assert Lake(tmp_path / "own" / "delta").version() == 1
    with pytest.raises(OptionError):
        DeltaTable.open(TableSpec("id", "t", KEYED))


def test_without_the_driver_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(StoreError) as caught:
        open_table(tmp_path)
    assert (caught.value.code, caught.value.hint) == ("missing-driver", "pip install 'velostream[delta]'")
