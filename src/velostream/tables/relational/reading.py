"""Reads over one connection: scans, counts and batched finds, from the store's rows to Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from velostream.errors import TableError
from velostream.model.expression import Expression
from velostream.model.types import render_type
from velostream.tables.memory.compare import rows_equal
from velostream.tables.memory.conform import cast_exactly, fits, stored_schema
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import as_array
from velostream.tables.relational.condition import ConditionCompiler, RelationalCondition
from velostream.tables.relational.dialect import Dialect, DriverConnection
from velostream.tables.relational.layout import Layout, StoredColumn

_ROWS_AT_ONCE = 10_000
_CAST_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class Found:
    """Rows that answer given values."""

    positions: Integers
    """Which of the given values each row answers; ascending."""
    rows: pa.Table
    identities: Sequence[Any] = ()
    """What tells the rows apart in the store, if it was asked for."""


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
    """Rows that have values in columns; NULL equals NULL if `nulls_match`."""

    dialect: Dialect
    columns: Sequence[StoredColumn]
    nulls_match: bool

    def text(self, values: Sequence[str]) -> str:
        parts = []
        for column, value in zip(self.columns, values, strict=True):
            template = column.codec.equality or "{}"
            left, right = template.format(f"t.{self.dialect.quote(column.stored_name)}"), template.format(value)
            parts.append(self.dialect.same(left, right) if self.nulls_match else f"{left} = {right}")
        return " AND ".join(parts)


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
        batches = list(self._batches(connection, compiled, wanted))
        return pa.Table.from_batches(batches, self._schema(wanted))

    def scan_identified(self, connection: DriverConnection, condition: Expression | None = None) -> Found:
        """Like `scan`, with what tells the rows apart."""
        compiled = self.conditions.compile(condition)
        values = list(self._rows(connection, compiled, self.layout.columns, identified=True))
        identities = [row[0] for row in values]
        rows = self._table([row[1:] for row in values], self.layout.columns)
        numbered = rows.append_column("_number", pa.array(np.arange(len(identities))))
        kept = compiled.keep(numbered)
        numbers = kept.column("_number").to_numpy()
        return Found(numbers, kept.drop_columns(["_number"]), [identities[number] for number in numbers.tolist()])

    def batches(self, connection: DriverConnection, size: int, offset: int) -> Iterator[pa.RecordBatch]:
        """All rows from the `offset`-th on, in batches of at most `size`, as the store gives them."""
        rows = islice(self._rows(connection, self.conditions.compile(None), self.layout.columns), offset, None)
        while chunk := list(islice(rows, size)):
            yield self._batch(chunk, self.layout.columns)

    def count(self, connection: DriverConnection, condition: Expression | None = None) -> int:
        compiled = self.conditions.compile(condition)
        if compiled.remainder is not None:
            wanted = self.layout.select(compiled.remainder_columns) or self.layout.columns[:1]
            return sum(batch.num_rows for batch in self._batches(connection, compiled, wanted))
        where = f" WHERE {compiled.text}" if compiled.text else ""
        found: int = self.dialect.scalar(
            connection, f"SELECT COUNT(*) FROM {self.layout.quoted}{where}", compiled.parameters
        )
        return found

    def find_keys(self, connection: DriverConnection, keys: pa.Table, columns: Sequence[str] | None = None) -> Found:
        """The rows of distinct keys, NULLs in them included."""
        condition = _KeyCondition(self.dialect, self.layout)
        wanted = self.layout.select(columns)
        select = [f"t.{self.dialect.quote(column.stored_name)}" for column in wanted]
        rows = list(self.dialect.find(connection, self.layout, condition, keys, select))
        return self._found(rows, wanted)

    def find(
        self,
        connection: DriverConnection,
        values: pa.Table,
        columns: Sequence[str] | None = None,
        *,
        nulls_match: bool = False,
    ) -> Found:
        """The rows that have distinct values in the columns of `values`, each value's in the table's order."""
        asked = self.layout.select(values.column_names)
        comparable = tuple(column for column in asked if column.codec.equality is not None)
        wanted = self.layout.select(columns)
        fetched = wanted + tuple(column for column in asked if column not in comparable and column not in wanted)
        condition = _ColumnsCondition(self.dialect, comparable, nulls_match)
        select = [f"t.{self.dialect.quote(column.stored_name)}" for column in fetched]
        select.append(f"t.{self.layout.identity}" if self.layout.identity else "NULL")
        rows = list(self.dialect.find(connection, self.layout, condition, values, select))
        if self.layout.identity:
            rows.sort(key=lambda row: row[-1])
        found = self._found(rows, fetched)
        unproved = [column.name for column in asked if column not in comparable]
        if unproved:
            given = values.select(unproved).take(pa.array(found.positions))
            mask = rows_equal(found.rows.select(unproved), given)
            found = Found(found.positions[mask], found.rows.filter(pa.array(mask)), _masked(found.identities, mask))
        return Found(found.positions, found.rows.select([column.name for column in wanted]), found.identities)

    def fitted_keys(self, keys: pa.Table, names: Sequence[str]) -> pa.Table:
        """Keys as they are given, in the types of the columns; one that no row can have is NULL."""
        arrays = []
        for name, column in zip(names, keys.columns, strict=True):
            target = self.layout.schema.column(name)
            array = as_array(column)
            if not fits(array.type, target.type) and not fits(target.type, array.type):
                raise TableError.wrong_type(
                    self.layout.name, name, expected=target.sql_type, got=f"keys of type {render_type(array.type)}"
                )
            arrays.append(_cast_or_null(array, target.type))
        return pa.table(arrays, names=list(names))

    def key_of(self, key: Any) -> pa.Table | None:
        """A key as users give it, as a table of one row; None for one that no row can have."""
        names = self.layout.schema.key
        if not names:
            raise TableError.without_key(self.layout.name)
        parts = (key,) if len(names) == 1 else key
        if not isinstance(parts, tuple | list) or len(parts) != len(names):
            return None
        arrays = []
        for name, part in zip(names, parts, strict=True):
            array = _array_of_one(part, self.layout.schema.column(name).type)
            if array is None:
                return None
            arrays.append(array)
        return pa.table(arrays, names=list(names))

    def _found(self, rows: list[Sequence[Any]], columns: Sequence[StoredColumn]) -> Found:
        rows.sort(key=lambda row: row[0])
        width = len(columns)
        identified = bool(rows) and len(rows[0]) > width + 1
        return Found(
            positions=np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows)),
            rows=self._table([row[1 : width + 1] for row in rows], columns),
            identities=[row[-1] for row in rows] if identified else (),
        )

    def _batches(
        self, connection: DriverConnection, compiled: RelationalCondition, wanted: Sequence[StoredColumn]
    ) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in wanted]
        fetched = [*wanted, *(c for c in self.layout.select(compiled.remainder_columns) if c.name not in names)]
        rows = self._rows(connection, compiled, fetched)
        while chunk := list(islice(rows, _ROWS_AT_ONCE)):
            batch = self._batch(chunk, fetched)
            if compiled.remainder is None:
                yield batch
            else:
                yield from compiled.keep(pa.Table.from_batches([batch])).select(names).to_batches()

    def _rows(
        self,
        connection: DriverConnection,
        compiled: RelationalCondition,
        columns: Sequence[StoredColumn],
        *,
        identified: bool = False,
    ) -> Iterator[Sequence[Any]]:
        select = [self.dialect.quote(column.stored_name) for column in columns]
        if identified:
            select.insert(0, self.layout.identity or "NULL")
        statement = f"SELECT {', '.join(select)} FROM {self.layout.quoted}"
        if compiled.text:
            statement += f" WHERE {compiled.text}"
        order = [self.layout.identity] if self.layout.identity else self._order_terms()
        if order:
            statement += f" ORDER BY {', '.join(order)}"
        return self.dialect.rows(connection, statement, compiled.parameters)

    def _order_terms(self) -> list[str]:
        """What gives rows without an identity the same order each time: the key, else all there is to order by."""
        columns = self.layout.key or [column for column in self.layout.columns if column.codec.order is not None]
        return [self.dialect.quote(column.stored_name) for column in columns]

    def _schema(self, columns: Sequence[StoredColumn]) -> pa.Schema:
        return pa.schema([self.stored_schema.field(column.name) for column in columns])

    def _batch(self, rows: Sequence[Sequence[Any]], columns: Sequence[StoredColumn]) -> pa.RecordBatch:
        values: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
        arrays = [column.codec.decode(value) for column, value in zip(columns, values, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema(columns))

    def _table(self, rows: Sequence[Sequence[Any]], columns: Sequence[StoredColumn]) -> pa.Table:
        return pa.Table.from_batches([self._batch(rows, columns)])


def _masked(values: Sequence[Any], mask: Any) -> list[Any]:
    return [value for value, kept in zip(values, mask.tolist(), strict=True) if kept] if values else []


def _cast_or_null(array: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return cast_exactly(array, target)
    except _CAST_ERRORS:
        return pa.concat_arrays([_cast_one_or_null(array[number : number + 1], target) for number in range(len(array))])


def _cast_one_or_null(array: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return cast_exactly(array, target)
    except _CAST_ERRORS:
        return pa.nulls(1, target)


def _array_of_one(value: Any, type_: pa.DataType) -> pa.Array | None:
    """One Python value as an array; None when it is no value of the type."""
    try:
        return pa.array([value], type_)
    except _CAST_ERRORS:
        return None
