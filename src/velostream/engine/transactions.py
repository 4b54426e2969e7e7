"""Transactions: several statements over several tables, at one commit number, committed as one."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from velostream.engine.draft import DraftTable
from velostream.engine.pending import PendingTransactions, Share
from velostream.errors import TableError, UnsupportedError, ValidationError
from velostream.model.change import Epoch
from velostream.tables.base import Snapshot
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.changing import RowChange
    from velostream.engine.context import EngineContext
    from velostream.engine.relations import Reader


class Transaction:
    """One transaction: what it reads is of one commit number, with its own writes on top.

    Of two transactions that write the same row the first to commit wins and the other's commit raises
    `TableError.conflict`. Used by one thread at a time: hold `lock`.
    """

    def __init__(self, context: EngineContext, pending: PendingTransactions) -> None:
        self._context = context
        self._pending = pending
        self._pin = context.sequence.pin()
        self._drafts: dict[str, DraftTable] = {}
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

    def frame(self, session: SparkSession, entry: Entry, *, reader: Reader | None = None) -> DataFrame:
        """A table as a Spark relation, as the transaction sees it."""
        draft = self.table(entry)
        if draft.changed:
            snapshot = draft.snapshot()
            return self._context.relations.frame_of_rows(session, snapshot.scan(), snapshot.schema)
        if isinstance(draft.table, MemoryTable):
            return self._context.frame(session, entry, at=self.at, reader=reader)
        return self._context.frame_of(session, entry, draft.base, reader=reader)

    def commit(self, epoch: Epoch | None = None) -> None:
        """Make all of it seen at once, or raise and leave nothing of it. The epoch is kept with it, in our log.

        Several places are committed one after another; `pending.py` says in which order and what a crash leaves.
        """
        self.check_open()
        try:
            changed = [draft for draft in self._drafts.values() if draft.changed]
            ours = [draft for draft in changed if isinstance(draft.table, MemoryTable)]
            with ExitStack() as held:
                if len(ours) < len(changed):
                    if len(changed) > 1 or epoch is not None:
                        held.enter_context(self._pending.exclusive())
                    else:
                        self._pending.finish_all()
                # A store that is slow to answer must not hold up commits that have nothing to do with it.
                if ours:
                    held.enter_context(self._context.sequence.exclusive())
                self._commit(epoch)
        finally:
            self._end()

    def rollback(self) -> None:
        """Forget all of it. Ending a transaction twice does nothing."""
        if self.is_open:
            self._end()

    def _commit(self, epoch: Epoch | None) -> None:
        shares = []
        for entry_id, draft in self._drafts.items():
            if not draft.changed:
                continue
            read_at = None
            if isinstance(draft.table, MemoryTable):
                draft.check_unchanged(draft.table.snapshot())
            elif draft.table.version != draft.base.version:
                raise TableError.conflict(draft.name)
            else:
                read_at = draft.base.version
            shares.append(Share(entry_id, draft.table, draft.writes(), read_at))
        if shares or epoch is not None:
            self._pending.commit(shares, epoch=epoch)

    def _end(self) -> None:
        self.is_open = False
        self._pin.release()
        self._drafts.clear()
