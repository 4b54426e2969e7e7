"""The one adapter from a source to Spark: a range of offsets becomes a frame whose partitions the workers read.

Records that can't be decoded travel beside the frame, in an accumulator, so that good records carry no extra columns
and reading them costs nothing more.
"""

from __future__ import annotations

import itertools
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.engine.relations import spark_schema
from velostream.engine.spark_failures import WORKER_TOKEN, WorkerError
from velostream.errors import VelostreamError
from velostream.model.change import CHANGE
from velostream.model.schema import Column, Schema
from velostream.sources.base import BadRecord, Emits, Offset, OnBad, Partition, Source

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_TASKS_PER_CORE = 3
"""Enough to even out parts of unequal size; more would only cost scheduling."""

Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a worker makes of the batches of a partition; goes to the workers pickled."""
Through = Callable[[Work, "StructType | str"], "DataFrame"]
"""Sends rows through such work and gives the frame of what comes of it, with the columns that are said."""

_BadByTask = dict[tuple[str, int], list[BadRecord]]
"""Bad records of each task of each reading."""


@dataclass(frozen=True)
class Reading:
    """A range of a source as a frame, not executed yet."""

    frame: DataFrame
    """The schema's columns, in the source's order; plus `_change` where the source emits upserts or changes."""
    through: Through
    """Has the workers that read the rows do something with them, before Spark sees any."""
    _take_bad: Callable[[], list[BadRecord]]
    finished: Callable[[], float]
    """Which part of the range has been read, 0 to 1; of a reading that is `counted`."""

    def bad_records(self) -> list[BadRecord]:
        """What could not be decoded, in the source's order. Ask once, after the frame has been executed in full, or
        has failed and is given up.
        """
        return self._take_bad()


def read_range(
    session: SparkSession, source: Source, start: Offset, end: Offset, schema: Schema, *, counted: bool = False
) -> Reading:
    """The records after `start` up to `end`. Executing the frame more than once reads more than once, but never
    reports a bad record twice. `counted`: the workers say what they have finished.
    """
    partitions = source.partitions(start, end)
    shape = shape_of(source, schema)
    if not partitions:
        nothing = session.createDataFrame([], spark_schema(shape))
        return Reading(nothing, nothing.mapInArrow, list, lambda: 1.0)
    context = session.sparkContext
    bad = _bad_records_of(context)
    token = uuid.uuid4().hex
    error_token = WORKER_TOKEN
    tasks = _cut(partitions, context.defaultParallelism * _TASKS_PER_CORE)

    def read_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                found: list[BadRecord] = []
                yield from _read_task(source, tasks[task], schema, shape, found.append, error_token=error_token)
                if found or counted:
                    bad.add({(token, task): found})

    numbers = session.range(0, len(tasks), 1, len(tasks))

    def through(work: Work, columns: StructType | str) -> DataFrame:
        return numbers.mapInArrow(lambda batches: work(read_tasks(batches)), columns)

    frame = numbers.mapInArrow(read_tasks, spark_schema(shape))
    return Reading(frame, through, lambda: _taken(bad, token), lambda: len(_places(bad, token)) / len(tasks))


def shape_of(source: Source, schema: Schema) -> Schema:
    """What reading gives: the columns, all of them nullable, and the sign where records have one."""
    columns = [Column(column.name, column.type) for column in schema.columns]
    if source.capabilities.emits is not Emits.APPENDS:
        columns.append(Column(CHANGE, pa.int8()))
    return Schema(tuple(columns), schema.key)


def _cut(partitions: Sequence[Partition], most: int) -> list[Sequence[Partition]]:
    """Runs of neighbouring partitions, at most so many, so that order is kept from task to task."""
    count = min(len(partitions), most)
    bounds = [len(partitions) * number // count for number in range(count + 1)]
    return [partitions[low:high] for low, high in itertools.pairwise(bounds)]


def _read_task(
    source: Source,
    partitions: Sequence[Partition],
    schema: Schema,
    shape: Schema,
    on_bad: OnBad,
    *,
    error_token: str,
) -> Iterator[pa.RecordBatch]:
    try:
        for partition in partitions:
            yield from shaped(source.read(partition, schema, on_bad), shape)
    except VelostreamError as error:
        raise WorkerError(error, token=error_token) from error


def shaped(batches: Iterator[pa.RecordBatch], shape: Schema) -> Iterator[pa.RecordBatch]:
    """Batches with exactly the promised columns, which come first; rows without a sign are there."""
    wanted = shape.arrow
    for batch in batches:
        if len(batch.schema) < len(wanted):
            present = pa.repeat(pa.scalar(1, pa.int8()), batch.num_rows)
            yield pa.RecordBatch.from_arrays([*batch.columns, present], schema=wanted)
        elif batch.schema.equals(wanted):
            yield batch
        else:
            yield pa.RecordBatch.from_arrays(batch.columns[: len(wanted)], schema=wanted)


_accumulators: weakref.WeakKeyDictionary[SparkContext, Accumulator[_BadByTask]] = weakref.WeakKeyDictionary()
_accumulators_lock = threading.Lock()


def _bad_records_of(context: SparkContext) -> Accumulator[_BadByTask]:
    """The accumulator of bad records: one per context, since Spark never forgets an accumulator."""
    with _accumulators_lock:
        found = _accumulators.get(context)
        if found is None:
            found = _accumulators[context] = context.accumulator({}, _merging())
        return found


def _merging() -> Any:
    from pyspark.accumulators import AccumulatorParam

    class BadRecordsParam(AccumulatorParam[_BadByTask]):
        """Joins what tasks report. A task that ran twice reports the same records, or fewer if it was cut short."""

        def zero(self, value: _BadByTask) -> _BadByTask:
            return {}

        def addInPlace(self, value1: _BadByTask, value2: _BadByTask) -> _BadByTask:  # noqa: N802 - Spark's name
            # In place: the driver's thread that adds and the one that takes must share one dictionary.
            for place, records in value2.items():
                if len(records) >= len(value1.get(place, ())):
                    value1[place] = records
            return value1

    return BadRecordsParam()


def _taken(accumulator: Accumulator[_BadByTask], token: str) -> list[BadRecord]:
    """The bad records of one reading, which the accumulator then forgets."""
    return [record for place in _places(accumulator, token) for record in accumulator.value.pop(place)]


def _places(accumulator: Accumulator[_BadByTask], token: str) -> list[tuple[str, int]]:
    return sorted(place for place in list(accumulator.value) if place[0] == token)
