"""What CREATE, DROP and a continuous INSERT do to the catalog, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from velostream.engine.binding import BoundQuery, NoSchemaYetError
from velostream.engine.catalog import CHANGERS, Entry, EntryKind
from velostream.engine.changing import RowChange, query_name, query_sql
from velostream.engine.options import (
    MEMORY,
    STREAM_OPTIONS,
    query_options,
    refuse_unknown,
    table_kind,
    table_options,
)
from velostream.engine.planning import Lens
from velostream.engine.status import State
from velostream.engine.supervisor import Supervisor, found_columns
from velostream.engine.waiting import Patience, patience_of
from velostream.errors import AlreadyExistsError, InUseError, NotFoundError, SourceError, ValidationError
from velostream.model.confidential import concealed
from velostream.sql.render import render
from velostream.sql.statements import Create, Insert, ObjectKind, SourceRef

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext
    from velostream.engine.launch import Launcher
    from velostream.model.schema import Schema
    from velostream.sources.base import Offset


class Definitions:
    """Changes what there is. Everything is checked and planned before the catalog changes."""

    def __init__(self, context: EngineContext, launcher: Launcher, supervisor: Supervisor) -> None:
        self._context = context
        self._launcher = launcher
        self._supervisor = supervisor

    def create(self, statement: Create) -> str:
        """Create a table or stream; gives what was done, for the result."""
        with self._supervisor.lock:
            name = statement.name.text
            if not name:
                raise ValidationError("name is empty", line=statement.place.line, column=statement.place.column)
            existing = self._context.catalog.find(name)
            if existing is not None and statement.if_not_exists:
                return f'{existing.kind} "{existing.name}" exists already'
            if existing is not None and not statement.or_replace:
                raise AlreadyExistsError.of(existing.kind, existing.name)
            if existing is not None:
                self._refuse_if_read(existing)
            is_stream = statement.what is ObjectKind.STREAM
            if statement.query is not None:
                kind = EntryKind.STREAM if is_stream else EntryKind.VIEW
                return self._create_query(statement, kind, existing)
            return self._create_stream(statement, existing) if is_stream else self._create_table(statement, existing)

    def insert(self, statement: Insert, target: Entry | SourceRef, bound: BoundQuery, starts: dict[str, Offset]) -> str:
        """Start a continuous INSERT; gives the query's name. For `starts` see `Lens`."""
        with self._supervisor.lock:
            where = target.name if isinstance(target, Entry) else target.kind
            names = {entry.name for entry in self._context.catalog}
            number = next(n for n in range(1, len(names) + 2) if f"insert_into_{where}_{n}" not in names)
            entry = Entry.new(f"insert_into_{where}_{number}", kind=EntryKind.INSERT, sql=canonical(statement))
            writes = (target.id,) if isinstance(target, Entry) else ()
            entry = replace(entry, writes=writes, sources=found_columns(bound), starts=starts)
            self._context.catalog.add(entry)
            try:
                self._supervisor.launch_insert(entry, statement, target, bound)
            except Exception:
                self._supervisor.remove([entry])
                raise
            return entry.name

    def change(self, statements: Sequence[RowChange], *, transaction: bool = False) -> str:
        """Start statements over one stream as one query; gives its name."""
        with self._supervisor.lock:
            planner = self._launcher.changes
            targets = [planner.target_of(statement) for statement in statements]
            trouble: NoSchemaYetError | None = None
            starts: dict[str, Offset] = {}
            try:
                changes = planner.follow(statements, starts=starts)
            except NoSchemaYetError as no_schema:
                trouble = no_schema
            prefix = query_name(statements, targets, transaction=transaction)
            names = {entry.name for entry in self._context.catalog}
            number = next(n for n in range(1, len(names) + 2) if f"{prefix}_{n}" not in names)
            sql = query_sql(statements, transaction=transaction)
            entry = Entry.new(f"{prefix}_{number}", kind=EntryKind.CHANGE, sql=sql)
            entry = replace(entry, writes=tuple(dict.fromkeys(target.id for target in targets)), starts=starts)
            self._context.catalog.add(entry)
            if trouble is not None:
                self._supervisor.wait_for_source(entry, trouble, Patience(float("inf")))
                return entry.name
            try:
                self._supervisor.launch_changes(entry, changes)
            except Exception:
                self._supervisor.remove([entry])
                raise
            return entry.name

    def drop(self, name: str, *, what: ObjectKind, if_exists: bool, cascade: bool) -> str:
        """Drop a table, view or stream; with `cascade` everything that reads it, too."""
        with self._supervisor.lock:
            streams = what is ObjectKind.STREAM
            entry = self._context.catalog.find(name)
            if entry is None or entry.kind in CHANGERS or (entry.kind is EntryKind.STREAM) != streams:
                if if_exists:
                    return f'{what.lower()} "{name}" does not exist'
                visible = self._context.catalog.visible()
                known = [one.name for one in visible if (one.kind is EntryKind.STREAM) == streams]
                raise NotFoundError.of(what.lower(), name, known=known)
            if not cascade:
                self._refuse_if_read(entry)
            readers = self._readers_of(entry)
            left = self._supervisor.remove([*readers, entry])
            also = f", and what reads it: {', '.join(reader.name for reader in readers)}" if readers else ""
            rows = f"; its rows are still in the store: {left[0].message}" if left else ""
            return f'{entry.kind} "{entry.name}" dropped{also}{rows}'

    def _create_table(self, statement: Create, existing: Entry | None) -> str:
        name = statement.name.text
        if statement.columns is None:
            raise ValidationError(
                f'table "{name}" has neither columns nor a query',
                hint="CREATE TABLE t (id BIGINT PRIMARY KEY, …) or CREATE TABLE t AS SELECT …",
                **_place(statement),
            )
        refuse_unknown(statement.options, table_options(statement.options, text=statement.text), text=statement.text)
        schema = _with_key_option(
            _without_null_keys(statement.columns), query_options(statement.options, text=statement.text).text("key")
        )
        entry = Entry.new(name, kind=EntryKind.TABLE, sql=canonical(statement), schema=schema)
        entry = replace(entry, store=table_kind(statement.options, text=statement.text))
        try:
            self._supervisor.make_table(entry, statement, replacing=existing)
            self._take_place(entry, existing)
        except BaseException:
            self._supervisor.forget([entry])
            raise
        self._context.board(entry).become(State.READY)
        return f'table "{name}" created'

    def _create_stream(self, statement: Create, existing: Entry | None) -> str:
        name = statement.name.text
        if not any(option.name == "source" for option in statement.options):
            raise ValidationError(
                f'stream "{name}" has neither a source nor a query',
                hint="WITH ('source' = 'memory://…')",
                **_place(statement),
            )
        entry = Entry.new(name, kind=EntryKind.STREAM, sql=canonical(statement), schema=statement.columns)
        entry = replace(entry, derived=False)
        book = self._launcher.book
        source = book.open(Lens(self._context, book).stream_spec(entry))
        refuse_unknown(statement.options, (*STREAM_OPTIONS, *book.options(source.spec.kind)), text=statement.text)
        self._take_place(entry, existing)
        self._context.board(entry).become(State.READY)
        return f'stream "{name}" created'

    def _create_query(self, statement: Create, kind: EntryKind, existing: Entry | None) -> str:
        entry = Entry.new(statement.name.text, kind=kind, sql=canonical(statement))
        if kind is EntryKind.VIEW:
            entry = replace(entry, store=table_kind(statement.options, text=statement.text))
        try:
            bound = self._supervisor.bind(statement, entry)
        except (NoSchemaYetError, SourceError) as trouble:
            patience = patience_of(statement, trouble)
            if patience is None:
                raise
            self._supervisor.keep_secrets(entry, statement)
            self._take_place(entry, existing)
            self._supervisor.wait_for_source(entry, trouble, patience)
            return f'{kind} "{entry.name}" created, waiting for its source'
        if existing is not None:
            self._supervisor.halt(existing)
        try:
            entry = self._supervisor.prepare(entry, statement, bound, replacing=existing)
            gone = self._swap(entry, existing)
        except BaseException:
            self._supervisor.forget([entry])
            if existing is not None:
                self._supervisor.start(existing)
            raise
        try:
            self._supervisor.launch(entry, statement, bound)
        except Exception:
            self._swap_back(entry, gone)
            raise
        self._supervisor.forget(gone)
        return f'{kind} "{entry.name}" created'

    def _take_place(self, entry: Entry, existing: Entry | None) -> None:
        """Put an entry into the catalog, instead of another one where it replaces one."""
        if existing is not None:
            self._supervisor.halt(existing)
        self._supervisor.forget(self._swap(entry, existing))

    def _swap(self, entry: Entry, existing: Entry | None) -> list[Entry]:
        """The new entry for the old one in one step of the catalog; gives what is no longer in it."""
        gone = [] if existing is None else self._supervisor.with_groups([existing])
        self._context.catalog.swap(gone, entry)
        return gone

    def _swap_back(self, entry: Entry, gone: list[Entry]) -> None:
        """The new entry could not be started: leave nothing of it, and everything of the old one."""
        self._supervisor.halt(entry)
        new = self._supervisor.with_groups([entry])
        self._context.catalog.swap(new, *gone)
        self._supervisor.forget(new)
        for old in gone:
            self._supervisor.start(old)

    def _readers_of(self, entry: Entry) -> list[Entry]:
        """Visible entries that depend on it, the furthest first."""
        found: list[Entry] = []

        def visit(current: Entry) -> None:
            for reader in self._context.catalog.readers_of(current.id):
                visible: Entry | None = reader
                if reader.kind is EntryKind.GROUPS:
                    visible = self._context.catalog.by_id(reader.sql)
                if visible is not None and visible.id != entry.id and visible not in found:
                    visit(visible)
                    if visible.kind not in (EntryKind.MIRROR, EntryKind.PART):
                        found.append(visible)

        visit(entry)
        return found

    def _refuse_if_read(self, entry: Entry) -> None:
        readers = self._readers_of(entry)
        if readers:
            raise InUseError.table(entry.name, readers=[reader.name for reader in readers])


def canonical(statement: Create | Insert) -> str:
    """The text that two equal statements share: without OR REPLACE, IF NOT EXISTS and the passwords of a store."""
    if isinstance(statement, Create):
        options = statement.options
        if statement.what is ObjectKind.TABLE and table_kind(options) != MEMORY:
            options = tuple(replace(option, value=concealed(option.name, option.value)) for option in options)
        statement = replace(statement, or_replace=False, if_not_exists=False, options=options)
    return render(statement)


def _place(statement: Create) -> dict[str, Any]:
    return {"line": statement.name.place.line, "column": statement.name.place.column, "text": statement.text}


def _without_null_keys(schema: Schema) -> Schema:
    """A declared PRIMARY KEY is NOT NULL, as SQL has it; NULL is a key value only of groups."""
    columns = tuple(replace(c, nullable=c.nullable and c.name not in schema.key) for c in schema.columns)
    return replace(schema, columns=columns)


def _with_key_option(schema: Schema, key: str | None) -> Schema:
    if key is None or schema.key:
        return schema
    return schema.with_key(part.strip() for part in key.split(","))
