"""Signed change batches of a table, as they are committed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from velostream.model.change import ChangeBatch

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
    try:
        position = 0 if since is None else since
        whole = since is None
        while alive():
            version = table.version
            if version > position:
                batch = _content(table, version) if whole else table.changes(position, version)
                whole = False
                position = version
                if batch.arrow.num_rows:
                    yield batch
                continue
            moved.wait(0.2)
            moved.clear()
    finally:
        unsubscribe()


def _content(table: MemoryTable, version: int) -> ChangeBatch:
    """The whole table at a version, as additions."""
    import pyarrow as pa

    from velostream.model.change import CHANGE

    rows = table.snapshot(version).scan()
    signs = pa.repeat(pa.scalar(1, pa.int8()), rows.num_rows)
    return ChangeBatch(version, rows.append_column(CHANGE, signs))
