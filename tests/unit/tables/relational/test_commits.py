"""Commits to a SQLite file: whole or not at all, once, in turn, and followed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import pyarrow as pa
import pytest

from velostream.errors import Category, StoreError, TableError
from velostream.model.change import CHANGE, Epoch, Mode, Scope, Write
from velostream.tables.base import TableWrites
from velostream.tables.relational.dialect import Dialect
from velostream.testing.table_cases import BAG, KEYED, content, in_threads, keys, rows_of, write


@contextmanager
def failing_at(monkeypatch, number: int, error: BaseException):
    """Every statement counts; the one of that number, from 0, fails instead. Gives whether it was reached."""
    reached = []
    count = iter(range(10_000))

    def counted(original):
        def run(self, connection, statement, *rest):
            if next(count) == number:
                reached.append(statement)
                raise error
            return original(self, connection, statement, *rest)

        return run

    with monkeypatch.context() as patched:
        for name in ("run", "run_many", "rows"):
            patched.setattr(Dialect, name, counted(getattr(Dialect, name)))
        yield reached


def test_a_failure_at_any_statement_leaves_nothing_behind(store, monkeypatch):  # B50, B55
    one, other = store.open("one"), store.open("other", BAG)
    one.follow()
    one.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    other.commit(write(Mode.APPEND, (1, "a")))
    before = content(one.snapshot().scan()), content(other.snapshot().scan()), one.version, other.version
    parts = [
        TableWrites(one, [write(Mode.UPSERT, (1, "A"), (3, "c")), keys(2)]),
        TableWrites(other, [write(Mode.DELETE, (1, "a")), write(Mode.APPEND, (5, "e"))]),
    ]
    number = 0
    while True:
        error = sqlite3.OperationalError("disk I/O error")
        with failing_at(monkeypatch, number, error) as reached, suppress(StoreError):
            one.commit_together(parts, Epoch("q", 1))
        if not reached:
            break
        found = content(one.snapshot().scan()), content(other.snapshot().scan()), one.version, other.version
        assert found == before, reached
        number += 1
    assert number > 10
    assert content(one.snapshot().scan()) == content(rows_of(KEYED, (1, "A"), (3, "c")))
    assert content(other.snapshot().scan()) == content(rows_of(BAG, (5, "e")))


@pytest.mark.parametrize("epoch", [Epoch("q", 1), None])
def test_a_commit_whose_answer_is_lost_is_never_done_twice(store, monkeypatch, epoch):
    table = store.open(schema=BAG)
    commit = Dialect.commit
    lost = [sqlite3.OperationalError("database is locked")]
    lost[0].sqlite_errorname = "SQLITE_BUSY"

    def commit_and_lose(self, connection):
        commit(self, connection)
        if lost:
            raise lost.pop()

    monkeypatch.setattr(Dialect, "commit", commit_and_lose)
    if epoch is None:
        with pytest.raises(StoreError):
            table.commit(write(Mode.APPEND, (1, "a")))
    else:
        table.commit(write(Mode.APPEND, (1, "a")), epoch)
    assert table.snapshot().count() == 1


def test_a_lock_of_others_is_waited_for(store):
    table = store.open(query_timeout="20ms")
    store.theirs.execute("BEGIN IMMEDIATE")
    tried = threading.Event()

    def release():
        assert tried.wait(10)
        store.theirs.execute("COMMIT")

    def commit():
        tried.set()
        table.commit(write(Mode.APPEND, (1, "a")))

    in_threads([release, commit])
    assert table.snapshot().count() == 1


def test_a_lock_that_is_never_given_back_is_an_error_to_retry(store):
    table = store.open(query_timeout="10ms", retry_timeout="100ms")
    store.theirs.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError) as caught:
        table.commit(write(Mode.APPEND, (1, "a")))
    store.theirs.execute("ROLLBACK")
    assert caught.value.category is Category.CONCURRENCY
    assert caught.value.category.retriable
    assert "tried" in caught.value.detail
    assert table.snapshot().count() == 0


def test_processes_take_turns(store):
    """Each adds to a counter what it read, in one step; nothing is lost."""
    table = store.open()
    table.commit(write(Mode.APPEND, (1, "0")))
    program = f"""
from velostream.model.change import Mode
from velostream.tables.base import TableSpec
from velostream.tables.sqlite import SqliteTable
from velostream.testing.table_cases import KEYED, write
table = SqliteTable.open(TableSpec("t", "t", KEYED, options={{"url": "sqlite:///{store.path}"}}))
for _ in range(20):
    with table.exclusive():
        table.commit(write(Mode.UPSERT, (1, str(int(table.get(1)["name"]) + 1))))
"""
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert table.get(1)["name"] == "40"


def test_exclusive_undoes_nothing_that_was_committed(store):
    table = store.open()

    def commit_and_fail() -> None:
        with table.exclusive(), table.exclusive():
            table.commit(write(Mode.APPEND, (1, "a")))
            with pytest.raises(TableError):
                table.commit(write(Mode.APPEND, (2, "b"), (1, "again")))
            assert table.snapshot().count() == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        commit_and_fail()
    table.commit(write(Mode.APPEND, (3, "c")))
    assert table.snapshot().scan().column("id").to_pylist() == [1, 3]


def test_a_table_may_have_several_parts_in_a_transaction(store):
    table = store.open()
    parts = [TableWrites(table, [write(Mode.APPEND, (1, "a"))]), TableWrites(table, [write(Mode.UPSERT, (1, "A"))])]
    table.commit_together(parts, Epoch("q", 1))
    assert table.get(1)["name"] == "A"
    assert table.version == 1


def test_the_key_that_is_taken_is_named(store):  # B49
    table = store.open()
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    with pytest.raises(TableError) as caught:
        table.commit_together([TableWrites(table, [keys(1), write(Mode.APPEND, (1, "x"), (2, "y"))])])
    assert caught.value.message in ('key 1 exists already in table "t"', 'key 2 exists already in table "t"')
    with pytest.raises(TableError, match="key 7 exists"):
        table.commit(write(Mode.APPEND, (7, "x"), (8, "y"), (7, "z")))
    assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a"), (2, "b")))


def test_a_rule_of_the_store_is_told(store):
    store.theirs.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT CHECK (name <> 'bad'), amount TEXT)")
    table = store.open()
    with pytest.raises(TableError) as caught:
        table.commit(write(Mode.APPEND, (1, "good"), (2, "bad")))
    assert caught.value.code == "constraint"
    assert table.snapshot().count() == 0


def test_nothing_is_logged_before_somebody_follows(store):
    table = store.open()
    table.commit(write(Mode.APPEND, (1, "a")))
    logged = "SELECT count(*) FROM _velostream_changes"
    assert store.theirs.execute(logged).fetchone() == (0,)
    since = table.follow()
    table.close()
    table = store.open()
    assert table.follow() == since
    table.commit(write(Mode.UPSERT, (1, "b")))
    assert store.theirs.execute(logged).fetchone() == (1,)
    changed = table.changes(since).arrow
    assert [*zip(changed.column("name").to_pylist(), changed.column(CHANGE).to_pylist(), strict=True)] == [
        ("a", -1),
        ("b", 1),
    ]
    with pytest.raises(TableError) as caught:
        table.changes(since - 1)
    assert caught.value.code == "changes-expired"


def test_changes_are_kept_for_as_many_commits_as_asked(store):
    table = store.open(history="3")
    since = table.follow()
    for number in range(5):
        table.commit(write(Mode.APPEND, (number, "x")))
    with pytest.raises(TableError) as caught:
        table.changes(since)
    assert caught.value.code == "changes-expired"
    assert table.changes(table.version - 3).arrow.column("id").to_pylist() == [2, 3, 4]
    assert store.theirs.execute("SELECT count(*) FROM _velostream_changes").fetchone() == (3,)


def test_writes_that_cancel_out_are_no_version(store):
    table = store.open()
    table.commit(write(Mode.APPEND, (1, "a")))
    version = table.follow()
    table.commit_together([TableWrites(table, [keys(1), write(Mode.APPEND, (1, "a"))])], Epoch("q", 1))
    assert table.version == version


def test_a_scope_is_found_whatever_its_type(store):
    table = store.open()
    table.commit(write(Mode.APPEND, (1, "a"), (2, "a"), (3, None)))
    table.commit(Write(Mode.REPLACE, rows_of(KEYED, (3, "a"), (4, None)).select(["id"]), Scope("name", "a")))
    assert content(table.snapshot().scan()) == content(rows_of(KEYED, (3, "a"), (4, "a")))
    table.commit(Write(Mode.REPLACE, pa.table({"id": [9]}), Scope("name", None)))
    assert table.snapshot().count() == 3


def test_a_time_beyond_four_digits_of_year_is_refused(store):
    schema = KEYED.from_arrow(pa.schema([("at", pa.timestamp("us", "UTC")), ("day", pa.date32())]))
    table = store.open(schema=schema)
    late = pa.table({"at": pa.array([253_402_300_800_000_000]).cast(pa.timestamp("us", "UTC"))})
    for rows in (late, pa.table({"day": pa.array([2_932_897], pa.int32()).cast(pa.date32())})):
        with pytest.raises(TableError, match="9999"):
            table.commit(Write(Mode.APPEND, rows))
    assert table.snapshot().count() == 0
