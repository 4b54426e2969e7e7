"""Joins of two streams: `WITHIN 10m` said as a condition on event times, and whether a join is bounded in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

from sqlglot import exp

from velostream.errors import ValidationError
from velostream.model.duration import parse_duration
from velostream.sql.grammar import WITHIN
from velostream.sql.grouping import bare_item
from velostream.sql.naming import identifier
from velostream.sql.parentheses import conjuncts, without_parentheses
from velostream.sql.pointing import pointer
from velostream.sql.scope import origin_of
from velostream.sql.statements import OptionValue, Query
from velostream.sql.window_calls import is_window_call, window_field

_EVENT_TIME = "event.time.field"
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


def is_bounded(join: exp.Join, select: exp.Select, left: set[str]) -> bool:
    """Whether a join's conditions keep event times of both sides within a range: at least this, at most that.

    `left` are the aliases, in lower case, of all that stand before the join. Unless the join is an outer one, WHERE
    bounds it as ON does. The same window on both sides is a bound. A column of which nobody can tell yet whose it is
    may be what bounds it.
    """
    right = str(join.this.alias_or_name).lower()
    where = None if join.args.get("side") else select.args.get("where")
    parts = conjuncts(join.args.get("on")) + conjuncts(None if where is None else where.this)
    if any(not _source_of(column) for part in parts for column in part.find_all(exp.Column)):
        return True
    bounds = {bound for part in parts for bound in _bounds(part, select, left, right)}
    return len(bounds) == 2


def _bounds(part: exp.Expr, select: exp.Select, left: set[str], right: str) -> Iterator[str]:
    """Whether a condition bounds the left time from below, from above, both, or not at all."""
    if isinstance(part, exp.Between):
        low, high = part.args["low"], part.args["high"]
        yield from _bounds(exp.GTE(this=part.this.copy(), expression=low.copy()), select, left, right)
        yield from _bounds(exp.LTE(this=part.this.copy(), expression=high.copy()), select, left, right)
        return
    if not isinstance(part, (exp.EQ, *_AT_LEAST, *_AT_MOST)):
        return
    first, second = _side(part.this, left, right), _side(part.expression, left, right)
    if {first, second} != {"left", "right"}:
        return
    if not isinstance(part, exp.EQ):
        yield "below" if isinstance(part, _AT_LEAST) == (first == "left") else "above"
    elif _is_of_window(part.this, select) and _is_of_window(part.expression, select):
        yield from ("below", "above")


def _is_of_window(value: exp.Expr, select: exp.Select) -> bool:
    """Whether a value is a time window, or its start or end, of this SELECT or of a query in its FROM."""
    value = without_parentheses(value)
    if is_window_call(value) or window_field(value) is not None:
        return True
    if not isinstance(value, exp.Column):
        return False
    items = [select.args["from_"].this, *(join.this for join in select.args.get("joins") or ())]
    source = next((item for item in items if str(item.alias_or_name).lower() == _source_of(value)), None)
    inner = _select_of(source)
    if inner is None:
        return False
    named = [item for item in inner.expressions if str(item.alias_or_name).lower() == str(value.name).lower()]
    return bool(named) and _is_of_window(bare_item(named[0]), inner)


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
