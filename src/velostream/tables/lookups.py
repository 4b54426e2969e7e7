"""Batched lookups in a store: each key asked for once, the rows found dealt out to all who asked."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pyarrow as pa

from velostream.errors import TableError
from velostream.model.schema import Column, Schema
from velostream.model.types import render_type
from velostream.tables.memory.compare import ranges
from velostream.tables.memory.conform import cast_exactly, fits
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import as_array, key_values

POSITION = "_position"
"""First column of a lookup's result: which of the given keys a row answers."""


def as_keys(keys: pa.Table) -> pa.ChunkedArray | pa.Table:
    """Keys in the form that lookups take: a composite key stays a table."""
    return keys.column(0) if keys.num_columns == 1 else keys


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
        rows = pa.Table.from_arrays(arrays, names=self._on)
        # A NULL matches nothing; what the column's type can't hold has become one.
        usable = np.ones(given.num_rows, dtype=np.bool_)
        for array in arrays:
            if array.null_count:
                usable &= array.is_valid().to_numpy(zero_copy_only=False)
        self._places = np.flatnonzero(usable)
        """Where the usable keys were given."""
        self._distinct, self._numbers = _numbered(rows if usable.all() else rows.filter(pa.array(usable)))

    @property
    def distinct(self) -> pa.Table:
        """Every key once, none with a NULL."""
        return self._distinct

    def answer(self, found: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The rows found, which have the columns `on` and those asked for, for each key that was given."""
        numbers = {key: number for number, key in enumerate(key_values(self._distinct, self._on))}
        of_rows = [numbers.get(key, -1) for key in key_values(found, self._on)]
        return self.deal_out(np.array(of_rows, dtype=np.int64), found.select(list(columns)))

    def deal_out(self, numbers: Integers, rows: pa.Table) -> pa.Table:
        """The rows found for each key that was given; `numbers` says for each row which of `distinct` it has, or -1."""
        order = np.argsort(numbers, kind="stable")
        order = order[np.searchsorted(numbers[order], 0) :]
        counts = np.bincount(numbers[order], minlength=self._distinct.num_rows)
        starts = np.cumsum(counts) - counts
        each = counts[self._numbers]
        chosen = order[ranges(starts[self._numbers], each)]
        positions = np.repeat(self._places, each)
        return rows.take(pa.array(chosen)).add_column(0, POSITION, pa.array(positions, type=pa.int64()))


def _numbered(keys: pa.Table) -> tuple[pa.Table, Integers]:
    """Every different key once, in the order they first stand, and for each key which of those it is."""
    column = as_array(keys.column(0))
    # Floats have NaNs and zeros that Arrow may tell apart, and nested values it can't encode.
    if keys.num_columns == 1 and not (pa.types.is_floating(column.type) or pa.types.is_nested(column.type)):
        encoded = column.dictionary_encode()
        distinct = pa.Table.from_arrays([encoded.dictionary], names=keys.column_names)
        return distinct, encoded.indices.to_numpy().astype(np.int64)
    first: dict[Hashable, int] = {}
    rows: list[int] = []
    values = key_values(keys, keys.column_names)
    numbers = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        number = first.setdefault(value, len(first))
        numbers[row] = number
        if number == len(rows):
            rows.append(row)
    return keys.take(pa.array(rows, type=pa.int64())), numbers


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
