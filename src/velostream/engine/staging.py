"""Results on their way into a table: few rows come to the driver, many are put aside by the workers.

Into the table's store, which only has to be told of them, or into files from which they are committed in pieces (see
`pieces`). Whether rows are few, each worker decides by its own share of the result, so that nothing is computed twice
to find out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.engine.relations import arrow_result, cast_columns, schema_of
from velostream.engine.spark_failures import WORKER_TOKEN, WorkerError
from velostream.errors import VelostreamError
from velostream.model.change import Mode, Write
from velostream.sources.base import BadRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from velostream.engine.reading import Through
    from velostream.tables.base import RowStager, Table

Prepare = Callable[[pa.Table], tuple[pa.Table, Sequence[BadRecord]]]
"""Makes rows of a table of rows of a result, and sets aside those that can't be. Goes to the workers."""


@dataclass(frozen=True)
class Bounds:
    """How much of its share a worker has in hand."""

    fewest_rows: int
    fewest_bytes: int
    """Less than both is brought to the driver."""
    most_rows: int
    most_bytes: int
    """As much as one of these is put aside before more is computed."""


_IN_STORES = Bounds(100_000, 16 << 20, 500_000, 128 << 20)
"""A store is asked for every share, so that a few rows are sooner brought to the driver."""
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
    shares, refused, schema = execute(frame, stager, prepare, _IN_STORES)
    few = [share.rows for share in shares if share.rows is not None]
    rows = pa.concat_tables(few) if few else prepare(schema.empty_table())[0]
    staged = tuple(name for share in shares for name in share.names)
    return Gathered(rows, staged, refused, sum(share.count for share in shares))


@dataclass(frozen=True)
class Share:
    """What one worker tells: rows, or the names of what it has put aside."""

    count: int
    rows: pa.Table | None = None
    names: Sequence[str] = ()


def execute(
    frame: DataFrame, stager: RowStager, prepare: Prepare, bounds: Bounds
) -> tuple[list[Share], list[BadRecord], pa.Schema]:
    """Execute a frame, once: the shares of the result in its order, what was refused of it, and its columns."""
    schema = schema_of(frame).arrow
    return *execute_through(frame.mapInArrow, schema, stager, prepare, bounds), schema


def execute_through(
    through: Through, schema: pa.Schema, stager: RowStager, prepare: Prepare, bounds: Bounds
) -> tuple[list[Share], list[BadRecord]]:
    """The same of rows with those columns that work can be sent through."""
    given = arrow_result(through(_staged_by(stager, prepare, schema, bounds, WORKER_TOKEN), _SHAPE))
    shares: list[Share] = []
    refused: list[BadRecord] = []
    for kind, content in zip(given.column(0).to_pylist(), given.column(1).to_pylist(), strict=True):
        if kind == _ROWS:
            rows = pa.ipc.open_stream(content).read_all()
            shares.append(Share(rows.num_rows, rows))
        elif kind == _STAGED:
            told = json.loads(content)
            shares.append(Share(told["rows"], names=told["names"]))
        else:
            refused += [BadRecord(raw.encode(), position, reason) for raw, position, reason in json.loads(content)]
    return shares, refused


def _staged_by(
    stager: RowStager, prepare: Prepare, schema: pa.Schema, bounds: Bounds, token: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        try:
            yield from _shares(batches, stager, prepare, schema, bounds, part)
        except VelostreamError as error:
            raise WorkerError(error, token=token) from error

    return run


def _shares(
    batches: Iterator[pa.RecordBatch],
    stager: RowStager,
    prepare: Prepare,
    schema: pa.Schema,
    bounds: Bounds,
    part: int,
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
        if count >= bounds.most_rows or size >= bounds.most_bytes:
            yield _written(waiting, stager, part)
            waiting, count, size, is_many = [], 0, 0, True
    if not count:
        return
    if is_many or count >= bounds.fewest_rows or size >= bounds.fewest_bytes:
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
