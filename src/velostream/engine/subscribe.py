"""Signed change batches of a table, as they are committed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.engine.maintain.loading import is_loading
from velostream.model.change import CHANGE, ChangeBatch

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext
    from velostream.tables.memory.sequence import Commit, Pin
    from velostream.tables.memory.table import MemoryTable


def subscribe(
    context: EngineContext, table: MemoryTable, *, since: int | None, alive: Callable[[], bool]
) -> Iterator[ChangeBatch]:
    """The content at `since` (None: nothing, so the first batch is the whole table) turned into what it is now, and on.

    Each batch is the net change up to its version; a consumer that keeps the last version it has seen resumes there.
    A load that is committed in pieces is one change. Ends when the connection closes or the table is dropped.
    """
    moved = threading.Event()

    def on_commit(commit: Commit) -> None:
        if table.id in commit.changed:
            moved.set()

    unsubscribe = context.sequence.listen(on_commit)
    pin: Pin | None = None
    position = since
    try:
        while alive():
            held = _pinned(context, table) if position is None or table.version > position else None
            if held is not None:
                newest = held.sequence
                batch = content_of(table, newest) if position is None else table.changes(position, newest)
                position = newest
                if pin is not None:
                    pin.release()
                pin = held
                if batch.arrow.num_rows:
                    yield batch
                continue
            moved.wait(0.2)
            moved.clear()
    finally:
        unsubscribe()
        if pin is not None:
            pin.release()


def _pinned(context: EngineContext, table: MemoryTable) -> Pin | None:
    """The present state, to be read; None while that is a part of a load."""
    pin = context.sequence.pin()
    known = context.sequence.writer(table.id)
    if known is not None and (is_loading(known) or known.sequence > pin.sequence):
        # What was committed since may have ended a load of which the pin has a part.
        pin.release()
        return None
    return pin


def content_of(table: MemoryTable, sequence: int) -> ChangeBatch:
    """The whole table as of a commit number, as additions."""
    snapshot = table.snapshot(sequence)
    rows = snapshot.scan()
    signs = pa.repeat(pa.scalar(1, pa.int8()), rows.num_rows)
    return ChangeBatch(snapshot.version, rows.append_column(CHANGE, signs))
