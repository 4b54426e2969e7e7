"""How far apart the times of two rows may be that meet: read off the comparisons of a join's condition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal, InvalidOperation

from sqlglot import exp

from velostream.sql.parentheses import without_parentheses

_AT_LEAST = (exp.GTE, exp.GT)
_AT_MOST = (exp.LTE, exp.LT)
_TIMESTAMPS = (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ)
_DAY = timedelta(days=1)
_LENGTHS = {
    "MICROSECOND": (timedelta(microseconds=1),) * 2,
    "MILLISECOND": (timedelta(milliseconds=1),) * 2,
    "SECOND": (timedelta(seconds=1),) * 2,
    "MINUTE": (timedelta(minutes=1),) * 2,
    "HOUR": (timedelta(hours=1),) * 2,
    "DAY": (_DAY,) * 2,
    "WEEK": (7 * _DAY,) * 2,
    "MONTH": (28 * _DAY, 31 * _DAY),
    "YEAR": (365 * _DAY, 366 * _DAY),
}
"""The shortest and the longest that a unit may be."""
_CLOCK_CHANGE = timedelta(hours=2)
"""Days are added by the calendar, in a zone that may put its clocks forward or back."""


@dataclass(frozen=True)
class Distance:
    """How much later the second time is than the first: at least `low`, at most `high`; None: nothing says so."""

    first: exp.Column
    second: exp.Column
    low: timedelta | None = None
    high: timedelta | None = None


@dataclass(frozen=True)
class _Shift:
    """What is added to a time, as nearly as it is known."""

    least: timedelta = timedelta(0)
    most: timedelta = timedelta(0)

    def __add__(self, other: _Shift) -> _Shift:
        return _Shift(self.least + other.least, self.most + other.most)

    def __neg__(self) -> _Shift:
        return _Shift(-self.most, -self.least)


@dataclass(frozen=True)
class _Time:
    column: exp.Column
    shift: _Shift = _Shift()


def distances(condition: exp.Expr) -> Iterator[Distance]:
    """What a conjunct says of the distance of two columns, whatever these hold: compared as they are, or after
    intervals were added to them.
    """
    if isinstance(condition, exp.Between):
        yield from distances(exp.GTE(this=condition.this.copy(), expression=condition.args["low"].copy()))
        yield from distances(exp.LTE(this=condition.this.copy(), expression=condition.args["high"].copy()))
        return
    if not isinstance(condition, (exp.EQ, *_AT_LEAST, *_AT_MOST)):
        return
    first, second = _time(condition.this), _time(condition.expression)
    if first is None or second is None:
        return
    try:
        apart = first.shift + -second.shift
    except OverflowError:
        return
    low = None if isinstance(condition, _AT_LEAST) else apart.least
    high = None if isinstance(condition, _AT_MOST) else apart.most
    yield Distance(first.column, second.column, low, high)


def _time(node: exp.Expr) -> _Time | None:
    """A column, maybe cast to a timestamp, with the intervals added to it; None for anything else."""
    bare = without_parentheses(node)
    if isinstance(bare, exp.Cast) and bare.to.this in _TIMESTAMPS:
        bare = without_parentheses(bare.this)
        return _Time(bare) if isinstance(bare, exp.Column) else None
    if isinstance(bare, exp.Column):
        return _Time(bare)
    if not isinstance(bare, exp.Add | exp.Sub):
        return None
    time, shift = _time(bare.this), _shift(bare.expression)
    if time is None and isinstance(bare, exp.Add):
        time, shift = _time(bare.expression), _shift(bare.this)
    if time is None or shift is None:
        return None
    return _Time(time.column, time.shift + (shift if isinstance(bare, exp.Add) else -shift))


def _shift(node: exp.Expr) -> _Shift | None:
    bare = without_parentheses(node)
    if isinstance(bare, exp.Neg):
        turned = _shift(bare.this)
        return None if turned is None else -turned
    if isinstance(bare, exp.Add):
        parts = _shift(bare.this), _shift(bare.expression)
        return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
    if not isinstance(bare, exp.Interval):
        return None
    lengths = _LENGTHS.get(str(bare.args.get("unit") or "").upper().removesuffix("S"))
    try:
        number = Decimal(str(bare.this.this)) if isinstance(bare.this, exp.Literal) else None
        if lengths is None or number is None:
            return None
        least, most = sorted(_times(length, number) for length in lengths)
    except (InvalidOperation, OverflowError, ValueError):
        return None
    slack = _CLOCK_CHANGE if max(abs(least), abs(most)) >= _DAY else timedelta(0)
    return _Shift(least - slack, most + slack)


def _times(length: timedelta, number: Decimal) -> timedelta:
    return timedelta(microseconds=int(length // timedelta(microseconds=1) * number))
