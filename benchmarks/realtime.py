"""`realtime`: from producing a message to consuming what a query makes of it, at some 500 messages a second.

The same query from topic to topic in Real-Time Mode (`'trigger' = 'realtime'`) and without it, one after the other,
over a real broker, with producer and consumer in this process. Every message must come out; the time of each counts,
but of those at the beginning.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import velostream
from benchmarks.harness import Measurement, expect
from velostream.testing.services.kafka import KafkaService

MESSAGES = 10_000
PER_SECOND = 500
WARM_UP = 6_000
"""Messages before those that count: a JVM takes its time until it knows what it is to do."""
TARGET_SECONDS = 0.060
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
TRIGGERS = {"realtime": " WITH ('trigger' = 'realtime')", "no trigger": ""}
_PATIENCE_SECONDS = 60.0


def run(arguments: argparse.Namespace) -> list[Measurement]:
    measurements = []
    count = arguments.rows or MESSAGES
    with KafkaService() as broker:
        for name, options in TRIGGERS.items():
            latencies = _latencies(broker, options, count)
            found = {share: latencies[int(part * (len(latencies) - 1))] for share, part in SHARES.items()}
            told = ", ".join(f"{share} {1000 * seconds:.0f} ms" for share, seconds in found.items())
            target = f" (target: p50 within {1000 * TARGET_SECONDS:.0f} ms)" if name == "realtime" else ""
            print(f"{name}: {told}{target}")
            case = f"{count:,} messages, {PER_SECOND} a second"
            measurements += [
                Measurement("realtime", f"{case}: {share}", name, 1, (seconds,)) for share, seconds in found.items()
            ]
    return measurements


def _latencies(broker: KafkaService, options: str, count: int) -> Sequence[float]:
    """Seconds from producing to consuming of each message, the shortest first."""
    from confluent_kafka import Producer

    source, target = broker.new_topic(partitions=2), broker.new_topic(partitions=2)
    producer = Producer({"bootstrap.servers": broker.brokers, "linger.ms": 0, "log_level": 0})
    topic = urlsplit(source).path.strip("/")
    consumed = _Consumed(target)
    with velostream.connect() as connection:
        connection.execute(
            "CREATE STREAM trades (id BIGINT, price DECIMAL(10,2), at TIMESTAMP, _key STRING) "
            f"WITH ('source' = '{source}', 'bad.records' = 'skip')"
        )
        connection.execute(
            f"INSERT INTO {target} SELECT id, price * 2 AS price, at, _key FROM trades WHERE price > 0{options}"
        )
        connection.wait("insert_into_kafka_1", timeout=120)
        produced: list[float] = []
        began = time.perf_counter()
        for number in range(WARM_UP + count):
            time.sleep(max(0.0, began + number / PER_SECOND - time.perf_counter()))
            value = json.dumps({"id": number, "price": 1.25, "at": "2024-02-29T10:20:30Z"})
            produced.append(time.perf_counter())
            producer.produce(topic, value, str(number % 100))
            producer.poll(0)
        producer.flush()
        consumed.wait(WARM_UP + count)
    consumed.close()
    return sorted(consumed.at[number] - produced[number] for number in range(WARM_UP, WARM_UP + count))


class _Consumed:
    """When each message of a topic came first, by its id; read by a thread of its own."""

    def __init__(self, url: str) -> None:
        self.at: dict[int, float] = {}
        self._url = url
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(self.at) < count:
            expect(time.monotonic() < deadline, f"{len(self.at)} of {count} messages came")
            time.sleep(0.01)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        address = urlsplit(self._url)
        settings = {
            "bootstrap.servers": address.netloc,
            "group.id": "benchmark",
            "fetch.wait.max.ms": 5,
            "log_level": 0,
        }
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(address.path.strip("/"), partition, 0) for partition in (0, 1)])
        try:
            while not self._closing.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    self.at.setdefault(json.loads(message.value() or b"{}")["id"], time.perf_counter())
        finally:
            consumer.close()
