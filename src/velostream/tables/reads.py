"""The reads of the table seam, for kinds whose store finds rows by values of columns and by conditions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from velostream.errors import TableError
from velostream.model.schema import Schema
from velostream.tables.base import KeyValue, Row, Snapshot
from velostream.tables.lookups import Wanted
from velostream.tables.memory.rows import decoded_rows


class StoreSnapshot(Snapshot):
    """Point reads and lookups by one method that a kind gives: `rows_having`."""

    def __init__(self, name: str, schema: Schema, version: int) -> None:
        self.name = name
        self.schema = schema
        self.version = version

    @abstractmethod
    def rows_having(self, on: Sequence[str], values: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Every row that has one of the values in the columns `on`, with these columns, in the order of `scan`.

        The values are distinct and of the columns' types; a NULL among them means rows that have a NULL there.
        """

    def get(self, key: KeyValue) -> Row | None:
        found = self._row_of(key, self.schema.names)
        return next(iter(decoded_rows(found.combine_chunks().to_batches()[0]))) if found.num_rows else None

    def contains(self, key: KeyValue) -> bool:
        return bool(self._row_of(key, self.schema.key).num_rows)

    def lookup(self, keys: pa.Array | pa.ChunkedArray | pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        self._check_keyed()
        return self.lookup_by(self.schema.key, keys, columns)

    def lookup_by(
        self,
        on: Sequence[str],
        keys: pa.Array | pa.ChunkedArray | pa.Table,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        names = self.names(columns)
        on = [self.schema.column(name).name for name in on]
        wanted = Wanted(keys, on=on, schema=self.schema, table=self.name)
        fetched = [*on, *(name for name in names if name not in on)]
        distinct = wanted.distinct
        if not distinct.num_rows:
            found = pa.schema([pa.field(name, self.schema.column(name).type) for name in fetched]).empty_table()
        else:
            found = self.rows_having(on, distinct, fetched)
        return wanted.answer(found, names)

    def names(self, columns: Sequence[str] | None) -> list[str]:
        """The stored names of the columns asked for; all of them for None."""
        return [self.schema.column(name).name for name in (self.schema.names if columns is None else columns)]

    def _row_of(self, key: KeyValue, columns: Sequence[str]) -> pa.Table:
        self._check_keyed()
        names = self.schema.key
        values = (key,) if len(names) == 1 else key
        wanted = self._one_key(values) if isinstance(values, tuple | list) and len(values) == len(names) else None
        if wanted is None:
            return pa.schema([pa.field(name, self.schema.column(name).type) for name in columns]).empty_table()
        return self.rows_having(names, wanted, list(columns))

    def _one_key(self, values: Sequence[Any]) -> pa.Table | None:
        """The key as a row; None when its values are of types that no key has."""
        try:
            arrays = [
                pa.array([value], self.schema.column(name).type)
                for name, value in zip(self.schema.key, values, strict=True)
            ]
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError):
            return None
        return pa.Table.from_arrays(arrays, names=list(self.schema.key))

    def _check_keyed(self) -> None:
        if not self.schema.key:
            raise TableError.without_key(self.name)
