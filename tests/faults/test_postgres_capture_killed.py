"""A table that follows PostgreSQL's log while eight writers change it and its process is killed: nothing lost, nothing
twice, and no version with a part of a transaction.
"""

from __future__ import annotations

import random
import threading
from functools import partial

import psycopg
import pytest

from velostream.testing.services.postgres import PostgresService

from .torture import follow_while_killed, gives_up, transaction

UPSERT = "ON CONFLICT (id) DO UPDATE SET amount = excluded.amount"


@pytest.fixture
def url():
    url = PostgresService.shared().new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE things (id bigint PRIMARY KEY, name text, amount numeric(18,2), body text)")
        connection.execute("ALTER TABLE things ALTER COLUMN body SET STORAGE external")
        connection.execute(
            "INSERT INTO things SELECT i, 'thing ' || i, i / 4.0, repeat('x', 3000) FROM generate_series(1, 5000) i"
        )
        connection.execute("INSERT INTO things SELECT -i, 'account', 0, NULL FROM generate_series(1, 20) i")
    yield url
    with psycopg.connect(url, autocommit=True) as connection:
        # A slot would keep the log of the shared server.
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )


def write(url: str, chance: random.Random, stopping: threading.Event) -> None:
    with psycopg.connect(url) as connection:
        while not stopping.is_set():
            try:
                # Values above 2 kB lie outside of the row, and the log leaves them out where they did not change.
                for statement, values in transaction(chance, UPSERT, longest=5_000):
                    connection.execute(statement, values)
                if gives_up(chance):
                    connection.rollback()
                else:
                    connection.commit()
            except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                connection.rollback()


def test_what_is_followed_equals_the_database_however_often_the_process_is_killed(tmp_path, url):  # B37, B43, B55
    followed = follow_while_killed(tmp_path, url, partial(write, url))

    with psycopg.connect(url) as connection:
        expected = connection.execute("SELECT id, name, amount, body FROM things ORDER BY id").fetchall()
    assert len(followed) == len(expected)
    assert followed == expected
