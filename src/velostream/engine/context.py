"""What every part of a running engine shares."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from velostream.engine.catalog import HIDDEN, Catalog, Entry, EntryKind
from velostream.engine.directory import StateDirectory
from velostream.engine.relations import SnapshotRelations, keep_alive
from velostream.engine.replica import ReplicaPublisher
from velostream.engine.spark import SparkRuntime
from velostream.engine.status import State, StatusBoard
from velostream.errors import SourceError, TableError
from velostream.model.change import Mode, Write
from velostream.model.schema import Schema
from velostream.sources.base import BadRecord, Source
from velostream.tables.memory.sequence import CommitSequence
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORIGIN = "_origin"
"""Hidden column of a folded source: which part of it (a file) a row came from."""
DEAD_LETTERS = "dead-letters"
_DEAD_LETTER_SCHEMA = Schema.of(
    ("at", "TIMESTAMP"),
    ("name", "STRING"),
    ("source", "STRING"),
    ("position", "STRING"),
    ("reason", "STRING"),
    ("raw", "BINARY"),
)


@dataclass
class EngineContext:
    """The parts of one connection's engine. Made by the connection, which alone opens and closes them."""

    directory: StateDirectory
    catalog: Catalog
    sequence: CommitSequence
    spark: SparkRuntime
    replicas: ReplicaPublisher
    relations: SnapshotRelations
    config: dict[str, str]
    boards: dict[str, StatusBoard] = field(default_factory=dict)
    closing: threading.Event = field(default_factory=threading.Event)

    def table(self, entry_id: str) -> MemoryTable:
        return self.sequence.table(entry_id)

    def table_of(self, entry: Entry) -> MemoryTable:
        """The table behind an entry; an error that says what it waits for while it has no columns yet."""
        if entry.schema is None:
            board = self.board(entry)
            board.raise_if_dead()
            raise TableError(
                f'table "{entry.name}" has no columns yet',
                detail=board.status.reason or "it waits for the first rows of its source",
                hint=f'con.wait("{entry.name}") waits for it; declared columns avoid the wait',
                code="no-schema-yet",
            )
        return self.sequence.table(entry.id)

    def frame(self, session: SparkSession, entry: Entry, *, at: int | None = None) -> DataFrame:
        """A table as a Spark relation, as of a commit number."""
        frame = self.relations.frame(session, entry.id, self.table(entry.id).snapshot(at))
        return keep_alive(frame.drop(ORIGIN), frame) if entry.kind is EntryKind.SOURCE else frame

    at_crash_point: ClassVar[Callable[[Path, str], None] | None] = None
    """What the fault tests do when a connection, known by its directory, comes to a crash point."""

    def crash_point(self, name: str) -> None:
        """A named instant at which the fault tests end the process; see `testing/crash.py`."""
        if name == os.environ.get("VELOSTREAM_CRASH_AT"):
            os.kill(os.getpid(), signal.SIGKILL)
        hook = type(self).at_crash_point
        if hook is not None:
            hook(self.directory.path, name)

    def hidden_inputs(self, entry: Entry) -> list[tuple[Entry, StatusBoard]]:
        """The engine's own entries that a query reads: their trouble is the query's."""
        inputs = [self.catalog.by_id(read) for read in entry.reads]
        return [(one, self.board(one)) for one in inputs if one is not None and one.kind in HIDDEN]

    def wait_ready(self, entry: Entry, deadline: float) -> None:
        """Return when a table or query has been ready; raise its failure, or `WaitTimeoutError` at the deadline."""
        board = self.board(entry)
        while not board.was_ready or board.state is State.FAILED:
            board.raise_if_dead()
            for _, hidden in self.hidden_inputs(self.catalog.by_id(entry.id) or entry):
                hidden.raise_if_dead()
            if time.monotonic() > deadline:
                raise board.timed_out("did not become ready in time")
            board.wait_for_news(0.2)

    def board(self, entry: Entry) -> StatusBoard:
        found = self.boards.get(entry.id)
        if found is None:
            state = State.WAITING if entry.is_query else State.READY
            found = self.boards.setdefault(entry.id, StatusBoard(entry.name, entry.kind, state))
        return found

    def dead_letters(self) -> MemoryTable:
        return self.sequence.create_table(DEAD_LETTERS, name="dead letters", schema=_DEAD_LETTER_SCHEMA)

    def bad_record_writes(self, name: str, source: Source, records: list[BadRecord]) -> list[tuple[MemoryTable, Write]]:
        """What becomes of records a source could not decode, by its option `bad.records`; `SourceError` for `fail`."""
        policy = source.settings.text("bad.records")
        if not records or policy == "skip":
            return []
        if policy == "fail":
            first = records[0]
            raise SourceError.bad_record(source.spec.uri, position=first.position, reason=first.reason)
        return [self.dead_letter_write(name, source.spec.uri, records)]

    def dead_letter_write(self, name: str, source: str, records: list[BadRecord]) -> tuple[MemoryTable, Write]:
        """The write that sets bad records of a query aside, to be committed together with its batch."""
        now = datetime.now(UTC)
        rows = pa.Table.from_pylist(
            [
                {
                    "at": now,
                    "name": name,
                    "source": source,
                    "position": record.position,
                    "reason": record.reason,
                    "raw": record.raw,
                }
                for record in records
            ],
            schema=_DEAD_LETTER_SCHEMA.arrow,
        )
        return self.dead_letters(), Write(Mode.APPEND, rows)
