"""INSERT VALUES, UPSERT VALUES, UPDATE, DELETE and TRUNCATE on one table.

Each reads what it needs and commits what follows from it with no other commit in between, all of it or nothing. What
tables can evaluate themselves never asks Spark; for the rest the engine gives an `evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlglot import exp

from velostream.engine.assignment import assign_column, assign_constant
from velostream.engine.values import values_rows
from velostream.errors import NotExecutableError, ResolveError, TableError, ValidationError
from velostream.model.change import Epoch, Mode, Write, signed
from velostream.model.expression import Expression, Literal
from velostream.model.schema import Schema
from velostream.sql.lower import NotLowerable, lower
from velostream.sql.parameters import Parameters, bind_all
from velostream.sql.statements import Delete, Insert, Name, Statement, Update
from velostream.tables.base import Snapshot, Table
from velostream.tables.memory.evaluate import CannotCompile, evaluate_expression
from velostream.tables.memory.values import python_values

Evaluate = Callable[[exp.Select, Snapshot], pa.Table]
"""Runs a SELECT in Spark. The table's own name in FROM means the snapshot given, other names their newest versions."""

_SPARK_ATTEMPTS = 3
"""How often Spark's answer may turn out to be of an old version before other commits have to wait for it."""


def insert_values(
    table: Table,
    statement: Insert,
    parameters: Parameters | None = None,
    *,
    evaluate: Evaluate | None = None,
    epoch: Epoch | None = None,
) -> int:
    """INSERT INTO t [(columns)] VALUES …; the number of rows. An existing key is a `duplicate-key` error."""
    rows = _values(table, statement, parameters, evaluate)
    table.commit(Write(Mode.APPEND, rows), epoch)
    return int(rows.num_rows)


def upsert_values(
    table: Table,
    statement: Insert,
    parameters: Parameters | None = None,
    *,
    evaluate: Evaluate | None = None,
    epoch: Epoch | None = None,
) -> int:
    """UPSERT INTO t VALUES …: a row whose key exists replaces it. Gives the number of rows written."""
    if not table.schema.key:
        raise TableError.without_key(table.name)
    rows = _values(table, statement, parameters, evaluate)
    table.commit(Write(Mode.UPSERT, rows), epoch)
    return int(rows.num_rows)


def update(
    table: Table, statement: Update, parameters: Parameters | None = None, *, evaluate: Evaluate | None = None
) -> int:
    """UPDATE t SET … [WHERE …]; the number of rows the condition holds for."""
    names = [_column_named(table.schema, assignment.column, statement) for assignment in statement.assignments]
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise ValidationError(f'column "{twice}" is set twice', code="duplicate-column", **_located(statement))
    where = [] if statement.where is None else [statement.where]
    trees = bind_all([*(a.value for a in statement.assignments), *where], parameters, text=statement.text)
    change = Change(
        table=table,
        kind=statement.kind,
        where=trees[-1] if where else None,
        assigned=dict(zip(names, trees, strict=False)),
        alias=statement.alias,
        text=statement.text,
    )
    return update_rows(change, evaluate=evaluate)


def delete(
    table: Table, statement: Delete, parameters: Parameters | None = None, *, evaluate: Evaluate | None = None
) -> int:
    """DELETE FROM t [WHERE …]; the number of rows removed."""
    if statement.where is None:
        return truncate(table)
    (where,) = bind_all([statement.where], parameters, text=statement.text)
    change = Change(table=table, kind=statement.kind, where=where, alias=statement.alias, text=statement.text)
    return delete_rows(change, evaluate=evaluate)


def truncate(table: Table) -> int:
    """Remove all rows; how many there were."""
    with table.exclusive():
        count = table.snapshot().count()
        table.commit(Write(Mode.REPLACE, table.schema.arrow.empty_table()))
    return count


@dataclass(frozen=True)
class Change:
    """An UPDATE or DELETE with its parameters put in. Columns are under their stored names."""

    table: Table
    kind: str
    where: exp.Expr | None
    assigned: Mapping[str, exp.Expr] = field(default_factory=dict)
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """Values that are of their columns' types already."""
    alias: str | None = None
    text: str = ""

    def lowered(self) -> tuple[Expression | None, list[Expression]]:
        """The condition and the assigned values; `NotLowerable` when Spark has to compute one of them."""
        qualifiers = [self.table.name if self.alias is None else self.alias]
        trees = [*([] if self.where is None else [self.where]), *self.assigned.values()]
        lowered = [lower(tree, self.table.schema, text=self.text, qualifiers=qualifiers) for tree in trees]
        return (None, lowered) if self.where is None else (lowered[0], lowered[1:])

    def select(self) -> exp.Select:
        """The rows meant, followed by the values they are to get."""
        columns = [exp.Column(this=exp.to_identifier(name, quoted=True)) for name in self.table.schema.names]
        values = [exp.alias_(tree, f"_set_{number}") for number, tree in enumerate(self.assigned.values())]
        source = exp.Table(this=exp.to_identifier(self.table.name, quoted=True))
        if self.alias is not None:
            source.set("alias", exp.TableAlias(this=exp.to_identifier(self.alias, quoted=True)))
        select = exp.select(*columns, *values).from_(source)
        return select if self.where is None else select.where(self.where)

    def changed(self, old: pa.Table, values: Sequence[pa.Array]) -> pa.Table:
        """The rows with their new values, which are of their columns' types."""
        constants = [pa.repeat(constant, old.num_rows) for constant in self.constants.values()]
        new = old
        for name, array in zip((*self.assigned, *self.constants), (*values, *constants), strict=True):
            new = new.set_column(new.column_names.index(name), pa.field(name, array.type), array)
        return new


def update_rows(change: Change, *, evaluate: Evaluate | None = None) -> int:
    """Give the rows of the condition their new values; how many there are."""
    return _change(change, evaluate, _write_updated)


def delete_rows(change: Change, *, evaluate: Evaluate | None = None) -> int:
    """Remove the rows of the condition; how many there were."""
    return _change(change, evaluate, _write_deleted)


_Writer = Callable[[Change, Snapshot, pa.Table, pa.Table], None]


def _change(change: Change, evaluate: Evaluate | None, write: _Writer) -> int:
    try:
        where, values = change.lowered()
        with change.table.exclusive():
            snapshot = change.table.snapshot()
            old = snapshot.scan(where)
            new = change.changed(
                old, [_assigned(change, *pair, old) for pair in zip(change.assigned, values, strict=True)]
            )
            write(change, snapshot, old, new)
            return int(old.num_rows)
    except NotLowerable as reason:
        return _change_by_spark(change, evaluate, write, reason)


def _change_by_spark(change: Change, evaluate: Evaluate | None, write: _Writer, reason: NotLowerable) -> int:
    """Let Spark compute on a snapshot while others commit, and write only if nobody touched the table meanwhile."""
    if evaluate is None:
        raise _needs_spark(change.kind, reason, text=change.text)
    for _ in range(_SPARK_ATTEMPTS):
        snapshot = change.table.snapshot()
        computed = evaluate(change.select(), snapshot)
        with change.table.exclusive():
            if change.table.version == snapshot.version:
                return _write_computed(change, snapshot, computed, write)
    with change.table.exclusive():
        snapshot = change.table.snapshot()
        return _write_computed(change, snapshot, evaluate(change.select(), snapshot), write)


def _write_computed(change: Change, snapshot: Snapshot, computed: pa.Table, write: _Writer) -> int:
    schema = change.table.schema
    columns = [*schema.columns, *(schema.column(name) for name in change.assigned)]
    arrays = [
        assign_column(array, column, table=change.table.name)
        for array, column in zip(computed.columns, columns, strict=True)
    ]
    old = pa.Table.from_arrays(arrays[: len(schema.columns)], names=list(schema.names))
    write(change, snapshot, old, change.changed(old, arrays[len(schema.columns) :]))
    return int(computed.num_rows)


def _assigned(change: Change, name: str, value: Expression, rows: pa.Table) -> pa.Array:
    """The values a column gets."""
    column, table = change.table.schema.column(name), change.table.name
    if isinstance(value, Literal):
        return pa.repeat(pa.scalar(assign_constant(value, column, table=table), column.type), rows.num_rows)
    return assign_column(evaluated(value, rows), column, table=table)


def _write_updated(change: Change, snapshot: Snapshot, old: pa.Table, new: pa.Table) -> None:
    table, key = change.table, change.table.schema.key
    if not old.num_rows:
        return
    if key and not set(key) & {*change.assigned, *change.constants}:
        table.commit(Write(Mode.UPSERT, new))
        return
    if key:
        check_new_keys(table, snapshot, old.select(list(key)), new.select(list(key)))
    table.commit(Write(Mode.CHANGES, pa.concat_tables([signed(old, -1), signed(new, 1)], promote_options="permissive")))


def _write_deleted(change: Change, _snapshot: Snapshot, old: pa.Table, _new: pa.Table) -> None:
    key = change.table.schema.key
    if old.num_rows:
        change.table.commit(Write(Mode.DELETE, old.select(list(key)) if key else old))


def check_new_keys(table: Table, snapshot: Snapshot, old: pa.Table, new: pa.Table) -> None:
    """Refuse an UPDATE after which two rows would have one key."""
    given = _tuples(new)
    leaving = set(_tuples(old))
    seen: set[tuple[Any, ...]] = set()
    for key in given:
        shown = key[0] if len(key) == 1 else key
        if key in seen or (key not in leaving and snapshot.contains(shown)):
            raise TableError.duplicate_key(table.name, shown)
        seen.add(key)


def _tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(python_values(column) for column in rows.columns), strict=True))


def _values(table: Table, statement: Insert, parameters: Parameters | None, evaluate: Evaluate | None) -> pa.Table:
    def compute(select: exp.Select, reason: NotLowerable) -> pa.Table:
        if evaluate is None:
            raise _needs_spark(statement.kind, reason, text=statement.text)
        return evaluate(select, table.snapshot())

    return values_rows(table.name, table.schema, statement, parameters, compute)


def evaluated(value: Expression, rows: pa.Table) -> pa.ChunkedArray:
    """The value of an expression for each row; `NotLowerable` when Spark has to compute it after all."""
    try:
        return evaluate_expression(value, rows)
    except CannotCompile as reason:
        raise NotLowerable(reason.message) from reason


def _needs_spark(kind: str, reason: NotLowerable, *, text: str) -> NotExecutableError:
    return NotExecutableError(f"statement {kind} needs Spark: {reason}", text=text or None)


def _located(statement: Statement) -> dict[str, Any]:
    return {"line": statement.place.line, "column": statement.place.column, "text": statement.text}


def _column_named(schema: Schema, name: Name, statement: Statement) -> str:
    column = schema.find(name.text)
    if column is None:
        raise ResolveError.unknown(
            "column",
            name.text,
            known=schema.names,
            line=name.place.line,
            column=name.place.column,
            text=statement.text,
        )
    return column.name
