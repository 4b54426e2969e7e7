"""The door of the relational room: a table in a database, for any kind that gives a dialect.

A kind subclasses `RelationalTable` and says how its `Dialect` is made from options. Next to the rows the store holds
three tables of ours (see `metadata`), written in the same transaction, so that data, version, epoch and log of changes
are never apart.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar, Self

import pyarrow as pa

from velostream.errors import AlreadyExistsError, NotFoundError, StateError, TableError, UnsupportedError
from velostream.model.change import ChangeBatch, Epoch, Mode, Write
from velostream.model.expression import Expression
from velostream.model.options import Option, Options, OptionType
from velostream.model.schema import Column, Schema
from velostream.tables.base import Table, TableCapabilities, TableSpec, TableWrites
from velostream.tables.change_log import net_changes
from velostream.tables.memory.conform import conform
from velostream.tables.memory.keys import key_values
from velostream.tables.memory.values import python_value
from velostream.tables.relational.condition import RelationalCondition
from velostream.tables.relational.database import Database, DuplicateRowError, PoolSettings
from velostream.tables.relational.dialect import Dialect, DriverConnection
from velostream.tables.relational.layout import DeclaredTable, Layout, StoredColumn
from velostream.tables.relational.metadata import Metadata, TableState
from velostream.tables.relational.reading import Reader
from velostream.tables.relational.snapshot import RelationalSnapshot
from velostream.tables.relational.writing import TableWriter

RELATIONAL_OPTIONS: tuple[Option, ...] = (
    Option("url", "where the store is, as a SQLAlchemy-style URL"),
    Option("data_source", "a store named in the configuration; options given here win over its own"),
    Option("table", "the table's name in the store; its own name by default"),
    Option(
        "if.exists",
        "what to do with a table that the store already has",
        OptionType.CHOICE,
        default="adopt",
        choices=("adopt", "fail", "replace"),
    ),
    Option(
        "access",
        "read-only attaches a table or view without writing anything to the store",
        OptionType.CHOICE,
        default="read-write",
        choices=("read-write", "read-only"),
    ),
    Option("history", "for how many commits `changes` is kept once the table is followed", OptionType.INTEGER, "1000"),
    Option("pool.size", "how many connections there may be", OptionType.INTEGER, default="8"),
    Option("connection.pool.size", "the same as pool.size", OptionType.INTEGER),
    Option("query.timeout", "how long to wait for a connection or a lock", OptionType.DURATION, default="30s"),
    Option("retry.timeout", "how long to try again what failed for a passing reason", OptionType.DURATION, "15s"),
)
"""Options every relational kind knows."""


class RelationalTable(Table):
    """A table of a relational store. Commits are serialised by a lock on the table's entry in the store."""

    options: ClassVar[tuple[Option, ...]] = RELATIONAL_OPTIONS
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
        durable=True,
    )

    def __init__(self, database: Database, reader: Reader, *, name: str, options: Options) -> None:
        """Called by `open` only."""
        self.name = name
        self.schema = reader.layout.schema
        self._database = database
        self._dialect = database.dialect
        self._reader = reader
        self._layout = reader.layout
        self._metadata = Metadata(database.dialect)
        self._history = options.integer("history") or 0
        self._read_only = options.text("access") == "read-only"
        self._closed = False

    @classmethod
    @abstractmethod
    def dialect_of(cls, spec: TableSpec, options: Options) -> Dialect:
        """The store that the options name, unconnected. Raises `OptionError` and `StoreError.missing_driver`."""

    @classmethod
    def open(cls, spec: TableSpec) -> Self:
        options = Options(spec.options, cls.options)
        dialect = cls.dialect_of(spec, options)
        database = Database.shared(dialect, _pool_settings(options))
        try:
            layout = _Opening(cls.kind, spec, options, database).layout()
        except BaseException:
            database.release()
            raise
        return cls(database, Reader(dialect, layout), name=spec.name, options=options)

    @property
    def version(self) -> int:
        if self._read_only:
            return 0
        with self._database.reading() as connection:
            return self._version(connection)

    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        part = TableWrites(self, (write,))
        return self._commit_all([part], epoch)[0]

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

    def snapshot(self, version: int | None = None) -> RelationalSnapshot:
        newest = self.version
        if version is not None and version != newest:
            if version > newest:
                raise _unknown_version(self.name, version, newest)
            raise TableError.version_gone(self.name, version, oldest=newest)
        return RelationalSnapshot(self._database, self._reader, name=self.name, version=newest)

    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        self._refuse_if_read_only("changes")
        with self._database.reading(one_state=True) as connection:
            state = self._state(connection)
            end = state.version if until is None else until
            if max(since, end) > state.version:
                raise _unknown_version(self.name, max(since, end), state.version)
            oldest = state.version if state.followed_from is None else state.followed_from
            if since < oldest:
                raise TableError.version_gone(self.name, since, oldest=oldest)
            logged = self._metadata.logged(connection, self._layout.name, since, end)
        return ChangeBatch(end, net_changes(self.schema, logged).signed())

    def compile_condition(self, condition: Expression) -> RelationalCondition:
        """Raises `CannotCompile` for what only Spark evaluates as Spark does."""
        return self._reader.conditions.compile(condition)

    def exclusive(self) -> AbstractContextManager[None]:
        self._refuse_if_read_only("update")
        return self._database.exclusive(self._lock)

    def drop(self) -> None:
        if self._read_only:
            return

        def remove(connection: DriverConnection) -> None:
            state = self._metadata.state(connection, self._layout.name, lock=True)
            if state is None:
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

    def _commit_all(self, parts: Sequence[TableWrites], epoch: Epoch | None) -> list[int]:
        tables = [self._same_group(part.table) for part in parts]
        for table in tables:
            table._refuse_if_read_only("insert")  # noqa: SLF001 - its own class

        def work(connection: DriverConnection) -> list[int]:
            # In the order of names, so that two commits never wait for each other.
            order = sorted(range(len(parts)), key=lambda number: tables[number]._layout.name)  # noqa: SLF001
            versions = {number: tables[number]._apply(connection, parts[number], epoch) for number in order}  # noqa: SLF001
            return [versions[number] for number in range(len(parts))]

        try:
            return self._database.write(work, repeatable=epoch is not None)
        except DuplicateRowError as error:
            raise self._duplicate(parts) from error

    def _apply(self, connection: DriverConnection, part: TableWrites, epoch: Epoch | None) -> int:
        """One part of a commit, in its transaction; the version that holds it."""
        state = self._locked_state(connection)
        if epoch is not None:
            last = self._metadata.epoch(connection, self._layout.name, epoch.writer)
            if last is not None and epoch.number <= last:
                return state.version
            self._metadata.set_epoch(connection, self._layout.name, epoch, known=last is not None)
        if part.read_at is not None and part.read_at != state.version:
            raise TableError.conflict(self.name)
        writer = TableWriter(connection, self._reader, name=self.name, logged=state.followed_from is not None)
        for write in part.writes:
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

    def _duplicate(self, parts: Sequence[TableWrites]) -> TableError:
        """The error that names the key, found by reading: stores don't tell it in a form to rely on."""
        for part in parts:
            table = self._same_group(part.table)
            for write in part.writes:
                if write.mode is Mode.APPEND and table.schema.key:
                    key = table._taken_key(write.rows)  # noqa: SLF001 - its own class
                    if key is not None:
                        return TableError.duplicate_key(table.name, key)
        return TableError(
            f'a row of table "{self.name}" breaks a unique constraint of the store',
            detail="nothing of the statement was applied",
            code="constraint",
        )

    def _taken_key(self, given: pa.Table) -> object:
        """The first key of the rows that stands there twice, or that the table has already; None when there is none."""
        names = list(self.schema.key)
        keys = conform(given, table=self.name, schema=self.schema).select(names)
        with self._database.reading(one_state=True) as connection:
            seen = set(key_values(self._reader.find(connection, keys, names).rows, names))
        for place, key in enumerate(key_values(keys, names)):
            if key in seen:
                values = tuple(python_value(column[place]) for column in keys.columns)
                return values[0] if len(values) == 1 else values
            seen.add(key)
        return None

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

    def _refuse_if_read_only(self, capability: str) -> None:
        if self._read_only:
            refused = UnsupportedError.capability(self.kind, capability)
            refused.detail = f'table "{self.name}" is attached read-only'
            refused.hint = "WITH ('access' = 'read-write')"
            raise refused


class _Opening:
    """Makes a table in its store, or finds out how the one that is there is used."""

    def __init__(self, kind: str, spec: TableSpec, options: Options, database: Database) -> None:
        self._kind = kind
        self._spec = spec
        self._options = options
        self._database = database
        self._dialect = database.dialect
        self._metadata = Metadata(database.dialect)
        self._name = options.text("table") or spec.name

    def layout(self) -> Layout:
        self._database.check()
        if self._options.text("access") == "read-only":
            with self._database.reading() as connection:
                declared = self._dialect.declared(connection, self._name)
                if declared is None:
                    raise NotFoundError.of("table", self._name)
                state = self._metadata.state(connection, self._name) if self._metadata.exists(connection) else None
                return self._own_layout() if state is not None and state.made else self._adopted_layout(declared)
        return self._database.write(self._make_or_find, repeatable=True)

    def _make_or_find(self, connection: DriverConnection) -> Layout:
        self._metadata.create(connection)
        state = self._metadata.state(connection, self._name, lock=True)
        declared = self._dialect.declared(connection, self._name)
        if declared is not None and (state is None or state.id != self._spec.id):
            match self._options.text("if.exists"):
                case "fail":
                    raise AlreadyExistsError.of("table", self._name)
                case "replace":
                    self._metadata.remove(connection, self._name)
                    for statement in self._dialect.drop_statements(self._own_layout()):
                        self._dialect.run(connection, statement)
                    state = declared = None
        if state is not None and state.made and declared is not None:
            self._check_schema(state.schema)
            return self._own_layout()
        if declared is not None:
            layout = self._adopted_layout(declared)
            if state is None:
                self._metadata.add(connection, self._name, self._new_state(made=False))
            return layout
        layout = self._own_layout()
        # The entry first: where a store ends the transaction with CREATE TABLE, a crash leaves an entry to complete.
        if state is None:
            self._metadata.add(connection, self._name, self._new_state(made=True))
        for statement in self._dialect.create_statements(layout):
            self._dialect.run(connection, statement)
        return layout

    def _new_state(self, *, made: bool) -> TableState:
        return TableState(self._spec.id, version=0, schema=self._spec.schema, made=made, followed_from=None)

    def _own_layout(self) -> Layout:
        schema = self._spec.schema
        columns = tuple(
            StoredColumn(
                column.name,
                self._dialect.stored_name(column.name, position),
                self._dialect.codec(column.type),
                column.nullable,
            )
            for position, column in enumerate(schema.columns)
        )
        layout = Layout(
            self._name,
            self._dialect.quote_table(self._name),
            schema,
            columns,
            made=True,
            key_enforced=False,
            identity=None,
        )
        identity, assigned = self._dialect.identity(layout)
        return replace(
            layout,
            key_enforced=bool(schema.key) and self._dialect.enforces(layout),
            identity=identity,
            identity_assigned=assigned,
        )

    def _adopted_layout(self, declared: DeclaredTable) -> Layout:
        schema = self._spec.schema
        columns: list[StoredColumn] = []
        differences: list[str] = []
        for column in schema.columns:
            there = declared.find(column.name)
            codec = None if there is None else self._dialect.adopted_codec(column.type, there.store_type)
            if there is None:
                differences.append(f'column "{column.name}" {column.sql_type} is not there')
            elif codec is None:
                differences.append(f'column "{column.name}" is {there.store_type}, not {column.sql_type}')
            else:
                columns.append(StoredColumn(column.name, there.name, codec, column.nullable and there.nullable))
        used = {column.stored_name for column in columns}
        if self._options.text("access") != "read-only":
            differences += [
                f'column "{other.name}" {other.store_type} NOT NULL would get no value'
                for other in declared.columns
                if other.name not in used and not other.nullable and not other.has_default
            ]
        if differences:
            raise self._mismatch(differences)
        key = frozenset(column.stored_name for column in columns if column.name in schema.key)
        nullable = any(column.nullable for column in columns if column.name in schema.key)
        return Layout(
            self._name,
            self._dialect.quote_table(self._name),
            schema,
            tuple(columns),
            made=False,
            key_enforced=bool(key) and not nullable and key in declared.unique,
            identity=declared.identity,
        )

    def _check_schema(self, there: Schema) -> None:
        wanted = self._spec.schema
        if there == wanted:
            return
        differences = []
        for column in wanted.columns:
            other = there.find(column.name)
            if other is None:
                differences.append(f'column "{column.name}" {column.sql_type} is not there')
            elif other != column:
                differences.append(f'column "{column.name}" is {_shown(other)}, not {_shown(column)}')
        differences += [
            f'column "{column.name}" {column.sql_type} is there and not asked for'
            for column in there.columns
            if wanted.find(column.name) is None
        ]
        if there.key != wanted.key:
            differences.append(f"the key is ({', '.join(there.key)}), not ({', '.join(wanted.key)})")
        raise self._mismatch(differences or ["the columns have another order"])

    def _mismatch(self, differences: Sequence[str]) -> StateError:
        return StateError(
            f'table "{self._name}" in {self._kind} has other columns than asked for',
            detail="; ".join(differences),
            hint="name another table: WITH ('table' = …), or give up what is there: WITH ('if.exists' = 'replace')",
            code="schema-mismatch",
        )


def _shown(column: Column) -> str:
    return f"{column.sql_type}{'' if column.nullable else ' NOT NULL'}"


def _unknown_version(table: str, version: int, newest: int) -> TableError:
    return TableError(
        f'version {version} of table "{table}" does not exist yet',
        detail=f"newest version: {newest}",
        code="unknown-version",
    )


def _pool_settings(options: Options) -> PoolSettings:
    default = PoolSettings()
    return PoolSettings(
        size=options.integer("connection.pool.size") or options.integer("pool.size") or default.size,
        wait=options.duration("query.timeout") or default.wait,
        retry=options.duration("retry.timeout") or timedelta(),
    )
