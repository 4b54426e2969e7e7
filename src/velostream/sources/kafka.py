"""`kafka://topic`: messages of a Kafka topic, as events or as the newest value of each key.

An offset holds one number per partition. A range ends before the first open transaction (unless
`isolation.level` says otherwise), and may hold fewer records than offsets: transactions and compaction leave gaps.
There is no consumer group, every reader has its own position.

Delivery guarantee: exactly-once, for as long as the topic's retention keeps what hasn't been read yet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from velostream.errors import OptionError, SourceError
from velostream.formats.options import RECORD_OPTIONS, format_settings
from velostream.formats.registry import RECORD_NAMES, record_format
from velostream.model.kafka import CLIENT_OPTIONS, TOPIC_OPTIONS, TopicAddress, TopicClient, TopicState
from velostream.model.options import COPIED, SYSTEM_COLUMNS, Option, OptionType
from velostream.model.schema import Schema
from velostream.sources.base import (
    Emits,
    Lag,
    Offset,
    OnBad,
    Partition,
    Replay,
    Source,
    SourceCapabilities,
    SourceSpec,
)
from velostream.sources.common import (
    COMMON_OPTIONS,
    OFFSET_RESET,
    begins_at_latest,
    declared_columns,
    emits_of,
    names_of,
    with_parameters,
)
from velostream.sources.kafka_messages import OF_MESSAGES, MessageDecoder
from velostream.sources.kafka_reader import RangeReader

_ROWS_PER_PARTITION = 250_000
_SAMPLED_MESSAGES = 4_000
_LOOK_AT_TOPIC_EVERY = timedelta(seconds=2)


class KafkaSource(Source):
    """One topic. Delivery guarantee: exactly-once within the topic's retention."""

    kind = "kafka"
    options = (
        *COMMON_OPTIONS,
        OFFSET_RESET,
        Option("format", "how messages are written", OptionType.CHOICE, "json", RECORD_NAMES),
        *RECORD_OPTIONS,
        Option("changelog", "what a message means", OptionType.CHOICE, None, ("append", "upsert", "changes")),
        Option(
            "isolation.level",
            "whether records of open and aborted transactions are seen",
            OptionType.CHOICE,
            "read_committed",
            ("read_committed", "read_uncommitted"),
        ),
        Option(COPIED, "the key of a table that copies the topic, set by planning"),
        Option(SYSTEM_COLUMNS, "system columns that are asked for, set by planning"),
        Option("poll.interval", "how often to look for new messages", OptionType.DURATION, "100ms"),
        *CLIENT_OPTIONS,
        *TOPIC_OPTIONS,
        Option("topic.wait.timeout", "how long to wait for a topic that isn't there yet", OptionType.DURATION, "0s"),
        Option("topic.retry.interval", "how long to wait before looking for it again", OptionType.DURATION),
        Option(
            "topic.retry.strategy",
            "how that wait grows",
            OptionType.CHOICE,
            None,
            ("fixed", "linear", "exponential"),
        ),
        Option("topic.retry.multiplier", "growth of an exponential wait", OptionType.NUMBER),
        Option("topic.retry.increment", "growth of a linear wait", OptionType.DURATION),
        Option("topic.retry.max.delay", "the longest wait", OptionType.DURATION),
    )

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(with_parameters(spec))
        self._address = TopicAddress.of(self.spec.uri, self.settings)
        self._from_latest, self.warnings = begins_at_latest(self.settings.text("auto.offset.reset"))
        self._committed = self.settings.text("isolation.level") != "read_uncommitted"
        self._declared = declared_columns(self.spec, self.settings.text("record.schema"))
        settings = format_settings(
            self.settings,
            declared=self._declared,
            subject=f"{self._address.topic}-value",
            system_columns=OF_MESSAGES,
        )
        self._format = record_format(self.settings.text("format") or "json", settings)
        if self.settings.text("changelog") == "changes" and not self._format.gives_changes:
            raise OptionError.value(
                "changelog", "changes", expected=f"append or upsert: {self._format.name} messages hold no changes"
            )
        self._client = TopicClient(self._address, self.settings)
        self._reader = RangeReader(self._client, committed=self._committed)
        self._described: TopicState | None = None
        self._described_at = float("-inf")

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers need the spec; connections stay where they are. Brokers the environment names are named to them."""
        options = {**self.spec.options, "bootstrap.servers": self._address.brokers}
        return type(self), (SourceSpec(self.spec.kind, self.spec.uri, options, self.spec.columns),)

    @property
    def adds_columns(self) -> bool:
        """Other formats have a schema of their own, or none."""
        return self._format.name == "json"

    @property
    def begins_at_latest(self) -> bool:
        return self._from_latest

    @property
    def capabilities(self) -> SourceCapabilities:
        changelog = self.settings.text("changelog")
        if changelog is not None:
            emits = emits_of(changelog)
        elif self._format.gives_changes:
            emits = Emits.CHANGES
        else:
            emits = Emits.UPSERTS if COPIED in self.settings else Emits.APPENDS
        return SourceCapabilities(emits=emits, replay=Replay.FOREVER, incremental=True, follows=True)

    @property
    def system_columns(self) -> tuple[str, ...]:
        """Those that the query names or the key consists of, unless the columns are declared: then all are shown."""
        if self._declared is not None:
            return ()
        named = (*names_of(self.settings.text(SYSTEM_COLUMNS)), *self._key)
        return tuple(name for name in OF_MESSAGES if name in (one.lower() for one in named))

    def schema(self) -> Schema | None:
        """Declared columns, else what the oldest messages show. The error `missing-topic` when there is no topic."""
        if self.settings.boolean("topic.create.if.missing"):
            self._client.create_if_missing()
        topic = self._topic(now=True)
        found, key = self._declared, self._key
        changes = self.capabilities.emits is Emits.CHANGES
        if found is None or changes:
            keys, values = self._sample(topic)
            found = found or self._format.infer(values)
            if found is None:
                return None
            if changes and "key" not in self.settings:
                key = self._key_told(keys, found) or key
        added = [OF_MESSAGES[name] for name in self.system_columns]
        own = [column for column in found.columns if column.name.lower() not in self.system_columns]
        return Schema((*own, *added)).with_key(key)

    def initial_offset(self) -> Offset:
        topic = self._topic(now=True)
        return _offset(
            topic, self._client.offsets(topic.partitions, beginning=not self._from_latest, committed=self._committed)
        )

    def latest_offset(self, start: Offset, *, max_rows: int | None = None) -> Offset:
        """The topic's end, or a step towards it that all partitions take part in."""
        topic = self._topic()
        position = _positions(start)
        if start["topic"] != topic.id:
            topic = self._topic(now=True)
            if start["topic"] != topic.id:
                raise SourceError.topic_replaced(self._address.topic)
        ends = self._client.offsets(topic.partitions, committed=self._committed)
        new = [partition for partition in ends if partition not in position]
        position |= self._client.offsets(new, beginning=True)
        # A broker that has just come back may not know yet how far its readers were allowed to read.
        lags = {partition: max(0, end - position[partition]) for partition, end in ends.items()}
        steps = lags if max_rows is None else _shared_out(lags, max_rows)
        return _offset(topic, position | {partition: position[partition] + step for partition, step in steps.items()})

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        before = _positions(start)
        parts: list[Partition] = []
        for partition, last in _positions(end).items():
            first = before.get(partition)
            if first is None:
                first = self._client.offsets([partition], beginning=True)[partition]
            for low in range(first, last, _ROWS_PER_PARTITION):
                high = min(low + _ROWS_PER_PARTITION, last)
                parts.append(Partition({"partition": partition, "start": low, "end": high}))
        return parts

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        declared = () if self._declared is None else self._declared.names
        system = [name for name in (*self.system_columns, *declared) if name in OF_MESSAGES]
        emits = self.capabilities.emits
        decoder = MessageDecoder(
            self._format,
            schema,
            emits,
            system=system,
            topic=self._address.topic,
            by_message=COPIED in self.settings and self._key != ("_key",),
        )
        payload = partition.payload
        for messages in self._reader.messages(payload["partition"], payload["start"], payload["end"]):
            yield from decoder.decode(messages, on_bad).to_batches()

    def expected_rows(self, start: Offset, end: Offset) -> int | None:
        """By their numbers; a compacted topic has fewer."""
        before = _positions(start)
        return sum(last - before.get(partition, 0) for partition, last in _positions(end).items())

    def lag(self, position: Offset) -> Lag:
        """By the numbers of messages; a compacted topic has fewer."""
        here = _positions(position)
        ends = self._client.offsets(list(here), committed=self._committed)
        return Lag(rows=sum(max(0, end - here[partition]) for partition, end in ends.items()))

    def reached(self, position: Offset, target: Offset) -> bool:
        here = _positions(position)
        return all(here.get(partition, -1) >= offset for partition, offset in _positions(target).items())

    def earlier(self, end: Offset, stop: Offset) -> Offset:
        here, there = _positions(end), _positions(stop)
        both = {str(partition): min(here[partition], there[partition]) for partition in here if partition in there}
        return {**end, "partitions": both}

    def close(self) -> None:
        self._reader.close()
        self._client.close()

    @property
    def _key(self) -> tuple[str, ...]:
        """The columns that identify a record, where there may be one of them only: none if that's the message's key."""
        if self.capabilities.emits is Emits.APPENDS:
            return ()
        return names_of(self.settings.text(COPIED)) or names_of(self.settings.text("key"))

    def _key_told(self, keys: pa.Array, columns: Schema) -> tuple[str, ...]:
        """The columns that the messages' keys consist of.

        They are what the database knows its rows by, and all that a change may tell of the row before.
        """
        told = self._format.key_columns(keys)
        known = {name.lower() for name in columns.names}
        return told if all(name.lower() in known for name in told) else ()

    def _topic(self, *, now: bool = False) -> TopicState:
        """The topic as it is, or was a moment ago: partitions may be added, and it may be replaced by another one."""
        if (
            now
            or self._described is None
            or time.monotonic() - self._described_at > _LOOK_AT_TOPIC_EVERY.total_seconds()
        ):
            self._described = self._client.describe()
            self._described_at = time.monotonic()
        return self._described

    def _sample(self, topic: TopicState) -> tuple[pa.Array, pa.Array]:
        """The first keys and values of each partition."""
        each = max(1, _SAMPLED_MESSAGES // max(1, len(topic.partitions)))
        first = self._client.offsets(topic.partitions, beginning=True)
        last = self._client.offsets(topic.partitions, committed=self._committed)
        keys: list[bytes | str | None] = []
        values: list[bytes | str | None] = []
        for partition in topic.partitions:
            end = min(first[partition] + each, last[partition])
            for messages in self._reader.messages(partition, first[partition], end):
                keys += [message.key() for message in messages]
                values += [message.value() for message in messages]
        self._reader.close()
        return pa.array(keys, pa.binary()), pa.array(values, pa.binary())


def _offset(topic: TopicState, positions: Mapping[int, int]) -> Offset:
    return {"topic": topic.id, "partitions": {str(partition): positions[partition] for partition in sorted(positions)}}


def _positions(offset: Offset) -> dict[int, int]:
    try:
        return {int(partition): int(position) for partition, position in offset["partitions"].items()}
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise SourceError(f"{offset!r} is not an offset of a Kafka source", code="invalid-offset") from error


def _shared_out(lags: Mapping[int, int], most: int) -> dict[int, int]:
    """At most so many offsets over all partitions: evenly, and what one doesn't need goes to the others."""
    steps: dict[int, int] = {}
    left = most
    by_lag = sorted(lags, key=lambda partition: lags[partition])
    for waiting, partition in zip(range(len(by_lag), 0, -1), by_lag, strict=True):
        # Rounded up, so that a limit below the number of partitions still moves some of them.
        steps[partition] = min(lags[partition], -(-left // waiting))
        left -= steps[partition]
    return steps
