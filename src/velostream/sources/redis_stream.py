"""A stream of Redis: entries by their ids, new ones followed, old ones read again while the server has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from velostream.errors import SourceError
from velostream.model.schema import Column, Schema
from velostream.model.types import TIMESTAMP
from velostream.sources.base import Emits, Offset, OnBad, Partition, Replay, SourceCapabilities
from velostream.sources.bulk import with_sign
from velostream.sources.database import ReadingMode
from velostream.sources.redis_values import Record, rows_of, schema_of

if TYPE_CHECKING:
    from velostream.sources.redis import RedisSource

T = TypeVar("T")
OF_ENTRIES = {"_id": Column("_id", pa.string()), "_timestamp": Column("_timestamp", TIMESTAMP)}
"""What every entry has: its id, and the time within it."""
_SAMPLE = 1_000
_ENTRIES_AT_ONCE = 100_000
_FIRST = "0-0"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RedisStream(ReadingMode):
    """A stream by the ids of its entries. An offset has the `id` up to which everything was read.

    Entries that are trimmed or deleted before they are read are never seen.
    """

    def __init__(self, source: RedisSource, *, emits: Emits) -> None:
        self.capabilities = SourceCapabilities(emits=emits, replay=Replay.FOREVER, incremental=True, follows=True)
        self._source = source
        self._client: Any = None

    @property
    def _name(self) -> str:
        return self._source.selection.shown

    def schema(self) -> Schema | None:
        """The columns that the oldest entries show; `SourceError` when there is no such stream."""
        self._newest()
        entries: list[Any] = self._ask(lambda client: client.xrange(self._name, count=_SAMPLE))
        return schema_of([fields for _, fields in entries])

    def first(self, *, latest: bool) -> Offset:
        return {"id": self._newest() if latest else _FIRST}

    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        newest = self._newest()
        if _place(newest) < _place(start["id"]):
            raise SourceError.stream_replaced("redis", self._name)
        if max_rows is None or newest == start["id"]:
            return {"id": newest}
        most = min(max_rows, _ENTRIES_AT_ONCE)
        entries = self._entries(start["id"], newest, most)
        # Ids after the last entry belong to entries that were deleted.
        return {"id": entries[-1].name if len(entries) == most else newest}

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        return [Partition({"start": start["id"], "end": end["id"]})]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        after, end = partition.payload["start"], partition.payload["end"]
        size = self._source.settings.integer("fetch.size") or 1
        appends = self.capabilities.emits is Emits.APPENDS
        while entries := self._entries(after, end, size):
            records = [_with_its_own(entry, schema) for entry in entries]
            for batch in rows_of(records, schema, on_bad, timezone=self._source.driver.timezone).to_batches():
                yield batch if appends else with_sign(batch)
            after = entries[-1].name

    def reached(self, position: Offset, target: Offset) -> bool:
        return _place(position["id"]) >= _place(target["id"])

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _newest(self) -> str:
        """The largest id that the stream has given."""
        driver = self._source.driver
        if not self._ask(lambda client: client.exists(self._name)):
            raise driver.missing(self._name)
        told: Any = self._ask(lambda client: client.xinfo_stream(self._name))
        newest: bytes = told["last-generated-id"]
        return newest.decode()

    def _entries(self, after: str, end: str, count: int) -> list[Record]:
        found: list[Any] = self._ask(lambda client: client.xrange(self._name, min=f"({after}", max=end, count=count))
        return [Record(id_.decode(), fields) for id_, fields in found]

    def _ask(self, question: Callable[[Any], T]) -> T:
        if self._client is None:
            self._client = self._source.driver.client()
        with self._source.driver.failures():
            return question(self._client)


def _with_its_own(entry: Record, schema: Schema) -> Record:
    """An entry with what its id says, where that is asked for; ids of one's own making need not hold a time."""
    own: dict[bytes, bytes] = {}
    if schema.find("_id") is not None:
        own[b"_id"] = entry.name.encode()
    if schema.find("_timestamp") is not None:
        with suppress(OverflowError):
            own[b"_timestamp"] = (_EPOCH + timedelta(milliseconds=_place(entry.name)[0])).isoformat().encode()
    return Record(entry.name, {**entry.fields, **own}) if own else entry


def _place(id_: str) -> tuple[int, int]:
    milliseconds, _, number = id_.partition("-")
    return int(milliseconds), int(number)
