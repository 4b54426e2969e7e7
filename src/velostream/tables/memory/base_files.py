"""Base files: the state of all tables at one number, so that the log before it can go.

`base.json` names everything: the number, the writers, the first log segment to replay, and per table an Arrow
IPC file `table-<number>.arrow` with its checksum. It is put in place by one rename, so there is always exactly one
whole base. A table file holds the rows that readers at the table's floor or later may see, with their ids and the
numbers of the commits that added and removed them.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from velostream.errors import StateError
from velostream.tables.memory.files import sync_directory, sync_file
from velostream.tables.memory.generation import Contents
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.journal import ALIVE

_MANIFEST = "base.json"
_TABLE_FILE = re.compile(r"table-(\d{10})\.arrow")
_HISTORY = ("row_id", "added", "removed")
_TIME = "added_at"


@dataclass(frozen=True, slots=True)
class TableBase:
    """One table in a base."""

    id: str
    name: str
    schema: dict[str, Any]
    options: dict[str, str]
    indexes: list[list[str]]
    file: str
    checksum: int
    size: int
    floor: int
    floor_version: int
    """The table's version at its floor."""
    version: int
    next_row_id: int


@dataclass(frozen=True, slots=True)
class Base:
    """A whole base; the empty one is where a new directory begins."""

    sequence: int = 0
    first_segment: int = 1
    writers: dict[str, dict[str, Any]] = field(default_factory=dict)
    tables: list[TableBase] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)
    """When the commits were made whose states can still be read; see `CommitTimes`."""

    @property
    def size(self) -> int:
        return sum(table.size for table in self.tables)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The content of a table file, and later all rows a recovered table has."""

    rows: list[pa.RecordBatch]
    ids: Integers
    added: Integers
    removed: Integers
    added_at: Integers | None = None
    """When each row was committed, where that was kept."""


def read_base(directory: Path) -> Base:
    """The base in a directory; removes files that no base names."""
    path = directory / _MANIFEST
    base = Base()
    if path.exists():
        base = _parse(path)
    named = {table.file for table in base.tables}
    for leftover in directory.iterdir():
        unnamed = _TABLE_FILE.fullmatch(leftover.name) and leftover.name not in named
        if unnamed or leftover.suffix == ".tmp":
            leftover.unlink()
    return base


def write_base(directory: Path, base: Base) -> None:
    """Put a base in place of the one before, for good, and remove table files it doesn't name."""
    content = json.dumps(asdict(base), separators=(",", ":"))
    path = directory / _MANIFEST
    temporary = path.with_suffix(".tmp")
    temporary.write_text(f"{zlib.crc32(content.encode()):08x}\n{content}\n")
    sync_file(temporary)
    temporary.rename(path)
    sync_directory(directory)
    read_base(directory)


def write_rows(directory: Path, contents: Contents, *, sequence: int, floor: int) -> tuple[str, int, int]:
    """Write a table file as of a number, while commits go on; gives its name, checksum and size."""
    numbers = [int(match[1]) for match in map(_TABLE_FILE.fullmatch, _names(directory)) if match is not None]
    path = directory / f"table-{max(numbers, default=0) + 1:010d}.arrow"
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        sink = _Checksummed(file)
        with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), _file_schema(contents)) as writer:
            for batch in _kept_batches(contents, sequence=sequence, floor=floor):
                writer.write_batch(batch)
    sync_file(temporary)
    temporary.rename(path)
    return path.name, sink.checksum, sink.size


def read_rows(directory: Path, table: TableBase, schema: pa.Schema) -> StoredRows:
    path = directory / table.file
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise StateError.corrupt(str(path), reason="the file is missing") from error
    if len(data) != table.size or zlib.crc32(data) != table.checksum:
        raise StateError.corrupt(str(path), reason="its content does not match its checksum")
    rows: list[pa.RecordBatch] = []
    history: dict[str, list[Integers]] = {name: [np.empty(0, dtype=np.int64)] for name in (*_HISTORY, _TIME)}
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        for batch in reader:
            width = len(schema)
            rows.append(pa.RecordBatch.from_arrays(batch.columns[:width], schema=schema))
            for name, column in zip(batch.schema.names[width:], batch.columns[width:], strict=True):
                history[name].append(column.to_numpy())
        is_timed = _TIME in reader.schema.names[len(schema) :]
    ids, added, removed, added_at = (np.concatenate(parts) for parts in history.values())
    return StoredRows(rows, ids, added, removed, added_at if is_timed else None)


def _parse(path: Path) -> Base:
    checksum, _, content = path.read_text().rstrip("\n").partition("\n")
    if f"{zlib.crc32(content.encode()):08x}" != checksum:
        raise StateError.corrupt(str(path), reason="its content does not match its checksum")
    form: Mapping[str, Any] = json.loads(content)
    tables = [TableBase(**table) for table in form["tables"]]
    times = [(milliseconds, number) for milliseconds, number in form.get("times", ())]
    return Base(form["sequence"], form["first_segment"], form["writers"], tables, times)


def _kept_batches(contents: Contents, *, sequence: int, floor: int) -> Iterator[pa.RecordBatch]:
    chunks = contents.chunks
    schema = _file_schema(contents)
    for index, start in enumerate(chunks.starts[:-1]):
        batch = chunks.unpacked(index)
        removed = contents.removed[start : start + batch.num_rows].copy()
        kept = np.flatnonzero(removed > floor)
        if not len(kept):
            continue
        rows = batch if len(kept) == batch.num_rows else batch.take(pa.array(kept))
        positions, ended = kept + start, removed[kept]
        history = [
            contents.ids.of_positions(positions),
            contents.added(positions),
            np.where(ended > sequence, ALIVE, ended),
        ]
        if contents.added_at is not None:
            history.append(contents.added_at[positions])
        yield pa.RecordBatch.from_arrays([*rows.columns, *(pa.array(values) for values in history)], schema=schema)


def _file_schema(contents: Contents) -> pa.Schema:
    """Columns by number: a table's names may be anything, the names of the history among them."""
    columns = [pa.field(f"column_{index}", column.type) for index, column in enumerate(contents.chunks.schema)]
    history = _HISTORY if contents.added_at is None else (*_HISTORY, _TIME)
    return pa.schema([*columns, *(pa.field(name, pa.int64()) for name in history)])


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


class _Checksummed:
    """A file for Arrow to write to that knows the checksum of what went through it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.checksum = 0
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.checksum = zlib.crc32(view, self.checksum)
        self.size += view.nbytes
        self._file.write(view)
        return view.nbytes

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self.size

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
