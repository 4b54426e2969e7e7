"""The memory table: columnar rows with their history, a key index, snapshots without locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from velostream.errors import TableError
from velostream.model.change import ChangeBatch, Epoch, Mode, Write
from velostream.model.expression import Expression
from velostream.model.options import Option, Options, OptionType
from velostream.model.schema import Schema
from velostream.tables.base import KeyValue, Row, Table, TableCapabilities, TableSpec, TableWrites
from velostream.tables.memory.condition import Plan, PlanCache
from velostream.tables.memory.conform import stored_schema
from velostream.tables.memory.encode import NeedsArrow, RowEncoder
from velostream.tables.memory.generation import Delta, Generation, RowDelta
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.index import PositionIndex
from velostream.tables.memory.keys import key_normaliser
from velostream.tables.memory.point import PointWriter
from velostream.tables.memory.rows import RowLayout
from velostream.tables.memory.snapshot import MemorySnapshot
from velostream.tables.memory.stage import Stage
from velostream.tables.memory.store import TableToWrite

if TYPE_CHECKING:
    from velostream.tables.memory.sequence import CommitSequence

_FEWEST_DEAD_ROWS = 4096
"""Fewer removed rows than that are never worth a renumbering."""
_MOST_SINGLE_ROWS = 64
"""More rows at once are faster as columns."""


class MemoryTable(Table):
    """A table of a `CommitSequence`, which makes it, logs its commits and publishes them."""

    kind: ClassVar[str] = "inMemory"
    options: ClassVar[tuple[Option, ...]] = (
        Option("history", "how many versions before the newest stay readable", OptionType.INTEGER, default="0"),
        Option("index", "columns to index: a,b is one index of two columns, a;b are two indexes"),
    )
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
        checked = Options(options, self.options)
        self.id = table_id
        self.name = name
        self.schema = schema
        self.given_options = dict(options)
        self.key_normaliser = key_normaliser([schema.column(name).type for name in schema.key]) if schema.key else None
        self.declared_indexes = _index_columns(checked.text("index") or "", schema)
        self._history = checked.integer("history") or 0
        self._sequence = sequence
        self._generation = Generation(stored_schema(schema), schema.key) if generation is None else generation
        self._newest: MemorySnapshot | None = None
        self._closing: Callable[[], None] | None = None
        self.layout = RowLayout.of(schema.arrow)
        self._encoder = RowEncoder.of(schema)
        self.plans = PlanCache()

    @classmethod
    def open(cls, spec: TableSpec) -> MemoryTable:
        """A table with a commit sequence of its own. The tables of a connection share one instead."""
        from velostream.tables.memory.sequence import CommitSequence

        sequence = CommitSequence.open(spec.directory)
        table = sequence.create_table(spec.id, name=spec.name, schema=spec.schema, options=spec.options)
        table._closing = sequence.close  # noqa: SLF001 - its own class
        return table

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
            sequence = self._sequence.sequence
            if version is not None:
                if version > sequence:
                    raise TableError(
                        f'version {version} of table "{self.name}" does not exist yet',
                        detail=f"newest version: {self.version}",
                        code="unknown-version",
                    )
                sequence = version
            generation = self._generation
            if sequence >= generation.floor:
                break
            if version is not None:
                raise TableError.version_gone(self.name, version, oldest=generation.floor)
        snapshot = MemorySnapshot(self, generation, sequence)
        if version is None:
            self._newest = snapshot
        return snapshot

    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        end = self.snapshot(until)
        if since > end.sequence:
            raise TableError(
                f'version {since} of table "{self.name}" does not exist yet',
                detail=f"newest version: {end.version}",
                code="unknown-version",
            )
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
            return self._sequence.write_rows(self, lambda: self._point_writer(encoder).put(mode, rows))
        except NeedsArrow:
            return False

    def update_records(self, records: Sequence[Mapping[str, Any]]) -> int | None:
        encoder = self._encoder
        if encoder is None or len(records) > _MOST_SINGLE_ROWS:
            return None
        found = 0

        def resolve() -> RowDelta | None:
            nonlocal found
            delta, found = self._point_writer(encoder).update(records)
            return delta

        try:
            return found if self._sequence.write_rows(self, resolve) else None
        except NeedsArrow:
            return None

    def delete_keys(self, keys: Sequence[KeyValue]) -> int | None:
        encoder = self._encoder
        if encoder is None or len(keys) > _MOST_SINGLE_ROWS:
            return None
        normalise = self.key_normaliser
        try:
            wanted = dict.fromkeys(keys if normalise is None else map(normalise, keys))
        except TypeError:
            return None
        removed = 0

        def resolve() -> RowDelta | None:
            nonlocal removed
            delta = self._point_writer(encoder).delete(wanted)
            removed = 0 if delta is None else len(delta.removed)
            return delta

        return removed if self._sequence.write_rows(self, resolve) else None

    def _point_writer(self, encoder: RowEncoder) -> PointWriter:
        return PointWriter(self.name, self._generation, encoder)

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
            "version": self.version,
            "chunks": len(generation.stored.chunks.batches),
            "commits": len(generation.journal),
            "dead_rows": generation.length - generation.alive,
            "plan_cache_hits": self.plans.hits,
            "plan_cache_misses": self.plans.misses,
            "indexes": [list(columns) for columns in self.indexes],
        }

    @property
    def indexes(self) -> tuple[tuple[str, ...], ...]:
        """Column sets that are found without a scan: the key first."""
        key = (self.schema.key,) if self.schema.key else ()
        return key + tuple(self._generation.secondary)

    def index_of(self, generation: Generation, columns: tuple[str, ...]) -> PositionIndex:
        """The index of a generation, made now if there is none yet."""
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

    def apply_rows(self, sequence: int, delta: RowDelta) -> None:
        """Like `apply`, of a commit that needs no log."""
        self._generation.apply_rows(sequence, delta)

    @property
    def may_be_vacuumed(self) -> bool:
        """Whether there are so many removed rows that `vacuum` is worth asking."""
        generation = self._generation
        dead = generation.length - generation.alive
        return dead >= _FEWEST_DEAD_ROWS and dead > generation.alive

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

    def vacuum(self, floor: int) -> None:
        """Give back the rows nobody at `floor` or later can see, if they are worth it. For the commit sequence."""
        generation = self._generation
        floor = self._kept_from(floor)
        unseen = generation.journal.removed_until(floor)
        if unseen >= _FEWEST_DEAD_ROWS and unseen > generation.length - unseen:
            self._generation = generation.renumbered(floor)
            self._newest = None

    def _kept_from(self, floor: int) -> int:
        """The oldest number to keep readable: what somebody needs, and what the option `history` says."""
        return min(floor, self._generation.journal.nth_last(self._history)) if self._history else floor

    def close(self) -> None:
        """Nothing is held beyond the commit sequence, which is closed if it is this table's alone."""
        if self._closing is not None:
            self._closing()


def _index_columns(text: str, schema: Schema) -> list[tuple[str, ...]]:
    """`a,b;c` is an index on a and b, and one on c."""
    indexes = [[name.strip() for name in part.split(",")] for part in text.split(";") if part.strip()]
    return [tuple(schema.column(name).name for name in names) for names in indexes]
