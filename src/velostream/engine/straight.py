"""The straight way of rows: they are looked up, computed and put aside by the worker that reads them.

Where the keys of all lookups and all columns of the result are expressions that Arrow computes as Spark does, Spark's
own rows have no part in it, whose making and taking apart costs more than everything else. The result is the one of
the stages' SQL over the same versions. The driver takes it from files, or as it is told where it is small.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from velostream.engine.lookup import LookupTally, Probe, gathered, in_parts, matched_columns
from velostream.engine.pieces import LocalFiles, shares_files
from velostream.engine.relations import arrow_result, cast_columns, spark_schema
from velostream.engine.replica import LookupReplica, Replica, open_replica
from velostream.engine.spark_failures import WORKER_TOKEN, WorkerError
from velostream.engine.staging import Bounds, execute_through
from velostream.errors import VelostreamError
from velostream.model.expression import Expression, columns_of
from velostream.model.schema import Column, Schema
from velostream.sql.plan import Lookup, Stages, Step
from velostream.tables.memory.evaluate import CannotCompile, Compiled, column_of, compile_expression
from velostream.tables.memory.keys import as_array

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from velostream.engine.binding import BoundQuery
    from velostream.engine.reading import Through, Work
    from velostream.sources.base import BadRecord

_BOUNDS = Bounds(fewest_rows=20_000, fewest_bytes=4 << 20, most_rows=500_000, most_bytes=128 << 20)


@dataclass(frozen=True)
class StraightWay:
    """Stages that need nothing of Spark but its workers."""

    stream: Schema
    """The columns of the batches."""
    lookups: tuple[Lookup, ...]
    tables: Mapping[str, Schema]
    """The columns of the tables, by the prefixes of their lookups."""
    step: Step
    gives: Schema

    @classmethod
    def of(
        cls, stages: Stages, *, stream: Schema, tables: Mapping[str, Schema], types: Sequence[pa.DataType]
    ) -> StraightWay | None:
        """The straight way of stages; None if something takes Spark.

        `types` are those of the result in Spark; columns that its SQL has besides, at the end, are ours.
        """
        step = stages.step
        if step is None or step.items is None or not types:
            return None
        staged = _staged(stream, stages.lookups, tables)
        try:
            found = [compile_expression(item, staged).type for item in step.items]
            conditions = [] if step.condition is None else [compile_expression(step.condition, staged).type]
            for lookup in stages.lookups:
                schema = tables[lookup.prefix]
                asked = [(pair.value, schema.column(pair.column).type) for pair in lookup.keys]
                if lookup.as_of is not None:
                    asked.append((lookup.as_of.value, schema.column(lookup.as_of.column).type))
                if any(value is None or compile_expression(value, staged).type != type_ for value, type_ in asked):
                    return None
        except CannotCompile:
            return None
        if found[: len(types)] != list(types) or any(type_ != pa.bool_() for type_ in conditions):
            return None
        gives = Schema(tuple(Column(name, type_) for name, type_ in zip(step.names, found, strict=True)))
        return cls(stream, stages.lookups, tables, step, gives)

    @classmethod
    def of_linear(cls, bound: BoundQuery) -> StraightWay | None:
        """That of a query of one input, each row of which gives its result by itself."""
        step = bound.plan.linear
        if step is None:
            return None
        (read,) = (Schema(one.schema.columns) for one in bound.inputs)
        types = [column.type for column in bound.schema.columns]
        return cls.of(Stages((), step.sql, step), stream=read, tables={}, types=types)

    def rows(
        self,
        session: SparkSession,
        through: Through,
        *,
        replicas: Mapping[str, Replica],
        tallies: Mapping[str, LookupTally],
        folder: Path,
    ) -> pa.Table:
        """The result of a batch. Its rows keep their order, and among the matches of one row the table's.

        What is much of it goes through files in the folder, which are gone afterwards.
        """
        work = self._work(replicas, tallies)
        if not shares_files(session):
            return arrow_result(through(work, spark_schema(self.gives)))
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as own:
            files = LocalFiles(Path(own))

            def after_work(further: Work, columns: StructType | str) -> DataFrame:
                return through(lambda batches: further(work(batches)), columns)

            shares, _ = execute_through(after_work, self.gives.arrow, files, _as_they_are, _BOUNDS)
            found = [self.gives.arrow.empty_table()]
            for share in shares:
                found += [files.read(name) for name in share.names] if share.rows is None else [share.rows]
        return pa.concat_tables(found)

    def here(self) -> Work:
        """What a thread of this process does with rows, of a way without lookups."""
        return self._work({}, {}).results

    def _work(self, replicas: Mapping[str, Replica], tallies: Mapping[str, LookupTally]) -> _StraightWork:
        asks = []
        for lookup in self.lookups:
            schema, prefix = self.tables[lookup.prefix], lookup.prefix
            keys = tuple(pair.value for pair in lookup.keys if pair.value is not None)
            time = None if lookup.as_of is None else lookup.as_of.value
            probe = Probe.of(lookup, schema, replicas[prefix], tallies.get(prefix), keys=(), time=0)
            asks.append(_Ask(probe, keys, time, tuple(column.name for column in matched_columns(lookup, schema))))
        staged = _staged(self.stream, self.lookups, self.tables)
        return _StraightWork(self.stream, staged, tuple(asks), self.step, self.gives, WORKER_TOKEN)


def _staged(stream: Schema, lookups: Sequence[Lookup], tables: Mapping[str, Schema]) -> Schema:
    """The columns there are after the lookups."""
    found = [column for lookup in lookups for column in matched_columns(lookup, tables[lookup.prefix])]
    return Schema((*stream.columns, *found))


def _as_they_are(rows: pa.Table) -> tuple[pa.Table, Sequence[BadRecord]]:
    return rows, ()


@dataclass(frozen=True)
class _Ask:
    """A lookup and what it is driven by."""

    probe: Probe
    keys: tuple[Expression, ...]
    time: Expression | None
    names: tuple[str, ...]
    """Of the columns it brings."""


@dataclass(frozen=True)
class _StraightWork:
    """What a worker does with the batches of a partition. Pickled every time, so it names files and holds no rows."""

    stream: Schema
    staged: Schema
    asks: tuple[_Ask, ...]
    step: Step
    gives: Schema
    token: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The results in a worker of Spark's, where errors of ours have to travel."""
        try:
            yield from self.results(batches)
        except VelostreamError as error:
            raise WorkerError(error, token=self.token) from error

    def results(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        places = self._places()
        schema = pa.schema([self.stream.arrow.field(place) for place in places])
        asks = [_OpenAsk.of(ask, self.staged) for ask in self.asks]
        result = _Result.of(self.step, self.staged, self.gives)

        def joined(rows: pa.RecordBatch, most: int | None) -> pa.RecordBatch:
            for ask in asks:
                rows = ask.joined(rows, most)
            return result.of_rows(rows)

        for batch in gathered(batch.select(places) for batch in batches):
            (rows,) = cast_columns(pa.Table.from_batches([batch]), schema).to_batches() or [batch.slice(0, 0)]
            yield from in_parts(rows, joined)

    def _places(self) -> list[int]:
        """Where in a batch the columns are that anything reads: one at least, which tells how many rows there are."""
        expressions = [*(self.step.items or ()), self.step.condition]
        for ask in self.asks:
            expressions += [*ask.keys, ask.time]
        read = {name.lower() for one in expressions if one is not None for name in columns_of(one)}
        return [place for place, name in enumerate(self.stream.names) if name.lower() in read] or [0]


@dataclass(frozen=True)
class _OpenAsk:
    """A lookup in the worker: its replica mapped, its expressions compiled."""

    ask: _Ask
    opened: LookupReplica
    keys: Sequence[Compiled]
    time: Compiled | None

    @classmethod
    def of(cls, ask: _Ask, staged: Schema) -> _OpenAsk:
        keys = [compile_expression(key, staged) for key in ask.keys]
        time = None if ask.time is None else compile_expression(ask.time, staged)
        return cls(ask, open_replica(ask.probe.replica), keys, time)

    def joined(self, rows: pa.RecordBatch, most: int | None) -> pa.RecordBatch:
        """The rows, each one with what it finds."""
        probe = self.ask.probe
        keys = [_values(key, rows) for key in self.keys]
        times = None if self.time is None else _values(self.time, rows)
        pairs = probe.matches(self.opened, keys, times, most=most)
        found = self.opened.take(pairs.positions, probe.columns)
        if not np.array_equal(pairs.rows, np.arange(rows.num_rows)):
            rows = rows.take(pa.array(pairs.rows))
        return pa.RecordBatch.from_arrays([*rows.columns, *found], names=[*rows.schema.names, *self.ask.names])


@dataclass(frozen=True)
class _Result:
    """What becomes of the rows after the lookups."""

    items: Sequence[Compiled]
    condition: Compiled | None
    schema: pa.Schema

    @classmethod
    def of(cls, step: Step, staged: Schema, gives: Schema) -> _Result:
        items = [compile_expression(item, staged) for item in step.items or ()]
        condition = None if step.condition is None else compile_expression(step.condition, staged)
        return cls(items, condition, gives.arrow)

    def of_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.condition is not None:
            rows = rows.filter(_values(self.condition, rows))
        return pa.RecordBatch.from_arrays([_values(item, rows) for item in self.items], schema=self.schema)


def _values(expression: Compiled, rows: pa.RecordBatch) -> pa.Array:
    return as_array(column_of(expression.run(rows), rows.num_rows, expression.type))
