"""Batched lookups in a store: each key asked for once, the rows found dealt out to all who asked."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pyarrow as pa

from velostream.errors import TableError
from velostream.model.schema import Column, Schema
from velostream.model.types import render_type
from velostream.tables.memory.conform import cast_exactly, fits
from velostream.tables.memory.keys import as_array, key_values

POSITION = "_position"
"""First column of a lookup's result: which of the given keys a row answers."""


class Wanted:
    """The keys of one lookup, by columns `on`."""

    def __init__(
        self, keys: pa.Array | pa.ChunkedArray | pa.Table, *, on: Sequence[str], schema: Schema, table: str
    ) -> None:
        """Raises `TableError` when the keys aren't of the columns' types."""
        given = keys if isinstance(keys, pa.Table) else pa.table({on[0]: keys})
        if given.num_columns != len(on):
            raise TableError(
                f'keys of table "{table}" have {len(on)} columns, not {given.num_columns}',
                detail=f"the columns are {', '.join(on)}",
                code="wrong-type",
            )
        self._on = list(on)
        arrays = [
            _cast(as_array(column), schema.column(name), table) for name, column in zip(on, given.columns, strict=True)
        ]
        self._rows = pa.Table.from_arrays(arrays, names=self._on)
        # A NULL matches nothing; what the column's type can't hold has become one.
        usable = np.ones(given.num_rows, dtype=np.bool_)
        for array in arrays:
            if array.null_count:
                usable &= array.is_valid().to_numpy(zero_copy_only=False)
        self._places = np.flatnonzero(usable)
        self._keys = key_values(self._rows.take(pa.array(self._places)), self._on)

    @property
    def distinct(self) -> pa.Table:
        """Every key once, none with a NULL."""
        first: dict[Hashable, int] = {}
        for place, key in zip(self._places.tolist(), self._keys, strict=True):
            first.setdefault(key, place)
        if len(first) == self._rows.num_rows:
            return self._rows
        return self._rows.take(pa.array(list(first.values()), type=pa.int64()))

    def answer(self, found: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The rows found, which have the columns `on` and those asked for, for each key that was given."""
        by_key: dict[Hashable, list[int]] = {}
        for row, key in enumerate(key_values(found, self._on)):
            by_key.setdefault(key, []).append(row)
        rows: list[int] = []
        positions: list[int] = []
        for place, key in zip(self._places.tolist(), self._keys, strict=True):
            for row in by_key.get(key, ()):
                rows.append(row)
                positions.append(place)
        chosen = found.select(list(columns)).take(pa.array(rows, type=pa.int64()))
        return chosen.add_column(0, POSITION, pa.array(positions, type=pa.int64()))


def _cast(array: pa.Array, column: Column, table: str) -> pa.Array:
    """The keys in the column's type; NULL where no value of that type equals the key."""
    if not fits(array.type, column.type) and not fits(column.type, array.type):
        raise TableError.wrong_type(
            table, column.name, expected=column.sql_type, got=f"keys of type {render_type(array.type)}"
        )
    try:
        return cast_exactly(array, column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.concat_arrays([_cast_one(array.slice(place, 1), column.type) for place in range(len(array))])


def _cast_one(value: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        return cast_exactly(value, type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(1, type_)
