"""Steps of a delta plan carried out: over Arrow columns where that gives Spark's answer, else in Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from velostream.engine.relations import arrow_result, keep_alive, run_sql
from velostream.model.change import CHANGE, signed
from velostream.model.expression import columns_of
from velostream.model.schema import Schema
from velostream.tables.memory.evaluate import CannotCompile, Compiled, column_of, compile_expression

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from velostream.engine.context import EngineContext
    from velostream.sql.plan import Step


class StepRunner:
    """A step bound to the columns it reads and gives. Gives signed rows for signed rows.

    Raises `TableError` or `QueryError` where an expression fails for a row.
    """

    def __init__(self, context: EngineContext, step: Step, *, reads: Mapping[str, Schema], gives: Schema) -> None:
        """`reads` are the columns of its relations, `gives` those of its result as Spark's analyser found them."""
        self._context = context
        self._sql = step.sql
        self._reads = reads
        self._gives = gives
        self._condition: Compiled | None = None
        self._items: list[Compiled] | None = None
        self.needed: tuple[str, ...] | None = None
        """Columns that it reads of its one relation; None: maybe all."""
        if step.items is not None and len(reads) == 1:
            self._compile(step, *reads.values())

    @property
    def needs_spark(self) -> bool:
        return self._items is None

    def run(self, rows: Mapping[str, pa.Table]) -> pa.Table:
        """The result's columns and `_change` for rows, with `_change`, of each relation."""
        if self._items is None:
            return self._by_spark(rows)
        (only,) = rows.values()
        if self._condition is not None:
            mask = column_of(self._condition.run(only), only.num_rows, pa.bool_())
            only = only.filter(mask)
        columns = [
            column_of(item.run(only), only.num_rows, column.type)
            for item, column in zip(self._items, self._gives.columns, strict=True)
        ]
        return pa.Table.from_arrays([*columns, only.column(CHANGE)], names=[*self._gives.names, CHANGE])

    def _compile(self, step: Step, schema: Schema) -> None:
        try:
            items = [compile_expression(item, schema) for item in step.items or ()]
            condition = None if step.condition is None else compile_expression(step.condition, schema)
        except CannotCompile:
            return
        types = [column.type for column in self._gives.columns]
        if condition is not None and condition.type != pa.bool_():
            return
        if [item.type for item in items] == types:
            self._items, self._condition = items, condition
            parts = [*(step.items or ()), *(() if step.condition is None else (step.condition,))]
            read = {schema.column(name).name for part in parts for name in columns_of(part)}
            self.needed = tuple(name for name in schema.names if name in read) or schema.names[:1]

    def _by_spark(self, rows: Mapping[str, pa.Table]) -> pa.Table:
        came = {name: of_sign(table, 1) for name, table in rows.items()}
        gone = {name: of_sign(table, -1) for name, table in rows.items()}
        return difference(self._context, self._sql, self._reads, before=gone, now=came, gives=self._gives)


def difference(
    context: EngineContext,
    sql: str,
    reads: Mapping[str, Schema],
    *,
    before: Mapping[str, pa.Table],
    now: Mapping[str, pa.Table],
    gives: Schema,
) -> pa.Table:
    """What a query gives over some rows as +1, and what it gives over others as -1; one execution in Spark."""
    from pyspark.sql.functions import lit

    session = context.spark.session()
    found: DataFrame | None = None
    for sign, rows in ((-1, before), (1, now)):
        if is_empty(list(rows.values())):
            continue
        frames = {name: context.relations.frame_of_rows(session, rows[name], schema) for name, schema in reads.items()}
        frame = run_sql(session, sql, frames)
        marked = keep_alive(frame.withColumn(CHANGE, lit(sign).cast("tinyint")), frame)
        found = marked if found is None else keep_alive(found.union(marked), found, marked)
    if found is None:
        return changes_of(gives)
    changes = arrow_result(found).rename_columns([*gives.names, CHANGE])
    return pa.concat_tables([signed(of_sign(changes, sign), sign) for sign in (-1, 1)])


def changes_of(schema: Schema) -> pa.Table:
    """No changes of rows of that schema."""
    return schema.arrow.append(pa.field(CHANGE, pa.int8())).empty_table()


def of_sign(rows: pa.Table, sign: int) -> pa.Table:
    """The rows that came or that went, without their sign."""
    return rows.filter(pc.equal(rows.column(CHANGE), pa.scalar(sign, pa.int8()))).drop_columns([CHANGE])


def is_empty(tables: Sequence[pa.Table]) -> bool:
    return not any(table.num_rows for table in tables)
