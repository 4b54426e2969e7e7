"""Transactions over tables of ours and tables in stores: one step per store, in order, whole again after a crash."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

import velostream
from velostream.errors import TableError, UnsupportedError
from velostream.testing import crash


def create(connection, folder, *databases):
    connection.execute("CREATE TABLE ours (id INT PRIMARY KEY, n INT)")
    connection.execute("INSERT INTO ours VALUES (1, 10)")
    for name in databases:
        options = f"'extension' = 'sqlite', 'url' = 'sqlite:///{folder / name}.db'"
        connection.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, n INT) WITH ({options})")
        connection.execute(f"INSERT INTO {name} VALUES (1, 10)")


def rows(speaker, table):
    return sorted(speaker.execute(f"SELECT id, n FROM {table}").fetchall())


@pytest.fixture
def connection(tmp_path):
    with velostream.connect(tmp_path / "state") as opened:
        create(opened, tmp_path, "one", "two")
        yield opened


def change_all(speaker):
    for name in ("ours", "one", "two"):
        speaker.execute(f"UPDATE {name} SET n = n + 1 WHERE id = 1")
        speaker.execute(f"INSERT INTO {name} VALUES (2, 20)")


def test_all_places_change_together(connection):  # B50, B51
    with connection.begin() as tx:
        change_all(tx)
        assert rows(tx, "one") == [(1, 11), (2, 20)]
        assert rows(connection, "one") == [(1, 10)]
    for name in ("ours", "one", "two"):
        assert rows(connection, name) == [(1, 11), (2, 20)]


def test_a_rollback_leaves_the_stores_as_they_were(connection):
    tx = connection.begin()
    change_all(tx)
    tx.rollback()
    for name in ("ours", "one", "two"):
        assert rows(connection, name) == [(1, 10)]


@pytest.mark.parametrize("changed", ["ours", "one", "two"])
def test_a_conflict_in_any_place_leaves_nothing_anywhere(connection, changed):
    tx = connection.begin()
    change_all(tx)
    connection.execute(f"UPDATE {changed} SET n = 0 WHERE id = 1")
    with pytest.raises(TableError) as raised:
        tx.commit()
    assert raised.value.code == "write-conflict"
    for name in ("ours", "one", "two"):
        assert rows(connection, name) == [(1, 0 if name == changed else 10)]


def test_one_store_is_one_step(connection, tmp_path):
    options = f"'extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path / 'one'}.db'"
    connection.execute(f"CREATE TABLE beside (id INT PRIMARY KEY, n INT) WITH ({options})")
    with connection.begin() as tx:
        tx.execute("INSERT INTO one VALUES (5, 5)")
        tx.execute("INSERT INTO beside VALUES (5, 5)")
    assert rows(connection, "beside") == [(5, 5)]
    assert not list((tmp_path / "state").glob("transactions/*"))


def test_a_kind_without_transactions_refuses_at_the_first_statement(connection):
    connection.execute("CREATE TABLE cached (id INT PRIMARY KEY, n INT) WITH ('extension' = 'cache')")
    with connection.begin() as tx:
        for statement in ("INSERT INTO cached VALUES (1, 1)", "SELECT * FROM cached"):
            with pytest.raises(UnsupportedError) as raised:
                tx.execute(statement)
            assert raised.value.code == "unsupported-capability"
            assert "cache" in raised.value.message


def count_in(folder, name):
    with contextlib.closing(sqlite3.connect(folder / f"{name}.db")) as database:
        return database.execute(f"SELECT count(*) FROM {name}").fetchone()[0]


PROGRAM = """
import sys, velostream
with velostream.connect(sys.argv[1]) as connection:
    with connection.begin() as tx:
        for name in ("ours", "one", "two"):
            tx.execute(f"UPDATE {name} SET n = n + 1 WHERE id = 1")
            tx.execute(f"INSERT INTO {name} VALUES (2, 20)")
"""


def test_a_crash_between_two_stores_is_made_whole(tmp_path):
    state = tmp_path / "state"
    with velostream.connect(state) as connection:
        create(connection, tmp_path, "one", "two")
    environment = {crash.CRASH_AT: "transaction.after-store"}
    with crash.Child(["-c", PROGRAM, str(state)], log=tmp_path / "log", environment=environment) as child:
        assert child.wait(60) < 0
    assert [count_in(tmp_path, name) for name in ("one", "two")] == [2, 1]
    for _ in range(2):
        with velostream.connect(state) as connection:
            for name in ("ours", "one", "two"):
                assert rows(connection, name) == [(1, 11), (2, 20)]
    assert not list(state.glob("transactions/*"))
