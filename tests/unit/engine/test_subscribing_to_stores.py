"""Subscriptions to tables in stores: through a mirror of ours, resumable by its versions."""

from __future__ import annotations

import sqlite3

import pytest

import velostream
from velostream.engine.catalog import EntryKind
from velostream.engine.spark import SparkRuntime
from velostream.errors import UnsupportedError
from velostream.tables.simple import SimpleTable


@pytest.fixture
def database(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def open_connection(tmp_path, database):
    def connect():
        connection = velostream.connect(tmp_path / "state")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS t (id BIGINT PRIMARY KEY, name STRING) "
            f"WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{database}', 'poll.interval' = '50ms')"
        )
        return connection

    return connect


def told(batch):
    return sorted(zip(batch.arrow["id"].to_pylist(), batch.arrow["_change"].to_pylist(), strict=True))


def mirrors(connection):
    return [entry for entry in connection._context.catalog if entry.kind is EntryKind.MIRROR]


def test_the_content_comes_first_and_then_the_changes_of_everyone(open_connection, database):
    with open_connection() as connection:
        connection.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        changes = connection.subscribe("t")
        first = next(changes)
        assert told(first) == [(1, 1), (2, 1)]
        connection.execute("DELETE FROM t WHERE id = 1")
        second = next(changes)
        assert told(second) == [(1, -1)]
        with sqlite3.connect(database) as other:
            other.execute("INSERT INTO t VALUES (3, 'c')")
        third = next(changes)
        assert told(third) == [(3, 1)]
        assert first.version < second.version < third.version
        changes.close()


def test_it_is_resumed_by_version_and_outlives_views_that_come_and_go(open_connection):
    with open_connection() as connection:
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        changes = connection.subscribe("t")
        seen = next(changes).version
        connection.execute("CREATE TABLE other (id INT PRIMARY KEY)")
        # What nobody reads is removed with whatever is dropped.
        connection.execute("DROP TABLE other")
        assert len(mirrors(connection)) == 1
        connection.execute("INSERT INTO t VALUES (2, 'b')")
        resumed = connection.subscribe("t", since=seen)
        assert told(next(resumed)) == told(next(changes)) == [(2, 1)]
        resumed.close()
        changes.close()


def test_after_a_restart_it_goes_on_with_what_changed_meanwhile(open_connection, database, monkeypatch):
    with open_connection() as connection:
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        next(connection.subscribe("t"))
    with sqlite3.connect(database) as other:
        other.execute("UPDATE t SET name = 'changed'")
        other.execute("INSERT INTO t VALUES (2, 'b')")
    # A mirror alone is no reason to start Spark.
    monkeypatch.setattr(SparkRuntime, "warm_up", None)
    with open_connection() as connection:
        content = next(connection.subscribe("t"))
        assert sorted(content.arrow["name"].to_pylist()) == ["b", "changed"]


def test_it_ends_with_the_table(open_connection):
    with open_connection() as connection:
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        changes = connection.subscribe("t")
        next(changes)
        connection.execute("DROP TABLE t")
        assert list(changes) == []
        assert mirrors(connection) == []


def test_a_kind_that_does_not_tell_its_changes_refuses(open_connection, monkeypatch):
    with open_connection() as connection:
        monkeypatch.setattr(
            connection._context.table_of(connection._entry("t")), "capabilities", SimpleTable.capabilities
        )
        with pytest.raises(UnsupportedError, match='kind "sqlite" can\'t do "changes"') as caught:
            connection.subscribe("t")
        assert caught.value.code == "unsupported-capability"
        assert mirrors(connection) == []
