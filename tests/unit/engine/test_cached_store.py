"""A cache in front of a table in a store, asked for by an option of CREATE TABLE."""

from __future__ import annotations

import sqlite3

import pytest

import velostream
from velostream.errors import OptionError


def test_a_store_is_read_through_the_cache(tmp_path):
    with velostream.connect() as con:
        con.execute(
            "CREATE TABLE users (id BIGINT PRIMARY KEY, name STRING) "
            f"WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path}/s.db', 'cache.max_size' = '10')"
        )
        con.execute("INSERT INTO users VALUES (1, 'ann'), (2, 'bob')")
        users = con.table("users")
        assert [users.get(1)["name"] for _ in range(3)] == ["ann"] * 3
        con.execute("UPDATE users SET name = 'Ann' WHERE id = 1")
        assert users.get(1)["name"] == "Ann"
        with sqlite3.connect(tmp_path / "s.db") as other:
            other.execute("UPDATE users SET name = 'theirs' WHERE id = 1")
        other.close()
        assert users.get(1)["name"] == "Ann"
        assert users.exists("name = 'theirs'")
        stats = users.stats()
        assert stats["cache_hits"] >= 3
        assert 0 < stats["cache_hit_rate"] < 1


def test_a_change_of_a_row_starts_from_what_the_store_has(tmp_path):
    with velostream.connect() as con:
        con.execute(
            "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT, note STRING) "
            f"WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path}/s.db', 'cache.max_size' = '10')"
        )
        con.execute("INSERT INTO stock VALUES (1, 100, 'ours')")
        stock = con.table("stock")

        def other_program(statement: str) -> None:
            with sqlite3.connect(tmp_path / "s.db") as other:
                other.execute(statement)
            other.close()

        assert stock.get(1)["n"] == 100
        other_program("UPDATE stock SET n = 50, note = 'theirs'")
        stock.bulk_update([{"id": 1, "n": 47}])
        assert stock.get(1).as_dict() == {"id": 1, "n": 47, "note": "theirs"}
        other_program("UPDATE stock SET n = 30")
        with con.begin() as transaction:
            in_transaction = transaction.table("stock")
            in_transaction.bulk_update([{"id": 1, "n": in_transaction.get(1)["n"] - 1}])
        assert stock.get(1)["n"] == 29


def test_options_of_the_cache_are_checked(tmp_path):
    with velostream.connect() as con, pytest.raises(OptionError):
        con.execute(
            "CREATE TABLE users (id BIGINT PRIMARY KEY, name STRING) "
            f"WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path}/s.db', 'cache.max_size' = 'many')"
        )


def test_a_cache_needs_a_key(tmp_path):
    with velostream.connect() as con, pytest.raises(OptionError, match="no key"):
        con.execute(
            "CREATE TABLE users (id BIGINT, name STRING) "
            f"WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path}/s.db', 'cache.ttl' = '5s')"
        )


def test_a_cache_is_a_table_like_any_other(tmp_path):
    with velostream.connect(tmp_path) as con:
        con.execute("CREATE TABLE UserProfiles (userId STRING, name STRING, tier STRING) WITH ('extension' = 'cache')")
        assert con.execute("INSERT INTO UserProfiles VALUES ('u1', 'Ann', 'SILVER'), ('u2', 'Bob', NULL)").rowcount == 2
        assert con.execute("UPDATE UserProfiles SET tier = 'GOLD' WHERE userId = 'u1'").rowcount == 1
        assert con.execute("SELECT name FROM UserProfiles WHERE tier = 'GOLD'").fetchall() == [("Ann",)]
        assert con.table("UserProfiles").stats()["hit_rate"] > 0
    with velostream.connect(tmp_path) as con:
        con.execute("DELETE FROM UserProfiles WHERE tier IS NULL")
        assert con.execute("SELECT * FROM UserProfiles").fetchall() == [("u1", "Ann", "GOLD")]


def test_the_least_recently_read_row_leaves():  # B52
    with velostream.connect() as con:
        con.execute("CREATE TABLE c (id INT PRIMARY KEY, v STRING) WITH ('extension' = 'cache', 'max_size' = '2')")
        con.execute("INSERT INTO c VALUES (1, 'a'), (2, 'b')")
        con.table("c").get(1)
        con.execute("INSERT INTO c VALUES (3, 'c')")
        assert sorted(con.execute("SELECT id FROM c").fetchall()) == [(1,), (3,)]
