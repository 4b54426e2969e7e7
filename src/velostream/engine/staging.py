"""Results on their way into a table: few rows come to the driver, many are put into the table's store by the workers.

Which it is, each worker decides by its own share of the result, so that nothing is computed twice to find out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.engine.relations import (
    WORKER_TOKEN,
    WorkerError,
    arrow_result,
    cast_columns,
    schema_of,
)
from velostream.errors import VelostreamError
from velostream.model.change import Mode, Write
from velostream.sources.base import BadRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from velostream.tables.base import RowStager, Table

Prepare = Callable[[pa.Table], tuple[pa.Table, Sequence[BadRecord]]]
"""Makes rows of a table of rows of a result, and sets aside those that can't be. Goes to the workers."""

_FEWEST_ROWS, _FEWEST_BYTES = 100_000, 16 << 20
"""Less than both of a worker's rows is sooner brought to the driver than written apart."""
_MOST_ROWS, _MOST_BYTES = 500_000, 128 << 20
"""As much as one of these is written before more is computed."""
_ROWS, _STAGED, _REFUSED = "rows", "staged", "refused"
_SHAPE = "kind STRING, content BINARY"


@dataclass(frozen=True)
class Gathered:
    """A result that is ready to be committed to the table it was gathered for."""

    rows: pa.Table
    staged: tuple[str, ...]
    refused: Sequence[BadRecord]
    count: int
    """Of all rows but those refused."""

    @classmethod
    def here(cls, prepared: tuple[pa.Table, Sequence[BadRecord]]) -> Gathered:
        rows, refused = prepared
        return cls(rows, (), refused, rows.num_rows)

    def write(self, mode: Mode) -> Write:
        return Write(mode, self.rows, staged=self.staged)


def gather(frame: DataFrame, table: Table, prepare: Prepare) -> Gathered:
    """Execute a frame for a table, once."""
    stager = table.stager()
    if stager is None:
        return Gathered.here(prepare(arrow_result(frame)))
    schema = schema_of(frame).arrow
    staging = frame.mapInArrow(_staged_by(stager, prepare, schema, WORKER_TOKEN), _SHAPE)
    given = arrow_result(staging)
    found: dict[str, list[bytes]] = {_ROWS: [], _STAGED: [], _REFUSED: []}
    for kind, content in zip(given.column(0).to_pylist(), given.column(1).to_pylist(), strict=True):
        found[kind].append(content)
    few = [pa.ipc.open_stream(content).read_all() for content in found[_ROWS]]
    rows = pa.concat_tables(few) if few else prepare(schema.empty_table())[0]
    shares = [json.loads(content) for content in found[_STAGED]]
    refused = [
        BadRecord(raw.encode(), position, reason)
        for content in found[_REFUSED]
        for raw, position, reason in json.loads(content)
    ]
    staged = tuple(name for share in shares for name in share["names"])
    return Gathered(rows, staged, refused, rows.num_rows + sum(share["rows"] for share in shares))


def _staged_by(
    stager: RowStager, prepare: Prepare, schema: pa.Schema, token: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        try:
            yield from _shares(batches, stager, prepare, schema, part)
        except VelostreamError as error:
            raise WorkerError(error, token=token) from error

    return run


def _shares(
    batches: Iterator[pa.RecordBatch], stager: RowStager, prepare: Prepare, schema: pa.Schema, part: int
) -> Iterator[pa.RecordBatch]:
    """What becomes of the rows of one worker's share."""
    waiting: list[pa.Table] = []
    count = size = 0
    is_many = False
    for batch in batches:
        rows, refused = prepare(cast_columns(pa.Table.from_batches([batch]), schema))
        if refused:
            yield _told(
                _REFUSED, json.dumps([[bad.raw.decode(), bad.position, bad.reason] for bad in refused]).encode()
            )
        waiting.append(rows)
        count += rows.num_rows
        size += rows.nbytes
        if count >= _MOST_ROWS or size >= _MOST_BYTES:
            yield _written(waiting, stager, part)
            waiting, count, size, is_many = [], 0, 0, True
    if not count:
        return
    if is_many or count >= _FEWEST_ROWS or size >= _FEWEST_BYTES:
        yield _written(waiting, stager, part)
    else:
        yield _told(_ROWS, _as_stream(pa.concat_tables(waiting)))


def _written(waiting: Sequence[pa.Table], stager: RowStager, part: int) -> pa.RecordBatch:
    rows = pa.concat_tables(waiting)
    names = list(stager.stage(rows, part=part))
    return _told(_STAGED, json.dumps({"names": names, "rows": rows.num_rows}).encode())


def _told(kind: str, content: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([kind]), pa.array([content], pa.binary())], names=["kind", "content"])


def _as_stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
