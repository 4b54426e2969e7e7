"""Writes to a Delta table: which rows of which files go, and the files that take their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.model.change import Scope
from velostream.model.schema import Schema
from velostream.tables.change_log import Changes, net_changes
from velostream.tables.delta.files import DataFiles
from velostream.tables.delta.log import DataFile, LogState
from velostream.tables.delta.pruning import having
from velostream.tables.difference import Difference, Present
from velostream.tables.memory.conform import stored_schema
from velostream.tables.memory.growable import Mask
from velostream.tables.memory.keys import key_values
from velostream.tables.memory.matching import Hashes, hash_rows, rows_match

_PLACE = "_place"
_SMALL_FILE = 50_000
_MOST_SMALL_FILES = 24
"""With more of them in a partition, a commit puts their rows into the file it writes anyway."""


@dataclass(frozen=True, slots=True)
class Handle:
    """Where a row is."""

    file: DataFile
    row: int


class FilesToChange:
    """The rows of one version, for a commit that is worked out from it. Files it has read are read once."""

    def __init__(self, schema: Schema, state: LogState, files: DataFiles) -> None:
        self._schema = schema
        self._state = state
        self._files = files
        self._read: dict[DataFile, pa.Table] = {}

    def of_keys(self, keys: pa.Table) -> Present:
        return self._having(keys)

    def equal_to(self, rows: pa.Table) -> Present:
        """By the columns that are quick to compare; more rows than asked for, none too few."""
        pruning = having(rows, self._schema)
        return self._present([(file, range(self._rows(file).num_rows)) for file in self._candidates(pruning)])

    def all(self, scope: Scope | None) -> Present:
        if scope is None:
            return self._present([(file, range(self._rows(file).num_rows)) for file in self._state.files])
        column = self._schema.column(scope.column)
        return self._having(pa.table({column.name: pa.array([scope.value], column.type)}))

    def rewritten(self, difference: Difference) -> tuple[list[DataFile], pa.Table]:
        """The files that a difference does away with, and the rows to write instead of them."""
        going: dict[DataFile, list[int]] = {}
        for handle in difference.removed.handles:
            going.setdefault(handle.file, []).append(handle.row)
        for small in self._small_files().values():
            if len(small) > _MOST_SMALL_FILES:
                for file in small:
                    going.setdefault(file, [])
        staying = []
        for file in sorted(going, key=lambda file: file.path):
            rows = self._rows(file)
            kept = np.ones(rows.num_rows, dtype=np.bool_)
            kept[going[file]] = False
            staying.append(rows.filter(pa.array(kept)))
        return list(going), pa.concat_tables([*staying, difference.added])

    def _small_files(self) -> dict[tuple[Any, ...], list[DataFile]]:
        """By partition: what is of different ones can't be put into one file."""
        small: dict[tuple[Any, ...], list[DataFile]] = {}
        for file in self._state.files:
            if file.rows is not None and file.rows < _SMALL_FILE:
                small.setdefault(file.partition, []).append(file)
        return small

    def _having(self, values: pa.Table) -> Present:
        """The rows that have one of these values in the columns of the same names, exactly."""
        names = values.column_names
        wanted = set(key_values(values, names))
        pruning = having(values, self._schema)
        found: list[tuple[DataFile, Sequence[int]]] = []
        for file in self._candidates(pruning):
            places = pa.array(np.arange(self._rows(file).num_rows))
            rows = self._rows(file).select(names).append_column(_PLACE, places)
            if pruning is not None:
                rows = rows.filter(pruning)
            keys = zip(rows.column(_PLACE).to_pylist(), key_values(rows, names), strict=True)
            found.append((file, [place for place, key in keys if key in wanted]))
        return self._present(found)

    def _candidates(self, pruning: Any) -> list[DataFile]:
        return [file for file in self._state.files if self._files.may_have(file, pruning)]

    def _present(self, found: Sequence[tuple[DataFile, Sequence[int]]]) -> Present:
        rows = [self._rows(file).take(pa.array(places, pa.int64())) for file, places in found if len(places)]
        handles = [Handle(file, place) for file, places in found for place in places]
        return Present(pa.concat_tables([stored_schema(self._schema).empty_table(), *rows]), handles)

    def _rows(self, file: DataFile) -> pa.Table:
        if file not in self._read:
            self._read[file] = self._files.read([file])
        return self._read[file]


def changed_rows(schema: Schema, removed: pa.Table, added: pa.Table) -> Changes:
    """What became of the rows of files that were replaced. Most have only moved, so these are found first, by hash."""
    if not removed.num_rows or not added.num_rows:
        return Changes(removed, added)
    of_removed, of_added = hash_rows(removed.columns), hash_rows(added.columns)
    moved_from, moved_to = _is_in(of_removed, of_added), _is_in(of_added, of_removed)
    from_order = np.flatnonzero(moved_from)[np.argsort(of_removed[moved_from], kind="stable")]
    to_order = np.flatnonzero(moved_to)[np.argsort(of_added[moved_to], kind="stable")]
    same = len(from_order) == len(to_order) and bool(
        rows_match(removed.take(pa.array(from_order)).columns, added.take(pa.array(to_order)).columns).all()
    )
    if not same:
        # Equal rows that are now more or fewer, or different ones that share a hash.
        return net_changes(schema, [Changes(removed, added)])
    return Changes(removed.filter(pa.array(~moved_from)), added.filter(pa.array(~moved_to)))


def _is_in(hashes: Hashes, others: Hashes) -> Mask:
    # Arrow's way takes a tenth of the time of NumPy's.
    found: Mask = pc.is_in(pa.array(hashes), pa.array(others)).to_numpy(zero_copy_only=False)
    return found
