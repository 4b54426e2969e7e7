"""Transactions: several statements over several tables, at one commit number, committed as one."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from velostream.engine.draft import DraftTable
from velostream.errors import TableError, UnsupportedError, ValidationError
from velostream.model.change import Epoch
from velostream.tables.base import Snapshot, Table, TableWrites
from velostream.tables.memory.sequence import Part
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.changing import RowChange
    from velostream.engine.context import EngineContext


class Transaction:
    """One transaction: what it reads is of one commit number, with its own writes on top.

    Of two transactions that write the same row the first to commit wins and the other's commit raises
    `TableError.conflict`. Used by one thread at a time: hold `lock`.
    """

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._pin = context.sequence.pin()
        self._drafts: dict[str, DraftTable] = {}
        self.id = uuid.uuid4().hex[:16]
        self.lock = threading.RLock()
        self.is_open = True
        self.gathered: list[RowChange] = []
        """Statements over a stream; they become one continuous query at the commit."""

    @property
    def at(self) -> int:
        """The commit number it reads at."""
        return self._pin.sequence

    @property
    def has_written(self) -> bool:
        return any(draft.changed for draft in self._drafts.values())

    def check_open(self) -> None:
        if not self.is_open:
            raise ValidationError(
                "the transaction has ended", hint="con.begin() begins another one", code="no-transaction"
            )

    def table(self, entry: Entry) -> DraftTable:
        """A table as the transaction sees and changes it."""
        draft = self._drafts.get(entry.id)
        if draft is None:
            table = self._context.table_of(entry)
            if not table.capabilities.transactions:
                raise UnsupportedError.capability(table.kind, "transactions")
            base = table.snapshot(self.at) if isinstance(table, MemoryTable) else table.snapshot()
            draft = self._drafts[entry.id] = DraftTable(table, base, eager=True)
        return draft

    def snapshot(self, entry: Entry) -> Snapshot:
        return self.table(entry).snapshot()

    def frame(self, session: SparkSession, entry: Entry, *, sql: str | None = None) -> DataFrame:
        """A table as a Spark relation, as the transaction sees it."""
        draft = self.table(entry)
        if draft.changed:
            snapshot = draft.snapshot()
            return self._context.relations.frame_of_rows(session, snapshot.scan(), snapshot.schema)
        if isinstance(draft.table, MemoryTable):
            return self._context.frame(session, entry, at=self.at, sql=sql)
        return self._context.frame_of(session, entry, draft.base, sql=sql)

    def commit(self, epoch: Epoch | None = None) -> None:
        """Make all of it seen at once, or raise and leave nothing of it. A repeat of the epoch changes nothing.

        Tables in stores are committed before our own, one store after another, each with the transaction's epoch.
        """
        self.check_open()
        try:
            changed = [draft for draft in self._drafts.values() if draft.changed]
            with self._context.sequence.exclusive():
                self._commit(changed, epoch)
        finally:
            self._end()

    def rollback(self) -> None:
        """Forget all of it. Ending a transaction twice does nothing."""
        if self.is_open:
            self._end()

    def _commit(self, changed: Sequence[DraftTable], epoch: Epoch | None) -> None:
        ours = [draft for draft in changed if isinstance(draft.table, MemoryTable)]
        outside = [draft for draft in changed if draft not in ours]
        for draft in ours:
            draft.check_unchanged(draft.table.snapshot())
        for draft in outside:
            if draft.table.version != draft.base.version:
                raise TableError.conflict(draft.name)
        if outside and epoch is None:
            epoch = Epoch(f"transaction.{self.id}", 0)
        for group in grouped(draft.table for draft in outside):
            shares = [
                TableWrites(draft.table, draft.writes(), draft.base.version)
                for draft in outside
                if draft.table in group
            ]
            group[0].commit_together(shares, epoch)
            self._context.crash_point("transaction.after-store")
        writes = [(draft.table, write) for draft in ours for write in draft.writes()]
        if writes or epoch is not None:
            self._context.sequence.commit(Part(writes=writes, epoch=epoch))

    def _end(self) -> None:
        self.is_open = False
        self._pin.release()
        self._drafts.clear()


def grouped(tables: Iterable[Table]) -> list[list[Table]]:
    """Tables that can be committed in one step, together."""
    groups: list[tuple[object, list[Table]]] = []
    for table in tables:
        identity = table.commit_group
        found = next((members for known, members in groups if known == identity), None)
        if found is None:
            groups.append((identity, [table]))
        else:
            found.append(table)
    return [members for _, members in groups]
