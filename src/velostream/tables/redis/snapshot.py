"""The newest state of a table in Redis, read call by call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from velostream.model.expression import Expression
from velostream.tables.memory.compare import hashable_rows
from velostream.tables.reads import StoreSnapshot
from velostream.tables.redis.condition import RedisCondition
from velostream.tables.redis.reader import Reader

Compile = Callable[[Expression], RedisCondition]


class RedisSnapshot(StoreSnapshot):
    """What the store holds at the moment of each call; `version` is the one it had when the snapshot was taken.

    Redis keeps no older states, so two calls may see two states unless they are made within `Table.exclusive()`. One
    call sees one state, but of hashes that other programs make the names are gathered before the rows are read.
    """

    def __init__(self, name: str, reader: Reader, version: int, *, compile_condition: Compile) -> None:
        super().__init__(name, reader.layout.schema, version)
        self._reader = reader
        self._compile = compile_condition

    def rows_having(self, on: Sequence[str], values: pa.Table, columns: Sequence[str]) -> pa.Table:
        if tuple(on) == self.schema.key:
            return self._reader.having(values, columns)
        wanted = set(hashable_rows(values))
        fetched = [*columns, *(name for name in on if name not in columns)]
        rows = self._reader.all_rows(fetched)
        places = [place for place, value in enumerate(hashable_rows(rows.select(list(on)))) if value in wanted]
        return rows.take(pa.array(places, type=pa.int64())).select(list(columns))

    def scan(self, condition: Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        names = self.names(columns)
        if condition is None:
            return self._reader.all_rows(names)
        return self._matching(self._compile(condition), names)

    def count(self, condition: Expression | None = None) -> int:
        if condition is None:
            return self._reader.count()
        return int(self._matching(self._compile(condition), self.schema.names[:1]).num_rows)

    def batches(self, size: int, offset: int = 0) -> Iterator[pa.RecordBatch]:
        rows = self._reader.all_rows(self.schema.names)
        for start in range(offset, rows.num_rows, size):
            yield rows.slice(start, size).combine_chunks().to_batches()[0]

    def _matching(self, plan: RedisCondition, names: Sequence[str]) -> pa.Table:
        further = () if plan.rest is None else plan.rest.columns
        fetched = [*names, *(name for name in further if name not in names)]
        if plan.keys is not None:
            rows = self._reader.having(plan.keys, fetched, ordered=True)
        elif plan.range is not None:
            rows = self._reader.of_range(plan.range, fetched)
        else:
            rows = self._reader.all_rows(fetched)
        return (rows if plan.rest is None else plan.rest.kept(rows)).select(list(names))
