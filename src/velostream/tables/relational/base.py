"""The door of the relational room: a table in a database, for any kind that gives a dialect.

A kind subclasses `RelationalTable` and says how its `Dialect` is made from options. Next to the rows the store holds
three tables of ours (see `metadata`), written in the same transaction, so that data, version, epoch and log of changes
are never apart.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from velostream.errors import NotFoundError, TableError, UnsupportedError
from velostream.model.change import ChangeBatch, Epoch, Write
from velostream.model.expression import Expression
from velostream.model.grouping import Grouping
from velostream.model.options import Option, Options, OptionType
from velostream.tables.base import KeyValue, Origin, Row, Table, TableCapabilities, TableSpec, TableWrites
from velostream.tables.change_log import net_changes
from velostream.tables.memory.keys import key_values
from velostream.tables.memory.values import python_value
from velostream.tables.relational.condition import RelationalCondition
from velostream.tables.relational.database import Database
from velostream.tables.relational.dialect import Dialect, DriverConnection
from velostream.tables.relational.layout import StoredColumn
from velostream.tables.relational.metadata import Metadata, TableState
from velostream.tables.relational.opening import Opened, Opening
from velostream.tables.relational.pool import PoolSettings
from velostream.tables.relational.reading import Reader
from velostream.tables.relational.snapshot import RelationalSnapshot
from velostream.tables.relational.writing import DuplicateRowError, TableWriter
from velostream.tables.stored import STORE_OPTIONS, WRITABLE, StoredTable, is_read_only, pool_size, retry_timeout

RELATIONAL_OPTIONS: tuple[Option, ...] = (
    Option("url", "where the store is, as a SQLAlchemy-style URL"),
    *STORE_OPTIONS,
    Option("pool.max.idle", "how many connections are kept while nobody uses them; all by default", OptionType.INTEGER),
    Option("pool.validation.query", "what a connection that lay idle must answer before it is used again"),
    Option("query.timeout", "how long to wait for a connection or a lock", OptionType.DURATION, default="30s"),
)
"""Options every relational kind knows."""


class RelationalTable(StoredTable):
    """A table of a relational store. Commits are serialised by a lock on the table's entry in the store."""

    options: ClassVar[tuple[Option, ...]] = RELATIONAL_OPTIONS
    capabilities: ClassVar[TableCapabilities] = replace(WRITABLE, transactions=True)

    def __init__(self, database: Database, opened: Opened, *, name: str, options: Options) -> None:
        """Called by `open` only."""
        self.name = name
        self.schema = opened.layout.schema
        self._database = database
        self._dialect = database.dialect
        self._layout = opened.layout
        self._reader = Reader(database.dialect, opened.layout)
        self._reader.conditions.indexes = opened.indexes
        self._metadata = Metadata(database.dialect)
        self._id = opened.id
        self._has_entry = opened.state is not None
        self.origin = None if opened.state is None else Origin(opened.state.id, opened.state.made)
        self._read_only = is_read_only(options)
        self._history = options.integer("history") or 0
        self._newest = RelationalSnapshot(database, self._reader, name=name, version=0)
        """For reads that don't ask for the version."""
        self._closed = False

    @classmethod
    @abstractmethod
    def dialect_of(cls, spec: TableSpec, options: Options) -> Dialect:
        """The store that the options name, unconnected. Raises `OptionError` and `StoreError.missing_driver`."""

    @classmethod
    def open(cls, spec: TableSpec) -> Self:
        options = Options(spec.options, cls.options)
        dialect = cls.dialect_of(spec, options)
        database = Database.shared(dialect, pool_settings(options))
        try:
            opened = Opening(cls.kind, spec, options, database).open()
        except BaseException:
            database.release()
            raise
        return cls(database, opened, name=spec.name, options=options)

    @property
    def version(self) -> int:
        """Always 0 for a table that was never ours and is attached read-only: nobody counts its changes."""
        return self._database.read(self._version) if self._has_entry else 0

    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        return self._commit_all([TableWrites(self, (write,))], epoch)[self._layout.name]

    @property
    def commit_group(self) -> object:
        return self._database

    def commit_together(self, parts: Sequence[TableWrites], epoch: Epoch | None = None) -> None:
        self._commit_all(parts, epoch)

    def follow(self) -> int:
        self._refuse_if_read_only("changes")

        def start(connection: DriverConnection) -> int:
            state = self._locked_state(connection)
            if state.followed_from is None:
                self._metadata.set_followed_from(connection, self._layout.name, state.version)
            return state.version

        return self._database.write(start, repeatable=True)

    def stamp(self) -> str | None:
        version = self.version
        with self._database.watching() as connection:
            return self._dialect.stamp(connection, self._layout, version)

    def get(self, key: KeyValue) -> Row | None:
        return self._newest.get(key)

    def contains(self, key: KeyValue) -> bool:
        return self._newest.contains(key)

    def snapshot(self, version: int | None = None) -> RelationalSnapshot:
        newest = self.version
        self._check_newest(version, newest)
        return RelationalSnapshot(self._database, self._reader, name=self.name, version=newest)

    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        if not self._has_entry:
            self._refuse_if_read_only("changes")

        def read(connection: DriverConnection) -> ChangeBatch:
            state = self._state(connection)
            end = self._end_of_changes(since, until, newest=state.version, followed_from=state.followed_from)
            logged = self._metadata.logged(connection, self._layout.name, since, end)
            return ChangeBatch(end, net_changes(self.schema, logged).signed())

        return self._database.read(read, one_state=True)

    def compile_condition(self, condition: Expression) -> RelationalCondition:
        """Raises `CannotCompile` for what only Spark evaluates as Spark does."""
        return self._reader.conditions.compile(condition)

    def compile_grouping(self, grouping: Grouping) -> str | None:
        statement = self._reader.grouping(grouping)
        return None if statement is None else statement.text

    def create_index(self, columns: Sequence[str]) -> None:
        self._refuse_if_read_only("indexes")
        stored = self._layout.select(columns)
        statement = self._dialect.create_index_statement(self._layout, self._index_name(stored), stored)
        self._database.write(lambda connection: self._dialect.run(connection, statement), repeatable=True)
        self._reader.conditions.indexes |= {tuple(column.name for column in stored)}

    def drop_index(self, columns: Sequence[str]) -> None:
        self._refuse_if_read_only("indexes")
        stored = self._layout.select(columns)
        statement = self._dialect.drop_index_statement(self._layout, self._index_name(stored))
        self._database.write(lambda connection: self._dialect.run(connection, statement), repeatable=True)
        self._reader.conditions.indexes -= {tuple(column.name for column in stored)}

    def stats(self) -> Mapping[str, Any]:
        return {**super().stats(), "indexes": sorted(map(list, self._reader.conditions.indexes))}

    def exclusive(self) -> AbstractContextManager[None]:
        self._refuse_if_read_only("update")
        return self._database.exclusive(self._lock)

    def drop(self) -> None:
        if self._read_only:
            return

        def remove(connection: DriverConnection) -> None:
            state = self._metadata.state(connection, self._layout.name, lock=True)
            if state is None or state.id != self._id:
                return
            self._metadata.remove(connection, self._layout.name)
            if state.made:
                for statement in self._dialect.drop_statements(self._layout):
                    self._dialect.run(connection, statement)

        self._database.write(remove, repeatable=True)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._database.release()

    def _commit_all(self, parts: Sequence[TableWrites], epoch: Epoch | None) -> dict[str, int]:
        """The version of each table, by its name in the store."""
        shares: dict[str, _Share] = {}
        for part in parts:
            table = self._same_group(part.table)
            table._check_writable(*part.writes)  # noqa: SLF001 - its own class
            share = shares.setdefault(table._layout.name, _Share(table))  # noqa: SLF001 - its own class
            share.writes += part.writes
            share.read_at = part.read_at if share.read_at is None else share.read_at

        def work(connection: DriverConnection) -> dict[str, int]:
            # In the order of names, so that two commits never wait for each other.
            return {name: shares[name].table._apply(connection, shares[name], epoch) for name in sorted(shares)}  # noqa: SLF001

        try:
            return self._database.write(work, repeatable=epoch is not None)
        except DuplicateRowError as error:
            raise self._duplicate(error) from error

    def _apply(self, connection: DriverConnection, share: _Share, epoch: Epoch | None) -> int:
        """Do the share of a commit, in its transaction; the version that holds it."""
        state = self._locked_state(connection)
        if epoch is not None:
            last = self._metadata.epoch(connection, self._layout.name, epoch.writer)
            if last is not None and epoch.number <= last:
                return state.version
            self._metadata.set_epoch(connection, self._layout.name, epoch, known=last is not None)
        if share.read_at is not None and share.read_at != state.version:
            raise TableError.conflict(self.name)
        writer = TableWriter(connection, self._reader, name=self.name, logged=state.followed_from is not None)
        for write in share.writes:
            writer.apply(write)
        if not writer.changed:
            return state.version
        version = state.version + 1
        self._metadata.set_version(connection, self._layout.name, version)
        if state.followed_from is not None:
            self._metadata.log(connection, self._layout.name, version, writer.net_change())
            oldest = version - self._history
            if oldest > state.followed_from:
                self._metadata.forget(connection, self._layout.name, oldest)
                self._metadata.set_followed_from(connection, self._layout.name, oldest)
        return version

    def _duplicate(self, error: DuplicateRowError) -> TableError:
        """The error that names the key, found by reading: stores don't tell it in a form to rely on."""
        reader, names = error.reader, list(error.reader.layout.schema.key)
        keys = error.rows.select(names)
        present = self._database.read(lambda connection: reader.find(connection, keys, names).rows, one_state=True)
        seen = set(key_values(present, names))
        for place, key in enumerate(key_values(keys, names)):
            if key in seen:
                values = tuple(python_value(column[place]) for column in keys.columns)
                return TableError.duplicate_key(error.table, values[0] if len(values) == 1 else values)
            seen.add(key)
        return TableError(
            f'a row of table "{error.table}" breaks a unique constraint of the store',
            detail="nothing of the statement was applied",
            code="constraint",
        )

    def _same_group(self, table: Table) -> RelationalTable:
        if not isinstance(table, RelationalTable) or table._database is not self._database:  # noqa: SLF001
            raise UnsupportedError.capability(self.kind, "transactions")
        return table

    def _state(self, connection: DriverConnection, *, lock: bool = False) -> TableState:
        state = self._metadata.state(connection, self._layout.name, lock=lock)
        if state is None:
            raise NotFoundError.of("table", self._layout.name)
        return state

    def _lock(self, connection: DriverConnection) -> None:
        self._locked_state(connection)

    def _locked_state(self, connection: DriverConnection) -> TableState:
        return self._state(connection, lock=True)

    def _version(self, connection: DriverConnection) -> int:
        version = self._metadata.version(connection, self._layout.name)
        if version is None:
            raise NotFoundError.of("table", self._layout.name)
        return version

    def _index_name(self, columns: Sequence[StoredColumn]) -> str:
        """The same each time, and short enough for every store."""
        text = repr((self._layout.name, [column.stored_name for column in columns]))
        return f"velostream_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


@dataclass
class _Share:
    """What a commit does to one table."""

    table: RelationalTable
    writes: list[Write] = field(default_factory=list)
    read_at: int | None = None


def pool_settings(options: Options) -> PoolSettings:
    default = PoolSettings()
    return PoolSettings(
        size=pool_size(options) or default.size,
        most_idle=options.integer("pool.max.idle"),
        validation_query=options.text("pool.validation.query"),
        wait=options.duration("query.timeout") or default.wait,
        retry=retry_timeout(options),
    )
