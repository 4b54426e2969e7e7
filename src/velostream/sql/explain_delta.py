"""What EXPLAIN says of a view that follows the changes of its inputs, and of what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from velostream.model.duration import render_duration
from velostream.sql.plan import (
    AggregateFunction,
    DeltaPlan,
    DrivenPlan,
    GroupedPlan,
    Input,
    LateData,
    PartitionedPlan,
    Step,
)

LATE_ROWS = {
    LateData.DROP: "dropped",
    LateData.DEAD_LETTER: "dead letters",
    LateData.UPDATE: "counted all the same",
}
"""What becomes of rows that come late."""
_EXTREMES = (AggregateFunction.MIN, AggregateFunction.MAX)


def delta_rows(plan: DeltaPlan, inputs: Sequence[Input]) -> Iterator[tuple[str, str]]:
    """How changes are followed and what that is estimated to cost, as rows of property and value."""
    if plan.grouped is not None:
        by_spark = plan.grouped.feed.items is None if plan.driven is None else plan.driven.joined is None
        yield from grouped_rows(plan.grouped, rows="the changed rows", by_spark=by_spark)
        if any(partial.function in _EXTREMES for partial in plan.grouped.partials):
            by = plan.grouped.found_by
            found = f"by index on ({', '.join(by)})" if by else "by a scan"
            yield ("lookup", f"the rows of a group that loses its smallest or largest value, {found}")
    elif plan.linear is not None:
        yield ("changes", f"filter and projection of the changed rows, {_where(plan.linear)}")
    if plan.driven is not None:
        yield from _driven_rows(plan.driven, {entry.relation: entry for entry in inputs})
    if plan.partitioned is not None:
        yield from _partitioned_rows(plan.partitioned, {entry.relation: entry for entry in inputs})
    if plan.top is not None:
        yield ("top", f"the first {plan.top.limit} rows; when one of them goes, all rows or groups are looked at again")
    yield ("cost", _cost(plan, inputs))


def delta_state(plan: DeltaPlan) -> str:
    """What is kept beside the rows of the view."""
    if plan.grouped is not None:
        groups = grouped_state(plan.grouped)
        return groups if plan.expiry is None else f"{groups}; and the rows of both streams that may still meet others"
    if plan.expiry is not None:
        return "the rows of both streams that may still meet others"
    return "none: the versions of the inputs that the rows reflect"


def expiry_rows(plan: DeltaPlan | None, inputs: Sequence[Input]) -> Iterator[tuple[str, str]]:
    """How long rows of joined streams are kept, here or in a part of the query."""
    if plan is not None and plan.expiry is not None:
        meeting, names = plan.expiry.meeting, {entry.relation: _name(entry) for entry in inputs}
        for timed, stay in ((meeting.left, meeting.left_stay), (meeting.right, meeting.right_stay)):
            how_long = f"kept {render_duration(max(stay, timedelta(0)))} beyond the watermark"
            yield ("kept rows", f"of stream {names[timed.relation]}, {how_long}, which follows {timed.column}")
        delay, late = render_duration(plan.expiry.watermark), LATE_ROWS[plan.expiry.late]
        yield ("watermark", f"{delay} behind the newest event time of a stream; rows before it are {late}")
    for entry in inputs:
        if entry.part is not None:
            yield from expiry_rows(entry.part.delta, entry.part.inputs)


def grouped_state(plan: GroupedPlan) -> str:
    """What is kept of the groups."""
    kept = ["the number of its rows"]
    if any(partial.argument is not None and partial.function not in _EXTREMES for partial in plan.partials):
        kept.append("counts and exact sums")
    if any(partial.function in _EXTREMES for partial in plan.partials):
        kept.append("smallest and largest values")
    return f"one row per group in a hidden table: {', '.join(kept)}"


def delta_sql_rows(plan: DeltaPlan) -> Iterator[tuple[str, str]]:
    """The SQL texts behind the plan."""
    looked_up = plan.driven or plan.partitioned
    if looked_up is not None:
        yield ("sql over lookups", looked_up.sql)
    if plan.grouped is not None:
        yield from grouped_sql_rows(plan.grouped)


def grouped_sql_rows(plan: GroupedPlan) -> Iterator[tuple[str, str]]:
    yield ("sql of feed", plan.feed.sql)
    yield ("sql over groups", plan.final.sql)


def grouped_rows(plan: GroupedPlan, *, rows: str, by_spark: bool | None = None) -> Iterator[tuple[str, str]]:
    """How rows change groups; `rows` are what they are called, `by_spark` whether Spark computes them, if known."""
    where = _in_spark(plan.feed.items is None if by_spark is None else by_spark)
    groups = "their groups" if plan.keys else "the one group"
    yield ("changes", f"{rows}, {where}, change the partial results of {groups}")
    yield ("on top", f"HAVING and projection of the groups touched, {_where(plan.final)}")


def _driven_rows(plan: DrivenPlan, inputs: Mapping[str, Input]) -> Iterator[tuple[str, str]]:
    names = {reader.relation: _name(inputs[reader.input]) for reader in plan.readers}
    root = names[plan.readers[0].relation]
    where = _in_spark(plan.joined is None)
    yield ("driven by", f"table {root}: its rows that a change may concern are computed before and after, {where}")
    for name in plan.constants:
        yield ("constant", f"the row of {names[name]}: when it becomes another one, all rows are looked at again")
    for link in plan.links:
        there, here = ", ".join(link.child_columns), ", ".join(link.parent_columns)
        yield ("lookup", f"{names[link.child]} by index on ({there}), and back to {names[link.parent]} on ({here})")


def _partitioned_rows(plan: PartitionedPlan, inputs: Mapping[str, Input]) -> Iterator[tuple[str, str]]:
    yield ("changes", "what holds one of the values that changed rows hold is computed again, in Spark")
    for reader in plan.readers:
        columns = ", ".join(plan.columns[reader.relation])
        yield ("lookup", f"{_name(inputs[reader.input])} by index on ({columns})")


def _name(entry: Input) -> str:
    return f'"{entry.target.name if entry.part is None else entry.relation}"'


def _where(step: Step) -> str:
    return _in_spark(step.items is None)


def _in_spark(needed: bool) -> str:  # noqa: FBT001 - the only thing it is about
    return "in Spark" if needed else "without Spark"


def _cost(plan: DeltaPlan, inputs: Sequence[Input]) -> str:
    known = [entry.target.rows for entry in inputs if entry.target.rows is not None]
    again = f"; computing it again reads {sum(known):,} rows" if len(known) == len(inputs) else ""
    count = sum(step is not None and step.items is None for step in (plan.linear, *_steps(plan)))
    count += plan.partitioned is not None or (plan.driven is not None and plan.driven.joined is None)
    jobs = f", and {count} execution{'s' if count > 1 else ''} in Spark" if count else ""
    rows = "each changed row once"
    if plan.driven is not None:
        rows = "each changed row and those it is linked to"
    elif plan.partitioned is not None:
        rows = "all rows that hold a value of a changed row"
    return f"{rows}{jobs}, whatever the size of the inputs{again}"


def _steps(plan: DeltaPlan) -> tuple[Step, ...]:
    """The steps of groups; of those fed by a driven query the feed is that query."""
    if plan.grouped is None:
        return ()
    return (plan.grouped.final,) if plan.driven is not None else (plan.grouped.feed, plan.grouped.final)
