"""The lookup stage: a batch of stream rows meets live tables inside Spark, at a cost that follows the batch.

Each worker holds mapped replicas of the tables (replica.py). Lookups whose keys can be computed from the batch's own
columns are done in one pass through Python; one whose key needs what an earlier lookup found starts the next pass.
Of a table in a store the replica holds what one request found for the distinct keys of the batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from velostream.engine.matches import AnyRow, nearest, with_missing
from velostream.engine.measuring import Hits
from velostream.engine.relations import arrow_result, keep_alive, mentioned, quoted, run_sql, spark_schema
from velostream.engine.replica import LookupReplica, Replica, ReplicaPublisher, open_replica
from velostream.engine.spark_failures import WORKER_TOKEN, spark_errors, spark_errors_translated
from velostream.errors import UnsupportedError
from velostream.model.schema import Column, Schema
from velostream.sql.plan import AsOf, KeyPair, Lookup, Stages
from velostream.tables.base import Snapshot
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.hash_index import Pairs, TooManyPairsError

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

STAGE = "stage"
"""The name under which a plan's SQL knows the batch after its lookups."""
_ROWS_AT_ONCE = 65_536
"""Fewer rows than that are not worth a round of vectorised work."""
_MOST_PAIRS = 4_000_000
"""A batch with more matches is joined in halves, so that its result fits in memory."""
_ROWS_RETURNED = 131_072


class LookupTable(Protocol):
    """A table as the stage looks rows up in it."""

    @property
    def schema(self) -> Schema: ...

    def replica(self, keys: Callable[[], pa.Table]) -> Replica:
        """Rows among which all are that the keys of the batch can find; `keys` computes them, each one once."""


@dataclass(frozen=True)
class ReplicatedTable:
    """A table of ours, all of whose rows are published."""

    schema: Schema
    published: Replica

    def replica(self, keys: Callable[[], pa.Table]) -> Replica:
        return self.published


@dataclass(frozen=True)
class FetchedTable:
    """A table in a store, of which the rows for a batch's keys are fetched by one request."""

    schema: Schema
    columns: tuple[str, ...]
    """What the keys are compared with."""
    snapshot: Snapshot
    replicas: ReplicaPublisher

    def replica(self, keys: Callable[[], pa.Table]) -> Replica:
        names = tuple(self.schema.column(name).name for name in self.columns)
        found = rows_of_keys(self.snapshot, names, keys().rename_columns(list(names)))
        return self.replicas.publish_rows(found.select(list(self.schema.names)), columns=names)


def rows_of_keys(snapshot: Snapshot, names: tuple[str, ...], keys: pa.Table) -> pa.Table:
    """Rows among which all are that have one of the keys, values of these columns, each given once and without NULL."""
    key = snapshot.schema.key
    if sorted(names) == sorted(key):
        return snapshot.lookup(_as_keys(keys.select(list(key))))
    try:
        return snapshot.lookup_by(names, _as_keys(keys))
    except UnsupportedError:
        # By other columns than the key: what the store can't find for us we find among all its rows.
        return snapshot.scan()


def distinct_keys(keys: pa.Table) -> pa.Table:
    """Keys that may find something, each one once.

    Made distinct here: for the keys of one batch a shuffle in Spark would cost more than bringing them all.
    """
    return keys.drop_null().group_by(keys.column_names).aggregate([])


def _as_keys(keys: pa.Table) -> pa.ChunkedArray | pa.Table:
    return keys.column(0) if keys.num_columns == 1 else keys


@dataclass(frozen=True)
class LookupTally:
    """Counts, in the workers, the rows that are looked up in a table and those that it has a row for.

    A task that Spark repeats counts again: figures to look at, nothing to rely on.
    """

    looked_up: Accumulator[int]
    found: Accumulator[int]

    @staticmethod
    def of(session: SparkSession) -> LookupTally:
        context = session.sparkContext
        return LookupTally(context.accumulator(0), context.accumulator(0))

    def hits(self) -> Hits:
        return Hits(self.looked_up.value, self.found.value)

    def count(self, rows: int, matched: Integers) -> None:
        """Count a batch of so many rows, of which these have matches; the same row stands once per match, in a row."""
        self.looked_up.add(rows)
        self.found.add(int(np.count_nonzero(np.diff(matched))) + 1 if len(matched) else 0)


def run_stages(
    session: SparkSession,
    frame: DataFrame,
    stages: Stages,
    *,
    tables: Mapping[str, LookupTable],
    tallies: Mapping[str, LookupTally] | None = None,
) -> DataFrame:
    """The frame of a batch joined to its tables, which are given by the lookups' prefixes, as are the `tallies`.

    Nothing is executed yet but what tables in stores need to know of the batch. Rows keep their order within a
    partition, and among the matches of one row the table's.
    """
    kept = _read_columns(frame, stages)
    used: list[object] = []
    with spark_errors_translated():
        if kept is not None:
            frame = frame.select(*(quoted(name) for name in kept))
        if any(isinstance(table, FetchedTable) for table in tables.values()):
            frame = kept_in_memory(frame, used)
        for lookups in _passes(stages.lookups):
            replicas = {
                lookup.prefix: tables[lookup.prefix].replica(partial(_distinct_keys, frame, lookup, tables))
                for lookup in lookups
            }
            used += replicas.values()
            frame = _looked_up(frame, lookups, replicas, tables, tallies or {})
    return keep_alive(run_sql(session, stages.sql, {STAGE: frame}), *used)


def kept_in_memory(frame: DataFrame, used: list[object]) -> DataFrame:
    """The frame, computed once though it is read for its keys and again for its rows."""
    kept = frame.persist()
    holder = _Holder()
    weakref.finalize(holder, _give_back, kept).atexit = False
    used.append(holder)
    return kept


def _give_back(frame: DataFrame) -> None:
    with suppress(*spark_errors(), OSError):  # Spark may be gone, and the frame with it
        frame.unpersist()


class _Holder:
    """Something that lives as long as a frame does."""


def _distinct_keys(frame: DataFrame, lookup: Lookup, tables: Mapping[str, LookupTable]) -> pa.Table:
    schema = tables[lookup.prefix].schema
    keys = frame.selectExpr(*(f"{_key_text(pair, schema)} AS k{n}" for n, pair in enumerate(lookup.keys)))
    return distinct_keys(arrow_result(keys.dropna("any")))


def _key_text(pair: KeyPair, schema: Schema) -> str:
    return f"CAST({pair.driving} AS {schema.column(pair.column).sql_type})"


def _read_columns(frame: DataFrame, stages: Stages) -> list[str] | None:
    """Columns of the batch that the plan can possibly read; None for all of them."""
    names = frame.columns
    kept = mentioned(names, stages.sql, *(text for lookup in stages.lookups for text in _driving_texts(lookup)))
    return list(kept) if 0 < len(kept) < len(names) else None


def _driving_texts(lookup: Lookup) -> list[str]:
    """The SQL of everything that a lookup reads of the stage so far."""
    times = [] if lookup.as_of is None else [lookup.as_of.driving]
    return [*(pair.driving for pair in lookup.keys), *times]


def _passes(lookups: Sequence[Lookup]) -> Iterator[tuple[Lookup, ...]]:
    """Runs of lookups whose keys don't mention what another one of the run brings."""
    run: list[Lookup] = []
    for lookup in lookups:
        text = "\n".join(_driving_texts(lookup)).lower()
        if any(earlier.prefix.lower() in text for earlier in run):
            yield tuple(run)
            run = []
        run.append(lookup)
    if run:
        yield tuple(run)


@dataclass(frozen=True)
class Probe:
    """One lookup as the worker does it."""

    replica: Replica
    keys: tuple[int, ...]
    """Where in the batch the key columns are."""
    columns: tuple[str, ...]
    outer: bool
    as_of: AsOf | None = None
    time: int = 0
    """Where in the batch the time is, if it asks for the nearest version."""
    tally: LookupTally | None = None
    any_row: AnyRow | None = None

    @classmethod
    def of(
        cls,
        lookup: Lookup,
        schema: Schema,
        replica: Replica,
        tally: LookupTally | None,
        *,
        keys: Sequence[int],
        time: int,
    ) -> Probe:
        """The probe of a lookup in a table with these columns."""
        columns = tuple(schema.column(name).name for name in lookup.columns)
        any_row = AnyRow(schema, lookup.condition, WORKER_TOKEN) if lookup.any_row else None
        return cls(replica, tuple(keys), columns, lookup.outer, lookup.as_of, time, tally, any_row)

    def matches(
        self, opened: LookupReplica, keys: Sequence[pa.Array], times: pa.Array | None, *, most: int | None
    ) -> Pairs:
        """The rows of the batch, and the table's that belong to them; -1 for a row that is kept though it has none.

        `TooManyPairsError` when there are more than `most`.
        """
        count = len(keys[0])
        pairs = opened.find(keys, most=most) if self.any_row is None else self.any_row.of(opened, keys, most=most)
        if self.as_of is not None and times is not None:
            (versions,) = opened.take(pairs.positions, (self.as_of.column,))
            pairs = nearest(pairs, times, versions, self.as_of)
        if self.tally is not None:
            self.tally.count(count, pairs.rows)
        return with_missing(pairs, count) if self.outer else pairs


def _looked_up(
    frame: DataFrame,
    lookups: Sequence[Lookup],
    replicas: Mapping[str, Replica],
    tables: Mapping[str, LookupTable],
    tallies: Mapping[str, LookupTally],
) -> DataFrame:
    """The frame and the columns of its matches, after one pass through the workers."""
    width = len(frame.columns)
    keys: list[str] = []
    found: list[Column] = []
    probes: list[Probe] = []
    for lookup in lookups:
        schema = tables[lookup.prefix].schema
        first = width + len(keys)
        keys += [_key_text(pair, schema) for pair in lookup.keys]
        time = width + len(keys)
        if lookup.as_of is not None:
            keys.append(lookup.as_of.driving)
        found += matched_columns(lookup, schema)
        numbers = range(first, first + len(lookup.keys))
        replica, tally = replicas[lookup.prefix], tallies.get(lookup.prefix)
        probes.append(Probe.of(lookup, schema, replica, tally, keys=numbers, time=time))
    given = frame.selectExpr("*", *keys)
    # The workers go by position: a frame's names may be anything, mapInArrow's argument list may not.
    plain = given.toDF(*(f"c{number}" for number in range(width + len(keys))))
    return plain.mapInArrow(_Stage(width, tuple(probes)), _with_columns(frame.schema, Schema(tuple(found))))


def matched_columns(lookup: Lookup, schema: Schema) -> list[Column]:
    """What a lookup in a table with these columns adds to the stage."""
    return [Column(lookup.prefix + name, schema.column(name).type) for name in lookup.columns]


def _with_columns(schema: StructType, found: Schema) -> StructType:
    from pyspark.sql.types import StructType

    return StructType(schema.fields + spark_schema(found).fields)


@dataclass(frozen=True)
class _Stage:
    """What a worker does with the batches of a partition. Pickled every time, so it names files and holds no rows."""

    width: int
    """How many columns of the batch go on; the keys come after them."""
    probes: tuple[Probe, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = [open_replica(probe.replica) for probe in self.probes]
        for batch in gathered(batches):
            for joined in in_parts(batch, partial(self._joined, opened)):
                for start in range(0, joined.num_rows, _ROWS_RETURNED):
                    yield joined.slice(start, _ROWS_RETURNED)

    def _joined(self, opened: Sequence[LookupReplica], batch: pa.RecordBatch, most: int | None) -> pa.RecordBatch:
        rows: Integers | None = None
        """Which row of the batch each row of the result comes from; None while it is each one once."""
        count = batch.num_rows
        found: list[pa.Array] = []
        for probe, replica in zip(self.probes, opened, strict=True):
            keys = _picked([batch.column(number) for number in probe.keys], rows)
            times = None if probe.as_of is None else _picked([batch.column(probe.time)], rows)[0]
            pairs = probe.matches(replica, keys, times, most=most)
            matches = replica.take(pairs.positions, probe.columns)
            if not np.array_equal(pairs.rows, np.arange(count)):
                found = _picked(found, pairs.rows)
                rows = pairs.rows if rows is None else rows[pairs.rows]
                count = len(rows)
            found += matches
        columns = _picked(batch.columns[: self.width], rows) + found
        return pa.RecordBatch.from_arrays(columns, names=[f"c{number}" for number in range(len(columns))])


def in_parts(
    batch: pa.RecordBatch, joined: Callable[[pa.RecordBatch, int | None], pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What becomes of a batch, or of its halves where that are too many rows; they are counted with more than one."""
    try:
        yield joined(batch, _MOST_PAIRS if batch.num_rows > 1 else None)
    except TooManyPairsError:
        half = batch.num_rows // 2
        yield from in_parts(batch.slice(0, half), joined)
        yield from in_parts(batch.slice(half), joined)


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Neighbouring small batches as one."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= _ROWS_AT_ONCE:
            yield _concatenated(waiting)
            waiting = []
    if waiting:
        yield _concatenated(waiting)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _picked(columns: Sequence[pa.Array], rows: Integers | None) -> list[pa.Array]:
    if rows is None:
        return list(columns)
    indices = pa.array(rows)
    return [column.take(indices) for column in columns]
