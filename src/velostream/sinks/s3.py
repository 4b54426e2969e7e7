"""`s3://bucket/folder/` as a target: one object per batch, named by writer and epoch.

An object appears when all of it has arrived, and a repeated batch replaces itself. Objects can't grow, so the target is
always a folder.
Delivery guarantee: exactly-once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from velostream.errors import Category, OptionError, StoreError
from velostream.formats.compression import NONE
from velostream.formats.options import COMPRESSION, DELIMITER, ENCODING, HEADER, format_settings
from velostream.formats.registry import NAMES, format_by_extension, make_format
from velostream.model.change import Epoch
from velostream.model.object_store import S3_OPTIONS, ObjectStore, category_of
from velostream.model.options import Option, OptionType
from velostream.model.schema import Schema
from velostream.sinks.base import Sink, SinkCapabilities, SinkSpec
from velostream.sinks.common import file_suffix, with_parameters

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_EXPECTED = "s3://bucket/folder/, with a slash at the end: each batch is an object in it"


class S3Sink(Sink):
    """A folder of a bucket. Delivery guarantee: exactly-once."""

    kind = "s3"
    capabilities = SinkCapabilities(idempotent=True, guarantee="exactly-once")
    options = (
        Option("format", "how to write", OptionType.CHOICE, "parquet", NAMES),
        DELIMITER,
        HEADER,
        ENCODING,
        COMPRESSION,
        *S3_OPTIONS,
    )

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(with_parameters(spec))
        self._folder = self.spec.uri.partition("://")[2].rstrip("/")
        if not self._folder or format_by_extension(self._folder) is not None:
            raise OptionError.value("source", self.spec.uri, expected=_EXPECTED)
        format_name = (self.settings.text("format") or "parquet").lower()
        compression = self.settings.text("compression")
        compression = None if compression in (None, NONE) else compression
        self._format = make_format(
            format_name, replace(format_settings(self.settings), compression=compression or NONE)
        )
        self._suffix = file_suffix(format_name, compression)
        self._store = ObjectStore.of(self.settings)
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
            category = category_of(error)
            hint = "check s3.endpoint, s3.region and that the store answers"
            if category in (Category.AUTHENTICATION, Category.MISSING):
                hint = "check the bucket, s3.access.key, s3.secret.key and what that user may do"
            raise StoreError(
                f'"s3://{self._folder}/" can\'t be written',
                detail=str(error),
                hint=hint,
                code="store-unreachable",
                category=category,
            ) from error
