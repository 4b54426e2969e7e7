"""What EXPLAIN says of a view that follows the changes of its inputs, and of what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from velostream.sql.plan import AggregateFunction, DeltaPlan, GroupedPlan, Input, Step

_EXTREMES = (AggregateFunction.MIN, AggregateFunction.MAX)


def delta_rows(plan: DeltaPlan, inputs: Sequence[Input]) -> Iterator[tuple[str, str]]:
    """How changes are followed and what that is estimated to cost, as rows of property and value."""
    if plan.grouped is not None:
        yield from _grouped_rows(plan.grouped)
    elif plan.linear is not None:
        yield ("changes", f"filter and projection of the changed rows, {_where(plan.linear)}")
    yield ("cost", _cost(plan, inputs))


def delta_state(plan: DeltaPlan) -> str:
    """What is kept beside the rows of the view."""
    if plan.grouped is None:
        return "none: the versions of the inputs that the rows reflect"
    kept = ["the number of its rows"]
    if any(partial.argument is not None and partial.function not in _EXTREMES for partial in plan.grouped.partials):
        kept.append("counts and exact sums")
    if any(partial.function in _EXTREMES for partial in plan.grouped.partials):
        kept.append("smallest and largest values")
    return f"one row per group in a hidden table: {', '.join(kept)}"


def delta_sql_rows(plan: DeltaPlan) -> Iterator[tuple[str, str]]:
    """The SQL texts behind the plan."""
    if plan.grouped is not None:
        yield ("sql of feed", plan.grouped.feed.sql)
        yield ("sql over groups", plan.grouped.final.sql)


def _grouped_rows(plan: GroupedPlan) -> Iterator[tuple[str, str]]:
    groups = "their groups" if plan.keys else "the one group"
    yield ("changes", f"the changed rows, {_where(plan.feed)}, change the partial results of {groups}")
    if any(partial.function in _EXTREMES for partial in plan.partials):
        found = f"by index on ({', '.join(plan.found_by)})" if plan.found_by else "by a scan"
        yield ("lookup", f"the rows of a group that loses its smallest or largest value, {found}")
    yield ("on top", f"HAVING and projection of the groups touched, {_where(plan.final)}")


def _where(step: Step) -> str:
    return "in Spark" if step.items is None else "without Spark"


def _cost(plan: DeltaPlan, inputs: Sequence[Input]) -> str:
    known = [entry.target.rows for entry in inputs if entry.target.rows is not None]
    again = f"; computing it again reads {sum(known):,} rows" if len(known) == len(inputs) else ""
    spark = [step for step in (plan.linear, *_steps(plan)) if step is not None and step.items is None]
    jobs = f", and {len(spark)} execution{'s' if len(spark) > 1 else ''} in Spark" if spark else ""
    return f"each changed row once{jobs}, whatever the size of the inputs{again}"


def _steps(plan: DeltaPlan) -> tuple[Step, ...]:
    return () if plan.grouped is None else (plan.grouped.feed, plan.grouped.final)
