"""Integers that only ever grow at the end, readable by any thread while one thread writes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_FIRST_CAPACITY = 16
_LARGE = 1 << 16
"""Up to here the room doubles; beyond, room that stays empty would be worth more than copying less often."""


class GrowableIntegers:
    """An int64 array with room at its end.

    One writer, any number of readers without a lock. Values are written before `length` says they are there, and a
    buffer that has become too small is left as it is, so a reader that took it keeps a valid one. A reader takes
    `length` first and the buffer after it.
    """

    __slots__ = ("array", "length", "view")

    def __init__(self, values: Integers | None = None) -> None:
        self.length = 0 if values is None else len(values)
        self.array: Integers = np.empty(max(_FIRST_CAPACITY, self.length), dtype=np.int64)
        if values is not None:
            self.array[: self.length] = values
        self.view: memoryview[int] = memoryview(self.array)  # type: ignore[arg-type]
        """The buffer again, for single values: several times faster to index than NumPy's."""

    def __len__(self) -> int:
        return self.length

    def values(self) -> Integers:
        length = self.length
        return self.array[:length]

    def append(self, value: int) -> None:
        length = self.length
        try:
            self.view[length] = value
        except IndexError:
            self.reserve(1)
            self.view[length] = value
        self.length = length + 1

    def extend(self, values: Integers) -> None:
        self.reserve(len(values))
        self.array[self.length : self.length + len(values)] = values
        self.length += len(values)

    def extend_with(self, value: int, count: int) -> None:
        self.reserve(count)
        self.array[self.length : self.length + count] = value
        self.length += count

    def reserve(self, count: int) -> None:
        """Make room for that many more, which may be written before `length` says they are there."""
        needed = self.length + count
        if needed <= len(self.array):
            return
        capacity = len(self.array)
        capacity += capacity if capacity < _LARGE else capacity // 4
        grown: Integers = np.empty(max(needed, capacity), dtype=np.int64)
        grown[: self.length] = self.array[: self.length]
        self.array = grown
        self.view = memoryview(grown)  # type: ignore[arg-type]
