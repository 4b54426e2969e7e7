"""The durable catalog: what has been created and not dropped, and how it was said."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from velostream.engine.directory import write_atomically
from velostream.engine.secrets import SecretFile
from velostream.errors import AlreadyExistsError, StateError
from velostream.model.change import CHANGE, ORIGIN, JsonValue
from velostream.model.confidential import public
from velostream.model.schema import Schema


class EntryKind(StrEnum):
    TABLE = "table"
    """Declared with columns; changed by DML and continuous inserts."""
    VIEW = "view"
    """CREATE TABLE … AS SELECT."""
    STREAM = "stream"
    """Declared over a source, or derived from a query."""
    INSERT = "insert"
    """A continuous INSERT INTO … SELECT."""
    CHANGE = "change"
    """A continuous UPDATE, DELETE or UPSERT, or several statements over one stream in BEGIN … COMMIT."""
    SOURCE = "source"
    """The table a source that is no stream is folded into; made by the engine, shared, never shown."""
    MIRROR = "mirror"
    """The copy of a table in a store that views read; its statement names the table's id. Never shown."""
    GROUPS = "groups"
    """The bare aggregate behind a view with HAVING, ORDER BY or unselected group columns; never shown."""
    ROWS = "rows"
    """Rows of streams that a query still needs: those of open windows. Its statement names the id of the entry that
    they are kept for; never shown."""

    PART = "part"
    """A part of a query over tables that is kept up to date as a view of its own, shared by all that have the same
    part; never shown."""


HIDDEN = (EntryKind.SOURCE, EntryKind.MIRROR, EntryKind.GROUPS, EntryKind.ROWS, EntryKind.PART)
CHANGERS = (EntryKind.INSERT, EntryKind.CHANGE)
"""Queries that change tables and are none themselves."""


class Wish(StrEnum):
    """What the user wants of a query; survives restarts."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Entry:
    """One object of the catalog. `id` is its incarnation: a re-created object gets a new one."""

    name: str
    kind: EntryKind
    sql: str
    """The statement in its canonical text (for SOURCE: the source's identity)."""
    id: str
    created_at: str
    schema: Schema | None = None
    """Columns of a table, view or declared stream; None while a view waits for its source's schema."""
    reads: tuple[str, ...] = ()
    """Ids of the entries it reads."""
    writes: tuple[str, ...] = ()
    """Ids of the tables that an INSERT or a CHANGE writes to."""
    wish: Wish = Wish.RUNNING
    derived: bool = True
    """Of a stream: by a query. A stream declared over a source only names it, and nothing runs for it."""
    indexes: dict[str, list[str]] = field(default_factory=dict)
    """Columns of each secondary index, by its name."""
    store: str = "inmemory"
    """Of a table or view: which kind of table holds its rows. The options of it stand in the statement."""
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Columns its sources had when it was first planned, by source identity; a restart plans with the same."""
    starts: dict[str, JsonValue] = field(default_factory=dict)
    """Where sources that are read from their end on had it when the statement was made, by address; None where there
    was no such source yet. Filled in by planning, which is when that is found out."""
    grows: bool = False
    """Of a view: it gets the columns that its source gets (`schema.evolution` = `add`)."""
    followed: bool = False
    """Of a mirror: somebody has subscribed to the table and may come back, so it stays for as long as the table."""

    @classmethod
    def new(cls, name: str, *, kind: EntryKind, sql: str, schema: Schema | None = None) -> Entry:
        return cls(name, kind, sql, uuid.uuid4().hex[:16], datetime.now(UTC).isoformat(timespec="seconds"), schema)

    def pinned(self) -> dict[str, Schema]:
        """Columns its sources were first planned with, by source identity."""
        return {identity: Schema.from_json(form) for identity, form in self.sources.items()}

    @property
    def is_table(self) -> bool:
        """Whether it has versions that can be read."""
        return self.kind in (EntryKind.TABLE, EntryKind.VIEW, *HIDDEN)

    @property
    def is_query(self) -> bool:
        """Whether something runs for it."""
        return self.kind is not EntryKind.TABLE and self.derived


def planned_columns(names: Sequence[str], entry: Entry) -> list[str]:
    """Those columns of a table that whoever got this entry was planned with: of a fold without the origin of its rows,
    of a table that has got columns since without these. A sign of changes stays.
    """
    schema = entry.schema
    hidden = (ORIGIN,) if entry.kind is EntryKind.SOURCE else ()
    return [name for name in names if name not in hidden and (schema is None or name == CHANGE or schema.find(name))]


class Catalog:
    """All entries, by name and by id; every change is on disk before it is seen.

    Names are unique over tables, views and streams in any case of letters. Thread-safe. Statements with passwords are
    whole in a file that only its owner can read, and in the catalog's own without them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._secrets = SecretFile(path.with_name("statements.private"))
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        if path.exists():
            self._load()

    def _load(self) -> None:
        try:
            form = json.loads(self._path.read_bytes())
            for item in form["entries"]:
                schema = item.pop("schema")
                item["sql"] = self._secrets.of(item["id"]).get("sql", item["sql"])
                entry = Entry(
                    **item
                    | {
                        "kind": EntryKind(item["kind"]),
                        "wish": Wish(item["wish"]),
                        "reads": tuple(item["reads"]),
                        "writes": tuple(item["writes"]),
                        "schema": None if schema is None else Schema.from_json(schema),
                    }
                )
                self._entries[entry.id] = entry
        except (ValueError, KeyError, TypeError) as error:
            raise StateError.corrupt(str(self._path), reason=str(error)) from error

    def _save(self) -> None:
        form = []
        private: dict[str, dict[str, str]] = {}
        for entry in self._entries.values():
            item = asdict(replace(entry, schema=None))
            item["schema"] = None if entry.schema is None else entry.schema.to_json()
            item["sql"] = public(entry.sql)
            if item["sql"] != entry.sql:
                private[entry.id] = {"sql": entry.sql}
            form.append(item)
        # Whichever of the two catalogs a crash leaves, its statements are whole.
        self._secrets.keep_only({entry_id: self._secrets.of(entry_id) for entry_id in self._secrets} | private)
        write_atomically(self._path, json.dumps({"format": 1, "entries": form}, indent=1).encode())
        self._secrets.keep_only(private)

    def __iter__(self) -> Iterator[Entry]:
        with self._lock:
            return iter(list(self._entries.values()))

    def visible(self) -> list[Entry]:
        return [entry for entry in self if entry.kind not in HIDDEN]

    def find(self, name: str) -> Entry | None:
        """The visible table, view, stream or insert of that name, in any case."""
        lowered = name.lower()
        with self._lock:
            return next((e for e in self._entries.values() if e.name.lower() == lowered and e.kind not in HIDDEN), None)

    def by_id(self, entry_id: str) -> Entry | None:
        return self._entries.get(entry_id)

    def hidden(self, kind: EntryKind, sql: str) -> Entry | None:
        """The engine's own entry for a source identity or an aggregate."""
        with self._lock:
            return next((e for e in self._entries.values() if e.kind is kind and e.sql == sql), None)

    def add(self, entry: Entry) -> None:
        with self._lock:
            self.swap((), entry)

    def update(self, entry: Entry) -> None:
        with self._lock:
            before = self._entries.get(entry.id)
            if before is None:
                return
            self._entries[entry.id] = entry
            try:
                self._save()
            except OSError:
                self._entries[entry.id] = before
                raise

    def swap(self, gone: Sequence[Entry], *entries: Entry) -> None:
        """Put entries in the place of others in one step: a crash leaves the old ones or the new ones."""
        with self._lock:
            before = dict(self._entries)
            for entry in gone:
                self._entries.pop(entry.id, None)
            try:
                for entry in entries:
                    self._refuse_taken(entry)
                    self._entries[entry.id] = entry
                self._save()
            except BaseException:
                self._entries = before
                raise

    def _refuse_taken(self, entry: Entry) -> None:
        if entry.kind not in HIDDEN and (existing := self.find(entry.name)) is not None:
            raise AlreadyExistsError.of(existing.kind, existing.name)

    def remove(self, *entry_ids: str) -> None:
        with self._lock:
            for entry_id in entry_ids:
                self._entries.pop(entry_id, None)
            self._save()

    def readers_of(self, entry_id: str) -> list[Entry]:
        """Entries that read it, or write into it from a stream, directly."""
        return [entry for entry in self if entry_id in entry.reads or entry_id in entry.writes]

    def upstream(self, entry: Entry) -> list[Entry]:
        """All entries it depends on, inputs before what reads them, and it itself last.

        A table depends on what its continuous inserts read: their rows come from there.
        """
        order: list[Entry] = []
        seen: set[str] = set()

        def visit(current: Entry) -> None:
            if current.id in seen:
                return
            seen.add(current.id)
            feeding = [other for other in self if current.id in other.writes]
            inputs = [self.by_id(read) for read in current.reads]
            for one in [i for i in inputs if i is not None] + feeding:
                visit(one)
            order.append(current)

        visit(entry)
        return order
