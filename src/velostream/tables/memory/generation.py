"""The rows of a table with their whole kept history: when each came, when it went.

A row stands at a position that never changes within a generation, and rows stand in the order they came. So the rows
added at or before number n are the first ones, as many as the journal says, and of these a reader of n sees the row at
position p exactly when `n < removed[p]`, the number of the commit that removed it. Commits after n change
nothing of that, so readers need no lock and no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter

import numpy as np
import pyarrow as pa

from velostream.tables.memory.chunks import ChunkPolicy, Chunks
from velostream.tables.memory.compare import row_hashes
from velostream.tables.memory.growable import GrowableIntegers, Integers
from velostream.tables.memory.hashed import HashedKeys, key_hasher
from velostream.tables.memory.index import KeyDictionary, KeyHashes, PositionIndex
from velostream.tables.memory.journal import ALIVE, Journal, RowIds
from velostream.tables.memory.keys import as_array, key_normaliser, key_values
from velostream.tables.memory.tail import MOST_ROWS, TailedChunks, Values

_ORDINARY = ChunkPolicy()
_WORTH_HASHING = 256
"""Fewer keys are looked up one by one."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one commit does to one table: rows added, and the positions of rows removed."""

    rows: pa.Table
    removed: Integers
    keys: Sequence[Hashable] | None = None
    """Keys of the rows added, in a keyed table."""

    def __bool__(self) -> bool:
        return bool(self.rows.num_rows or len(self.removed))


@dataclass(frozen=True, slots=True)
class RowDelta:
    """Like `Delta`, of a few rows as Python values."""

    rows: Sequence[Values] = ()
    keys: Sequence[Hashable] = ()
    """Keys of the rows added, in a keyed table."""
    removed: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Contents:
    """Rows and history of a generation at one moment, taken by the writer.

    Later commits may still mark rows as removed, with their own, later numbers.
    """

    chunks: Chunks
    ids: RowIds
    removed: Integers
    next_row_id: int
    _sequences: Integers
    _row_ends: Integers

    def added(self, positions: Integers) -> Integers:
        """Numbers of the commits that added rows; for rows from before the history kept, of one before it."""
        return self._sequences[np.searchsorted(self._row_ends, positions, side="right")]


class Generation:
    """One numbering of a table's rows. Written by one thread at a time; read by any.

    `floor` is the oldest sequence number that can be read: rows removed at or before it may be gone.
    """

    def __init__(
        self,
        schema: pa.Schema,
        key: Sequence[str],
        *,
        floor: int = 0,
        version: int = 0,
        policy: ChunkPolicy = _ORDINARY,
        hashed_keys: bool = False,
    ) -> None:
        self.schema = schema
        self.key = tuple(key)
        self.floor = floor
        self.hashed_keys = hashed_keys
        """Whether the memory a key takes counts more than the speed of finding it."""
        self.stored = TailedChunks(Chunks(schema, policy))
        self.removed = GrowableIntegers()
        self.ids = RowIds()
        self.journal = Journal(version=version)
        self.keys = self._key_index() if key else None
        self.secondary: dict[tuple[str, ...], PositionIndex] = {}
        self._key_places = [schema.get_field_index(name) for name in key]
        self._key_of = _picker(pa.schema([schema.field(name) for name in key]), self.key)
        self._values_of: dict[tuple[str, ...], Callable[[Values], Hashable]] = {}
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
        policy: ChunkPolicy = _ORDINARY,
        hashed_keys: bool = False,
    ) -> Generation:
        """A generation out of all its rows and the numbers of their commits, in one go.

        `added` and `removed` are numbers for each row, `renumbered` and `next_id` as in `RowIds`; `removals` are
        further rows removed, by id, with the number of the commit that did.
        """
        generation = cls(schema, key, floor=floor, version=floor_version, policy=policy, hashed_keys=hashed_keys)
        in_order = len(renumbered) == next_id and (not next_id or int(renumbered[-1]) == next_id - 1)
        generation.ids = RowIds() if in_order else RowIds(renumbered, next_id=next_id)
        if removals:
            ids = np.concatenate([ids for _, ids in removals])
            numbers = np.repeat([number for number, _ in removals], [len(ids) for _, ids in removals])
            removed[generation.ids.positions(ids)] = numbers
        generation.length = len(added)
        generation.alive = int(np.count_nonzero(removed == ALIVE))
        generation.removed = GrowableIntegers(removed)
        generation.journal = Journal.of(added, removed, floor=floor, version=floor_version)
        if rows:
            whole = pa.Table.from_batches(rows, schema)
            generation.stored = TailedChunks(generation.chunks.appended(whole))
            if isinstance(generation.keys, KeyDictionary):
                generation.keys.add_history(key_values(whole, generation.key), 0)
            elif generation.keys is not None:
                generation.keys.cover(generation.chunks)
        return generation

    def apply(self, sequence: int, delta: Delta) -> None:
        """Add and remove the rows of a commit. Not seen by readers before the sequence number is published."""
        start = self.length
        count = delta.rows.num_rows
        if count:
            self.stored = TailedChunks(self.chunks.appended(delta.rows))
            self.removed.extend_with(ALIVE, count)
        if len(delta.removed):
            self.removed.array[delta.removed] = sequence
        self.length = start + count
        self.alive += count - len(delta.removed)
        self.journal.append(sequence, row_end=self.length, removed=delta.removed)
        if not count:
            return
        if self.keys is not None:
            keys = key_values(delta.rows, self.key) if delta.keys is None else delta.keys
            self.keys.add(keys, start, self.stored.chunks)
        for columns, index in self.secondary.items():
            index.add(key_values(delta.rows, columns), start)
        if self.content is not None:
            self.content.add(row_hashes(delta.rows).tolist(), start)

    def apply_rows(self, sequence: int, delta: RowDelta) -> None:
        """Like `apply`. A bag with an index by row hash can't take rows this way."""
        start = self.length
        stored, removed = self.stored, self.removed
        for values in delta.rows:
            stored.rows.append(values)
            removed.append(ALIVE)
        for position in delta.removed:
            removed.view[position] = sequence
        self.length = start + len(delta.rows)
        self.alive += len(delta.rows) - len(delta.removed)
        self.journal.append_few(sequence, row_end=self.length, removed=delta.removed)
        if self.keys is not None:
            self.keys.add_few(delta.keys, start)
        for columns, index in self.secondary.items():
            value_of = self.values_of(columns)
            index.add(map(value_of, delta.rows), start)
        if len(stored.rows) >= MOST_ROWS:
            self.stored = TailedChunks(stored.columnar())
            if isinstance(self.keys, KeyHashes) and self.keys.wants_cover:
                self.keys.cover(self.stored.chunks)

    def _key_index(self) -> KeyDictionary | KeyHashes:
        hashed = HashedKeys(self.key) if HashedKeys.serves(self.schema, self.key) else None
        if hashed is None or not self.hashed_keys:
            return KeyDictionary(hashed)
        hash_key = key_hasher([self.schema.field(name).type for name in self.key])
        return KeyHashes(hashed, hash_key, self._key_at)

    def _key_at(self, position: int) -> Hashable:
        stored = self.stored
        if position >= stored.start:
            return self.values_of(self.key)(stored.rows[position - stored.start])
        return self._key_of(stored.chunks.values_at(position, self._key_places))

    def values_of(self, columns: tuple[str, ...]) -> Callable[[Values], Hashable]:
        """From the values of a row to what an index on these columns has them under."""
        value_of = self._values_of.get(columns)
        if value_of is None:
            value_of = self._values_of[columns] = _picker(self.schema, columns)
        return value_of

    @property
    def chunks(self) -> Chunks:
        """All rows as columns. Call it as the writer; readers ask `stored` for what they see."""
        return self.stored.columnar(self.length)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns and the numbers beside them; the indexes' dictionaries are not counted."""
        return self.stored.nbytes + self.removed.array.nbytes + self.journal.nbytes

    def contents(self) -> Contents:
        """What there is now, for writing it down while commits go on. Call it as the writer."""
        return Contents(
            self.chunks,
            self.ids,
            self.removed.values(),
            self.ids.next_id(self.length),
            self.journal.sequences.values(),
            self.journal.row_ends.values(),
        )

    def positions_of_keys(self, keys: Sequence[Hashable], rows: pa.Table) -> Integers:
        """Where the newest row of each key is, if it is still there, and else -1. Call it as the writer.

        The rows are those the keys were taken of.
        """
        if self.keys is None:
            return np.full(len(keys), -1)
        if isinstance(self.keys, KeyHashes) and len(keys) >= _WORTH_HASHING:
            self.keys.cover(self.chunks)
            arrays = [as_array(rows.column(name)) for name in self.key]
            alive = self.removed.values() == ALIVE
            pairs = self.keys.hashed.find(arrays, self.chunks, lambda found: alive[found])
            positions = np.full(len(keys), -1)
            positions[pairs.rows] = pairs.positions
            return positions
        positions = np.fromiter(map(self.keys.find, keys, repeat(-1)), dtype=np.int64, count=len(keys))
        known = np.flatnonzero(positions >= 0)
        gone = self.removed.array[positions[known]] != ALIVE
        positions[known[gone]] = -1
        return positions

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

    def drop_index(self, columns: tuple[str, ...]) -> None:
        """Call it as the writer."""
        self.secondary = {kept: index for kept, index in self.secondary.items() if kept != columns}

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
        fresh = Generation(
            self.schema,
            self.key,
            floor=floor,
            version=self.journal.version_at(floor),
            policy=self.stored.chunks.policy,
            hashed_keys=self.hashed_keys,
        )
        fresh.stored = TailedChunks(self.chunks.filtered(kept))
        fresh.removed = GrowableIntegers(self.removed.values()[kept])
        fresh.ids = RowIds(self.ids.of_positions(kept), next_id=self.ids.next_id(self.length))
        fresh.length = len(kept)
        fresh.alive = self.alive
        fresh.journal = self.journal.after(floor, rows_before=before, new_position=new_position)
        if isinstance(self.keys, KeyDictionary):
            hashed = None if self.keys.hashed is None else HashedKeys(self.key)
            fresh.keys = self.keys.renumbered(new_position, hashed)
        elif isinstance(fresh.keys, KeyHashes):
            fresh.keys.cover(fresh.stored.chunks)
        for columns in self.secondary:
            fresh.index_on(columns)
        return fresh


def _picker(schema: pa.Schema, columns: tuple[str, ...]) -> Callable[[Values], Hashable]:
    if not columns:
        return lambda _: None
    pick = itemgetter(*(schema.get_field_index(name) for name in columns))
    normalise = key_normaliser([schema.field(name).type for name in columns])
    return pick if normalise is None else lambda values: normalise(pick(values))
