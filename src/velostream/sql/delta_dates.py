"""Constant dates that are written as a sum, `DATE '1994-01-01' + INTERVAL '1' YEAR`, as plain dates."""

from __future__ import annotations

import calendar
from datetime import date, timedelta

from sqlglot import exp

_MONTHS = {"YEAR": 12, "MONTH": 1}


def with_plain_dates(tree: exp.Expr) -> exp.Expr:
    """A copy in whose conditions constant dates are written out; what they mean to Spark stays the same."""
    copied = tree.copy()
    for clause in [*copied.find_all(exp.Where, exp.Having)]:
        clause.set("this", clause.this.transform(_written_out, copy=False))
    return copied


def _written_out(node: exp.Expr) -> exp.Expr:
    if not isinstance(node, exp.Add | exp.Sub):
        return node
    start, step = _date(node.this), node.expression
    amount = step.this if isinstance(step, exp.Interval) else None
    if start is None or not isinstance(amount, exp.Literal) or not str(amount.this).isdigit():
        return node
    count = -int(str(amount.this)) if isinstance(node, exp.Sub) else int(str(amount.this))
    unit = str(step.args.get("unit") or "").upper()
    try:
        found = start + timedelta(days=count) if unit == "DAY" else _months_later(start, count * _MONTHS[unit])
    except (KeyError, OverflowError, ValueError):
        return node
    return exp.cast(exp.Literal.string(found.isoformat()), "DATE")


def _date(node: exp.Expr) -> date | None:
    """The value of `DATE '…'`."""
    if not isinstance(node, exp.Cast) or not node.is_type("date") or not isinstance(node.this, exp.Literal):
        return None
    try:
        return date.fromisoformat(str(node.this.this))
    except ValueError:
        return None


def _months_later(start: date, months: int) -> date:
    """So many months later, on the month's last day where it has no such day."""
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    return date(year, month + 1, min(start.day, calendar.monthrange(year, month + 1)[1]))
