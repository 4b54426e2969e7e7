"""Messages of ranges of offsets, exactly those and in order, through consumers that go on where they stopped."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from operator import methodcaller
from typing import TYPE_CHECKING

from velostream.errors import SourceError, present
from velostream.model.kafka import TopicClient

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_MESSAGES_PER_BATCH = 32_768
_GATHERING_SECONDS = 0.05
"""How long to wait for more messages than there are, where a gap makes us expect too many."""
_NEEDED = {"enable.partition.eof": True, "auto.offset.reset": "error"}
_PREFERRED = {
    # That a range ends with a gap is only known from a fetch that found nothing.
    "fetch.wait.max.ms": 100,
    "fetch.message.max.bytes": 4 << 20,
    # What is fetched beyond the end of a range is lost unless the next one follows it.
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 32 << 10,
}
_CONSUMERS_KEPT = 4
_error_of = methodcaller("error")


class RangeReader:
    """Reads one range after the other. A range that begins where the last one of its partition ended finds its messages
    fetched already.

    For one thread; holds connections between ranges, so `close` it.
    """

    def __init__(self, client: TopicClient, *, committed: bool) -> None:
        self._client = client
        self._level = "read_committed" if committed else "read_uncommitted"
        self._kept: dict[tuple[int, int], Consumer] = {}
        """Consumers by the partition and offset at which they stand, the one used last at the end."""

    def messages(self, partition: int, start: int, end: int) -> Iterator[list[Message]]:
        """The messages from `start` up to but not including `end`, as they come. Gaps are passed over.

        The error `records-expired` when the topic no longer has `start`.
        """
        if start >= end:
            return
        with self._client.speaking():
            consumer = self._consumer_at(partition, start)
            reached = False
            try:
                reached = yield from self._consumed(consumer, partition, start, end)
            finally:
                if reached:
                    self._keep(consumer, partition, end)
                else:
                    consumer.close()

    def close(self) -> None:
        for consumer in self._kept.values():
            consumer.close()
        self._kept.clear()

    def _consumer_at(self, partition: int, start: int) -> Consumer:
        from confluent_kafka import TopicPartition

        kept = self._kept.pop((partition, start), None)
        if kept is not None:
            return kept
        made = self._client.consumer(_NEEDED | {"isolation.level": self._level}, preferred=_PREFERRED)
        made.assign([TopicPartition(self._client.address.topic, partition, start)])
        return made

    def _keep(self, consumer: Consumer, partition: int, position: int) -> None:
        for place in [place for place in self._kept if place[0] == partition]:
            self._kept.pop(place).close()
        while len(self._kept) >= _CONSUMERS_KEPT:
            self._kept.pop(next(iter(self._kept))).close()
        self._kept[partition, position] = consumer

    def _consumed(
        self, consumer: Consumer, partition: int, position: int, end: int
    ) -> Generator[list[Message], None, bool]:
        """What comes; at the end whether the consumer stands exactly at `end`."""
        from confluent_kafka import KafkaError

        heard_at = time.monotonic()
        while position < end:
            came = consumer.consume(min(_MESSAGES_PER_BATCH, end - position), _GATHERING_SECONDS)
            # Nearly all of them are records; `filter` looks at an event in a tenth of the time that a loop takes.
            events = list(filter(_error_of, came))
            messages = [message for message in came if message.error() is None] if events else came
            if messages:
                position = (messages[-1].offset() or 0) + 1
            for event in events:
                error, offset = present(event.error()), event.offset() or 0
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the driver's public name
                    position = max(position, offset)
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - likewise
                    raise SourceError.records_expired(self._client.address.topic, partition=partition, offset=position)
                elif not error.retriable():
                    raise self._client.error(error)
            if position > end:
                messages = [message for message in messages if (message.offset() or 0) < end]
            if came:
                heard_at = time.monotonic()
            elif (silent := time.monotonic() - heard_at) > 2 * self._client.timeout_seconds:
                raise self._client.no_answer(silent)
            if messages:
                yield messages
                # However long that took, nobody was listening.
                heard_at = time.monotonic()
        # Past it, where a gap hid the end, the consumer has lost a message of the next range.
        return position == end
