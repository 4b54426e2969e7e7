"""Transactions that are committed in more than one place, written down first so that a crash in between is made whole.

The order is always: the note of what is to be written, the stores one after another, our own log, the end of the note.
The first store decides: if it refuses, nothing is applied anywhere; once it has committed, all the rest follows, at the
latest when the state directory is opened again. Every store keeps the number of the transaction with its rows, so doing
it again changes nothing.

At most one transaction waits at a time: the next one is numbered only when the one before it is finished or set aside.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.engine.directory import sync, write_atomically
from velostream.engine.stores import by_commit_group
from velostream.errors import NotFoundError, StateError, StoreError, TableError, UnsupportedError, VelostreamError
from velostream.model.change import Epoch, Mode, Write
from velostream.sources.base import BadRecord
from velostream.tables.base import Table, TableWrites
from velostream.tables.memory.sequence import Part
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext

_log = logging.getLogger(__name__)

WRITER = "transactions"
"""Who commits transactions over several places, in our log; the position is the name that stores know it by."""
_FOLDER = "transactions"
_WAITING = ".pending"
_SET_ASIDE = ".unfinished"
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

    Its lock is taken before that of the commit sequence, never after: whoever waits for a store holds only this one,
    so commits that have nothing to do with the store go on.
    """

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._lock = threading.RLock()
        self._retrying: threading.Thread | None = None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold off other transactions over several places, those that wait being finished. Re-entrant."""
        with self._lock:
            self.finish_all()
            yield

    def commit(self, shares: Sequence[Share], *, epoch: Epoch | None = None) -> None:
        """Apply what a transaction writes, all of it or nothing; `epoch` is kept in our log with it.

        With more than one place, inside `exclusive`. For tables of ours the caller holds off their other commits, from
        what it has checked until this returns.
        """
        ours = [share for share in shares if isinstance(share.table, MemoryTable)]
        groups = by_commit_group([share for share in shares if share not in ours], lambda share: share.table)
        if len(groups) + bool(ours or epoch) <= 1:
            for group in groups:
                _commit_together(group, None)
            self._commit_ours(ours, epoch)
            return
        with self.exclusive():
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
        except VelostreamError as error:
            self._retry_later()
            if isinstance(error, StoreError):
                error.detail = "the transaction is committed elsewhere; this store gets its part as soon as it answers"
            raise

    def recover(self) -> None:
        """Finish what a crash left half done. What can't be done yet is tried again until it is; nothing is raised."""
        with self._lock:
            try:
                self.finish_all()
            except (VelostreamError, OSError) as error:
                _log.warning("a transaction waits: %s", error)
                self._retry_later()

    def finish_all(self) -> None:
        """Finish what waits for a store; raises while one doesn't answer. Call it before anything is decided anew."""
        if self._notes():
            with self._lock:
                for path in self._notes():
                    self._finish_or_set_aside(path)

    def _finish_or_set_aside(self, path: Path) -> None:
        """A store that refuses us may be put right, or its table dropped: such a note waits. Refused rows stay so."""
        try:
            note = self._read_note(path)
        except StateError as error:
            self._set_aside(path, error)
            return
        try:
            self._finish(note)
        except (TableError, UnsupportedError) as error:
            if error.category.retriable:
                raise
            self._set_aside(path, error)

    def _set_aside(self, path: Path, error: VelostreamError) -> None:
        """Keep a note that can't be finished out of the way. Stores may know its number, so that counts as used."""
        aside = path.with_suffix(_SET_ASIDE)
        _log.warning("a transaction can't be finished and is kept in %s: %s", aside, error)
        header = path.read_bytes().partition(b"\n")[0]
        path.rename(aside)
        sync(self._folder)
        letter = BadRecord(header, aside.name, f"the transaction can't be finished: {error.message}")
        writes = [self._context.dead_letter_write(WRITER, _FOLDER, [letter])]
        self._context.sequence.commit(
            Part(writes=writes, epoch=Epoch(WRITER, int(path.stem)), position=self._name()),
        )

    def _notes(self) -> list[Path]:
        return self._files(_WAITING)

    def _files(self, *suffixes: str) -> list[Path]:
        if not self._folder.exists():
            return []
        return sorted(path for path in self._folder.iterdir() if path.suffix in suffixes)

    def _finish(self, note: _Note, *, decided: bool = False) -> None:
        """Do all of it that isn't done yet; `decided`: the first store has committed its part."""
        known = self._context.sequence.writer(WRITER)
        if known is None or known.epoch < note.number:
            ours = [share for share in note.shares if isinstance(share.table, MemoryTable)]
            others = [share for share in note.shares if share not in ours]
            groups = by_commit_group(others, lambda share: share.table)
            if groups and not decided and not self._decide(groups[0], note):
                return
            for group in groups[1:]:
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
        """Called with the lock, like the end of the thread: it either sees the note or is seen to have ended."""
        if self._retrying is None or not self._retrying.is_alive():
            self._retrying = threading.Thread(target=self._retry, name="pending transactions", daemon=True)
            self._retrying.start()

    def _retry(self) -> None:
        while not self._context.closing.wait(_RETRY_SECONDS):
            try:
                self.recover()
            except Exception:  # noqa: BLE001 - whatever it was, the note is still to be finished
                _log.exception("finishing a transaction failed")
            with self._lock:
                if not self._notes():
                    self._retrying = None
                    return

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
        used = [int(path.stem) for path in self._files(_WAITING, _SET_ASIDE)]
        return self._name(), max([*used, -1 if known is None else known.epoch]) + 1

    def _name(self) -> str:
        known = self._context.sequence.writer(WRITER)
        return uuid.uuid4().hex if known is None else str(known.position)

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
        """What is still to be written, of tables that are still there; `StateError.corrupt` if that can't be told."""
        first, _, rest = path.read_bytes().partition(b"\n")
        try:
            form = json.loads(first)
            shares: dict[str, Share] = {}
            for item in form["writes"]:
                rows = pa.ipc.open_stream(rest[: item["bytes"]]).read_all()
                rest = rest[item["bytes"] :]
                before = shares.get(item["table"])
                writes = [*(() if before is None else before.writes), Write(Mode(item["mode"]), rows)]
                table = self._find(item["table"])
                if table is None:
                    _log.warning("a transaction's part for a table that was dropped is left out: %s", path.name)
                    continue
                shares[item["table"]] = Share(item["table"], table, writes, item["read_at"])
            epoch = None if form["epoch"] is None else Epoch(*form["epoch"])
            return _Note(form["name"], form["number"], shares=list(shares.values()), epoch=epoch)
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise StateError.corrupt(str(path), reason=str(error)) from error

    def _find(self, entry_id: str) -> Table | None:
        try:
            return self._context.table(entry_id)
        except NotFoundError:
            return None

    def _path(self, note: _Note) -> Path:
        return self._folder / f"{note.number:012d}{_WAITING}"

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
