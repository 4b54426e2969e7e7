"""Sources of rows whose changes are known without reading all of them: rows one by one, and joins along equalities."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from velostream.engine.maintain.base import FoundRows, Movement, as_planned
from velostream.engine.maintain.delta_joined import JoinedRows
from velostream.engine.maintain.steps import StepRunner, changes_of, difference, is_empty, of_sign
from velostream.engine.relations import arrow_result, run_sql
from velostream.errors import UnsupportedError
from velostream.model.change import signed
from velostream.model.schema import Schema
from velostream.tables.memory.compare import match_rows
from velostream.tables.memory.evaluate import CannotCompile
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import key_values

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext
    from velostream.sql.plan import DrivenPlan, Step


_FEW_ROWS = 2_000_000
"""Up to so many rows are joined without Spark when all of them are; Spark uses all cores for more."""


class RowSource(ABC):
    """Rows that follow from tables, with `_change`."""

    fingerprint: str
    """Differs when the rows are those of another plan."""

    @abstractmethod
    def all(self, movement: Movement) -> pa.Table:
        """All rows there are now, as changes from nothing."""

    @abstractmethod
    def changes(self, movement: Movement) -> pa.Table | None:
        """What became of the rows, -1 before +1; None when that costs no less than reading all of them."""

    def having(self, movement: Movement, columns: Sequence[str], values: pa.Table) -> pa.Table:
        """All rows there are now that come from rows of the one input whose columns have one of the values.

        No columns: all rows. A source of several inputs refuses.
        """
        raise UnsupportedError(
            "rows of a join can't be found by the values of one input", code="unsupported-capability"
        )


class LinearRows(RowSource):
    """Every row of the inputs gives its result by itself."""

    def __init__(self, context: EngineContext, step: Step, *, reads: Mapping[str, Schema], gives: Schema) -> None:
        self._step = StepRunner(context, step, reads=reads, gives=gives)
        self._gives = gives
        self.fingerprint = fingerprint_of(context, step)

    def all(self, movement: Movement) -> pa.Table:
        return self._step.run({relation: movement.rows(relation, self._step.needed) for relation in movement.inputs})

    def changes(self, movement: Movement) -> pa.Table | None:
        changes = {relation: movement.changes(relation) for relation in movement.inputs}
        if is_too_much(movement, sum(rows.num_rows for rows in changes.values())):
            return None
        return changes_of(self._gives) if is_empty(list(changes.values())) else self._step.run(changes)

    def having(self, movement: Movement, columns: Sequence[str], values: pa.Table) -> pa.Table:
        (relation,) = movement.inputs
        if not columns:
            return self.all(movement)
        found = rows_with(movement.now(relation), columns, key_values(values, columns))
        return self._step.run({relation: signed(as_planned(found, movement.inputs[relation]), 1)})


class DrivenRows(RowSource):
    """Joins and correlated subqueries: the rows of the root that a change may concern are computed before and after."""

    def __init__(self, context: EngineContext, plan: DrivenPlan, *, reads: Mapping[str, Schema], gives: Schema) -> None:
        self._context = context
        self._plan = plan
        self._reads = {reader.relation: reads[reader.input] for reader in plan.readers}
        self._gives = gives
        self._joined = _compiled(plan, reads=self._reads, gives=gives)
        self.fingerprint = fingerprint_of(context, plan)

    def all(self, movement: Movement) -> pa.Table:
        if self._joined is not None and sum(len(movement.now(one)) for one in movement.inputs) <= _FEW_ROWS:
            needed = self._joined.needed
            now = {
                reader.relation: movement.now(reader.input).scan(columns=needed[reader.relation])
                for reader in self._plan.readers
            }
            return signed(self._joined.run(now), 1)
        session = self._context.spark.session()
        frames = {}
        for reader in self._plan.readers:
            entry = movement.inputs[reader.input]
            frames[reader.relation] = self._context.frame(session, entry, at=movement.wave.number_of(entry))
        return signed(arrow_result(run_sql(session, self._plan.sql, frames)).rename_columns(list(self._gives.names)), 1)

    def changes(self, movement: Movement) -> pa.Table | None:
        changed = sum(movement.changes(relation).num_rows for relation in movement.inputs)
        if not changed:
            return changes_of(self._gives)
        before = _State(
            {reader.relation: movement.before(reader.input, self._context) for reader in self._plan.readers}
        )
        now = _State({reader.relation: movement.now(reader.input) for reader in self._plan.readers})
        if is_too_much(movement, changed) or self._have_others(before, now):
            return None
        wanted = self._concerned(movement, before, now)
        regions = [self._region(movement, state, wanted) for state in (before, now)]
        if any(is_too_much(movement, 2 * sum(rows.num_rows for rows in region.values())) for region in regions):
            return None
        if self._joined is not None:
            return net(self._joined.run(regions[0]), self._joined.run(regions[1]))
        changes = difference(
            self._context, self._plan.sql, self._reads, before=regions[0], now=regions[1], gives=self._gives
        )
        return net(of_sign(changes, -1), of_sign(changes, 1))

    def _columns(self, reader: str) -> Sequence[str] | None:
        """What is read of a reader's rows; None: all, as Spark is given them."""
        if self._joined is None:
            return None
        linked = {column for link in self._plan.links if link.parent == reader for column in link.parent_columns}
        return [name for name in self._reads[reader].names if name in linked or name in self._joined.needed[reader]]

    def _concerned(self, movement: Movement, before: _State, now: _State) -> _Wanted:
        """Which rows of the root changes may concern, by values of its columns: the links followed backwards."""
        readers = {reader.relation: reader for reader in self._plan.readers}
        wanted: dict[str, _Wanted] = {name: _Wanted() for name in readers}
        for link in reversed(self._plan.links):
            touched = [state.rows(link.child, wanted[link.child], link.child_columns) for state in (before, now)]
            touched.append(movement.changes(readers[link.child].input))
            values = [value for rows in touched for value in known_values(rows, link.child_columns)]
            wanted[link.parent].add(link.parent_columns, values)
        root = self._plan.readers[0]
        columns = self._identity(root.relation)
        # A row of the root that changed is found as it was and as it is; a NULL finds rows with NULL, too.
        wanted[root.relation].add(columns, key_values(movement.changes(root.input), columns))
        return wanted[root.relation]

    def _identity(self, root: str) -> tuple[str, ...]:
        """Columns of the root that few rows share, to find changed rows by."""
        linked = next((link.parent_columns for link in self._plan.links if link.parent == root), ())
        return self._reads[root].key or linked or self._reads[root].names

    def _have_others(self, before: _State, now: _State) -> bool:
        """Whether a constant has become another one, which concerns all rows."""
        return any(
            not before.snapshots[name].scan().equals(now.snapshots[name].scan()) for name in self._plan.constants
        )

    def _region(self, movement: Movement, state: _State, wanted: _Wanted) -> dict[str, pa.Table]:
        """All that the root's rows concerned need, of each reader: the links followed forwards."""
        root = self._plan.readers[0]
        found = {root.relation: state.rows(root.relation, wanted, self._columns(root.relation))}
        for link in self._plan.links:
            values = known_values(found[link.parent], link.parent_columns)
            columns = self._columns(link.child)
            found[link.child] = state.rows(link.child, _Wanted({link.child_columns: values}), columns)
        found |= {name: state.snapshots[name].scan() for name in self._plan.constants}
        return {
            reader.relation: as_planned(found[reader.relation], movement.inputs[reader.input])
            for reader in self._plan.readers
        }


def _compiled(plan: DrivenPlan, *, reads: Mapping[str, Schema], gives: Schema) -> JoinedRows | None:
    """The query without need of Spark, where that gives Spark's answer."""
    if plan.joined is None:
        return None
    try:
        return JoinedRows(plan.joined, reads=reads, gives=gives)
    except CannotCompile:
        return None


def net(gone: pa.Table, came: pa.Table) -> pa.Table:
    """What went and what came as changes, without the rows that did both."""
    same = match_rows(gone, came)
    parts = ((gone, same.left, -1), (came, same.right, 1))
    return pa.concat_tables([signed(_without(rows, kept), sign) for rows, kept, sign in parts])


def _without(rows: pa.Table, places: Integers) -> pa.Table:
    return rows.take(pa.array(np.setdiff1d(np.arange(rows.num_rows), places))) if len(places) else rows


@dataclass
class _Wanted:
    """Rows asked for by values of some of their columns; a row with any of them is meant."""

    values: dict[tuple[str, ...], list[Hashable]] = field(default_factory=dict)

    def add(self, columns: tuple[str, ...], values: Sequence[Hashable]) -> None:
        self.values.setdefault(columns, []).extend(values)


@dataclass(frozen=True)
class _State:
    """Snapshots of the readers at one time."""

    snapshots: Mapping[str, FoundRows]

    def rows(self, reader: str, wanted: _Wanted, columns: Sequence[str] | None) -> pa.Table:
        """Rows that have one of the values, each once."""
        snapshot = self.snapshots[reader]
        found = [positions_with(snapshot, columns, values) for columns, values in wanted.values.items()]
        positions = np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)
        return snapshot.take(positions, columns)


def rows_with(snapshot: FoundRows, columns: Sequence[str], values: Sequence[Hashable]) -> pa.Table:
    """The rows whose columns have one of the values, NULL being a value like any other; by an index, made if needed.

    The values are in the form of `keys.key_values`.
    """
    return snapshot.take(positions_with(snapshot, columns, values))


def positions_with(snapshot: FoundRows, columns: Sequence[str], values: Sequence[Hashable]) -> Integers:
    return snapshot.positions_of(tuple(columns), list(dict.fromkeys(values)))


def known_values(rows: pa.Table, columns: Sequence[str]) -> list[Hashable]:
    """The values of columns of rows, in the form of `keys.key_values`, without those that hold a NULL."""
    values = key_values(rows, columns)
    if len(columns) == 1:
        return [value for value in values if value is not None]
    return [value for value in values if isinstance(value, tuple) and None not in value]


def is_too_much(movement: Movement, rows: int) -> bool:
    """Whether reading so many rows costs no less than reading all rows of the inputs, which are there to be read."""
    return not movement.must_follow and rows > sum(len(movement.now(relation)) for relation in movement.inputs)


def fingerprint_of(context: EngineContext, *plans: object) -> str:
    """What tells whether a plan, and the Python functions it calls, made what is stored."""
    told = repr(plans)
    return hashlib.sha256(f"{told}{context.functions.versions_in(told)}".encode()).hexdigest()[:16]
