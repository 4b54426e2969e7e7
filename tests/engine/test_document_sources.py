"""MongoDB, ClickHouse and Redis in SQL: views over what is followed, joins over what is read, servers away and back."""

from __future__ import annotations

import time
from decimal import Decimal

import pymongo
import pytest
import redis
from bson.decimal128 import Decimal128

import velostream
from velostream.testing.services.clickhouse import ClickhouseService
from velostream.testing.services.mongodb import MongodbService
from velostream.testing.services.redis import RedisService


@pytest.fixture(scope="module")
def connection():
    with velostream.connect() as connection:
        yield connection


def test_a_view_follows_a_collection_that_meets_rows_of_other_servers(connection):  # B37, B43
    clickhouse = ClickhouseService.shared()
    products = clickhouse.new_database()
    names = ClickhouseService(url=products)
    names.execute("CREATE TABLE products (sku String, name String) ENGINE = MergeTree ORDER BY sku")
    names.execute("INSERT INTO products VALUES ('a', 'Apple'), ('b', 'Pear')")
    url = MongodbService.shared().new_database()
    with pymongo.MongoClient(url) as client:
        orders = client.get_default_database().orders
        orders.insert_many([{"_id": n, "sku": "ab"[n % 2], "amount": Decimal128(f"{n}.25")} for n in range(25)])
        connection.execute(f"CREATE TABLE products AS SELECT sku PRIMARY KEY, name FROM '{products}?table=products'")
        connection.execute(
            f"CREATE TABLE orders AS SELECT _id, sku, amount FROM '{url}' o "
            "WITH ('collection' = 'orders', 'cdc' = 'true')"
        )
        connection.execute(
            "CREATE TABLE spent AS SELECT p.name PRIMARY KEY, COUNT(*) AS n, SUM(o.amount) AS total "
            "FROM orders o JOIN products p ON o.sku = p.sku GROUP BY p.name"
        )
        connection.wait("spent", timeout=180)
        orders.insert_many([{"_id": 100 + n, "sku": "b", "amount": Decimal128("1.00")} for n in range(10)])
        orders.update_one({"_id": 1}, {"$set": {"sku": "a"}})
        orders.delete_one({"_id": 0})
        connection.drain("spent", timeout=180)
        assert connection.execute("SELECT name, n, total FROM spent ORDER BY name").fetchall() == [
            ("Apple", 13, Decimal("160.25")),
            ("Pear", 21, Decimal("155.75")),
        ]
        connection.execute("DROP TABLE orders CASCADE")


def test_entries_of_a_stream_are_events_and_hashes_are_rows(connection):
    url = RedisService.shared().new_database()
    with redis.Redis.from_url(url) as client:
        client.hset("user:1", mapping={"name": "Ann"})
        client.hset("user:2", mapping={"name": "Bob"})
        client.xadd("clicks", {"user": 1, "n": 2})
        connection.execute(f"CREATE TABLE users AS SELECT * FROM '{url}' WITH ('prefix' = 'user:', 'key' = 'id')")
        connection.execute(
            f"CREATE TABLE clicks AS SELECT u.name PRIMARY KEY, SUM(c.n) AS n, MAX(c._id) AS last "
            f"FROM '{url}?stream=clicks' c JOIN users u ON c.user = u.id GROUP BY u.name"
        )
        connection.wait("clicks", timeout=180)
        client.xadd("clicks", {"user": 2, "n": 5})
        last = client.xadd("clicks", {"user": 1, "n": 3}).decode()
        connection.drain("clicks", timeout=180)
        rows = connection.execute("SELECT name, n, last FROM clicks ORDER BY name").fetchall()
        assert [row[:2] for row in rows] == [("Ann", 5), ("Bob", 5)]
        assert rows[0][2] == last
        connection.execute("DROP TABLE clicks")


def test_a_server_that_is_away_degrades_what_follows_it(connection):  # B56
    with MongodbService() as server, pymongo.MongoClient(server.url) as client:
        things = client.get_default_database().things
        things.insert_one({"_id": 1})
        connection.execute(
            f"CREATE TABLE seen AS SELECT _id FROM '{server.url}' "
            "WITH ('collection' = 'things', 'cdc' = 'true', 'connect.timeout' = '500ms')"
        )
        connection.wait("seen", timeout=180)
        deadline = time.monotonic() + 180
        with server.stopped():
            while connection.status("seen").state != "degraded":
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert connection.execute("SELECT _id FROM seen").fetchall() == [(1,)]
        things.insert_one({"_id": 2})
        while len(connection.table("seen")) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        connection.execute("DROP TABLE seen")
