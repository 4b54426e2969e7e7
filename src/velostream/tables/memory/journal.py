"""What each commit did to a table's rows, and names for rows that outlive their positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from velostream.tables.memory.growable import GrowableIntegers, Integers

ALIVE = int(np.iinfo(np.int64).max)
"""Number of the commit that removed a row which is still there."""


class Journal:
    """Which rows each kept commit added and removed; one entry per commit that changed the table."""

    def __init__(self, *, version: int = 0, first_row: int = 0) -> None:
        self.sequences = GrowableIntegers(np.array([version], dtype=np.int64))
        """The first entry stands for all that was before the history kept."""
        self.row_ends = GrowableIntegers(np.array([first_row], dtype=np.int64))
        self.removed_ends = GrowableIntegers(np.array([0], dtype=np.int64))
        self.removed = GrowableIntegers()

    @classmethod
    def of(cls, added: Integers, removed: Integers, *, floor: int, version: int) -> Journal:
        """The entries after `floor`, from what each row says of its commits. Rows stand in the order they came."""
        journal = cls(version=version, first_row=int(np.searchsorted(added, floor, side="right")))
        gone = np.flatnonzero((removed > floor) & (removed != ALIVE))
        gone = gone[np.argsort(removed[gone], kind="stable")]
        numbers = np.union1d(added[added > floor], removed[gone])
        journal.removed.extend(gone)
        journal.row_ends.extend(np.searchsorted(added, numbers, side="right"))
        journal.removed_ends.extend(np.searchsorted(removed[gone], numbers, side="right"))
        journal.sequences.extend(numbers)
        return journal

    def append(self, sequence: int, *, row_end: int, removed: Integers) -> None:
        self.removed.extend(removed)
        self.row_ends.append(row_end)
        self.removed_ends.append(len(self.removed))
        self.sequences.append(sequence)

    def append_few(self, sequence: int, row_end: int, removed: Sequence[int]) -> None:
        """Like `append`, for a handful of rows removed."""
        gone = self.removed
        for position in removed:
            gone.append(position)
        sequences, row_ends, removed_ends = self.sequences, self.row_ends, self.removed_ends
        entry = sequences.length
        # The three have always been of one length, so they need more room at the same time.
        if entry == len(sequences.view):
            for numbers in (sequences, row_ends, removed_ends):
                numbers.reserve(1)
        row_ends.view[entry] = row_end
        removed_ends.view[entry] = gone.length
        sequences.view[entry] = sequence
        row_ends.length = removed_ends.length = sequences.length = entry + 1

    def entry_at(self, sequence: int) -> int:
        """Number of the last entry at or before a sequence number."""
        last = self.sequences.length - 1
        if self.sequences.view[last] <= sequence:
            return last
        return max(0, int(np.searchsorted(self.sequences.values(), sequence, side="right")) - 1)

    def version_at(self, sequence: int) -> int:
        return self.sequences.view[self.entry_at(sequence)]

    def nth_last(self, count: int) -> int:
        """Sequence number of the entry that many before the last; of the first one kept if there are fewer."""
        return int(self.sequences.array[max(0, len(self) - count)])

    def removed_between(self, first: int, last: int) -> Integers:
        """Positions removed by the entries after `first` up to `last`."""
        ends = self.removed_ends.array
        return self.removed.array[ends[first] : ends[last]]

    def removed_until(self, sequence: int) -> int:
        """How many rows were removed at or before a sequence number."""
        return self.removed_ends.view[self.entry_at(sequence)]

    def after(self, floor: int, *, rows_before: Integers, new_position: Integers) -> Journal:
        """The entries after `floor`, for rows renumbered: `rows_before[p]` of those before p were kept, p itself (if it
        was) is now at `new_position[p]`.
        """
        entry = self.entry_at(floor)
        first_removed = int(self.removed_ends.array[entry])
        fresh = Journal()
        fresh.sequences = GrowableIntegers(self.sequences.values()[entry:])
        fresh.row_ends = GrowableIntegers(rows_before[self.row_ends.values()[entry:]])
        fresh.removed_ends = GrowableIntegers(self.removed_ends.values()[entry:] - first_removed)
        fresh.removed = GrowableIntegers(new_position[self.removed.values()[first_removed:]])
        return fresh

    @property
    def nbytes(self) -> int:
        return sum(part.array.nbytes for part in (self.sequences, self.row_ends, self.removed_ends, self.removed))

    def __len__(self) -> int:
        return len(self.sequences) - 1


class RowIds:
    """Names for rows that outlive a generation: a row's id is how many rows the table was given before it.

    The log names removed rows by id, so that replaying it doesn't depend on when rows were renumbered.
    """

    def __init__(self, renumbered: Integers | None = None, *, next_id: int = 0) -> None:
        self._renumbered = np.empty(0, dtype=np.int64) if renumbered is None else renumbered
        self._next_id = next_id
        """Id of the first row after the renumbered ones; from there ids and positions count up together."""

    def of_positions(self, positions: Integers) -> Integers:
        split = len(self._renumbered)
        ids = positions - split + self._next_id
        old = positions < split
        ids[old] = self._renumbered[positions[old]]
        return ids

    def positions(self, ids: Integers) -> Integers:
        split = len(self._renumbered)
        positions = ids - self._next_id + split
        old = ids < self._next_id
        positions[old] = np.searchsorted(self._renumbered, ids[old])
        return positions

    def next_id(self, length: int) -> int:
        return length - len(self._renumbered) + self._next_id
