"""How a view over tables follows the changes of its inputs instead of being computed again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from velostream.sql.delta_groups import cut_groups, grouped_plan, plan_grouped
from velostream.sql.delta_joins import plan_driven
from velostream.sql.delta_steps import NotDelta, is_linear, step_of
from velostream.sql.functions import is_time_function
from velostream.sql.keys import key_of_result
from velostream.sql.plan import DeltaPlan, GroupedPlan, RelationKind, Step
from velostream.sql.resolve import Resolution


@dataclass(frozen=True)
class DeltaChoice:
    """A plan with what speaks for it, or why there is none."""

    plan: DeltaPlan | None
    reason: str


def plan_delta(tree: exp.Expr, *, resolution: Resolution, key: tuple[str, ...]) -> DeltaChoice:
    """The way to follow changes that costs the least, if there is one that always gives what the query gives.

    `tree` is the resolved query after all rewriting, `key` the key of the view.
    """
    if all(entry.target.kind is RelationKind.BOUNDED for entry in resolution.inputs):
        return DeltaChoice(None, "nothing it reads changes")
    if any(entry.target.schema is None for entry in resolution.inputs):
        return DeltaChoice(None, "the columns of an input are not known yet")
    if any(is_time_function(node) for node in tree.walk()):
        return DeltaChoice(None, "it reads the clock")
    reasons: list[str] = []
    for attempt in _ATTEMPTS:
        try:
            found = attempt(tree, resolution)
        except NotDelta as why_not:
            reasons.append(why_not.reason)
            continue
        if key and (found.plan is None or not is_unique(found.plan, key)):
            return DeltaChoice(None, f"several rows of the query may have the same key ({', '.join(key)})")
        return found
    return DeltaChoice(None, next((reason for reason in reversed(reasons) if reason), "its shape is not supported"))


def is_unique(plan: DeltaPlan, key: tuple[str, ...]) -> bool:
    """Whether no two rows of the result have the same key, for sure: changes of one row must not hide another."""
    unique = plan.unique
    return unique is not None and {name.lower() for name in unique} <= {name.lower() for name in key}


def _linear(tree: exp.Expr, resolution: Resolution) -> DeltaChoice:
    if not is_linear(tree):
        raise NotDelta("")
    natural = key_of_result(resolution, ())
    plan = DeltaPlan(linear=step_of(tree, resolution=resolution), unique=natural or None)
    return DeltaChoice(plan, "every row of its inputs gives its result by itself")


def _grouped(tree: exp.Expr, resolution: Resolution) -> DeltaChoice:
    grouped = plan_grouped(tree, resolution)
    plan = DeltaPlan(grouped=grouped, unique=_group_key(grouped, resolution))
    return DeltaChoice(plan, "the partial result of each group is changed by what comes and what goes")


def _driven(tree: exp.Expr, resolution: Resolution) -> DeltaChoice:
    driven = plan_driven(tree, resolution)
    plan = DeltaPlan(driven=driven.plan, unique=driven.unique)
    return DeltaChoice(plan, "equalities lead from a changed row to all the rows it may concern")


def _grouped_driven(tree: exp.Expr, resolution: Resolution) -> DeltaChoice:
    grouping = cut_groups(tree, resolution)
    if grouping.has_extremes:
        raise NotDelta("MIN and MAX over a join need all rows of a group")
    driven = plan_driven(grouping.feed, resolution)
    grouped = grouped_plan(grouping, Step(driven.plan.sql))
    plan = DeltaPlan(grouped=grouped, driven=driven.plan, unique=_group_key(grouped, resolution))
    return DeltaChoice(plan, "equalities lead from a changed row to all it may concern, which changes partial results")


def _group_key(grouped: GroupedPlan, resolution: Resolution) -> tuple[str, ...] | None:
    if not grouped.keys:
        return ()
    natural = key_of_result(resolution, ())
    if not natural and not grouped.partials and resolution.outputs.complete:
        return resolution.outputs.names
    return natural or None


_ATTEMPTS: tuple[Callable[[exp.Expr, Resolution], DeltaChoice], ...] = (_linear, _grouped, _driven, _grouped_driven)
