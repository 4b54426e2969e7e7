"""MERGE INTO: Spark joins the table with the source and says what each pair is to become; we write that.

Spark's rules: the first clause that fits a row decides; a row of the table that several source rows would change is an
error; INSERT * and UPDATE SET * take the source's columns by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from sqlglot import exp

from velostream.engine.assignment import assign_column
from velostream.engine.dml import Evaluate, check_new_keys
from velostream.engine.draft import DraftTable, concatenated
from velostream.errors import ResolveError, TableError, ValidationError
from velostream.model.change import Mode, Write, signed
from velostream.model.schema import Schema
from velostream.sql.parameters import Parameters, bind
from velostream.sql.pointing import pointer
from velostream.sql.statements import Merge
from velostream.tables.base import Snapshot, Table

_THERE, _GIVEN, _ROW, _ACTION = "_merge_there", "_merge_given", "_merge_row", "_merge_action"
_ATTEMPTS = 3
"""How often what Spark found may be of an old version before other commits have to wait for it."""


@dataclass(frozen=True)
class _Clause:
    """One WHEN: for which pairs it is, and what it does; no values: the row goes."""

    matched: bool
    by_source: bool
    """WHEN NOT MATCHED BY SOURCE: a row of the table without a source row."""
    condition: exp.Expr | None
    values: Mapping[str, exp.Expr]
    inserts: bool


def merge(table: Table, statement: Merge, parameters: Parameters | None, *, evaluate: Evaluate) -> int:
    """Run a MERGE; gives how many rows were added, changed and removed."""
    tree = bind(statement.tree, parameters, text=statement.text)
    clauses = _clauses(tree, table.schema, statement)
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


def _clauses(tree: exp.Expr, schema: Schema, statement: Merge) -> list[_Clause]:
    return [_clause(when, tree, schema, statement) for when in tree.args["whens"].expressions]


def _clause(when: exp.Expr, tree: exp.Expr, schema: Schema, statement: Merge) -> _Clause:
    then = when.args["then"]
    inserts = isinstance(then, exp.Insert)
    values: dict[str, exp.Expr] = {}
    if isinstance(then, exp.Update):
        for item in then.expressions:
            if isinstance(item, exp.Star):
                values = _by_name(tree, schema)
            else:
                values[_column(item.this, schema, statement)] = item.expression
    elif inserts and isinstance(then.this, exp.Star):
        values = _by_name(tree, schema)
    elif inserts:
        names = [_column(item, schema, statement) for item in then.this.expressions] if then.this else schema.names
        given = then.expression.expressions
        if len(names) != len(given):
            raise ValidationError(
                f"INSERT names {len(names)} columns and gives {len(given)} values",
                code="wrong-number-of-values",
                **pointer(then, statement.text),
            )
        values = dict(zip(names, given, strict=True))
    return _Clause(
        bool(when.args["matched"]), bool(when.args.get("source")), when.args.get("condition"), values, inserts
    )


def _by_name(tree: exp.Expr, schema: Schema) -> dict[str, exp.Expr]:
    """`*`: every column of the table from the source's column of that name."""
    source = tree.args["using"].alias_or_name
    return {
        name: exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(source, quoted=True))
        for name in schema.names
    }


def _column(node: exp.Expr, schema: Schema, statement: Merge) -> str:
    name = str(node.name)
    column = schema.find(name)
    if column is None:
        raise ResolveError.unknown("column", name, known=schema.names, **pointer(node, statement.text))
    return column.name


def _joined(tree: exp.Expr, table: Table, clauses: list[_Clause]) -> exp.Select:
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


def _join_type(clauses: list[_Clause]) -> str:
    rest_of_table = any(clause.by_source for clause in clauses)
    rest_of_source = any(clause.inserts for clause in clauses)
    if rest_of_table:
        return "FULL OUTER" if rest_of_source else "LEFT"
    return "RIGHT" if rest_of_source else "INNER"


def _fits(clause: _Clause) -> exp.Expr:
    there, given = exp.column(_THERE).is_(exp.null()), exp.column(_GIVEN).is_(exp.null())
    unmatched = given if clause.by_source else there
    kind = exp.and_(exp.not_(there), exp.not_(given)) if clause.matched else unmatched
    return kind if clause.condition is None else exp.and_(kind, clause.condition.copy())


def _number(number: int) -> exp.Expr:
    return exp.Literal.number(number)


def _write(table: Table, snapshot: Snapshot, clauses: list[_Clause], computed: pa.Table) -> int:
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
            changed.append((before, _replaced(before, values)))
        else:
            removed.append(before)
    _commit(table, snapshot, removed, changed, added)
    return int(computed.num_rows)


def _commit(
    table: Table,
    snapshot: Snapshot,
    removed: list[pa.Table],
    changed: list[tuple[pa.Table, pa.Table]],
    added: list[pa.Table],
) -> None:
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


def _check_cardinality(table: Table, row_ids: pa.ChunkedArray, actions: Any, clauses: list[_Clause]) -> None:
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


def _replaced(rows: pa.Table, values: pa.Table) -> pa.Table:
    for name in values.column_names:
        rows = rows.set_column(rows.column_names.index(name), name, values.column(name))
    return rows
