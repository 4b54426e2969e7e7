"""A table as it lies in its store: under which names, in which types, by which key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from velostream.model.schema import Schema
from velostream.tables.relational.codec import Codec


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """One column: its name in statements of ours, and what it is in the store."""

    name: str
    stored_name: str
    codec: Codec
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """A column of a table that the store already has, in the store's own words."""

    name: str
    store_type: str
    nullable: bool = True
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """A table or view that the store already has."""

    columns: tuple[DeclaredColumn, ...]
    unique: tuple[frozenset[str], ...] = ()
    """Sets of column names that the store itself keeps unique, the primary key among them."""
    identity: str | None = None
    """An expression that tells rows apart and gives them an order; None when there is none."""
    indexes: tuple[tuple[str, ...], ...] = ()
    """Names of columns by whose values rows are found without looking at all; as far as the dialect knows."""

    def find(self, name: str) -> DeclaredColumn | None:
        exact = next((column for column in self.columns if column.name == name), None)
        return exact or next((column for column in self.columns if column.name.lower() == name.lower()), None)


@dataclass(frozen=True)
class Layout:
    """Where a table's rows are and how each column is read and written there."""

    name: str
    """The table's name in the store, with its schema if it was given with one; what metadata knows it by."""
    quoted: str
    schema: Schema
    columns: tuple[StoredColumn, ...]
    made: bool
    """Whether we made the table; if not it is a user's, adopted."""
    key_enforced: bool
    """Whether the store itself refuses a second row of a key, NULLs in it included."""
    identity: str | None
    """An SQL expression that tells rows apart and orders them; None where rows have nothing but their values."""
    identity_assigned: bool = False
    """Whether we give new rows their identity, a number one above the last."""

    @cached_property
    def by_name(self) -> dict[str, StoredColumn]:
        return {column.name: column for column in self.columns}

    @cached_property
    def key(self) -> tuple[StoredColumn, ...]:
        return tuple(self.by_name[name] for name in self.schema.key)

    def select(self, names: Sequence[str] | None) -> tuple[StoredColumn, ...]:
        """The columns of these names, in any case; all of them for None."""
        if names is None:
            return self.columns
        return tuple(self.by_name[self.schema.column(name).name] for name in names)
