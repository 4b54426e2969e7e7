"""A range of a source that threads of this process read and work on, without Spark.

Where reading is left to libraries that let go of Python's lock, threads are as quick as workers, and nothing has to be
brought here from other processes.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import Full, Queue
from typing import TYPE_CHECKING, TypeVar

from velostream.engine.reading import shape_of, shaped
from velostream.sources.base import BadRecord, Offset, Source

if TYPE_CHECKING:
    import pyarrow as pa

    from velostream.engine.reading import Work
    from velostream.model.schema import Schema

_AHEAD = 8
"""So many batches a part may be read ahead of who takes them."""
_LOOK_SECONDS = 0.1
"""How often a thread that is ahead looks whether it is still wanted."""

_Item = TypeVar("_Item")


class NearReading:
    """The records after `start` up to `end` and what `work` makes of them. To be iterated once, and closed."""

    def __init__(self, source: Source, start: Offset, end: Offset, schema: Schema, *, work: Work) -> None:
        """The source is the caller's; where there are several parts, each thread has a copy as a worker would."""
        self._source = source
        self._schema = schema
        self._shape = shape_of(source, schema)
        self._work = work
        self._partitions = source.partitions(start, end)
        self._bad: list[list[BadRecord]] = [[] for _ in self._partitions]
        self._read = 0
        self._copies: list[Source] = []
        self._of_thread = threading.local()

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """What comes of the records, in the source's order."""
        numbers = range(len(self._partitions))
        alone = self._source if len(numbers) == 1 else None
        try:
            parts = [partial(self._part, alone, number) for number in numbers]
            yield from in_order(parts, threads=os.cpu_count() or 1)
        finally:
            for copy in self._copies:
                copy.close()

    def finished(self) -> float:
        """Which part of the range has been read, 0 to 1."""
        return self._read / max(1, len(self._partitions))

    def bad_records(self) -> list[BadRecord]:
        """What could not be decoded so far, in the source's order. Ask once."""
        found = [record for part in self._bad for record in part]
        self._bad = [[] for _ in self._partitions]
        return found

    def _part(self, source: Source | None, number: int) -> Iterator[pa.RecordBatch]:
        read = (source or self._copy()).read(self._partitions[number], self._schema, self._bad[number].append)
        yield from self._work(shaped(read, self._shape))
        self._read += 1

    def _copy(self) -> Source:
        known: Source | None = getattr(self._of_thread, "source", None)
        if known is None:
            known = self._of_thread.source = pickle.loads(pickle.dumps(self._source))  # noqa: S301 - written a moment ago
            self._copies.append(known)
        return known


@dataclass(frozen=True)
class _End:
    """Comes after the last item of a part, with the error that ended it."""

    error: BaseException | None = None


def in_order(parts: Sequence[Callable[[], Iterator[_Item]]], *, threads: int) -> Iterator[_Item]:
    """What the parts give, one part after the other, though several are worked on at a time.

    An error is raised where its item would have come. Closing this ends all parts at their next item.
    """
    stopped = threading.Event()
    waiting: deque[Queue[_Item | _End]] = deque()
    left = iter(parts)
    with ThreadPoolExecutor(threads, thread_name_prefix="reading") as pool:

        def begin_next() -> None:
            part = next(left, None)
            if part is not None:
                waiting.append(Queue(_AHEAD))
                pool.submit(_fill, waiting[-1], part, stopped)

        try:
            # One more than there are threads: whoever is done goes on though the first part isn't taken yet.
            for _ in range(threads + 1):
                begin_next()
            while waiting:
                given = waiting[0].get()
                if not isinstance(given, _End):
                    yield given
                elif given.error is not None:
                    raise given.error
                else:
                    waiting.popleft()
                    begin_next()
        finally:
            stopped.set()


def _fill(found: Queue[_Item | _End], part: Callable[[], Iterator[_Item]], stopped: threading.Event) -> None:
    """Put each item there, then the end."""

    def put(given: _Item | _End) -> None:
        while not stopped.is_set():
            try:
                return found.put(given, timeout=_LOOK_SECONDS)
            except Full:
                continue
        return None

    try:
        for item in part():
            put(item)
            if stopped.is_set():
                return
        put(_End())
    except BaseException as error:  # noqa: BLE001 - raised again by who takes the items
        put(_End(error))
