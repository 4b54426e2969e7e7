"""Starting and ending what runs by the catalog: at creation, after a restart, by PAUSE, RESUME, STOP and RESTART."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from velostream.engine.binding import BoundQuery, NoSchemaYetError
from velostream.engine.catalog import HIDDEN, Entry, EntryKind, Wish
from velostream.engine.changing import target_columns
from velostream.engine.context import DEAD_LETTERS
from velostream.engine.declared import fit_declared
from velostream.engine.directory import LOADS
from velostream.engine.functions import calls
from velostream.engine.maintain.loading import is_loading
from velostream.engine.options import MEMORY, query_options, store_options
from velostream.engine.spark_failures import query_error
from velostream.engine.status import State, StatusBoard
from velostream.engine.trigger import Trigger
from velostream.engine.waiting import Patience, Tried, WaitingRoom
from velostream.errors import NotFoundError, OptionError, QueryError, SourceError, StateError, StoreError, present
from velostream.sql.parse import parse_statement
from velostream.sql.plan import Strategy
from velostream.sql.statements import Create, Insert, ObjectKind, QueryAction, SourceRef, Statement

if TYPE_CHECKING:
    from velostream.engine.changing import StreamChange
    from velostream.engine.context import EngineContext
    from velostream.engine.launch import Launcher

Hindrance = NoSchemaYetError | SourceError | StoreError
"""What a query may wait for to pass."""
_WRITER_SUFFIXES = ("", ".state", ".intent")
"""An entry's own writers in the commit sequence: rows and positions, Spark's state, intended batches."""
_FOLDERS = ("feeds", "checkpoints", "streams")
"""Folders in which an entry may have one of its own."""


class Supervisor:
    """Brings queries to what the catalog wishes of them. One change at a time: `lock` is held for each."""

    def __init__(self, context: EngineContext, launcher: Launcher) -> None:
        self._context = context
        self._launcher = launcher
        self.lock = threading.RLock()
        self._waiting = WaitingRoom(context.closing, self.lock)

    def bind(self, statement: Create, entry: Entry) -> BoundQuery:
        """Plan the query of a CREATE; `NoSchemaYetError` or `SourceError` while its source isn't there."""
        trigger = Trigger.of(query_options(statement.options, text=statement.text))
        bound = self._launcher.binder.bind(
            present(statement.query),
            options=statement.options,
            text=statement.text,
            continuous=True,
            pinned=entry.pinned(),
            starts=entry.starts,
        )
        if bound.is_bounded:
            trigger.refuse_unless_it_goes_on()
        if any(one.entry is not None and one.entry.name.lower() == entry.name.lower() for one in bound.inputs):
            raise QueryError(
                f'{entry.kind} "{entry.name}" can\'t read itself',
                hint="create it under another name, or write out the query that it replaces",
                code="invalid-statement",
            )
        keeps_columns = entry.store != MEMORY or statement.columns is not None
        if keeps_columns and any(one.grows and not one.may_grow for one in bound.inputs):
            why = "its columns are declared" if entry.store == MEMORY else f"its rows are in {entry.store}"
            raise QueryError(
                f'{entry.kind} "{entry.name}" can\'t take columns that come later: {why}',
                detail="schema.evolution = add is for tables in memory whose columns are those of their source",
                hint="leave 'schema.evolution' = 'add' out, or let a table in memory read the source",
                code="cannot-add-columns",
            )
        if keeps_columns:
            bound = bound.without_growth()
        if statement.what is ObjectKind.STREAM and not bound.plan.only_appends:
            raise QueryError(
                f'stream "{entry.name}" can\'t be derived by strategy "{bound.plan.strategy}"',
                detail=bound.plan.reason,
                hint="CREATE TABLE … AS keeps the result of an aggregate or of a query over tables",
                code="not-a-stream",
            )
        return bound if statement.columns is None else fit_declared(bound, statement.columns, entry.name)

    def prepare(self, entry: Entry, statement: Create, bound: BoundQuery, *, replacing: Entry | None = None) -> Entry:
        """The entry with its columns, and its table made if it has one. Nothing runs yet."""
        entry = replace(entry, schema=bound.schema, sources=found_columns(bound), grows=bound.grows)
        if bound.grows and entry.id in self._tables():
            self._context.sequence.add_columns(entry.id, bound.schema)
        elif entry.kind is EntryKind.VIEW:
            self.make_table(entry, statement, replacing=replacing)
        return entry

    def make_table(self, entry: Entry, statement: Create, *, replacing: Entry | None = None) -> None:
        """Make the table of a new entry, in our log or in the store its statement names; found if it is there."""
        options = store_options(statement.options)
        if entry.store == MEMORY:
            schema = present(entry.schema)
            self._context.sequence.create_table(entry.id, name=entry.name, schema=schema, options=options)
        elif self._context.stores.find(entry.id) is None:
            self.keep_secrets(entry, statement)
            old = None if replacing is None else replacing.id
            self._context.stores.create(entry, options, self._store_board(entry), replacing=old)

    def keep_secrets(self, entry: Entry, statement: Create) -> None:
        """Keep the passwords that the statement in the catalog doesn't show, for the next start."""
        if entry.store != MEMORY:
            options = {option.name: option.value for option in statement.options}
            self._context.stores.secrets.keep(entry.id, options)

    def _definition(self, entry: Entry) -> Statement:
        """The statement of an entry, with its passwords."""
        statement = parse_statement(entry.sql)
        secrets = self._context.stores.secrets.of(entry.id)
        if not secrets or not isinstance(statement, Create):
            return statement
        options = tuple(replace(one, value=secrets.get(one.name, one.value)) for one in statement.options)
        return replace(statement, options=options)

    def _store_board(self, entry: Entry) -> StatusBoard:
        """Where a store says how it is: of a declared table that is all there is to say, a view has a query, too."""
        board = self._context.board(entry)
        return board if entry.kind is EntryKind.TABLE else StatusBoard(entry.name, entry.store)

    def launch(self, entry: Entry, statement: Create, bound: BoundQuery) -> None:
        """Start the query of an entry that is in the catalog, and note there what it reads."""
        self._context.board(entry).warn(*(warning.message for warning in bound.plan.warnings))
        options = query_options(statement.options)
        if options.text("checkpoint") and bound.plan.strategy is not Strategy.AGGREGATE:
            raise OptionError(
                'option "checkpoint" is for aggregates over streams',
                detail=f'"{entry.name}" is kept by strategy "{bound.plan.strategy}" and has no checkpoint',
            )
        if entry.kind is EntryKind.STREAM:
            reads = self._launcher.launch_stream(entry, bound, options)
        else:
            reads = self._launcher.launch_view(entry, bound, options)
        self._context.catalog.update(replace(entry, reads=tuple(read.id for read in reads)))

    def launch_insert(self, entry: Entry, statement: Insert, target: Entry | SourceRef, bound: BoundQuery) -> None:
        """Start a continuous INSERT that is in the catalog."""
        reads = self._launcher.launch_insert(entry, bound, statement.options, target)
        self._context.catalog.update(replace(entry, reads=tuple(read.id for read in reads)))

    def launch_changes(self, entry: Entry, changes: Sequence[StreamChange]) -> None:
        """Start statements over one stream that are in the catalog as one entry."""
        found = {identity: form for change in changes for identity, form in found_columns(change.bound).items()}
        entry = replace(entry, sources=found)
        self._context.catalog.update(entry)
        reads = self._launcher.launch_changes(entry, changes)
        self._context.catalog.update(replace(entry, reads=tuple(dict.fromkeys(read.id for read in reads))))

    def wait_for_source(self, entry: Entry, trouble: Hindrance, patience: Patience) -> None:
        """Start the entry as soon as its source is there; fail it when patience is up."""
        began = time.monotonic()
        deadline = began + patience.seconds
        attempts = 1
        next_look = began + patience.pause(trouble, attempts)

        def look_again() -> bool:
            nonlocal next_look, attempts
            current = self._context.catalog.by_id(entry.id)
            if current is None or current.wish is not Wish.RUNNING:
                return True
            if time.monotonic() < min(next_look, deadline):
                return False
            attempts += 1
            hindrance = self._attempt(current, deadline, tried=Tried(attempts, time.monotonic() - began))
            next_look = time.monotonic() + patience.pause(hindrance, attempts)
            return hindrance is None

        self._say_waiting(entry, trouble)
        self._waiting.add(entry.id, look_again)

    def resume(self) -> None:
        """After a restart: forget what a crash left half removed, and show what is paused or stopped."""
        shutil.rmtree(self._context.directory.path / LOADS, ignore_errors=True)
        self._remove_unused_sources()
        entries = list(self._context.catalog)
        known = {entry.id for entry in entries}
        for table_id in self._tables():
            if table_id not in known and table_id != DEAD_LETTERS:
                self._forget(table_id)
        self._context.stores.secrets.forget_all_but(known)
        outside = [entry for entry in entries if entry.store != MEMORY and entry.schema is not None]
        for entry in outside:
            options = store_options(getattr(self._definition(entry), "options", ()))
            self._context.stores.attach(entry, options, self._store_board(entry))
        ours = [e for e in entries if e.is_table and e.schema is not None and e.store == MEMORY]
        missing = next((entry for entry in ours if entry.id not in self._tables()), None)
        if missing is not None:
            path = str(self._context.directory.path / "log")
            raise StateError.corrupt(path, reason=f'the rows of {missing.kind} "{missing.name}" are not in it')
        for entry in entries:
            board = self._context.board(entry)
            if entry.wish is not Wish.RUNNING:
                states = (self._context.sequence.writer(entry.id + suffix) for suffix in _WRITER_SUFFIXES)
                if any(state is not None and not is_loading(state) for state in states):
                    board.recall_ready()
                board.become(State.PAUSED if entry.wish is Wish.PAUSED else State.STOPPED)
            elif not entry.is_query and entry.store == MEMORY:
                board.become(State.READY)

    def _tables(self) -> Sequence[str]:
        return self._context.sequence.table_ids()

    def resume_queries(self) -> None:
        """The part of resuming that needs Spark; runs behind `connect`, beside whatever the user does meanwhile."""
        for known in self._context.catalog:
            if self._context.closing.is_set():
                return
            with self.lock:
                entry = self._context.catalog.by_id(known.id)
                if entry is not None and entry.is_query and entry.wish is Wish.RUNNING:
                    self.start(entry)

    def start(self, entry: Entry) -> None:
        """Start a query of the catalog; trouble shows on its board and disturbs nobody else."""
        if entry.id in self._launcher.running.runners or entry.kind in HIDDEN or not entry.is_query:
            return
        trouble = self._try(entry, float("inf"))
        if trouble is not None:
            self.wait_for_source(entry, trouble, Patience(float("inf")))

    def _attempt(self, entry: Entry, deadline: float, *, tried: Tried) -> Hindrance | None:
        """Try to start; gives what hinders it while there is time left to wait for that to pass."""
        trouble = self._try(entry, deadline, tried=tried)
        if trouble is not None:
            self._say_waiting(entry, trouble)
        elif self._context.board(entry).state is not State.FAILED:
            self._context.board(entry).tally("source found", 1)
        return trouble

    def _try(self, entry: Entry, deadline: float, *, tried: Tried | None = None) -> Hindrance | None:
        """Start an entry, or give what there is to wait for. Any other trouble shows on its board."""
        board = self._context.board(entry)
        try:
            if entry.kind is EntryKind.CHANGE:
                self.launch_changes(entry, self._launcher.changes.of_entry(entry))
                return None
            statement = self._definition(entry)
            if isinstance(statement, Insert):
                self._start_insert(entry, statement)
            elif isinstance(statement, Create):
                bound = self.bind(statement, entry)
                entry = self.prepare(entry, statement, bound)
                self._context.catalog.update(entry)
                self.launch(entry, statement, bound)
        except NoSchemaYetError as trouble:
            return trouble
        except (SourceError, StoreError) as trouble:
            if trouble.category.retriable and time.monotonic() < deadline:
                return trouble
            last = trouble if tried is None else tried.told_in(trouble)
            board.tally("source given up", 1)
            board.become(State.FAILED, last.message, error=last)
        except Exception as trouble:  # noqa: BLE001 - whatever it is must show on the board
            if not self._context.closing.is_set():
                error = query_error(trouble, f'query "{entry.name}" could not be started')
                board.become(State.FAILED, error.message, error=error)
        return None

    def _start_insert(self, entry: Entry, statement: Insert) -> None:
        bound = self._launcher.binder.bind(
            present(statement.query),
            options=statement.options,
            text=statement.text,
            continuous=True,
            pinned=entry.pinned(),
            starts=entry.starts,
            distinct_names=False,
        )
        target: Entry | SourceRef | None
        if isinstance(statement.target, SourceRef):
            target = statement.target
        else:
            target = self._context.catalog.find(statement.target.text)
            if target is None:
                raise NotFoundError.of("table", statement.target.text)
            table = self._context.table_of(target)
            bound = bound.renamed(target_columns(table, statement, bound.schema.names))
        self.launch_insert(entry, statement, target, bound)

    def _say_waiting(self, entry: Entry, trouble: Hindrance) -> None:
        if isinstance(trouble, NoSchemaYetError):
            reason = trouble.reason
        else:
            reason = trouble.message
            self._context.board(entry).tally(f"source looked for: {trouble.category}", 1)
        self._context.board(entry).become(State.WAITING, reason)

    def control(self, name: str, action: QueryAction) -> str:
        """PAUSE, RESUME, STOP or RESTART a query."""
        with self.lock:
            entry = self._context.catalog.find(name)
            if entry is None or not entry.is_query:
                known = [e.name for e in self._context.catalog.visible() if e.is_query]
                raise NotFoundError.of("query", name, known=known)
            board = self._context.board(entry)
            running = self._goes_on(entry) and board.state is not State.FAILED
            if action is QueryAction.RESUME and running:
                return f'query "{entry.name}" is {board.state}'
            self.halt(entry)
            if action in (QueryAction.PAUSE, QueryAction.STOP):
                paused = action is QueryAction.PAUSE
                self._context.catalog.update(replace(entry, wish=Wish.PAUSED if paused else Wish.STOPPED))
                board.become(State.PAUSED if paused else State.STOPPED)
            else:
                entry = replace(entry, wish=Wish.RUNNING)
                self._context.catalog.update(entry)
                board.become(State.LOADING)
                self.start(entry)
            return f'query "{entry.name}" is {board.state}'

    def _goes_on(self, entry: Entry) -> bool:
        """Whether something runs for an entry, and has not ended by itself."""
        parts = (entry, self._context.catalog.hidden(EntryKind.GROUPS, entry.id))
        runners = [self._launcher.running.runners.get(part.id) for part in parts if part is not None]
        return runners[0] is not None and not any(runner is not None and runner.has_ended for runner in runners)

    def restart_users(self, function: str) -> None:
        """Start the running queries that call a function anew, now that it is another one."""
        for entry in self._context.catalog.visible():
            if entry.is_query and entry.wish is Wish.RUNNING and calls(entry.sql, function):
                self.control(entry.name, QueryAction.RESTART)

    def halt(self, entry: Entry) -> None:
        """End what runs for an entry; it may be started again."""
        self._waiting.remove(entry.id)
        self._launcher.running.stop(entry)
        groups = self._context.catalog.hidden(EntryKind.GROUPS, entry.id)
        if groups is not None:
            self._launcher.running.stop(groups)

    def suspend(self, entry: Entry) -> None:
        """End what runs for an entry that is started again at once, and goes on where it was."""
        self._waiting.remove(entry.id)
        self._launcher.running.suspend(entry)

    def remove(self, entries: Sequence[Entry]) -> list[StoreError]:
        """Stop entries and forget them: first in the catalog, then their rows, positions and files.

        Gives what kept rows from being removed: a store that doesn't answer.
        """
        for entry in entries:
            self.halt(entry)
        gone = self.with_groups(entries)
        self._context.catalog.remove(*(entry.id for entry in gone))
        return self.forget(gone)

    def with_groups(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries, and the groups and kept rows behind those that have some."""
        groups = [self._context.catalog.hidden(EntryKind.GROUPS, entry.id) for entry in entries]
        all_of_them = [*entries, *(group for group in groups if group is not None)]
        rows = [self._context.catalog.hidden(EntryKind.ROWS, entry.id) for entry in all_of_them]
        return [*all_of_them, *(kept for kept in rows if kept is not None)]

    def forget(self, entries: Sequence[Entry]) -> list[StoreError]:
        """Remove rows, positions and files of entries that are no longer in the catalog; gives what hindered that."""
        self._remove_unused_sources()
        hindrances = [self._forget(entry.id) for entry in entries]
        return [hindrance for hindrance in hindrances if hindrance is not None]

    def _remove_unused_sources(self) -> None:
        while unused := [entry for entry in self._context.catalog if self._is_unused(entry)]:
            for entry in unused:
                # One after the other: the last that uses something elsewhere gives it back.
                self._launcher.running.discard(entry)
                gone = self.with_groups([entry])
                self._context.catalog.remove(*(one.id for one in gone))
                for one in gone:
                    self._forget(one.id)

    def _is_unused(self, entry: Entry) -> bool:
        """Whether nobody reads what the engine made for those who read it."""
        shared = entry.kind in (EntryKind.SOURCE, EntryKind.MIRROR, EntryKind.PART)
        followed = entry.followed and self._context.catalog.by_id(entry.sql) is not None
        read = shared and (followed or self._context.catalog.readers_of(entry.id))
        return shared and not read and not self._launcher.is_pushed_from(entry)

    def _forget(self, entry_id: str) -> StoreError | None:
        hindrance = self._context.stores.remove(entry_id)
        if entry_id in self._tables():
            self._context.sequence.drop_table(entry_id)
        for suffix in _WRITER_SUFFIXES:
            if self._context.sequence.writer(entry_id + suffix) is not None:
                self._context.sequence.forget_writer(entry_id + suffix)
        for part in _FOLDERS:
            shutil.rmtree(self._context.directory.path / part / entry_id, ignore_errors=True)
        self._context.relations.forget(entry_id)
        self._context.boards.pop(entry_id, None)
        return hindrance


def found_columns(bound: BoundQuery) -> dict[str, dict[str, object]]:
    """What the catalog keeps of the sources' columns."""
    return {identity: schema.to_json() for identity, schema in (bound.found or {}).items()}
