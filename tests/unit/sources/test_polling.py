"""Looks for newer rows, over SQLite: what a database that compares texts must not lose, and where looks begin."""

from __future__ import annotations

import sqlite3

import pytest

from velostream.errors import OptionError
from velostream.sources.base import SourceSpec
from velostream.sources.sql import SqlSource


class Database:
    """A file with one table, and the sources over it."""

    def __init__(self, path: str, *statements: str) -> None:
        self._path = path
        self.run(*statements)

    def run(self, *statements: str) -> None:
        connection = sqlite3.connect(self._path)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()

    def reader(self, *, position=None, **options: str) -> Reader:
        named = {name.replace("__", "."): value for name, value in options.items()}
        return Reader(SqlSource(SourceSpec("sql", f"sql://sqlite:///{self._path}", {"table": "t", **named})), position)


class Reader:
    """Reads on where it stopped, and says which rows came."""

    def __init__(self, source: SqlSource, position) -> None:
        self._source = source
        self._schema = source.schema()
        self.position = position

    def end(self, *, max_rows: int | None):
        return self._source.latest_offset(self.position, max_rows=max_rows)

    def reached(self, target) -> bool:
        return self._source.reached(self.position, target)

    def read(self, *, max_rows: int = 1_000) -> list[int]:
        end = self.end(max_rows=max_rows)
        parts = self._source.partitions(self.position, end)
        batches = [batch for part in parts for batch in self._source.read(part, self._schema, print)]
        self.position = end
        self._source.commit(end)
        return sorted(number for batch in batches for number in batch["id"].to_pylist())


@pytest.fixture
def timed(tmp_path):
    return Database(
        str(tmp_path / "timed.db"),
        "CREATE TABLE t (id INTEGER PRIMARY KEY, at TIMESTAMP)",
        "INSERT INTO t VALUES (1, '2024-01-02T03:04:05'), (2, '2024-01-02T03:04:06.500'), (3, NULL)",
    )


@pytest.mark.parametrize("options", [{}, {"loading__bulk__max_records": "10"}])
def test_times_that_are_kept_as_other_texts_are_loaded(timed, options):
    reader = timed.reader(incremental__column="at", **options)
    assert reader.read() == [1, 2, 3]
    timed.run("INSERT INTO t VALUES (4, '2024-01-02T03:04:07')")
    assert reader.read() == [4]


def test_without_a_load_a_restart_takes_in_no_old_rows(timed):
    options = {"incremental__column": "at", "initial__load": "none"}
    started = timed.reader(**options)
    assert started.read() == []
    assert timed.reader(position=started.position, **options).read() == []
    timed.run("INSERT INTO t VALUES (4, '2024-01-02T03:04:07')")
    again = timed.reader(position=started.position, **options)
    assert again.read() == [4]
    assert timed.reader(position=again.position, **options).read() == [4]


def test_a_query_for_new_rows_finds_the_first_ones_of_an_empty_table(tmp_path):
    database = Database(str(tmp_path / "empty.db"), "CREATE TABLE t (id INTEGER PRIMARY KEY, version INTEGER)")
    poll = "SELECT * FROM t WHERE version >= :last"
    reader = database.reader(incremental__column="version", poll__query=poll)
    assert reader.read() == []
    database.run("INSERT INTO t VALUES (1, 1)")
    assert reader.read() == [1]
    database.run("INSERT INTO t VALUES (2, 2)")
    assert reader.read() == [2]


@pytest.mark.parametrize("options", [{}, {"poll__query": "SELECT * FROM t WHERE version >= :last"}])
def test_a_long_backlog_is_taken_in_steps_that_lose_nothing(tmp_path, options):
    database = Database(
        str(tmp_path / "steps.db"),
        "CREATE TABLE t (id INTEGER PRIMARY KEY, version INTEGER)",
        "INSERT INTO t VALUES (0, 50)",
    )
    given = {"incremental__column": "version", "incremental__overlap": "5", **options}
    reader = database.reader(**given)
    assert reader.read() == [0]
    # In another order than they were written, ten of a version, and some that were committed late.
    database.run(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) "
        "INSERT INTO t SELECT 101 - i, 48 + (100 - i) / 10 FROM n"
    )
    target = reader.end(max_rows=None)
    steps = []
    while not reader.reached(target):
        steps.append(reader.read(max_rows=15))
        # What it remembers is gone with its process; what it took again changes nothing.
        if len(steps) == 3:
            reader = database.reader(position=reader.position, **given)
    assert {number for step in steps for number in step} == set(range(1, 101)) | ({0} if len(steps) > 3 else set())
    assert max(map(len, steps)) <= 30
    assert reader.read() == []
    database.run("UPDATE t SET version = 60 WHERE id = 7")
    assert reader.read() == [7]


def test_an_order_of_texts_is_not_relied_on(timed):
    reader = timed.reader(incremental__column="at", incremental__overlap="0s")
    reader.read()
    timed.run("INSERT INTO t VALUES (4, '2024-01-02 09:00:00'), (5, '2024-01-02T08:00:00')")
    found = reader.read(max_rows=1)
    assert 5 in found, "of the texts it is the larger one, of the times the smaller"


def test_parts_that_would_be_of_several_moments_are_refused(tmp_path):
    database = Database(str(tmp_path / "t.db"), "CREATE TABLE t (id INTEGER)")
    with pytest.raises(OptionError, match=r"parallel\.readers"):
        database.reader(parallel__readers="4")


@pytest.mark.parametrize("type_", ["INTEGER", "REAL", "DECIMAL(9,2)"])
def test_a_duration_is_no_overlap_of_numbers(tmp_path, type_):
    database = Database(str(tmp_path / "n.db"), f"CREATE TABLE t (id {type_})", "INSERT INTO t VALUES (1)")
    with pytest.raises(OptionError, match=r"incremental\.overlap"):
        database.reader(incremental__column="id", incremental__overlap="10s").read()


def test_bytes_that_are_no_text_make_a_bad_record(tmp_path):
    path = tmp_path / "bytes.db"
    statements = "CREATE TABLE t (id INTEGER, name TEXT)", "INSERT INTO t VALUES (1, x'ff'), (2, x'c3a4'), (3, 'b')"
    Database(str(path), *statements)
    source = SqlSource(SourceSpec("sql", f"sql://sqlite:///{path}", {"table": "t"}))
    bad = []
    parts = source.partitions(None, source.latest_offset(None))
    batches = [batch for part in parts for batch in source.read(part, source.schema(), bad.append)]
    assert [name for batch in batches for name in batch["name"].to_pylist()] == ["ä", "b"]
    assert ["xff" in record.raw.decode() for record in bad] == [True]
