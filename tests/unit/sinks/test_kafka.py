"""Kafka topics as a target, against a real broker."""

import signal
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from velostream.errors import Category, NotFoundError, StoreError, TableError
from velostream.model.change import Epoch
from velostream.model.kafka import TopicClient
from velostream.model.schema import Schema
from velostream.sinks.base import SinkSpec
from velostream.sinks.kafka import KafkaSink
from velostream.sources.base import SourceSpec
from velostream.sources.kafka import KafkaSource
from velostream.testing.kafka_feed import settled_end
from velostream.testing.services.kafka import KafkaService
from velostream.testing.services.schema_registry import SchemaRegistryService

KILLED = """
import os, signal, sys
import pyarrow as pa
from velostream.model.change import Epoch
from velostream.model.schema import Schema
from velostream.sinks import kafka
from velostream.sinks.base import SinkSpec

url, where = sys.argv[1:]

def killed(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

class Producer:
    def __init__(self, producer):
        self._producer = producer
    def __getattr__(self, name):
        return getattr(self._producer, name)
    def commit_transaction(self, timeout):
        self._producer.flush(30)
        if where == "after":
            self._producer.commit_transaction(timeout)
        killed()

make = kafka.TopicClient.producer
kafka.TopicClient.producer = lambda self, needed, preferred: Producer(make(self, needed, preferred=preferred))
rows = pa.table({"id": [1, 2, 3]})
sink = kafka.KafkaSink(SinkSpec("kafka", url, {}))
sink.open(Schema.from_arrow(rows.schema))
sink.write(rows, Epoch("query", 0))
"""


@pytest.fixture
def topic():
    return KafkaService.shared().new_topic()


def written(url, rows, *, rows_key=(), **options):
    sink = KafkaSink(SinkSpec("kafka", url, {name.replace("_", "."): value for name, value in options.items()}))
    sink.open(Schema.from_arrow(rows.schema).with_key(rows_key))
    sink.write(rows, Epoch("query", 0))
    sink.close()


def messages(url, *columns):
    options = {"system.columns": "_key,_headers,_timestamp", "format": "string"}
    source = KafkaSource(SourceSpec("kafka", url, options))
    start, end, schema = source.initial_offset(), settled_end(url), source.schema()
    parts = source.partitions(start, end)
    rows = [row for part in parts for batch in source.read(part, schema, pytest.fail) for row in batch.to_pylist()]
    source.close()
    (value,) = set(schema.names) - {"_key", "_headers", "_timestamp"}
    return [tuple(row[value if column == "value" else column] for column in columns) for row in rows]


def test_the_key_of_the_rows_is_the_messages(topic):
    written(topic, pa.table({"id": [1], "name": ["a"]}), rows_key=["id"])
    assert messages(topic, "_key", "value") == [("1", '{"id":1,"name":"a"}')]


def test_a_key_that_is_a_date_or_a_time_has_no_quotes(topic):
    written(topic, pa.table({"day": [date(2026, 1, 2)], "at": [datetime(2026, 1, 2, 3, tzinfo=UTC)]}), rows_key=["day"])
    assert messages(topic, "_key") == [("2026-01-02",)]


def test_a_key_of_several_columns_is_an_object(topic):
    written(topic, pa.table({"a": ["x"], "b": [2], "c": [3]}), key="a, B")
    assert messages(topic, "_key", "value") == [('{"a":"x","b":2}', '{"a":"x","b":2,"c":3}')]


def test_rows_without_a_key_are_messages_without_one(topic):
    written(topic, pa.table({"a": ["x"]}))
    assert messages(topic, "_key", "_headers", "value") == [(None, None, '{"a":"x"}')]


def test_system_columns_go_where_they_come_from(topic):
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    rows = pa.table(
        {
            "n": [1],
            "_key": ["k"],
            "_headers": pa.array([[("trace", "7")]], pa.map_(pa.string(), pa.string())),
            "_timestamp": pa.array([at], pa.timestamp("us", tz="UTC")),
        }
    )
    written(topic, rows)
    assert messages(topic, "_key", "_headers", "_timestamp", "value") == [("k", [("trace", "7")], at, '{"n":1}')]


def test_changes_are_the_newest_value_of_a_key_or_its_end(topic):
    rows = pa.table(
        {"id": [1, 1, 2, 3, None], "v": [1, 2, 3, 4, 5], "_change": pa.array([-1, 1, -1, 1, -1], pa.int8())}
    )
    sink = KafkaSink(SinkSpec("kafka", topic, changes=True))
    sink.open(Schema.from_arrow(rows.schema.remove(2)).with_key(["id"]))
    sink.write(rows, Epoch("query", 0))
    sink.close()
    client = Consumer({"bootstrap.servers": KafkaService.shared().brokers, "group.id": "test"})
    client.assign([TopicPartition(topic.rpartition("/")[2], 0, 0)])
    found = [(message.key(), message.value()) for message in client.consume(4, timeout=30)]
    client.close()
    assert found == [(b"2", None), (b'{"id":null}', None), (b"1", b'{"id":1,"v":2}'), (b"3", b'{"id":3,"v":4}')]


def test_brokers_may_still_be_settling_who_keeps_the_group(topic, monkeypatch):
    asked = []

    class Settling:
        """A consumer that its broker sends away twice."""

        def __init__(self, consumer):
            self._consumer = consumer

        def __getattr__(self, name):
            return getattr(self._consumer, name)

        def committed(self, places, timeout):
            asked.append(places)
            if len(asked) < 3:
                raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
            return self._consumer.committed(places, timeout=timeout)

    make = TopicClient.consumer
    monkeypatch.setattr(TopicClient, "consumer", lambda *given, **options: Settling(make(*given, **options)))
    written(topic, pa.table({"a": ["x"]}))
    assert len(asked) == 3
    assert messages(topic, "value") == [('{"a":"x"}',)]


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_writer_killed_around_its_commit_writes_once(topic, environment, where):  # B55
    killed = subprocess.run([sys.executable, "-c", KILLED, topic, where], env=environment, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    written(topic, pa.table({"id": [1, 2, 3]}))
    assert messages(topic, "value") == [('{"id":1}',), ('{"id":2}',), ('{"id":3}',)]


@pytest.mark.parametrize("format_", ["avro", "json"])
def test_schemas_are_kept_in_a_registry(topic, format_):
    registry = SchemaRegistryService.shared().url
    rows = pa.table({"id": [1, None], "price": pa.array([Decimal("1.10"), Decimal("-2.00")], pa.decimal128(18, 2))})
    written(topic, rows, format=format_, schema_registry_url=registry)
    source = KafkaSource(SourceSpec("kafka", topic, {"format": format_, "schema.registry.url": registry}))
    start, schema = source.initial_offset(), source.schema()
    parts = source.partitions(start, settled_end(topic))
    assert pa.concat_tables(pa.Table.from_batches(source.read(p, schema, pytest.fail)) for p in parts).equals(rows)
    source.close()


def test_trouble_shows_when_it_is_opened(topic):
    rows = pa.table({"id": [1]})
    with pytest.raises(StoreError) as caught:
        written(f"{topic}_missing", rows)
    assert caught.value.category is Category.MISSING
    with pytest.raises(StoreError) as caught:
        written("kafka://127.0.0.1:1/t", rows)
    assert caught.value.category is Category.NETWORK
    with pytest.raises(NotFoundError):
        written(topic, rows, key="nothing")
    with pytest.raises(TableError, match="_headers"):
        written(topic, pa.table({"id": [1], "_headers": ["x"]}))


def test_a_topic_is_made_when_that_is_asked_for(topic):
    written(f"{topic}_made", pa.table({"id": [1]}), topic_create_if_missing="true", topic_partitions="1")
    assert messages(f"{topic}_made", "value") == [('{"id":1}',)]
