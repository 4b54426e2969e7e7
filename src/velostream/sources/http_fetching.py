"""HTTP resources that are fetched: once, or again and again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.errors import OptionError
from velostream.model.http import HttpClient
from velostream.model.schema import Schema
from velostream.sources.base import Emits, Offset, OnBad, Partition, SourceCapabilities
from velostream.sources.http_pages import Pages
from velostream.sources.http_reading import HttpReading
from velostream.sources.http_records import FORMATS, Body, BodyRules, infer_columns, path_of

if TYPE_CHECKING:
    from velostream.sources.http import HttpSource

_ROWS_PER_BATCH = 65_536
_NOT_MODIFIED = 304
_VALIDATORS = {"etag": "if-none-match", "last-modified": "if-modified-since"}
"""Headers by which a server knows what it gave, and those by which it is asked for anything else."""


class Resource:
    """What an address holds."""

    def __init__(self, source: HttpSource) -> None:
        settings = source.settings
        written = settings.text("http.records")
        format_name = settings.text("format")
        if format_name is not None and format_name.lower() not in FORMATS:
            raise OptionError.value("format", format_name, expected="one of " + ", ".join(FORMATS))
        self.rules = BodyRules(
            source.format_settings,
            None if format_name is None else format_name.lower(),
            None if written is None else path_of(written),
            retriable=source.is_polled,
        )
        self._client = HttpClient(source.address, settings)
        self.pages = Pages(self._client, settings, self.rules)

    def columns(self) -> Schema | None:
        with self.connected():
            return infer_columns(self.pages.bodies(), self.rules.settings)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connections are held within: nothing tells when a source that was merely looked at is done with."""
        try:
            yield
        finally:
            self._client.close()


class OneFetch(HttpReading):
    """Fetched once. Its offsets are None and, when everything was fetched, True.

    Reading begins with the pages that were fetched to find the columns, which needn't be sent twice.
    """

    def __init__(self, source: HttpSource) -> None:
        self._resource = Resource(source)
        self._begun: Iterator[Body] | None = None
        """All pages, of which some are here already."""
        # Records within a document are found by Python.
        self.capabilities = SourceCapabilities(native=source.settings.text("http.records") is None)

    def discover(self) -> Schema | None:
        here: list[Body] = []
        bodies = self._resource.pages.bodies()
        with self._resource.connected():
            found = infer_columns(map(_kept_in(here), bodies), self._resource.rules.settings)
        self._begun = chain(here, bodies)
        return found

    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        return True

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        return [Partition({})]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        begun, self._begun = self._begun, None
        with self._resource.connected():
            for body in begun or self._resource.pages.bodies():
                yield from _batches(body, schema, on_bad)

    def reached(self, position: Offset, target: Offset) -> bool:
        return False

    def close(self) -> None:
        self._begun = None


class RepeatedFetch(HttpReading):
    """Fetched again and again; an offset holds the digest of what came, and how many looks found something new.

    What was fetched while it was looked at is kept until the next look, so that it needn't be fetched twice.
    """

    capabilities = SourceCapabilities(emits=Emits.CHANGES, incremental=True, follows=True)

    def __init__(self, source: HttpSource) -> None:
        self._resource = Resource(source)
        self._seen: tuple[str, list[Body]] | None = None
        self._validators: tuple[str, dict[str, str]] = ("", {})
        """What to send to get an answer only if it has another digest than this."""

    def discover(self) -> Schema | None:
        return self._resource.columns()

    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        before: Any = {"digest": "", "looks": 0} if start is None else start
        known, validators = self._validators
        with self._resource.connected():
            first = self._resource.pages.first(validators if known == before["digest"] else {})
            if first.status == _NOT_MODIFIED:
                return start
            bodies = list(self._resource.pages.bodies(first))
        digest = _digest(bodies)
        sent = {asked: first.headers[told] for told, asked in _VALIDATORS.items() if told in first.headers}
        # Of several pages the first says nothing about the others.
        self._validators = (digest, sent if self._resource.pages.paging is None else {})
        if digest == before["digest"]:
            return start
        self._seen = (digest, bodies)
        return {"digest": digest, "looks": before["looks"] + 1}

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        return [Partition({"digest": end["digest"]}, replaces=True)]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        seen = self._seen
        mine = seen is not None and seen[0] == partition.payload["digest"]
        with self._resource.connected():
            for body in seen[1] if seen is not None and mine else self._resource.pages.bodies():
                yield from _batches(body, schema, on_bad)

    def reached(self, position: Offset, target: Offset) -> bool:
        """A look that comes later than another has found all that the other has."""
        return bool(position["looks"] >= target["looks"])

    def commit(self, end: Offset) -> None:
        self._seen = None

    def close(self) -> None:
        self._seen = None


def _kept_in(kept: list[Body]) -> Callable[[Body], Body]:
    def keep(body: Body) -> Body:
        kept.append(body)
        return body

    return keep


def _batches(body: Body, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
    for rows in body.decode(schema, on_bad):
        yield from rows.to_batches(max_chunksize=_ROWS_PER_BATCH)


def _digest(bodies: Sequence[Body]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for body in bodies:
        digest.update(len(body.answer.body).to_bytes(8))
        digest.update(body.answer.body)
    return digest.hexdigest()
