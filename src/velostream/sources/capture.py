"""What sources that follow a database's log share: their options, changed rows by column, and what becomes of them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from velostream.errors import FurtherColumnsError, OptionError, SourceError, present
from velostream.model.change import JsonValue, may_be_added
from velostream.model.options import Option, Options, OptionType
from velostream.sources.base import Emits, Offset, Partition, Replay, SourceCapabilities
from velostream.sources.database import ReadingMode

if TYPE_CHECKING:
    from velostream.model.schema import Schema
    from velostream.sources.database import DatabaseSource

FALLBACK = Option(
    "cdc.fallback",
    "where the log can't be followed: none fails, poll reads everything again and again meanwhile",
    OptionType.CHOICE,
    "none",
    ("none", "poll"),
)
CAPTURE_OPTIONS = (
    Option("cdc.start.position", "another name for cdc.start"),
    Option(
        "cdc.on.gap",
        "when the log doesn't tell what was changed: fail, or read again",
        OptionType.CHOICE,
        "fail",
        ("fail", "snapshot"),
    ),
    FALLBACK,
    Option(
        "schema.evolution",
        "when the table gets a column: leave it out with a warning, fail, or add it",
        OptionType.CHOICE,
        "ignore",
        ("add", "fail", "ignore"),
    ),
)
"""Those of every kind that is followed by its log."""

_REFUSED = (
    *("query", "where", "order.by", "limit", "incremental.column", "poll.query"),
    *("loading.bulk.max_records", "loading.bulk.max_duration"),
)


class LogCapture(ReadingMode):
    """A table by its log: what is there at a moment, then every transaction after it."""

    capabilities = SourceCapabilities(emits=Emits.CHANGES, replay=Replay.UNTIL_COMMIT, incremental=True, follows=True)
    poll_interval = timedelta(milliseconds=100)

    def __init__(self, source: DatabaseSource) -> None:
        refuse_what_a_log_ignores(source.settings)
        self._tells_of = source
        self._on_columns = source.settings.text("schema.evolution")
        self._lacks_values: dict[tuple[str, ...], bool] = {}
        """Whether rows that were loaded with these columns have values of others."""

    def have_values(self, columns: Sequence[str]) -> bool:
        """Whether rows may have values of these columns though nobody has written any since they came: a default."""
        return False

    @abstractmethod
    def check_again(self) -> None:
        """Have `check` ask the database, whatever it answered before."""

    def note_new(self, told: Iterable[str], schema: Schema, *, left_out: Iterable[str] = ()) -> None:
        """Of the columns that the log tells, those that came later are named in a warning, or end the reading: the
        statement was planned without them. `left_out` are those that it doesn't take though they were there.
        """
        shown = self._tells_of.selection.shown
        found = sorted({*told} - {*schema.names, *left_out})
        if self._on_columns == "add" and any(may_be_added(name, schema) for name in found):
            self.check_loaded(schema, anew=True)
        if found and self._on_columns == "fail":
            listed = ", ".join(f'"{name}"' for name in found)
            raise SourceError.unexpected_field(
                f'table "{shown}" has another column since its statement was created',
                detail=f"{listed}; schema.evolution is fail",
            )
        self.warn(f'column "{name}" of {shown} is new; CREATE OR REPLACE takes it in' for name in found)

    def check_loaded(self, schema: Schema, *, anew: bool = False) -> None:
        """Raise `FurtherColumnsError` for columns of the table that are to be added to the schema that is read.
        `anew`: there are some that it did not have when it was asked last.
        """
        if self._on_columns != "add":
            return
        columns = present(self._tells_of.discovered(anew=anew)).columns
        further = [column for column in columns if may_be_added(column.name, schema)]
        if further:
            raise FurtherColumnsError.of((column.name, column.sql_type) for column in further)

    def columns_loaded(self) -> dict[str, JsonValue]:
        """What an offset says of the columns that its load has read, where others are to be added."""
        return {"columns": list(present(self._tells_of.discovered()).names)} if self._on_columns == "add" else {}

    def lacks_values(self, start: Any) -> bool:
        """Whether rows that were loaded have values in columns that have been added since, so that they are to be read
        again. Asked of every position; what the load of a position has read stands in it.
        """
        if self._on_columns != "add" or "columns" not in start:
            return False
        known = tuple(start["columns"])
        if known not in self._lacks_values:
            later = [name for name in present(self._tells_of.discovered()).names if name not in known]
            self._lacks_values[known] = bool(later) and self.have_values(later)
        return self._lacks_values[known]

    def warn(self, warnings: Iterable[str]) -> None:
        """Say what has not been said yet."""
        source = self._tells_of
        source.warnings += tuple(warning for warning in warnings if warning not in source.warnings)


def seconds_since(moment: float) -> float:
    """How long ago a server did something, by its clock and ours."""
    return max(0.0, time.time() - moment)


@dataclass
class ChangedRows:
    """Changes of one table between two truncations, by column; in the order of the log."""

    truncated: bool
    """Whether all rows that were there before are gone."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    signs: list[int] = field(default_factory=list)
    """1: the row is there now; -1: the one of this key is gone, or this one where the table has no key."""
    unchanged: dict[int, list[str]] = field(default_factory=dict)
    """By row, which columns keep the values they had; an empty list marks the first half of a key's change."""

    def add(self, values: dict[str, Any], sign: int) -> None:
        count = len(self.signs)
        for name, value in values.items():
            column = self.columns.get(name)
            if column is None:
                # A column that the table has had since a moment ago.
                column = self.columns[name] = [None] * count
            column.append(value)
        self.signs.append(sign)
        if len(values) < len(self.columns):
            for column in self.columns.values():
                if len(column) == count:
                    column.append(None)

    def cut(self, count: int) -> None:
        """Take back all but the first changes."""
        for column in (*self.columns.values(), self.signs):
            del column[count:]
        self.unchanged = {index: names for index, names in self.unchanged.items() if index < count}


def refuse_what_a_log_ignores(settings: Options) -> None:
    """Raise `OptionError` for options that narrow down what is read, or have a load begin in the middle of the log."""
    for name in _REFUSED:
        if name in settings:
            raise OptionError(
                f'option "{name}" can\'t be combined with "cdc"',
                hint="all changes are taken from the log: write the condition into the SELECT",
            )
    if place_written(settings) is not None:
        refuse_load(settings)


def refuse_what_only_a_log_tells(settings: Options) -> None:
    """Raise `OptionError` for what a source without `cdc` would not notice."""
    for name, value in (("schema.evolution", "ignore"), ("cdc.fallback", "none")):
        if settings.text(name) not in (None, value):
            raise OptionError(f'option "{name}" needs "cdc"', hint="WITH ('cdc' = 'true')", code="invalid-option")


def place_written(settings: Options) -> str | None:
    """Where the log is to be followed from, as the options say."""
    return settings.text("cdc.start") or settings.text("cdc.start.position")


def refuse_load(settings: Options) -> None:
    """Raise `OptionError` where rows are to be loaded although a place to begin at is given."""
    if settings.text("initial.load") != "none":
        raise OptionError(
            "a place in the log to begin at needs initial.load = none",
            detail="with a load, the log is followed from the load's own place on",
            hint="WITH ('initial.load' = 'none')",
            code="invalid-option",
        )


def partitions_of(pieces: Sequence[ChangedRows], start: Offset, end: Offset) -> list[Partition]:
    """A truncation replaces all by nothing; `number` says which of the pieces the rows of a partition are."""
    return [
        Partition({"start": start, "end": end, "number": number if part == "rows" else None}, replaces=part != "rows")
        for number, piece in enumerate(pieces)
        for part in _parts(piece)
    ]


def _parts(piece: ChangedRows) -> Iterator[str]:
    if piece.truncated:
        yield "truncation"
    if piece.signs:
        yield "rows"
