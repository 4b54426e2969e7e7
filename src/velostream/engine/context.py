"""What every part of a running engine shares."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from velostream.engine.catalog import HIDDEN, Catalog, Entry, planned_columns
from velostream.engine.directory import StateDirectory
from velostream.engine.functions import Functions
from velostream.engine.options import MEMORY
from velostream.engine.relations import Reader, SnapshotRelations, keep_alive, mentioned, quoted
from velostream.engine.replica import ReplicaPublisher
from velostream.engine.spark import SparkRuntime
from velostream.engine.status import State, StatusBoard
from velostream.engine.stores import Stores, write_to_stores
from velostream.errors import FurtherColumnsError, SourceError, TableError
from velostream.model.change import Mode, Write
from velostream.model.expression import Expression
from velostream.model.schema import Schema
from velostream.sources.base import BadRecord, Source
from velostream.sql.pushdown import pushed_condition
from velostream.tables.base import Snapshot, Table
from velostream.tables.memory.evaluate import CannotCompile
from velostream.tables.memory.sequence import Commit, CommitSequence, Part
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    further_columns: Callable[[Sequence[str], FurtherColumnsError], None] = field(init=False)
    """Has the entries of these ids go on with columns that their records have and their tables lack."""
    stores: Stores = field(init=False)
    functions: Functions = field(init=False)

    def __post_init__(self) -> None:
        self.functions = Functions(self.spark, self.directory.path / "functions.json")
        self.stores = Stores(self.directory, self.config, self.closing)

    def table(self, entry_id: str) -> Table:
        """The table of an entry, of whatever kind."""
        return self.stores.find(entry_id) or self.sequence.table(entry_id)

    def memory_table(self, entry_id: str) -> MemoryTable:
        """The table of an entry that is known to live in the commit sequence."""
        return self.sequence.table(entry_id)

    def commit(self, *parts: Part) -> Commit:
        """Commit parts whose tables are of any kinds: first what goes to stores, then the rest as one record.

        After a crash in between the parts are given again; the stores know their epochs and change nothing.
        """
        return self.sequence.commit(*(self.stored(part) for part in parts))

    def stored(self, part: Part) -> Part:
        """The first half of `commit` for one part: gives what is left of it for the commit sequence."""
        left = write_to_stores(part)
        if left is not part:
            self.crash_point("store.after-write")
        return left

    def table_of(self, entry: Entry) -> Table:
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
        return self.table(entry.id)

    def older_snapshot(self, entry: Entry, version: int | datetime) -> Snapshot:
        """A table as of one of its versions, or as it was at an instant."""
        table = self.table_of(entry)
        if isinstance(version, int):
            return table.snapshot(version)
        if version > datetime.now(UTC):
            raise TableError(
                f'what table "{table.name}" holds at {version.isoformat(sep=" ")} is not known yet',
                hint="leave TIMESTAMP AS OF out for the newest version",
                code="unknown-version",
            )
        return table.snapshot(table.version_at(version))

    def frame(
        self, session: SparkSession, entry: Entry, *, at: int | None = None, reader: Reader | None = None
    ) -> DataFrame:
        """A table as a Spark relation, as of a commit number; one in a store as it is now."""
        store = self.stores.find(entry.id)
        if store is not None:
            return self.frame_of(session, entry, store.snapshot(), reader=reader)
        snapshot = self.memory_table(entry.id).snapshot(at)
        frame = self.relations.frame(session, entry.id, snapshot)
        names = planned_columns(snapshot.schema.names, entry)
        if len(names) == len(snapshot.schema.names):
            return frame
        return keep_alive(frame.select(*(quoted(name) for name in names)), frame)

    def frame_of(
        self, session: SparkSession, entry: Entry, snapshot: Snapshot, *, reader: Reader | None = None
    ) -> DataFrame:
        """A snapshot of an entry's table as a Spark relation; of one in a store no more than the reader needs."""
        if self.stores.find(entry.id) is None:
            return self.relations.frame(session, entry.id, snapshot)
        files = snapshot.parquet_files()
        if files is not None:
            return self.relations.frame_of_files(session, files, snapshot.schema)
        # Other programs write to a store without a version of ours, so what was fetched once is not kept.
        columns = snapshot.schema.names if reader is None else mentioned(snapshot.schema.names, reader.sql)
        schema = snapshot.schema.select(columns or snapshot.schema.names[:1])
        condition = None if reader is None else pushed_condition(reader.sql, reader.relation, snapshot.schema)
        try:
            return self._fetched(session, snapshot, condition, schema)
        except CannotCompile:
            return self._fetched(session, snapshot, None, schema)

    def _fetched(
        self, session: SparkSession, snapshot: Snapshot, condition: Expression | None, schema: Schema
    ) -> DataFrame:
        """The rows for which a condition holds: read by the workers where the store lets them, else here."""
        parts = snapshot.parts(condition, schema.names)
        if parts is not None:
            return self.relations.frame_of_parts(session, parts, schema)
        return self.relations.frame_of_rows(session, snapshot.scan(condition, schema.names), schema)

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
        hidden = [one for one in inputs if one is not None and one.kind in HIDDEN]
        return [pair for one in hidden for pair in ((one, self.board(one)), *self.hidden_inputs(one))]

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
            state = State.WAITING if entry.is_query or entry.store != MEMORY else State.READY
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
            raise SourceError.bad_record(source.spec.shown, position=first.position, reason=first.reason)
        return [self.dead_letter_write(name, source.spec.shown, records)]

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
