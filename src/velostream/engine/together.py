"""Simple statements over one batch, computed by one Spark query.

A Spark query costs a tenth of a second before it touches a row; ten views on a growing file would spend their time
being planned. Statements that only project and filter become columns of one query instead: for a row that passes the
statement's condition a struct of its columns, else NULL.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import sqlglot
from sqlglot import exp

from velostream.engine.relations import arrow_result, run_sql
from velostream.sql.functions import function_name, is_nondeterministic
from velostream.sql.window_calls import is_window_call

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from velostream.sql.plan import MapPlan

_MOST_COLUMNS = 80
"""Spark compiles a query of at most a hundred columns, nested ones counted (`spark.sql.codegen.maxFields`)."""
_PARTS = {"expressions", "from_", "where"}
_GENERATORS = {
    f"{name}{suffix}"
    for name in ("explode", "posexplode", "inline", "stack", "json_tuple", "variant_explode")
    for suffix in ("", "_outer")
}

_Member = TypeVar("_Member", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Projection:
    """What a statement that only projects and filters consists of."""

    driving: str
    relation: str
    """The FROM clause; statements under the same alias can share a query without their columns being touched."""
    columns: str
    stars: int
    others: int
    """How many of the columns are `*`, each standing for all of the batch, and how many are not."""
    condition: str | None

    @classmethod
    def of(cls, plan: MapPlan) -> Projection | None:
        """The parts of a plan that reads nothing but its stream; None when it does more than project and filter."""
        tree = sqlglot.parse_one(plan.sql, read="spark")
        if not isinstance(tree, exp.Select) or {name for name, part in tree.args.items() if part} - _PARTS:
            return None
        source = tree.args["from_"].this
        if not isinstance(source, exp.Table) or source.name != plan.driving or source.args.get("joins"):
            return None
        if any(_stands_alone(node) for node in tree.walk() if node is not tree):
            return None
        items = tree.expressions
        if not all(isinstance(item, exp.Alias | exp.Column | exp.Star) for item in items):
            return None
        condition = tree.args.get("where")
        return cls(
            driving=plan.driving,
            relation=source.sql(dialect="spark"),
            columns=", ".join(item.sql(dialect="spark") for item in items),
            stars=sum(item.is_star for item in items),
            others=sum(not item.is_star for item in items),
            condition=None if condition is None else condition.this.sql(dialect="spark"),
        )


def groups(members: Iterable[tuple[_Member, Projection | None]], *, batch_width: int) -> Iterator[list[_Member]]:
    """Members that can share a query over a batch of so many columns, at least two in each."""
    open_groups: dict[str, list[_Member]] = {}
    widths: dict[str, int] = {}
    for member, projection in members:
        if projection is None:
            continue
        place = projection.relation
        width = projection.stars * batch_width + projection.others
        if place in open_groups and widths[place] + width > _MOST_COLUMNS:
            yield from _worthwhile(open_groups.pop(place))
        if place not in open_groups:
            open_groups[place], widths[place] = [], 0
        open_groups[place].append(member)
        widths[place] += width
    for group in open_groups.values():
        yield from _worthwhile(group)


def run_together(session: SparkSession, frame: DataFrame, projections: Sequence[Projection]) -> list[pa.Table]:
    """The rows each of the projections gives over a batch. An expression that fails for some row fails them all."""
    columns = [f"{_packed(projection)} AS m{number}" for number, projection in enumerate(projections)]
    first = projections[0]
    sql = f"SELECT {', '.join(columns)} FROM {first.relation}"
    if all(projection.condition for projection in projections):
        sql += " WHERE " + " OR ".join(f"({projection.condition})" for projection in projections)
    packed = arrow_result(run_sql(session, sql, {first.driving: frame}))
    return [_unpacked(column) for column in packed.columns]


def _packed(projection: Projection) -> str:
    row = f"struct({projection.columns})"
    return row if projection.condition is None else f"CASE WHEN {projection.condition} THEN {row} END"


def _unpacked(column: pa.ChunkedArray) -> pa.Table:
    passed = column.filter(column.is_valid())
    names = [field.name for field in column.type]
    return pa.Table.from_arrays(passed.flatten(), names=names)


def _worthwhile(group: list[_Member]) -> Iterator[list[_Member]]:
    if len(group) > 1:
        yield group


def _stands_alone(node: exp.Expr) -> bool:
    """Whether it must see the rows that the filter left, gives several rows, or differs when it is computed twice."""
    if isinstance(node, exp.Window | exp.Query) or is_nondeterministic(node) or is_window_call(node):
        return True
    return isinstance(node, exp.Func) and function_name(node).lower() in _GENERATORS
