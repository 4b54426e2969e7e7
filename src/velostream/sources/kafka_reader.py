"""Messages of ranges of offsets, exactly those and in order, through a consumer that goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from velostream.errors import SourceError
from velostream.model.kafka import TopicClient

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_MESSAGES_PER_BATCH = 32_768
_GATHERING_SECONDS = 0.05
"""How long to wait for more messages than there are, where a gap makes us expect too many."""
_NEEDED = {"enable.partition.eof": True, "auto.offset.reset": "error"}
_PREFERRED = {
    # That a range ends with a gap is only known from a fetch that found nothing.
    "fetch.wait.max.ms": 20,
    "fetch.message.max.bytes": 4 << 20,
    # What is fetched beyond the end of a range is lost unless the next one follows it.
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 64 << 10,
}


class RangeReader:
    """Reads one range after the other. A range that begins where the last one ended finds its messages fetched already.

    For one thread; holds a connection between ranges, so `close` it.
    """

    def __init__(self, client: TopicClient, *, committed: bool) -> None:
        self._client = client
        self._level = "read_committed" if committed else "read_uncommitted"
        self._consumer: Consumer | None = None
        self._next: tuple[int, int] | None = None
        """The partition and offset at which the consumer stands."""

    def messages(self, partition: int, start: int, end: int) -> Iterator[list[Message]]:
        """The messages from `start` up to but not including `end`, as they come. Gaps are passed over.

        The error `records-expired` when the topic no longer has `start`.
        """
        if start >= end:
            return
        try:
            with self._client.speaking():
                consumer = self._consumer_at(partition, start)
                self._next = None
                yield from self._consumed(consumer, partition, start, end)
        finally:
            if self._next is None:
                self.close()

    def close(self) -> None:
        consumer, self._consumer, self._next = self._consumer, None, None
        if consumer is not None:
            consumer.close()

    def _consumer_at(self, partition: int, start: int) -> Consumer:
        from confluent_kafka import TopicPartition

        if self._consumer is not None and self._next == (partition, start):
            return self._consumer
        self.close()
        self._consumer = self._client.consumer(_NEEDED | {"isolation.level": self._level}, preferred=_PREFERRED)
        self._consumer.assign([TopicPartition(self._client.address.topic, partition, start)])
        return self._consumer

    def _consumed(self, consumer: Consumer, partition: int, position: int, end: int) -> Iterator[list[Message]]:
        from confluent_kafka import KafkaError

        heard_at = time.monotonic()
        while position < end:
            came = consumer.consume(min(_MESSAGES_PER_BATCH, end - position), _GATHERING_SECONDS)
            messages: list[Message] = []
            for message in came:
                error, offset = message.error(), message.offset() or 0
                if error is None:
                    position = offset + 1
                    if offset < end:
                        messages.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the driver's public name
                    position = max(position, offset)
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - likewise
                    raise SourceError.records_expired(self._client.address.topic, partition=partition, offset=position)
                elif not error.retriable():
                    raise self._client.error(error)
            if came:
                heard_at = time.monotonic()
            elif (silent := time.monotonic() - heard_at) > 2 * self._client.timeout_seconds:
                raise self._client.no_answer(silent)
            if messages:
                yield messages
        if position == end:
            # Past it, where a gap hid the end, the consumer has lost a message of the next range.
            self._next = (partition, end)
