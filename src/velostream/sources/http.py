"""`http://`, `https://`: resources that are fetched once or polled, streams of events, and a webhook of our own.

- Fetched: JSON documents, JSON lines or CSV, all pages of them. A polled resource is a table: each look replaces what
  the one before gave, and only the difference is committed. ETag and Last-Modified spare what hasn't changed.
- `http.mode = 'sse'` listens to server-sent events, `'webhook'` takes what others send; both are streams. What arrives
  can't be asked for again, so it is made durable before anybody is told that it was taken.

Delivery guarantee: exactly-once of what was fetched or received. What came and went between two looks, or was sent
while nobody listened, is never seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow as pa

from velostream.errors import OptionError
from velostream.formats.options import HEADER, RECORD_OPTIONS, SKIP_LINES, format_settings
from velostream.formats.registry import RECORD_NAMES
from velostream.formats.text import is_wide
from velostream.model.http import HTTP_OPTIONS, HttpAddress
from velostream.model.options import Option, OptionType
from velostream.model.schema import Schema
from velostream.sources.base import Offset, OnBad, Partition, Source, SourceCapabilities, SourceSpec
from velostream.sources.common import COMMON_OPTIONS, OFFSET_RESET, begins_at_latest, declared_columns, names_of
from velostream.sources.http_fetching import OneFetch, RepeatedFetch
from velostream.sources.http_pages import PAGING_OPTIONS
from velostream.sources.http_reading import HttpReading
from velostream.sources.http_received import ReceivedRecords
from velostream.sources.http_records import FORMATS
from velostream.sources.memory import SPOOL_OPTION

_OPTIONS: tuple[Option, ...] = (
    *COMMON_OPTIONS,
    OFFSET_RESET,
    Option(
        "format",
        "how bodies are written; default: as their content type says, json of events",
        OptionType.CHOICE,
        None,
        tuple(dict.fromkeys((*FORMATS, *RECORD_NAMES))),
    ),
    *RECORD_OPTIONS,
    HEADER,
    SKIP_LINES,
    *HTTP_OPTIONS,
    *PAGING_OPTIONS,
    Option("http.mode", "how records come", OptionType.CHOICE, "poll", ("poll", "sse", "webhook")),
    Option("http.records", "where in a JSON document the records are: data.items[*]"),
    Option("http.retention", "how long what was received can be read again", OptionType.DURATION, "1d"),
    Option("http.wait.timeout", "how long to wait for a resource that isn't there yet", OptionType.DURATION, "0s"),
    Option("http.retry.*", "how often to look for it: interval, strategy, multiplier, max.delay, increment"),
    Option("webhook.path", "path that takes requests; default: that of the address"),
    Option("watch", "whether to ask again and again", OptionType.BOOLEAN, "false"),
    Option("poll.interval", "how often to ask; implies watch", OptionType.DURATION, "30s"),
    Option("changelog", "what an event means", OptionType.CHOICE, "append", ("append", "upsert")),
    Option(SPOOL_OPTION, "directory for what is received, set by the engine"),
)


_LOOK_INTERVAL = timedelta(milliseconds=100)


class HttpSource(Source):
    """A resource, a stream of events or a webhook. Delivery guarantee: exactly-once of what was fetched or received."""

    kind = "http"
    takes_variables: ClassVar[bool] = True
    keeps_parameters: ClassVar[bool] = True
    options = _OPTIONS

    def __init__(self, spec: SourceSpec) -> None:
        self.address, parameters = HttpAddress.of(spec.uri, _OPTIONS)
        given = {name.lower(): value for name, value in spec.options.items()}
        super().__init__(replace(spec, options=parameters | given))
        encoding = self.settings.text("encoding") or "utf-8"
        if is_wide(encoding):
            raise OptionError.value("encoding", encoding, expected="an encoding whose newline is one byte")
        self.declared = declared_columns(self.spec, self.settings.text("record.schema"))
        self.format_settings = format_settings(self.settings, declared=self.declared)
        self._from_latest, self.warnings = begins_at_latest(self.settings.text("auto.offset.reset"))
        self._discovered: Schema | None = None
        self._reading = self._made()

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers need the spec alone; connections and answers don't travel."""
        return type(self), (self.spec,)

    @property
    def begins_at_latest(self) -> bool:
        return self._from_latest and self.capabilities.is_stream

    @property
    def capabilities(self) -> SourceCapabilities:
        return self._reading.capabilities

    def schema(self) -> Schema | None:
        """Declared columns, else those that the first records show."""
        found = self.declared or self._discovered
        if found is None:
            found = self._discovered = self._reading.discover()
        key = names_of(self.settings.text("key"))
        return found.with_key(key) if found is not None and key else found

    def initial_offset(self) -> Offset:
        return self._reading.initial(latest=self._from_latest)

    def latest_offset(self, start: Offset, *, max_rows: int | None = None) -> Offset:
        return self._reading.latest(start, max_rows=max_rows)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        return () if start == end else self._reading.partitions(start, end)

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition, schema, on_bad)

    def reached(self, position: Offset, target: Offset) -> bool:
        if target is None or position == target:
            return True
        return position is not None and self._reading.reached(position, target)

    def commit(self, end: Offset) -> None:
        self._reading.commit(end)

    def close(self) -> None:
        self._reading.close()

    @property
    def poll_interval(self) -> timedelta:
        """What arrives by itself is close by, and looked for more often than a server should be asked."""
        if self.mode != "poll" and "poll.interval" not in self.settings:
            return _LOOK_INTERVAL
        return super().poll_interval

    @property
    def mode(self) -> str:
        return (self.settings.text("http.mode") or "poll").lower()

    @property
    def is_polled(self) -> bool:
        return self.settings.boolean("watch") if "watch" in self.settings else "poll.interval" in self.settings

    def _made(self) -> HttpReading:
        if self.mode != "poll":
            return ReceivedRecords(self)
        return RepeatedFetch(self) if self.is_polled else OneFetch(self)
