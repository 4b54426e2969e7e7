"""A directory of numbered Arrow files: the cheap durable way for batches of rows to cross processes.

One writer, any number of readers, in any process. Files are numbered from 1 without gaps and never change once
published; a reader that knows the count knows what it may read. Writing takes two steps so that a commit elsewhere
can stand between them: `prepare` makes the rows durable under a name nobody reads, `publish` makes them visible.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from velostream.errors import ClosedError, StateError

_PUBLISHED = re.compile(r"(\d{12})\.arrow")
_PREPARED = re.compile(r"(\d{12})\.arrow\.tmp")
_CLOSED = "closed"
_ROWS = b"velostream.rows"
_NOTE = b"velostream.note."


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows that are durable and not yet visible."""

    number: int
    rows: int


_guard = threading.Lock()
_appending: dict[Path, threading.RLock] = {}
"""Whoever appends to a directory holds its lock; objects for the same directory share it."""


class Spool:
    """Numbered batches of rows in a directory. Pickles as its path; creates the directory on the first write.

    One `Prepared` at a time: preparing again before publishing overwrites it. The newest file is never deleted,
    because its number is the memory of how far counting got.
    """

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        """With `durable=False` nothing is synced to disk: for connections that forget at the end anyway."""
        self.directory = Path(directory)
        self.durable = durable
        self._last = 0
        self._row_counts: dict[int, int] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (self.directory, self.durable))

    def __repr__(self) -> str:
        return f"Spool({str(self.directory)!r})"

    def count(self) -> int:
        """Number of the newest published file; 0 when there is none. Cheap when nothing or little is new."""
        if not self._last or not self._path(self._last).exists():
            self._last = max(self._numbers(_PUBLISHED), default=0)
        while self._last and self._path(self._last + 1).exists():
            self._last += 1
        return self._last

    def first(self) -> int:
        """Number of the oldest file still kept; 1 when nothing was written yet."""
        return min(self._numbers(_PUBLISHED), default=1)

    def prepare(self, rows: pa.Table, *, note: Mapping[str, str] | None = None) -> Prepared:
        """Write the rows durably as the next number without showing them. `note` travels with the file."""
        if self.closed:
            raise ClosedError(f'spool "{self.directory}" is closed', hint="nothing can follow the end of a stream")
        self.directory.mkdir(parents=True, exist_ok=True)
        prepared = Prepared(self.count() + 1, rows.num_rows)
        metadata = {_ROWS: str(rows.num_rows).encode()}
        metadata |= {_NOTE + name.encode(): value.encode() for name, value in (note or {}).items()}
        # The file format forbids a dictionary that changes between batches.
        whole = rows.unify_dictionaries().replace_schema_metadata(metadata)
        with self._prepared_path(prepared.number).open("wb") as file:
            with pa.ipc.new_file(file, whole.schema) as writer:
                writer.write_table(whole)
            file.flush()
            if self.durable:
                os.fsync(file.fileno())
        self._sync_directory()
        return prepared

    def publish(self, prepared: Prepared) -> int:
        """Show prepared rows to readers; gives their number. May be repeated."""
        source, target = self._prepared_path(prepared.number), self._path(prepared.number)
        if not target.exists() or source.exists():
            source.replace(target)
            self._sync_directory()
        self._row_counts[prepared.number] = prepared.rows
        return prepared.number

    def append(self, rows: pa.Table, *, note: Mapping[str, str] | None = None) -> int:
        """Write and show rows at once; gives their number. Safe beside other appenders of this process.

        Notes of the file before are carried on, so that the newest file has them all.
        """
        with self.appending():
            last = self.count()
            notes = (self.note(last) if last else {}) | dict(note or {})
            return self.publish(self.prepare(rows, note=notes))

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Hold off other appenders of this process, for looking at the newest file before appending. Re-entrant."""
        with _guard:
            lock = _appending.setdefault(self.directory.absolute(), threading.RLock())
        with lock:
            yield

    def recover(self, committed: int) -> None:
        """After a crash: show exactly the files up to `committed`, whatever state they were left in.

        `StateError` when a committed file is nowhere to be found.
        """
        for number in self._numbers(_PREPARED):
            if number <= committed:
                self._prepared_path(number).replace(self._path(number))
            else:
                self._prepared_path(number).unlink()
        for number in self._numbers(_PUBLISHED):
            if number > committed:
                self._path(number).unlink()
        self._last = 0
        self._row_counts.clear()
        if self.count() < committed:
            missing = str(self._path(self.count() + 1))
            raise StateError.corrupt(missing, reason=f"{committed} files are committed, {self.count()} are there")
        if self.directory.exists():
            self._sync_directory()

    def read(self, number: int) -> pa.Table:
        """The rows of one file, memory-mapped: pages are read when touched and shared between processes."""
        with self._open(number) as reader:
            return reader.read_all().replace_schema_metadata(None)

    def rows(self, number: int) -> int:
        """How many rows a file holds, without reading them."""
        found = self._row_counts.get(number)
        if found is None:
            found = self._row_counts[number] = int(self._metadata(number)[_ROWS])
        return found

    def written_at(self, number: int) -> float:
        """When a file was written, in seconds since 1970."""
        return self._path(number).stat().st_mtime

    def note(self, number: int) -> dict[str, str]:
        """What was noted with a file when it was prepared."""
        return {
            name.removeprefix(_NOTE).decode(): value.decode()
            for name, value in self._metadata(number).items()
            if name.startswith(_NOTE)
        }

    def schema(self) -> pa.Schema | None:
        """Columns of the oldest file kept, then those that only the newest has; None before the first."""
        newest = self.count()
        if newest == 0:
            return None
        with self._open(self.first()) as reader:
            found = reader.schema.remove_metadata()
        with self._open(newest) as reader:
            known = {name.lower() for name in found.names}
            return pa.schema([*found, *(field for field in reader.schema if field.name.lower() not in known)])

    def delete_before(self, number: int) -> None:
        """Forget the files below `number`, but never the newest one."""
        keep = min(number, self.count())
        for old in self._numbers(_PUBLISHED):
            if old < keep:
                self._path(old).unlink(missing_ok=True)
                self._row_counts.pop(old, None)

    @property
    def closed(self) -> bool:
        """Whether the writer said that nothing more will come."""
        return (self.directory / _CLOSED).exists()

    def close(self) -> None:
        """Mark the end of the stream, for good."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / _CLOSED).touch()
        self._sync_directory()

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:012d}.arrow"

    def _prepared_path(self, number: int) -> Path:
        return self.directory / f"{number:012d}.arrow.tmp"

    def _numbers(self, pattern: re.Pattern[str]) -> list[int]:
        if not self.directory.exists():
            return []
        matches = (pattern.fullmatch(entry.name) for entry in self.directory.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def _open(self, number: int) -> pa.RecordBatchFileReader:
        path = str(self._path(number))
        try:
            return pa.ipc.open_file(pa.memory_map(path))
        except FileNotFoundError as error:
            raise StateError.corrupt(path, reason="the file is gone") from error
        except pa.ArrowInvalid as error:
            raise StateError.corrupt(path, reason=str(error)) from error

    def _metadata(self, number: int) -> dict[bytes, bytes]:
        with self._open(number) as reader:
            return dict(reader.schema.metadata or {})

    def _sync_directory(self) -> None:
        if not self.durable:
            return
        handle = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _restore(directory: Path, durable: bool) -> Spool:  # noqa: FBT001 - pickle passes arguments by position
    return Spool(directory, durable=durable)
