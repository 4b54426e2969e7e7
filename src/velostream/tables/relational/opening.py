"""What `open` does in the store: make the table, or find out how the one that is there is used."""

from __future__ import annotations

from dataclasses import dataclass, replace

from velostream.errors import AlreadyExistsError, NotFoundError
from velostream.model.options import Options
from velostream.tables.base import TableSpec
from velostream.tables.relational.database import Database
from velostream.tables.relational.dialect import DriverConnection
from velostream.tables.relational.layout import DeclaredTable, Layout, StoredColumn
from velostream.tables.relational.metadata import Metadata, TableState
from velostream.tables.stored import check_columns, column_missing, is_read_only, mismatch


@dataclass(frozen=True, slots=True)
class Opened:
    """A table that is there."""

    id: str
    """Of the one who asks; the table may be another's."""
    layout: Layout
    state: TableState | None
    """Its entry in the metadata; None for a table that is read only and was never ours."""
    indexes: frozenset[tuple[str, ...]] = frozenset()
    """Columns of indexes the store has, as far as it is known."""


class Opening:
    """One call of `open`."""

    def __init__(self, kind: str, spec: TableSpec, options: Options, database: Database) -> None:
        self._kind = kind
        self._spec = spec
        self._options = options
        self._database = database
        self._dialect = database.dialect
        self._metadata = Metadata(database.dialect)
        self._name = options.text("table") or spec.name

    def open(self) -> Opened:
        """Raises `StoreError` with its category when the store can't be reached."""
        self._database.check()
        if is_read_only(self._options):
            return self._database.read(self._attach)
        return self._database.write(self._make_or_find, repeatable=True)

    def _attach(self, connection: DriverConnection) -> Opened:
        declared = self._dialect.declared(connection, self._name)
        if declared is None:
            raise NotFoundError.of("table", self._name)
        state = self._metadata.state(connection, self._name) if self._metadata.exists(connection) else None
        if state is None or not state.made:
            return self._opened(self._adopted_layout(declared), state, declared)
        check_columns(self._kind, self._name, wanted=self._spec.schema, there=state.schema)
        return self._opened(self._own_layout(), state, declared)

    def _make_or_find(self, connection: DriverConnection) -> Opened:
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
            check_columns(self._kind, self._name, wanted=self._spec.schema, there=state.schema)
            return self._opened(self._own_layout(), state, declared)
        if declared is not None:
            layout = self._adopted_layout(declared)
            return self._opened(layout, state or self._entered(connection, made=False), declared)
        layout = self._own_layout()
        # The entry first: where a store ends the transaction with CREATE TABLE, a crash leaves an entry to complete.
        state = state or self._entered(connection, made=True)
        for statement in self._dialect.create_statements(layout):
            self._dialect.run(connection, statement)
        return Opened(self._spec.id, layout, state)

    def _opened(self, layout: Layout, state: TableState | None, declared: DeclaredTable) -> Opened:
        ours = {column.stored_name: column.name for column in layout.columns}
        known = (names for names in declared.indexes if all(name in ours for name in names))
        return Opened(self._spec.id, layout, state, frozenset(tuple(ours[name] for name in names) for names in known))

    def _entered(self, connection: DriverConnection, *, made: bool) -> TableState:
        """A new entry in the metadata."""
        state = TableState(self._spec.id, version=0, schema=self._spec.schema, made=made, followed_from=None)
        self._metadata.add(connection, self._name, state)
        return state

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
                differences.append(column_missing(column))
            elif codec is None:
                differences.append(f'column "{column.name}" is {there.store_type}, not {column.sql_type}')
            else:
                columns.append(StoredColumn(column.name, there.name, codec, column.nullable and there.nullable))
        used = {column.stored_name for column in columns}
        if not is_read_only(self._options):
            differences += [
                f'column "{other.name}" {other.store_type} NOT NULL would get no value'
                for other in declared.columns
                if other.name not in used and not other.nullable and not other.has_default
            ]
        if differences:
            raise mismatch(self._kind, self._name, differences)
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
