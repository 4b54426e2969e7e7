"""When rows of two streams that are joined can no longer meet, so that they need not be kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa
from sqlglot import exp

from velostream.sql.delta_places import Place, Places
from velostream.sql.parentheses import conjuncts
from velostream.sql.plan import DeltaPlan, Expiry, Input, LateData, Meeting, TimedInput
from velostream.sql.statements import OptionValue
from velostream.sql.time_bounds import distances
from velostream.sql.windows import window_options

WATERMARK = "watermark"


@dataclass(frozen=True)
class _Range:
    """Columns with the times of two places, and how much later the second is than the first."""

    first: str
    second: str
    low: timedelta
    high: timedelta


def meeting_of(select: exp.Select, places: Places) -> Meeting | None:
    """How far apart in time rows of two streams are that meet; None for other joins, or where nothing bounds it.

    All relations of the query are admitted places already. What is compared must be timestamps of one type: the engine
    compares them with watermarks as they are.
    """
    here, joins = places.all(), list(select.args.get("joins") or ())
    kept = [place for place in here if places.resolution.input(place.reader.input).target.kept]
    if len(here) != 2 or len(kept) != 2 or len(joins) != 1:
        return None
    join = joins[0]
    kind = str(join.args.get("kind") or "").upper()
    remembers = bool(join.args.get("side")) or kind in ("SEMI", "ANTI")
    where = None if remembers else select.args.get("where")
    conditions = conjuncts(join.args.get("on")) + conjuncts(None if where is None else where.this)
    ranges = [one for one in _ranges(conditions, places, here) if _are_comparable(one, *here)]
    if not ranges:
        return None
    found = min(ranges, key=lambda one: one.high - one.low)
    left, right = (place.reader.input for place in here)
    return Meeting(TimedInput(left, found.first), TimedInput(right, found.second), found.low, found.high, remembers)


def with_expiry(
    plan: DeltaPlan, inputs: Sequence[Input], *, options: Sequence[OptionValue], text: str
) -> tuple[DeltaPlan, tuple[Input, ...]]:
    """The plan, and its parts among the inputs, with rows of streams that are forgotten once they can't meet others.

    Without a watermark nobody says how late a row may come, and with 'late.data' = 'update' it always may: then all
    rows are kept.
    """
    said = window_options(options, text=text)
    given = any(option.name.lower() == WATERMARK for option in options)
    if not given or said.late is LateData.UPDATE:
        return plan, tuple(inputs)
    return _expiring(plan, inputs, watermark=said.watermark, late=said.late)


def forgets_rows(plan: DeltaPlan | None, inputs: Sequence[Input]) -> bool:
    """Whether a view, or a part of its query, forgets rows of joined streams."""
    if plan is not None and plan.expiry is not None:
        return True
    return any(forgets_rows(entry.part.delta, entry.part.inputs) for entry in inputs if entry.part is not None)


def _expiring(
    plan: DeltaPlan, inputs: Sequence[Input], *, watermark: timedelta, late: LateData
) -> tuple[DeltaPlan, tuple[Input, ...]]:
    inner: list[Input] = []
    for entry in inputs:
        part = entry.part
        if part is not None and part.delta is not None:
            delta, below = _expiring(part.delta, part.inputs, watermark=watermark, late=late)
            entry = replace(entry, part=replace(part, delta=delta, inputs=below))  # noqa: PLW2901
        inner.append(entry)
    # The first rows in an order are looked for among all rows when one of them goes.
    if plan.meeting is None or plan.top is not None:
        return plan, tuple(inner)
    reason = "a stream, whose rows are kept as a table as long as they may meet others"
    kept = tuple(replace(entry, target=replace(entry.target, reason=reason)) for entry in inner)
    # What is looked up in the view by its values would be rows of the past, too, of which nothing else is left.
    partitioned = None if plan.partitioned is None else replace(plan.partitioned, outputs=None)
    return replace(plan, partitioned=partitioned, expiry=Expiry(plan.meeting, watermark, late)), kept


def _ranges(conditions: Sequence[exp.Expr], places: Places, here: Sequence[Place]) -> Iterator[_Range]:
    lows: dict[tuple[str, str], timedelta] = {}
    highs: dict[tuple[str, str], timedelta] = {}
    for distance in (distance for condition in conditions for distance in distances(condition)):
        first, second = places.column(distance.first), places.column(distance.second)
        if first is None or second is None or first[0] is second[0]:
            continue
        low, high = distance.low, distance.high
        if first[0] is not here[0]:
            first, second = second, first
            low, high = (None if high is None else -high), (None if low is None else -low)
        pair = (first[1], second[1])
        if low is not None:
            lows[pair] = max(low, lows.get(pair, low))
        if high is not None:
            highs[pair] = min(high, highs.get(pair, high))
    yield from (_Range(*pair, low, highs[pair]) for pair, low in lows.items() if pair in highs)


def _are_comparable(found: _Range, left: Place, right: Place) -> bool:
    first, second = left.schema.column(found.first), right.schema.column(found.second)
    if left.reader.input == right.reader.input and first.name != second.name:
        return False
    return bool(pa.types.is_timestamp(first.type)) and bool(first.type == second.type)
