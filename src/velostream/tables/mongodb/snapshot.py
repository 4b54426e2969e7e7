"""One version of a collection: everything is read as of one instant of the server's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa

from velostream.errors import StoreError, TableError
from velostream.model.expression import Expression
from velostream.model.grouping import Grouping
from velostream.tables.mongodb.client import is_snapshot_gone
from velostream.tables.mongodb.condition import MongodbCondition
from velostream.tables.mongodb.grouping import compile_grouping
from velostream.tables.mongodb.reader import Reader
from velostream.tables.reads import StoreSnapshot

T = TypeVar("T")
Compile = Callable[[Expression], MongodbCondition]


class MongodbSnapshot(StoreSnapshot):
    """Never changes, for as long as the server keeps its history: five minutes, unless it is set up otherwise.

    After that `TableError.version_gone`.
    """

    def __init__(self, name: str, reader: Reader, version: int, *, compile_condition: Compile) -> None:
        super().__init__(name, reader.layout.schema, version)
        self._reader = reader
        self._compile = compile_condition

    def rows_having(self, on: Sequence[str], values: pa.Table, columns: Sequence[str]) -> pa.Table:
        return self._read(lambda: self._reader.rows_having(on, values, columns))

    def scan(self, condition: Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        names = self.names(columns)
        if condition is None:
            return self._read(lambda: self._reader.rows({}, names))
        return self._matching(self._compile(condition), names)

    def count(self, condition: Expression | None = None) -> int:
        if condition is None:
            return self._read(lambda: self._reader.count({}))
        plan = self._compile(condition)
        if plan.rest is None:
            return self._read(lambda: self._reader.count(plan.filter))
        return int(self._matching(plan, []).num_rows)

    def group(self, grouping: Grouping) -> pa.Table | None:
        condition = None if grouping.condition is None else self._compile(grouping.condition)
        pipeline = compile_grouping(grouping, condition, layout=self._reader.layout)
        if pipeline is None:
            return None
        return pipeline.decoded(self._read(lambda: self._reader.aggregate(pipeline.stages)))

    def batches(self, size: int, offset: int = 0) -> Iterator[pa.RecordBatch]:
        pages = self._reader.pages(self.schema.names, size=size, skip=offset)
        while (page := self._read(lambda: next(pages, None))) is not None:
            yield page.combine_chunks().to_batches()[0]

    def _matching(self, plan: MongodbCondition, names: Sequence[str]) -> pa.Table:
        if plan.rest is None:
            return self._read(lambda: self._reader.rows(plan.filter, names))
        fetched = [*names, *(name for name in plan.rest.columns if name not in names)]
        rows = plan.rest.kept(self._read(lambda: self._reader.rows(plan.filter, fetched)))
        return rows.select(list(names) or list(plan.rest.columns[:1]))

    def _read(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except StoreError as error:
            if is_snapshot_gone(error):
                raise TableError.version_gone(self.name, self.version, oldest=self.version + 1) from error
            raise
