"""Where the rows of a key are: dictionaries from key to positions, kept up as rows are added.

Nothing is ever taken out: a removed row is passed over because its reader doesn't see it. So readers need no lock,
and an older snapshot finds what it saw.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat

import numpy as np

from velostream.tables.memory.growable import Integers


class KeyIndex:
    """The primary key: key to its newest row, and from a row to the one that had its key before."""

    __slots__ = ("newest", "previous")

    def __init__(self) -> None:
        self.newest: dict[Hashable, int] = {}
        self.previous: dict[int, int] = {}

    def add(self, keys: Sequence[Hashable], start: int) -> None:
        """Rows with these keys now stand at `start` and after; a key may not come twice."""
        newest = self.newest
        if newest:
            for position, older in enumerate(map(newest.get, keys), start):
                if older is not None:
                    self.previous[position] = older
        newest.update(zip(keys, range(start, start + len(keys)), strict=True))

    def add_few(self, keys: Iterable[Hashable], start: int) -> None:
        """Like `add` for a handful of keys."""
        newest = self.newest
        for position, key in enumerate(keys, start):
            older = newest.get(key)
            if older is not None:
                self.previous[position] = older
            newest[key] = position

    def add_history(self, keys: Sequence[Hashable], start: int) -> None:
        """Like `add` for rows of several commits at once, in which a key may come again."""
        newest, previous = self.newest, self.previous
        if not newest:
            self.newest = dict(zip(keys, range(start, start + len(keys)), strict=True))
            if len(self.newest) == len(keys):
                return
            self.newest = newest
        for position, key in enumerate(keys, start):
            older = newest.get(key)
            if older is not None:
                previous[position] = older
            newest[key] = position

    def positions(self, keys: Sequence[Hashable]) -> Integers:
        """The newest row of each key, alive or not; -1 where there never was one."""
        return np.fromiter(map(self.newest.get, keys, repeat(-1)), dtype=np.int64, count=len(keys))

    def renumbered(self, new_position: Integers) -> KeyIndex:
        """The index over the rows kept, at their new positions (`new_position` is -1 for the others)."""
        renumbered = KeyIndex()
        moved = new_position.tolist()
        renumbered.newest = {key: moved[old] for key, old in self.newest.items() if moved[old] >= 0}
        if self.previous:
            moves = ((moved[row], moved[older]) for row, older in self.previous.items())
            renumbered.previous = {row: older for row, older in moves if row >= 0 and older >= 0}
        return renumbered


class PositionIndex:
    """A value to all rows that have or had it, in the order they came. NULL is a value like any other here."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: dict[Hashable, int | list[int]] = {}
        """A single position is kept bare, which spares a list for every distinct value."""

    def add(self, values: Iterable[Hashable], start: int) -> None:
        rows = self.rows
        for position, value in enumerate(values, start):
            found = rows.setdefault(value, position)
            if isinstance(found, list):
                found.append(position)
            elif found != position:
                rows[value] = [found, position]

    def find(self, value: Hashable) -> Sequence[int]:
        found = self.rows.get(value)
        if found is None:
            return ()
        return found.copy() if isinstance(found, list) else (found,)

    def find_all(self, values: Iterable[Hashable]) -> tuple[Integers, Integers]:
        """For a batch of values: positions, and beside each the number of the value it answers; grouped by value."""
        positions: list[int] = []
        answered: list[int] = []
        get = self.rows.get
        for number, value in enumerate(values):
            found = get(value)
            if found is None:
                continue
            if isinstance(found, list):
                before = len(positions)
                positions.extend(found)
                answered.extend(repeat(number, len(positions) - before))
            else:
                positions.append(found)
                answered.append(number)
        return np.array(positions, dtype=np.int64), np.array(answered, dtype=np.int64)

    @property
    def distinct(self) -> int:
        return len(self.rows)
