"""Time windows: our WINDOW clause said in Spark's words, and what a GROUP BY over a window means to a stream.

`WINDOW TUMBLING(ts, 5m)` becomes one more group, `window(ts, '300 seconds')`, and `_window_start` its field `start`.
From there on there is one spelling, which Spark runs over tables as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import sqlglot
from sqlglot import exp

from velostream.errors import OptionError, SqlError, ValidationError, VelostreamError
from velostream.model.duration import parse_duration
from velostream.sql.canonical import canonical
from velostream.sql.functions import aggregate_calls, function_name
from velostream.sql.grouping import bare_item, group_expressions
from velostream.sql.naming import alias, identifier
from velostream.sql.parentheses import without_parentheses
from velostream.sql.plan import LateData
from velostream.sql.pointing import pointer
from velostream.sql.scope import Frame
from velostream.sql.shape import outermost_select
from velostream.sql.statements import OptionValue, Query, Window, WindowKind
from velostream.sql.trees import with_children
from velostream.sql.window_calls import END, START, field_of, is_window_call, window_field

_FIELDS = {"_window_start": START, "_window_end": END}
_MICROSECOND = timedelta(microseconds=1)
_CLAUSES = ("expressions", "having", "order", "sort", "qualify", "distribute", "cluster")


@dataclass(frozen=True)
class WindowOptions:
    """What a statement says of event time."""

    watermark: timedelta
    late: LateData


def window_options(options: Sequence[OptionValue], *, text: str) -> WindowOptions:
    """The options `watermark` and `late.data`; `OptionError` for a value that is none."""
    watermark, late = _option(options, "watermark"), _option(options, "late.data")
    try:
        delay = parse_duration(watermark.value) if watermark is not None else timedelta(0)
    except VelostreamError as error:
        raise _wrong(watermark, "a duration such as 10s", text) from error
    if late is not None and late.value.lower() not in set(LateData):
        raise _wrong(late, "one of " + ", ".join(LateData), text)
    return WindowOptions(delay, LateData.DROP if late is None else LateData(late.value.lower()))


def spell_out_window(query: Query, *, options: Sequence[OptionValue], text: str) -> Query:
    """The query with its WINDOW clause as a group of the outermost SELECT, and the names of windows as their fields."""
    tree = query.tree.copy()
    select = outermost_select(tree)
    if select is None:
        return query
    if query.window is not None:
        call = _call_of(query.window, options, text)
        group = select.args.get("group")
        if group is None or group.args.get("all"):
            items = [bare_item(item).copy() for item in select.expressions] if group is not None else []
            plain = [item for item in items if not aggregate_calls(item) and not _names_window(item)]
            select.set("group", exp.Group(expressions=[*plain, call]))
        else:
            group.append("expressions", call)
    found = _grouped_call(select)
    if found is None:
        return query
    taken = {str(table.alias_or_name).lower() for table in select.find_all(exp.Table)}
    for clause in _CLAUSES:
        value = select.args.get(clause)
        if isinstance(value, list):
            spelt = [_spelt(part, found, taken) for part in value]
            select.set(clause, [_as_named(new, old) for new, old in zip(spelt, value, strict=True)])
        elif value is not None:
            select.set(clause, _spelt(value, found, taken))
    return replace(query, tree=tree)


@dataclass(frozen=True)
class GroupedWindow:
    """The one window that a SELECT groups by, with lengths that are written down."""

    call: exp.Anonymous
    kind: WindowKind
    size: timedelta
    """Length of a window; of a session, the gap that ends it."""

    @property
    def time(self) -> exp.Expr:
        time: exp.Expr = self.call.expressions[0]
        return time

    @property
    def event_time(self) -> exp.Expr:
        """The time as Spark's windows read it, by its own rules: a text or a date becomes a timestamp."""
        arguments = [exp.Var(this="MICROSECOND"), exp.Literal.number(0), self.time.copy()]
        return exp.Anonymous(this="timestampadd", expressions=arguments)

    @property
    def is_session(self) -> bool:
        return self.kind is WindowKind.SESSION


def grouped_window(select: exp.Select, frame: Frame | None) -> GroupedWindow | None:
    """The window a SELECT groups by; None without one, with several, or with a length only Spark can tell."""
    calls = [group for group in group_expressions(select, frame) if is_window_call(group)]
    if len(calls) != 1:
        return None
    call = calls[0]
    session = function_name(call) == "session_window"
    lengths = [_length(argument) for argument in call.expressions[1:]]
    if not lengths or None in lengths or len(lengths) > (1 if session else 3):
        return None
    size = lengths[0] or timedelta(0)
    sliding = len(lengths) > 1 and lengths[1] != size
    kind = WindowKind.SESSION if session else WindowKind.SLIDING if sliding else WindowKind.TUMBLING
    return GroupedWindow(call, kind, size)  # type: ignore[arg-type]


def by_start(select: exp.Select, window: GroupedWindow, frame: Frame | None) -> exp.Select:
    """A copy that groups by the start of its window, which with the other groups tells one window from another.

    The end of a window of fixed length is its start and its length; the window itself is the struct of both.
    """
    start = field_of(window.call, START)
    end: exp.Expr = field_of(window.call, END)
    if not window.is_session:
        length = exp.Interval(this=exp.Literal.string(_seconds(window.size)), unit=exp.Var(this="SECOND"))
        end = exp.paren(exp.Add(this=start.copy(), expression=length), copy=False)
    form = canonical(window.call)

    def replaced(node: exp.Expr) -> exp.Expr:
        if window_field(node) is not None and canonical(without_parentheses(node.this)) == form:
            return start.copy() if window_field(node) == START else end.copy()
        if is_window_call(node) and canonical(node) == form:
            fields = [exp.Literal.string(START), start.copy(), exp.Literal.string(END), end.copy()]
            return exp.Anonymous(this="named_struct", expressions=fields)
        return with_children(node, replaced)

    groups = group_expressions(select, frame)
    copied = select.copy()
    for clause in _CLAUSES:
        value = copied.args.get(clause)
        if isinstance(value, list):
            copied.set(clause, [_as_named(replaced(part), part) for part in value])
        elif value is not None:
            copied.set(clause, replaced(value))
    kept = [start if canonical(group) == form else replaced(group) for group in groups]
    copied.set("group", exp.Group(expressions=kept))
    return copied


def _call_of(window: Window, options: Sequence[OptionValue], text: str) -> exp.Anonymous:
    field = _option(options, "event.time.field")
    time = window.time_column or (field.value if field is not None else None)
    if time is None:
        raise ValidationError(
            f"WINDOW {window.kind.upper()} has no event time",
            hint=f"{window.kind.upper()}(ts, {window.size}), or WITH ('event.time.field' = 'ts')",
            **pointer(window.place, text),
        )
    column = _column(time, field)
    for part in column.walk():
        part.meta.update({"line": window.place.line, "col": window.place.column})
    lengths = [window.size] + ([window.advance] if window.advance else [])
    for length in lengths:
        if parse_duration(length) <= timedelta(0):
            raise ValidationError("a window needs a length", hint="5m, 30s, …", **pointer(window.place, text))
    if len(lengths) == 2 and parse_duration(lengths[1]) > parse_duration(lengths[0]):
        raise ValidationError(
            f"windows of {lengths[0]} every {lengths[1]} would leave rows out",
            hint="the second duration, by which the window moves, is at most the first, its size",
            **pointer(window.place, text),
        )
    name = "session_window" if window.kind is WindowKind.SESSION else "window"
    texts = [exp.Literal.string(f"{_seconds(parse_duration(length))} seconds") for length in lengths]
    return exp.Anonymous(this=name, expressions=[column, *texts])


def _column(time: str, field: OptionValue | None) -> exp.Expr:
    """The time column; the option may be a plain name with any characters."""
    if field is not None and field.value == time and not time.replace("_", "a").replace(".", "a").isalnum():
        return exp.Column(this=identifier(time))
    return sqlglot.parse_one(time, dialect="spark")


def _seconds(duration: timedelta) -> str:
    whole, rest = divmod(duration // _MICROSECOND, 1_000_000)
    return str(whole) if not rest else f"{whole}.{rest:06d}".rstrip("0")


def _grouped_call(select: exp.Select) -> exp.Expr | None:
    calls = [group for group in group_expressions(select, None) if is_window_call(group)]
    return calls[0] if len(calls) == 1 else None


def _names_window(item: exp.Expr) -> bool:
    return isinstance(item, exp.Column) and not item.table and str(item.name).lower() in _FIELDS


def _spelt(node: exp.Expr, call: exp.Expr, taken: set[str]) -> exp.Expr:
    """A copy in which `_window_start`, `window.start` and `window` stand for the call in GROUP BY."""
    word = function_name(call)

    def meant(column: exp.Column) -> exp.Expr | None:
        table, name = str(column.table or "").lower(), str(column.name).lower()
        if not table and name in _FIELDS:
            return field_of(call, _FIELDS[name])
        if word in taken:
            return None
        if table == word and name in (START, END):
            return field_of(call, name)
        return call.copy() if not table and name == word else None

    def read(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column):
            return meant(part) or part
        return part if isinstance(part, exp.Query) else with_children(part, read)

    return read(node)


def _as_named(new: exp.Expr, old: exp.Expr) -> exp.Expr:
    """A changed select item under the name it had."""
    renamed = isinstance(old, exp.Column) and not isinstance(new, exp.Column | exp.Alias)
    return alias(new, str(old.name)) if renamed else new


def _length(argument: exp.Expr) -> timedelta | None:
    bare = without_parentheses(argument)
    if not isinstance(bare, exp.Literal) or not bare.is_string:
        return None
    try:
        return parse_duration(str(bare.this))
    except VelostreamError:
        return None


def _option(options: Sequence[OptionValue], name: str) -> OptionValue | None:
    return next((option for option in options if option.name.lower() == name), None)


def _wrong(option: OptionValue | None, expected: str, text: str) -> SqlError:
    name, value, place = (option.name, option.value, option.place) if option else ("", "", None)
    where = pointer(place, text) if place is not None else {}
    return OptionError.value(name, value, expected=expected, **where)
