"""How rows lie in Redis: which keys there are, and which field of a row's hash holds which column.

A row is the hash `<table>:<id>`. In a table of ours the id is the key, and the sorted set `<table>::rows` says which
rows there are and in which order; equal rows of a bag are one hash, whose id is a digest of the row and which counts
them. Hashes of the user's are taken as they are: the id is the key as text, and a row is whatever has the prefix.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from velostream.errors import TableError
from velostream.model.schema import Column, Schema
from velostream.tables.content_hash import content_digests
from velostream.tables.memory.conform import stored_schema
from velostream.tables.redis.columns import decode, encode, ids_of_keys

COUNT = "%count"
"""Field with the number of a bag's equal rows; no column's field can have this name."""


@dataclass(frozen=True)
class Layout:
    """The layout of one table. `own`: we made it; `key_inside`: hashes of the user's have the key as a field too."""

    name: str
    prefix: str
    schema: Schema
    own: bool
    key_inside: bool = True

    @property
    def meta(self) -> str:
        return f"{self.prefix}:meta"

    @property
    def rows(self) -> str:
        """The sorted set of the rows; no name for hashes of the user's."""
        return f"{self.prefix}:rows" if self.own else ""

    @property
    def expiry(self) -> str:
        """The sorted set of when rows expire, for a table with a time to live."""
        return f"{self.prefix}:expiry"

    @property
    def epochs(self) -> str:
        return f"{self.prefix}:epochs"

    @property
    def changes(self) -> str:
        return f"{self.prefix}:changes"

    def writer(self, name: str) -> str:
        """Where the number of a writing object's last commit is kept."""
        return f"{self.prefix}:writer:{name}"

    def index(self, column: str) -> str:
        return f"{self.prefix}:index:{column}"

    @property
    def counted(self) -> bool:
        """Whether equal rows are one hash."""
        return self.own and not self.schema.key

    @cached_property
    def stored(self) -> pa.Schema:
        return stored_schema(self.schema)

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The columns that are written as fields."""
        names = self.schema.names
        return names if self.key_inside else tuple(name for name in names if name not in self.schema.key)

    def field(self, column: str) -> str:
        return column.replace("%", "%25") if self.own else column

    def check(self) -> None:
        """Refuse what can't be kept in this layout."""
        for name in self.schema.key:
            if pa.types.is_nested(self.schema.column(name).type):
                raise TableError(f'column "{name}" of table "{self.name}" is nested: no key', code="wrong-type")
        if not self.own and len(self.schema.key) > 1:
            raise TableError(
                f'table "{self.name}" is made of hashes that are there, whose key is one column',
                hint="declare the column that follows the colon in their names as PRIMARY KEY",
                code="wrong-type",
            )

    def ids(self, rows: pa.Table) -> list[bytes]:
        """The id of each row; a bag's equal rows have one unless they are hashes of the user's, who has names."""
        if self.counted:
            return [digest.hex().encode() for digest in content_digests(rows)]
        if not self.schema.key:
            return [uuid.uuid4().hex.encode() for _ in range(rows.num_rows)]
        ids = [id_ for id_ in self.key_ids(rows) if id_ is not None]
        if len(ids) < rows.num_rows:
            raise TableError(
                f'keys of table "{self.name}" follow a colon in the names of hashes: no NULL, and no further colon',
                code="wrong-type",
            )
        return ids

    def key_ids(self, keys: pa.Table) -> list[bytes | None]:
        """The id of each key; None for one that no row can have."""
        return ids_of_keys(keys, self.schema.key, plain=not self.own)

    def decode(self, columns: Sequence[str], found: Sequence[pa.Array], ids: pa.Array) -> pa.Table:
        """Fields as rows; `TableError` for a text that is no value of its column."""
        arrays = []
        for name, values in zip(columns, found, strict=True):
            in_name = not self.own and self.schema.key == (name,)
            arrays.append(self._decoded(ids if in_name else values, self.schema.column(name)))
        fields = [pa.field(name, self.schema.column(name).type) for name in columns]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _decoded(self, values: pa.Array, column: Column) -> pa.Array:
        try:
            return decode(values, column.type)
        except (pa.ArrowException, ValueError, TypeError) as error:
            refused = TableError.wrong_type(
                self.name, column.name, expected=column.sql_type, got="a text that is stored in it"
            )
            refused.detail = str(error)
            raise refused from error


def is_rankable(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_)
        or pa.types.is_floating(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_date(type_)
        or pa.types.is_timestamp(type_)
        or pa.types.is_duration(type_)
    )


def scores(column: pa.Array) -> pa.Array:
    """Numbers that order as the values do, where they differ at all: doubles round. NaN is above everything."""
    type_ = column.type
    if pa.types.is_date(type_):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        column = column.cast(pa.int64())
    numbers = column.cast(pa.float64(), safe=False)
    if pa.types.is_floating(type_):
        values = numbers.to_numpy(zero_copy_only=False)
        numbers = pa.array(np.where(np.isnan(values), np.inf, values), mask=np.asarray(numbers.is_null()))
    return encode(numbers)
