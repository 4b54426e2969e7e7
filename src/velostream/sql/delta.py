"""How a view over tables follows the changes of its inputs instead of being computed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from velostream.sql.delta_cut import cut_query
from velostream.sql.delta_dates import with_plain_dates
from velostream.sql.delta_flatten import flattened
from velostream.sql.delta_groups import cut_groups, grouped_plan, plan_grouped
from velostream.sql.delta_joins import plan_driven
from velostream.sql.delta_partitions import plan_partitioned
from velostream.sql.delta_parts import resolved_part, schema_of_part
from velostream.sql.delta_pieces import Piece
from velostream.sql.delta_places import has_one_row
from velostream.sql.delta_steps import NotDelta, is_linear, step_of
from velostream.sql.delta_top import cut_top
from velostream.sql.functions import is_time_function
from velostream.sql.keys import key_of_result
from velostream.sql.plan import DeltaPlan, GroupedPlan, Input, QueryPlan, Relation, RelationKind, Step, Strategy
from velostream.sql.resolve import Resolution
from velostream.sql.shape import outermost_select


@dataclass(frozen=True)
class DeltaChoice:
    """A plan with what speaks for it, or why there is none."""

    plan: DeltaPlan | None
    reason: str
    inputs: tuple[Input, ...] = ()
    """What the plan reads; parts of the query among it."""
    sql: str = ""
    """What is left of the query as Spark SQL over the inputs."""


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
    return _followed(tree, resolution, key)


def _followed(tree: exp.Expr, resolution: Resolution, key: tuple[str, ...]) -> DeltaChoice:
    """The plan of the query as it is, else that of what is left when parts of it are followed by themselves."""
    flat = flattened(with_plain_dates(tree), resolution)
    direct = _direct(flat, resolution, key)
    if direct.plan is not None:
        direct = replace(direct, inputs=resolution.inputs, sql=tree.sql(dialect="spark"))
        if not _compares_in_spark(direct.plan, direct.inputs):
            return direct
    parts = _in_parts(flat, resolution, key)
    if parts is None or (direct.plan is not None and _compares_in_spark(parts.plan, parts.inputs)):
        return direct
    return parts


def _compares_in_spark(plan: DeltaPlan | None, inputs: Sequence[Input]) -> bool:
    """Whether rows of several tables, or all rows of a group, are brought together by Spark, here or in a part."""
    if plan is None or plan.partitioned is not None or (plan.driven is not None and plan.driven.joined is None):
        return True
    parts = [entry.part for entry in inputs if entry.part is not None]
    return any(_compares_in_spark(part.delta, part.inputs) for part in parts)


def _in_parts(tree: exp.Expr, resolution: Resolution, key: tuple[str, ...]) -> DeltaChoice | None:
    cut = cut_query(tree, resolution)
    if cut is None:
        return None
    known = {entry.relation: entry for entry in resolution.inputs}
    try:
        for piece in cut.pieces:
            known[piece.name] = _part(piece, known)
        rest = resolved_part(cut.tree, known)
    except NotDelta:
        return None
    choice = _followed(rest.tree, rest, key)
    return choice if choice.plan is not None else None


def _part(piece: Piece, known: Mapping[str, Input]) -> Input:
    """A piece of the query as a relation; `NotDelta` when it can't be followed itself."""
    resolution = resolved_part(piece.tree, known)
    key = key_of_result(resolution, ())
    schema = schema_of_part(resolution).with_key(key)
    choice = _followed(resolution.tree, resolution, key)
    if choice.plan is None:
        raise NotDelta(choice.reason)
    plan = QueryPlan(Strategy.DELTA, choice.reason, choice.inputs, choice.sql, delta=choice.plan, key=key)
    select = outermost_select(resolution.tree)
    single = select is not None and has_one_row(select)
    relation = Relation(piece.name, RelationKind.TABLE, schema, reason="a part of the query itself", one_row=single)
    return Input(piece.name, relation, part=plan)


def _direct(tree: exp.Expr, resolution: Resolution, key: tuple[str, ...]) -> DeltaChoice:
    try:
        body, top = cut_top(tree, resolution)
    except NotDelta as why_not:
        return DeltaChoice(None, why_not.reason)
    choice = _choice(body, resolution, attempts=_ATTEMPTS if top is None else _ATTEMPTS_BELOW_TOP)
    if choice.plan is None:
        return choice
    if key and not is_unique(choice.plan, key):
        return DeltaChoice(None, f"several rows of the query may have the same key ({', '.join(key)})")
    if top is None:
        return choice
    return DeltaChoice(replace(choice.plan, top=top), f"{choice.reason}; the first {top.limit} rows are kept")


def _choice(tree: exp.Expr, resolution: Resolution, *, attempts: Sequence[_Attempt]) -> DeltaChoice:
    reasons: list[str] = []
    for attempt in attempts:
        try:
            return attempt(tree, resolution)
        except NotDelta as why_not:
            reasons.append(why_not.reason)
    return DeltaChoice(None, "; ".join(dict.fromkeys(filter(None, reasons))))


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
    plan = DeltaPlan(driven=driven.plan, unique=driven.unique, meeting=driven.meeting)
    return DeltaChoice(plan, "equalities lead from a changed row to all the rows it may concern")


def _grouped_driven(tree: exp.Expr, resolution: Resolution) -> DeltaChoice:
    grouping = cut_groups(tree, resolution)
    if grouping.has_extremes:
        raise NotDelta("MIN and MAX over a join need all rows of a group")
    driven = plan_driven(grouping.feed, resolution)
    grouped = grouped_plan(grouping, Step(driven.plan.sql))
    unique = _group_key(grouped, resolution)
    plan = DeltaPlan(grouped=grouped, driven=driven.plan, unique=unique, meeting=driven.meeting)
    return DeltaChoice(plan, "equalities lead from a changed row to all it may concern, which changes partial results")


def _partitioned(tree: exp.Expr, resolution: Resolution) -> DeltaChoice:
    partitioned = plan_partitioned(tree, resolution)
    plan = DeltaPlan(partitioned=partitioned.plan, unique=partitioned.unique, meeting=partitioned.meeting)
    return DeltaChoice(plan, "its rows fall apart by values that changed rows hold, and only these are computed again")


def _group_key(grouped: GroupedPlan, resolution: Resolution) -> tuple[str, ...] | None:
    if not grouped.keys:
        return ()
    natural = key_of_result(resolution, ())
    if not natural and not grouped.partials and resolution.outputs.complete:
        return resolution.outputs.names
    return natural or None


_Attempt = Callable[[exp.Expr, Resolution], DeltaChoice]
_ATTEMPTS_BELOW_TOP: tuple[_Attempt, ...] = (_linear, _grouped, _driven, _grouped_driven)
"""From what costs least on."""
_ATTEMPTS: tuple[_Attempt, ...] = (*_ATTEMPTS_BELOW_TOP, _partitioned)
