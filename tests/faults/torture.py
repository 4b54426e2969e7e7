"""A table that follows a database's log while writers change the database and its process is killed.

The database, its writers and what is expected are the test's; the killing and the comparing are here.
`VELOSTREAM_TORTURE_SECONDS` makes it longer.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.feather
import pytest

SECONDS = float(os.environ.get("VELOSTREAM_TORTURE_SECONDS", "6"))
KILLS = max(3, round(SECONDS / 6))
KEYS = 3_000
ACCOUNTS = 20
WORKER = Path(__file__).with_name("capture_worker.py")


def follow_while_killed(
    folder: Path,
    url: str,
    write: Callable[[random.Random, threading.Event], None],
    writers: int = 8,
    halfway: Callable[[], object] = lambda: None,
) -> list[tuple[object, ...]]:
    """The rows of the followed table, in the order of their keys, after `writers` threads have run `write` until its
    event is set and the process that follows was killed `KILLS` times.
    """
    stopping = threading.Event()
    threads = [threading.Thread(target=write, args=(random.Random(seed), stopping)) for seed in range(writers)]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + SECONDS
    chance = random.Random(7)
    for kill in range(KILLS):
        if kill == KILLS // 2:
            halfway()
        worker = _follow(folder, url)
        # The first is killed while it loads, the others wherever they are.
        for _ in range(chance.randrange(2, 12)):
            if not worker.stdout.readline():
                stopping.set()
                pytest.fail(worker.stderr.read())
        worker.kill()
        worker.communicate()
    stopping.wait(max(0.0, ends - time.monotonic()))
    stopping.set()
    for thread in threads:
        thread.join()
    (folder / "finish").touch()
    said, trouble = _follow(folder, url).communicate(timeout=240)
    assert said.endswith("done\n"), trouble
    rows = pyarrow.feather.read_table(str(folder / "folded.arrow"))
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def _follow(folder: Path, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(folder), url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def transaction(chance: random.Random, upsert: str, longest: int) -> Iterator[tuple[str, tuple[object, ...]]]:
    """The statements of one transaction over `things`: inserts, updates, key changes, deletes, transfers between
    accounts; `upsert` is what the database says for a key that is there.
    """
    for _ in range(chance.choice((1, 1, 3, 20))):
        key, other = chance.randrange(1, KEYS), chance.randrange(1, KEYS)
        match chance.randrange(6):
            case 0:
                body = "y" * chance.choice((0, 10, longest))
                row = (key, f"new {key}", chance.randrange(10_000) / 4, body)
                yield f"INSERT INTO things VALUES (%s, %s, %s, %s) {upsert}", row
            case 1:
                yield "UPDATE things SET name = %s WHERE id = %s", (f"named {other}", key)
            case 2:
                yield "UPDATE things SET id = %s WHERE id = %s", (other, key)
            case 3:
                yield "DELETE FROM things WHERE id = %s", (key,)
            case 4:
                yield "UPDATE things SET body = repeat('z', %s) WHERE id = %s", (chance.randrange(longest), key)
            case _:
                giver, taker = sorted(chance.sample(range(1, ACCOUNTS + 1), 2))
                amount = chance.randrange(1, 100) * chance.choice((1, -1))
                yield "UPDATE things SET amount = amount - %s WHERE id = %s", (amount, -giver)
                yield "UPDATE things SET amount = amount + %s WHERE id = %s", (amount, -taker)


def gives_up(chance: random.Random) -> bool:
    """Whether a transaction is rolled back."""
    return chance.random() < 0.15
