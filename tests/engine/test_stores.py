"""Queries over tables in stores: what other programs write there is seen, and EXPLAIN says how rows are found."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import velostream
from velostream.tables.relational.snapshot import RelationalSnapshot


def test_what_other_programs_write_is_seen(tmp_path: Path, eventually):
    database = tmp_path / "store.db"
    with velostream.connect() as connection, closing(sqlite3.connect(database, isolation_level=None)) as foreign:
        connection.execute_script(
            f"""
            CREATE TABLE prices (sku STRING PRIMARY KEY, price INT)
              WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{database}', 'poll.interval' = '200ms');
            INSERT INTO prices VALUES ('a', 1);
            CREATE STREAM orders (id BIGINT, sku STRING) WITH ('source' = 'memory://orders');
            CREATE TABLE priced AS SELECT o.id PRIMARY KEY, p.price FROM orders o LEFT JOIN prices p ON o.sku = p.sku;
            CREATE TABLE total AS SELECT sum(price) AS price FROM prices;
            """
        )
        assert connection.execute("SELECT * FROM total").fetchall() == [(1,)]
        foreign.execute("INSERT INTO prices VALUES ('b', 20)")
        assert connection.execute("SELECT price FROM prices WHERE sku = 'b'").fetchall() == [(20,)]
        connection.memory("orders").append([{"id": 1, "sku": "b"}])
        connection.drain("priced", timeout=60)
        assert connection.execute("SELECT * FROM priced").fetchall() == [(1, 20)]
        eventually(lambda: connection.execute("SELECT * FROM total").fetchall() == [(21,)], what="the foreign row")
        foreign.execute("UPDATE prices SET price = 5 WHERE sku = 'b'")
        connection.execute("INSERT INTO prices VALUES ('c', 100)")
        eventually(lambda: connection.execute("SELECT * FROM total").fetchall() == [(106,)], what="both changes")


def test_explain_says_where_rows_are_looked_up(tmp_path: Path):
    with velostream.connect() as connection:
        connection.execute_script(
            f"""
            CREATE TABLE prices (sku STRING PRIMARY KEY, price INT)
              WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path}/store.db');
            CREATE STREAM orders (id BIGINT, sku STRING) WITH ('source' = 'memory://orders');
            """
        )
        said = dict(
            connection.execute(
                "EXPLAIN CREATE TABLE p AS SELECT o.id, p.price FROM orders o JOIN prices p ON o.sku = p.sku"
            ).fetchall()
        )
        assert "in sqlite by (sku): one request for the distinct keys of each batch" in said["lookup"]
        assert any("a table, in sqlite; views over it follow it through a mirror" in value for value in said.values())


def test_spark_is_given_only_what_the_query_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fetched = []
    scan = RelationalSnapshot.scan

    def noted(self, condition=None, columns=None):
        rows = scan(self, condition, columns)
        fetched.append((rows.num_rows, tuple(rows.column_names)))
        return rows

    with velostream.connect() as connection:
        connection.execute(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, name STRING, n INT, ballast STRING)"
            f"WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path}/store.db')"
        )
        connection.table("t").insert([{"id": i, "name": "x", "n": i % 3, "ballast": "y"} for i in range(30)])
        monkeypatch.setattr(RelationalSnapshot, "scan", noted)
        answer = connection.execute(
            "SELECT max(id + n) AS top FROM t WHERE n = 1 AND id < 20 GROUP BY n % 2"
        ).fetchall()
        assert answer == [(20,)]
        assert fetched == [(7, ("id", "n"))]
