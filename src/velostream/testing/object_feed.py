"""The feeds of object stores: objects of a bucket of its own on a real server of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pyarrow as pa

from velostream.errors import Category
from velostream.formats.base import FormatSettings
from velostream.formats.compression import compression_of
from velostream.formats.registry import make_format
from velostream.plugins import Group, load
from velostream.sources.base import Emits, Source, SourceSpec
from velostream.testing.feeds import SourceFeed, Trouble, numbered_rows
from velostream.testing.services.azure import AzureService
from velostream.testing.services.base import LOOPBACK, free_port
from velostream.testing.services.gs import GsService
from velostream.testing.services.s3 import S3Service


class ObjectFeed(SourceFeed):
    """Objects of one format; each batch of rows is an object in a folder of its own."""

    service: ClassVar[type[S3Service | GsService | AzureService]]
    kind: ClassVar[str]

    limit_slack = 50
    """An object is the least that can be read."""

    def __init__(self, suffix: str, **options: str) -> None:
        self._service = self.service.shared()
        self._system = self._service.file_system()
        self._bucket = self._service.new_database()
        self._suffix = suffix
        self._options = {name.replace("_", "."): value for name, value in options.items()}
        name, _, compression = suffix.partition(".")
        self._format = make_format(name, FormatSettings(compression=compression_of(f"x.{compression}", None)))
        self._objects: list[pa.Table] = []
        self._next = self.first_number

    def source(self) -> Source:
        return self._source(f"**/*.{self._suffix}")

    def append(self, count: int) -> bool:
        self._objects.append(numbered_rows(self._next, count))
        self._next += count
        self._put(len(self._objects) - 1)
        return True

    def append_bad_record(self) -> bool:
        self._objects.append(numbered_rows(self._next, 0))
        self._put(len(self._objects) - 1, more=b"\x00\xff broken\n")
        return True

    def update(self, number: int, name: str) -> bool:
        return self._rewrite(lambda row: row | {"name": name} if row["id"] == number else row)

    def delete(self, number: int) -> bool:
        return self._rewrite(lambda row: None if row["id"] == number else row)

    def missing_source(self) -> Source | None:
        return None if self.source().capabilities.follows else self._source(f"nowhere.{self._suffix}")

    def troubles(self) -> Sequence[Trouble]:
        if self._suffix != "csv":
            # The client tries for seconds, whatever the objects are.
            return ()
        return (Trouble("nobody listens", Category.NETWORK, self._unreachable, passes=False),)

    @contextmanager
    def _unreachable(self, source: Source) -> Iterator[Source]:
        """What the server holds doesn't survive its being stopped, so the source is one that looks elsewhere."""
        elsewhere = {f"{self.kind}.endpoint": f"http://{LOOPBACK}:{free_port()}"}
        yield type(source)(SourceSpec(self.kind, source.spec.uri, {**source.spec.options, **elsewhere}))

    def _source(self, key: str) -> Source:
        spec = SourceSpec(self.kind, f"{self._bucket}/data/{key}", {**self._service.options, **self._options})
        made: Source = load(Group.SOURCES, self.kind)(spec)
        return made

    def _rewrite(self, edit: Callable[[dict[str, Any]], dict[str, Any] | None]) -> bool:
        """Write objects anew whose rows `edit` gives back otherwise, or not at all. False where rows can't change."""
        if self.source().capabilities.emits is not Emits.CHANGES:
            return False
        for index, rows in enumerate(self._objects):
            edited = [row for row in map(edit, rows.to_pylist()) if row is not None]
            if edited != rows.to_pylist():
                self._objects[index] = pa.Table.from_pylist(edited, rows.schema)
                self._put(index)
        return True

    def _put(self, index: int, *, more: bytes = b"") -> None:
        path = f"{self._bucket.partition('://')[2]}/data/{index:04d}/rows.{self._suffix}"
        with self._system.open_output_stream(path) as stream:
            stream.write(self._format.encode(self._objects[index]) + more)


class S3Feed(ObjectFeed):
    service = S3Service
    kind = "s3"
    secrets = (S3Service.secret_key,)


class GsFeed(ObjectFeed):
    service = GsService
    kind = "gs"


class AbfsFeed(ObjectFeed):
    service = AzureService
    kind = "abfs"
    secrets = (AzureService.account_key,)
