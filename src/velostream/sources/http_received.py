"""Records that HTTP brings by itself, events and requests, read from the spool that holds them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.errors import Category, OptionError, SourceError, present
from velostream.formats.base import Rejected
from velostream.formats.registry import record_format
from velostream.model.change import signed
from velostream.model.http import HttpClient
from velostream.model.schema import Schema
from velostream.model.spool import Spool
from velostream.sources.base import BadRecord, Emits, Offset, OnBad, Partition, Replay, SourceCapabilities, SourceSpec
from velostream.sources.common import emits_of
from velostream.sources.http_events import EventReceiver
from velostream.sources.http_reading import HttpReading
from velostream.sources.http_receivers import (
    PLACE,
    RECEIVED,
    RECORD,
    Inbox,
    Receiver,
    RecordCutter,
    release,
    running_receiver,
)
from velostream.sources.http_webhook import Endpoint, WebhookReceiver
from velostream.sources.memory import SPOOL_OPTION, MemorySource

if TYPE_CHECKING:
    from velostream.sources.http import HttpSource

_SAMPLED_FILES = 100
_TIDYING_SECONDS = 60.0


class ReceivedRecords(HttpReading):
    """Follows a spool, and sees to it that it is filled. Offsets are those of the spool."""

    def __init__(self, source: HttpSource) -> None:
        self._source = source
        settings = source.settings
        self._spool = Spool(Path(present(settings.text(SPOOL_OPTION))))
        self._stored = MemorySource(
            SourceSpec("memory", source.spec.shown, {SPOOL_OPTION: str(self._spool.directory)}, RECEIVED)
        )
        format_name = (settings.text("format") or "json").lower()
        quote = source.format_settings.quote
        self._cutter = RecordCutter(format_name, None if quote is None else quote.encode())
        self._format = record_format(format_name, source.format_settings)
        self._retention = settings.duration("http.retention") or timedelta()
        self._tidied_at = time.monotonic()
        self.capabilities = SourceCapabilities(
            emits=emits_of(settings.text("changelog")), replay=Replay.FOREVER, incremental=True, follows=True
        )
        if self.capabilities.emits is Emits.UPSERTS and not settings.text("key"):
            raise OptionError(
                'option "key" is missing',
                detail="changelog is upsert: a record is the new value of its key",
                hint="WITH ('key' = 'id')",
                code="missing-option",
            )
        # What can be wrong with the options is found before anything is opened.
        self._endpoint = Endpoint.of(source.address, settings) if source.mode == "webhook" else None
        HttpClient(source.address, settings)

    def discover(self) -> Schema | None:
        receiver = running_receiver(self._spool, self._receiver)
        first, last = self._spool.first(), self._spool.count()
        numbers = range(first, min(last, first + _SAMPLED_FILES - 1) + 1)
        records = [chunk for number in numbers for chunk in self._spool.read(number)[RECORD].chunks]
        if not records and receiver.trouble is not None:
            raise receiver.trouble
        return self._format.infer(pa.concat_arrays(records)) if records else None

    def initial(self, *, latest: bool) -> Offset:
        position: Offset = self._stored.initial_offset()
        return self._stored.latest_offset(position) if latest else position

    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        receiver = running_receiver(self._spool, self._receiver, follower=self)
        if self._spool.first() > start["files"] + 1:
            raise self._expired()
        end = self._stored.latest_offset(start, max_rows=max_rows)
        if end == start and receiver.trouble is not None:
            raise receiver.trouble
        return end

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        return self._stored.partitions(start, end)

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        for batch in self._stored.read(partition, RECEIVED, on_bad):
            records, places = batch.column(RECORD), batch.column(PLACE)

            def reject(rejected: Rejected, places: pa.Array = places) -> None:
                on_bad(BadRecord(rejected.raw, places[rejected.place].as_py(), rejected.reason))

            rows = self._format.decode(records, schema, reject).rows
            if self.capabilities.emits is not Emits.APPENDS:
                rows = signed(rows, 1)
            yield from rows.to_batches()

    def reached(self, position: Offset, target: Offset) -> bool:
        return self._stored.reached(position, target)

    def commit(self, end: Offset) -> None:
        """Forget what everybody has who follows, once it is old enough that nobody else will come for it."""
        now = time.monotonic()
        if now - self._tidied_at < _TIDYING_SECONDS:
            return
        self._tidied_at = now
        oldest = time.time() - self._retention.total_seconds()
        keep = self._spool.first()
        while keep <= end["files"] and self._spool.written_at(keep) < oldest:
            keep += 1
        self._spool.delete_before(keep)

    def close(self) -> None:
        release(self._spool, self)

    def _receiver(self) -> Receiver:
        inbox = Inbox(self._spool)
        if self._endpoint is not None:
            return WebhookReceiver(self._endpoint, inbox, self._cutter)
        return EventReceiver(HttpClient(self._source.address, self._source.settings), inbox, self._cutter)

    def _expired(self) -> SourceError:
        return SourceError(
            f'what "{self._source.address.shown}" brought is no longer kept as far back as it is to be read',
            detail="the statement was not running for longer than http.retention",
            hint="CREATE OR REPLACE begins with what is kept; WITH ('http.retention' = '7d') keeps more",
            code="records-expired",
            category=Category.DATA,
        )
