"""How rows lie in a collection: which field holds which column, and what identifies a row.

A collection of ours has the key in `_id` (a document of its columns when it has several), so its one index serves
uniqueness, lookups and the order of rows. A bag's documents have an `_id` of MongoDB's own and a hidden hash of their
content, by which equal rows are found. A collection of the user's is taken as it is: a field per column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from velostream.errors import TableError
from velostream.model.schema import Column, Schema
from velostream.tables.content_hash import content_hashes
from velostream.tables.memory.conform import stored_schema
from velostream.tables.mongodb.values import BsonValue, Values, escape

Document = dict[str, Any]
HASH = "%hash"
"""Field with the hash of a bag's row; no column's field can have this name."""
_ID = "_id"


@dataclass(frozen=True)
class Layout:
    """The layout of one table's documents. `own`: we made the collection."""

    name: str
    schema: Schema
    own: bool

    @cached_property
    def paths(self) -> Mapping[str, str]:
        """Where a column is in a document, as queries name it."""
        if not self.own:
            return {name: name for name in self.schema.names}
        key = self.schema.key
        inside = {name: _ID if len(key) == 1 else f"{_ID}.{escape(name)}" for name in key}
        return {name: inside.get(name) or escape(name) for name in self.schema.names}

    @cached_property
    def values(self) -> Mapping[str, Values]:
        return {column.name: Values(column.type, dates=not self.own) for column in self.schema.columns}

    @property
    def key_in_id(self) -> bool:
        """Whether `_id` is the key, as one value or as a document."""
        key = self.schema.key
        return bool(key) and (self.own or key == (_ID,))

    def check(self) -> None:
        """Refuse what no collection can hold; names with dots are only a matter of collections of the user's."""
        for name in self.schema.key:
            if pa.types.is_nested(self.schema.column(name).type):
                raise TableError(
                    f'column "{name}" of table "{self.name}" is nested and can\'t be a key', code="wrong-type"
                )
        if not self.own:
            for name in self.schema.names:
                if escape(name) != name and name != _ID:
                    raise TableError(f'no field can be named "{name}" in an existing collection', code="wrong-type")

    def documents(self, rows: pa.Table) -> list[Document]:
        """Rows that have the table's columns, as documents to insert."""
        key = self.schema.key if self.own else ()
        plain = [name for name in self.schema.names if name not in key]
        fields = [self.paths[name] for name in plain]
        columns = [self.values[name].encode(rows.column(name)) for name in plain]
        if key:
            fields.insert(0, _ID)
            columns.insert(0, self.ids(rows))
        elif self.own:
            fields.append(HASH)
            columns.append(content_hashes(rows).tolist())
        return [dict(zip(fields, values, strict=True)) for values in zip(*columns, strict=True)]

    def ids(self, keys: pa.Table) -> list[BsonValue]:
        """The `_id` of each key, where the key is in `_id`."""
        names = self.schema.key
        columns = [self.values[name].encode(keys.column(name)) for name in names]
        if len(names) == 1:
            return columns[0]
        fields = [escape(name) for name in names]
        return [dict(zip(fields, values, strict=True)) for values in zip(*columns, strict=True)]

    def rows(self, documents: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pa.Table:
        """Documents as rows; `TableError` for a value that isn't of its column's type."""
        wanted = self.schema.columns if columns is None else [self.schema.column(name) for name in columns]
        arrays = [self._column(documents, column) for column in wanted]
        fields = [pa.field(column.name, column.type) for column in wanted]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    @cached_property
    def stored(self) -> pa.Schema:
        return stored_schema(self.schema)

    def projection(self, columns: Sequence[str]) -> Document:
        """What to fetch of the documents for these columns; `_id` only where it is one of them."""
        chosen: Document = {self.paths[name]: 1 for name in columns}
        if not any(path == _ID or path.startswith(f"{_ID}.") for path in chosen):
            chosen[_ID] = 0 if chosen else 1
        return chosen

    def raw_values(self, documents: Sequence[Mapping[str, Any]], column: str) -> list[BsonValue]:
        first, _, rest = self.paths[column].partition(".")
        if self.own and rest:
            return [document[first][rest] for document in documents]
        name = self.paths[column]
        return [document.get(name) for document in documents]

    def _column(self, documents: Sequence[Mapping[str, Any]], column: Column) -> pa.Array:
        values = self.raw_values(documents, column.name)
        try:
            return self.values[column.name].decode(values)
        except (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError) as error:
            other = next((value for value in values if not self._decodes(value, column.name)), None)
            refused = TableError.wrong_type(
                self.name, column.name, expected=column.sql_type, got=f"the {type(other).__name__} that is stored in it"
            )
            raise refused from error

    def _decodes(self, value: BsonValue, column: str) -> bool:
        try:
            self.values[column].decode([value])
        except (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError):
            return False
        return True
