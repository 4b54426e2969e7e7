"""The plan of a stateless query over a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from velostream.sql.joins import find_fast_way
from velostream.sql.missing import watched
from velostream.sql.naming import named
from velostream.sql.narrowing import find_narrowings
from velostream.sql.plan import Input, MapPlan
from velostream.sql.scope import Frame, scope_of, streams_in
from velostream.sql.shape import outermost_select


def plan_map(tree: exp.Expr, *, frames: Mapping[int, Frame], inputs: Sequence[Input]) -> MapPlan:
    """How batches of the one stream of a query become its rows; joins already read with the stream driving."""
    select = outermost_select(tree)
    scope = scope_of(select) if select is not None else None
    read = [entry for entry in inputs if entry.relation in relations_in(tree)]
    watching = watched(select)
    run = select if watching is None else watching[0]
    fast = find_fast_way(run, frame=frames.get(scope) if scope is not None else None, inputs=read)
    (driving,) = streams_in(tree)
    narrowings = find_narrowings(tree, inputs=read) if fast.why_not else ()
    plan = MapPlan(driving, name_items(tree).sql(dialect="spark"), fast.stages, fast.why_not, narrowings)
    if watching is None:
        return plan
    return replace(plan, missing=watching[1], watched=watching[0].sql(dialect="spark"))


def relations_in(tree: exp.Expr) -> set[str]:
    """Names of all tables a tree reads, those of its CTEs among them."""
    return {str(table.name) for table in tree.find_all(exp.Table)}


def name_items(tree: exp.Expr) -> exp.Expr:
    """A copy whose outermost select items have their names written down, so that rewriting can't change them."""
    copied = tree.copy()
    select = outermost_select(copied)
    if select is not None:
        select.set("expressions", [named(item) for item in select.expressions])
    return copied
