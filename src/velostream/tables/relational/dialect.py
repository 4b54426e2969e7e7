"""What one kind of relational store has of its own: connections, types, statements, errors.

`RelationalTable` does everything that stores have in common; a kind gives a `Dialect`. The statements here are plain
SQL that most stores take; a kind overrides those for which its store has something better (COPY, ON CONFLICT, arrays).

Names come quoted from `quote`, values are always bound. A statement is run on a `DriverConnection` (PEP 249), in the
transaction that the caller has begun.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import chain
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from velostream.errors import Category
from velostream.tables.memory.keys import as_array
from velostream.tables.relational.codec import Codec
from velostream.tables.relational.layout import DeclaredTable, Layout, StoredColumn

IDENTITY = "_velostream_row"
"""The hidden column that numbers the rows of a table without a key, where a store has no row numbers of its own."""
_VALUES = "_velostream_values"
"""What bound values are called in a statement; hides a table of that name, so none may have it."""
ROWS_FETCHED_AT_ONCE = 1_000
"""Few enough to be made columns of before they leave the processor's caches."""


class DriverConnection(Protocol):
    """The part of a PEP 249 connection that is used here."""

    def cursor(self) -> Any:
        """A cursor with `execute`, `executemany`, `fetchmany`, `rowcount` and `close`."""

    def commit(self) -> Any: ...
    def rollback(self) -> Any: ...
    def close(self) -> Any: ...


class Trouble(StrEnum):
    """What a driver's error means for what was being done."""

    DUPLICATE = "duplicate"
    """A row of the key is there already."""
    CONSTRAINT = "constraint"
    """Another rule of the store's (CHECK, a foreign key, NOT NULL, a value too long)."""
    TRANSIENT = "transient"
    """Nothing was done and the same may succeed now: a lock, a deadlock, a serialisation failure, a lost connection."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Failure:
    """A driver's error, understood."""

    trouble: Trouble
    category: Category
    reason: str
    """The driver's text, without a password."""
    connection_lost: bool = False


class Dialect(ABC):
    """One store: an address of one kind. Used from many threads; holds no connection itself."""

    kind: ClassVar[str]
    one_writer: ClassVar[bool] = False
    """Whether the store lets one transaction at a time write; ours then queue up in the process rather than collide."""
    longest_name: ClassVar[int | None] = None
    """How many bytes of a name the store keeps."""
    most_parameters: ClassVar[int] = 30_000
    """How many values one statement may bind."""
    name_type: str = "VARCHAR(255)"
    """What names are stored as, such that they are told apart by their bytes; may be known only once connected."""
    text_type: ClassVar[str] = "TEXT"
    integer_type: ClassVar[str] = "BIGINT"
    bytes_type: ClassVar[str] = "BLOB"
    lock_clause: ClassVar[str] = " FOR UPDATE"
    """What makes a SELECT lock the rows it finds until the transaction ends; empty where `begin` locks all."""
    locks_by_update: ClassVar[bool] = False
    """Whether a row is locked by an UPDATE that changes nothing, for stores whose SELECT can't."""
    autocommits: ClassVar[bool] = True
    """Whether a statement outside of a transaction is one of its own; if not, `begin` goes before every read."""
    finds_nulls_apart: ClassVar[bool] = False
    """Whether `find` gives conditions the text NULL for a NULL, and other texts for values that are none."""
    errors: tuple[type[BaseException], ...]
    """What the driver raises, and nothing else."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the store is, without a password; equal for equal stores."""

    @property
    def connection_arguments(self) -> object:
        """Everything but the address that `connect` uses, the password among it: to be compared, never to be shown."""
        return None

    @abstractmethod
    def connect(self) -> DriverConnection:
        """A new connection in which nothing is begun."""

    @abstractmethod
    def failure(self, error: BaseException) -> Failure:
        """What one of `errors` means; from the driver's own codes first, from its text only where there are none."""

    @abstractmethod
    def codec(self, type_: pa.DataType) -> Codec:
        """How a column of a table that we make is stored."""

    @abstractmethod
    def adopted_codec(self, type_: pa.DataType, store_type: str) -> Codec | None:
        """How a column of a user's table is read and written as our type; None when it doesn't fit."""

    @abstractmethod
    def declared(self, connection: DriverConnection, name: str) -> DeclaredTable | None:
        """A table or view as the store knows it; None when there is none."""

    def begin(self, connection: DriverConnection, *, write: bool) -> None:
        """Begin a transaction in which all reads see one state; to write, where the store knows one writer only."""
        self.run(connection, "BEGIN")

    def commit(self, connection: DriverConnection) -> None:
        connection.commit()

    def rollback(self, connection: DriverConnection) -> None:
        connection.rollback()

    def lost(self, connection: DriverConnection) -> bool:
        """Whether a connection is known to be of no more use, without asking the server."""
        return False

    def alive(self, connection: DriverConnection) -> bool:
        """Whether a connection that lay idle still answers; cheap. Errors of the driver mean no."""
        return True

    def stamp(self, connection: DriverConnection, layout: Layout, version: int) -> str | None:
        """See `Table.stamp`. The connection is one that nothing else is done with."""
        return None

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def quote_table(self, name: str) -> str:
        """A table's name; one dot tells the schema from the table."""
        return ".".join(self.quote(part) for part in name.split(".", 1))

    def marker(self, position: int) -> str:
        """What stands for the bound value of a position, counted from 0."""
        return "?"

    def markers(self, count: int) -> list[str]:
        return [self.marker(position) for position in range(count)]

    def same(self, left: str, right: str) -> str:
        """Equality to which NULL equals NULL, never unknown."""
        return f"{left} IS NOT DISTINCT FROM {right}"

    def stored_name(self, name: str, position: int) -> str:
        """The name of a column of ours in the store; a long one is cut and told apart by its position."""
        limit = self.longest_name
        if limit is None or len(name.encode()) <= limit:
            return name
        suffix = f"~{position}"
        return name.encode()[: limit - len(suffix)].decode(errors="ignore") + suffix

    def identity(self, layout: Layout) -> tuple[str | None, bool]:
        """For a table of ours: what orders its rows and tells them apart, and whether we assign it."""
        if layout.schema.key:
            return None, False
        return self.quote(IDENTITY), True

    def enforces(self, layout: Layout) -> bool:
        """Whether `create_statements` makes the store refuse a second row of a key, NULLs included."""
        return all(not column.nullable for column in layout.key)

    def create_statements(self, layout: Layout) -> list[str]:
        """What makes a table of ours with its key."""
        columns = [self.column_definition(column) for column in layout.columns]
        if layout.identity_assigned:
            columns.append(f"{self.quote(IDENTITY)} {self.integer_type}")
        if layout.key and layout.key_enforced:
            names = ", ".join(self.quote(column.stored_name) for column in layout.key)
            columns.append(f"PRIMARY KEY ({names})")
        return [f"CREATE TABLE {layout.quoted} ({', '.join(columns)})"]

    def column_definition(self, column: StoredColumn) -> str:
        definition = f"{self.quote(column.stored_name)} {column.codec.store_type}"
        return definition if column.nullable else f"{definition} NOT NULL"

    def create_if_missing(self, connection: DriverConnection, name: str, definition: str) -> None:
        """Make a table of our own bookkeeping unless it is there."""
        self.run(connection, f"CREATE TABLE IF NOT EXISTS {name} ({definition})")

    def drop_statements(self, layout: Layout) -> list[str]:
        return [f"DROP TABLE IF EXISTS {layout.quoted}"]

    def create_index_statement(self, layout: Layout, name: str, columns: Sequence[StoredColumn]) -> str:
        """What makes rows quick to find by these columns; an index of that name is no error."""
        terms = ", ".join(self.quote(column.stored_name) for column in columns)
        return f"CREATE INDEX IF NOT EXISTS {self.quote(name)} ON {layout.quoted} ({terms})"

    def drop_index_statement(self, layout: Layout, name: str) -> str:
        """What gives up such an index; none of that name is no error."""
        return f"DROP INDEX IF EXISTS {self.quote(name)}"

    def key_condition(self, layout: Layout, columns: Sequence[str], values: Sequence[str]) -> str:
        """That the key's columns, given as SQL, have these values, given as SQL; NULL equals NULL.

        In a form that finds rows by the store's own index.
        """
        return " AND ".join(
            self.same(name, value) if column.nullable else f"{name} = {value}"
            for column, name, value in zip(layout.key, columns, values, strict=True)
        )

    def equality_condition(self, layout: Layout, column: StoredColumn, left: str, values: Sequence[str]) -> str:
        """That a column, given as `left`, has one of the values, none of which is NULL.

        A row for which it is unknown may count as false, so a store may use the index of a key that holds NULLs.
        """
        return f"{left} = {values[0]}" if len(values) == 1 else f"{left} IN ({', '.join(values)})"

    def group_term(self, column: StoredColumn, name: str) -> str | None:
        """What equal values of a column have in common and different ones don't, NULL being equal to NULL.

        None where the store can't be trusted to tell; floats are never asked for.
        """
        if pa.types.is_floating(column.codec.type) or column.codec.equality is None:
            return None
        return column.codec.equality.format(name)

    def sum_expression(self, layout: Layout, column: StoredColumn, name: str) -> str | None:
        """The exact sum of a column of integers or decimals over a group; None where it might be rounded."""
        return None

    def exact_sum(self, value: Any) -> Decimal:
        """What the driver gives for a `sum_expression`; an error of Python's for what is no exact number."""
        if isinstance(value, float):
            raise TypeError(f"{value!r} may be rounded")
        return Decimal(value)

    def insert(self, connection: DriverConnection, layout: Layout, rows: pa.Table) -> None:
        """Add rows, by the fastest way the store has. The rows have the schema's columns."""
        names = ", ".join(self.quote(column.stored_name) for column in layout.columns)
        markers = ", ".join(self.markers(len(layout.columns)))
        encoded = encoded_rows(layout.columns, rows)
        if layout.identity_assigned:
            names += f", {layout.identity}"
            markers += f", {self.marker(len(layout.columns))}"
            first = self.scalar(connection, f"SELECT MAX({layout.identity}) FROM {layout.quoted}") or 0
            encoded = ((*row, number) for number, row in enumerate(encoded, first + 1))
        self.run_many(connection, f"INSERT INTO {layout.quoted} ({names}) VALUES ({markers})", encoded)

    def upsert(self, connection: DriverConnection, layout: Layout, rows: pa.Table) -> int | None:
        """Make these the rows of their keys, of which each is there once; how many rows are others than before.

        None when the store has no statement for it; the caller then finds out the difference and writes that.
        """
        return None

    def update(self, connection: DriverConnection, layout: Layout, rows: pa.Table) -> None:
        """Give the rows of these keys, all of which are there, their new values."""
        others = [column for column in layout.columns if column not in layout.key]
        markers = self.markers(len(layout.columns))
        assigned = [f"{self.quote(c.stored_name)} = {m}" for c, m in zip(others, markers, strict=False)]
        names = [self.quote(column.stored_name) for column in layout.key]
        condition = self.key_condition(layout, names, markers[len(others) :])
        self.run_many(
            connection,
            f"UPDATE {layout.quoted} SET {', '.join(assigned)} WHERE {condition}",
            encoded_rows([*others, *layout.key], rows),
        )

    def delete_keys(self, connection: DriverConnection, layout: Layout, keys: pa.Table) -> int:
        """Remove the rows of distinct keys; how many there were."""
        names = [self.quote(column.stored_name) for column in layout.key]
        condition = self.key_condition(layout, names, self.markers(len(names)))
        return self.run_many(
            connection, f"DELETE FROM {layout.quoted} WHERE {condition}", encoded_rows(layout.key, keys)
        )

    def delete_identities(self, connection: DriverConnection, layout: Layout, identities: Sequence[Any]) -> None:
        """Remove rows of a table without a key by what tells them apart."""
        self.run_many(
            connection,
            f"DELETE FROM {layout.quoted} WHERE {layout.identity} = {self.marker(0)}",
            [(identity,) for identity in identities],
        )

    def find(
        self,
        connection: DriverConnection,
        layout: Layout,
        condition: FindCondition,
        values: pa.Table,
        select: Sequence[str],
    ) -> Iterator[Sequence[Any]]:
        """For each row of `values`, which are distinct: its number and what is selected of each row that has them.

        The values have the condition's columns; `select` is SQL over the table under the alias `t`. In any order; one
        round trip for as many values as fit.
        """
        return chain.from_iterable(self._found(connection, layout, condition, values, select))

    def _found(
        self,
        connection: DriverConnection,
        layout: Layout,
        condition: FindCondition,
        values: pa.Table,
        select: Sequence[str],
    ) -> Iterator[Iterator[Sequence[Any]]]:
        width = len(condition.columns) + 1
        most = max(1, self.most_parameters // width)
        names = [f"c{number}" for number in range(width - 1)]
        matches = condition.text([f"k.{name}" for name in names])
        encoded = [range(values.num_rows), *encoded_columns(condition.columns, values)]
        for start in range(0, values.num_rows, most):
            count = min(most, values.num_rows - start)
            bound: list[Any] = [None] * (width * count)
            for place, column in enumerate(encoded):
                bound[place::width] = column[start : start + count]
            statement = (
                f"WITH {_VALUES}(p, {', '.join(names)}) AS (VALUES {self.tuples(width, count)}) "
                f"SELECT k.p, {', '.join(select)} FROM {_VALUES} k CROSS JOIN {layout.quoted} t WHERE {matches}"
            )
            yield self.rows(connection, statement, bound)

    def tuples(self, width: int, count: int) -> str:
        """Markers for so many rows of so many values."""
        if self.marker(0) == self.marker(1):
            return ", ".join(["(" + ", ".join(self.markers(width)) + ")"] * count)
        markers = iter(self.markers(width * count))
        return ", ".join("(" + ", ".join(next(markers) for _ in range(width)) + ")" for _ in range(count))

    def run(self, connection: DriverConnection, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it touched."""
        cursor = connection.cursor()
        try:
            cursor.execute(statement, parameters) if parameters else cursor.execute(statement)
            count: int = cursor.rowcount
            return count
        finally:
            cursor.close()

    def run_many(self, connection: DriverConnection, statement: str, rows: Any) -> int:
        """Run a statement for every row of parameters; how many rows of the store all of them touched."""
        cursor = connection.cursor()
        try:
            cursor.executemany(statement, rows)
            count: int = cursor.rowcount
            return max(count, 0)
        finally:
            cursor.close()

    def rows(
        self, connection: DriverConnection, statement: str, parameters: Sequence[Any] = ()
    ) -> Iterator[Sequence[Any]]:
        """The rows of a query as they come."""
        return chain.from_iterable(self._fetched(connection, statement, parameters))

    def _fetched(
        self, connection: DriverConnection, statement: str, parameters: Sequence[Any]
    ) -> Iterator[Sequence[Sequence[Any]]]:
        cursor = connection.cursor()
        try:
            cursor.execute(statement, parameters) if parameters else cursor.execute(statement)
            while chunk := cursor.fetchmany(ROWS_FETCHED_AT_ONCE):
                yield chunk
        finally:
            cursor.close()

    def scalar(self, connection: DriverConnection, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """The one value of a query; None for no row."""
        found = next(self.rows(connection, statement, parameters), None)
        return None if found is None else found[0]


class FindCondition(Protocol):
    """Which rows of the table have a row of values."""

    @property
    def columns(self) -> Sequence[StoredColumn]:
        """The columns that the values have."""

    def text(self, values: Sequence[str]) -> str:
        """The condition as SQL over the table under the alias `t`; values are SQL expressions, one per column."""


def encoded_rows(columns: Sequence[StoredColumn], rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Rows as what the driver binds, in the order of the columns."""
    return zip(*encoded_columns(columns, rows), strict=True)


def encoded_columns(columns: Sequence[StoredColumn], rows: pa.Table) -> list[Sequence[Any]]:
    """Each column's values as what the driver binds."""
    return [column.codec.encode(as_array(rows.column(column.name))) for column in columns]
