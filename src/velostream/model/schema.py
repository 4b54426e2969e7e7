"""What a row looks like: names, types, nullability and the key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from velostream.errors import NotFoundError, ValidationError
from velostream.model.types import normal_type, parse_type, render_type
from velostream.model.variant import holds_variant


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Names keep their case and are matched without it, as Spark does."""

    name: str
    type: pa.DataType
    nullable: bool = True

    @property
    def sql_type(self) -> str:
        return render_type(self.type)


@dataclass(frozen=True)
class Schema:
    """An ordered set of columns, and which of them form the key (none: a bag of rows)."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in self.key:
            column = self.find(name)
            if column is not None and holds_variant(column.type):
                raise ValidationError(
                    f'column "{column.name}" is {column.sql_type} and can\'t be part of a key',
                    detail="VARIANTs have no order and are not compared",
                    hint=f"a key of what is inside of it: {column.name}:id::BIGINT",
                    code="wrong-type",
                )

    @classmethod
    def of(cls, *columns: tuple[str, str], key: Sequence[str] = ()) -> Schema:
        """`Schema.of(("id", "BIGINT"), ("name", "STRING"), key=["id"])`."""
        return cls(tuple(Column(name, parse_type(type_)) for name, type_ in columns), tuple(key))

    @classmethod
    def from_arrow(cls, schema: pa.Schema, *, key: Sequence[str] = ()) -> Schema:
        return cls(tuple(Column(f.name, normal_type(f.type), f.nullable) for f in schema), tuple(key))

    @cached_property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.type, column.nullable) for column in self.columns])

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @cached_property
    def _by_lower(self) -> dict[str, Column]:
        return {column.name.lower(): column for column in self.columns}

    def find(self, name: str) -> Column | None:
        return self._by_lower.get(name.lower())

    def column(self, name: str) -> Column:
        """The column of that name in any case; `NotFoundError` with near names when there is none."""
        found = self.find(name)
        if found is None:
            raise NotFoundError.of("column", name, known=self.names)
        return found

    def with_key(self, key: Iterable[str]) -> Schema:
        return Schema(self.columns, tuple(self.column(name).name for name in key))

    def select(self, names: Iterable[str]) -> Schema:
        """The schema of a projection; keeps the key only if all of it is selected."""
        chosen = tuple(self.column(name) for name in names)
        kept = {column.name for column in chosen}
        return Schema(chosen, self.key if set(self.key) <= kept else ())

    def to_json(self) -> dict[str, object]:
        return {
            "columns": [[c.name, c.sql_type, c.nullable] for c in self.columns],
            "key": list(self.key),
        }

    @classmethod
    def from_json(cls, form: dict[str, list]) -> Schema:  # type: ignore[type-arg]
        columns = tuple(Column(name, parse_type(type_), nullable) for name, type_, nullable in form["columns"])
        return cls(columns, tuple(form["key"]))
