"""MERGE INTO: Spark joins the table with the source and says what each pair is to become; we write that.

Spark's rules: the first clause that fits a row decides; a row of the table that several source rows would change is an
error; INSERT * and UPDATE SET * take the source's columns by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from sqlglot import exp

from velostream.engine.assignment import assign_column
from velostream.engine.dml import Evaluate, check_new_keys
from velostream.engine.draft import DraftTable, concatenated
from velostream.errors import TableError
from velostream.model.change import Mode, Write, signed
from velostream.sql.merging import MergeClause, merge_clauses
from velostream.sql.parameters import Parameters, bind
from velostream.sql.statements import Merge
from velostream.tables.base import Snapshot, Table

_THERE, _GIVEN, _ROW, _ACTION = "_merge_there", "_merge_given", "_merge_row", "_merge_action"
_ATTEMPTS = 3
"""How often what Spark found may be of an old version before other commits have to wait for it."""


def merge(table: Table, statement: Merge, parameters: Parameters | None, *, evaluate: Evaluate) -> int:
    """Run a MERGE; gives how many rows were added, changed and removed."""
    tree = bind(statement.tree, parameters, text=statement.text)
    clauses = merge_clauses(statement, tree, table.schema)
    select = _joined(tree, table, clauses)
    for _ in range(_ATTEMPTS):
        snapshot = table.snapshot()
        computed = evaluate(select, snapshot)
        with table.exclusive():
            if table.version == snapshot.version:
                return _write(table, snapshot, clauses, computed)
    with table.exclusive():
        snapshot = table.snapshot()
        return _write(table, snapshot, clauses, evaluate(select, snapshot))


def _joined(tree: exp.Expr, table: Table, clauses: Sequence[MergeClause]) -> exp.Select:
    """One row per pair: which row of the table, what to do (the number of the clause), its old and its new values."""
    target, using = tree.this, tree.args["using"]
    alias = target.alias or target.name
    columns = [exp.column(exp.to_identifier(name, quoted=True)) for name in table.schema.names]
    row_number = exp.alias_(exp.Anonymous(this="monotonically_increasing_id"), _ROW)
    there = exp.select(*columns, row_number, exp.alias_(exp.true(), _THERE)).from_(
        exp.Table(this=exp.to_identifier(table.name, quoted=True))
    )
    given = exp.select("*", exp.alias_(exp.true(), _GIVEN)).from_(using.copy())
    action = exp.Case(ifs=[exp.If(this=_fits(clause), true=_number(n)) for n, clause in enumerate(clauses)])
    items: list[exp.Expr] = [
        exp.column(_ROW, exp.to_identifier(alias, quoted=True)),
        exp.alias_(action, _ACTION),
        *(exp.column(name.this.copy(), exp.to_identifier(alias, quoted=True)) for name in columns),
    ]
    for number, clause in enumerate(clauses):
        for position, value in enumerate(clause.values.values()):
            guarded = exp.Case(
                ifs=[exp.If(this=exp.EQ(this=action.copy(), expression=_number(number)), true=value.copy())]
            )
            items.append(exp.alias_(guarded, f"_merge_{number}_{position}"))
    return (
        exp.select(*items)
        .from_(there.subquery(exp.to_identifier(alias, quoted=True)))
        .join(
            given.subquery(exp.to_identifier(using.alias_or_name, quoted=True)),
            on=tree.args["on"].copy(),
            join_type=_join_type(clauses),
        )
    )


def _join_type(clauses: Sequence[MergeClause]) -> str:
    rest_of_table = any(clause.by_source for clause in clauses)
    rest_of_source = any(clause.inserts for clause in clauses)
    if rest_of_table:
        return "FULL OUTER" if rest_of_source else "LEFT"
    return "RIGHT" if rest_of_source else "INNER"


def _fits(clause: MergeClause) -> exp.Expr:
    there, given = exp.column(_THERE).is_(exp.null()), exp.column(_GIVEN).is_(exp.null())
    unmatched = given if clause.by_source else there
    kind = exp.and_(exp.not_(there), exp.not_(given)) if clause.matched else unmatched
    return kind if clause.condition is None else exp.and_(kind, clause.condition.copy())


def _number(number: int) -> exp.Expr:
    return exp.Literal.number(number)


def _write(table: Table, snapshot: Snapshot, clauses: Sequence[MergeClause], computed: pa.Table) -> int:
    schema = table.schema
    computed = computed.filter(computed.column(1).is_valid())
    actions = computed.column(1).to_numpy()
    row_ids = computed.column(0)
    old = _typed(computed.columns[2 : 2 + len(schema.names)], schema.names, table)
    _check_cardinality(table, row_ids, actions, clauses)
    first = 2 + len(schema.names)
    removed: list[pa.Table] = []
    changed: list[tuple[pa.Table, pa.Table]] = []
    added: list[pa.Table] = []
    for number, clause in enumerate(clauses):
        chosen = np.flatnonzero(actions == number)
        columns = [column.take(chosen) for column in computed.columns[first : first + len(clause.values)]]
        first += len(clause.values)
        before, values = old.take(chosen), _typed(columns, tuple(clause.values), table)
        if clause.inserts:
            added.append(values)
        elif clause.values:
            changed.append((before, replaced(before, values)))
        else:
            removed.append(before)
    commit_merged(table, snapshot, removed=removed, changed=changed, added=added)
    return int(computed.num_rows)


def commit_merged(
    table: Table,
    snapshot: Snapshot,
    *,
    removed: Sequence[pa.Table],
    changed: Sequence[tuple[pa.Table, pa.Table]],
    added: Sequence[pa.Table],
) -> None:
    """Write what a MERGE makes of a snapshot: rows that go, rows before and after, and rows that come."""
    empty = table.schema.arrow.empty_table()
    gone = concatenated([empty, *removed])
    before = concatenated([empty, *(old for old, _ in changed)])
    after = concatenated([empty, *(new for _, new in changed)])
    key = list(table.schema.key)
    if key:
        leaving = concatenated([gone, before]).select(key)
        check_new_keys(table, snapshot, leaving, after.select(key))
    draft = DraftTable(table, snapshot)
    draft.commit(Write(Mode.CHANGES, concatenated([signed(gone, -1), signed(before, -1), signed(after, 1)])))
    for rows in added:
        draft.commit(Write(Mode.APPEND, rows))
    draft.settle()
    for write in draft.writes():
        table.commit(write)


def _check_cardinality(table: Table, row_ids: pa.ChunkedArray, actions: Any, clauses: Sequence[MergeClause]) -> None:
    touching = np.isin(actions, [number for number, clause in enumerate(clauses) if clause.matched])
    ids = row_ids.filter(pa.array(touching))
    if len(ids.unique()) < len(ids):
        raise TableError(
            f'several source rows match one row of table "{table.name}"',
            detail="MERGE changes a row once; nothing of the statement was applied",
            hint="make the source distinct by what ON compares",
            code="merge-cardinality",
        )


def _typed(columns: list[pa.ChunkedArray], names: tuple[str, ...], table: Table) -> pa.Table:
    arrays = [
        assign_column(column, table.schema.column(name), table=table.name)
        for column, name in zip(columns, names, strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=list(names))


def replaced(rows: pa.Table, values: pa.Table) -> pa.Table:
    """Rows with other values in some columns."""
    for name in values.column_names:
        rows = rows.set_column(rows.column_names.index(name), name, values.column(name))
    return rows
