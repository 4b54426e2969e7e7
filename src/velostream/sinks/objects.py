"""A folder of an object store as a target: one object per batch, named by writer and epoch.

A repeated batch replaces itself. Objects can't grow, so the target is always a folder.
Delivery guarantee: exactly-once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

import pyarrow as pa

from velostream.errors import Category, OptionError, StoreError
from velostream.formats.compression import NONE
from velostream.formats.options import COMPRESSION, DELIMITER, ENCODING, HEADER, format_settings
from velostream.formats.registry import NAMES, format_by_extension, make_format
from velostream.model.azure_storage import AzureStore
from velostream.model.change import Epoch
from velostream.model.google_storage import GoogleStore
from velostream.model.object_store import ObjectStore
from velostream.model.options import Option, OptionType
from velostream.model.s3 import S3Store
from velostream.model.schema import Schema
from velostream.sinks.base import Sink, SinkCapabilities, SinkSpec
from velostream.sinks.common import file_suffix, with_parameters

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_WRITTEN_OPTIONS = (
    Option("format", "how to write", OptionType.CHOICE, "parquet", NAMES),
    DELIMITER,
    HEADER,
    ENCODING,
    COMPRESSION,
)


class ObjectSink(Sink):
    """A folder of a bucket. A kind says which store that is."""

    store: ClassVar[type[ObjectStore]]
    capabilities = SinkCapabilities(idempotent=True, guarantee="exactly-once")

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(with_parameters(spec))
        self._folder = self.store.path_of(self.spec.uri).rstrip("/")
        if not self._folder or format_by_extension(self._folder) is not None:
            folder = self.store.shown("bucket/folder/")
            expected = f"{folder}, with a slash at the end: each batch is an object in it"
            raise OptionError.value("source", self.spec.uri, expected=expected)
        format_name = (self.settings.text("format") or "parquet").lower()
        compression = self.settings.text("compression")
        compression = None if compression in (None, NONE) else compression
        self._format = make_format(
            format_name, replace(format_settings(self.settings), compression=compression or NONE)
        )
        self._suffix = file_suffix(format_name, compression)
        self._store = self.store.of(self.settings, self.spec.uri)
        self._connected: FileSystem | None = None

    def open(self, schema: Schema) -> None:
        """Checks that the bucket is there."""
        from pyarrow.fs import FileType

        bucket = self._folder.partition("/")[0]
        with self._speaking():
            if self._system.get_file_info(bucket).type is FileType.NotFound:
                raise FileNotFoundError(f"there is no bucket {bucket}")

    def write(self, rows: pa.Table, epoch: Epoch) -> None:
        if not rows.num_rows:
            return
        name = f"{quote(epoch.writer, safe='')}-{epoch.number:012d}.{self._suffix}"
        data = self._format.encode(rows)
        with self._speaking(), self._system.open_output_stream(f"{self._folder}/{name}") as stream:
            stream.write(data)

    def close(self) -> None:
        self._connected = None

    @property
    def _system(self) -> FileSystem:
        if self._connected is None:
            self._connected = self._store.file_system()
        return self._connected

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            category = self._store.category_of(error)
            hint = self._store.reach_hint
            if category in (Category.AUTHENTICATION, Category.MISSING):
                hint = f"check the bucket; {self._store.access_hint}"
            raise StoreError(
                f'"{self._store.shown(self._folder)}/" can\'t be written',
                detail=self._store.told(error),
                hint=hint,
                code="store-unreachable",
                category=category,
            ) from error


class S3Sink(ObjectSink):
    """A folder of a bucket that speaks S3. An object appears when all of it has arrived.

    Delivery guarantee: exactly-once.
    """

    kind = "s3"
    store = S3Store
    options = (*_WRITTEN_OPTIONS, *S3Store.options)


class GsSink(ObjectSink):
    """A folder of a bucket of Google Cloud Storage. An object appears when all of it has arrived.

    Delivery guarantee: exactly-once.
    """

    kind = "gs"
    store = GoogleStore
    options = (*_WRITTEN_OPTIONS, *GoogleStore.options)


class AbfsSink(ObjectSink):
    """A folder of a container of Azure's storage. Arrow makes an empty object first and fills it in one step.

    Delivery guarantee: exactly-once, for readers that take no notice of empty objects.
    """

    kind = "abfs"
    store = AzureStore
    options = (*_WRITTEN_OPTIONS, *AzureStore.options)
