"""A table that follows a collection while writers change it and its process is killed: nothing lost, nothing twice, and
no version with a part of a transaction.
"""

from __future__ import annotations

import random
import threading
from functools import partial

import pymongo
import pytest
from bson.decimal128 import Decimal128
from pymongo.errors import PyMongoError

from velostream.testing.services.mongodb import MongodbService

from .torture import ACCOUNTS, KEYS, follow_while_killed, gives_up


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


def write(url: str, chance: random.Random, stopping: threading.Event) -> None:
    """Inserts, updates, replacements, deletes, transfers between accounts, rollbacks; until told to stop."""
    with pymongo.MongoClient(url) as client, client.start_session() as session:
        things = client.get_default_database().things
        while not stopping.is_set():
            try:
                with session.start_transaction():
                    for _ in range(chance.choice((1, 1, 3, 20))):
                        change(things, session, chance)
                    if gives_up(chance):
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


def test_what_is_followed_equals_the_collection_however_often_the_process_is_killed(tmp_path, url):  # B37, B43, B55
    followed = follow_while_killed(tmp_path, url, partial(write, url), writers=4)

    with pymongo.MongoClient(url) as client:
        documents = list(client.get_default_database().things.find().sort("_id"))
    assert len(followed) == len(documents)
    assert followed == [(one["_id"], one["name"], one["amount"].to_decimal(), one.get("body")) for one in documents]
