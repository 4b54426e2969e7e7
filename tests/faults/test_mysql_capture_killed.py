"""A table that follows MariaDB's log while eight writers change it and its process is killed: nothing lost, nothing
twice, and no version with a part of a transaction.

`VELOSTREAM_TORTURE_SECONDS` makes it longer.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.feather
import pymysql
import pytest

from velostream.testing.services.mysql import MysqlService

SECONDS = float(os.environ.get("VELOSTREAM_TORTURE_SECONDS", "6"))
KILLS = max(3, round(SECONDS / 6))
WRITERS = 8
KEYS = 3_000
WORKER = Path(__file__).with_name("capture_worker.py")
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


def write(url: str, seed: int, stopping: threading.Event) -> None:
    """Inserts, updates, key changes, deletes, transfers between accounts, rollbacks; until told to stop."""
    chance = random.Random(seed)
    with connect(url) as connection, connection.cursor() as cursor:
        while not stopping.is_set():
            try:
                for _ in range(chance.choice((1, 1, 3, 20))):
                    change(cursor, chance)
                if chance.random() < 0.15:
                    connection.rollback()
                else:
                    connection.commit()
            except pymysql.MySQLError as error:
                if error.args[0] not in CLASHES:
                    raise
                connection.rollback()


def change(cursor: pymysql.cursors.Cursor, chance: random.Random) -> None:
    key, other = chance.randrange(1, KEYS), chance.randrange(1, KEYS)
    match chance.randrange(6):
        case 0:
            cursor.execute(
                "INSERT INTO things VALUES (%s, %s, %s, %s) ON DUPLICATE KEY UPDATE amount = VALUES(amount)",
                (key, f"new {key}", chance.randrange(10_000) / 4, "y" * chance.choice((0, 10, 400))),
            )
        case 1:
            cursor.execute("UPDATE things SET name = %s WHERE id = %s", (f"named {other}", key))
        case 2:
            cursor.execute("UPDATE things SET id = %s WHERE id = %s", (other, key))
        case 3:
            cursor.execute("DELETE FROM things WHERE id = %s", (key,))
        case 4:
            cursor.execute("UPDATE things SET body = REPEAT('z', %s) WHERE id = %s", (chance.randrange(500), key))
        case _:
            giver, taker = sorted(chance.sample(range(1, 21), 2))
            amount = chance.randrange(1, 100) * chance.choice((1, -1))
            cursor.execute("UPDATE things SET amount = amount - %s WHERE id = %s", (amount, -giver))
            cursor.execute("UPDATE things SET amount = amount + %s WHERE id = %s", (amount, -taker))


def follow(folder: Path, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(folder), url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_what_is_followed_equals_the_database_however_often_the_process_is_killed(tmp_path, url):  # B37, B43, B55
    stopping = threading.Event()
    writers = [threading.Thread(target=write, args=(url, seed, stopping)) for seed in range(WRITERS)]
    for writer in writers:
        writer.start()
    ends = time.monotonic() + SECONDS
    chance = random.Random(7)
    for kill in range(KILLS):
        if kill == KILLS // 2:
            MysqlService.shared().execute("FLUSH BINARY LOGS")
        worker = follow(tmp_path, url)
        # The first is killed while it loads, the others wherever they are.
        for _ in range(chance.randrange(2, 12)):
            if not worker.stdout.readline():
                pytest.fail(worker.stderr.read())
        worker.kill()
        worker.communicate()
    while time.monotonic() < ends:
        stopping.wait(0.1)
    stopping.set()
    for writer in writers:
        writer.join()
    (tmp_path / "finish").touch()
    said, trouble = follow(tmp_path, url).communicate(timeout=240)
    assert said.endswith("done\n"), trouble

    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, name, amount, body FROM things ORDER BY id")
        expected = list(cursor.fetchall())
    rows = pyarrow.feather.read_table(str(tmp_path / "folded.arrow"))
    followed = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert len(followed) == len(expected)
    assert followed == expected
