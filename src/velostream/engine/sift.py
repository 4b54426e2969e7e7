"""Finding the rows of a batch that make a statement fail, so that they become dead letters and the rest goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from velostream.engine.relations import arrow_result
from velostream.errors import Category, QueryError, TableError, VelostreamError
from velostream.sources.base import BadRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from velostream.engine.consumer import Batch

MOST_GUILTY = 64
"""A batch with more bad rows than this is no accident: the statement fails."""


def is_row_error(error: Exception) -> bool:
    """Whether a failure is an expression's (a bad cast, an overflow) and so some row's fault."""
    return isinstance(error, QueryError | TableError) and error.category is Category.DATA


def sift(batch: Batch, attempt: Callable[[Batch], object]) -> tuple[Batch, list[BadRecord]]:
    """The batch without its guilty rows, and those. Halves until the failing rows stand alone.

    `attempt` runs the statement over a batch and raises an `is_row_error` for a failing row; any other is passed on.
    """
    rows = arrow_result(batch.frame)
    guilty: dict[int, str] = {}

    def part(start: int, length: int) -> Batch:
        return _of_rows(batch, rows.slice(start, length))

    def search(start: int, length: int) -> None:
        try:
            attempt(part(start, length))
        except VelostreamError as error:
            if not is_row_error(error) or len(guilty) >= MOST_GUILTY:
                raise
            if length == 1:
                guilty[start] = error.message
                return
            search(start, length // 2)
            search(start + length // 2, length - length // 2)

    search(0, rows.num_rows)
    kept = [number for number in range(rows.num_rows) if number not in guilty]
    records = [
        BadRecord(
            json.dumps(rows.slice(number, 1).to_pylist()[0], default=str).encode(), f"row {number} of a batch", reason
        )
        for number, reason in guilty.items()
    ]
    return _of_rows(batch, rows.take(kept)), records


def _of_rows(batch: Batch, rows: pa.Table) -> Batch:
    frame = batch.session.createDataFrame(rows, schema=batch.frame.schema)
    return replace(batch, frame=frame, results={}, rows=None, read_through=None)
