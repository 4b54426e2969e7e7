"""MERGE INTO by the rows of a stream: each is merged by itself, in the order of the stream.

A micro-batch has no meaning of its own, so several rows of one are no ambiguity as they would be in Spark's MERGE: the
later ones see what the earlier ones did. Rows that can't meet the same row of the table are merged at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from velostream.engine.assignment import assign_column
from velostream.engine.draft import DraftTable
from velostream.engine.merge import commit_merged, replaced
from velostream.engine.pairs import ComputePairs, PairChange
from velostream.model.expression import Expression
from velostream.model.schema import Schema
from velostream.sql.merging import MergeClause, MergePlan
from velostream.tables.base import Table
from velostream.tables.memory.compare import hashable_rows
from velostream.tables.memory.conform import check_not_null

_Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Outcome:
    """What source rows make of the table."""

    removed: list[pa.Table]
    changed: list[tuple[pa.Table, pa.Table]]
    added: list[pa.Table]

    @property
    def rows(self) -> int:
        affected = [*self.removed, *(before for before, _ in self.changed), *self.added]
        return sum(rows.num_rows for rows in affected)


class MergeChange(PairChange):
    """A planned MERGE, ready to run on any number of source rows. Holds no rows itself."""

    def __init__(
        self, plan: MergePlan, *, table: str, schema: Schema, driving: Schema, text: str, compute: ComputePairs
    ) -> None:
        super().__init__(plan.pairs, table=table, schema=schema, driving=driving, text=text, compute=compute)
        self._clauses = tuple(_LoweredClause.of(clause, self, text) for clause in plan.clauses)

    def merge(self, table: Table, rows: pa.Table) -> int:
        """Apply the clauses; gives how many rows were added, changed and removed, over all source rows."""
        named = self._named(rows)
        draft = DraftTable(table, table.snapshot())
        affected = 0
        for turn in self._turns(named):
            affected += self._merge_apart(draft, named.take(turn))
            draft.settle()
        for write in draft.writes():
            table.commit(write)
        return affected

    def _turns(self, rows: pa.Table) -> Sequence[_Integers]:
        """Positions of rows that can be merged at once, in the order in which that has to happen."""
        if not self._keeps_rows_apart:
            return [np.array([number]) for number in range(rows.num_rows)]
        keys = rows.select([one.driving for one in self._lookups])
        has_null = np.any([column.is_null() for column in keys.columns], axis=0)
        seen: Counter[object] = Counter()
        turns = np.zeros(rows.num_rows, dtype=np.int64)
        for number, (key, null) in enumerate(zip(hashable_rows(keys), has_null, strict=True)):
            # NULL equals nothing: such a row meets no other.
            if not null:
                turns[number] = seen[key]
                seen[key] += 1
        return [np.flatnonzero(turns == turn) for turn in range(int(turns.max(initial=-1)) + 1)]

    @property
    def _keeps_rows_apart(self) -> bool:
        """Whether source rows of different keys never meet the same row: a row keeps the key it was found by."""
        tied = {one.column: one.driving for one in self._lookups}
        for clause in self._clauses:
            for column, driving in tied.items():
                value = clause.given.values.get(column)
                is_key = isinstance(value, exp.Column) and len(value.parts) == 1 and value.name == driving
                if (clause.given.inserts and not is_key) or (value is not None and not is_key):
                    return False
        return bool(tied)

    def _merge_apart(self, draft: DraftTable, rows: pa.Table) -> int:
        """Merge source rows no two of which meet the same row."""
        snapshot = draft.snapshot()
        found = self._found(snapshot, rows) if self._lookups else self._found_by_scan(snapshot, rows)
        holds = self._computed(found.old, found.driving).holds
        old, positions = found.old.filter(pa.array(holds)), found.positions[holds]
        outcome = _Outcome([], [], [])
        self._match(old, rows.take(positions), outcome)
        self._insert(rows.take(np.setdiff1d(np.arange(rows.num_rows), positions)), outcome)
        commit_merged(draft, snapshot, removed=outcome.removed, changed=outcome.changed, added=outcome.added)
        return outcome.rows

    def _match(self, old: pa.Table, driving: pa.Table, outcome: _Outcome) -> None:
        pairs = pa.Table.from_arrays([*old.columns, *driving.columns], names=list(self._pair_schema.names))
        for clause in self._clauses:
            if not clause.given.matched:
                continue
            chosen, pairs = self._divided(clause, pairs)
            before = chosen.select(list(self._schema.names))
            if clause.given.values:
                after = replaced(before, self._values(clause, chosen))
                check_not_null(after, table=self._table, schema=self._schema)
                outcome.changed.append((before, after))
            else:
                outcome.removed.append(before)

    def _insert(self, driving: pa.Table, outcome: _Outcome) -> None:
        for clause in self._clauses:
            if clause.given.matched:
                continue
            chosen, driving = self._divided(clause, driving)
            if chosen.num_rows:
                outcome.added.append(self._values(clause, chosen))

    def _divided(self, clause: _LoweredClause, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The rows a clause is for, and those that are left for the clauses after it."""
        condition = clause.given.condition
        if condition is None:
            return rows, rows.slice(0, 0)
        if not rows.num_rows:
            return rows, rows
        if clause.condition is not None:
            fits = self._column(clause.condition, rows).fill_null(False)
        else:
            fits = self._compute(f"SELECT COALESCE({condition.sql(dialect='spark')}, FALSE) FROM pairs", rows).column(0)
        mask = np.asarray(fits)
        return rows.filter(pa.array(mask)), rows.filter(pa.array(~mask))

    def _values(self, clause: _LoweredClause, rows: pa.Table) -> pa.Table:
        names = list(clause.given.values)
        if clause.values is not None:
            arrays = [self._assign(name, clause.values[name], rows) for name in names]
            return pa.Table.from_arrays(arrays, names=names)
        items = ", ".join(value.sql(dialect="spark") for value in clause.given.values.values())
        computed = self._compute(f"SELECT {items} FROM pairs", rows)
        arrays = [
            assign_column(column, self._schema.column(name), table=self._table)
            for name, column in zip(names, computed.columns, strict=True)
        ]
        return pa.Table.from_arrays(arrays, names=names)


@dataclass(frozen=True)
class _LoweredClause:
    """A clause with its expressions as tables evaluate them; None for what Spark has to."""

    given: MergeClause
    condition: Expression | None
    values: dict[str, Expression] | None

    @classmethod
    def of(cls, clause: MergeClause, change: PairChange, text: str) -> _LoweredClause:
        condition = None if clause.condition is None else change.lowered(clause.condition, text)
        values = {name: change.lowered(value, text) for name, value in clause.values.items()}
        known = {name: value for name, value in values.items() if value is not None}
        return cls(clause, condition, known if len(known) == len(values) else None)
