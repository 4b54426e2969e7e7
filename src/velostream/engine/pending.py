"""Transactions that are committed in more than one place, written down first so that a crash in between is made whole.

The order is always: the note of what is to be written, the stores one after another, our own log, the end of the note.
The first store decides: if it refuses, nothing is applied anywhere; once it has committed, all the rest follows, at the
latest when the state directory is opened again. Every store keeps the number of the transaction with its rows, so doing
it again changes nothing.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.engine.directory import sync, write_atomically
from velostream.errors import StateError, StoreError, TableError
from velostream.model.change import Epoch, Mode, Write
from velostream.tables.base import Table, TableWrites
from velostream.tables.memory.sequence import Part
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext

_log = logging.getLogger(__name__)

WRITER = "transactions"
"""Who commits transactions over several places, in our log; the position is the name that stores know it by."""
_FOLDER = "transactions"
_RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class Share:
    """What a transaction writes to one table."""

    entry_id: str
    table: Table
    writes: Sequence[Write]
    read_at: int | None = None
    """The version of a table in a store that it has read."""


class PendingTransactions:
    """Commits transactions over several places, one at a time.

    Whoever calls `commit` for tables of ours holds off their other commits, from what it has checked until it returns.
    """

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._retrying: threading.Thread | None = None

    def commit(self, shares: Sequence[Share], *, epoch: Epoch | None = None) -> None:
        """Apply what a transaction writes, all of it or nothing; `epoch` is kept in our log with it."""
        ours = [share for share in shares if isinstance(share.table, MemoryTable)]
        groups = _groups(share for share in shares if share not in ours)
        if len(groups) + bool(ours or epoch) <= 1:
            for group in groups:
                _commit_together(group, None)
            self._commit_ours(ours, epoch)
            return
        with self._context.sequence.exclusive():
            self._commit_all(shares, groups, epoch)

    def _commit_all(self, shares: Sequence[Share], groups: Sequence[Sequence[Share]], epoch: Epoch | None) -> None:
        note = self._write_note(_Note(*self._next(), shares=shares, epoch=epoch))
        try:
            _commit_together(groups[0], note.in_stores)
        except StoreError as error:
            if not error.category.retriable:
                self._remove(note)
                raise
            # It may have been committed all the same: whether it was shows when the store answers.
            self._retry_later()
            error.detail = "the transaction is applied as a whole or not at all, as soon as the store answers"
            raise
        except Exception:
            self._remove(note)
            raise
        self._context.crash_point("transaction.after-store")
        try:
            self._finish(note, decided=True)
        except StoreError as error:
            self._retry_later()
            error.detail = "the transaction is committed elsewhere; this store gets its part as soon as it answers"
            raise

    def recover(self) -> None:
        """Finish what a crash left half done; a store that doesn't answer is asked again until it does."""
        try:
            self.finish_all()
        except StoreError as error:
            if not error.category.retriable:
                raise
            _log.warning("a transaction waits for its store: %s", error)
            self._retry_later()

    def finish_all(self) -> None:
        """Finish what waits for a store; raises while one doesn't answer. Call it before anything is decided anew."""
        if self._notes():
            with self._context.sequence.exclusive():
                for path in self._notes():
                    self._finish(self._read_note(path))

    def _notes(self) -> list[Path]:
        return sorted(self._folder.glob("*.pending")) if self._folder.exists() else []

    def _finish(self, note: _Note, *, decided: bool = False) -> None:
        """Do all of it that isn't done yet; `decided`: the first store has committed its part."""
        known = self._context.sequence.writer(WRITER)
        if known is None or known.epoch < note.number:
            ours = [share for share in note.shares if isinstance(share.table, MemoryTable)]
            first, *others = _groups(share for share in note.shares if share not in ours)
            if not decided and not self._decide(first, note):
                return
            for group in others:
                _commit_together([_unchecked(share) for share in group], note.in_stores)
            self._commit_ours(ours, note.epoch, note)
        self._remove(note)

    def _decide(self, first: Sequence[Share], note: _Note) -> bool:
        """Commit the first store's part, unless that is done; false when someone else was there first."""
        try:
            _commit_together(first, note.in_stores)
        except TableError as error:
            if error.code != "write-conflict":
                raise
            self._remove(note)
            return False
        return True

    def _retry_later(self) -> None:
        if self._retrying is None:
            self._retrying = threading.Thread(target=self._retry, name="pending transactions", daemon=True)
            self._retrying.start()

    def _retry(self) -> None:
        while not self._context.closing.wait(_RETRY_SECONDS) and self._notes():
            self.recover()

    def _commit_ours(self, ours: Sequence[Share], epoch: Epoch | None, note: _Note | None = None) -> None:
        parts = []
        if ours or epoch is not None:
            writes = [(share.table, write) for share in ours for write in share.writes]
            parts.append(Part(writes=writes, epoch=epoch))
        if note is not None:
            parts.append(Part(epoch=Epoch(WRITER, note.number), position=note.name))
        if parts:
            self._context.sequence.commit(*parts)

    def _next(self) -> tuple[str, int]:
        """The name by which stores know this state directory, and the number of its next transaction."""
        known = self._context.sequence.writer(WRITER)
        return (uuid.uuid4().hex, 0) if known is None else (known.position, known.epoch + 1)

    @property
    def _folder(self) -> Path:
        return self._context.directory.path / _FOLDER

    def _write_note(self, note: _Note) -> _Note:
        self._folder.mkdir(exist_ok=True)
        header: list[dict[str, Any]] = []
        parts: list[bytes] = []
        for share in note.shares:
            for write in share.writes:
                parts.append(_packed(write.rows))
                place = {"table": share.entry_id, "read_at": share.read_at}
                header.append({**place, "mode": write.mode, "bytes": len(parts[-1])})
        epoch = None if note.epoch is None else [note.epoch.writer, note.epoch.number]
        form = {"name": note.name, "number": note.number, "epoch": epoch, "writes": header}
        write_atomically(self._path(note), json.dumps(form).encode() + b"\n" + b"".join(parts))
        return note

    def _read_note(self, path: Path) -> _Note:
        first, _, rest = path.read_bytes().partition(b"\n")
        try:
            form = json.loads(first)
            shares: dict[str, Share] = {}
            for item in form["writes"]:
                rows = pa.ipc.open_stream(rest[: item["bytes"]]).read_all()
                rest = rest[item["bytes"] :]
                before = shares.get(item["table"])
                writes = [*(() if before is None else before.writes), Write(Mode(item["mode"]), rows)]
                table = self._context.table(item["table"])
                shares[item["table"]] = Share(item["table"], table, writes, item["read_at"])
            epoch = None if form["epoch"] is None else Epoch(*form["epoch"])
            return _Note(form["name"], form["number"], shares=list(shares.values()), epoch=epoch)
        except (ValueError, KeyError, TypeError) as error:
            raise StateError.corrupt(str(path), reason=str(error)) from error

    def _path(self, note: _Note) -> Path:
        return self._folder / f"{note.number:012d}.pending"

    def _remove(self, note: _Note) -> None:
        self._path(note).unlink(missing_ok=True)
        sync(self._folder)


@dataclass(frozen=True)
class _Note:
    """What one transaction is to write, and its number among those of the state directory."""

    name: str
    number: int
    shares: Sequence[Share]
    epoch: Epoch | None = None

    @property
    def in_stores(self) -> Epoch:
        return Epoch(f"{WRITER}.{self.name}", self.number)


def _groups(shares: Iterable[Share]) -> list[list[Share]]:
    """Shares of tables that can be committed in one step, together."""
    groups: list[tuple[object, list[Share]]] = []
    for share in shares:
        identity = share.table.commit_group
        found = next((members for known, members in groups if known == identity), None)
        if found is None:
            groups.append((identity, [share]))
        else:
            found.append(share)
    return [members for _, members in groups]


def _commit_together(group: Sequence[Share], epoch: Epoch | None) -> None:
    group[0].table.commit_together([TableWrites(one.table, one.writes, one.read_at) for one in group], epoch)


def _unchecked(share: Share) -> Share:
    """The transaction is decided, so this store has to take it, whatever happened there meanwhile."""
    return Share(share.entry_id, share.table, share.writes)


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
