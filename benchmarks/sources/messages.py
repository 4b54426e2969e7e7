"""A topic written by transactions: its messages become visible at one moment, however long they took to be sent."""

from __future__ import annotations

import pyarrow as pa
from confluent_kafka import Producer

from benchmarks.sources.trades import json_objects
from velostream.testing.kafka_feed import settled_end
from velostream.testing.services.kafka import KafkaService

PARTITIONS = 4
_SECONDS = 120.0
_BUFFERED_MESSAGES = 200_000


class Topic:
    """A new topic. Messages are trades as JSON with their id for a key."""

    def __init__(self) -> None:
        service = KafkaService.shared()
        self.brokers = service.brokers
        self.url = service.new_topic(partitions=PARTITIONS)
        self.name = self.url.rpartition("/")[2]
        self._producer = Producer(
            {
                "bootstrap.servers": self.brokers,
                "transactional.id": self.name,
                "transaction.timeout.ms": 600_000,
                "linger.ms": 20,
                "queue.buffering.max.messages": _BUFFERED_MESSAGES,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(_SECONDS)

    def write(self, rows: pa.Table) -> None:
        """Send messages that nobody sees before `publish`."""
        self._producer.begin_transaction()
        for id_, message in zip(rows["id"].to_pylist(), json_objects(rows), strict=True):
            while True:
                try:
                    self._producer.produce(self.name, message, str(id_))
                    break
                except BufferError:
                    self._producer.poll(0.1)
        if self._producer.flush(_SECONDS):
            raise TimeoutError("the broker didn't take all messages")

    def publish(self) -> None:
        """What was written can be read when this returns."""
        self._producer.commit_transaction(_SECONDS)
        settled_end(self.url)
