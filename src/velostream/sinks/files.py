"""`file:///p`: a single file that grows, or a folder with one file per batch.

A path that ends with `/` or has no known extension is a folder: each batch is a file named by writer and epoch, written
aside and renamed, so a repeated batch replaces itself. A single file of lines (CSV, JSON, text) is appended to, also a
compressed one; how far each batch goes is noted in a hidden file next to it before the batch is written, so a torn one
is cut off and a repeated one is known. Several statements may write to one file: a lock next to it keeps their batches
apart. A single Parquet file is written anew with each batch, its epochs inside; choose
a folder where it grows large. The other formats need a folder.
Delivery guarantee: exactly-once.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from velostream.errors import Category, UnsupportedError, VelostreamError
from velostream.formats.base import Format
from velostream.formats.compression import NONE, compression_of
from velostream.formats.options import COMPRESSION, DELIMITER, ENCODING, HEADER, format_settings
from velostream.formats.registry import NAMES, format_by_extension, make_format
from velostream.model.address import file_path
from velostream.model.change import Epoch
from velostream.model.options import Option, OptionType
from velostream.model.schema import Schema
from velostream.sinks.base import Sink, SinkCapabilities, SinkSpec
from velostream.sinks.common import file_suffix, with_parameters

_EPOCHS = b"velostream.epochs"
_CANNOT_GROW = {"json_array": "a JSON array", "avro": "an Avro file", "orc": "an ORC file"}


@dataclass(frozen=True, slots=True)
class _Journal:
    """What was written to a growing file: each writer's last epoch, and how far the last batch goes."""

    epochs: dict[str, int] = field(default_factory=dict)
    writer: str = ""
    before: int = 0
    after: int = 0


class FileSink(Sink):
    """Files on this machine's disks. Delivery guarantee: exactly-once."""

    kind = "file"
    capabilities = SinkCapabilities(idempotent=True, guarantee="exactly-once")
    options = (
        Option(
            "format", "how to write; default: by the extension, parquet in a folder", OptionType.CHOICE, None, NAMES
        ),
        DELIMITER,
        HEADER,
        ENCODING,
        COMPRESSION,
    )

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(with_parameters(spec))
        written = file_path(self.spec.uri)
        self._path = Path(written)
        extension = format_by_extension(written)
        self._is_folder = written.endswith("/") or extension is None
        self._format_name = (self.settings.text("format") or extension or "parquet").lower()
        compression = compression_of(written.rstrip("/"), self.settings.text("compression"))
        settings = replace(format_settings(self.settings), compression=compression or NONE)
        self._format: Format = make_format(self._format_name, settings)
        self._suffix = file_suffix(self._format_name, compression)

    def open(self, schema: Schema) -> None:
        if not self._is_folder and self._format_name in _CANNOT_GROW:
            raise UnsupportedError(
                f'file "{self._path}" can\'t grow as {_CANNOT_GROW[self._format_name]}',
                hint="write to a folder (a path that ends with /), or WITH ('format' = 'jsonl')",
                code="unsupported-format",
            )
        if self._is_folder and self._path.is_file():
            raise _refused(self._path, "it is a file, and its name has no known extension")
        if not self._is_folder and self._path.is_dir():
            raise _refused(self._path, "it is a folder")
        folder = self._path if self._is_folder else self._path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _refused(folder, str(error)) from error
        if not os.access(folder, os.W_OK):
            raise _refused(folder, "no permission to write there")

    def write(self, rows: pa.Table, epoch: Epoch) -> None:
        if not rows.num_rows:
            return
        try:
            if self._is_folder:
                self._write_own_file(rows, epoch)
            else:
                with self._alone():
                    if self._format_name == "parquet":
                        self._write_anew(rows, epoch)
                    else:
                        self._append(rows, epoch)
        except OSError as error:
            raise _refused(self._path, str(error)) from error

    def _write_own_file(self, rows: pa.Table, epoch: Epoch) -> None:
        target = self._path / f"{quote(epoch.writer, safe='')}-{epoch.number:012d}.{self._suffix}"
        _replace_durably(target, self._format.encode(rows))

    def _write_anew(self, rows: pa.Table, epoch: Epoch) -> None:
        epochs: dict[str, int] = {}
        if self._path.exists():
            present = pq.read_table(self._path)
            epochs = json.loads((present.schema.metadata or {}).get(_EPOCHS, b"{}"))
            rows = pa.concat_tables([present.replace_schema_metadata(None), rows], promote_options="permissive")
        if epochs.get(epoch.writer, -1) >= epoch.number:
            return
        noted = json.dumps(epochs | {epoch.writer: epoch.number}).encode()
        _replace_durably(self._path, self._format.encode(rows.replace_schema_metadata({_EPOCHS: noted})))

    def _append(self, rows: pa.Table, epoch: Epoch) -> None:
        journal = self._repaired(self._journal())
        if journal.epochs.get(epoch.writer, -1) >= epoch.number:
            return
        with self._path.open("ab") as file:
            before = file.tell()
            data = self._format.encode(rows, first=before == 0)
            epochs = journal.epochs | {epoch.writer: epoch.number}
            noted = _Journal(epochs, epoch.writer, before, before + len(data))
            _replace_durably(self._journal_path, json.dumps(asdict(noted)).encode())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _repaired(self, journal: _Journal) -> _Journal:
        """Cut off a batch that a crash left half written, and forget that it was begun."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size >= journal.after:
            return journal
        if size > journal.before:
            os.truncate(self._path, journal.before)
        epochs = {writer: number for writer, number in journal.epochs.items() if writer != journal.writer}
        return replace(journal, epochs=epochs, after=journal.before)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits for other writers of the file, of this process and of others, and keeps them waiting."""
        with self._path.with_name(f".{self._path.name}.lock").open("ab") as lock:
            # Closing it, if only by the end of the process, gives the lock back.
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @property
    def _journal_path(self) -> Path:
        return self._path.with_name(f".{self._path.name}.epoch")

    def _journal(self) -> _Journal:
        try:
            return _Journal(**json.loads(self._journal_path.read_bytes()))
        except FileNotFoundError:
            return _Journal()


def _replace_durably(target: Path, data: bytes) -> None:
    """Write aside, then rename: readers see all of it or what was there before, also after a crash."""
    aside = target.with_name(f".{target.name}.tmp")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _refused(path: Path, reason: str) -> VelostreamError:
    return VelostreamError(
        f'path "{path}" can\'t be written',
        detail=reason,
        hint="check the path and its permissions; a path that ends with / is a folder",
        code="unwritable-path",
        category=Category.CONFIGURATION,
    )
