"""A topic of a real broker as a feed for the conformance suite, and messages for other tests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from velostream.errors import Category
from velostream.formats.base import FormatSettings
from velostream.formats.registry import record_format
from velostream.plugins import Group, load
from velostream.sources.base import Offset, Source, SourceSpec
from velostream.testing.feeds import SourceFeed, Trouble, numbered_rows
from velostream.testing.services.kafka import PASSWORD, USER, KafkaService

if TYPE_CHECKING:
    from confluent_kafka import Producer

Message = tuple[str | bytes | None, str | bytes | None]
"""A key and a value."""

_FLUSH_SECONDS = 30.0
_ANY_PARTITION = -1


def send(url: str, messages: Iterable[Message], *, partition: int | None = None) -> None:
    """Put messages into the topic of a URL; they are there when this returns."""
    brokers, _, topic = url.removeprefix("kafka://").rpartition("/")
    _send(_producer(brokers), topic, messages, partition)


def settled_end(url: str) -> Offset:
    """The end of a topic once no transaction is open there any more: brokers close them a moment after the commit."""
    committed, everything = (
        load(Group.SOURCES, "kafka")(SourceSpec("kafka", url, {"isolation.level": level}))
        for level in ("read_committed", "read_uncommitted")
    )
    start = committed.initial_offset()
    deadline = time.monotonic() + _FLUSH_SECONDS
    while (end := committed.latest_offset(start)) != everything.latest_offset(start):
        if time.monotonic() > deadline:
            raise TimeoutError(f"a transaction stays open in {url}")
        time.sleep(0.01)
    return end


class KafkaFeed(SourceFeed):
    """A new topic whose messages have the row's number for a key."""

    secrets = (PASSWORD, "not the password")

    def __init__(self, *, format_: str = "json", partitions: int = 1, **options: str) -> None:
        self._service = KafkaService.shared()
        self._url = self._service.new_topic(partitions=partitions)
        self._options = {name.replace("_", "."): value for name, value in options.items()} | {"format": format_}
        self._format = record_format(format_, FormatSettings())
        self._producer = _producer(self._service.brokers)
        self._next = self.first_number
        self._has_keys = "changelog" in self._options

    def source(self) -> Source:
        return self._source(self._url)

    def append(self, count: int) -> bool:
        rows = numbered_rows(self._next, count)
        values = self._format.encode(rows).to_pylist()
        self._send(zip((str(number) for number in rows["id"].to_pylist()), values, strict=True))
        self._next += count
        return True

    def append_bad_record(self) -> bool:
        self._send([("bad", b"\x00\xff broken")])
        return True

    def update(self, number: int, name: str) -> bool:
        if not self._has_keys:
            return False
        rows = numbered_rows(number, 1)
        rows = rows.set_column(1, rows.schema.field(1), [[name]])
        self._send([(str(number), self._format.encode(rows)[0].as_py())])
        return True

    def delete(self, number: int) -> bool:
        if not self._has_keys:
            return False
        self._send([(str(number), None)])
        return True

    def missing_source(self) -> Source | None:
        return self._source(f"{self._service.url}/nowhere")

    def troubles(self) -> Sequence[Trouble]:
        troubles = [
            Trouble("nobody listens", Category.NETWORK, self._nobody_listens, passes=False),
            Trouble("unknown property", Category.CONFIGURATION, self._unknown_property, passes=False),
        ]
        if self._service.login_brokers is not None:
            troubles.append(Trouble("wrong password", Category.AUTHENTICATION, self._wrong_password, passes=False))
        return troubles

    @contextmanager
    def _nobody_listens(self, source: Source) -> Iterator[Source]:
        yield self._source("kafka://127.0.0.1:1/topic")

    @contextmanager
    def _wrong_password(self, source: Source) -> Iterator[Source]:
        topic = self._url.rpartition("/")[2]
        yield self._source(
            f"kafka://{self._service.login_brokers}/{topic}",
            **{
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "PLAIN",
                "sasl.username": USER,
                "sasl.password": "not the password",
            },
        )

    @contextmanager
    def _unknown_property(self, source: Source) -> Iterator[Source]:
        yield self._source(self._url, **{"kafka.no.such.property": "1"})

    def _source(self, url: str, **options: str) -> Source:
        made: Source = load(Group.SOURCES, "kafka")(SourceSpec("kafka", url, self._options | options))
        return made

    def _send(self, messages: Iterable[Message]) -> None:
        _send(self._producer, self._url.rpartition("/")[2], messages, None)


def _producer(brokers: str) -> Producer:
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": brokers, "linger.ms": 5, "log_level": 0})


def _send(producer: Producer, topic: str, messages: Iterable[Message], partition: int | None) -> None:
    for number, (key, value) in enumerate(messages):
        producer.produce(topic, value, key, partition=_ANY_PARTITION if partition is None else partition)
        if number % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(_FLUSH_SECONDS)
    if left:
        raise TimeoutError(f"{left} messages were not taken")
