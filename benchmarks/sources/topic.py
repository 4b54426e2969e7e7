"""JSON messages of a Kafka topic into a table that keeps the newest of each key: new keys, then new values of all."""

from __future__ import annotations

import argparse
from typing import Any

import orjson
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

import velostream
from benchmarks.harness import Case, Contender, Measurement, measure
from benchmarks.sources.loading import Driver, Target, measure_load
from benchmarks.sources.messages import PARTITIONS, Topic
from benchmarks.sources.trades import Content, trades
from velostream.engine.connection import Connection

ROWS = 1_000_000
_TARGET = Target(per_second=150_000)
_MESSAGES_AT_ONCE = 10_000
_PATIENCE = 300
_PEER = "confluent-kafka, orjson, Arrow"
_SELECT = (
    "SELECT id PRIMARY KEY, account, symbol, quantity, price FROM '{topic}' WITH ('auto.offset.reset' = 'earliest')"
)


def run(arguments: argparse.Namespace) -> list[Measurement]:
    count = arguments.rows or ROWS
    with velostream.connect() as connection:
        return _first(connection, count, arguments.rounds) + _again(connection, count, arguments.rounds)


def _first(connection: Connection, count: int, rounds: int) -> list[Measurement]:
    rows = trades(count)
    topic = Topic()
    topic.write(rows)
    topic.publish()
    name = f"kafka, {count:,} JSON messages, new keys"
    select = _SELECT.format(topic=topic.url)
    driver = Driver(_PEER, lambda: _Reader(topic).read(count))
    return measure_load(connection, name, select, Content.of_arrow(rows), _TARGET, driver, rounds)


def _again(connection: Connection, count: int, rounds: int) -> list[Measurement]:
    updates = _Updates(connection, count)
    contenders = [Contender("velostream", updates.take, updates.write), Contender(_PEER, updates.read)]
    case = Case(f"kafka, {count:,} JSON messages, keys that are there", count, contenders, updates.check, rounds)
    measurements = measure("sources", case)
    print(_TARGET.tell(measurements))
    return measurements


class _Updates:
    """A table with a row of each key, and messages that give every key a new value."""

    def __init__(self, connection: Connection, count: int) -> None:
        self._connection = connection
        self._count = count
        self._lot = 0
        self._topic = Topic()
        self._begins: dict[int, int] = {}
        self.write()
        self._topic.publish()
        connection.execute(f"CREATE TABLE newest AS {_SELECT.format(topic=self._topic.url)}")
        connection.drain("newest", timeout=_PATIENCE)

    def write(self) -> None:
        """Make the messages of the next round."""
        self._begins = _Reader(self._topic).ends()
        self._lot += 1
        self._topic.write(trades(self._count, lot=self._lot))

    def take(self) -> Content:
        self._topic.publish()
        self._connection.drain("newest", timeout=_PATIENCE)
        return Content.of_table(self._connection.table("newest"))

    def read(self) -> Content:
        return Content.of_arrow(_Reader(self._topic, self._begins).read(self._count))

    def check(self, content: Content) -> None:
        Content.of_arrow(trades(self._count, lot=self._lot)).expect(content)


class _Reader:
    """What a program would do that wants the messages as Arrow, in one process."""

    def __init__(self, topic: Topic, begins: dict[int, int] | None = None) -> None:
        self._topic = topic.name
        self._begins = begins or dict.fromkeys(range(PARTITIONS), 0)
        settings: dict[str, Any] = {
            "bootstrap.servers": topic.brokers,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        self._consumer = Consumer(settings)

    def read(self, count: int) -> pa.Table:
        places = [TopicPartition(self._topic, partition, begin) for partition, begin in self._begins.items()]
        self._consumer.assign(places)
        batches: list[pa.Table] = []
        left = count
        while left:
            messages = self._consumer.consume(_MESSAGES_AT_ONCE, timeout=1.0)
            batches.append(pa.Table.from_pylist([orjson.loads(message.value() or b"") for message in messages]))
            left -= len(messages)
        self._consumer.close()
        return pa.concat_tables(batch for batch in batches if batch.num_rows)

    def ends(self) -> dict[int, int]:
        """Where the partitions end now."""
        places = (TopicPartition(self._topic, partition) for partition in self._begins)
        ends = {place.partition: self._consumer.get_watermark_offsets(place)[1] for place in places}
        self._consumer.close()
        return ends
