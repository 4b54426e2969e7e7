"""Reads over one connection: scans, counts and batched finds, from the store's rows to Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import TableError
from velostream.model.expression import Expression
from velostream.model.grouping import Grouping
from velostream.model.types import render_type
from velostream.tables.difference import Present
from velostream.tables.memory.compare import hashable_rows
from velostream.tables.memory.conform import stored_schema
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import as_array
from velostream.tables.relational.condition import ConditionCompiler, RelationalCondition
from velostream.tables.relational.dialect import ROWS_FETCHED_AT_ONCE, Dialect, DriverConnection
from velostream.tables.relational.grouping import GroupingStatement, compile_grouping
from velostream.tables.relational.layout import Layout, StoredColumn

_ROWS_AT_ONCE = 10_000
_WORTH_SORTING = 100
_PLACE = "\0place"
"""No column of a table has this name."""


@dataclass(frozen=True, slots=True)
class _KeyCondition:
    """Rows of a key, found by the store's own index."""

    dialect: Dialect
    layout: Layout

    @property
    def columns(self) -> Sequence[StoredColumn]:
        return self.layout.key

    def text(self, values: Sequence[str]) -> str:
        names = [f"t.{self.dialect.quote(column.stored_name)}" for column in self.columns]
        return self.dialect.key_condition(self.layout, names, values)


@dataclass(frozen=True, slots=True)
class _ColumnsCondition:
    """Rows that have values in columns; NULL equals NULL in those of `null_columns`."""

    dialect: Dialect
    columns: Sequence[StoredColumn]
    null_columns: frozenset[str]

    def text(self, values: Sequence[str]) -> str:
        parts = []
        for column, value in zip(self.columns, values, strict=True):
            template = column.codec.equality or "{}"
            name = f"t.{self.dialect.quote(column.stored_name)}"
            left, right = template.format(name), template.format(value)
            if self.dialect.finds_nulls_apart:
                parts.append(f"{name} IS NULL" if value == "NULL" else f"{left} = {right}")
            else:
                parts.append(
                    self.dialect.same(left, right) if column.name in self.null_columns else f"{left} = {right}"
                )
        return " AND ".join(parts)


@dataclass(frozen=True, slots=True)
class Found:
    """Rows that have given values."""

    numbers: Integers
    """For each row, which of the values it has."""
    rows: pa.Table
    identities: Sequence[Any]
    """For each row, what tells it apart; empty for rows found by their key and where there is nothing."""


class Reader:
    """Reads one table over connections it is given. For any thread."""

    def __init__(self, dialect: Dialect, layout: Layout) -> None:
        self.dialect = dialect
        self.layout = layout
        self.stored_schema = stored_schema(layout.schema)
        self.conditions = ConditionCompiler(dialect, layout)

    def scan(
        self, connection: DriverConnection, condition: Expression | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Rows for which the condition is true, in the table's order."""
        compiled = self.conditions.compile(condition)
        wanted = self.layout.select(columns)
        needed = compiled.remainder_columns
        fetched = [*wanted, *(column for column in self.layout.select(needed) if column not in wanted)]
        batches = self._batches(self._rows(connection, compiled, self._names(fetched)), fetched, _ROWS_AT_ONCE)
        names = [column.name for column in wanted]
        pieces = [compiled.kept(pa.Table.from_batches([batch])).select(names) for batch in batches]
        return pa.concat_tables([self._schema(wanted).empty_table(), *pieces])

    def scan_identified(self, connection: DriverConnection, condition: Expression | None) -> Present:
        """Rows for which the condition is true, with what tells them apart."""
        compiled = self.conditions.compile(condition)
        select = [*self._names(self.layout.columns), self.layout.identity or "NULL"]
        *values, handles = _transposed(self._rows(connection, compiled, select), len(select))
        rows = self._table(values, self.layout.columns).append_column(_PLACE, pa.array(np.arange(len(handles))))
        kept = compiled.kept(rows)
        return Present(kept.drop_columns([_PLACE]), [handles[place] for place in kept.column(_PLACE).to_pylist()])

    def batches(self, connection: DriverConnection, size: int, offset: int) -> Iterator[pa.RecordBatch]:
        """All rows from the `offset`-th on, in batches of at most `size`, as the store gives them."""
        rows = self._rows(connection, self.conditions.compile(None), self._names(self.layout.columns))
        return self._batches(islice(rows, offset, None), self.layout.columns, size)

    def count(self, connection: DriverConnection, condition: Expression | None = None) -> int:
        compiled = self.conditions.compile(condition)
        if compiled.remainder is not None:
            return len(self.scan(connection, condition, compiled.remainder_columns))
        where = f" WHERE {compiled.text}" if compiled.text else ""
        found: int = self.dialect.scalar(
            connection, f"SELECT COUNT(*) FROM {self.layout.quoted}{where}", compiled.parameters
        )
        return found

    def grouping(self, grouping: Grouping) -> GroupingStatement | None:
        """What the store is asked for a grouping; None when it can't be trusted with it."""
        condition = self.conditions.compile(grouping.condition)
        return compile_grouping(grouping, condition, dialect=self.dialect, layout=self.layout)

    def group(self, connection: DriverConnection, statement: GroupingStatement) -> pa.Table | None:
        rows = self.dialect.rows(connection, statement.text, statement.parameters)
        return statement.decoded(rows)

    def compares(self, names: Sequence[str]) -> bool:
        """Whether the store can be trusted to find rows by values of these columns alone."""
        by_key = tuple(names) == self.layout.schema.key
        return by_key or all(column.codec.equality is not None for column in self.layout.select(names))

    def find(self, connection: DriverConnection, values: pa.Table, columns: Sequence[str] | None = None) -> Found:
        """The rows that have distinct values in the columns of `values`, in the table's order; NULL equals NULL.

        At least those: where the store can't compare a column, rows with other values in it are among them.
        """
        wanted = self.layout.select(columns)
        select = [f"t.{name}" for name in self._names(wanted)]
        if tuple(values.column_names) == self.layout.schema.key:
            condition = _KeyCondition(self.dialect, self.layout)
            order = _sorted_places(values)
            rows = self.dialect.find(connection, self.layout, condition, values.take(pa.array(order)), select)
            numbers, *found = _transposed(rows, len(select) + 1)
            return Found(order[np.array(numbers, dtype=np.int64)], self._table(found, wanted), ())
        if self.layout.identity is None:
            numbers, *found = self._having(connection, values, select)
            return Found(np.array(numbers, dtype=np.int64), self._table(found, wanted), ())
        numbers, *found, identities = self._having(connection, values, [*select, f"t.{self.layout.identity}"])
        # A row that another program wrote may lack the number that we give to ours.
        places = sorted(range(len(identities)), key=lambda place: (identities[place] is None, identities[place] or 0))
        rows_found = self._table(found, wanted).take(pa.array(places, pa.int64()))
        ordered = np.array(numbers, dtype=np.int64)[places]
        return Found(ordered, rows_found, [identities[place] for place in places])

    def _having(self, connection: DriverConnection, values: pa.Table, select: Sequence[str]) -> list[list[Any]]:
        """Numbers of values, then what is selected of the rows that have them in the columns the store can compare."""
        comparable = [c for c in self.layout.select(values.column_names) if c.codec.equality is not None]
        if not comparable:
            statement = f"SELECT 0, {', '.join(select)} FROM {self.layout.quoted} t"
            return _transposed(self.dialect.rows(connection, statement), len(select) + 1)
        if len(comparable) < values.num_columns:
            values = _distinct(values.select([column.name for column in comparable]))
        nulls = frozenset(column.name for column in comparable if values.column(column.name).null_count)
        condition = _ColumnsCondition(self.dialect, comparable, nulls)
        rows = self.dialect.find(connection, self.layout, condition, values, select)
        return _transposed(rows, len(select) + 1)

    def _rows(
        self, connection: DriverConnection, compiled: RelationalCondition, select: Sequence[str]
    ) -> Iterator[Sequence[Any]]:
        statement = f"SELECT {', '.join(select)} FROM {self.layout.quoted}"
        if compiled.text:
            statement += f" WHERE {compiled.text}"
        order = self.layout.identity or ", ".join(self._names(self._ordering_columns()))
        if order:
            statement += f" ORDER BY {order}"
        return self.dialect.rows(connection, statement, compiled.parameters)

    def _ordering_columns(self) -> Sequence[StoredColumn]:
        """What gives rows without an identity the same order each time: the key, else all there is to order by."""
        return self.layout.key or [column for column in self.layout.columns if column.codec.order is not None]

    def _names(self, columns: Sequence[StoredColumn]) -> list[str]:
        return [self.dialect.quote(column.stored_name) for column in columns]

    def _schema(self, columns: Sequence[StoredColumn]) -> pa.Schema:
        return pa.schema([self.stored_schema.field(column.name) for column in columns])

    def _batches(
        self, rows: Iterator[Sequence[Any]], columns: Sequence[StoredColumn], size: int
    ) -> Iterator[pa.RecordBatch]:
        while (found := _transposed(islice(rows, size), len(columns)))[0]:
            yield self._batch(found, columns)

    def _batch(self, values: Sequence[Sequence[Any]], columns: Sequence[StoredColumn]) -> pa.RecordBatch:
        arrays = [self._decoded(column, value) for column, value in zip(columns, values, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema(columns))

    def _decoded(self, column: StoredColumn, values: Sequence[Any]) -> pa.Array:
        try:
            return column.codec.decode(values)
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
            # Another program may write what the column's type in the store allows and ours does not.
            raise TableError(
                f'column "{column.name}" of table "{self.layout.name}" holds a value that is no '
                f"{render_type(column.codec.type)}",
                detail=str(error),
                code="wrong-type",
            ) from error

    def _table(self, values: Sequence[Sequence[Any]], columns: Sequence[StoredColumn]) -> pa.Table:
        return pa.Table.from_batches([self._batch(values, columns)])


def _transposed(rows: Iterator[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows as columns; by small pieces, which is faster than all at once."""
    columns: list[list[Any]] = [[] for _ in range(width)]
    while piece := list(islice(rows, ROWS_FETCHED_AT_ONCE)):
        for column, values in zip(columns, zip(*piece, strict=True), strict=True):
            column.extend(values)
    return columns


def _sorted_places(keys: pa.Table) -> Integers:
    """The order of the keys by their first column: neighbours in an index are found in half of the time."""
    first = as_array(keys.column(0))
    if len(first) < _WORTH_SORTING or pa.types.is_nested(first.type):
        return np.arange(len(first))
    order: Integers = pc.sort_indices(first).to_numpy().astype(np.int64)
    return order


def _distinct(rows: pa.Table) -> pa.Table:
    first = {value: place for place, value in reversed(list(enumerate(hashable_rows(rows))))}
    return rows.take(pa.array(list(first.values()), pa.int64()))
