"""What CREATE, DROP, PAUSE, RESUME, STOP and RESTART do to objects, whole or not at all."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.engine.binding import BoundQuery, NoSchemaYetError
from velostream.engine.catalog import Entry, EntryKind, Wish
from velostream.engine.options import (
    STREAM_OPTIONS,
    TABLE_OPTIONS,
    query_options,
    refuse_unknown,
    store_options,
)
from velostream.engine.planning import Lens, definition_of
from velostream.engine.relations import query_error
from velostream.engine.status import State
from velostream.engine.waiting import WaitingRoom, patience_of
from velostream.errors import (
    AlreadyExistsError,
    InUseError,
    NotFoundError,
    QueryError,
    SourceError,
    ValidationError,
    VelostreamError,
    present,
)
from velostream.model.schema import Schema
from velostream.sql.parse import parse_statement
from velostream.sql.plan import Strategy
from velostream.sql.render import render
from velostream.sql.statements import Create, Insert, ObjectKind, QueryAction, SourceRef

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext
    from velostream.engine.launch import Launcher


class Definitions:
    """Changes the catalog and starts and stops what runs by it. One change at a time."""

    def __init__(self, context: EngineContext, launcher: Launcher) -> None:
        self._context = context
        self._launcher = launcher
        self._lock = threading.RLock()
        self._waiting = WaitingRoom(context.closing, self._lock)

    def create(self, statement: Create) -> str:
        """Create a table or stream; gives what was done, for the result."""
        with self._lock:
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
            kind = EntryKind.STREAM if statement.what is ObjectKind.STREAM else EntryKind.TABLE
            if statement.query is not None:
                kind = EntryKind.VIEW if kind is EntryKind.TABLE else EntryKind.STREAM
                return self._create_query(statement, kind, existing)
            return self._create_declared(statement, kind, existing)

    def _create_declared(self, statement: Create, kind: EntryKind, existing: Entry | None) -> str:
        name = statement.name.text
        place: dict[str, Any] = {
            "line": statement.name.place.line,
            "column": statement.name.place.column,
            "text": statement.text,
        }
        if kind is EntryKind.TABLE:
            if statement.columns is None:
                raise ValidationError(
                    f'table "{name}" has neither columns nor a query',
                    hint="CREATE TABLE t (id BIGINT PRIMARY KEY, …) or CREATE TABLE t AS SELECT …",
                    **place,
                )
            refuse_unknown(statement.options, TABLE_OPTIONS, text=statement.text)
            schema = _with_key_option(statement.columns, query_options(statement.options).text("key"))
            entry = Entry.new(name, kind=kind, sql=canonical(statement), schema=schema)
        else:
            if not any(option.name == "source" for option in statement.options):
                raise ValidationError(
                    f'stream "{name}" has neither a source nor a query', hint="WITH ('source' = 'memory://…')", **place
                )
            entry = Entry.new(name, kind=kind, sql=canonical(statement), schema=statement.columns)
            book = self._launcher.book
            source = book.open(Lens(self._context, book).stream_spec(entry))
            refuse_unknown(statement.options, (*STREAM_OPTIONS, *book.options(source.kind)), text=statement.text)
        if existing is not None:
            self._remove([existing])
        if kind is EntryKind.TABLE and entry.schema is not None:
            options = store_options(statement.options)
            self._context.sequence.create_table(entry.id, name=name, schema=entry.schema, options=options)
        self._context.catalog.add(entry)
        self._context.board(entry).become(State.READY)
        return f'{kind} "{name}" created'

    def _create_query(self, statement: Create, kind: EntryKind, existing: Entry | None) -> str:
        entry = Entry.new(statement.name.text, kind=kind, sql=canonical(statement))
        try:
            bound = self._bind(statement, entry)
        except (NoSchemaYetError, SourceError) as trouble:
            patience = patience_of(statement, trouble)
            if patience is None:
                raise
            if existing is not None:
                self._remove([existing])
            self._context.catalog.add(entry)
            self._wait_for_source(entry, trouble, patience)
            return f'{kind} "{entry.name}" created, waiting for its source'
        if existing is not None:
            self._remove([existing])
        self._complete(entry, statement, bound, new=True)
        return f'{kind} "{entry.name}" created'

    def insert(self, statement: Insert, target: Entry | SourceRef, bound: BoundQuery) -> str:
        """Start a continuous INSERT; gives the query's name."""
        with self._lock:
            where = target.name if isinstance(target, Entry) else target.kind
            names = {entry.name for entry in self._context.catalog}
            number = next(n for n in range(1, len(names) + 2) if f"insert_into_{where}_{n}" not in names)
            entry = Entry.new(f"insert_into_{where}_{number}", kind=EntryKind.INSERT, sql=canonical(statement))
            entry = replace(entry, writes=target.id if isinstance(target, Entry) else None, sources=_found(bound))
            self._context.catalog.add(entry)
            try:
                reads = self._launcher.launch_insert(entry, bound, statement.options, target)
            except Exception:
                self._remove([entry])
                raise
            self._context.catalog.update(replace(entry, reads=tuple(read.id for read in reads)))
            return entry.name

    def _bind(self, statement: Create, entry: Entry) -> BoundQuery:
        bound = self._launcher.binder.bind(
            present(statement.query),
            options=statement.options,
            text=statement.text,
            continuous=True,
            pinned=entry.pinned(),
        )
        if statement.what is ObjectKind.STREAM and bound.plan.strategy is not Strategy.MAP:
            raise QueryError(
                f'stream "{entry.name}" can\'t be derived by strategy "{bound.plan.strategy}"',
                detail=bound.plan.reason,
                hint="CREATE TABLE … AS keeps the result of an aggregate or of a query over tables",
                code="not-a-stream",
            )
        if statement.columns is not None:
            bound = replace(bound, schema=_declared(statement.columns, bound.schema, entry.name))
        return bound

    def _complete(self, entry: Entry, statement: Create, bound: BoundQuery, *, new: bool) -> None:
        """Give the entry its columns and its runner. A new entry that can't be started leaves nothing behind."""
        entry = replace(entry, schema=bound.schema, sources=_found(bound))
        if entry.kind is EntryKind.VIEW:
            options = store_options(statement.options)
            self._context.sequence.create_table(entry.id, name=entry.name, schema=bound.schema, options=options)
        if new:
            self._context.catalog.add(entry)
        else:
            self._context.catalog.update(entry)
        self._context.board(entry).warn(*(warning.message for warning in bound.plan.warnings))
        try:
            reads = self._launch(entry, statement, bound)
        except Exception:
            if new:
                self._remove([entry])
            raise
        self._context.catalog.update(replace(entry, reads=tuple(read.id for read in reads)))

    def _launch(self, entry: Entry, statement: Create, bound: BoundQuery) -> list[Entry]:
        options = query_options(statement.options)
        if entry.kind is EntryKind.STREAM:
            return self._launcher.launch_stream(entry, bound, options)
        return self._launcher.launch_view(entry, bound, options)

    def _wait_for_source(self, entry: Entry, trouble: Exception, patience: float) -> None:
        board = self._context.board(entry)
        deadline = time.monotonic() + patience

        def look_again() -> bool:
            current = self._context.catalog.by_id(entry.id)
            if current is None or current.wish is not Wish.RUNNING:
                return True
            statement = definition_of(current)
            try:
                bound = self._bind(statement, current)
                self._complete(current, statement, bound, new=False)
            except NoSchemaYetError as waiting:
                board.become(State.WAITING, f'"{waiting.name}" has no rows to take columns from yet')
                return False
            except SourceError as error:
                if error.category.retriable and time.monotonic() < deadline:
                    board.become(State.WAITING, error.message)
                    return False
                board.become(State.FAILED, error.message, error=error)
            except VelostreamError as error:
                board.become(State.FAILED, error.message, error=error)
            return True

        reason = f'"{trouble.name}" has no rows yet' if isinstance(trouble, NoSchemaYetError) else str(trouble)
        board.become(State.WAITING, reason.splitlines()[0])
        self._waiting.add(entry.id, look_again)

    def resume(self) -> None:
        """Bring everything in the catalog back to what it is wished to be, inputs before readers."""
        known = {entry.id for entry in self._context.catalog}
        for table_id in list(self._context.sequence.table_ids()):
            if table_id not in known and table_id != "dead-letters":
                self._context.sequence.drop_table(table_id)
        for entry in self._context.catalog:
            board = self._context.board(entry)
            if entry.wish is not Wish.RUNNING:
                board.become(State.PAUSED if entry.wish is Wish.PAUSED else State.STOPPED)
            elif entry.kind is EntryKind.STREAM and not _is_derived(entry):
                board.become(State.READY)

    def resume_queries(self) -> None:
        """The part of resuming that needs Spark; runs behind `connect`."""
        for entry in self._context.catalog:
            if self._context.closing.is_set():
                return
            if entry.wish is Wish.RUNNING and entry.is_query:
                with self._lock:
                    self._start(entry)

    def _start(self, entry: Entry) -> None:
        """Start a query of the catalog; trouble shows on its board and disturbs nobody else."""
        if entry.id in self._launcher.runners or entry.kind in (EntryKind.SOURCE, EntryKind.GROUPS):
            return
        statement = parse_statement(entry.sql)
        board = self._context.board(entry)
        try:
            if isinstance(statement, Insert):
                self._start_insert(entry, statement)
            elif isinstance(statement, Create) and statement.query is not None:
                self._complete(entry, statement, self._bind(statement, entry), new=False)
        except (NoSchemaYetError, SourceError) as trouble:
            if isinstance(trouble, SourceError) and not trouble.category.retriable:
                board.become(State.FAILED, trouble.message, error=trouble)
                return
            self._wait_for_source(entry, trouble, float("inf"))
        except Exception as trouble:  # noqa: BLE001 - whatever it is must show on the board
            if not self._context.closing.is_set():
                error = query_error(trouble, f'query "{entry.name}" could not be started')
                board.become(State.FAILED, error.message, error=error)

    def _start_insert(self, entry: Entry, statement: Insert) -> None:
        bound = self._launcher.binder.bind(
            present(statement.query),
            options=statement.options,
            text=statement.text,
            continuous=True,
            pinned=entry.pinned(),
        )
        target = (
            statement.target
            if isinstance(statement.target, SourceRef)
            else self._context.catalog.find(statement.target.text)
        )
        if target is None:
            raise NotFoundError.of("table", entry.name)
        if isinstance(target, Entry):
            bound = bound.inserted_into(self._context.table_of(target), statement)
        self._launcher.launch_insert(entry, bound, statement.options, target)

    def drop(self, name: str, *, what: ObjectKind, if_exists: bool, cascade: bool) -> str:
        with self._lock:
            entry = self._context.catalog.find(name)
            is_stream = entry is not None and entry.kind is EntryKind.STREAM
            if entry is None or entry.kind is EntryKind.INSERT or is_stream != (what is ObjectKind.STREAM):
                if if_exists:
                    return f'{what.lower()} "{name}" does not exist'
                known = [
                    e.name
                    for e in self._context.catalog.visible()
                    if (e.kind is EntryKind.STREAM) == (what is ObjectKind.STREAM)
                ]
                raise NotFoundError.of(what.lower(), name, known=known)
            if not cascade:
                self._refuse_if_read(entry)
            self._remove([*self._readers_of(entry), entry])
            return f'{entry.kind} "{entry.name}" dropped'

    def control(self, name: str, action: QueryAction) -> str:
        """PAUSE, RESUME, STOP or RESTART a query."""
        with self._lock:
            entry = self._context.catalog.find(name)
            if entry is None or not entry.is_query:
                known = [e.name for e in self._context.catalog.visible() if e.is_query]
                raise NotFoundError.of("query", name, known=known)
            if action in (QueryAction.PAUSE, QueryAction.STOP, QueryAction.RESTART):
                self._halt(entry)
            if action is QueryAction.PAUSE:
                self._context.catalog.update(replace(entry, wish=Wish.PAUSED))
                self._context.board(entry).become(State.PAUSED)
            elif action is QueryAction.STOP:
                self._context.catalog.update(replace(entry, wish=Wish.STOPPED))
                self._context.board(entry).become(State.STOPPED)
            else:
                entry = replace(entry, wish=Wish.RUNNING)
                self._context.catalog.update(entry)
                self._context.board(entry).become(State.LOADING)
                self._start(entry)
            return f'query "{entry.name}" is {self._context.board(entry).state}'

    def _halt(self, entry: Entry) -> None:
        self._waiting.remove(entry.id)
        self._launcher.stop(entry)
        groups = self._context.catalog.hidden(EntryKind.GROUPS, entry.id)
        if groups is not None:
            self._launcher.stop(groups)

    def _readers_of(self, entry: Entry) -> list[Entry]:
        """Visible entries that depend on it, the furthest first."""
        found: list[Entry] = []

        def visit(current: Entry) -> None:
            for reader in self._context.catalog.readers_of(current.id):
                visible = reader
                if reader.kind is EntryKind.GROUPS:
                    owner = self._context.catalog.by_id(reader.sql)
                    if owner is None:
                        continue
                    visible = owner
                if visible.id != entry.id and visible not in found:
                    visit(visible)
                    found.append(visible)

        visit(entry)
        return found

    def _refuse_if_read(self, entry: Entry) -> None:
        readers = self._readers_of(entry)
        if readers:
            raise InUseError.table(entry.name, readers=[reader.name for reader in readers])

    def _remove(self, entries: Sequence[Entry]) -> None:
        """Stop the entries and forget them: first in the catalog, then their rows, positions and files."""
        for entry in entries:
            self._halt(entry)
        gone = list(entries)
        for entry in entries:
            groups = self._context.catalog.hidden(EntryKind.GROUPS, entry.id)
            if groups is not None:
                gone.append(groups)
        self._context.catalog.remove(*(entry.id for entry in gone))
        unused = [
            entry
            for entry in self._context.catalog
            if entry.kind is EntryKind.SOURCE and not self._context.catalog.readers_of(entry.id)
        ]
        for entry in unused:
            self._launcher.stop(entry)
        self._context.catalog.remove(*(entry.id for entry in unused))
        for entry in [*gone, *unused]:
            if entry.is_table and entry.id in self._context.sequence.table_ids():
                self._context.sequence.drop_table(entry.id)
            for suffix in ("", ".state", ".intent"):
                self._context.sequence.forget_writer(entry.id + suffix)
            for part in ("feeds", "checkpoints", "streams"):
                shutil.rmtree(self._context.directory.path / part / entry.id, ignore_errors=True)
            self._context.boards.pop(entry.id, None)


def canonical(statement: Create | Insert) -> str:
    """The text that two equal statements share: without OR REPLACE and IF NOT EXISTS."""
    if isinstance(statement, Create):
        statement = replace(statement, or_replace=False, if_not_exists=False)
    return render(statement)


def _is_derived(entry: Entry) -> bool:
    return definition_of(entry).query is not None


def _found(bound: BoundQuery) -> dict[str, dict[str, object]]:
    return {identity: schema.to_json() for identity, schema in (bound.found or {}).items()}


def _with_key_option(schema: Schema, key: str | None) -> Schema:
    if key is None or schema.key:
        return schema
    return schema.with_key(part.strip() for part in key.split(","))


def _declared(declared: Schema, found: Schema, name: str) -> Schema:
    """Columns declared before AS: names and types must fit what the SELECT gives."""
    if len(declared.columns) != len(found.columns):
        raise ValidationError(
            f'table "{name}" declares {len(declared.columns)} columns and its SELECT gives {len(found.columns)}',
            detail=f"the SELECT gives {', '.join(found.names)}",
        )
    for want, have in zip(declared.columns, found.columns, strict=True):
        if want.name.lower() != have.name.lower() or not _fits(have.type, want.type):
            raise ValidationError(
                f'table "{name}" declares "{want.name}" {want.sql_type}, '
                f'its SELECT gives "{have.name}" {have.sql_type}',
                hint=f"CAST({have.name} AS {want.sql_type}) AS {want.name}",
            )
    return declared if declared.key else declared.with_key(found.key)


def _fits(have: pa.DataType, want: pa.DataType) -> bool:
    if have == want:
        return True
    if pa.types.is_integer(have) and pa.types.is_integer(want):
        return bool(have.bit_width <= want.bit_width)
    if pa.types.is_decimal(have) and pa.types.is_decimal(want):
        return bool(have.scale <= want.scale and have.precision - have.scale <= want.precision - want.scale)
    return bool(pa.types.is_null(have))
