"""MERGE INTO taken apart: its WHEN clauses, and for a stream the query and the expressions over pairs of rows.

Run once, Spark joins the table with the source (engine/merge.py). Over a stream every source row is merged by itself,
in the order of the stream (engine/merge_rows.py), so what is asked of the source is its query, as in UPDATE … FROM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from velostream.errors import NotExecutableError, ResolveError, ValidationError
from velostream.model.schema import Schema
from velostream.sql.pairs import PairPlan, PairSplit, Side, driving_query
from velostream.sql.pointing import pointer
from velostream.sql.scope import Columns
from velostream.sql.statements import Merge


@dataclass(frozen=True)
class MergeClause:
    """One WHEN: for which pairs it is, and what it does; no values: the row goes."""

    matched: bool
    by_source: bool
    """WHEN NOT MATCHED BY SOURCE: a row of the table without a source row."""
    condition: exp.Expr | None
    values: Mapping[str, exp.Expr]
    """New values by column of the table."""
    inserts: bool


@dataclass(frozen=True)
class MergePlan:
    """A MERGE over a stream: the first clause that fits a pair, or a source row without one, decides."""

    pairs: PairPlan
    clauses: tuple[MergeClause, ...]
    """Their expressions are over a pair's columns, those of NOT MATCHED over its driving columns alone."""


def merge_clauses(statement: Merge, tree: exp.Expr, schema: Schema) -> tuple[MergeClause, ...]:
    """The clauses as they are written, columns found; `tree` is the statement's with its parameters put in."""
    return tuple(_clause(when, tree, schema, statement.text) for when in tree.args["whens"].expressions)


def plan_merge(statement: Merge, *, target: Schema, source: Columns) -> MergePlan:
    """A MERGE whose USING is a stream; `source` are the columns that USING gives."""
    tree = statement.tree
    clauses = merge_clauses(statement, tree, target)
    if any(clause.by_source for clause in clauses):
        raise NotExecutableError(
            "WHEN NOT MATCHED BY SOURCE can't follow a stream",
            detail="which rows of the table no source row will ever match is never known",
            hint="DELETE FROM … by itself, or MERGE from a table: CREATE TABLE … AS SELECT … makes one of the stream",
            **pointer(tree, statement.text),
        )
    split = _MergeSplit(
        target, statement.table.text, tree.this.alias or None, driving_query(statement), source, statement.text
    )
    equalities, condition = split.condition(tree.args["on"])
    planned = tuple(split.clause(clause) for clause in clauses)
    return MergePlan(split.finished((), equalities, condition, {}), planned)


class _MergeSplit(PairSplit):
    """NOT MATCHED clauses speak of the source alone, so there a plain name is always the source's."""

    _of_source_only = False

    def clause(self, clause: MergeClause) -> MergeClause:
        self._of_source_only = not clause.matched
        condition = None if clause.condition is None else self._spared(clause.condition)
        values = {name: self._spared(value) for name, value in clause.values.items()}
        self._of_source_only = False
        return replace(clause, condition=condition, values=values)

    def _spared(self, tree: exp.Expr) -> exp.Expr:
        """Over a pair's columns: what a clause computes is computed for its own rows only, not in the query."""
        return self._split(tree, guarded=True)

    def _may_filter(self) -> bool:
        """A source row that ON holds for nothing of may be inserted, so ON never drops rows."""
        return False

    def _side(self, column: exp.Column) -> Side:
        if not self._of_source_only:
            return super()._side(column)
        if len(column.parts) > 1 and str(column.parts[0].name).lower() == self._qualifier:
            raise ValidationError(
                f"WHEN NOT MATCHED can't read {column.sql(dialect='spark')}: there is no row of the table",
                hint="use columns of the source",
                **pointer(column, self._text),
            )
        return Side.SOURCE


def _clause(when: exp.Expr, tree: exp.Expr, schema: Schema, text: str) -> MergeClause:
    then = when.args["then"]
    inserts = isinstance(then, exp.Insert)
    values: dict[str, exp.Expr] = {}
    if isinstance(then, exp.Update):
        for item in then.expressions:
            if isinstance(item, exp.Star):
                values = _by_name(tree, schema)
            else:
                values[_column(item.this, schema, text)] = item.expression
    elif inserts and isinstance(then.this, exp.Star):
        values = _by_name(tree, schema)
    elif inserts:
        names = [_column(item, schema, text) for item in then.this.expressions] if then.this else schema.names
        given = then.expression.expressions
        if len(names) != len(given):
            raise ValidationError(
                f"INSERT names {len(names)} columns and gives {len(given)} values",
                code="wrong-number-of-values",
                **pointer(then, text),
            )
        values = dict(zip(names, given, strict=True))
    return MergeClause(
        bool(when.args["matched"]), bool(when.args.get("source")), when.args.get("condition"), values, inserts
    )


def _by_name(tree: exp.Expr, schema: Schema) -> dict[str, exp.Expr]:
    """`*`: every column of the table from the source's column of that name."""
    source = tree.args["using"].alias_or_name
    return {
        name: exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(source, quoted=True))
        for name in schema.names
    }


def _column(node: exp.Expr, schema: Schema, text: str) -> str:
    name = str(node.name)
    column = schema.find(name)
    if column is None:
        raise ResolveError.unknown("column", name, known=schema.names, **pointer(node, text))
    return column.name
