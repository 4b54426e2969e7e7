"""A table that follows PostgreSQL's log while eight writers change it and its process is killed: nothing lost, nothing
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

import psycopg
import pyarrow.feather
import pytest

from velostream.testing.services.postgres import PostgresService

SECONDS = float(os.environ.get("VELOSTREAM_TORTURE_SECONDS", "10"))
KILLS = max(4, round(SECONDS / 6))
WRITERS = 8
KEYS = 3_000
WORKER = Path(__file__).with_name("capture_worker.py")


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


def write(url: str, seed: int, stopping: threading.Event) -> None:
    """Inserts, updates, key changes, deletes, transfers between accounts, rollbacks; until told to stop."""
    chance = random.Random(seed)
    with psycopg.connect(url) as connection:
        while not stopping.is_set():
            try:
                for _ in range(chance.choice((1, 1, 3, 20))):
                    change(connection, chance)
                if chance.random() < 0.15:
                    connection.rollback()
                else:
                    connection.commit()
            except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                connection.rollback()


def change(connection: psycopg.Connection, chance: random.Random) -> None:
    key, other = chance.randrange(1, KEYS), chance.randrange(1, KEYS)
    match chance.randrange(6):
        case 0:
            connection.execute(
                "INSERT INTO things VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET amount = excluded.amount",
                (key, f"new {key}", chance.randrange(10_000) / 4, "y" * chance.choice((0, 10, 4_000))),
            )
        case 1:
            connection.execute("UPDATE things SET name = %s WHERE id = %s", (f"named {other}", key))
        case 2:
            connection.execute("UPDATE things SET id = %s WHERE id = %s", (other, key))
        case 3:
            connection.execute("DELETE FROM things WHERE id = %s", (key,))
        case 4:
            connection.execute("UPDATE things SET body = repeat('z', %s) WHERE id = %s", (chance.randrange(5_000), key))
        case _:
            giver, taker = sorted(chance.sample(range(1, 21), 2))
            amount = chance.randrange(1, 100) * chance.choice((1, -1))
            connection.execute("UPDATE things SET amount = amount - %s WHERE id = %s", (amount, -giver))
            connection.execute("UPDATE things SET amount = amount + %s WHERE id = %s", (amount, -taker))


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
    for _ in range(KILLS):
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

    with psycopg.connect(url) as connection:
        expected = connection.execute("SELECT id, name, amount, body FROM things ORDER BY id").fetchall()
    rows = pyarrow.feather.read_table(str(tmp_path / "folded.arrow"))
    followed = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert len(followed) == len(expected)
    assert followed == expected
