"""Rows of a table as Python sees them: mappings, decoded a batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self, overload

import pyarrow as pa

from velostream.tables.base import Row, Rows
from velostream.tables.memory.rows import decoded_rows

_BATCH_ROWS = 4096


class ArrowRows(Rows):
    """The rows of a table of Arrow columns; as long as they are only counted nothing is decoded."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def arrow(self) -> pa.Table:
        return self._table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[Row]:
        for batch in self._table.to_batches(max_chunksize=_BATCH_ROWS):
            yield from decoded_rows(batch)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> ArrowRows: ...

    def __getitem__(self, index: int | slice) -> Row | ArrowRows:
        if isinstance(index, slice):
            return ArrowRows(self._table.take(pa.array(range(len(self))[index], pa.int64())))
        position = range(len(self))[index]
        return next(iter(ArrowRows(self._table.slice(position, 1))))


class RowStream:
    """Rows one by one, for `for` and for `async for`; they can be gone through once.

    Batches are read as they are needed; where that is awaited, in a thread: the event loop never waits for a store.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rows: Iterator[Row] = iter(())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        while (row := next(self._rows, None)) is None:
            self._rows = iter(decoded_rows(next(self._batches)))
        return row

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Row:
        while (row := next(self._rows, None)) is None:
            batch = await asyncio.to_thread(next, self._batches, None)
            if batch is None:
                raise StopAsyncIteration
            self._rows = iter(decoded_rows(batch))
        return row


@dataclass(frozen=True)
class Page:
    """A part of a table's rows, and whether any follow."""

    rows: Rows
    has_more: bool
