"""Options of tables and of queries. Those of sources and sinks are theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from velostream.errors import OptionError
from velostream.model.options import Option, Options, OptionType
from velostream.sql.statements import OptionValue
from velostream.tables.memory.table import MemoryTable

TABLE_OPTIONS = (
    Option("key", "columns of the key, comma-separated"),
    Option("extension", "kind of store", OptionType.CHOICE, "inmemory", ("inmemory",)),
    Option("connector", "another word for extension", OptionType.CHOICE, None, ("inmemory",)),
    *MemoryTable.options,
)

QUERY_OPTIONS = (
    Option("table.wait.timeout", "how long a query waits for the tables it reads", OptionType.DURATION, "5m"),
    Option("table.wait.on.timeout", "what happens then", OptionType.CHOICE, "fail", ("fail", "start")),
    Option("checkpoint", "folder of the state of an aggregate"),
)

STREAM_OPTIONS = (Option("source", "the URI behind CREATE STREAM"),)


def query_options(given: Iterable[OptionValue], *, text: str = "") -> Options:
    """Those of a statement's options that the engine itself reads, checked."""
    known = (*TABLE_OPTIONS, *QUERY_OPTIONS)
    values = tuple(given)
    with pointing_at(values, text=text):
        return Options({o.name: o.value for o in values if any(option.covers(o.name) for option in known)}, known)


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
    return {o.name: o.value for o in given if any(option.covers(o.name) for option in MemoryTable.options)}


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
