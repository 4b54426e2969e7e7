"""Queries, and parts of queries, under which every row gives its result by itself."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from velostream.sql.functions import aggregate_calls
from velostream.sql.lower_resolved import lowered_step
from velostream.sql.maps import name_items
from velostream.sql.plan import Step
from velostream.sql.resolve import Resolution
from velostream.sql.scope import input_of, scope_of
from velostream.sql.shape import (
    is_aggregated,
    nested_queries,
    outermost_select,
    queries_in,
    reads_input,
    window_functions,
)

_ROW_BY_ROW = ("with_", "expressions", "from_", "where", "laterals", "order", "hint")
"""Clauses of a SELECT that look at one row at a time, or at none: an order without LIMIT changes no content."""
_LOWERED = ("expressions", "from_", "where", "order")


class NotDelta(Exception):  # noqa: N818 - no fault of anybody's: the view is computed again instead
    """A query, or a part of one, that a way of following changes doesn't cover; `reason` is for EXPLAIN."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def is_linear(tree: exp.Expr, ctes: Mapping[str, exp.Expr] | None = None) -> bool:
    """Whether the rows of two inputs together give what each of them gives alone; so nothing gives nothing."""
    known = dict(ctes or {})
    clause = tree.args.get("with_")
    if clause is not None:
        if clause.args.get("recursive"):
            return False
        known |= {str(cte.alias).lower(): cte.this for cte in clause.expressions}
    if isinstance(tree, exp.Subquery):
        extras = ("pivots", "sample", "limit", "offset", "joins", "laterals")
        return not any(map(tree.args.get, extras)) and is_linear(tree.this, known)
    if isinstance(tree, exp.Union):
        cut = tree.args.get("distinct") or tree.args.get("limit") or tree.args.get("offset")
        return not cut and is_linear(tree.this, known) and is_linear(tree.expression, known)
    if isinstance(tree, exp.Select):
        return is_row_by_row(tree) and _reads_linear(tree.args.get("from_"), known)
    return False


def is_row_by_row(select: exp.Select) -> bool:
    """Whether the clauses of a SELECT look at one row of its FROM at a time."""
    if any(value for clause, value in select.args.items() if clause not in _ROW_BY_ROW):
        return False
    if is_aggregated(select) or next(nested_queries(select), None) or next(window_functions(select), None):
        return False
    laterals = select.args.get("laterals") or ()
    return not any(next(queries_in(lateral), None) or aggregate_calls(lateral) for lateral in laterals)


def _reads_linear(from_: exp.From | None, ctes: Mapping[str, exp.Expr]) -> bool:
    if from_ is None:
        return False
    item = from_.this
    if isinstance(item, exp.Table) and input_of(item) is None:
        extras = ("pivots", "sample", "joins", "laterals", "version", "when")
        body = ctes.get(str(item.name).lower())
        return body is not None and not any(map(item.args.get, extras)) and is_linear(body, ctes)
    if isinstance(item, exp.Subquery):
        return is_linear(item, ctes)
    return reads_input(item)


def step_of(tree: exp.Expr, *, resolution: Resolution) -> Step:
    """A linear query as a step; without need of Spark where it is a plain SELECT of one table."""
    sql = name_items(tree).sql(dialect="spark")
    select = outermost_select(tree)
    scope = scope_of(select) if select is not None else None
    if select is None or scope is None:
        return Step(sql)
    item = select.args["from_"].this
    plain = not any(value for clause, value in select.args.items() if clause not in _LOWERED)
    relation = input_of(item)
    if not plain or relation is None or not reads_input(item):
        return Step(sql)
    schema = resolution.input(relation).target.schema
    return Step(sql) if schema is None else lowered_step(select, sql=sql, schema=schema, frame=resolution.frames[scope])
