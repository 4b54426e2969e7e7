"""Changing a table by driving rows: UPDATE … FROM, DELETE … USING, UPSERT … ON, standalone and from streams alike.

Driving rows apply in their order, each seeing what the ones before it did. Rows of the table are found by lookups where
the condition ties columns to driving values, so the cost follows the driving rows. As long as no two of them meet the
same row they are computed all at once, else in rounds: the first change of every row, then the second, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from velostream.engine.assignment import assign_column, assign_constant
from velostream.engine.dml import check_new_keys
from velostream.engine.draft import DraftTable, concatenated
from velostream.engine.folding import Fold
from velostream.engine.identities import Identities
from velostream.model.change import Mode, Write, signed
from velostream.model.expression import Call, Case, Cast, ColumnRef, Expression, Literal
from velostream.model.schema import Column, Schema
from velostream.sql.keytypes import key_cast
from velostream.sql.lower import NotLowerable, lower
from velostream.sql.pairs import Equality, PairPlan
from velostream.tables.base import Snapshot, Table
from velostream.tables.memory.compare import hashable_rows
from velostream.tables.memory.conform import check_not_null
from velostream.tables.memory.evaluate import CannotCompile, column_of, compile_expression

ComputePairs = Callable[[str, pa.Table], pa.Table]
"""Lets Spark run a SELECT over the relation `pairs`, which has the rows given; their order is kept."""

_POSITION = "_position"
_Integers = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Computed:
    """Which pairs the condition holds for, and the values those get, of their columns' types."""

    holds: _Mask
    values: Sequence[pa.Array]


class PairChange:
    """A planned change of one table, ready to run on any number of driving rows. Holds no rows itself."""

    def __init__(
        self, plan: PairPlan, *, table: str, schema: Schema, driving: Schema, text: str, compute: ComputePairs
    ) -> None:
        """`driving` are the columns of the plan's query under the names a pair has them by."""
        self._table = table
        self._schema = schema
        self._driving = driving
        self._given = plan.given
        self._compute = compute
        usable = [one for one in plan.equalities if _can_look_up(one, schema, driving)]
        by_key = [one for one in usable if one.column in schema.key]
        self._lookups = tuple(by_key if schema.key and len(by_key) == len(schema.key) else usable)
        rest = [_equation(one) for one in plan.equalities if one not in self._lookups]
        if plan.condition is not None:
            rest.append(plan.condition)
        self._condition = exp.and_(*rest) if rest else None
        self._assigned: dict[str, exp.Expr] = dict(plan.assignments)
        self._pair_schema = Schema((*schema.columns, *driving.columns))
        self._lowered = self._lower(text)
        self._fold = self._foldable()
        everything = [*(_equation(one) for one in self._lookups), *([self._condition] if self._condition else [])]
        self._whole = self.lowered(exp.and_(*everything), text) if everything else None

    @property
    def looks_up(self) -> tuple[str, ...]:
        """The columns by which rows are found; none: every row is compared."""
        return tuple(one.column for one in self._lookups)

    def update(self, table: Table, rows: pa.Table) -> int:
        """Apply the assignments; gives how many rows of the table were met. Call it with other commits held off."""
        if not rows.num_rows:
            return 0
        if self._lookups and not set(self.looks_up) & set(self._assigned):
            return self._update_in_rounds(table, self._named(rows))
        return self._one_by_one(table, self._named(rows), self._update_by_one)

    def delete(self, table: Table, rows: pa.Table) -> int:
        """Remove the rows that meet a driving row; gives how many."""
        if not rows.num_rows:
            return 0
        if not self._lookups:
            return self._one_by_one(table, self._named(rows), self._delete_by_one)
        found = self._found(table.snapshot(), self._named(rows))
        computed = self._computed(found.old, found.driving)
        met = Identities.of(found.old.filter(pa.array(computed.holds)), found.positions[computed.holds], self._key)
        if len(met.weights):
            table.commit(Write(Mode.DELETE, met.repeated(met.rows).select(list(self._key or self._schema.names))))
        return int(met.weights.sum())

    def upsert(self, table: Table, rows: pa.Table) -> int:
        """Give every row that ON finds the new values, and add those rows for which it finds none."""
        named = self._named(rows)
        given = self._given_rows(named)
        if not rows.num_rows:
            return 0
        if not self._is_collapsible:
            self._one_by_one(table, named, self._upsert_by_one)
        elif set(self.looks_up) == set(self._key) and set(self._given) == set(self._schema.names):
            check_not_null(given, table=self._table, schema=self._schema)
            table.commit(Write(Mode.UPSERT, given))
        else:
            chosen = self._last_of_each_key(named)
            self._write_upserted(table, named.take(chosen), given.take(chosen))
        return int(rows.num_rows)

    @property
    def _key(self) -> tuple[str, ...]:
        return self._schema.key

    def _update_in_rounds(self, table: Table, rows: pa.Table) -> int:
        snapshot = table.snapshot()
        found = self._found(snapshot, rows)
        met = Identities.of(found.old, found.positions, self._key)
        folded = self._folded(met, rows)
        if folded is not None:
            self._write_updated(table, snapshot, met, met.rows, folded, met.weights)
            return int(met.weights.sum())
        state, where = met.rows, np.arange(len(met.weights))
        touched = np.zeros(len(met.weights), dtype=np.bool_)
        present = np.arange(len(met.weights))
        finished: list[tuple[_Integers, pa.Table]] = []
        for one_round in met.rounds():
            identities = met.identities[one_round]
            left = np.setdiff1d(present, identities, assume_unique=True)
            finished.append((left, state.take(where[left])))
            old = state.take(where[identities])
            computed = self._computed(old, rows.take(met.positions[one_round]))
            state = self._changed(old, computed)
            where[identities] = np.arange(len(identities))
            touched[identities[computed.holds]] = True
            present = identities
        finished.append((present, state.take(where[present])))
        order = np.argsort(np.concatenate([identities for identities, _ in finished]))
        new = concatenated([part for _, part in finished]).take(order)
        mask = pa.array(touched)
        self._write_updated(table, snapshot, met, met.rows.filter(mask), new.filter(mask), met.weights[touched])
        return int(met.weights[touched].sum())

    def _foldable(self) -> Fold | None:
        if self._lowered is None or self._condition is not None:
            return None
        return Fold.of(self._lowered[1], self._schema)

    def _folded(self, met: Identities, rows: pa.Table) -> pa.Table | None:
        """The rows after all changes at once, where several are of one row and their order can't show."""
        if self._fold is None or len(met.identities) <= len(met.weights):
            return None
        driving = rows.take(met.positions)
        values = [
            self._column(step.value, driving) if step.sign else self._assign(step.column.name, step.value, driving)
            for step in self._fold.steps
        ]
        return self._fold.apply(met.rows, met.identities, values)

    def _write_updated(
        self, table: Table, snapshot: Snapshot, met: Identities, old: pa.Table, new: pa.Table, weights: _Integers
    ) -> None:
        if not new.num_rows:
            return
        check_not_null(new, table=self._table, schema=self._schema)
        if self._key and not set(self._key) & set(self._assigned):
            table.commit(Write(Mode.UPSERT, new))
            return
        if self._key:
            check_new_keys(table, snapshot, old.select(list(self._key)), new.select(list(self._key)))
        else:
            old, new = met.repeated(old, weights), met.repeated(new, weights)
        table.commit(Write(Mode.CHANGES, concatenated([signed(old, -1), signed(new, 1)])))

    def _one_by_one(self, table: Table, rows: pa.Table, step: Callable[[DraftTable, pa.Table], int]) -> int:
        """Each driving row by itself on a draft, then all that came of it as one write."""
        draft = DraftTable(table, table.snapshot())
        total = 0
        for number in range(rows.num_rows):
            total += step(draft, rows.slice(number, 1))
            draft.settle()
        for write in draft.writes():
            table.commit(write)
        return total

    def _update_by_one(self, draft: DraftTable, row: pa.Table) -> int:
        snapshot = draft.snapshot()
        old, computed = self._met_by(snapshot, row)
        if not old.num_rows:
            return 0
        new = self._changed(old, computed)
        check_not_null(new, table=self._table, schema=self._schema)
        if self._key:
            check_new_keys(draft, snapshot, old.select(list(self._key)), new.select(list(self._key)))
        draft.commit(Write(Mode.CHANGES, concatenated([signed(old, -1), signed(new, 1)])))
        return int(old.num_rows)

    def _delete_by_one(self, draft: DraftTable, row: pa.Table) -> int:
        old, _ = self._met_by(draft.snapshot(), row)
        if old.num_rows:
            draft.commit(Write(Mode.DELETE, old.select(list(self._key)) if self._key else old))
        return int(old.num_rows)

    def _upsert_by_one(self, draft: DraftTable, row: pa.Table) -> int:
        self._write_upserted(draft, row, self._given_rows(row))
        return 1

    def _write_upserted(self, table: Table, rows: pa.Table, given: pa.Table) -> None:
        """Rows none of which meets what another one adds."""
        snapshot = table.snapshot()
        found = self._found(snapshot, rows) if self._lookups else self._found_by_scan(snapshot, rows)
        holds = pa.array(self._computed(found.old, found.driving).holds)
        old, positions = found.old.filter(holds), found.positions[holds.to_numpy(zero_copy_only=False)]
        new = _with_columns(old, given.take(positions))
        added = given.take(np.setdiff1d(np.arange(rows.num_rows), positions))
        check_not_null(new, table=self._table, schema=self._schema)
        if self._is_collapsible and set(self.looks_up) == set(self._key):
            padded = _padded(added, self._schema)
            check_not_null(padded, table=self._table, schema=self._schema)
            table.commit(Write(Mode.UPSERT, concatenated([new.select(padded.column_names), padded])))
            return
        if self._key:
            check_new_keys(table, snapshot, old.select(list(self._key)), new.select(list(self._key)))
        draft = DraftTable(table, snapshot)
        draft.commit(Write(Mode.CHANGES, concatenated([signed(old, -1), signed(new, 1)])))
        draft.commit(Write(Mode.APPEND, added))
        draft.settle()
        for write in draft.writes():
            table.commit(write)

    @property
    def _is_collapsible(self) -> bool:
        """Whether ON finds, for the next row of a key, just what the row before it added: then the last one counts."""
        values = dict(zip(self._driving.names, self._given, strict=False))
        return (
            bool(self._lookups)
            and self._condition is None
            and all(values.get(one.driving) == one.column for one in self._lookups)
        )

    def _last_of_each_key(self, rows: pa.Table) -> _Integers:
        """Positions of the last row of each key, and of every row whose key has a NULL: NULL equals nothing."""
        keys = rows.select([one.driving for one in self._lookups])
        has_null = np.any([column.is_null() for column in keys.columns], axis=0)
        last = {
            number if null else key: number
            for number, (key, null) in enumerate(zip(hashable_rows(keys), has_null, strict=True))
        }
        return np.array(sorted(last.values()), dtype=np.int64)

    def _named(self, rows: pa.Table) -> pa.Table:
        return rows.rename_columns(list(self._driving.names))

    def _given_rows(self, rows: pa.Table) -> pa.Table:
        arrays = [
            assign_column(rows.column(number), self._schema.column(name), table=self._table)
            for number, name in enumerate(self._given)
        ]
        return pa.Table.from_arrays(arrays, names=list(self._given))

    def _found(self, snapshot: Snapshot, rows: pa.Table) -> _Found:
        """The table's rows that the lookups find, each beside its driving row, in the order of those."""
        columns = {one.column: one.driving for one in self._lookups}
        is_key = set(columns) == set(self._key)
        names = list(self._key) if is_key else list(columns)
        arrays = [_as_keys(rows.column(columns[name]), self._schema.column(name)) for name in names]
        keys = arrays[0] if len(arrays) == 1 else pa.Table.from_arrays(arrays, names=names)
        found = snapshot.lookup(keys) if is_key else snapshot.lookup_by(names, keys)
        positions = found.column(_POSITION).to_numpy()
        return _Found(found.drop_columns([_POSITION]), rows.take(positions), positions)

    def _found_by_scan(self, snapshot: Snapshot, row: pa.Table) -> _Found:
        """All that may meet one driving row."""
        condition = None if self._whole is None else _with_constants(self._whole, row)
        old = snapshot.scan(condition)
        positions = np.zeros(old.num_rows, dtype=np.int64)
        return _Found(old, row.take(positions), positions)

    def _met_by(self, snapshot: Snapshot, row: pa.Table) -> tuple[pa.Table, _Computed]:
        found = self._found(snapshot, row) if self._lookups else self._found_by_scan(snapshot, row)
        computed = self._computed(found.old, found.driving)
        met = found.old.filter(pa.array(computed.holds))
        return met, _Computed(np.ones(met.num_rows, dtype=np.bool_), computed.values)

    def _changed(self, old: pa.Table, computed: _Computed) -> pa.Table:
        """The rows with new values where the condition holds."""
        new = old
        for name, values in zip(self._assigned, computed.values, strict=True):
            at = new.column_names.index(name)
            if not computed.holds.all():
                present = new.column(at).combine_chunks()
                values = pc.replace_with_mask(present, pa.array(computed.holds), values)  # noqa: PLW2901
            new = new.set_column(at, pa.field(name, values.type), values)
        return new

    def _computed(self, old: pa.Table, driving: pa.Table) -> _Computed:
        pairs = pa.Table.from_arrays([*old.columns, *driving.columns], schema=_loose(self._pair_schema))
        if self._lowered is None:
            return self._computed_by_spark(pairs)
        condition, values = self._lowered
        holds = np.ones(pairs.num_rows, dtype=np.bool_)
        if condition is not None:
            holds = np.asarray(self._column(condition, pairs).fill_null(False))
            pairs = pairs.filter(pa.array(holds))
        return _Computed(holds, [self._assign(name, value, pairs) for name, value in values.items()])

    def _column(self, expression: Expression, rows: pa.Table) -> pa.ChunkedArray:
        """An expression over pairs, or over as much of them as it reads."""
        compiled = compile_expression(expression, self._pair_schema)
        return column_of(compiled.run(rows), rows.num_rows, compiled.type)

    def _assign(self, name: str, value: Expression, rows: pa.Table) -> pa.Array:
        column = self._schema.column(name)
        if isinstance(value, Literal):
            constant = pa.scalar(assign_constant(value, column, table=self._table), column.type)
            return pa.repeat(constant, rows.num_rows)
        return assign_column(self._column(value, rows), column, table=self._table)

    def _computed_by_spark(self, pairs: pa.Table) -> _Computed:
        condition = "TRUE" if self._condition is None else self._condition.sql(dialect="spark")
        values = [
            f"CASE WHEN {condition} THEN {value.sql(dialect='spark')} END AS v{number}"
            for number, value in enumerate(self._assigned.values())
        ]
        items = ", ".join([f"COALESCE({condition}, FALSE) AS holds", *values])
        answer = self._compute(f"SELECT {items} FROM pairs", pairs)
        holds = np.asarray(answer.column(0))
        met = answer.filter(pa.array(holds))
        arrays = [
            assign_column(met.column(number), self._schema.column(name), table=self._table)
            for number, name in enumerate(self._assigned, start=1)
        ]
        return _Computed(holds, arrays)

    def _lower(self, text: str) -> tuple[Expression | None, dict[str, Expression]] | None:
        """The condition and the values as tables evaluate them; None when Spark has to."""
        condition = None if self._condition is None else self.lowered(self._condition, text)
        values = {name: self.lowered(tree, text) for name, tree in self._assigned.items()}
        if (self._condition is not None and condition is None) or None in values.values():
            return None
        return condition, {name: value for name, value in values.items() if value is not None}

    def lowered(self, tree: exp.Expr, text: str) -> Expression | None:
        """An expression over pairs as tables evaluate it; None when Spark has to."""
        try:
            lowered = lower(tree, self._pair_schema, text=text)
            compile_expression(lowered, self._pair_schema)
        except (NotLowerable, CannotCompile):
            return None
        return lowered


@dataclass(frozen=True)
class _Found:
    """Candidates: rows of the table beside the driving rows that may change them."""

    old: pa.Table
    driving: pa.Table
    positions: _Integers
    """Which driving row each belongs to; ascending."""


def _can_look_up(equality: Equality, schema: Schema, driving: Schema) -> bool:
    given = driving.column(equality.driving).type
    return key_cast(given, schema.column(equality.column).type) is not None


def _equation(equality: Equality) -> exp.Expr:
    sides = [exp.column(exp.to_identifier(name, quoted=True)) for name in (equality.column, equality.driving)]
    return exp.EQ(this=sides[0], expression=sides[1])


def _as_keys(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """Values as keys of a column; one that its type can't hold equals no value of it and becomes NULL."""
    if values.type == column.type:
        return values
    try:
        return values.cast(column.type)
    except pa.ArrowInvalid:
        return pa.chunked_array([pa.array([_held(value, column.type) for value in values], column.type)])


def _held(value: pa.Scalar, type_: pa.DataType) -> Any:
    try:
        return value.cast(type_).as_py()
    except pa.ArrowInvalid:
        return None


def _with_columns(rows: pa.Table, given: pa.Table) -> pa.Table:
    for name in given.column_names:
        column = given.column(name)
        rows = rows.set_column(rows.column_names.index(name), pa.field(name, column.type), column)
    return rows


def _padded(rows: pa.Table, schema: Schema) -> pa.Table:
    """The rows with all of the table's columns, NULL where they have none."""
    arrays = [
        rows.column(column.name) if column.name in rows.column_names else pa.nulls(rows.num_rows, column.type)
        for column in schema.columns
    ]
    return pa.Table.from_arrays(arrays, names=list(schema.names))


def _loose(schema: Schema) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type) for column in schema.columns])


def _with_constants(expression: Expression, row: pa.Table) -> Expression:
    """An expression over a pair as one over the table: the driving row's values are constants."""
    match expression:
        case ColumnRef(name):
            if name not in row.column_names:
                return expression
            scalar = row.column(name)[0]
            return Literal(scalar.as_py(), scalar.type)
        case Literal():
            return expression
        case Cast(value, type_):
            return Cast(_with_constants(value, row), type_)
        case Case(branches, otherwise):
            return Case(
                tuple((_with_constants(when, row), _with_constants(then, row)) for when, then in branches),
                None if otherwise is None else _with_constants(otherwise, row),
            )
        case Call(name, arguments):
            return Call(name, tuple(_with_constants(argument, row) for argument in arguments))
