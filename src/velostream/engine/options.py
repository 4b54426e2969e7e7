"""Options of tables and of queries. Those of sources and sinks are theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from velostream import plugins
from velostream.engine.trigger import Trigger
from velostream.errors import NotFoundError, OptionError
from velostream.model.options import Option, Options, OptionType
from velostream.plugins import Group
from velostream.sql.statements import OptionValue
from velostream.tables.base import Table
from velostream.tables.cache import LAYER_OPTIONS
from velostream.tables.memory.table import MemoryTable

MEMORY = MemoryTable.kind.lower()
"""The kind of a table whose statement names none."""

_TABLE_OPTIONS = (
    Option("key", "columns of the key, comma-separated"),
    Option("extension", "kind of store", default=MemoryTable.kind),
    Option("connector", "another word for extension"),
    Option("version.column", "the column that says from when a row is, for ASOF JOIN without MATCH_CONDITION"),
)

STORE_OPTIONS = (
    Option("data_source", "name of an address in the connection's configuration: data_source.<name>"),
    Option("poll.interval", "how often a view looks for changes by other programs", OptionType.DURATION, "30s"),
    *LAYER_OPTIONS,
)
"""What every kind of table outside of our own log understands, beside its own options."""

QUERY_OPTIONS = (
    Option("table.wait.timeout", "how long a query waits for the tables it reads", OptionType.DURATION, "5m"),
    Option("table.wait.on.timeout", "what happens then", OptionType.CHOICE, "fail", ("fail", "start")),
    Option("checkpoint", "folder of the state of an aggregate"),
    Option("trigger", "how often it takes in what has come: at most every so often, once, or in realtime"),
    Option(
        "join.missing",
        "what becomes of a stream's row when a lookup finds no row (default: nulls for LEFT, skip for INNER)",
        OptionType.CHOICE,
        None,
        ("nulls", "skip", "defaults", "retry", "fail"),
    ),
    Option("join.missing.default.*", "value of a column where no row was found, for defaults"),
    Option("join.missing.retry.max", "how often a batch with a missing row is tried again", OptionType.INTEGER, "5"),
    Option("join.missing.retry.delay", "how long to wait before that", OptionType.DURATION, "1s"),
    Option("join.missing.retry.multiplier", "by how much the wait grows every time", OptionType.NUMBER, "2"),
    Option("event.time.field", "the column of the event time, for WINDOW without one"),
    Option("watermark", "how late a row may be before its window is over", OptionType.DURATION, "0s"),
    Option(
        "late.data",
        "what becomes of rows whose window is over",
        OptionType.CHOICE,
        "drop",
        ("drop", "dead_letter", "update"),
    ),
)

STREAM_OPTIONS = (Option("source", "the URI behind CREATE STREAM"),)


def table_kind(given: Iterable[OptionValue], *, text: str = "") -> str:
    """The kind of table that a statement's options name, in lower case; `OptionError` for one that isn't there."""
    named = [one for one in given if one.name in ("extension", "connector")]
    if not named:
        return MEMORY
    first = named[0]
    other = next((one for one in named if one.value.lower() != first.value.lower()), None)
    place: dict[str, Any] = {"line": first.place.line, "column": first.place.column, "text": text or None}
    if other is not None:
        raise OptionError(
            f'option "{first.name}" says "{first.value}" and option "{other.name}" "{other.value}"',
            detail="both name the kind of the table",
            hint="give one of them",
            **place,
        )
    try:
        plugins.load(Group.TABLES, first.value)
    except NotFoundError as error:
        known = "one of " + ", ".join(plugins.names(Group.TABLES))
        wrong = OptionError.value(first.name, first.value, expected=known, **place)
        wrong.hint = error.hint or wrong.hint
        raise wrong from error
    return first.value.lower()


def table_class(kind: str) -> type[Table]:
    """The class of a kind that `table_kind` gave."""
    found: type[Table] = plugins.load(Group.TABLES, kind)
    return found


def table_options(given: Iterable[OptionValue], *, text: str = "") -> tuple[Option, ...]:
    """The options a table may have that is of the kind these ones name."""
    kind = table_kind(given, text=text)
    own = table_class(kind).options
    more = [] if kind == MEMORY else [option for option in STORE_OPTIONS if option.name not in {o.name for o in own}]
    return (*_TABLE_OPTIONS, *own, *more)


def query_options(given: Iterable[OptionValue], *, text: str = "", realtime: bool = False) -> Options:
    """Those of a statement's options that the engine itself reads, checked; `realtime`: it may ask for that trigger."""
    values = tuple(given)
    known = (*table_options(values, text=text), *QUERY_OPTIONS)
    with pointing_at(values, text=text):
        options = Options({o.name: o.value for o in values if any(option.covers(o.name) for option in known)}, known)
        trigger = Trigger.of(options)
        if not realtime:
            trigger.refuse_realtime()
        return options


def trigger_of(given: Iterable[OptionValue]) -> Trigger:
    """The trigger that a statement's options name; the last one where several do, as of every option."""
    return Trigger.of(Options({one.name: one.value for one in given if one.name == "trigger"}, QUERY_OPTIONS))


@contextmanager
def pointing_at(given: Iterable[OptionValue], *, text: str) -> Iterator[None]:
    """Within, an `OptionError` gets the place of the option it names."""
    try:
        yield
    except OptionError as error:
        one = next((one for one in given if f'"{one.name}"' in error.message), None)
        if one is None or error.text is not None:
            raise
        raise OptionError(
            error.message,
            detail=error.detail,
            hint=error.hint,
            code=error.code,
            line=one.place.line,
            column=one.place.column,
            width=len(one.name) + 2,
            text=text,
        ) from error


def store_options(given: Iterable[OptionValue]) -> dict[str, str]:
    """Those of a statement's options that its table keeps."""
    values = tuple(given)
    known = table_options(values)[len(_TABLE_OPTIONS) :]
    return {o.name: o.value for o in values if any(option.covers(o.name) for option in known)}


def refuse_unknown(given: Iterable[OptionValue], known: Iterable[Option], *, text: str) -> None:
    """Raise `OptionError`, pointing at it, for the first option that nothing reads."""
    options = tuple(known)
    for one in given:
        if not any(option.covers(one.name) for option in options):
            raise OptionError.unknown(
                one.name,
                known=(option.name for option in options),
                line=one.place.line,
                column=one.place.column,
                text=text,
            )
