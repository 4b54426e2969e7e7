"""Topics of a real broker in SQL: streams, copies, waiting, sinks, and a broker that goes away."""

import json
import time
from collections import Counter
from decimal import Decimal

import pytest

import velostream
from velostream.engine.status import State
from velostream.errors import Category, SourceError
from velostream.testing.kafka_feed import send, settled_end
from velostream.testing.services.kafka import KafkaService


@pytest.fixture(scope="module")
def broker():
    with KafkaService() as broker:
        yield broker


@pytest.fixture
def connection():
    with velostream.connect() as connection:
        yield connection


def rows(connection, sql):
    return sorted(connection.execute(sql).fetchall(), key=repr)


def test_an_enriched_aggregate_equals_batch_though_the_broker_goes_away(broker, connection, eventually):  # B56
    orders = broker.new_topic(partitions=2)
    connection.execute("CREATE TABLE products (sku STRING PRIMARY KEY, category STRING, factor DECIMAL(4,2))")
    connection.execute("INSERT INTO products VALUES ('a', 'fruit', 1.50), ('b', 'fruit', 2.00), ('c', 'leaf', 0.25)")
    sent = [{"id": n, "sku": "abcd"[n % 4], "amount": n} for n in range(1000)]
    messages = [(order["sku"], json.dumps(order)) for order in sent]
    send(orders, messages[:500])
    connection.execute(
        f"CREATE TABLE totals AS SELECT p.category, COUNT(*) AS n, SUM(o.amount * p.factor) AS total "
        f"FROM {orders} o JOIN products p ON o.sku = p.sku GROUP BY p.category"
    )
    connection.drain("totals", timeout=120)
    assert rows(connection, "SELECT SUM(n) FROM totals") == [(375,)]
    with broker.stopped():
        eventually(lambda: connection.status("totals").state is State.DEGRADED, what="the trouble's notice")
        assert connection.status("totals").next_retry_at is not None
        assert rows(connection, "SELECT SUM(n) FROM totals") == [(375,)]
        connection.execute("INSERT INTO products VALUES ('x', 'other', 1)")
    send(orders, messages[500:])
    factors = {"a": ("fruit", Decimal("1.50")), "b": ("fruit", Decimal("2.00")), "c": ("leaf", Decimal("0.25"))}
    counts, totals = Counter(), Counter()
    for order in sent:
        if order["sku"] in factors:
            category, factor = factors[order["sku"]]
            counts[category] += 1
            totals[category] += order["amount"] * factor
    expected = sorted((category, counts[category], totals[category]) for category in counts)
    eventually(lambda: rows(connection, "SELECT * FROM totals") == expected, seconds=30, what="the rest of the orders")
    assert connection.status("totals").state is State.READY
    assert (connection.status("totals").percent, connection.status("totals").eta) == (100.0, 0.0)


def test_a_copied_topic_holds_the_newest_value_of_each_key(broker, connection, monkeypatch):  # B43
    url = broker.new_topic(partitions=2)
    topic = url.rpartition("/")[2]
    send(url, [("a", '{"v": 1}'), ("b", '{"v": 2}'), (None, '{"v": 3}'), (None, '{"v": 3}'), ("a", '{"v": 4}')])
    monkeypatch.setenv("VELOSTREAM_KAFKA_BROKERS", broker.brokers)
    connection.execute(f"CREATE TABLE copied AS SELECT v * 10 AS v FROM {topic} WHERE v > 0")
    connection.execute(f"CREATE TABLE by_key AS SELECT _key PRIMARY KEY, * FROM kafka_topic('{topic}')")
    connection.execute(f"CREATE TABLE events AS SELECT COUNT(*) AS n, MAX(_offset) AS last FROM kafka://{topic}")
    connection.execute(f"CREATE TABLE all_events AS SELECT * FROM {topic} WITH ('changelog' = 'append')")
    connection.execute(f"CREATE TABLE by_value AS SELECT v PRIMARY KEY FROM {topic} WHERE v > 1")
    tables = ("copied", "by_key", "events", "all_events", "by_value")
    for table in tables:
        connection.drain(table, timeout=60)
    assert rows(connection, "SELECT v FROM copied") == [(20,), (30,), (30,), (40,)]
    assert rows(connection, "SELECT * FROM by_key WHERE _key IS NOT NULL") == [("a", 4), ("b", 2)]
    send(url, [("a", None), ("b", '{"v": -1}')])
    for table in tables:
        connection.drain(table, timeout=60)
    assert rows(connection, "SELECT v FROM copied") == [(30,), (30,)]
    assert rows(connection, "SELECT * FROM by_key WHERE _key IS NOT NULL") == [("b", -1)]
    assert rows(connection, "SELECT v FROM by_value") == [(2,), (3,)]
    assert rows(connection, "SELECT n FROM events") == [(6,)]
    assert rows(connection, "SELECT COUNT(*) FROM all_events") == [(6,)]


def test_a_topic_that_is_not_there_yet(broker, connection, eventually):  # B5, B6
    missing = f"{broker.new_topic()}_later"
    with pytest.raises(SourceError) as caught:
        connection.execute(f"CREATE TABLE hasty AS SELECT * FROM {missing}")
    assert "kafka-topics" in caught.value.hint
    began_at = time.monotonic()
    with pytest.raises(SourceError) as unreachable:
        connection.execute("CREATE TABLE nowhere AS SELECT * FROM kafka://127.0.0.1:1/orders")
    assert unreachable.value.category is Category.NETWORK
    assert time.monotonic() - began_at < 10
    waiting = f"FROM {missing} WITH ('topic.retry.interval' = '200ms', 'topic.retry.strategy' = 'fixed', "
    connection.execute(f"CREATE TABLE impatient AS SELECT * {waiting} 'topic.wait.timeout' = '500ms')")
    connection.execute(f"CREATE TABLE patient AS SELECT id {waiting} 'topic.wait.timeout' = '60s')")
    eventually(lambda: connection.status("impatient").state is State.FAILED, what="the end of patience")
    assert "times within" in str(connection.status("impatient").error)
    counters = connection.status("impatient").counters
    assert counters["source looked for: missing"] > 1
    assert counters["source given up"] == 1
    assert connection.status("patient").state is State.WAITING
    broker.create_topic(missing.rpartition("/")[2])
    send(missing, [(None, '{"id": 7}')])
    eventually(lambda: connection.status("patient").state is State.READY, what="the topic's notice")
    assert rows(connection, "SELECT id FROM patient") == [(7,)]
    assert connection.status("patient").counters["source found"] == 1


def test_rows_go_from_topic_to_topic(broker, connection, eventually):
    source, target = broker.new_topic(), broker.new_topic()
    send(source, [("k1", '{"id": 1, "price": 1.10}'), ("k2", '{"id": 2, "price": 2.20}')])
    connection.execute(f"INSERT INTO {target} SELECT id, price * 2 AS price, _key FROM {source} WHERE id > 1")
    connection.execute(f"CREATE TABLE arrived AS SELECT *, _key FROM {target}")

    def arrived():
        settled_end(target)
        connection.drain("arrived", timeout=60)
        return rows(connection, "SELECT * FROM arrived")

    eventually(arrived, what="the row's arrival")
    assert arrived() == [(2, Decimal("4.40"), "k2")]


def test_latest_is_what_the_topic_held_when_the_statement_was_made(broker, tmp_path):
    old, empty = broker.new_topic(), broker.new_topic()
    missing = f"{broker.new_topic()}_later"
    send(old, [("a", '{"id": 1}')])
    latest = "'auto.offset.reset' = 'latest'"
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute("CREATE TABLE held (id BIGINT PRIMARY KEY)")
        connection.execute(f"CREATE TABLE copied AS SELECT id FROM {empty} WITH ({latest})")
        connection.execute(f"CREATE STREAM followed AS SELECT id * 10 AS id FROM {empty} WITH ({latest})")
        connection.execute(
            f"CREATE TABLE later AS SELECT COUNT(*) AS n FROM {missing} "
            f"WITH ({latest}, 'topic.wait.timeout' = '2m', 'topic.retry.interval' = '100ms')"
        )
        # Nothing of this stream is taken in before the table that it is joined with is there.
        connection.execute(
            f"CREATE TABLE joined AS SELECT o.id FROM {old} o WITH ({latest}) LEFT JOIN copied c ON o.id = c.id"
        )
        connection.execute(f"INSERT INTO held SELECT id + 100 AS id FROM {old} WITH ({latest})")
        connection.drain("insert_into_held_1", timeout=60)
        send(old, [("a", '{"id": 2}')])
        assert connection.status("joined").state is State.WAITING
        assert connection.status("later").state is State.WAITING
    send(old, [("a", '{"id": 3}')])
    send(empty, [("b", '{"id": 4}')])
    broker.create_topic(missing.rpartition("/")[2])
    send(missing, [("c", '{"id": 5}'), ("c", '{"id": 6}')])
    with velostream.connect(tmp_path / "state") as connection:
        expected = {"copied": [(4,)], "later": [(2,)], "joined": [(2,), (3,)], "held": [(102,), (103,)]}
        for table, content in expected.items():
            connection.drain(table, timeout=60)
            assert rows(connection, f"SELECT * FROM {table}") == content, table
        pushed = connection.execute("SELECT id FROM followed LIMIT 1")
        assert pushed.fetchall() == [(40,)]
