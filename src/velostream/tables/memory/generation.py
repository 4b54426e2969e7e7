"""The rows of a table with their whole kept history: who added each, who removed it.

A row stands at a position that never changes within a generation. `added` and `removed` hold, per position, the
sequence number of the commit that added or removed it, so a reader of number n sees position p exactly when
`added[p] <= n < removed[p]`. Commits after n change nothing of that, so readers need no lock and no copy.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from velostream.tables.memory.chunks import Chunks
from velostream.tables.memory.compare import row_hashes
from velostream.tables.memory.growable import GrowableIntegers, Integers
from velostream.tables.memory.index import KeyIndex, PositionIndex
from velostream.tables.memory.keys import key_values

ALIVE = int(np.iinfo(np.int64).max)
"""`removed` of a row that is still there."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one commit does to one table: rows added, and the positions of rows removed."""

    rows: pa.Table
    removed: Integers
    keys: Sequence[Hashable] | None = None
    """Keys of the rows added, in a keyed table."""

    def __bool__(self) -> bool:
        return bool(self.rows.num_rows or len(self.removed))


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

    def entry_at(self, sequence: int) -> int:
        """Number of the last entry at or before a sequence number."""
        return max(0, int(np.searchsorted(self.sequences.values(), sequence, side="right")) - 1)

    def version_at(self, sequence: int) -> int:
        return int(self.sequences.array[self.entry_at(sequence)])

    def nth_last(self, count: int) -> int:
        """Sequence number of the entry that many before the last; of the first one kept if there are fewer."""
        return int(self.sequences.array[max(0, len(self) - count)])

    def removed_between(self, first: int, last: int) -> Integers:
        """Positions removed by the entries after `first` up to `last`."""
        ends = self.removed_ends.array
        return self.removed.array[ends[first] : ends[last]]

    def removed_until(self, sequence: int) -> int:
        """How many rows were removed at or before a sequence number."""
        return int(self.removed_ends.array[self.entry_at(sequence)])

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


@dataclass(frozen=True, slots=True)
class Contents:
    """Rows and history of a generation at one moment, taken by the writer.

    Later commits may still mark rows as removed, with their own, later numbers.
    """

    chunks: Chunks
    ids: RowIds
    added: Integers
    removed: Integers
    next_row_id: int


class Generation:
    """One numbering of a table's rows. Written by one thread at a time; read by any.

    `floor` is the oldest sequence number that can be read: rows removed at or before it may be gone.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str], *, floor: int = 0, version: int = 0) -> None:
        self.schema = schema
        self.key = tuple(key)
        self.floor = floor
        self.chunks = Chunks(schema)
        self.added = GrowableIntegers()
        self.removed = GrowableIntegers()
        self.ids = RowIds()
        self.journal = Journal(version=version)
        self.keys: KeyIndex | None = KeyIndex() if key else None
        self.secondary: dict[tuple[str, ...], PositionIndex] = {}
        self.content: PositionIndex | None = None
        """Row hash to positions; made when rows of a bag are first removed by value."""
        self.length = 0
        self.alive = 0

    @classmethod
    def restored(  # noqa: PLR0913 - everything a generation is made of
        cls,
        schema: pa.Schema,
        key: Sequence[str],
        *,
        rows: Sequence[pa.RecordBatch],
        renumbered: Integers,
        next_id: int,
        added: Integers,
        removed: Integers,
        removals: Sequence[tuple[int, Integers]],
        floor: int,
        floor_version: int,
    ) -> Generation:
        """A generation out of all its rows and the numbers of their commits, in one go.

        `renumbered` and `next_id` are as in `RowIds`; `removals` are rows removed, by id, with the number of the
        commit that did.
        """
        generation = cls(schema, key, floor=floor, version=floor_version)
        in_order = len(renumbered) == next_id and (not next_id or int(renumbered[-1]) == next_id - 1)
        generation.ids = RowIds() if in_order else RowIds(renumbered, next_id=next_id)
        if removals:
            ids = np.concatenate([ids for _, ids in removals])
            numbers = np.repeat([number for number, _ in removals], [len(ids) for _, ids in removals])
            removed[generation.ids.positions(ids)] = numbers
        generation.length = len(added)
        generation.alive = int(np.count_nonzero(removed == ALIVE))
        generation.added = GrowableIntegers(added)
        generation.removed = GrowableIntegers(removed)
        generation.journal = Journal.of(added, removed, floor=floor, version=floor_version)
        if rows:
            whole = pa.Table.from_batches(rows, schema)
            generation.chunks = generation.chunks.appended(whole)
            if generation.keys is not None:
                generation.keys.add_history(key_values(whole, generation.key), 0)
        return generation

    def apply(self, sequence: int, delta: Delta) -> None:
        """Add and remove the rows of a commit. Not seen by readers before the sequence number is published."""
        start = self.length
        count = delta.rows.num_rows
        if count:
            self.chunks = self.chunks.appended(delta.rows)
            self.added.extend_with(sequence, count)
            self.removed.extend_with(ALIVE, count)
        if len(delta.removed):
            self.removed.array[delta.removed] = sequence
        self.length = start + count
        self.alive += count - len(delta.removed)
        self.journal.append(sequence, row_end=self.length, removed=delta.removed)
        if not count:
            return
        if self.keys is not None:
            self.keys.add(key_values(delta.rows, self.key) if delta.keys is None else delta.keys, start)
        for columns, index in self.secondary.items():
            index.add(key_values(delta.rows, columns), start)
        if self.content is not None:
            self.content.add(row_hashes(delta.rows).tolist(), start)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns and the numbers beside them; the indexes' dictionaries are not counted."""
        return self.chunks.nbytes + self.added.array.nbytes + self.removed.array.nbytes

    def contents(self) -> Contents:
        """What there is now, for writing it down while commits go on. Call it as the writer."""
        return Contents(
            self.chunks, self.ids, self.added.values(), self.removed.values(), self.ids.next_id(self.length)
        )

    def alive_positions(self) -> Integers:
        """Positions of the rows of the newest commit, published or not."""
        return np.flatnonzero(self.removed.values() == ALIVE)

    def index_on(self, columns: tuple[str, ...]) -> PositionIndex:
        """The index over these columns, made now if there is none. Call it as the writer."""
        index = self.secondary.get(columns)
        if index is None:
            index = PositionIndex()
            if self.length:
                index.add(key_values(self.chunks.head(self.length, list(dict.fromkeys(columns))), columns), 0)
            self.secondary = {**self.secondary, columns: index}
        return index

    def content_index(self) -> PositionIndex:
        """The index by row hash, made now if there is none. Call it as the writer."""
        if self.content is None:
            index = PositionIndex()
            if self.length:
                index.add(row_hashes(self.chunks.head(self.length)).tolist(), 0)
            self.content = index
        return self.content

    def renumbered(self, floor: int) -> Generation:
        """A new generation without the rows that nobody reading `floor` or later can see. Leaves this one as it is."""
        keep_mask = self.removed.values() > floor
        kept = np.flatnonzero(keep_mask)
        before = np.concatenate(([0], np.cumsum(keep_mask)))
        new_position = np.where(keep_mask, before[:-1], -1)
        entry = self.journal.entry_at(floor)
        fresh = Generation(self.schema, self.key, floor=floor, version=self.journal.version_at(floor))
        fresh.chunks = self.chunks.filtered(kept)
        fresh.added = GrowableIntegers(self.added.values()[kept])
        fresh.removed = GrowableIntegers(self.removed.values()[kept])
        fresh.ids = RowIds(self.ids.of_positions(kept), next_id=self.ids.next_id(self.length))
        fresh.length = len(kept)
        fresh.alive = self.alive
        fresh.journal = self._journal_after(entry, before, new_position)
        if self.keys is not None:
            fresh.keys = self.keys.renumbered(new_position)
        for columns in self.secondary:
            fresh.index_on(columns)
        return fresh

    def _journal_after(self, entry: int, before: Integers, new_position: Integers) -> Journal:
        old = self.journal
        fresh = Journal()
        fresh.sequences = GrowableIntegers(old.sequences.values()[entry:])
        fresh.row_ends = GrowableIntegers(before[old.row_ends.values()[entry:]])
        first_removed = int(old.removed_ends.array[entry])
        fresh.removed_ends = GrowableIntegers(old.removed_ends.values()[entry:] - first_removed)
        fresh.removed = GrowableIntegers(new_position[old.removed.values()[first_removed:]])
        return fresh
