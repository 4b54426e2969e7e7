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
    def add(self, keys: Sequence[Hashable], start: int, chunks: Chunks) -> None:
        """Rows with these keys now stand at `start` and after, in these chunks; a key may not come twice."""

    @abstractmethod
    def add_one(self, key: Hashable, position: int) -> None:
        """Like `add` for a single row, which may be in no chunk yet."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """About how many bytes it takes."""


class KeyDictionary(KeyIndex):
    """The fastest to ask for single keys: every key in a dictionary."""

    def __init__(self, hashed: HashedKeys | None) -> None:
        self.newest: dict[Hashable, int] = {}
        self.previous: dict[int, int] = {}
        self.hashed = hashed
        self.find = self.newest.get

    def older(self, position: int) -> int:
        return self.previous.get(position, -1)

    def add(self, keys: Sequence[Hashable], start: int, chunks: Chunks) -> None:
        newest, positions = self.newest, range(start, start + len(keys))
        if newest:
            olders = list(map(self.find, keys, repeat(-1)))
            pairs = zip(positions, olders, strict=True)
            self.previous.update(((at, older) for at, older in pairs if older >= 0) if -1 in olders else pairs)
        newest.update(zip(keys, positions, strict=True))

    def add_one(self, key: Hashable, position: int) -> None:
        older = self.find(key, -1)
        if older >= 0:
            self.previous[position] = older
        self.newest[key] = position

    def add_history(self, keys: Sequence[Hashable], start: int) -> None:
        """Like `add` for rows of several commits at once, in which a key may come again."""
        newest, previous = self.newest, self.previous
        if not newest:
            newest.update(zip(keys, range(start, start + len(keys)), strict=True))
            if len(newest) == len(keys):
                return
            newest.clear()
        for position, key in enumerate(keys, start):
            older = newest.get(key)
            if older is not None:
                previous[position] = older
            newest[key] = position

    @property
    def nbytes(self) -> int:
        sampled = list(islice(self.newest, _SAMPLE))
        of_keys = sum(map(getsizeof, sampled)) / len(sampled) if sampled else 0
        of_hashes = 0 if self.hashed is None else self.hashed.nbytes
        return int(
            getsizeof(self.newest)
            + getsizeof(self.previous)
            + len(self.newest) * (of_keys + _BYTES_OF_INT)
            + 2 * len(self.previous) * _BYTES_OF_INT
            + of_hashes
        )

    def renumbered(self, new_position: Integers, hashed: HashedKeys | None) -> KeyDictionary:
        """The index over the rows kept, at their new positions (`new_position` is -1 for the others)."""
        renumbered = KeyDictionary(hashed)
        positions = new_position[_integers(self.newest.values())]
        renumbered.newest.update(zip(self.newest, positions.tolist(), strict=True))
        for key in compress(self.newest, (positions < 0).tolist()):
            del renumbered.newest[key]
        rows, older = new_position[_integers(self.previous)], new_position[_integers(self.previous.values())]
        kept = (rows >= 0) & (older >= 0)
        renumbered.previous.update(zip(rows[kept].tolist(), older[kept].tolist(), strict=True))
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

    def add(self, keys: Sequence[Hashable], start: int, chunks: Chunks) -> None:
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
