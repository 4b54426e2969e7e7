"""An index of rows by hash in plain arrays, which can be written to files and mapped by many processes.

The distinct hashes are sorted; a directory by their first bits says where to start looking, so that finding a hash
takes one or two steps however many there are. Everything is done for a whole batch of hashes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from velostream.tables.memory.growable import Integers
from velostream.tables.memory.matching import Hashes

_MOST_DIRECTORY_BITS = 26


class TooManyPairsError(Exception):
    """More pairs than the caller wants at once."""


@dataclass(frozen=True)
class Pairs:
    """Rows of a batch beside the positions found for them; ascending by row, then by position."""

    rows: Integers
    positions: Integers


@dataclass(frozen=True)
class HashIndex:
    """Hashes of rows and their positions. Different keys may share a hash: what is found must be verified."""

    distinct: Hashes
    """Ascending."""
    starts: npt.NDArray[Any]
    """Where the positions of each distinct hash begin, and where the last ones end."""
    positions: npt.NDArray[Any]
    """Ascending among those of one hash."""
    directory: npt.NDArray[Any]
    """For each value of the first bits: how many distinct hashes are below it; and how many there are."""

    @classmethod
    def of(cls, hashes: Hashes, positions: npt.NDArray[Any]) -> HashIndex:
        """Index positions, given in ascending order, by their hashes."""
        order = np.argsort(hashes)
        ordered = hashes[order]
        first = np.ones(len(ordered), dtype=np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
        if not first.all():
            # Twice as slow, and only equal hashes need it: it leaves their positions in order.
            order = np.argsort(hashes, kind="stable")
        distinct = ordered[first]
        number = np.int32 if len(hashes) < np.iinfo(np.int32).max else np.int64
        starts = np.append(np.flatnonzero(first), len(hashes)).astype(number)
        bits = min(max(1, len(distinct).bit_length()), _MOST_DIRECTORY_BITS)
        counts = np.bincount((distinct >> np.uint64(64 - bits)).astype(np.int64), minlength=1 << bits)
        directory = np.concatenate([[0], np.cumsum(counts)]).astype(number)
        return cls(distinct, starts, positions[order], directory)

    def with_more(self, hashes: Hashes, positions: npt.NDArray[Any]) -> HashIndex:
        """The index of these positions too, which are all above those it has."""
        return HashIndex.of(np.concatenate([self.hashes(), hashes]), np.concatenate([self.positions, positions]))

    def hashes(self) -> Hashes:
        """The hash of each of `positions`."""
        return np.repeat(self.distinct, np.diff(self.starts))

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.__dataclass_fields__)

    def positions_of(self, hash_: int) -> list[int]:
        """Positions that have one hash, ascending."""
        # A memoryview gives single numbers several times faster than NumPy does.
        numbers: Callable[[Any], memoryview[int]] = memoryview
        directory, distinct, starts = numbers(self.directory), numbers(self.distinct), numbers(self.starts)
        bucket = hash_ >> (65 - len(directory).bit_length())
        for place in range(directory[bucket], directory[bucket + 1]):
            if distinct[place] == hash_:
                found: list[int] = self.positions[starts[place] : starts[place + 1]].tolist()
                return found
        return []

    def find(self, hashes: Hashes, *, most: int | None = None) -> Pairs:
        """Positions that have these hashes; `TooManyPairsError` when there are more than `most`."""
        rows, places = self._places(hashes)
        begin = self.starts[places].astype(np.int64)
        counts = self.starts[places + 1] - begin
        if len(self.distinct) == len(self.positions):
            return Pairs(rows, self.positions[begin].astype(np.int64))
        total = int(counts.sum())
        if most is not None and total > most:
            raise TooManyPairsError
        within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        return Pairs(np.repeat(rows, counts), self.positions[np.repeat(begin, counts) + within].astype(np.int64))

    def _places(self, hashes: Hashes) -> tuple[Integers, Integers]:
        """Which of the hashes are among the distinct ones, and where."""
        bits = (len(self.directory) - 1).bit_length() - 1
        buckets = (hashes >> np.uint64(64 - bits)).astype(np.int64)
        place, end = self.directory[buckets].astype(np.int64), self.directory[buckets + 1]
        found = np.full(len(hashes), -1)
        rows = np.flatnonzero(place < end)
        place, end = place[rows], end[rows]
        while len(rows):
            equal = self.distinct[place] == hashes[rows]
            found[rows[equal]] = place[equal]
            onwards = ~equal & (place + 1 < end)
            rows, place, end = rows[onwards], place[onwards] + 1, end[onwards]
        hits = np.flatnonzero(found >= 0)
        return hits, found[hits]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for name in self.__dataclass_fields__:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path) -> HashIndex:
        """Map a saved index; the files may be removed as soon as this returns."""
        return cls(*(_mapped(folder / f"{name}.npy") for name in cls.__dataclass_fields__))


def _mapped(path: Path) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    # A plain view of the mapped memory: every operation on a memmap object makes another, which costs more than it.
    return array.view(np.ndarray)
