"""The durable side of a commit sequence: its log and its bases in one directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velostream.errors import StateError
from velostream.tables.memory.base_files import Base, TableBase, write_base, write_rows
from velostream.tables.memory.files import DurableFile, SystemFile, sync_directory
from velostream.tables.memory.generation import Contents, Delta
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.log import Log
from velostream.tables.memory.recovery import Recovered, commit_record, recover

if TYPE_CHECKING:
    from velostream.tables.memory.sequence import WriterState

_SMALLEST_LOG_TO_MERGE = 64 << 20


@dataclass(frozen=True, slots=True)
class TableToWrite:
    """A table as of the moment a base is begun."""

    id: str
    name: str
    schema: dict[str, Any]
    options: dict[str, str]
    indexes: list[list[str]]
    version: int
    floor: int
    """The oldest number it must stay readable at."""
    floor_version: int
    contents: Contents


class DurableStore:
    """Appends under the commit lock; a base is begun under it and finished without it."""

    def __init__(self, directory: Path, log: Log, base: Base) -> None:
        self._directory = directory
        self._log = log
        self._base = base

    @classmethod
    def open(
        cls, directory: Path, *, open_file: Callable[[Path], DurableFile] = SystemFile
    ) -> tuple[DurableStore, Recovered]:
        """Recover what a directory holds; makes the directory if there is none."""
        directory.mkdir(parents=True, exist_ok=True)
        sync_directory(directory.parent)
        log = Log(directory, open_file=open_file)
        recovered = recover(directory, log)
        log.drop_before(recovered.base.first_segment)
        return cls(directory, log, recovered.base), recovered

    def append(self, kind: str, header: Mapping[str, Any]) -> None:
        self._log.append({"kind": kind, **header})

    def append_commit(
        self, number: int, deltas: Mapping[str, tuple[Delta, Integers]], writers: Mapping[str, WriterState]
    ) -> None:
        """Returns once the commit is on the disk; raises `StateError` and leaves nothing of it behind otherwise."""
        header, payloads = commit_record(number, datetime.now(UTC).isoformat(), deltas, _plain(writers))
        self._log.append(header, payloads)

    @property
    def wants_base(self) -> bool:
        """Whether the log has outgrown what a base would hold, so that writing one costs no more than it saves."""
        return self._log.unmerged_bytes >= max(_SMALLEST_LOG_TO_MERGE, self._base.size)

    def begin_base(self, sequence: int, writers: Mapping[str, WriterState], times: Sequence[tuple[int, int]]) -> Base:
        """Begin a new log segment; what is committed from now on is not part of the base."""
        with self._told_as_ours():
            segment = self._log.rotate()
        self._log.unmerged_bytes = 0
        return Base(sequence, segment, _plain(writers), times=list(times))

    def finish_base(self, draft: Base, tables: Sequence[TableToWrite]) -> None:
        """Write the tables that changed since the last base, put the base in place and drop what it replaces."""
        known = {table.id: table for table in self._base.tables}
        with self._told_as_ours():
            written = [self._write(draft.sequence, table, known.get(table.id)) for table in tables]
            base = replace(draft, tables=written)
            write_base(self._directory, base)
            self._base = base
            self._log.drop_before(base.first_segment)

    def close(self) -> None:
        self._log.close()

    @contextmanager
    def _told_as_ours(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(
                "the base of the commit log could not be written",
                detail=f"{self._directory}: {error}",
                hint="make room on the disk or check the directory; nothing is lost, the log grows until then",
                code="base-write-failed",
            ) from error

    def _write(self, sequence: int, table: TableToWrite, known: TableBase | None) -> TableBase:
        if known is not None and (known.version, known.schema) == (table.version, table.schema):
            return replace(known, name=table.name, options=table.options, indexes=table.indexes)
        file, checksum, size = write_rows(self._directory, table.contents, sequence=sequence, floor=table.floor)
        return TableBase(
            id=table.id,
            name=table.name,
            schema=table.schema,
            options=table.options,
            indexes=table.indexes,
            file=file,
            checksum=checksum,
            size=size,
            floor=table.floor,
            floor_version=table.floor_version,
            version=table.version,
            next_row_id=table.contents.next_row_id,
        )


def _plain(writers: Mapping[str, WriterState]) -> dict[str, dict[str, Any]]:
    """Writers as JSON has them."""
    return {
        name: {
            "epoch": state.epoch,
            "position": state.position,
            "reads": dict(state.reads),
            "sequence": state.sequence,
        }
        for name, state in writers.items()
    }
