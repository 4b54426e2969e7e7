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
