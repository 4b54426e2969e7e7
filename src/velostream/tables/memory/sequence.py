"""One commit sequence per connection: every commit, of one table or of many, is one numbered record.

A commit is worked out, written to the log, applied to its tables and then published by one assignment of its number;
readers take that number first, so they see all of a commit or nothing of it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from velostream.errors import ClosedError, NotFoundError, StateError
from velostream.model.change import Epoch, JsonValue, Write
from velostream.model.schema import Column, Schema
from velostream.tables.base import Table
from velostream.tables.memory.files import DurableFile, SystemFile
from velostream.tables.memory.generation import Changed, Delta
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.housekeeping import Housekeeper
from velostream.tables.memory.point import UNCHANGED, PointWriter
from velostream.tables.memory.snapshot import MemorySnapshot
from velostream.tables.memory.stage import Stage
from velostream.tables.memory.store import DurableStore
from velostream.tables.memory.table import MemoryTable
from velostream.tables.memory.times import CommitTimes

_log = logging.getLogger(__name__)
_PAUSE_AFTER_FAILURE = 1.0
_Given = TypeVar("_Given")
_Done = TypeVar("_Done", Changed, Changed | None)


@dataclass(frozen=True)
class Part:
    """One writer's share of a commit."""

    writes: Sequence[tuple[Table, Write]] = ()
    """To tables of the sequence; what goes to tables of other kinds has to be taken out before the commit."""
    epoch: Epoch | None = None
    position: JsonValue = None
    """Stored with the epoch and given back by `CommitSequence.writer`."""
    reads: Mapping[str, int] = field(default_factory=dict)
    """Table id to the version this share reflects. Those versions stay readable, over restarts too, until the writer's
    next epoch names newer ones or the writer is forgotten."""


@dataclass(frozen=True, slots=True)
class WriterState:
    """What a writer committed last."""

    epoch: int
    position: JsonValue
    reads: Mapping[str, int]
    sequence: int
    """Number of the commit that held it."""


class Commit(NamedTuple):
    """A published commit. `sequence` is the present number when there was nothing to do."""

    sequence: int
    changed: Mapping[str, Changed]
    """By table id."""


class Pin:
    """Keeps versions at or after a sequence number readable until it is released; a context manager too."""

    def __init__(self, owner: CommitSequence, sequence: int) -> None:
        self.sequence = sequence
        self._owner: CommitSequence | None = owner

    def release(self) -> None:
        """Give it up; a second call does nothing."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner._unpin(self.sequence)  # noqa: SLF001 - a pin is the sequence's own handle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class CommitSequence:
    """The tables of one connection and the order of their commits. Every method may be called from any thread."""

    def __init__(self, store: DurableStore | None = None) -> None:
        """Use `CommitSequence.open`."""
        self._store = store
        self.sequence = 0
        """Number of the newest commit that readers see. Set by commits only."""
        self.times = CommitTimes()
        self._tables: dict[str, MemoryTable] = {}
        self._writers: dict[str, WriterState] = {}
        self._lock = threading.RLock()
        self._depth = 0
        self._pins: Counter[int] = Counter()
        self._pins_lock = threading.Lock()
        self._listeners: tuple[Callable[[Commit], None], ...] = ()
        self._unheard: deque[Commit] = deque()
        self._telling = threading.Lock()
        self._writing_base = threading.Lock()
        self._housekeeper = Housekeeper(self._keep_house)
        self._closed = False

    @classmethod
    def open(cls, directory: Path | None, *, open_file: Callable[[Path], DurableFile] = SystemFile) -> CommitSequence:
        """The sequence kept in a directory, with all that was committed; without a directory nothing is kept.

        Two sequences on one directory would ruin it: whoever opens it sees to it that there is one.
        """
        if directory is None:
            return cls()
        store, recovered = DurableStore.open(directory, open_file=open_file)
        sequence = cls(store)
        sequence.sequence = recovered.sequence
        sequence.times = CommitTimes(recovered.times)
        sequence._writers = {name: WriterState(**state) for name, state in recovered.writers.items()}
        sequence._tables = {
            table.id: MemoryTable(
                sequence,
                table.id,
                name=table.name,
                schema=table.schema,
                options=table.options,
                generation=table.generation(),
            )
            for table in recovered.tables.values()
        }
        if store.wants_base or any(table.settings.retention is not None for table in sequence._tables.values()):
            sequence._housekeeper.wake()
        return sequence

    def create_table(
        self, table_id: str, *, name: str, schema: Schema, options: Mapping[str, str] | None = None
    ) -> MemoryTable:
        """Make a table, durably. A table of that id that is there already is given back if its schema is the same."""
        with self.exclusive():
            known = self._tables.get(table_id)
            if known is not None:
                if known.schema.to_json() != schema.to_json():
                    raise _other_columns(name, known.schema, schema)
                return known
            table = MemoryTable(self, table_id, name=name, schema=schema, options=options or {})
            self._note("create", table=table_id, name=name, schema=schema.to_json(), options=table.given_options)
            self._tables = {**self._tables, table_id: table}
            for columns in table.settings.indexes:
                self.create_index(table, columns)
            return table

    def table(self, table_id: str) -> MemoryTable:
        found = self._tables.get(table_id)
        if found is None:
            raise NotFoundError.of("table", table_id, known=self._tables)
        return found

    def changed_at(self, table_id: str) -> datetime | None:
        """When a table was last changed, to the millisecond; None for never and for too long ago to tell."""
        table = self._tables.get(table_id)
        return None if table is None or not table.version else self.times.instant_of(table.version)

    def table_ids(self) -> Sequence[str]:
        return tuple(self._tables)

    def add_columns(self, table_id: str, schema: Schema) -> None:
        """Give a table the further columns that a schema has at its end, durably; the rows there have NULL in them.

        No commit, so there is no new number; snapshots taken before keep their columns. A table that has them already
        stays as it is. `StateError` for any other change.
        """
        with self.exclusive():
            table = self.table(table_id)
            known = table.schema
            if known.to_json() == schema.to_json():
                return
            width = len(known.columns)
            further = schema.columns[width:]
            if schema.columns[:width] != known.columns or schema.key != known.key or not _all_nullable(further):
                raise _other_columns(table.name, known, schema)
            self._note("columns", table=table_id, schema=schema.to_json())
            table.add_columns(schema)

    def drop_table(self, table_id: str) -> None:
        """Forget a table, durably; snapshots taken of it stay readable."""
        with self.exclusive():
            self.table(table_id)
            self._note("drop", table=table_id)
            self._tables = {known: table for known, table in self._tables.items() if known != table_id}

    def create_index(self, table: MemoryTable, columns: tuple[str, ...]) -> None:
        with self.exclusive():
            if columns not in table.indexes:
                self._note("index", table=table.id, columns=list(columns))
                table.add_index(columns)

    def drop_index(self, table: MemoryTable, columns: tuple[str, ...]) -> None:
        with self.exclusive():
            if columns in table.indexes and columns != table.schema.key:
                self._note("drop_index", table=table.id, columns=list(columns))
                table.remove_index(columns)

    def commit(self, *parts: Part) -> Commit:
        """Commit all parts as one record with one number, seen together.

        A part whose epoch is not above its writer's last is a repeat and is left out whole. When nothing is left to
        do there is no new number. On any error nothing of it is committed.
        """
        with self.exclusive():
            fresh, writers = self._without_repeats(parts)
            deltas = self._resolve(fresh)
            if not deltas and not writers:
                return Commit(self.sequence, {})
            number = self.sequence + 1
            writers = {name: replace(state, sequence=number) for name, state in writers.items()}
            if self._store is not None:
                self._store.append_commit(number, self._with_ids(deltas), writers)
            for table_id, delta in deltas.items():
                self._tables[table_id].apply(number, delta)
            self._writers = {**self._writers, **writers}
            self.sequence = number
            self.times.note(number)
            changed = {table_id: Changed(delta.rows.num_rows, len(delta.removed)) for table_id, delta in deltas.items()}
            done = Commit(number, changed)
            self._unheard.append(done)
            for table_id in deltas:
                self._tables[table_id].vacuum(self._floor(table_id))
                self._note_expiry(self._tables[table_id])
        return done

    def write(self, table: MemoryTable, write: Write, epoch: Epoch | None = None) -> Commit:
        """A commit of one write."""
        return self.commit(Part(writes=((table, write),), epoch=epoch))

    @property
    def logged(self) -> bool:
        """Whether commits are kept in a log, so that `write_rows` can't be used."""
        return self._store is not None

    def write_rows(
        self, table: MemoryTable, apply: Callable[[PointWriter, int, _Given], _Done], given: _Given
    ) -> _Done:
        """A commit of a few rows, made by `apply` with the table's writer and the number; it says what it did.

        Much cheaper than `commit`, and only for commits that nobody has to find in a log. No other commit comes in
        between. There is no new number when `apply` gives None or UNCHANGED.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the commit sequence is closed")
            if self._tables.get(table.id) is not table or table.writer is None:
                raise NotFoundError.of("table", table.name, known=(known.name for known in self._tables.values()))
            number = self.sequence + 1
            done = apply(table.writer, number, given)
            if done is not None and done is not UNCHANGED:
                self.sequence = number
                self.times.note(number)
                if self._listeners:
                    self._unheard.append(Commit(number, {table.id: done}))
                table.tidy(self._floor)
                if table.settings.retention is not None:
                    self._note_expiry(table)
            outermost = not self._depth
        if outermost and self._unheard:
            self._tell()
        return done

    def writer(self, name: str) -> WriterState | None:
        return self._writers.get(name)

    def positions(self) -> list[Mapping[str, Any]]:
        """Those of all writers."""
        return [state.position for state in self._writers.values()]

    def forget_writer(self, name: str) -> None:
        """Drop a writer's epoch and position, durably. Its next epoch may have any number."""
        with self.exclusive():
            if name not in self._writers:
                return
            self._note("forget", writer=name)
            self._writers = {known: state for known, state in self._writers.items() if known != name}

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold off all other commits, for reading something and committing what follows from it. Re-entrant."""
        with self._lock:
            if self._closed:
                raise ClosedError("the commit sequence is closed")
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                outermost = self._depth == 0
        if outermost:
            self._tell()
            if self._store is not None and self._store.wants_base:
                self._housekeeper.wake()

    def pin(self, sequence: int | None = None) -> Pin:
        """Keep versions at or after a number (the present one) readable. Does not wait for a commit under way."""
        with self._pins_lock:
            number = self.sequence if sequence is None else sequence
            self._pins[number] += 1
        return Pin(self, number)

    def snapshot(self, table_ids: Iterable[str], sequence: int | None = None) -> Mapping[str, MemorySnapshot]:
        """Snapshots of several tables at one number: a state that was, of all of them."""
        tables = [self.table(table_id) for table_id in table_ids]
        with self.pin(sequence) as pin:
            return {table.id: table.snapshot(pin.sequence) for table in tables}

    def listen(self, callback: Callable[[Commit], None]) -> Callable[[], None]:
        """Have a callback called after each commit, in order, outside of the lock; gives what ends that.

        The callback runs in a committing thread, so it should only pass the news on. An exception is logged.
        """
        with self._pins_lock:
            self._listeners = (*self._listeners, callback)

        def stop() -> None:
            with self._pins_lock:
                self._listeners = tuple(known for known in self._listeners if known is not callback)

        return stop

    def close(self) -> None:
        """End it. Snapshots stay readable; every further commit is refused."""
        self._housekeeper.close()
        with self._writing_base, self._lock:
            self._closed = True
            if self._store is not None:
                self._store.close()

    def write_base(self) -> None:
        """Write the state of all tables down, so that recovery needs no log from before. Commits go on meanwhile.

        Done by itself, in a thread of its own, when the log has grown enough. Raises `StateError` when it can't be
        written; the base before it and the log hold everything then.
        """
        store = self._store
        if store is None:
            return
        with self._writing_base:
            with self.exclusive():
                tables = [table.to_write(self._floor(table.id)) for table in self._tables.values()]
                oldest = min((table.floor for table in tables), default=self.sequence)
                draft = store.begin_base(self.sequence, self._writers, self.times.since(oldest))
            store.finish_base(draft, tables)

    def _keep_house(self) -> float | None:
        """Write a base if the log has grown, remove rows that have become too old; seconds until some will have.

        What fails is tried again: a base when the log has grown further, a removal a little later.
        """
        try:
            if self._store is not None and self._store.wants_base:
                self.write_base()
        except (StateError, ClosedError) as error:
            _log.warning("%s", error)
        waits = [self._remove_expired(table) for table in tuple(self._tables.values())]
        return min((wait for wait in waits if wait is not None), default=None)

    def _remove_expired(self, table: MemoryTable) -> float | None:
        """Seconds until rows of the table have become too old; None when none will."""
        if table.settings.retention is None:
            return None
        try:
            with self.exclusive():
                if self._tables.get(table.id) is not table:
                    return None
                leaving = table.expired()
                if leaving is not None:
                    self.write(table, leaving)
                seconds = table.seconds_to_expiry()
                table.expiry_is_due = seconds is not None
        except ClosedError:
            return None
        except StateError as error:
            _log.warning("%s", error)
            return _PAUSE_AFTER_FAILURE
        return seconds

    def _note_expiry(self, table: MemoryTable) -> None:
        """Rows that come later leave later, so only the first ones have to be told of."""
        if table.settings.retention is not None and not table.expiry_is_due:
            table.expiry_is_due = True
            self._housekeeper.wake()

    def _without_repeats(self, parts: Sequence[Part]) -> tuple[list[Part], dict[str, WriterState]]:
        fresh: list[Part] = []
        writers: dict[str, WriterState] = {}
        for part in parts:
            epoch = part.epoch
            if epoch is not None:
                last = writers.get(epoch.writer) or self._writers.get(epoch.writer)
                if last is not None and epoch.number <= last.epoch:
                    continue
                writers[epoch.writer] = WriterState(epoch.number, part.position, dict(part.reads), self.sequence)
            fresh.append(part)
        return fresh, writers

    def _resolve(self, parts: Sequence[Part]) -> dict[str, Delta]:
        stages: dict[str, Stage] = {}
        for part in parts:
            for table, write in part.writes:
                if not isinstance(table, MemoryTable) or self._tables.get(table.id) is not table:
                    raise NotFoundError.of("table", table.name, known=(known.name for known in self._tables.values()))
                stage = stages.get(table.id)
                if stage is None:
                    stage = stages[table.id] = table.stage()
                stage.apply(write)
        deltas = {table_id: stage.finish() for table_id, stage in stages.items()}
        return {table_id: delta for table_id, delta in deltas.items() if delta}

    def _with_ids(self, deltas: Mapping[str, Delta]) -> dict[str, tuple[Delta, Integers]]:
        return {table_id: (delta, self._tables[table_id].ids_of(delta.removed)) for table_id, delta in deltas.items()}

    def _note(self, kind: str, **header: object) -> None:
        if self._store is not None:
            self._store.append(kind, header)

    def _floor(self, table_id: str) -> int:
        """The oldest number at which somebody may still read a table."""
        with self._pins_lock:
            pinned = min(self._pins, default=self.sequence)
        reads = [state.reads[table_id] for state in self._writers.values() if table_id in state.reads]
        return min(pinned, *reads, self.sequence) if reads else min(pinned, self.sequence)

    def _unpin(self, sequence: int) -> None:
        with self._pins_lock:
            self._pins[sequence] -= 1
            if not self._pins[sequence]:
                del self._pins[sequence]

    def _tell(self) -> None:
        """Call the listeners for every commit they haven't heard of; by one thread at a time, so in order."""
        while self._unheard:
            if not self._telling.acquire(blocking=False):
                return
            try:
                while self._unheard:
                    commit = self._unheard.popleft()
                    for listener in self._listeners:
                        try:
                            listener(commit)
                        except Exception:  # noqa: BLE001 - the commit stands whatever its listeners do
                            _log.exception("a listener of commits failed")
            finally:
                self._telling.release()


def _all_nullable(columns: Iterable[Column]) -> bool:
    return all(column.nullable for column in columns)


def _other_columns(name: str, stored: Schema, wanted: Schema) -> StateError:
    return StateError(
        f'table "{name}" is stored with other columns',
        detail=f"stored: {_shown(stored)}; wanted: {_shown(wanted)}",
        hint="CREATE OR REPLACE builds it anew",
        code="schema-mismatch",
    )


def _shown(schema: Schema) -> str:
    columns = ", ".join(
        f"{column.name} {column.sql_type}{'' if column.nullable else ' NOT NULL'}" for column in schema.columns
    )
    return f"({columns}) key ({', '.join(schema.key)})"
