"""`kafka://topic` as a target: one message per row, each batch a transaction.

The columns `_key`, `_headers` and `_timestamp` become those of the message, all others are its value. Without `_key`
the message's key is made of the columns of the option `key`, else of the key of the rows: the text of one column, a
JSON object of several. Changes of a view become the newest value of each key, and a tombstone for a key that is gone.

A batch's epoch is the offset that a consumer group, named after the writer, commits in the same transaction. So it is
there with the messages or not at all, and a batch that is repeated after a crash is known by it.
Delivery guarantee: exactly-once for readers of committed records, while a group's offsets are kept by the brokers
(`offsets.retention.minutes`, a week by default) from the crash until the batch is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import SourceError, StoreError, TableError
from velostream.formats.json import json_column
from velostream.formats.options import RECORD_OPTIONS, format_settings
from velostream.formats.registry import RECORD_NAMES, record_format
from velostream.model.change import CHANGE, Epoch
from velostream.model.kafka import CLIENT_OPTIONS, TOPIC_OPTIONS, TopicAddress, TopicClient
from velostream.model.options import Option, OptionType
from velostream.model.rows import json_text
from velostream.model.schema import Schema
from velostream.sinks.base import Sink, SinkCapabilities, SinkSpec
from velostream.sinks.common import check_change_keys, with_parameters

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer, TopicPartition

_SETTLING = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")
_SETTLING_SECONDS = 0.1
_KEY = "_key"
_HEADERS = "_headers"
_TIMESTAMP = "_timestamp"
_OF_MESSAGE: dict[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    _KEY: ("STRING", lambda type_: pa.types.is_string(type_) or pa.types.is_binary(type_)),
    _HEADERS: ("MAP<STRING, STRING>", lambda type_: type_ == pa.map_(pa.string(), pa.string())),
    _TIMESTAMP: ("TIMESTAMP", pa.types.is_timestamp),
}
"""Columns that become parts of the message other than its value: what they hold."""
_MessageKey = bytes | str | None
_Headers = list[tuple[str, str | bytes | None]] | None
_Message = tuple[Any, _MessageKey, _Headers, int]
"""Value, key, headers, timestamp."""
_TRANSACTION_SECONDS = 60
_QUEUE_SECONDS = 1.0
_PREFERRED = {
    # Rows of one key go where other writers of the topic, which are mostly Java's, put them.
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 << 10,
    "transaction.timeout.ms": _TRANSACTION_SECONDS * 1000,
}


class KafkaSink(Sink):
    """One topic. Delivery guarantee: exactly-once for readers of committed records."""

    kind = "kafka"
    capabilities = SinkCapabilities(idempotent=True, guarantee="exactly-once", changes=True)
    options = (
        Option("format", "how to write messages", OptionType.CHOICE, "json", RECORD_NAMES),
        *RECORD_OPTIONS,
        Option("key", "columns that make the message's key; default: the key of the rows"),
        *CLIENT_OPTIONS,
        *TOPIC_OPTIONS,
    )

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(with_parameters(spec))
        self._address = TopicAddress.of(self.spec.uri, self.settings)
        settings = format_settings(self.settings, subject=f"{self._address.topic}-value")
        self._format = record_format(self.settings.text("format") or "json", settings)
        self._client = TopicClient(self._address, self.settings)
        self._key: tuple[str, ...] = ()
        self._writers: dict[str, _Writer] = {}

    def open(self, schema: Schema) -> None:
        """Checks the topic, or makes it, and that the rows can be written in the format."""
        key = tuple(name.strip() for name in (self.settings.text("key") or "").split(",") if name.strip())
        self._key = tuple(schema.column(name).name for name in key) or schema.key
        for column in schema.columns:
            expected, fits = _OF_MESSAGE.get(column.name, ("", None))
            if fits is not None and not fits(column.type):
                raise TableError.wrong_type(self._address.topic, column.name, expected=expected, got=column.sql_type)
        if self.spec.changes:
            # A message speaks for the row of its key.
            names = (_KEY,) if _KEY in schema.names else self._key
            check_change_keys(schema, names, target=f'topic "{self._address.topic}"')
        self._format.encode(_values(schema.arrow.empty_table()))
        with self._as_store():
            if self.settings.boolean("topic.create.if.missing"):
                self._client.create_if_missing()
            self._client.describe()

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that make the message's key where there is no column `_key`; known once it is open."""
        return self._key

    def write(self, rows: pa.Table, epoch: Epoch) -> None:
        if not rows.num_rows:
            return
        messages = self._changes(rows) if self.spec.changes else self._messages(rows, self._keys(rows))
        with self._as_store():
            writer = self._writers.get(epoch.writer)
            if writer is None:
                writer = self._writers[epoch.writer] = _Writer(self._client, epoch.writer)
            try:
                writer.write(messages, epoch.number)
            except BaseException:
                # A producer whose transaction failed may be of no use any more; a new one ends what it has left open.
                self._writers.pop(epoch.writer).close()
                raise

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        self._client.close()

    def _changes(self, rows: pa.Table) -> Iterator[_Message]:
        """The newest value of each key, and nothing for keys that are gone."""
        added = pc.greater(rows[CHANGE], 0)
        present = rows.filter(added).drop_columns([CHANGE])
        keys = self._keys(present)
        gone = dict.fromkeys(self._keys(rows.filter(pc.invert(added))))
        for key in keys:
            gone.pop(key, None)
        return chain(((None, key, None, 0) for key in gone), self._messages(present, keys))

    def _messages(self, rows: pa.Table, keys: Sequence[_MessageKey]) -> Iterator[_Message]:
        values = self._format.encode(_values(rows)).to_pylist()
        return zip(values, keys, _headers(rows), _timestamps(rows), strict=True)

    def _keys(self, rows: pa.Table) -> Sequence[_MessageKey]:
        names = (_KEY,) if _KEY in rows.column_names else self._key
        if len(names) > 1:
            return [json_text(record) for record in rows.select(list(names)).to_pylist()]
        if not names:
            return [None] * rows.num_rows
        values = rows[names[0]]
        keys: list[_MessageKey] = (values if pa.types.is_binary(values.type) else json_column(values)).to_pylist()
        if self.spec.changes:
            # A group of NULL is a row like others, and only a message with a key can speak for it.
            return [json_text({names[0]: None}) if key is None else key for key in keys]
        return keys

    @contextmanager
    def _as_store(self) -> Iterator[None]:
        """Trouble with the brokers is the sink's, not that of what is read."""
        try:
            yield
        except SourceError as error:
            raise StoreError(
                error.message, detail=error.detail, hint=error.hint, code=error.code, category=error.category
            ) from error


class _Writer:
    """The producer of one writer of epochs, and the group that knows its last one."""

    def __init__(self, client: TopicClient, name: str) -> None:
        self._client = client
        self._name = f"velostream-{name}"
        self._written: int | None = None
        with client.speaking():
            self._producer: Producer = client.producer({"transactional.id": self._name}, preferred=_PREFERRED)
            # Ends what a former producer of this name has begun, and keeps it from ever writing again.
            self._producer.init_transactions(2 * client.timeout_seconds)
            self._group: Consumer = client.consumer({"group.id": self._name, "isolation.level": "read_committed"})

    def write(self, messages: Iterator[_Message], number: int) -> None:
        """One transaction with the messages and the number, unless one has been committed already."""
        from confluent_kafka import TopicPartition

        patience = 2 * self._client.timeout_seconds
        with self._client.speaking():
            place = TopicPartition(self._client.address.topic, 0)
            if self._written is None:
                self._written = self._committed(place, patience)
            if self._written >= number:
                return
            self._producer.begin_transaction()
            self._send(messages)
            place.offset = number + 1
            self._producer.send_offsets_to_transaction([place], self._group.consumer_group_metadata(), patience)
            self._producer.commit_transaction(_TRANSACTION_SECONDS)
            self._written = number

    def close(self) -> None:
        self._group.close()

    def _committed(self, place: TopicPartition, patience: float) -> int:
        """The number that was written last; -1 or less for none. Brokers may just be settling who keeps the group."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + patience
        while True:
            try:
                (found,) = self._group.committed([place], timeout=patience)
            except KafkaException as error:
                if error.args[0].name() not in _SETTLING or time.monotonic() > deadline:
                    raise
                time.sleep(_SETTLING_SECONDS)
            else:
                return int(found.offset) - 1

    def _send(self, messages: Iterator[_Message]) -> None:
        topic = self._client.address.topic
        for value, key, headers, timestamp in messages:
            while True:
                try:
                    self._producer.produce(topic, value, key, headers=headers, timestamp=timestamp)
                    break
                except BufferError:
                    # The queue is full: let the brokers take some of it.
                    self._producer.poll(_QUEUE_SECONDS)


def _values(rows: pa.Table) -> pa.Table:
    """The columns that make the value of a message."""
    return rows.select([name for name in rows.column_names if name not in _OF_MESSAGE])


def _headers(rows: pa.Table) -> list[_Headers]:
    if _HEADERS not in rows.column_names:
        return [None] * rows.num_rows
    found: list[_Headers] = rows[_HEADERS].to_pylist()
    return found


def _timestamps(rows: pa.Table) -> list[int]:
    """Milliseconds since 1970; 0 has the producer take the time it is."""
    if _TIMESTAMP not in rows.column_names:
        return [0] * rows.num_rows
    milliseconds = rows[_TIMESTAMP].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    found: list[int] = milliseconds.fill_null(0).to_pylist()
    return found
