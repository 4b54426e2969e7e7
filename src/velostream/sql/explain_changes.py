"""What EXPLAIN and VALIDATE say of statements that change a table by the rows of a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from velostream.errors import SqlError
from velostream.sql.merging import plan_merge
from velostream.sql.pairs import PairPlan, driving_query, plan_pairs
from velostream.sql.plan import Catalog, QueryPlan, RelationKind
from velostream.sql.planner import plan_query
from velostream.sql.resolve import resolve_query
from velostream.sql.statements import Delete, Insert, Merge, Name, OptionValue, Query, Statement, Update

RowChange = Insert | Update | Delete | Merge


@dataclass(frozen=True)
class ExplainedChange:
    """How the rows that drive a change come, and how they find what they change."""

    rows: list[tuple[str, str]]
    plan: QueryPlan | None
    """Of the query; None while columns aren't known."""


def changes_by_rows(statement: Statement) -> TypeGuard[RowChange]:
    """Whether it is an UPDATE … FROM, a DELETE … USING, an UPSERT … ON or a MERGE."""
    if isinstance(statement, Insert):
        return statement.on is not None
    if isinstance(statement, Merge):
        return True
    return isinstance(statement, Update | Delete) and isinstance(statement.source, Query)


def explain_change(statement: RowChange, catalog: Catalog) -> ExplainedChange:
    rows = [("statement", statement.kind)]
    if isinstance(statement, Merge) and not _follows_a_stream(statement, catalog):
        return ExplainedChange([*rows, (f'rows of "{_table(statement)}"', "joined with the source by Spark")], None)
    pairs = _pairs_of(statement, catalog)
    if pairs is None:
        return ExplainedChange(rows, None)
    columns = ", ".join(equality.column for equality in pairs.equalities)
    found = f"found by {columns}" if columns else "every row is compared: no column is tied to a value"
    plan = plan_query(
        pairs.query,
        options=_options(statement),
        catalog=catalog,
        text=statement.text,
        continuous=False,
        distinct_names=False,
    )
    return ExplainedChange([*rows, (f'rows of "{_table(statement)}"', found)], plan)


def change_problems(statement: RowChange, catalog: Catalog) -> list[SqlError]:
    """All that is wrong or doubtful, as far as columns are known."""
    try:
        explained = explain_change(statement, catalog)
    except SqlError as error:
        return list(error.problems)
    return [] if explained.plan is None else list(explained.plan.warnings)


def _follows_a_stream(statement: Merge, catalog: Catalog) -> bool:
    found = resolve_query(driving_query(statement), options=(), catalog=catalog, text=statement.text)
    if found.problems:
        raise SqlError.all_of(found.problems)
    return any(entry.target.kind is RelationKind.STREAM for entry in found.inputs)


def _pairs_of(statement: RowChange, catalog: Catalog) -> PairPlan | None:
    name = _table(statement)
    relation = None if name is None else catalog.relation(name)
    if relation is None or relation.schema is None:
        return None
    found = resolve_query(driving_query(statement), options=_options(statement), catalog=catalog, text=statement.text)
    if found.problems:
        raise SqlError.all_of(found.problems)
    if any(entry.target.schema is None for entry in found.inputs):
        return None
    if isinstance(statement, Merge):
        return plan_merge(statement, target=relation.schema, source=found.outputs).pairs
    return plan_pairs(statement, target=relation.schema, source=found.outputs)


def _table(statement: RowChange) -> str | None:
    table = statement.target if isinstance(statement, Insert) else statement.table
    return table.text if isinstance(table, Name) else None


def _options(statement: RowChange) -> tuple[OptionValue, ...]:
    return statement.options if isinstance(statement, Insert) else ()
