"""Rows that were written to files ahead of their commit, as Spark's workers do."""

from __future__ import annotations

import pickle

import pytest
from deltalake import DeltaTable as Lake

from velostream.errors import TableError
from velostream.model.change import Epoch, Mode, Write
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec
from velostream.tables.delta import DeltaTable
from velostream.testing.table_cases import BAG, KEYED, content, rows_of, write


def open_table(folder, schema: Schema, **options: str) -> DeltaTable:
    return DeltaTable.open(TableSpec("id", "t", schema, options={"url": str(folder), **options}))


def stage(table: DeltaTable, *rows, part: int = 0) -> tuple[str, ...]:
    """By a copy of the stager, as a worker has one."""
    stager = table.stager()
    assert stager is not None
    return tuple(pickle.loads(pickle.dumps(stager)).stage(rows_of(table.schema, *rows), part=part))


def staged_write(table: DeltaTable, mode: Mode, staged: tuple[str, ...], *rows) -> Write:
    return Write(mode, rows_of(table.schema, *rows), staged=staged)


def files_of(folder) -> set[str]:
    return {path.name for path in (folder / "t").glob("*.parquet")}


@pytest.mark.parametrize("schema", [BAG, KEYED], ids=["bag", "keyed"])
@pytest.mark.parametrize("options", [{}, {"partition.by": "name"}], ids=["whole", "apart"])
def test_staged_files_become_files_of_the_table(tmp_path, schema, options):
    table = open_table(tmp_path, schema, **options)
    staged = stage(table, (1, "a"), (2, None)) + stage(table, (3, "b"), part=1)
    assert table.snapshot().count() == 0, "nobody's until a commit names them"
    before = files_of(tmp_path)
    table.commit(staged_write(table, Mode.APPEND, staged), Epoch("q", 1))
    assert files_of(tmp_path) == before
    assert table.version == 1
    assert content(table.snapshot().scan()) == content(rows_of(schema, (1, "a"), (2, None), (3, "b")))
    assert content(Lake(tmp_path / "t").to_pyarrow_table()) == content(table.snapshot().scan())


def test_a_repeated_epoch_leaves_nothing_of_what_was_staged(tmp_path):
    table = open_table(tmp_path, BAG)
    table.commit(staged_write(table, Mode.APPEND, stage(table, (1, "a"))), Epoch("q", 1))
    before = files_of(tmp_path)
    table.commit(staged_write(table, Mode.APPEND, stage(table, (1, "a"))), Epoch("q", 1))
    assert files_of(tmp_path) == before
    assert table.snapshot().count() == 1


def test_rows_beside_staged_ones_are_one_commit_with_them(tmp_path):
    table = open_table(tmp_path, BAG)
    assert table.commit(staged_write(table, Mode.APPEND, stage(table, (1, "a")), (1, "a"), (2, "b"))) == 1
    assert content(table.snapshot().scan()) == content(rows_of(BAG, (1, "a"), (1, "a"), (2, "b")))


def test_keys_that_are_there_are_replaced(tmp_path):
    table = open_table(tmp_path, KEYED)
    table.commit(write(Mode.APPEND, (1, "old"), (9, "kept")))
    staged = stage(table, (1, "first"), (2, "b")) + stage(table, (1, "last"), part=1)
    table.commit(staged_write(table, Mode.UPSERT, staged, (3, "c")))
    expected = rows_of(KEYED, (1, "last"), (2, "b"), (3, "c"), (9, "kept"))
    assert content(table.snapshot().scan()) == content(expected)
    assert len(files_of(tmp_path)) == 2, "the file that was replaced and the one instead of it"


def test_a_refused_commit_removes_what_was_staged(tmp_path):
    table = open_table(tmp_path, KEYED)
    table.commit(write(Mode.APPEND, (1, "a")))
    before = files_of(tmp_path)
    with pytest.raises(TableError, match="exists already"):
        table.commit(staged_write(table, Mode.APPEND, stage(table, (1, "b"), (2, "c"))))
    assert files_of(tmp_path) == before


def test_nothing_is_staged_for_a_table_that_can_not_be_written(tmp_path):
    open_table(tmp_path, BAG)
    assert open_table(tmp_path, BAG, access="read-only").stager() is None
