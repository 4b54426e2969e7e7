"""One version of a Delta table, read from its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from velostream.model.expression import Expression
from velostream.model.schema import Schema
from velostream.tables.delta.codec import Codec
from velostream.tables.delta.files import DataFiles, FileLayout
from velostream.tables.delta.log import DataFile, LogState
from velostream.tables.delta.pruning import equalities, having, pruning_of
from velostream.tables.memory.keys import key_values
from velostream.tables.reads import StoreSnapshot
from velostream.tables.remainder import Remainder

_FEWEST_ROWS_APART = 1_000_000
"""Fewer come sooner through the driver, which has room for them."""
_ROWS_PER_BATCH = 65_536


class DeltaCondition:
    """A condition as a Delta table answers it: files and row groups are left out, all that is left is checked by us."""

    def __init__(self, condition: Expression, schema: Schema) -> None:
        self.checked = Remainder.of([condition], schema)
        self.pruning = pruning_of(condition, schema)
        by_key = bool(schema.key) and equalities(condition, schema) >= set(schema.key)
        self.access = "key" if by_key else "scan"
        self.remainder: Expression | None = condition


@dataclass(frozen=True, slots=True)
class DeltaPart:
    """The rows of one file for which a condition holds."""

    layout: FileLayout
    file: DataFile
    columns: tuple[str, ...]
    condition: Expression | None

    def read(self) -> Iterator[pa.RecordBatch]:
        schema = self.layout.schema
        compiled = None if self.condition is None else DeltaCondition(self.condition, schema)
        checked = None if compiled is None else compiled.checked
        needed = [] if checked is None else [name for name in checked.columns if name not in self.columns]
        batches = DataFiles(self.layout, Codec(schema)).batches(
            [self.file],
            _ROWS_PER_BATCH,
            columns=[*self.columns, *needed],
            pruning=None if compiled is None else compiled.pruning,
        )
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            kept = rows if checked is None else checked.kept(rows)
            yield from kept.select(list(self.columns)).to_batches()


class DeltaSnapshot(StoreSnapshot):
    """The files of one version; they never change, so neither does this."""

    def __init__(
        self,
        name: str,
        schema: Schema,
        *,
        state: LogState,
        files: DataFiles,
        compile_condition: Callable[[Expression], DeltaCondition],
    ) -> None:
        super().__init__(name, schema, state.data_version)
        self.state = state
        self._files = files
        self._compile_condition = compile_condition

    def rows_having(self, on: Sequence[str], values: pa.Table, columns: Sequence[str]) -> pa.Table:
        names = [*on, *(name for name in columns if name not in on)]
        found = self._files.read(self.state.files, columns=names, pruning=having(values, self.schema))
        wanted = set(key_values(values, on))
        qualified = pa.array([key in wanted for key in key_values(found, on)], pa.bool_())
        return found.filter(qualified).select(list(columns))

    def scan(self, condition: Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        names = self.names(columns)
        if condition is None:
            return self._files.read(self.state.files, columns=names)
        return self._qualified(condition, names).select(names)

    def parquet_files(self) -> Sequence[str] | None:
        layout = self._files.layout
        plain = layout.location.store is None and not layout.partition_by and self._files.holds_plain_values
        return [layout.location.path(file.path) for file in self.state.files] or None if plain else None

    def parts(
        self, condition: Expression | None = None, columns: Sequence[str] | None = None
    ) -> Sequence[DeltaPart] | None:
        rows = [file.rows for file in self.state.files]
        if not rows or (None not in rows and sum(filter(None, rows)) < _FEWEST_ROWS_APART):
            return None
        if condition is not None:
            # What can't be compiled is to be refused here, not in a worker.
            self._compile_condition(condition)
        names = tuple(self.names(columns))
        return [DeltaPart(self._files.layout, file, names, condition) for file in self.state.files]

    def count(self, condition: Expression | None = None) -> int:
        if condition is None:
            return self._files.count(self.state.files)
        return int(self._qualified(condition, []).num_rows)

    def batches(self, size: int, offset: int = 0) -> Iterator[pa.RecordBatch]:
        passed = 0
        for batch in self._files.batches(self.state.files, size):
            skipped = min(max(0, offset - passed), batch.num_rows)
            passed += batch.num_rows
            if skipped < batch.num_rows:
                yield batch.slice(skipped)

    def _qualified(self, condition: Expression, columns: Sequence[str]) -> pa.Table:
        compiled = self._compile_condition(condition)
        checked = compiled.checked
        needed = [] if checked is None else [name for name in checked.columns if name not in columns]
        found = self._files.read(self.state.files, columns=[*columns, *needed], pruning=compiled.pruning)
        return found if checked is None else checked.kept(found)
