"""The general path over big tables: Spark is given the rows that a batch can find, not all there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.engine.catalog import planned_columns
from velostream.engine.lookup import distinct_keys, kept_in_memory, rows_of_keys
from velostream.engine.relations import arrow_result, keep_alive, run_sql
from velostream.engine.replica import open_replica
from velostream.errors import Category, QueryError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.sql.plan import Narrowing

_READ_AS_A_WHOLE = 50_000
"""Spark reads a table of no more rows in less time than it takes to find out which of them a batch asks for."""


class _Size(Enum):
    SMALL = auto()
    BIG = auto()
    SPARKS = auto()
    """Of whatever size, but files that Spark's workers read themselves: it is better joined by them."""


class NarrowedTables:
    """The tables of a query that it needs no more of than what a batch asks for."""

    def __init__(
        self,
        context: EngineContext,
        narrowings: Sequence[Narrowing],
        tables: Mapping[str, Entry],
        *,
        always: bool = False,
    ) -> None:
        """`always`: small tables, too."""
        self._context = context
        self._narrowings = narrowings
        self._tables = tables
        self._always = always

    def frames(self, session: SparkSession, batch: DataFrame, *, driving: str, at: int) -> dict[str, DataFrame]:
        """The batch and these tables as of a commit number, by their relations, for one query over all of them."""
        sizes = {one.input: self._size(one, at) for one in self._narrowings}
        if _Size.BIG not in sizes.values():
            return {driving: batch}
        few = {driving} | {relation for relation, size in sizes.items() if size is _Size.SMALL}
        """Relations of which not too much is brought here for the values that they lead to."""
        used: list[object] = []
        # It is read for what it asks, and again for its rows.
        frames = {driving: keep_alive(kept_in_memory(batch.select("*"), used), *used)}
        for narrowing in self._narrowings:
            relation, entry = narrowing.input, self._tables[narrowing.input]
            known = sizes[relation] is _Size.BIG and all(one.relation in few for one in narrowing.asked)
            keys = self._keys(session, narrowing, frames) if known else None
            if keys is None:
                frames[relation] = self._context.frame(session, entry, at=at)
                continue
            few.add(relation)
            schema = self._context.table(entry.id).schema
            schema = schema.select(planned_columns(schema.names, entry))
            found = self._found(narrowing, keys, at).select(list(schema.names))
            frames[relation] = self._context.relations.frame_of_rows(session, found, schema)
        return frames

    def _found(self, narrowing: Narrowing, keys: pa.Table, at: int) -> pa.Table:
        """Rows among which all are that have one of the keys."""
        entry = self._tables[narrowing.input]
        store = self._context.stores.find(entry.id)
        if store is not None:
            return rows_of_keys(store.snapshot(), narrowing.columns, keys)
        table = self._context.memory_table(entry.id)
        replica = self._context.replicas.publish(table, columns=narrowing.columns, at=at)
        _, rows = open_replica(replica).lookup(keys.columns, table.schema.names)
        return rows

    def _keys(self, session: SparkSession, narrowing: Narrowing, frames: Mapping[str, DataFrame]) -> pa.Table | None:
        """What the batch asks for, each value once; None where it fails for a row."""
        try:
            asked = [
                arrow_result(run_sql(session, one.sql, {one.relation: frames[one.relation]})) for one in narrowing.asked
            ]
        except QueryError as error:
            # A row that the query would leave out before it comes to that. If not, it fails there.
            if error.category is not Category.DATA:
                raise
            return None
        return distinct_keys(pa.concat_tables(asked)).rename_columns(list(narrowing.columns))

    def _size(self, narrowing: Narrowing, at: int) -> _Size:
        entry = self._tables[narrowing.input]
        store = self._context.stores.find(entry.id)
        if store is not None:
            return _Size.BIG if store.snapshot().parquet_files() is None else _Size.SPARKS
        big = self._always or self._context.memory_table(entry.id).snapshot(at).count() > _READ_AS_A_WHOLE
        return _Size.BIG if big else _Size.SMALL
