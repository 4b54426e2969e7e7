"""Whose rows in a store are: what a replacement, a drop, another connection or an old handle may do to them."""

from __future__ import annotations

import sqlite3

import pytest

import velostream
from velostream.errors import AlreadyExistsError, NotFoundError, OptionError, VelostreamError
from velostream.tables.relational.snapshot import RelationalSnapshot
from velostream.tables.sqlite import SqliteTable

COLUMNS = "(id BIGINT PRIMARY KEY, n BIGINT)"


@pytest.fixture
def database(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def connection(tmp_path):
    with velostream.connect(tmp_path / "state") as found:
        yield found


@pytest.fixture
def stored(database):
    """The WITH clause of a table in the database, with more options."""

    def clause(**more):
        options = {"extension": "sqlite", "url": f"sqlite:///{database}"} | more
        return "WITH (" + ", ".join(f"'{name}' = '{value}'" for name, value in options.items()) + ")"

    return clause


@pytest.fixture
def elsewhere(database):
    """The same place, spelled otherwise."""
    return f"sqlite:///{database.parent}/../{database.parent.name}/./{database.name}"


@pytest.fixture
def linked(database, tmp_path):
    """The same place under another name, which nothing but the store itself can tell."""
    (tmp_path / "link").symlink_to(database.parent, target_is_directory=True)
    return f"sqlite:///{tmp_path}/link/{database.name}"


@pytest.fixture
def filled(connection, stored):
    connection.execute(f"CREATE TABLE t {COLUMNS} {stored()}")
    connection.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    return connection


def rows_in(database, table="t"):
    with sqlite3.connect(database) as opened:
        return opened.execute(f'SELECT * FROM "{table}" ORDER BY 1').fetchall()


def tables_in(database):
    with sqlite3.connect(database) as opened:
        return {name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (COLUMNS, {"pool.size": "abc"}),
        (COLUMNS, {"cache.max_size": "abc"}),
        ("(id BIGINT PRIMARY KEY, other STRING)", {"access": "read-only"}),
        ("(id BIGINT, n BIGINT)", {"cache.max_size": "5"}),
    ],
)
def test_a_replacement_that_fails_leaves_the_rows(filled, database, stored, columns, options):
    with pytest.raises(VelostreamError):
        filled.execute(f"CREATE OR REPLACE TABLE t {columns} {stored(**options)}")
    assert rows_in(database) == [(1, 1), (2, 2)]
    assert filled.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,)]
    filled.execute("INSERT INTO t VALUES (3, 3)")


def test_a_replacement_whose_making_fails_leaves_the_rows(filled, database, stored, monkeypatch):
    def refused(_cls, _spec):
        raise OptionError("no")

    monkeypatch.setattr(SqliteTable, "open", classmethod(refused))
    with pytest.raises(OptionError):
        filled.execute(f"CREATE OR REPLACE TABLE t (id BIGINT) {stored()}")
    assert rows_in(database) == [(1, 1), (2, 2)]


def test_attaching_read_only_in_place_of_the_table_keeps_its_rows(filled, database, stored):
    filled.execute(f"CREATE OR REPLACE TABLE t {COLUMNS} {stored(access='read-only')}")
    assert filled.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,)]
    filled.execute("DROP TABLE t")
    assert rows_in(database) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("more", [{}, {"cache.max_size": "5"}, {"if.exists": "replace"}, {"if.exists": "fail"}])
def test_a_replacement_in_place_is_empty_and_ours(filled, database, stored, more):
    filled.execute(f"CREATE OR REPLACE TABLE t (id BIGINT PRIMARY KEY, other STRING) {stored(**more)}")
    assert rows_in(database) == []
    filled.execute("INSERT INTO t VALUES (7, 'x')")
    assert rows_in(database) == [(7, "x")]
    filled.execute("DROP TABLE t")
    assert "t" not in tables_in(database)


@pytest.mark.parametrize("place", ["elsewhere", "linked"])
def test_a_replacement_in_the_same_place_spelled_otherwise(filled, database, stored, place, request):
    url = request.getfixturevalue(place)
    filled.execute(f"CREATE OR REPLACE TABLE t {COLUMNS} {stored(url=url)}")
    assert rows_in(database) == []
    filled.execute("INSERT INTO t VALUES (7, 7)")
    assert rows_in(database) == [(7, 7)]
    assert filled.execute("SELECT id FROM t").fetchall() == [(7,)]
    filled.execute("DROP TABLE t")
    assert "t" not in tables_in(database)


def test_a_second_table_in_the_same_place_spelled_otherwise_is_refused(filled, database, stored, linked):
    with pytest.raises(AlreadyExistsError, match='would be in sqlite is table "t" already'):
        filled.execute(f"CREATE TABLE u {COLUMNS} {stored(url=linked, table='t')}")
    assert filled.tables() == ["t"]
    assert rows_in(database) == [(1, 1), (2, 2)]


def test_a_users_table_stays_when_its_adopter_is_replaced(connection, database, stored, linked):
    with sqlite3.connect(database) as opened:
        opened.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)")
        opened.execute("INSERT INTO t VALUES (7, 7)")
    connection.execute(f"CREATE TABLE t {COLUMNS} {stored()}")
    for clause in (stored(history="5"), stored(url=linked)):
        connection.execute(f"CREATE OR REPLACE TABLE t {COLUMNS} {clause}")
        assert connection.execute("SELECT id FROM t").fetchall() == [(7,)]
    connection.execute("INSERT INTO t VALUES (8, 8)")
    connection.execute("DROP TABLE t")
    assert rows_in(database) == [(7, 7), (8, 8)]


def test_another_connections_table_stays_when_its_adopter_drops_it(filled, database, stored):
    with velostream.connect() as other:
        other.execute(f"CREATE TABLE t {COLUMNS} {stored()}")
        assert other.execute("SELECT count(*) FROM t").fetchall() == [(2,)]
        other.execute("DROP TABLE t")
    filled.execute("INSERT INTO t VALUES (3, 3)")
    assert rows_in(database) == [(1, 1), (2, 2), (3, 3)]


def test_a_handle_of_a_dropped_table_makes_it_not_again(filled, database):
    table = filled.table("t")
    filled.execute("DROP TABLE t")
    for use in (lambda: len(table), lambda: table.get(1), lambda: table.insert({"id": 5, "n": 5})):
        with pytest.raises(NotFoundError, match='table "t"'):
            use()
    assert "t" not in tables_in(database)


def test_registering_data_gives_up_no_rows_of_a_store(filled, database):
    for rows in ([{"id": 1, "other": 2}], [{"id": 9, "n": 9}]):
        with pytest.raises(AlreadyExistsError, match='table "t" is in sqlite'):
            filled.register("t", rows, key=["id"])
    assert rows_in(database) == [(1, 1), (2, 2)]


def test_one_row_is_read_without_asking_for_the_version(filled, monkeypatch):
    table = filled.table("t")
    table.get(1)
    monkeypatch.setattr(SqliteTable, "version", property(lambda _: pytest.fail("the version was asked for")))
    monkeypatch.setattr(SqliteTable, "snapshot", lambda *_: pytest.fail("a snapshot was taken"))
    assert (table.get(1)["n"], table.get(9)) == (1, None)
    assert (table.contains(2), 9 in table) == (True, False)


def test_deleting_by_key_counts_the_rows_there_were_and_not_the_table(filled, database, monkeypatch):
    monkeypatch.setattr(RelationalSnapshot, "count", lambda *_: pytest.fail("the table was counted"))
    assert filled.table("t").bulk_delete([1, 1, 9]).rowcount == 1
    assert rows_in(database) == [(2, 2)]
