"""SIGKILL at seeded random moments under continuous load; afterwards the tables equal a batch run.

`VELOSTREAM_SOAK_KILLS` says how often (`make soak KILLS=50`), `VELOSTREAM_SOAK_SEED` repeats a run that failed.
"""

import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pytest

from velostream.testing.crash import Child

KILLS = int(os.environ.get("VELOSTREAM_SOAK_KILLS", "15"))
SEED = int(os.environ.get("VELOSTREAM_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
ROWS = 1_000_000
ROWS_PER_SECOND = 5_500
USERS = 20_000
COUNTRIES = ("AT", "BE", "CH", "DE", "ES", "FR", "IT", "NL")
SKUS = 50
START_SECONDS = 120.0
FINISH_SECONDS = 300.0
WORKER = Path(__file__).with_name("kill_worker.py")


class GrowingFile:
    """Writes orders at a steady rate on a thread of its own until there are enough and it is told to stop.

    A write ends wherever the chunk ends, often in the middle of a line, as it does with real writers.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._random = np.random.default_rng(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer")
        self._wanted = ROWS
        self.rows = 0
        self.seconds = 0.0
        path.write_text("id,user_id,sku,amount\n")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop writing, but not before the promised number of rows, unless something has failed."""
        self._wanted = 0 if kind else self._wanted
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        kept = b""
        with self._path.open("ab", buffering=0) as file:
            while self.rows < self._wanted or not self._stop.is_set():
                due = int((time.monotonic() - began) * ROWS_PER_SECOND) + 250 - self.rows
                if due > 0:
                    content = kept + self._lines(due)
                    cut = len(content) - int(self._random.integers(0, 20))
                    file.write(content[:cut])
                    kept = content[cut:]
                    self.rows += due
                time.sleep(0.02)
            file.write(kept)
        self.seconds = time.monotonic() - began

    def _lines(self, count: int) -> bytes:
        users = self._random.integers(0, USERS + USERS // 20, count)
        skus = self._random.integers(0, SKUS, count)
        cents = self._random.integers(-10_000, 1_000_000, count)
        rows = zip(range(self.rows, self.rows + count), users.tolist(), skus.tolist(), cents.tolist(), strict=True)
        return "".join(f"{id_},{user},sku-{sku},{_decimal(cent)}\n" for id_, user, sku, cent in rows).encode()


def _decimal(cents: int) -> str:
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"


def write_users(path: Path) -> None:
    lines = (f"{user},{COUNTRIES[user % len(COUNTRIES)]},{1 + user % 7}.{user % 1000:03d}\n" for user in range(USERS))
    path.write_text("user_id,country,rate\n" + "".join(lines))


@contextmanager
def worker(folder: Path) -> Iterator[Child]:
    with Child([WORKER, folder], log=folder / "worker.log") as child:
        yield child


def live_until_killed(child: Child, moment: random.Random) -> str:
    """Let the worker live to a moment worth dying at; says which. Leaving the worker's block kills it."""
    kind = moment.choices(["starting", "first commits", "working"], weights=[3, 4, 8])[0]
    if kind == "starting":
        time.sleep(moment.uniform(0.0, 12.0))
        return kind
    child.await_line("running", START_SECONDS)
    commits = 1 if kind == "first commits" else moment.randint(2, 8)
    for _ in range(commits):
        child.await_line("commit", START_SECONDS)
    # Anywhere within the next batch: reading, looking up, writing the record, publishing, Spark's own commit.
    time.sleep(moment.uniform(0.0, 0.6))
    return kind


def batch_run(folder: Path) -> dict[str, pa.Table]:
    """The same three tables, computed at once from the whole file."""
    convert = pyarrow.csv.ConvertOptions(
        column_types={"amount": pa.decimal128(18, 2), "rate": pa.decimal128(18, 3), "id": pa.int64()}
    )
    orders = pyarrow.csv.read_csv(folder / "orders.csv", convert_options=convert)
    users = pyarrow.csv.read_csv(folder / "users.csv", convert_options=convert)
    joined = orders.join(users, "user_id", join_type="inner").sort_by("id")
    charged = pc.multiply(joined["amount"], joined["rate"]).cast(pa.decimal128(38, 5))
    enriched = joined.select(["id", "sku", "country"]).append_column("charged", charged)
    charges = enriched.group_by(["country", "sku"]).aggregate([("id", "count"), ("charged", "sum")])
    charges = charges.rename_columns({"id_count": "n", "charged_sum": "charged"})
    last = orders.group_by("user_id").aggregate([("id", "max")]).rename_columns({"id_max": "id"})
    latest = last.join(orders.select(["id", "amount"]), "id", join_type="inner")
    return {
        "enriched": enriched,
        "charges": charges.select(["country", "sku", "n", "charged"]),
        "latest": latest.select(["user_id", "id", "amount"]),
    }


def comparable(table: pa.Table, like: pa.Table) -> pa.Table:
    """Same columns, same types, same order of rows."""
    columns = like.column_names
    cast = table.select(columns).cast(like.schema).combine_chunks()
    return cast.sort_by([(name, "ascending") for name in columns])


def lost_and_doubled(found: pa.Table, wanted: pa.Table) -> tuple[int, int]:
    """How many rows of the bag are missing and how many are there too often, by id."""
    found_ids, found_counts = np.unique(found["id"].to_numpy(), return_counts=True)
    wanted_ids = wanted["id"].to_numpy()
    lost = len(np.setdiff1d(wanted_ids, found_ids, assume_unique=True))
    return lost, int((found_counts - 1).sum()) + len(np.setdiff1d(found_ids, wanted_ids, assume_unique=True))


@pytest.fixture
def say(capsys):
    """Prints at once, captured or not: a soak is watched while it runs, and its result belongs into every log."""

    def write(text):
        with capsys.disabled():
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    return write


def test_kills_lose_and_double_nothing(tmp_path, say):  # B55
    moment = random.Random(SEED)
    folder = tmp_path
    say(f"seed: {SEED}")
    write_users(folder / "users.csv")
    began = time.monotonic()
    with GrowingFile(folder / "orders.csv", SEED) as file:
        for kill in range(1, KILLS + 1):
            with worker(folder) as child:
                kind = live_until_killed(child, moment)
            say(f"kill {kill} at {time.monotonic() - began:.0f} s, {kind}, {file.rows} rows written")
    (folder / "finish").touch()
    with worker(folder) as child:
        child.await_line("done", FINISH_SECONDS)
        assert child.wait(30) == 0

    found = {name: pyarrow.feather.read_table(folder / f"{name}.arrow") for name in ("enriched", "charges", "latest")}
    wanted = batch_run(folder)
    lost, doubled = lost_and_doubled(found["enriched"], wanted["enriched"])
    rate = file.rows / file.seconds
    say(f"kills: {KILLS}, rows: {file.rows}, lost: {lost}, doubled: {doubled}")
    say(f"{rate:.0f} rows/s, {time.monotonic() - began:.0f} s in all")
    assert (lost, doubled) == (0, 0), f"seed {SEED}"
    for name, table in wanted.items():
        assert comparable(found[name], table).equals(comparable(table, table)), f"{name} differs; seed {SEED}"
    assert file.rows >= ROWS
    assert rate >= 5_000
    shutil.rmtree(folder / "state")
