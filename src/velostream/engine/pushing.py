"""A SELECT over a stream: its rows as they come, for someone who is looking."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.engine.consumer import Batch, Outcome
from velostream.engine.consumers import TransformingConsumer
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    from velostream.engine.query import Runner

BATCHES_AHEAD = 16
"""How many batches a SELECT over a stream may be ahead of who reads them."""


class PushedRows:
    """The batches of a SELECT over a stream. Iterate over it; `close` ends the query behind it."""

    def __init__(
        self,
        arrived: queue.Queue[pa.Table],
        runner: Runner,
        on_close: Callable[[], None],
        closing: threading.Event,
    ) -> None:
        self._arrived = arrived
        self._runner = runner
        self._on_close: Callable[[], None] | None = on_close
        self._closing = closing

    def __iter__(self) -> Iterator[pa.Table]:
        while self._on_close is not None and not self._closing.is_set():
            all_has_come = self._runner.has_ended
            try:
                yield self._arrived.get(timeout=0.2)
            except queue.Empty:
                self._runner.board.raise_if_dead()
                if all_has_come:
                    return

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


class QueueConsumer(TransformingConsumer):
    """Rows for someone who is looking; nothing of it is kept. Reads on only as fast as they are taken."""

    arrived: queue.Queue[pa.Table]

    def runnable(self) -> bool:
        return super().runnable() and not self.arrived.full()

    def run(self, batch: Batch) -> Outcome:
        rows = self.rows_of(batch)
        give = partial(self.arrived.put_nowait, rows) if rows.num_rows else None
        return Outcome(Part(), rows.num_rows, give)
