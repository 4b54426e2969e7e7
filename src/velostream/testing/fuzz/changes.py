"""Random changes of tables: as SQL, and as what they make of rows, so that nobody need ask the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

from velostream.testing.fuzz.values import (
    DECLARED,
    TEXT,
    WHOLE,
    ColumnType,
    literal,
    quoted,
    random_value,
)

Row = Mapping[str, Any]
_ODD_NAMES = ("odd name", "Größe", "order")
_FEWEST, _MOST = 2, 9


@dataclass(frozen=True)
class TableSpec:
    """A table of the case: its columns by name, and its key; without one it is a bag."""

    name: str
    columns: Mapping[str, ColumnType]
    key: tuple[str, ...]

    @property
    def ddl(self) -> str:
        columns = ", ".join(f"{quoted(name)} {column.sql}" for name, column in self.columns.items())
        key = f", PRIMARY KEY ({', '.join(map(quoted, self.key))})" if self.key else ""
        return f"CREATE TABLE {self.name} ({columns}{key})"


def random_table(random: Random, name: str) -> TableSpec:
    """Columns that tables have in common, to be joined by, and some of any type."""
    columns: dict[str, ColumnType] = {"id": WHOLE, "k": WHOLE, "g": TEXT}
    names = [f"{name}_{number}" for number in range(random.randint(1, 4))]
    if random.random() < 0.3:
        names[0] = random.choice(_ODD_NAMES)
    columns |= {each: random.choice(DECLARED) for each in names}
    key = random.choices((("id",), ("id", "k"), ()), (6, 1, 3))[0]
    return TableSpec(name, columns, key)


class Kind(StrEnum):
    INSERT = "insert"
    UPSERT = "upsert"
    DELETE = "delete"
    UPDATE = "update"
    TRUNCATE = "truncate"


@dataclass(frozen=True)
class Change:
    """One statement that changes a table. What it concerns is where `column` has one of `values`."""

    table: TableSpec
    kind: Kind
    rows: tuple[Row, ...] = ()
    column: str = ""
    values: tuple[Any, ...] = ()
    assigned: tuple[tuple[str, Any], ...] = ()

    @property
    def sql(self) -> str:
        name = self.table.name
        match self.kind:
            case Kind.INSERT | Kind.UPSERT:
                rows = ", ".join(f"({', '.join(map(literal, row.values()))})" for row in self.rows)
                return f"{self.kind.upper()} INTO {name} VALUES {rows}"
            case Kind.DELETE:
                return f"DELETE FROM {name} WHERE {self._condition}"
            case Kind.UPDATE:
                changes = ", ".join(f"{quoted(column)} = {literal(value)}" for column, value in self.assigned)
                return f"UPDATE {name} SET {changes} WHERE {self._condition}"
            case Kind.TRUNCATE:
                return f"TRUNCATE TABLE {name}"

    @property
    def _condition(self) -> str:
        if self.values == (None,):
            return f"{quoted(self.column)} IS NULL"
        return f"{quoted(self.column)} IN ({', '.join(map(literal, self.values))})"

    def apply(self, rows: Sequence[Row]) -> list[Row]:
        """What it makes of the table's rows."""
        match self.kind:
            case Kind.INSERT:
                return [*rows, *self.rows]
            case Kind.UPSERT:
                new = {self._key(row): row for row in self.rows}
                return [row for row in rows if self._key(row) not in new] + list(new.values())
            case Kind.DELETE:
                return [row for row in rows if not self._concerns(row)]
            case Kind.UPDATE:
                return [{**row, **dict(self.assigned)} if self._concerns(row) else row for row in rows]
            case Kind.TRUNCATE:
                return []

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.table.key)

    def _concerns(self, row: Row) -> bool:
        value = row[self.column]
        return self.values == (None,) if value is None else value in self.values


class Writer:
    """Draws changes that are possible for the rows a table has then."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._rows: dict[str, list[Row]] = {}
        self._next_id = 0

    def rows_of(self, table: TableSpec) -> list[Row]:
        return self._rows.get(table.name, [])

    def insert(self, table: TableSpec, count: int | None = None) -> Change:
        """New rows, under new keys; in a bag some of them twice."""
        number = self._random.randint(1, 4) if count is None else count
        rows = [self._row(table, self._new_id()) for _ in range(number)]
        if not table.key:
            rows += [row for row in rows if self._random.random() < 0.3]
        return self._done(Change(table, Kind.INSERT, rows=tuple(rows)))

    def change(self, table: TableSpec) -> Change:
        """Any change; a table is neither left empty for long nor does it grow large."""
        rows = self.rows_of(table)
        if len(rows) < _FEWEST:
            return self.insert(table)
        heaviest = 4 if len(rows) > _MOST else 2
        drawn = self._random.choices(
            (self.insert, self._upsert, self._delete, self._update, self._rekey, self._truncate),
            (3, 3 if table.key else 0, heaviest, 4, 2 if table.key == ("id",) else 0, 0.3),
        )[0]
        return drawn(table)

    def _upsert(self, table: TableSpec) -> Change:
        there = [row["id"] for row in self.rows_of(table)]
        count = min(len(there), self._random.randint(1, 3))
        ids = [*self._random.sample(there, count), self._new_id()]
        rows = {each: self._row(table, each) for each in ids}
        return self._done(Change(table, Kind.UPSERT, rows=tuple(rows.values())))

    def _delete(self, table: TableSpec) -> Change:
        column, values = self._some_of(table)
        return self._done(Change(table, Kind.DELETE, column=column, values=values))

    def _update(self, table: TableSpec) -> Change:
        column, values = self._some_of(table)
        free = [name for name in table.columns if name not in ("id", *table.key)]
        names = self._random.sample(free, min(len(free), self._random.randint(1, 2)))
        assigned = tuple((name, random_value(self._random, table.columns[name])) for name in names)
        return self._done(Change(table, Kind.UPDATE, column=column, values=values, assigned=assigned))

    def _rekey(self, table: TableSpec) -> Change:
        """One row becomes another one."""
        old = self._random.choice(self.rows_of(table))["id"]
        assigned = (("id", self._new_id()),)
        return self._done(Change(table, Kind.UPDATE, column="id", values=(old,), assigned=assigned))

    def _truncate(self, table: TableSpec) -> Change:
        return self._done(Change(table, Kind.TRUNCATE))

    def _some_of(self, table: TableSpec) -> tuple[str, tuple[Any, ...]]:
        """Rows by a column: a few ids, or all with one value."""
        rows = self.rows_of(table)
        if self._random.random() < 0.6:
            ids = {self._random.choice(rows)["id"] for _ in range(2)}
            return "id", tuple(sorted(ids))
        column = self._random.choice(("k", "g"))
        return column, (self._random.choice(rows)[column],)

    def _row(self, table: TableSpec, identity: int) -> Row:
        row = {name: random_value(self._random, column) for name, column in table.columns.items()}
        # NULL is no value of a key.
        inside = {name: random_value(self._random, table.columns[name], nulls=0) for name in table.key}
        return row | inside | {"id": identity}

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _done(self, change: Change) -> Change:
        self._rows[change.table.name] = change.apply(self.rows_of(change.table))
        return change
