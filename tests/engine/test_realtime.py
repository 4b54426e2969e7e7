"""`'trigger' = 'realtime'` against a real broker: the same messages as without it, trouble, and what is refused."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import velostream
from velostream.engine.status import State
from velostream.errors import UnsupportedError, VelostreamError
from velostream.testing.kafka_feed import send, settled_end
from velostream.testing.services.kafka import KafkaService

REALTIME = "'trigger' = 'realtime', 'bad.records' = 'skip'"
NAME = "insert_into_kafka_1"


@pytest.fixture(scope="module")
def broker():
    with KafkaService() as broker:
        yield broker


@pytest.fixture
def connection():
    with velostream.connect() as connection:
        yield connection


def messages(url, count=None, *, seconds=120.0):
    """Keys, values and headers of the messages of a topic by partition: of the first so many, or of all there are."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    brokers, topic = url.removeprefix("kafka://").split("/")
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": "reader", "log_level": 0, "enable.partition.eof": True}
    )
    found, ended = {}, set()
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        deadline = time.monotonic() + seconds
        while len(ended) < len(partitions) if count is None else sum(map(len, found.values())) < count:
            assert time.monotonic() < deadline, f"{sum(map(len, found.values()))} of {count} messages"
            message = consumer.poll(0.2)
            if message is not None and message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
            elif message is not None:
                found.setdefault(message.partition(), []).append((message.key(), message.value(), message.headers()))
    finally:
        consumer.close()
    return found


def ids(url, count=None, **patience):
    return Counter(
        json.loads(value)["id"] for many in messages(url, count, **patience).values() for _, value, _ in many
    )


def is_gone(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def runner_of(connection):
    (runner,) = [one for one in connection._launcher.running.runners.values() if hasattr(one, "processes")]
    return runner


def trades(count):
    """Messages with everything that a record may hold, and some that are none."""
    drawn = random.Random(7)
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    for number in range(count):
        at = begin + timedelta(seconds=number * 37, microseconds=drawn.choice([0, number, 500_000]))
        record = {
            "id": number,
            "account": drawn.choice(["ä-1", "b", "c€", None, 'q"uote\\', "line\nfeed"]),
            "at": drawn.choice([at.isoformat(), at.strftime("%Y-%m-%dT%H:%M:%SZ"), None]),
            "day": at.date().isoformat() if number % 3 else None,
            "open": drawn.choice([True, False, None]),
            "legs": drawn.choice([[], None, [{"sku": "x", "amounts": [1.5, None]}, {"sku": "ü", "amounts": []}]]),
            "ratio": drawn.choice([0.1, 2.5e3, 1, None]),
            "further": {"not": "asked for"},
        }
        text = json.dumps(record)
        price = drawn.choice(["1.10", "2", "-0.01", "12345678.90", "null", '"3.50"', "0.00"])
        text = f'{text[:-1]}, "price": {price}}}'
        if number % 40 == 7:
            text = drawn.choice(["{", "", "[]", text[:-1], '{"id": "x"}', text + "x", text.replace(price, '"much"')])
        yield (drawn.choice([None, f"k{number % 5}"]), None if number % 100 == 50 else text)


def test_the_messages_are_those_without_the_trigger(broker, connection):
    source, plain, quick = broker.new_topic(partitions=2), broker.new_topic(), broker.new_topic()
    sent = list(trades(3000))
    send(source, sent)
    connection.execute(
        "CREATE STREAM trades (id BIGINT NOT NULL, account STRING, price DECIMAL(12,4), at TIMESTAMP, day DATE, "
        "open BOOLEAN, legs ARRAY<STRUCT<sku: STRING, amounts: ARRAY<DECIMAL(8,3)>>>, ratio DOUBLE, _key STRING, "
        "_partition INT, _offset BIGINT, _topic STRING, _timestamp TIMESTAMP) "
        f"WITH ('source' = '{source}', 'bad.records' = 'skip')"
    )
    query = (
        "SELECT id, account, price, price * 3 AS thrice, at, day, at + INTERVAL 1 DAY AS later, open, legs, "
        "legs[0].sku AS sku, upper(account) AS upper, coalesce(_key, account, 'none') AS _key, "
        "map('from', _topic) AS _headers, _partition, _offset, _timestamp AS sent_at, "
        "CASE WHEN open THEN price ELSE -price END AS signed "
        "FROM trades WHERE id % 10 <> 3 AND (price IS NULL OR price > -1)"
    )
    connection.execute(f"INSERT INTO {plain} {query}")
    connection.execute(f"INSERT INTO {quick} {query} WITH ('trigger' = 'realtime')")
    connection.drain(NAME, timeout=120)
    connection.drain("insert_into_kafka_2", timeout=120)
    settled_end(plain)
    expected, found = messages(plain)[0], messages(quick)[0]

    def by_partition(many):
        return [[one for one in many if json.loads(one[1])["_partition"] == partition] for partition in (0, 1)]

    assert by_partition(found) == by_partition(expected)
    assert len(found) > 2000
    assert connection.status("insert_into_kafka_2").state is State.READY


def test_explain_tells_of_the_mode(broker, connection):
    source, target = broker.new_topic(), broker.new_topic()
    send(source, [(None, '{"id": 1}')])
    told = dict(connection.execute(f"EXPLAIN SELECT id INTO {target} FROM {source} WITH ({REALTIME})").fetchall())
    assert "Real-Time Mode" in told["trigger"]
    assert "at-least-once" in told["guarantee"]


REFUSED = {
    "SELECT id FROM {source} WITH ('trigger' = 'realtime')": "bad.records",
    "SELECT COUNT(*) AS n FROM {source} GROUP BY id EMIT CHANGES WITH ({realtime})": "strategy",
    "SELECT s.id FROM {source} s JOIN names n ON s.id = n.id WITH ({realtime})": '"names"',
    "SELECT id FROM {source} WHERE id IN (SELECT id FROM names) WITH ({realtime})": '"names"',
    "SELECT twice(id) AS id FROM {source} WITH ({realtime})": '"twice"',
    "SELECT id FROM memory://feed WITH ('trigger' = 'realtime')": "memory",
    "SELECT id FROM names EMIT CHANGES WITH ('trigger' = 'realtime')": "from topic to topic",
    "SELECT id FROM {source} WITH ({realtime}, 'format' = 'csv', 'record.schema' = 'id BIGINT')": '"csv"',
    "SELECT id FROM {source} WITH ({realtime}, 'timezone' = 'Europe/Paris')": "timezone",
    "SELECT id FROM {source} WITH ({realtime}, 'poll.interval' = '1s')": "poll.interval",
    "SELECT id FROM {source} WITH ({realtime}, 'record.schema' = 'id BINARY')": "BINARY",
    "SELECT id, _timestamp FROM {source} WITH ({realtime})": "_timestamp",
    "SELECT id FROM {source} WITH ({realtime}, 'kafka.queued.min.messages' = '5')": "queued.min.messages",
}


def test_what_real_time_mode_cannot_do_is_refused_with_the_reason(broker, connection):
    source, target = broker.new_topic(), broker.new_topic()
    send(source, [(None, '{"id": 1}')])
    connection.execute("CREATE TABLE names (id BIGINT PRIMARY KEY, name STRING)")
    connection.memory("feed").append([{"id": 1}])
    connection.create_function("twice", lambda value: 2 * value, returns="BIGINT")
    for query, reason in REFUSED.items():
        sql = f"INSERT INTO {target} {query.format(source=source, realtime=REALTIME)}"
        with pytest.raises(UnsupportedError) as caught:
            connection.execute(sql)
        assert caught.value.code == "unsupported-trigger", sql
        assert reason in f"{caught.value.message} {caught.value.detail} {caught.value.hint}", sql
        assert caught.value.hint
    for sql in (
        f"INSERT INTO names SELECT id, 'x' AS name FROM {source} WITH ({REALTIME})",
        f"CREATE TABLE t AS SELECT id FROM {source} WITH ({REALTIME})",
        f"CREATE STREAM s AS SELECT id FROM {source} WITH ({REALTIME})",
        f"SELECT id FROM {source} WITH ({REALTIME})",
        f"INSERT INTO file:///tmp/never.json SELECT id FROM {source} WITH ({REALTIME})",
    ):
        with pytest.raises(UnsupportedError) as caught:
            connection.execute(sql)
        assert caught.value.code == "unsupported-trigger", sql
    for query in ("SELECT DISTINCT id FROM {source}", "SELECT id FROM {source} LIMIT 3"):
        # Nor can it be without the trigger.
        with pytest.raises(VelostreamError):
            connection.execute(f"INSERT INTO {target} {query.format(source=source)} WITH ({REALTIME})")
    assert not [name for name in connection.queries() if name.startswith("insert")]


def test_a_bad_record_ends_the_query_where_that_is_asked_for(broker, connection, eventually):
    source, target = broker.new_topic(), broker.new_topic()
    send(source, [(None, '{"id": 1}')])
    connection.execute(
        f"INSERT INTO {target} SELECT id FROM {source} WITH ('trigger' = 'realtime', 'bad.records' = 'fail')"
    )
    assert ids(target, 1) == {1: 1}
    send(source, [(None, '{"id": "one"}')])
    eventually(lambda: connection.status(NAME).state is State.FAILED, what="the end of the query")
    status = connection.status(NAME)
    assert "@1" in status.reason
    assert 'column "id" is BIGINT, not one' in status.error


def test_it_goes_on_when_the_broker_is_back_and_ends_when_told(broker, connection, eventually):
    source, target = broker.new_topic(partitions=2), broker.new_topic()
    send(source, [("a", '{"id": 1}'), ("b", '{"id": 2}')])
    connection.execute(f"CREATE STREAM numbers (id BIGINT) WITH ('source' = '{source}', 'bad.records' = 'skip')")
    connection.execute(f"INSERT INTO {target} SELECT id FROM numbers WITH ('trigger' = 'realtime')")
    connection.wait(NAME, timeout=90)
    assert set(ids(target, 2)) == {1, 2}
    with broker.stopped():
        eventually(lambda: connection.status(NAME).state is State.DEGRADED, what="the trouble's notice")
        assert connection.status(NAME).next_retry_at is not None
    send(source, [("a", '{"id": 3}')])
    eventually(lambda: connection.status(NAME).state is State.READY, seconds=30, what="the broker's return")
    eventually(lambda: 3 in ids(target), seconds=30, what="the message after it")
    connection.execute(f"PAUSE QUERY {NAME}")
    assert connection.status(NAME).state is State.PAUSED
    send(source, [("b", '{"id": 4}')])
    connection.execute(f"RESUME QUERY {NAME}")
    running = runner_of(connection)
    connection.drain(NAME, timeout=90)
    assert set(ids(target)) == {1, 2, 3, 4}
    processes = running.processes
    assert len(processes) == 2
    assert not any(is_gone(process) for process in processes)
    os.kill(processes[1], signal.SIGKILL)
    send(source, [("b", '{"id": 5}')])
    eventually(lambda: 5 in ids(target), seconds=90, what="a Spark in place of the one that was killed")
    connection.drain(NAME, timeout=60)
    processes = running.processes
    connection.execute("DROP STREAM numbers CASCADE")
    assert NAME not in connection.queries()
    eventually(lambda: all(map(is_gone, processes)), seconds=15, what="the end of its processes")


def test_latest_is_settled_when_the_statement_is_made(broker, connection):
    source, target = broker.new_topic(), broker.new_topic()
    send(source, [(None, '{"id": 1}')])
    connection.execute(
        f"INSERT INTO {target} SELECT id FROM {source} WITH ({REALTIME}, 'auto.offset.reset' = 'latest')"
    )
    send(source, [(None, '{"id": 2}')])
    assert ids(target, 1) == {2: 1}


KILLED = """
import sys, velostream
connection = velostream.connect(sys.argv[1])
if len(sys.argv) > 3:
    connection.execute(
        f"INSERT INTO {sys.argv[3]} SELECT id FROM {sys.argv[2]} WITH ('trigger' = 'realtime', 'bad.records' = 'skip')"
    )
connection.wait("insert_into_kafka_1", timeout=120)
(runner,) = [one for one in connection._launcher.running.runners.values() if hasattr(one, "processes")]
print(*runner.processes, flush=True)
sys.stdin.read()
"""


def test_nothing_is_lost_when_the_process_is_killed(broker, tmp_path, eventually, environment):
    source, target = broker.new_topic(partitions=2), broker.new_topic()
    send(source, [(str(number), json.dumps({"id": number})) for number in range(100)])

    def begin(*arguments):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "state"), *arguments]
        started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        return started, [int(word) for word in started.stdout.readline().split()]

    first, processes = begin(source, target)
    try:
        assert set(ids(target, 100)) == set(range(100))
        send(source, [(str(number), json.dumps({"id": number})) for number in range(100, 200)])
        first.kill()
        first.wait()
        eventually(lambda: all(map(is_gone, processes)), seconds=10, what="the end of its processes")
        send(source, [(str(number), json.dumps({"id": number})) for number in range(200, 300)])
        with velostream.connect(tmp_path / "state") as connection:
            connection.drain(NAME, timeout=120)
            found = ids(target)
            assert set(found) == set(range(300))
            # What was behind a position that Spark had kept is not written again.
            assert all(found[number] == 1 for number in range(100))
            processes = runner_of(connection).processes
        assert all(map(is_gone, processes))
    finally:
        first.kill()
        for pipe in (first.stdin, first.stdout):
            pipe.close()


def test_committed_transactions_are_read_and_aborted_ones_are_not(broker, connection):
    source, target = broker.new_topic(), broker.new_topic()
    send(source, [("a", '{"id": 1}')])
    connection.execute(f"INSERT INTO {target} SELECT id FROM {source} WITH ({REALTIME})")
    from confluent_kafka import Producer

    brokers, topic = source.removeprefix("kafka://").split("/")
    producer = Producer({"bootstrap.servers": brokers, "transactional.id": "writer", "log_level": 0})
    producer.init_transactions(30)
    for number, is_committed in ((2, True), (3, False), (4, True)):
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"id": number}))
        producer.flush()
        (producer.commit_transaction if is_committed else producer.abort_transaction)(30)
    connection.drain(NAME, timeout=120)
    assert ids(target) == {1: 1, 2: 1, 4: 1}
