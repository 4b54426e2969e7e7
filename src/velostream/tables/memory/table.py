"""The memory table: columnar rows with their history, a key index, snapshots without locks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from velostream.errors import TableError
from velostream.model.change import ChangeBatch, Epoch, Mode, Write
from velostream.model.expression import Expression
from velostream.model.options import Option
from velostream.model.schema import Schema
from velostream.tables.base import KeyValue, Row, Table, TableCapabilities, TableSpec, TableWrites
from velostream.tables.memory.column_index import ColumnIndex
from velostream.tables.memory.condition import Plan, PlanCache
from velostream.tables.memory.conform import stored_schema
from velostream.tables.memory.encode import NeedsArrow, RowEncoder
from velostream.tables.memory.generation import Changed, Delta, Generation
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import key_normaliser
from velostream.tables.memory.point import PointWriter
from velostream.tables.memory.rows import RowLayout
from velostream.tables.memory.settings import OPTIONS, TableSettings
from velostream.tables.memory.snapshot import MemorySnapshot
from velostream.tables.memory.stage import Stage
from velostream.tables.memory.statistics import ColumnStatistics
from velostream.tables.memory.store import TableToWrite
from velostream.tables.memory.tail import Patch

if TYPE_CHECKING:
    from velostream.tables.memory.sequence import CommitSequence

_log = logging.getLogger(__name__)

_FEWEST_DEAD_ROWS = 4096
"""Fewer removed rows than that are never worth a renumbering."""
_SMALLEST_PART_SPILLED = 16
"""Columns that take less than that part of the limit are not what is too large."""
_MICROSECOND = timedelta(microseconds=1)
_MOST_SINGLE_ROWS = 64
"""More rows at once are faster as columns."""


class Content(NamedTuple):
    """The rows of a table and what they look like, put in place together."""

    generation: Generation
    schema: Schema
    layout: RowLayout


class MemoryTable(Table):
    """A table of a `CommitSequence`, which makes it, logs its commits and publishes them."""

    kind: ClassVar[str] = "inMemory"
    options: ClassVar[tuple[Option, ...]] = OPTIONS
    capabilities: ClassVar[TableCapabilities] = TableCapabilities(
        insert=True,
        update=True,
        delete=True,
        upsert=True,
        lookup=True,
        conditions=True,
        epochs=True,
        transactions=True,
        changes=True,
        versions=True,
        durable=True,
        variants=True,
    )

    def __init__(
        self,
        sequence: CommitSequence,
        table_id: str,
        *,
        name: str,
        schema: Schema,
        options: Mapping[str, str],
        generation: Generation | None = None,
    ) -> None:
        """Called by the commit sequence only; `generation` is what it has recovered."""
        self.id = table_id
        self.name = name
        self.schema = schema
        self.given_options = dict(options)
        self.key_normaliser = key_normaliser([schema.column(name).type for name in schema.key]) if schema.key else None
        self.settings = TableSettings.of(options, schema)
        self._sequence = sequence
        if generation is None:
            self.settings.prepare_spill()
            generation = Generation(stored_schema(schema), schema.key, form=self.settings.form)
        self._content = Content(generation, schema, RowLayout.of(schema.arrow))
        self._newest: MemorySnapshot | None = None
        self._closing: Callable[[], None] | None = None
        # Rows of a log can't be taken one by one.
        self._encoder = None if sequence.logged else RowEncoder.of(schema)
        self.writer = self._writer_of(generation)
        """For the commit sequence, under its lock; None for tables that take columns only."""
        self.plans = PlanCache()
        self._statistics: tuple[int, ColumnStatistics] | None = None
        self.expiry_is_due = False
        """Whether the commit sequence knows that rows will leave; it looks again when they have."""

    @classmethod
    def open(cls, spec: TableSpec) -> MemoryTable:
        """A table with a commit sequence of its own. The tables of a connection share one instead."""
        from velostream.tables.memory.sequence import CommitSequence

        sequence = CommitSequence.open(spec.directory)
        table = sequence.create_table(spec.id, name=spec.name, schema=spec.schema, options=spec.options)
        table._closing = sequence.close  # noqa: SLF001 - its own class
        return table

    @property
    def _generation(self) -> Generation:
        return self._content.generation

    @property
    def version(self) -> int:
        return self.snapshot().version

    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        done = self._sequence.write(self, write, epoch)
        return done.sequence if self.id in done.changed else self.version

    @property
    def commit_group(self) -> object:
        return self._sequence

    def commit_together(self, parts: Sequence[TableWrites], epoch: Epoch | None = None) -> None:
        from velostream.tables.memory.sequence import Part

        with self._sequence.exclusive():
            last = None if epoch is None else self._sequence.writer(epoch.writer)
            if epoch is not None and last is not None and epoch.number <= last.epoch:
                return
            for part in parts:
                if part.read_at is not None and part.table.version > part.read_at:
                    raise TableError.conflict(part.table.name)
            writes = [(part.table, write) for part in parts for write in part.writes]
            self._sequence.commit(Part(writes=writes, epoch=epoch))

    def exclusive(self) -> AbstractContextManager[None]:
        return self._sequence.exclusive()

    def snapshot(self, version: int | None = None) -> MemorySnapshot:
        if version is None:
            newest = self._newest
            if newest is not None and newest.sequence == self._sequence.sequence:
                return newest
        while True:
            sequence, content = self._sequence.sequence, self._content
            if version is not None:
                if version > sequence:
                    raise TableError(
                        f'version {version} of table "{self.name}" does not exist yet',
                        detail=f"newest version: {self.version}",
                        code="unknown-version",
                    )
                sequence = version
            generation = content.generation
            oldest = max(generation.floor, self._forgotten_before(generation))
            if sequence >= oldest:
                break
            if version is not None:
                raise TableError.version_gone(self.name, version, oldest=oldest)
        snapshot = MemorySnapshot(self, content, sequence)
        if version is None:
            self._newest = snapshot
            if self._content is not content:
                # Columns were added meanwhile, which whoever asks from now on is to see.
                self._newest = None
        return snapshot

    def version_at(self, instant: datetime) -> int:
        number = self._sequence.times.number_at(instant)
        generation = self._generation
        oldest = max(generation.floor, self._forgotten_before(generation))
        # Version 0 is the table before its first commit.
        if number is None or number < oldest or not generation.journal.version_at(number):
            raise TableError.no_version_at(self.name, instant)
        return number

    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        end = self.snapshot(until)
        if since > end.sequence:
            raise TableError(
                f'version {since} of table "{self.name}" does not exist yet',
                detail=f"newest version: {end.version}",
                code="unknown-version",
            )
        oldest = self._forgotten_before(self._generation)
        if since < oldest:
            raise TableError.version_gone(self.name, since, oldest=oldest)
        return end.changes_since(since)

    def compile_condition(self, condition: Expression) -> Plan:
        """Raises `CannotCompile` for what only Spark evaluates as Spark does."""
        return self.plans.plan(self, condition)

    def get(self, key: KeyValue) -> Row | None:
        """The newest row of a key."""
        newest = self._newest
        if newest is None or newest.sequence != self._sequence.sequence:
            newest = self.snapshot()
        return newest.get(key)

    def contains(self, key: KeyValue) -> bool:
        newest = self._newest
        if newest is None or newest.sequence != self._sequence.sequence:
            newest = self.snapshot()
        return newest.contains(key)

    def write_records(self, mode: Mode, records: Sequence[Mapping[str, Any]]) -> bool:
        encoder = self._encoder
        if encoder is None or len(records) > _MOST_SINGLE_ROWS:
            return False
        try:
            rows = [encoder.values(record) for record in records]
            put = PointWriter.append if mode is Mode.APPEND else PointWriter.upsert
            self._sequence.write_rows(self, put, rows)
        except NeedsArrow:
            return False
        return True

    def update_records(self, records: Sequence[Mapping[str, Any]]) -> int | None:
        encoder = self._encoder
        if encoder is None or len(records) > _MOST_SINGLE_ROWS:
            return None
        try:
            if len(records) == 1:
                done = self._sequence.write_rows(self, PointWriter.update_one, encoder.changes(records[0]))
                return 0 if done is None else 1
            changes = [encoder.changes(record) for record in records]
        except NeedsArrow:
            return None
        found = 0

        def update(writer: PointWriter, number: int, given: Sequence[tuple[Hashable, Patch]]) -> Changed:
            nonlocal found
            found = sum(writer.holds(key) for key, _ in given)
            wanted: dict[Hashable, Patch] = {}
            for key, values in given:
                wanted[key] = wanted[key] | values if key in wanted else values
            return writer.update(number, wanted)

        self._sequence.write_rows(self, update, changes)
        return found

    def delete_keys(self, keys: Sequence[KeyValue]) -> int | None:
        encoder = self._encoder
        if encoder is None or len(keys) > _MOST_SINGLE_ROWS:
            return None
        try:
            wanted = dict.fromkeys(map(encoder.given_key, keys))
        except NeedsArrow:
            return None
        return self._sequence.write_rows(self, PointWriter.delete, wanted).removed

    def __len__(self) -> int:
        return len(self.snapshot())

    def create_index(self, columns: Sequence[str]) -> None:
        """Index these columns now and from now on; kept over restarts. An index that exists already is no error."""
        self._sequence.create_index(self, tuple(self.schema.column(name).name for name in columns))

    def drop_index(self, columns: Sequence[str]) -> None:
        """Give up an index, for good; lookups by these columns work on, and may make one again."""
        self._sequence.drop_index(self, tuple(self.schema.column(name).name for name in columns))

    def stats(self) -> Mapping[str, Any]:
        """What there is to know about the table without reading it."""
        generation = self._generation
        return {
            "rows": generation.alive,
            "bytes": generation.nbytes,
            "spilled_bytes": generation.stored.chunks.mapped_bytes,
            "version": self.version,
            "chunks": len(generation.stored.chunks.batches),
            "commits": len(generation.journal),
            "dead_rows": generation.length - generation.alive,
            "queries": self.plans.hits + self.plans.misses,
            "index_hits": self.plans.by_index,
            "plan_cache_hits": self.plans.hits,
            "plan_cache_misses": self.plans.misses,
            "indexes": [list(columns) for columns in self.indexes],
            "columns": self._column_statistics(),
        }

    @property
    def indexes(self) -> tuple[tuple[str, ...], ...]:
        """Column sets that are found without a scan: the key first."""
        key = (self.schema.key,) if self.schema.key else ()
        return key + tuple(self._generation.secondary)

    def index_of(self, generation: Generation, columns: tuple[str, ...]) -> ColumnIndex:
        """The index of a generation, made now if there is none yet. Whoever asks it has it grow first."""
        index = generation.secondary.get(columns)
        if index is None:
            with self._sequence.exclusive():
                index = generation.index_on(columns)
        return index

    def stage(self) -> Stage:
        """For the commit sequence, under its lock."""
        return Stage(self.name, self.schema, self._generation)

    def apply(self, sequence: int, delta: Delta) -> None:
        """For the commit sequence, under its lock, once the commit is in the log."""
        self._generation.apply(sequence, delta)
        self._keep_within_limit()

    def tidy(self, floor: Callable[[str], int]) -> None:
        """For the commit sequence, under its lock, after a commit of a few rows; `floor` gives that of a table."""
        generation = self._generation
        if generation.length > 2 * generation.alive and generation.length - generation.alive >= _FEWEST_DEAD_ROWS:
            self.vacuum(floor(self.id))
        if self.settings.memory_limit is not None and not generation.stored.rows:
            self._keep_within_limit()

    def _writer_of(self, generation: Generation) -> PointWriter | None:
        return None if self._encoder is None else PointWriter(self.name, generation, self._encoder)

    def ids_of(self, positions: Integers) -> Integers:
        """Names of rows that the log can use. For the commit sequence, under its lock."""
        return self._generation.ids.of_positions(positions)

    def to_write(self, floor: int) -> TableToWrite:
        """What a base says of this table. For the commit sequence, under its lock."""
        generation = self._generation
        floor = max(self._kept_from(floor), generation.floor)
        return TableToWrite(
            id=self.id,
            name=self.name,
            schema=self.schema.to_json(),
            options=self.given_options,
            indexes=[list(columns) for columns in generation.secondary],
            version=generation.journal.version_at(self._sequence.sequence),
            floor=floor,
            floor_version=generation.journal.version_at(floor),
            contents=generation.contents(),
        )

    def add_index(self, columns: tuple[str, ...]) -> None:
        """For the commit sequence, under its lock."""
        self._generation.index_on(columns)

    def remove_index(self, columns: tuple[str, ...]) -> None:
        """For the commit sequence, under its lock."""
        self._generation.drop_index(columns)

    def add_columns(self, schema: Schema) -> None:
        """Go on with a schema that has further columns at its end; the rows there are have NULL in them.

        For the commit sequence, under its lock, once the columns are in the log.
        """
        generation = self._generation.with_columns(stored_schema(schema))
        self.schema = schema
        self._content = Content(generation, schema, RowLayout.of(schema.arrow))
        self._encoder = None if self._sequence.logged else RowEncoder.of(schema)
        self.writer = self._writer_of(generation)
        self._newest = self._statistics = None
        self._keep_within_limit()

    def vacuum(self, floor: int) -> None:
        """Give back the rows nobody at `floor` or later can see, if they are worth it. For the commit sequence."""
        generation = self._generation
        floor = self._kept_from(floor)
        unseen = generation.journal.removed_until(floor)
        if unseen >= _FEWEST_DEAD_ROWS and unseen > generation.length - unseen:
            self._content = self._content._replace(generation=generation.renumbered(floor))
            self.writer = self._writer_of(self._generation)
            self._newest = self._statistics = None
            self._keep_within_limit()

    def expired(self) -> Write | None:
        """The rows that are older than the retention, as the write that removes them. For the commit sequence."""
        retention = self.settings.retention
        if retention is None:
            return None
        generation = self._generation
        positions = generation.older_than(time.time_ns() // 1000 - retention // _MICROSECOND)
        if not len(positions):
            return None
        return Write(Mode.DELETE, generation.chunks.take(positions, self.schema.key or None))

    def seconds_to_expiry(self) -> float | None:
        """How long until the oldest row leaves; None when none will. For the commit sequence."""
        oldest, retention = self._generation.oldest_at, self.settings.retention
        if oldest is None or retention is None:
            return None
        return max(0.0, oldest / 1e6 + retention.total_seconds() - time.time())

    def _keep_within_limit(self) -> None:
        """Put rows into mapped files when they take too much memory; if that fails they stay."""
        limit = self.settings.memory_limit
        generation = self._generation
        if limit is None or generation.nbytes <= limit:
            return
        if generation.stored.nbytes < limit // _SMALLEST_PART_SPILLED:
            return
        try:
            generation.spill(self.settings.spill_path)
        except OSError as error:
            _log.warning('table "%s" takes more memory than its limit: %s', self.name, error)
        # What is kept of the newest version would hold on to what is in files now.
        self._newest = self._statistics = None

    def _column_statistics(self) -> ColumnStatistics:
        """Those of the newest version; what has been worked out is kept until there is a newer one."""
        snapshot = self.snapshot()
        known = self._statistics
        if known is None or known[0] != snapshot.version:
            known = self._statistics = (snapshot.version, ColumnStatistics(snapshot))
        return known[1]

    def _kept_from(self, floor: int) -> int:
        """The oldest number to keep readable: what somebody needs and `history` says, within `history.max`."""
        journal, history = self._generation.journal, self.settings.history
        kept = min(floor, journal.nth_last(history)) if history else floor
        return max(kept, self._forgotten_before(self._generation))

    def _forgotten_before(self, generation: Generation) -> int:
        """Versions before this number are out of `history.max`, whether their rows are still there or not."""
        most = self.settings.history_max
        return 0 if most is None else generation.journal.nth_last(most)

    def close(self) -> None:
        """Nothing is held beyond the commit sequence, which is closed if it is this table's alone."""
        if self._closing is not None:
            self._closing()
