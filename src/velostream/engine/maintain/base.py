"""The door of maintenance: what a view is brought along by, and how it is asked to."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa

from velostream.engine.catalog import planned_columns
from velostream.engine.maintain.numbering import Numberings
from velostream.model.change import JsonValue, Write, signed

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.tables.base import Table
    from velostream.tables.memory.growable import Integers
    from velostream.tables.memory.snapshot import MemorySnapshot


class Wave:
    """One round of the loop: the state that every view is brought to. What views share is read once."""

    def __init__(self, context: EngineContext, number: int, maintained: frozenset[str]) -> None:
        self._context = context
        self._number = number
        self._maintained = maintained
        self.numberings = Numberings()
        self._changes: dict[tuple[str, int, int], pa.Table] = {}
        self._reading = threading.Lock()

    def number_of(self, entry: Entry) -> int | None:
        """The commit number to read an input at; None, the newest, for a view, which only the loop writes."""
        return None if entry.id in self._maintained else self._number

    def snapshot(self, entry: Entry) -> MemorySnapshot:
        return self._context.memory_table(entry.id).snapshot(self.number_of(entry))

    def changes(self, entry: Entry, since: int) -> pa.Table:
        """The signed changes of an input after a version, in the input's own columns.

        Raises `TableError` (`changes-expired`) when they aren't kept any more.
        """
        until = self.snapshot(entry).version
        place = (entry.id, since, until)
        with self._reading:
            if place not in self._changes:
                self._changes[place] = self._context.memory_table(entry.id).changes(since, self.number_of(entry)).arrow
            return as_planned(self._changes[place], entry)


class FoundRows(Protocol):
    """The rows of an input at one time, for those who look them up by values."""

    def positions_of(self, columns: tuple[str, ...], values: Sequence[Hashable]) -> Integers: ...

    def take(self, positions: Integers, columns: Sequence[str] | None = None) -> pa.Table: ...

    def scan(self) -> pa.Table: ...


@dataclass(frozen=True)
class Movement:
    """From which versions of its inputs to which state a view is to be brought."""

    must_follow: ClassVar[bool] = False
    """Whether changes have to be followed, whatever that costs: not all rows are there to compute from."""

    wave: Wave
    inputs: Mapping[str, Entry]
    """By relation name."""
    since: Mapping[str, int] = field(default_factory=dict)
    """Versions that the view reflects, by entry id; none: it has never been computed."""

    def now(self, relation: str) -> MemorySnapshot:
        return self.wave.snapshot(self.inputs[relation])

    def before(self, relation: str, context: EngineContext) -> FoundRows:
        entry = self.inputs[relation]
        return context.memory_table(entry.id).snapshot(self.since[entry.id])

    def changes(self, relation: str) -> pa.Table:
        entry = self.inputs[relation]
        return self.wave.changes(entry, self.since[entry.id])

    def rows(self, relation: str, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of an input now, as changes from nothing."""
        entry = self.inputs[relation]
        rows = as_planned(self.now(relation).scan(columns=columns), entry)
        return signed(rows, 1)


class Maintenance(ABC):
    """How one view is brought along. Used by one thread at a time, together with the maintenance of other views."""

    follows = False
    """Whether the versions that the view reflects must stay readable, so that changes since then can be asked for."""
    forgets = False
    """Whether the view can't be computed from what is left of its inputs."""
    fingerprint = ""
    """Differs when what is stored beside the view was made by another plan, and can't be changed further."""

    @abstractmethod
    def load(self, movement: Movement) -> Sequence[tuple[Table, Write]]:
        """The writes that make the view what its query gives now, whatever it holds."""

    def advance(self, movement: Movement) -> Sequence[tuple[Table, Write]] | None:
        """The writes that bring the view from what it reflects to now; None when `load` costs less.

        Raises `TableError` (`changes-expired`) when the changes since then aren't kept; the view is loaded then.
        """
        return None

    @property
    def remembered(self) -> Mapping[str, JsonValue]:
        """What the position holds beside the versions, once the writes that were given last are committed."""
        return {}

    def recall(self, position: Mapping[str, Any]) -> None:
        """Go on from a position that was committed before a restart."""

    def settle(self) -> None:
        """The writes that were given last are committed."""


def as_planned(rows: pa.Table, entry: Entry) -> pa.Table:
    """The rows of an input without what only the fold of its source knows, and without columns that came later."""
    names = planned_columns(rows.column_names, entry)
    return rows if len(names) == rows.num_columns else rows.select(names)
