"""Signed change batches of a table, as they are committed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.model.change import CHANGE, ChangeBatch

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext
    from velostream.tables.memory.sequence import Commit
    from velostream.tables.memory.table import MemoryTable


def subscribe(
    context: EngineContext, table: MemoryTable, *, since: int | None, alive: Callable[[], bool]
) -> Iterator[ChangeBatch]:
    """The content at `since` (None: nothing, so the first batch is the whole table) turned into what it is now, and on.

    Each batch is the net change up to its version; a consumer that keeps the last version it has seen resumes there.
    Ends when the connection closes or the table is dropped.
    """
    moved = threading.Event()

    def on_commit(commit: Commit) -> None:
        if table.id in commit.changed:
            moved.set()

    unsubscribe = context.sequence.listen(on_commit)
    pin = context.sequence.pin() if since is None else None
    try:
        if pin is not None:
            first = content_of(table, pin.sequence)
            position = pin.sequence
            if first.arrow.num_rows:
                yield first
        else:
            position = since or 0
        while alive():
            version = table.version
            if version > position:
                held = context.sequence.pin()
                batch = table.changes(position, held.sequence)
                position = held.sequence
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


def content_of(table: MemoryTable, sequence: int) -> ChangeBatch:
    """The whole table as of a commit number, as additions."""
    snapshot = table.snapshot(sequence)
    rows = snapshot.scan()
    signs = pa.repeat(pa.scalar(1, pa.int8()), rows.num_rows)
    return ChangeBatch(snapshot.version, rows.append_column(CHANGE, signs))
