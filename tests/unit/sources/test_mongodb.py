"""MongoDB as a source, against a real server: values, ways of reading, the change stream, and what goes wrong."""

from __future__ import annotations

import sys
import uuid
from datetime import UTC, datetime
from decimal import Decimal

import pymongo
import pytest
from bson import Binary, Int64, ObjectId, Regex, json_util
from bson.decimal128 import Decimal128

from velostream.errors import Category, OptionError, SourceError, StoreError, render_text
from velostream.model.change import CHANGE
from velostream.sources.base import SourceSpec
from velostream.sources.mongodb import MongodbSource
from velostream.testing.services.mongodb import MongodbService

from .conftest import Reader as Rows

OID = ObjectId("65f0c0ffee0123456789abcd")
AT = datetime(2024, 2, 29, 12, 30, 15, 123000)  # noqa: DTZ001 - the driver gives naive ones, in UTC


@pytest.fixture
def database():
    url = MongodbService.shared().new_database()
    with pymongo.MongoClient(url) as client:
        database = Database(url, client)
        yield database
        for source in database.sources:
            source.close()
        client.drop_database(client.get_default_database().name)


class Database:
    """A database of the test's own, and the sources over it."""

    def __init__(self, url: str, client: pymongo.MongoClient) -> None:
        self.url = url
        self.client = client
        self.orders = client.get_default_database().orders
        self.sources: list[MongodbSource] = []

    def source(self, url: str | None = None, **options: str) -> MongodbSource:
        named = {name.replace("__", "."): value for name, value in options.items()}
        source = MongodbSource(SourceSpec("mongodb", url or self.url, {"collection": "orders", **named}))
        self.sources.append(source)
        return source


class Reader(Rows):
    """Says which documents came and went, too."""

    def values(self, name: str = "_id", **options):
        return [(row[name], row[CHANGE]) for row in self.read(**options)]


def test_every_type_comes_without_loss(database):
    number = uuid.UUID(int=7)
    database.orders.insert_one(
        {
            "_id": OID,
            "whole": 7,
            "long": Int64(2**53 + 1),
            "double": 0.1,
            "exact": Decimal128("12345678901234567890.10"),
            "text": "ü 😀",
            "at": AT,
            "flag": True,
            "bytes": b"\x00\xff",
            "tagged": Binary(b"abc", 128),
            "uuid": Binary.from_uuid(number),
            "pattern": Regex("^a", "i"),
            "nothing": None,
            "inside": {"city": "Ulm", "since": AT, "owner": OID, "balance": Decimal128("1.50")},
            "tags": ["a", "b"],
            "lines": [{"sku": "x", "n": 1}, {"sku": "y"}],
        }
    )
    source = database.source()
    (row,) = Reader(source).read()
    moment = AT.replace(tzinfo=UTC)
    assert row == {
        "_id": str(OID),
        "whole": 7,
        "long": 2**53 + 1,
        "double": 0.1,
        "exact": Decimal("12345678901234567890.10"),
        "text": "ü 😀",
        "at": moment,
        "flag": True,
        "bytes": b"\x00\xff",
        "tagged": b"abc",
        "uuid": str(number),
        "pattern": json_util.dumps(Regex("^a", "i")),
        "nothing": None,
        "inside": {"city": "Ulm", "since": moment, "owner": str(OID), "balance": Decimal("1.50")},
        "tags": ["a", "b"],
        "lines": [{"sku": "x", "n": 1}, {"sku": "y", "n": None}],
    }
    assert source.schema().key == ("_id",)


def test_fields_that_are_missing_are_null_and_misfits_are_set_aside(database):
    database.orders.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "late": "x"}])
    source = database.source()
    reader = Reader(source)
    database.orders.insert_one({"_id": 3, "n": "three"})
    assert reader.read() == [{"_id": 1, "n": 1, "late": None}, {"_id": 2, "n": None, "late": "x"}]
    (bad,) = reader.bad
    assert json_util.loads(bad.raw) == {"_id": 3, "n": "three"}
    assert (bad.position, 'column "n"' in bad.reason) == ("document 3", True)


def test_a_filter_an_order_a_limit_and_fields_narrow_it_down(database):
    database.orders.insert_many([{"_id": n, "n": n % 3, "at": AT, "other": n} for n in range(9)])
    chosen = database.source(
        where='{"n": {"$gt": 0}, "at": {"$gte": {"$date": "2024-02-29T00:00:00Z"}}}',
        order__by="n DESC, _id",
        limit="3",
        projection="_id,n",
    )
    assert Reader(chosen).read() == [{"_id": 2, "n": 2}, {"_id": 5, "n": 2}, {"_id": 8, "n": 2}]
    assert Reader(database.source(limit="0")).read() == []


def test_columns_may_be_declared(database):
    database.orders.insert_many([{"_id": 1, "Price": 1.5}, {"_id": 2, "Price": Decimal128("2.25")}])
    declared = database.source(record__schema="_id BIGINT NOT NULL, price DECIMAL(9,2)")
    assert Reader(declared).read() == [
        {"_id": 1, "price": Decimal("1.50")},
        {"_id": 2, "price": Decimal("2.25")},
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"where": "[1]"},
        {"where": "status = 'open'"},
        {"order__by": "n SIDEWAYS"},
        {"projection": "address.city"},
        {"cdc": "true", "where": "{}"},
    ],
)
def test_options_that_say_nothing_are_refused_at_once(database, options):
    with pytest.raises(OptionError):
        database.source(**options)


def test_a_load_is_of_one_moment_in_parts_that_have_all(database, monkeypatch):
    monkeypatch.setattr("velostream.sources.mongodb_driver._DOCUMENTS_WORTH_A_PART", 100)
    database.orders.insert_many([{"_id": ObjectId(), "n": n} for n in range(1000)])
    source = database.source(parallel__readers="3")
    schema = source.schema()
    parts = source.partitions(None, source.latest_offset(None))
    assert len(parts) == 3
    database.orders.update_many({}, {"$set": {"n": -1}})
    database.orders.insert_one({"n": -1})
    found = [batch.to_pylist() for part in parts for batch in source.read(part, schema, lambda _: None)]
    assert sorted(row["n"] for rows in found for row in rows) == list(range(1000))
    assert len(found) == 3
    source.close()


def test_newer_values_of_a_column_are_asked_for(database):
    database.orders.insert_many([{"_id": n, "at": AT.replace(microsecond=n * 1000)} for n in range(3)])
    reader = Reader(database.source(incremental__column="at", incremental__overlap="10ms"))
    assert sorted(reader.values()) == [(0, 1), (1, 1), (2, 1)]
    database.orders.insert_one({"_id": 9, "at": AT.replace(second=59)})
    database.orders.update_one({"_id": 1}, {"$set": {"at": AT.replace(second=58)}})
    assert sorted(reader.values()) == [(1, 1), (9, 1)]
    assert reader.read() == []


def test_object_ids_grow_and_are_found_by_their_text(database):
    first, second = ObjectId("65f0c0ffee0123456789ab00"), ObjectId("65f0c0ffee0123456789ab01")
    database.orders.insert_one({"_id": first})
    reader = Reader(database.source(incremental__column="_id"))
    assert reader.values() == [(str(first), 1)]
    database.orders.insert_one({"_id": second})
    assert reader.values() == [(str(second), 1)]


def test_everything_is_read_again_and_the_difference_shows(database):
    database.orders.insert_many([{"_id": 1}, {"_id": 2}])
    reader = Reader(database.source(watch="true"))
    reader.read()
    reader.read()
    database.orders.delete_one({"_id": 1})
    assert reader.read() == ["replaced by", {"_id": 2}]
    database.orders.drop()
    with pytest.raises(SourceError) as missing:  # and not: everything was deleted
        reader.read()
    assert missing.value.category is Category.MISSING


def test_changes_follow_the_load_without_gap_or_repetition(database):
    database.orders.insert_many([{"_id": n, "n": n} for n in range(4)])
    source = database.source(cdc="true")
    reader = Reader(source)
    end = source.latest_offset(None)
    database.orders.update_one({"_id": 1}, {"$set": {"n": 10}})
    database.orders.insert_one({"_id": 4, "n": 4})
    parts = source.partitions(None, end)
    loaded = [
        row
        for part in parts
        for batch in source.read(part, reader.schema, reader.bad.append)
        for row in batch.to_pylist()
    ]
    assert [(row["_id"], row["n"]) for row in loaded] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    reader.position = end
    database.orders.replace_one({"_id": 2}, {"n": 20})
    database.orders.delete_one({"_id": 3})
    assert [(row["_id"], row["n"], row[CHANGE]) for row in reader.read()] == [
        (1, 10, 1),
        (4, 4, 1),
        (2, 20, 1),
        (3, None, -1),
    ]
    assert reader.read() == []


def test_a_transaction_is_never_split(database):
    database.orders.insert_one({"_id": 0})
    reader = Reader(database.source(cdc="true"))
    reader.read()

    def work(session):
        database.orders.insert_many([{"_id": n} for n in range(1, 6)], session=session)
        database.orders.delete_one({"_id": 0}, session=session)

    with database.client.start_session() as session:
        session.with_transaction(work)
    database.orders.insert_one({"_id": 9})
    assert reader.values(max_rows=2) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (0, -1)]
    assert reader.values(max_rows=2) == [(9, 1)]


def test_documents_are_what_they_were_when_a_transaction_ended(database):
    database.orders.insert_many([{"_id": n, "n": 0, "in": {"a": [1]}} for n in range(2)])
    reader = Reader(database.source(cdc="true"))
    reader.read()

    def transfer(session):
        database.orders.update_one({"_id": 0}, {"$inc": {"n": 1}, "$push": {"in.a": 2}}, session=session)
        database.orders.update_one({"_id": 1}, {"$inc": {"n": -1}}, session=session)

    for _ in range(2):
        with database.client.start_session() as session:
            session.with_transaction(transfer)
    database.orders.delete_one({"_id": 0})
    steps = [[(row["_id"], row["n"], row["in"], row[CHANGE]) for row in reader.read(max_rows=1)] for _ in range(3)]
    assert steps == [
        [(0, 1, {"a": [1, 2]}, 1), (1, -1, {"a": [1]}, 1)],
        [(0, 2, {"a": [1, 2, 2]}, 1), (1, -2, {"a": [1]}, 1)],
        [(0, None, None, -1)],
    ]


def test_documents_that_can_not_be_seen_as_of_then_are_seen_as_of_now(database):
    database.orders.insert_many([{"_id": n, "n": 0} for n in range(2)])
    reader = Reader(database.source(cdc="true", transaction__isolation="majority"))
    reader.read()
    for n in (1, 2):
        database.orders.update_one({"_id": 0}, {"$set": {"n": n}})
    database.orders.update_one({"_id": 1}, {"$set": {"n": 1}})
    database.orders.delete_one({"_id": 1})
    assert [(row["_id"], row["n"]) for row in reader.read(max_rows=1)] == [(0, 2)]
    assert [(row["_id"], row["n"], row[CHANGE]) for row in reader.read()] == [(0, 2, 1), (1, None, -1)]


def test_an_update_of_what_is_gone_says_no_more_than_its_deletion(database):
    database.orders.insert_one({"_id": 1, "n": 1})
    reader = Reader(database.source(cdc="true"))
    reader.read()
    database.orders.update_one({"_id": 1}, {"$set": {"n": 2}})
    database.orders.delete_one({"_id": 1})
    assert reader.values() == [(1, -1)]


def test_a_drain_waits_for_what_was_written_before_it(database):
    database.orders.insert_one({"_id": 1})
    source = database.source(cdc="true")
    reader = Reader(source)
    reader.read()
    database.orders.insert_many([{"_id": n} for n in range(2, 50)])
    database.client.get_default_database().elsewhere.insert_one({})
    target = source.latest_offset(reader.position)
    assert not source.reached(reader.position, target)
    steps = 0
    while not source.reached(reader.position, target):
        reader.read(max_rows=20)
        steps += 1
    assert steps == 4  # three of rows, and one past what is elsewhere


def test_only_changes_from_a_time_on(database):
    database.orders.insert_one({"_id": 1})
    latest = Reader(database.source(cdc="true", initial__load="none"))
    assert latest.read() == []
    before = Reader(database.source(cdc="true", initial__load="none", cdc__start="2024-01-01T00:00:00Z"))
    with pytest.raises(OptionError):
        database.source(cdc="true", initial__load="none", cdc__start="yesterday").latest_offset(None)
    database.orders.insert_one({"_id": 2})
    assert latest.values() == [(2, 1)]
    assert before.position is None


def test_a_collection_that_was_dropped_is_an_error_with_a_way_out(database):
    database.orders.insert_many([{"_id": 1}, {"_id": 2}])
    reader, again = Reader(database.source(cdc="true")), Reader(database.source(cdc="true", cdc__on__gap="snapshot"))
    reader.read()
    again.read()
    database.orders.insert_one({"_id": 3})
    database.orders.drop()
    assert reader.values() == [(3, 1)]
    with pytest.raises(SourceError) as lost:
        reader.read()
    assert (lost.value.code, lost.value.category) == ("log-lost", Category.STATE)
    assert "cdc.on.gap" in lost.value.hint
    again.read()
    with pytest.raises(SourceError) as missing:
        again.read()
    assert missing.value.category is Category.MISSING
    database.orders.insert_one({"_id": 7})
    assert again.read() == ["replaced by", {"_id": 7}]
    database.orders.insert_one({"_id": 8})
    assert again.values() == [(8, 1)]


def forgotten(position):
    """The position with the token of an event in 1970: a token begins with its time."""
    token = position["token"]["_data"]
    return position | {"token": {"_data": f"{token[:2]}00000001{token[10:]}"}}


def test_while_changes_are_not_to_be_had_the_collection_is_polled(database, monkeypatch):  # B37
    database.orders.insert_one({"_id": 1, "n": 1})
    reader = Reader(database.source(cdc="true", cdc__fallback="poll"))
    assert reader.values("n") == [(1, 1)]
    assert reader.source.poll_interval.total_seconds() == 0.1
    database.orders.insert_one({"_id": 2, "n": 2})
    assert reader.values("n") == [(2, 1)]
    reader.position = reader.position | {"at": forgotten(reader.position["at"])}
    database.orders.delete_one({"_id": 1})
    assert reader.read() == ["replaced by", {"_id": 2, "n": 2}]
    assert reader.source.poll_interval.total_seconds() == 30
    assert ["change stream" in one or "oplog" in one for one in reader.source.warnings] == [True]
    database.orders.insert_one({"_id": 3, "n": 3})
    assert [row if isinstance(row, str) else row["n"] for row in reader.read()] == ["replaced by", 2, 3]
    # Another process goes on from there, and finds that changes can be had again.
    again = Reader(database.source(cdc="true", cdc__fallback="poll"))
    again.position = reader.position
    monkeypatch.setattr("velostream.sources.capture_fallback._TRY_AGAIN_SECONDS", 0.0)
    database.orders.delete_one({"_id": 2})
    assert again.read() == ["replaced by", {"_id": 3, "n": 3}]
    database.orders.update_one({"_id": 3}, {"$set": {"n": 4}})
    assert again.values("n") == [(4, 1)]
    assert again.source.warnings == ()
    with pytest.raises(OptionError):
        database.source(cdc__fallback="poll")
    with pytest.raises(OptionError):
        database.source(cdc="true", cdc__fallback="poll", initial__load="none")


def test_how_long_the_oplog_remembers_and_how_far_behind_we_are(database):
    database.orders.insert_one({"_id": 1})
    reader = Reader(database.source(cdc="true"))
    assert reader.source.gauges(None) == {}
    reader.read()
    database.orders.insert_many([{"_id": n} for n in range(2, 6)])
    reader.read(max_rows=2)
    assert 0 <= reader.source.lag(reader.position).seconds < 60
    assert reader.source.gauges(reader.position)["oplog seconds in reserve"] >= 0


def test_changes_that_the_server_has_forgotten_are_lost(database):
    database.orders.insert_one({"_id": 1})
    reader = Reader(database.source(cdc="true"))
    reader.read()
    database.orders.insert_one({"_id": 2})
    reader.read()
    with pytest.raises(SourceError) as lost:
        reader.source.latest_offset(forgotten(reader.position), max_rows=10)
    assert lost.value.code == "log-lost"
    again = database.source(cdc="true", cdc__on__gap="snapshot")
    assert again.latest_offset(forgotten(reader.position), max_rows=10)["load"] == 2


def test_documents_of_a_view_may_have_no_id(database, monkeypatch):
    monkeypatch.setattr("velostream.sources.mongodb_driver._DOCUMENTS_WORTH_A_PART", 1)
    database.orders.insert_many([{"_id": n, "n": n} for n in range(4)])
    database.client.get_default_database().create_collection(
        "bare", viewOn="orders", pipeline=[{"$project": {"_id": 0}}, {"$sort": {"n": 1}}]
    )
    bare = Reader(database.source(collection="bare"))
    assert bare.schema.key == ()
    assert bare.read() == [{"n": n} for n in range(4)]


def test_a_view_has_rows_and_no_changes(database):
    database.orders.insert_many([{"_id": n, "n": n} for n in range(4)])
    database.client.get_default_database().create_collection(
        "few", viewOn="orders", pipeline=[{"$match": {"n": {"$gt": 1}}}]
    )
    assert [row["n"] for row in Reader(database.source(collection="few", order__by="_id")).read()] == [2, 3]
    followed = Reader(database.source(collection="few", cdc="true"))
    followed.read()
    with pytest.raises(SourceError) as refused:
        followed.read()
    assert refused.value.category is Category.CONFIGURATION


def test_changes_need_the_key_of_the_collection(database):
    database.orders.insert_one({"_id": 1, "n": 1})
    with pytest.raises(SourceError) as refused:
        database.source(cdc="true", key="n").schema()
    assert refused.value.category is Category.CONFIGURATION


def test_a_server_that_went_away_is_followed_when_it_is_back():
    with MongodbService() as server, pymongo.MongoClient(server.url) as client:
        orders = client.get_default_database().orders
        orders.insert_one({"_id": 1})
        options = {"collection": "orders", "cdc": "true", "connect.timeout": "300ms"}
        reader = Reader(MongodbSource(SourceSpec("mongodb", server.url, options)))
        reader.read()
        with server.stopped(), pytest.raises(SourceError) as away:
            reader.read()
        assert away.value.category is Category.NETWORK
        orders.insert_one({"_id": 2})
        for _ in range(100):
            try:
                assert reader.values() == [(2, 1)]
                break
            except SourceError as error:
                assert error.category is Category.NETWORK  # noqa: PT017 - the primary isn't elected yet
        reader.source.close()


def test_a_password_shows_nowhere(database, monkeypatch):
    monkeypatch.setenv("MONGO_PASSWORD", "p@ss:w/rd")
    host = database.url.partition("://")[2]
    source = database.source(f"mongodb://${{MONGO_USER:-stranger}}:${{MONGO_PASSWORD}}@{host}")
    with pytest.raises(SourceError) as refused:
        source.schema()
    assert refused.value.category is Category.AUTHENTICATION
    assert "p@ss" not in render_text(refused.value) + repr(source.driver)
    with pytest.raises(OptionError) as unreadable:
        database.source("mongodb://user:p@ss/w@rd/db")
    assert "ss" not in str(unreadable.value).replace("address", "")


def test_a_missing_driver_is_named(database, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymongo.errors", None)
    with pytest.raises(StoreError) as missing:
        database.source()
    assert "velostream[mongodb]" in missing.value.hint
