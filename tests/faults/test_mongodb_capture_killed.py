"""A table that follows a collection while writers change it and its process is killed: nothing lost, nothing twice, and
no version with a part of a transaction.

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

import pyarrow.feather
import pymongo
import pytest
from bson.decimal128 import Decimal128
from pymongo.errors import PyMongoError

from velostream.testing.services.mongodb import MongodbService

SECONDS = float(os.environ.get("VELOSTREAM_TORTURE_SECONDS", "5"))
KILLS = max(3, round(SECONDS / 6))
WRITERS = 4
KEYS = 3_000
ACCOUNTS = 20
WORKER = Path(__file__).with_name("capture_worker.py")


@pytest.fixture
def url():
    url = MongodbService.shared().new_database()
    with pymongo.MongoClient(url) as client:
        database = client.get_default_database()
        database.things.insert_many([thing(key, "x" * 3_000) for key in range(1, 5_001)])
        database.things.insert_many(
            [{"_id": -n, "name": "account", "amount": Decimal128("0")} for n in range(1, ACCOUNTS + 1)]
        )
        yield url
        client.drop_database(database.name)


def thing(key: int, body: str) -> dict[str, object]:
    return {"_id": key, "name": f"thing {key}", "amount": Decimal128(f"{key}.25"), "body": body}


def write(url: str, seed: int, stopping: threading.Event) -> None:
    """Inserts, updates, replacements, deletes, transfers between accounts, rollbacks; until told to stop."""
    chance = random.Random(seed)
    with pymongo.MongoClient(url) as client, client.start_session() as session:
        things = client.get_default_database().things
        while not stopping.is_set():
            try:
                with session.start_transaction():
                    for _ in range(chance.choice((1, 1, 3, 20))):
                        change(things, session, chance)
                    if chance.random() < 0.15:
                        session.abort_transaction()
            except PyMongoError as error:
                if not error.has_error_label("TransientTransactionError"):
                    raise


def change(things, session, chance: random.Random) -> None:
    key = {"_id": chance.randrange(1, KEYS)}
    match chance.randrange(5):
        case 0:
            things.replace_one(
                key, thing(key["_id"], "y" * chance.choice((0, 10, 4_000))), upsert=True, session=session
            )
        case 1:
            things.update_one(key, {"$set": {"name": f"named {chance.randrange(KEYS)}"}}, session=session)
        case 2:
            things.delete_one(key, session=session)
        case 3:
            things.update_one(key, {"$unset": {"body": ""}}, session=session)
        case _:
            giver, taker = chance.sample(range(1, ACCOUNTS + 1), 2)
            amount = chance.randrange(1, 100)
            things.update_one({"_id": -giver}, {"$inc": {"amount": Decimal128(f"-{amount}")}}, session=session)
            things.update_one({"_id": -taker}, {"$inc": {"amount": Decimal128(f"{amount}")}}, session=session)


def follow(folder: Path, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(folder), url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_what_is_followed_equals_the_collection_however_often_the_process_is_killed(tmp_path, url):  # B37, B43, B55
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

    with pymongo.MongoClient(url) as client:
        documents = list(client.get_default_database().things.find().sort("_id"))
    rows = pyarrow.feather.read_table(str(tmp_path / "folded.arrow"))
    followed = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert len(followed) == len(documents)
    assert followed == [(one["_id"], one["name"], one["amount"].to_decimal(), one.get("body")) for one in documents]
