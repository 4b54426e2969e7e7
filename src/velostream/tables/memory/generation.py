"""The rows of a table with their whole kept history: when each came, when it went.

A row stands at a position that never changes within a generation, and rows stand in the order they came. So the rows
added at or before number n are the first ones, as many as the journal says, and of these a reader of n sees the row at
position p exactly when `n < removed[p]`, the number of the commit that removed it. Commits after n change
nothing of that, so readers need no lock and no copy.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from velostream.tables.memory.chunks import ORDINARY, ChunkPolicy, Chunks
from velostream.tables.memory.column_index import ColumnIndex, key_picker
from velostream.tables.memory.growable import GrowableIntegers, Integers
from velostream.tables.memory.hashed import HashedKeys, key_hasher
from velostream.tables.memory.index import KeyDictionary, KeyHashes
from velostream.tables.memory.journal import ALIVE, Journal, RowIds
from velostream.tables.memory.keys import as_array, key_values
from velostream.tables.memory.spill import mapped_batch, mapped_index
from velostream.tables.memory.tail import MOST_ROWS, Patch, TailedChunks, Values

_WORTH_HASHING = 256
"""Fewer keys are looked up one by one."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a table keeps its rows."""

    chunks: ChunkPolicy = ORDINARY
    hashed_keys: bool = False
    """Whether the memory a key takes counts more than the speed of finding it."""
    timed: bool = False
    """Whether the time of its commit is kept with each row."""


_ORDINARY = Form()


@dataclass(frozen=True, slots=True)
class Delta:
    """What one commit does to one table: rows added, and the positions of rows removed."""

    rows: pa.Table
    removed: Integers
    keys: Sequence[Hashable] | None = None
    """Keys of the rows added, in a keyed table."""
    olders: Integers | None = None
    """The rows that had those keys before, if that is known; -1 where it isn't."""

    def __bool__(self) -> bool:
        return bool(self.rows.num_rows or len(self.removed))


class Changed(NamedTuple):
    """How many rows a commit added to and removed from a table."""

    added: int
    removed: int


class RowDelta(NamedTuple):
    """Like `Delta`, of a few rows as Python values."""

    rows: Sequence[Values | Patch] = ()
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
    added_at: Integers | None
    """When each row was committed, in microseconds; None where nobody needs to know."""
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
        form: Form = _ORDINARY,
    ) -> None:
        self.schema = schema
        self.key = tuple(key)
        self.floor = floor
        self.form = form
        self.stored = TailedChunks(Chunks(schema, form.chunks))
        self.removed = GrowableIntegers()
        self.added_at = GrowableIntegers() if form.timed else None
        """When each row was committed, in microseconds, never descending; for tables whose rows leave by age."""
        self.ids = RowIds()
        self.journal = Journal(version=version)
        self.keys = self._key_index() if key else None
        self.secondary: dict[tuple[str, ...], ColumnIndex] = {}
        self._key_places = [schema.get_field_index(name) for name in key]
        self._key_of = key_picker(pa.schema([schema.field(name) for name in key]), self.key)
        self._key_of_row = key_picker(schema, self.key)
        self.content: HashedKeys | None = None
        """All rows by all their values; made when rows of a bag are first removed by value."""
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
        added_at: Integers | None = None,
        form: Form = _ORDINARY,
    ) -> Generation:
        """A generation out of all its rows and the numbers of their commits, in one go.

        `added`, `removed` and `added_at` are numbers for each row, `renumbered` and `next_id` as in `RowIds`;
        `removals` are further rows removed, by id, with the number of the commit that did.
        """
        generation = cls(schema, key, floor=floor, version=floor_version, form=form)
        in_order = len(renumbered) == next_id and (not next_id or int(renumbered[-1]) == next_id - 1)
        generation.ids = RowIds() if in_order else RowIds(renumbered, next_id=next_id)
        if removals:
            ids = np.concatenate([ids for _, ids in removals])
            numbers = np.repeat([number for number, _ in removals], [len(ids) for _, ids in removals])
            removed[generation.ids.positions(ids)] = numbers
        if form.timed and added_at is not None:
            generation.added_at = GrowableIntegers(np.maximum.accumulate(added_at))
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
        self._note_time(count)
        self.journal.append(sequence, row_end=self.length, removed=delta.removed)
        if not count:
            return
        if self.keys is not None:
            keys = key_values(delta.rows, self.key) if delta.keys is None else delta.keys
            self.keys.add(keys, start, self.stored.chunks, delta.olders)
        for index in self.secondary.values():
            index.grow(self.stored, self.length)

    def apply_rows(self, sequence: int, delta: RowDelta) -> Changed:
        """Like `apply`."""
        rows, keys, gone = delta
        for row, key in zip(rows, keys or repeat(None), strict=False):
            self._add_row(row, key)
        removed = self.removed.view
        for position in gone:
            removed[position] = sequence
        self.alive -= len(gone)
        self.journal.append_few(sequence, self.length, gone)
        if len(self.stored.rows) >= MOST_ROWS:
            self._end_tail()
        return Changed(len(rows), len(gone))

    def apply_row(self, sequence: int, row: Values | Patch, key: Hashable, gone: tuple[int, ...] = ()) -> None:
        """Like `apply_rows`, for one row, which may replace one."""
        self._add_row(row, key)
        if gone:
            self.removed.view[gone[0]] = sequence
            self.alive -= 1
        self.journal.append_few(sequence, self.length, gone)
        if len(self.stored.rows) >= MOST_ROWS:
            self._end_tail()

    def _add_row(self, row: Values | Patch, key: Hashable) -> None:
        position = self.length
        self.stored.rows.append(row)
        self.removed.append(ALIVE)
        self.length = position + 1
        self.alive += 1
        if self.added_at is not None:
            self._note_time(1)
        if self.keys is not None:
            self.keys.add_one(key, position)

    def _end_tail(self) -> None:
        """Keep the rows of the tail as a chunk from now on."""
        self.stored = TailedChunks(self.stored.columnar())
        for index in self.secondary.values():
            index.grow(self.stored, self.length)
        if isinstance(self.keys, KeyHashes) and self.keys.wants_cover:
            self.keys.cover(self.stored.chunks)

    def _note_time(self, count: int) -> None:
        times = self.added_at
        if times is not None and count:
            before = times.view[times.length - 1] if times.length else 0
            times.extend_with(max(before, time.time_ns() // 1000), count)

    def _key_index(self) -> KeyDictionary | KeyHashes:
        hashed = HashedKeys(self.key) if HashedKeys.serves(self.schema, self.key) else None
        if hashed is None or not self.form.hashed_keys:
            return KeyDictionary(hashed)
        hash_key = key_hasher([self.schema.field(name).type for name in self.key])
        return KeyHashes(hashed, hash_key, self._key_at)

    def _key_at(self, position: int) -> Hashable:
        stored = self.stored
        if position >= stored.start:
            return self._key_of_row(stored.values_at(position))
        return self._key_of(stored.chunks.values_at(position, self._key_places))

    @property
    def chunks(self) -> Chunks:
        """All rows as columns. Call it as the writer; readers ask `stored` for what they see."""
        return self.stored.columnar(self.length)

    @property
    def nbytes(self) -> int:
        """Bytes in memory: of the columns, of the numbers beside them and, about, of the indexes."""
        indexes = [index.nbytes for index in self.secondary.values()]
        return (
            self.stored.nbytes
            + self.removed.array.nbytes
            + self.journal.nbytes
            + (0 if self.added_at is None else self.added_at.array.nbytes)
            + (0 if self.keys is None else self.keys.nbytes)
            + (0 if self.content is None else self.content.nbytes)
            + sum(indexes)
        )

    def spill(self, directory: Path) -> None:
        """Put all columns that are in memory, and the hashes of keys, into mapped files. Call it as the writer.

        Raises `OSError` when they can't be written; what isn't in files by then stays in memory.
        """
        chunks = self.chunks.merged()
        chunks = chunks.with_mapped(len(chunks.batches) - chunks.mapped, lambda batch: mapped_batch(batch, directory))
        self.stored = TailedChunks(chunks)
        if chunks.policy.compression is not None:
            chunks.policy.compression.decoded.forget()
        if isinstance(self.keys, KeyHashes):
            self.keys.cover(chunks)
            self.keys.hashed.spill(lambda index: mapped_index(index, directory))
        if self.content is not None:
            self.content.spill(lambda index: mapped_index(index, directory))

    def older_than(self, cutoff: int) -> Integers:
        """Positions of the rows that are still there and were committed at or before a time in microseconds."""
        if self.added_at is None:
            return np.empty(0, dtype=np.int64)
        end = int(np.searchsorted(self.added_at.values(), cutoff, side="right"))
        return np.flatnonzero(self.removed.array[:end] == ALIVE)

    @property
    def oldest_at(self) -> int | None:
        """When the oldest row that is still there was committed; None without rows, or where nobody needs to know."""
        if self.added_at is None or not self.alive:
            return None
        return self.added_at.view[int(np.argmax(self.removed.values() == ALIVE))]

    def contents(self) -> Contents:
        """What there is now, for writing it down while commits go on. Call it as the writer."""
        return Contents(
            self.chunks,
            self.ids,
            self.removed.values(),
            self.ids.next_id(self.length),
            None if self.added_at is None else self.added_at.values(),
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
        known = (positions >= 0).nonzero()[0]
        gone = self.removed.array[positions[known]] != ALIVE
        positions[known[gone]] = -1
        return positions

    def alive_positions(self) -> Integers:
        """Positions of the rows of the newest commit, published or not."""
        return np.flatnonzero(self.removed.values() == ALIVE)

    def index_on(self, columns: tuple[str, ...]) -> ColumnIndex:
        """The index over these columns with all rows, made now if there is none. Call it as the writer."""
        known = self.secondary.get(columns)
        index = ColumnIndex(self.schema, columns) if known is None else known
        index.grow(self.stored, self.length)
        if known is None:
            self.secondary = {**self.secondary, columns: index}
        return index

    def drop_index(self, columns: tuple[str, ...]) -> None:
        """Call it as the writer."""
        self.secondary = {kept: index for kept, index in self.secondary.items() if kept != columns}

    def content_index(self) -> HashedKeys:
        """The rows by all their values, made now if there is no such index. Call it as the writer."""
        if self.content is None:
            self.content = HashedKeys(self.schema.names)
        self.content.grow(self.chunks, self.length)
        return self.content

    def with_columns(self, schema: pa.Schema) -> Generation:
        """The same rows under the same numbers, with further columns at the end that are NULL in all of them.

        This one stays as it is for its readers, and takes no more commits.
        """
        wider = Generation(schema, self.key, floor=self.floor, form=self.form)
        wider.stored = TailedChunks(self.chunks.with_columns(schema))
        wider.removed, wider.added_at = self.removed, self.added_at
        wider.ids, wider.journal = self.ids, self.journal
        wider.length, wider.alive = self.length, self.alive
        wider.secondary = self.secondary
        if isinstance(self.keys, KeyDictionary):
            wider.keys = self.keys
        elif isinstance(wider.keys, KeyHashes):
            wider.keys.cover(wider.stored.chunks)
        return wider

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
            form=self.form,
        )
        fresh.stored = TailedChunks(self.chunks.filtered(kept))
        fresh.removed = GrowableIntegers(self.removed.values()[kept])
        if self.added_at is not None:
            fresh.added_at = GrowableIntegers(self.added_at.values()[kept])
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
