"""Where the rows of a key are: dictionaries from key to positions, kept up as rows are added.

Nothing is ever taken out: a removed row is passed over because its reader doesn't see it. So readers need no lock,
and an older snapshot finds what it saw.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice, repeat
from sys import getsizeof

import numpy as np

from velostream.tables.memory.chunks import Chunks
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.hashed import HashedKeys

_FEWEST_HASHED = 4096
"""Fewer new keys than that go to a dictionary first."""
_MOST_RECENT = 16384
_NO_LIMIT = 1 << 62
_SAMPLE = 1000
_FEWEST_OLDERS = 64
_NONE: Integers = np.empty(0, dtype=np.int64)
_BYTES_OF_INT = 32
_BYTES_OF_RECENT = 200


class KeyIndex(ABC):
    """The primary key: key to its newest row, and from a row to the one that had its key before.

    Written by one thread at a time, read by any.
    """

    hashed: HashedKeys | None
    """The rows by the hash of their key, for batches; None for keys that Arrow can't compare."""
    find: Callable[[Hashable, int], int]
    """From a key to its newest row, alive or not, or to the second argument; like `dict.get`."""

    @abstractmethod
    def older(self, position: int) -> int:
        """The row that had the key of a row before it; -1 if there is none."""

    @abstractmethod
    def add(self, keys: Sequence[Hashable], start: int, chunks: Chunks, olders: Integers | None = None) -> None:
        """Rows with these keys now stand at `start` and after, in these chunks; a key may not come twice.

        `olders` are their newest rows until now, if that is known; -1 where it isn't.
        """

    @abstractmethod
    def add_one(self, key: Hashable, position: int) -> None:
        """Like `add` for a single row, which may be in no chunk yet."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """About how many bytes it takes."""


class _Olders:
    """For rows that had one before them: its position. Rows are told of in ascending order.

    Written by one thread, read by any: room is made by a copy, which takes the place of what readers hold.
    """

    __slots__ = ("_array", "first", "view")

    def __init__(self) -> None:
        self.first = -1
        """The first row told of."""
        self._array: Integers = _NONE
        self.view: memoryview[int] = memoryview(self._array)  # type: ignore[arg-type]
        """For each row from the first one on: the one before it, or -1. It ends where nothing is known yet."""

    def of(self, position: int) -> int:
        view, at = self.view, position - self.first
        return view[at] if 0 <= at < len(view) else -1

    def put(self, positions: Integers, olders: Integers) -> None:
        if len(positions):
            self._reach(int(positions[0]), int(positions[-1]) + 1)
            self._array[positions - self.first] = olders

    def put_one(self, position: int, older: int) -> None:
        at = position - self.first
        if self.first < 0 or at >= len(self.view):
            self._reach(position, position + 1)
            at = position - self.first
        self.view[at] = older

    def pairs(self) -> tuple[Integers, Integers]:
        """The rows told of, and the one before each of them."""
        rows = np.flatnonzero(self._array >= 0)
        return rows + self.first, self._array[rows]

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    def _reach(self, first: int, end: int) -> None:
        if self.first < 0:
            self.first = first
        length = len(self._array)
        if end - self.first > length:
            grown: Integers = np.full(max(end - self.first, length + length // 2, _FEWEST_OLDERS), -1)
            grown[:length] = self._array
            self._array = grown
            self.view = memoryview(grown)  # type: ignore[arg-type]


class KeyDictionary(KeyIndex):
    """The fastest to ask for single keys: every key in a dictionary."""

    def __init__(self, hashed: HashedKeys | None) -> None:
        self.newest: dict[Hashable, int] = {}
        self.hashed = hashed
        self.find = self.newest.get
        self._olders = _Olders()

    def older(self, position: int) -> int:
        return self._olders.of(position)

    def add(self, keys: Sequence[Hashable], start: int, chunks: Chunks, olders: Integers | None = None) -> None:
        newest = self.newest
        if newest:
            if olders is not None and olders.min(initial=0) >= 0:
                self._olders.put(np.arange(start, start + len(keys)), olders)
            else:
                self._put_olders(start, np.fromiter(map(self.find, keys, repeat(-1)), np.int64, len(keys)))
        newest.update(zip(keys, range(start, start + len(keys)), strict=True))

    def add_one(self, key: Hashable, position: int) -> None:
        older = self.find(key, -1)
        if older >= 0:
            self._olders.put_one(position, older)
        self.newest[key] = position

    def add_history(self, keys: Sequence[Hashable], start: int) -> None:
        """Like `add` for rows of several commits at once, in which a key may come again."""
        newest = self.newest
        if not newest:
            newest.update(zip(keys, range(start, start + len(keys)), strict=True))
            if len(newest) == len(keys):
                return
            newest.clear()
        olders: list[int] = []
        for position, key in enumerate(keys, start):
            olders.append(newest.get(key, -1))
            newest[key] = position
        self._put_olders(start, _integers(olders))

    def _put_olders(self, start: int, olders: Integers) -> None:
        """The rows before those that stand at `start` and after; -1 for none."""
        known = (olders >= 0).nonzero()[0]
        self._olders.put(start + known, olders[known])

    @property
    def nbytes(self) -> int:
        sampled = list(islice(self.newest, _SAMPLE))
        of_keys = sum(map(getsizeof, sampled)) / len(sampled) if sampled else 0
        of_hashes = 0 if self.hashed is None else self.hashed.nbytes
        return int(
            getsizeof(self.newest) + len(self.newest) * (of_keys + _BYTES_OF_INT) + self._olders.nbytes + of_hashes
        )

    def renumbered(self, new_position: Integers, hashed: HashedKeys | None) -> KeyDictionary:
        """The index over the rows kept, at their new positions (`new_position` is -1 for the others)."""
        renumbered = KeyDictionary(hashed)
        positions = new_position[_integers(self.newest.values())]
        renumbered.newest.update(zip(self.newest, positions.tolist(), strict=True))
        for key in compress(self.newest, (positions < 0).tolist()):
            del renumbered.newest[key]
        rows, olders = (new_position[positions] for positions in self._olders.pairs())
        kept = (rows >= 0) & (olders >= 0)
        renumbered._olders.put(rows[kept], olders[kept])
        return renumbered


@dataclass(frozen=True, slots=True)
class _Recent:
    """Keys of rows that came since the hashed ones."""

    newest: dict[Hashable, int] = field(default_factory=dict)
    previous: dict[int, int] = field(default_factory=dict)


class KeyHashes(KeyIndex):
    """The smallest: keys by their hashes, and a dictionary of those that came last.

    A key found by its hash is compared with the row's own, which `key_at` gives.
    """

    def __init__(
        self, hashed: HashedKeys, hash_key: Callable[[Hashable], int | None], key_at: Callable[[int], Hashable]
    ) -> None:
        self.hashed: HashedKeys = hashed
        self._hash_key = hash_key
        self._key_at = key_at
        self._recent = _Recent()
        self.find = self._find

    def _find(self, key: Hashable, default: int) -> int:
        position = self._recent.newest.get(key)
        return self._hashed(key, _NO_LIMIT, default) if position is None else position

    def older(self, position: int) -> int:
        previous = self._recent.previous.get(position)
        return self._hashed(self._key_at(position), position, -1) if previous is None else previous

    def add(self, keys: Sequence[Hashable], start: int, chunks: Chunks, olders: Integers | None = None) -> None:
        if len(keys) < _FEWEST_HASHED:
            for position, key in enumerate(keys, start):
                self.add_one(key, position)
        if len(keys) >= _FEWEST_HASHED or len(self._recent.newest) >= _MOST_RECENT:
            self.cover(chunks)

    def add_one(self, key: Hashable, position: int) -> None:
        newest = self._recent.newest
        older = newest.get(key)
        if older is not None:
            self._recent.previous[position] = older
        newest[key] = position

    @property
    def wants_cover(self) -> bool:
        """Whether so many rows have come one by one that `cover` is worth it."""
        return len(self._recent.newest) >= _MOST_RECENT

    def cover(self, chunks: Chunks) -> None:
        """Hash the keys of all rows."""
        self.hashed.grow(chunks, chunks.length)
        self._recent = _Recent()

    @property
    def nbytes(self) -> int:
        recent = len(self._recent.newest) + len(self._recent.previous)
        return self.hashed.nbytes + recent * _BYTES_OF_RECENT

    def _hashed(self, key: Hashable, below: int, default: int) -> int:
        hash_ = self._hash_key(key)
        if hash_ is not None:
            for position in self.hashed.candidates(hash_, below):
                found = self._key_at(position)
                # The one NaN equals itself only as an object.
                if found is key or found == key:
                    return position
        return default


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
    def nbytes(self) -> int:
        """About how many bytes it takes."""
        sampled = list(islice(self.rows.items(), _SAMPLE))
        if not sampled:
            return 0
        per_value = sum(
            getsizeof(value)
            + (getsizeof(found) + _BYTES_OF_INT * len(found) if isinstance(found, list) else _BYTES_OF_INT)
            for value, found in sampled
        ) / len(sampled)
        return getsizeof(self.rows) + int(len(self.rows) * per_value)

    @property
    def distinct(self) -> int:
        return len(self.rows)


def _integers(numbers: Collection[int]) -> Integers:
    return np.fromiter(numbers, dtype=np.int64, count=len(numbers))
