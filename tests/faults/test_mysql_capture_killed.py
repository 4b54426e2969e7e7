"""A table that follows MariaDB's log while eight writers change it and its process is killed: nothing lost, nothing
twice, and no version with a part of a transaction.
"""

from __future__ import annotations

import random
import threading
from functools import partial
from urllib.parse import urlsplit

import pymysql
import pytest

from velostream.testing.services.mysql import MysqlService

from .torture import follow_while_killed, gives_up, transaction

UPSERT = "ON DUPLICATE KEY UPDATE amount = VALUES(amount)"
CLASHES = (1062, 1205, 1213)
"""A key that is there already, a lock that took too long, a deadlock."""


def connect(url: str) -> pymysql.Connection:
    place = urlsplit(url)
    connection = pymysql.connect(
        host=place.hostname,
        port=place.port,
        user=place.username,
        password=place.password or "",
        database=place.path[1:],
    )
    with connection.cursor() as cursor:
        # Writers that wait for a lock until the test is over would make it long.
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 2")
    return connection


@pytest.fixture
def url():
    url = MysqlService.shared().new_database()
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE things (id BIGINT PRIMARY KEY, name TEXT, amount DECIMAL(18,2), body LONGTEXT)")
        cursor.execute(
            "INSERT INTO things SELECT seq, CONCAT('thing ', seq), seq / 4, REPEAT('x', 300) FROM seq_1_to_5000"
        )
        cursor.execute("INSERT INTO things SELECT -CAST(seq AS SIGNED), 'account', 0, NULL FROM seq_1_to_20")
        connection.commit()
    return url


def write(url: str, chance: random.Random, stopping: threading.Event) -> None:
    with connect(url) as connection, connection.cursor() as cursor:
        while not stopping.is_set():
            try:
                for statement, values in transaction(chance, UPSERT, longest=500):
                    cursor.execute(statement, values)
                if gives_up(chance):
                    connection.rollback()
                else:
                    connection.commit()
            except pymysql.MySQLError as error:
                if error.args[0] not in CLASHES:
                    raise
                connection.rollback()


def test_what_is_followed_equals_the_database_however_often_the_process_is_killed(tmp_path, url):  # B37, B43, B55
    def begins_another_log() -> None:
        MysqlService.shared().execute("FLUSH BINARY LOGS")

    followed = follow_while_killed(tmp_path, url, partial(write, url), halfway=begins_another_log)

    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, name, amount, body FROM things ORDER BY id")
        expected = list(cursor.fetchall())
    assert len(followed) == len(expected)
    assert followed == expected
