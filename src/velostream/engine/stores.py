"""Tables that live in stores of their own: opened at CREATE, found again after a restart, watched meanwhile."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pyarrow as pa

from velostream.engine.options import table_class
from velostream.engine.secrets import SecretFile
from velostream.engine.status import State, StatusBoard
from velostream.errors import (
    AlreadyExistsError,
    NotFoundError,
    OptionError,
    StateError,
    StoreError,
    UnsupportedError,
    VelostreamError,
    did_you_mean,
    present,
)
from velostream.model.change import ChangeBatch, Epoch, Mode, Write
from velostream.model.retry import RetryPolicy
from velostream.tables.base import (
    CompiledCondition,
    KeyValue,
    Origin,
    Row,
    RowStager,
    Snapshot,
    Table,
    TableCapabilities,
    TableSpec,
    TableWrites,
)
from velostream.tables.cache import LAYER_OPTIONS, commit_together, open_table

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.directory import StateDirectory
    from velostream.model.expression import Expression
    from velostream.model.grouping import Grouping
    from velostream.tables.memory.sequence import Part

T = TypeVar("T")

_LOOK_SECONDS = 1.0
"""How often the watch wakes up to see whether a store is due to be asked."""
_ASK_AFTER_SECONDS = 5.0
"""A store nobody has heard of for so long is asked whether it is there."""
_LOCATION = ("url", "host", "port", "database", "schema", "table")
"""Options that say where a table is, rather than how it is used."""
_NEEDS: Mapping[Mode, tuple[str, ...]] = {
    Mode.APPEND: ("insert",),
    Mode.UPSERT: ("upsert",),
    Mode.DELETE: ("delete",),
    Mode.CHANGES: ("insert", "update", "delete"),
    Mode.REPLACE: ("insert", "update", "delete"),
}
"""What a table must be able to do to take a write."""


class StoreTable(Table):
    """A table of any kind but ours, as the rest of the engine sees it: always there, even while its store is not.

    It is opened when it is first used, refuses what its kind doesn't claim, shows on its board whether the store
    answers, and tells those who follow the table of its commits.
    """

    kind: ClassVar[str] = "store"

    def __init__(self, spec: TableSpec, *, of: type[Table], opening: Callable[[], Table], board: StatusBoard) -> None:
        # The kind and its capabilities are of the table behind, one class stands for all of them.
        self.kind = of.kind  # type: ignore[misc]
        self.capabilities: TableCapabilities = of.capabilities  # type: ignore[misc]
        self.options = of.options  # type: ignore[misc]
        self.name = spec.name
        self.schema = spec.schema
        located = {name: value for name, value in spec.options.items() if name in _LOCATION}
        self.place = (of.kind.lower(), {"table": spec.name} | located)
        """Where the rows are: tables of equal places are one."""
        self.is_superseded = False
        """Whether another table has taken the place; its rows are that one's then."""
        self._opening = opening
        self._board = board
        self._lock = threading.RLock()
        self._table: Table | None = None
        self._closed = False
        self._followers: tuple[Callable[[], None], ...] = ()
        self._heard_at = float("-inf")
        self._attempts = 0
        self._retry_at = 0.0
        self._retry = RetryPolicy.while_running()

    @classmethod
    def open(cls, spec: TableSpec) -> StoreTable:
        raise UnsupportedError(f'table "{spec.name}" is opened by the kind that holds it')

    @property
    def is_open(self) -> bool:
        return self._table is not None

    @property
    def is_away(self) -> bool:
        """Whether the store did not answer when it was last asked."""
        return self._attempts > 0

    @property
    def version(self) -> int:
        return self._ask(lambda table: table.version)

    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        self._check(write)
        done = self._ask(lambda table: table.commit(write, epoch))
        self._tell()
        return done

    @property
    def commit_group(self) -> object:
        return self._ask(lambda table: table.commit_group)

    def commit_together(self, parts: Sequence[TableWrites], epoch: Epoch | None = None) -> None:
        self.require("transactions")
        ours = [present(part.table if isinstance(part.table, StoreTable) else None) for part in parts]
        for part in parts:
            for write in part.writes:
                self._check(write)
        behind = [replace(part, table=table.opened()) for part, table in zip(parts, ours, strict=True)]
        self._ask(lambda _table: commit_together(behind, epoch))
        for table in ours:
            table._tell()

    def follow(self) -> int:
        return self._ask(lambda table: table.follow())

    def stager(self) -> RowStager | None:
        return self._ask(lambda table: table.stager())

    def stamp(self) -> str | None:
        return self._ask(lambda table: table.stamp())

    def get(self, key: KeyValue) -> Row | None:
        return self._ask(lambda table: table.get(key))

    def contains(self, key: KeyValue) -> bool:
        return self._ask(lambda table: table.contains(key))

    def snapshot(self, version: int | None = None) -> Snapshot:
        return self._ask(lambda table: table.snapshot(version))

    def version_at(self, instant: datetime) -> int:
        return self._ask(lambda table: table.version_at(instant))

    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        self.require("changes")
        return self._ask(lambda table: table.changes(since, until))

    def compile_condition(self, condition: Expression) -> CompiledCondition:
        return self._ask(lambda table: table.compile_condition(condition))

    def compile_grouping(self, grouping: Grouping) -> str | None:
        return self._ask(lambda table: table.compile_grouping(grouping))

    def create_index(self, columns: Sequence[str]) -> None:
        self._ask(lambda table: table.create_index(columns))

    def drop_index(self, columns: Sequence[str]) -> None:
        self._ask(lambda table: table.drop_index(columns))

    def stats(self) -> Mapping[str, Any]:
        return self._ask(lambda table: table.stats())

    def exclusive(self) -> AbstractContextManager[None]:
        return self._ask(lambda table: table.exclusive())

    def drop(self) -> None:
        self._ask(lambda table: table.drop())

    def close(self) -> None:
        """Final: opened once more it would be made again in the store, after DROP without its rows."""
        with self._lock:
            self._closed = True
            table, self._table = self._table, None
        if table is not None:
            table.close()

    @property
    def origin(self) -> Origin | None:  # type: ignore[override]
        return self._ask(lambda table: table.origin)

    def require(self, *capabilities: str) -> None:
        """Refuse what the kind doesn't claim."""
        for capability in capabilities:
            if not getattr(self.capabilities, capability):
                raise UnsupportedError.capability(self.kind, capability)

    def opened(self) -> Table:
        """The table of its kind; opened now if it isn't yet."""
        with self._lock:
            if self._closed:
                raise NotFoundError.of("table", self.name)
            if self._table is None:
                self._table = self._opening()
            return self._table

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have a callback called after each commit of ours, and when the store is back; gives what ends that."""
        with self._lock:
            self._followers = (*self._followers, callback)

        def stop() -> None:
            with self._lock:
                self._followers = tuple(known for known in self._followers if known is not callback)

        return stop

    def look(self) -> None:
        """Ask the store whether it is there, if that is due; trouble shows on the board."""
        now = time.monotonic()
        if self._closed:
            return
        if self._board.state is State.FAILED or now < max(self._retry_at, self._heard_at + _ASK_AFTER_SECONDS):
            return
        try:
            self._ask(lambda table: table.version)
        except VelostreamError as error:
            self._trouble(error)

    def _ask(self, ask: Callable[[Table], T]) -> T:
        try:
            answer = ask(self.opened())
        except StoreError as error:
            self._trouble(error)
            raise
        self._heard_at = time.monotonic()
        if self._attempts or self._board.state is not State.READY:
            self._attempts = 0
            self._retry_at = 0.0
            self._board.become(State.READY)
            self._tell()
        return answer

    def _trouble(self, error: VelostreamError) -> None:
        """The store does not answer, or not as it should. What may pass is tried again."""
        if not error.category.retriable:
            if not self.is_open:
                self._board.become(State.FAILED, error.message, error=error)
            return
        self._attempts += 1
        delay = self._retry.delay(self._attempts)
        self._retry_at = time.monotonic() + delay.total_seconds()
        self._board.retrying(error, attempts=self._attempts, delay=delay)

    def _check(self, write: Write) -> None:
        self.require(*_NEEDS[write.mode])

    def _tell(self) -> None:
        for callback in self._followers:
            callback()


def write_to_stores(part: Part) -> Part:
    """Write what a part has for stores; gives what is left of it for the log, to be committed after this.

    A store keeps the part's epoch with the rows, so a part that is given again, because the log never came to hold it,
    changes nothing there. A write that replaces everything is right whenever it is repeated, and must not be taken for
    one that was there before it: it goes without.
    """
    writes: dict[StoreTable, list[Write]] = {}
    for table, write in part.writes:
        if isinstance(table, StoreTable):
            writes.setdefault(table, []).append(write)
    if not writes:
        return part
    repeatable = all(write.mode is Mode.REPLACE for several in writes.values() for write in several)
    epoch = None if repeatable else part.epoch
    for group in by_commit_group(writes, lambda table: table):
        shares = [TableWrites(table, writes[table]) for table in group]
        if not all(table.capabilities.transactions for table in group):
            for table in group:
                _commit_one_by_one(table, writes[table], epoch)
        elif len(shares) == 1 and len(shares[0].writes) == 1:
            group[0].commit(shares[0].writes[0], epoch)
        else:
            group[0].commit_together(shares, epoch)
    return replace(part, writes=[(table, write) for table, write in part.writes if not isinstance(table, StoreTable)])


def by_commit_group(items: Iterable[T], table_of: Callable[[T], Table]) -> list[list[T]]:
    """The items, those together whose tables can be committed in one step."""
    groups: list[tuple[object, list[T]]] = []
    for item in items:
        identity = table_of(item).commit_group
        # Identities need only be comparable, so there is no dictionary of them.
        found = next((members for known, members in groups if known == identity), None)
        if found is None:
            groups.append((identity, [item]))
        else:
            found.append(item)
    return [members for _, members in groups]


def _commit_one_by_one(table: StoreTable, writes: Sequence[Write], epoch: Epoch | None) -> None:
    """For a kind without transactions: each write is its own step, so each has its own writer in the store.

    After a crash between two steps the part may be decided anew, with fewer writes than before. So a writer is named by
    what its write does, not by its place among all of them: no write goes by the name of another one.
    """
    seen: Counter[Mode] = Counter()
    for write in _joined(writes):
        name = f"{write.mode}.{seen[write.mode]}"
        seen[write.mode] += 1
        table.commit(write, None if epoch is None else replace(epoch, writer=f"{epoch.writer}.{name}"))


def _joined(writes: Sequence[Write]) -> list[Write]:
    """The same writes in as few steps as possible: rows that do the same in a row are one write."""
    joined: list[Write] = []
    for write in writes:
        last = joined[-1] if joined else None
        alike = last is not None and last.mode is write.mode and last.rows.schema.equals(write.rows.schema)
        if last is not None and alike and write.mode is not Mode.REPLACE:
            rows = pa.concat_tables([last.rows, write.rows])
            joined[-1] = replace(last, rows=rows, staged=last.staged + write.staged)
        else:
            joined.append(write)
    return joined


class Stores:
    """All tables of a connection that live outside of its log, by entry id, and the thread that watches them."""

    def __init__(self, directory: StateDirectory, config: Mapping[str, str], closing: threading.Event) -> None:
        self._directory = directory
        self._config = config
        self._closing = closing
        self.secrets = SecretFile(directory.path / "secrets.json")
        self._tables: dict[str, StoreTable] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def find(self, entry_id: str) -> StoreTable | None:
        return self._tables.get(entry_id)

    def __iter__(self) -> Iterator[StoreTable]:
        return iter(list(self._tables.values()))

    def create(
        self, entry: Entry, options: Mapping[str, str], board: StatusBoard, *, replacing: str | None = None
    ) -> None:
        """Make the table of a new entry in its store: address, credentials and columns are right, or it raises.

        Two tables in one place would each change and drop the other's rows without a word, so the second is refused;
        a place spelled otherwise is known by whom the store names as the table's origin.

        A table that it replaces in the same place loses its rows, and only once the store was reached with the new
        options: by the kind's own `if.exists` = `replace`, which checks the columns and then drops and makes the table,
        in one transaction where the store has one for that. A store without one (MySQL, MongoDB, Redis, Delta) can
        lose them if it goes away in between. A kind that keeps no origin is dropped first. What the replaced table
        had only adopted, or what is attached read-only now, keeps its rows.
        """
        before = None if replacing is None else self._tables.get(replacing)
        table = self._table(entry, options, board)
        other = next((one for one in self if one is not before and one.place == table.place), None)
        if other is not None:
            raise _taken(table, other)
        in_place = before is not None and before.place == table.place
        try:
            _ = table.version
            origin = table.origin
        except (StateError, AlreadyExistsError):
            if before is None or not in_place:
                raise
            # What doesn't fit may be just what is to be replaced.
            origin = before.origin
        if origin is not None and origin.id not in (entry.id, replacing) and origin.id in self._tables:
            table.close()
            raise _taken(table, self._tables[origin.id])
        if before is not None and (in_place or (origin is not None and origin.id == replacing)):
            table.close()
            if origin is None:
                before.drop()
            elif origin.id == replacing and origin.made:
                options = {**options, "if.exists": "replace"}
            table = self._table(entry, options, board)
            _ = table.version
            before.is_superseded = True
        self._add(entry.id, table)

    def attach(self, entry: Entry, options: Mapping[str, str], board: StatusBoard) -> None:
        """Know the table of an entry again after a restart. It is opened when its store can be reached."""
        board.become(State.WAITING, f"{entry.store} has not answered yet")
        self._add(entry.id, self._table(entry, options, board))

    def remove(self, entry_id: str) -> StoreError | None:
        """Forget a table and remove it from its store, unless it was there before us; gives what hindered that."""
        with self._lock:
            table = self._tables.pop(entry_id, None)
        trouble = None
        if table is not None:
            try:
                if not table.is_superseded:
                    table.drop()
            except StoreError as error:
                trouble = error
            finally:
                table.close()
        self.secrets.forget(entry_id)
        shutil.rmtree(self._directory.path / "stores" / entry_id, ignore_errors=True)
        return trouble

    def close(self) -> None:
        """Give back all connections. The event given at the start is set by now."""
        if self._thread is not None:
            self._thread.join(timeout=30)
        for table in self:
            table.close()

    def _add(self, entry_id: str, table: StoreTable) -> None:
        with self._lock:
            self._tables = {**self._tables, entry_id: table}
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="stores", daemon=True)
                self._thread.start()

    def _table(self, entry: Entry, options: Mapping[str, str], board: StatusBoard) -> StoreTable:
        kind = table_class(entry.store)
        kind.refuse_variants(present(entry.schema))
        directory = self._directory.path / "stores" / entry.id if self._directory.durable else None
        spec = TableSpec(entry.id, entry.name, present(entry.schema), self._resolved(kind, options), directory)
        return StoreTable(spec, of=kind, opening=lambda: open_table(kind, spec), board=board)

    def _resolved(self, kind: type[Table], given: Mapping[str, str]) -> dict[str, str]:
        """The options of the kind, with what a named data source of the configuration says."""
        taken = (*kind.options, *LAYER_OPTIONS)
        options = {name: value for name, value in given.items() if any(option.covers(name) for option in taken)}
        named = given.get("data_source")
        if named is None:
            return options
        address = self._config.get(f"data_source.{named}")
        if address is None:
            known = [name.removeprefix("data_source.") for name in self._config if name.startswith("data_source.")]
            raise OptionError(
                f'data source "{named}" is not configured',
                detail=f"known data sources: {', '.join(sorted(known)) or 'none'}",
                hint=did_you_mean(named, known) or f'connect(config={{"data_source.{named}": "…"}})',
                code="unknown-data-source",
            )
        options.pop("data_source", None)
        return {"url": address} | options

    def _watch(self) -> None:
        while not self._closing.is_set():
            for table in self:
                if self._closing.is_set():
                    return
                table.look()
            self._closing.wait(_LOOK_SECONDS)


def _taken(table: StoreTable, other: StoreTable) -> AlreadyExistsError:
    return AlreadyExistsError(
        f'what table "{table.name}" would be in {table.kind} is table "{other.name}" already',
        hint="read that one, or name another table of the store: WITH ('table' = …)",
    )
