"""What sources that follow a database's log share: changed rows by column, and how they become partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from velostream.errors import OptionError
from velostream.model.options import Options
from velostream.sources.base import Offset, Partition

_REFUSED = (
    *("query", "where", "order.by", "limit", "incremental.column", "poll.query"),
    *("loading.bulk.max_records", "loading.bulk.max_duration"),
)


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
