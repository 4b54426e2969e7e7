"""Joins of two streams: `WITHIN 10m` said as a condition on event times, and whether a join is bounded in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from velostream.errors import ValidationError
from velostream.model.duration import parse_duration
from velostream.sql.functions import function_name
from velostream.sql.grammar import WITHIN
from velostream.sql.grouping import bare_item
from velostream.sql.naming import identifier
from velostream.sql.parentheses import conjuncts, without_parentheses
from velostream.sql.pointing import pointer
from velostream.sql.scope import origin_of
from velostream.sql.statements import OptionValue, Query
from velostream.sql.window_calls import is_window_call, window_field

if TYPE_CHECKING:
    from velostream.sql.resolve import Resolution

ColumnTest = Callable[[exp.Column], bool | None]
"""Whether a column holds times; None when nobody can tell yet."""
_EVENT_TIME = "event.time.field"
_MAKING_TIMES = ("to_timestamp", "timestamp_seconds", "timestamp_millis", "timestamp_micros", "to_date")
_AT_LEAST = (exp.GTE, exp.GT)
_AT_MOST = (exp.LTE, exp.LT)


def spell_out_within(query: Query, *, options: Sequence[OptionValue], text: str) -> Query:
    """The query with every `JOIN … WITHIN 10m ON …` as one on event times that are no further apart than that."""
    if not any(join.args.get(WITHIN) for join in query.tree.find_all(exp.Join)):
        return query
    tree = query.tree.copy()
    for select in list(tree.find_all(exp.Select)):
        for join in select.args.get("joins") or ():
            length = join.args.pop(WITHIN, None)
            if length is not None:
                _bound(join, select, parse_duration(str(length.this)), options=options, text=text)
    return replace(query, tree=tree)


def time_test(resolution: Resolution, *, options: Sequence[OptionValue]) -> ColumnTest:
    """What tells columns that hold event times: by their types, or because the statement names them as such."""
    names = [option.name.lower() for option in options]
    named = {
        option.value.lower()
        for name, option in zip(names, options, strict=True)
        if name == _EVENT_TIME or name.endswith(f".{_EVENT_TIME}")
    }

    def is_time(column: exp.Column) -> bool | None:
        origin = origin_of(column)
        if origin is None or origin.fields:
            return None
        if origin.column.lower() in named:
            return True
        source = resolution.frames[origin.scope].source(origin.source)
        if source is None:
            return None
        if source.input is None:
            below = _selected(column)
            return is_time(below) if isinstance(below, exp.Column) else None
        schema = resolution.input(source.input).target.schema
        found = None if schema is None else schema.find(origin.column)
        return None if found is None else bool(pa.types.is_timestamp(found.type) or pa.types.is_date(found.type))

    return is_time


def is_bounded(join: exp.Join, select: exp.Select, left: set[str], *, is_time: ColumnTest) -> bool:
    """Whether a join's conditions keep event times of both sides within a range: at least this, at most that.

    `left` are the aliases, in lower case, of all that stand before the join. Unless the join is an outer one, WHERE
    bounds it as ON does. The same window on both sides is a bound, and so are equal times. A column of which nobody
    can tell yet whose it is may be what bounds it, and one of which nobody can tell what it is may be a time in a
    range; in an equality it is taken for a key.
    """
    right = str(join.this.alias_or_name).lower()
    where = None if join.args.get("side") else select.args.get("where")
    parts = conjuncts(join.args.get("on")) + conjuncts(None if where is None else where.this)
    if any(not _source_of(column) for part in parts for column in part.find_all(exp.Column)):
        return True
    timely = [
        part
        for part in parts
        if all(is_time(column) is not False or _is_cast(column) for column in part.find_all(exp.Column))
    ]
    bounds = {bound for part in timely for bound in _bounds(part, left, right, is_time=is_time)}
    return len(bounds) == 2


def _bounds(part: exp.Expr, left: set[str], right: str, *, is_time: ColumnTest) -> Iterator[str]:
    """Whether a condition bounds the left time from below, from above, both, or not at all."""
    if isinstance(part, exp.Between):
        low, high = part.args["low"], part.args["high"]
        yield from _bounds(exp.GTE(this=part.this.copy(), expression=low.copy()), left, right, is_time=is_time)
        yield from _bounds(exp.LTE(this=part.this.copy(), expression=high.copy()), left, right, is_time=is_time)
        return
    if not isinstance(part, (exp.EQ, *_AT_LEAST, *_AT_MOST)):
        return
    first, second = _side(part.this, left, right), _side(part.expression, left, right)
    if {first, second} != {"left", "right"}:
        return
    if not isinstance(part, exp.EQ):
        yield "below" if isinstance(part, _AT_LEAST) == (first == "left") else "above"
    elif (_is_of_window(part.this) and _is_of_window(part.expression)) or all(
        isinstance(side, exp.Column) and is_time(side) for side in (part.this, part.expression)
    ):
        yield from ("below", "above")


def _is_of_window(value: exp.Expr) -> bool:
    """Whether a value is a time window, or its start or end, of its SELECT or of a query in the FROM of that."""
    value = without_parentheses(value)
    if is_window_call(value) or window_field(value) is not None:
        return True
    below = _selected(value) if isinstance(value, exp.Column) else None
    return below is not None and _is_of_window(below)


def _selected(column: exp.Column) -> exp.Expr | None:
    """What a query in FROM selects as that column; None when it is none of such a query, or not written out there."""
    select = column.find_ancestor(exp.Select)
    if select is None or select.args.get("from_") is None:
        return None
    items = [select.args["from_"].this, *(join.this for join in select.args.get("joins") or ())]
    source = next((item for item in items if str(item.alias_or_name).lower() == _source_of(column)), None)
    inner = _select_of(source)
    named = [] if inner is None else inner.expressions
    found = [item for item in named if str(item.alias_or_name).lower() == str(column.name).lower()]
    return without_parentheses(bare_item(found[0])) if found else None


def _select_of(item: exp.Expr | None) -> exp.Select | None:
    """The SELECT that an item of FROM stands for: a subquery's, or that of a WITH item."""
    if isinstance(item, exp.Table):
        name, clause = str(item.name).lower(), item.find_ancestor(exp.Query)
        while clause is not None:
            with_ = clause.args.get("with_")
            found = [cte for cte in (with_.expressions if with_ else ()) if str(cte.alias).lower() == name]
            if found:
                item = found[0].this
                break
            clause = clause.find_ancestor(exp.Query)
    while isinstance(item, exp.Subquery):
        item = item.this
    return item if isinstance(item, exp.Select) else None


def _is_cast(column: exp.Column) -> bool:
    """Whether what a column holds is first made a time."""
    holder = column.parent
    if isinstance(holder, exp.Cast):
        return holder.to.is_type(*exp.DataType.TEMPORAL_TYPES)
    return isinstance(holder, exp.Func) and function_name(holder) in _MAKING_TIMES


def _side(expression: exp.Expr, left: set[str], right: str) -> str | None:
    sources = {_source_of(column) for column in expression.find_all(exp.Column)}
    if sources and sources <= left:
        return "left"
    return "right" if sources == {right} else None


def _source_of(column: exp.Column) -> str:
    origin = origin_of(column)
    return str(column.table if origin is None else origin.source).lower()


def _bound(join: exp.Join, select: exp.Select, length: timedelta, *, options: Sequence[OptionValue], text: str) -> None:
    first, other = str(select.args["from_"].this.alias_or_name), str(join.this.alias_or_name)
    if join.args.get("using"):
        raise ValidationError(
            "a join WITHIN a time has ON, not USING",
            hint=f"ON {first}.k = {other}.k",
            **pointer(join.this, text),
        )
    left, right = (_time(alias, options, join=join, text=text) for alias in (first, other))
    seconds = f"{length // timedelta(microseconds=1) / 1_000_000:.6f}".rstrip("0").rstrip(".")
    interval = exp.Interval(this=exp.Literal.string(seconds), unit=exp.Var(this="SECOND"))
    within = exp.Between(
        this=left,
        low=exp.Sub(this=right.copy(), expression=interval.copy()),
        high=exp.Add(this=right.copy(), expression=interval),
    )
    join.set("on", exp.and_(exp.paren(without_parentheses(join.args["on"])), within, copy=False))


def _time(alias: str, options: Sequence[OptionValue], *, join: exp.Join, text: str) -> exp.Expr:
    given = {option.name.lower(): option.value for option in options}
    name = given.get(f"{alias.lower()}.{_EVENT_TIME}") or given.get(_EVENT_TIME)
    if name is None:
        raise ValidationError(
            f'JOIN … WITHIN needs the event time of "{alias}"',
            hint=f"WITH ('event.time.field' = 'ts'), or '{alias}.event.time.field' where the names differ",
            **pointer(join.this, text),
        )
    # Text plus an interval would be text in Spark, and be compared as such.
    column = exp.Column(this=identifier(name), table=identifier(alias))
    return exp.Cast(this=column, to=exp.DataType.build("TIMESTAMP", dialect="spark"))
