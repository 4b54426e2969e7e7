"""When commits were made, so that a state can be named by an instant."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np

from velostream.tables.memory.growable import GrowableIntegers

_MILLISECOND = 1_000_000
_MOST = 1 << 20
"""Milliseconds that are remembered; the older half of them is forgotten then."""


class CommitTimes:
    """The last commit of every millisecond that had one. Written under the commit lock, read by any thread.

    A clock that is set back doesn't set back what is noted: times never decrease.
    """

    def __init__(self, known: Iterable[tuple[int, int]] = ()) -> None:
        """`known` are milliseconds with their commits' numbers, in the order of the commits."""
        self._noted = (GrowableIntegers(), GrowableIntegers())
        """Times and numbers; replaced together, so that a reader has both of one time."""
        self._until = 0
        """Nanoseconds at which the last millisecond noted ends."""
        self._oldest = 0
        """Of commits before this number nothing is known."""
        for milliseconds, number in known:
            self._note(milliseconds, number)

    def note(self, number: int) -> None:
        """A commit has just become visible."""
        now = time.time_ns()
        if now < self._until:
            numbers = self._noted[1]
            numbers.view[numbers.length - 1] = number
        else:
            self._note(now // _MILLISECOND, number)

    def number_at(self, instant: datetime) -> int | None:
        """The newest commit at or before an instant, to the millisecond; None when it is too long ago to tell."""
        times, numbers = self._noted
        milliseconds = int(instant.timestamp() * 1000)
        entry = int(np.searchsorted(times.values(), milliseconds, side="right")) - 1
        return None if entry < 0 else numbers.view[entry]

    def instant_of(self, number: int) -> datetime | None:
        """When a commit became visible, to the millisecond; None when it is too long ago to tell."""
        times, numbers = self._noted
        # Times first: a number is noted before its time.
        known = times.length
        entry = int(np.searchsorted(numbers.array[:known], number))
        if entry == known or number < self._oldest:
            return None
        return datetime.fromtimestamp(times.view[entry] / 1000, UTC)

    def since(self, number: int) -> list[tuple[int, int]]:
        """What is needed to find commits from a number on again."""
        times, numbers = self._noted
        first = max(0, int(np.searchsorted(numbers.values(), number, side="right")) - 1)
        return list(zip(times.values()[first:].tolist(), numbers.values()[first:].tolist(), strict=True))

    def _note(self, milliseconds: int, number: int) -> None:
        times, numbers = self._noted
        if milliseconds * _MILLISECOND < self._until:
            numbers.view[numbers.length - 1] = number
            return
        if not numbers.length:
            self._oldest = number
        if numbers.length == _MOST:
            self._oldest = numbers.view[_MOST // 2 - 1] + 1
            times, numbers = (GrowableIntegers(part.values()[_MOST // 2 :]) for part in (times, numbers))
            self._noted = (times, numbers)
        # The number first: a reader counts the times.
        numbers.append(number)
        times.append(milliseconds)
        self._until = (milliseconds + 1) * _MILLISECOND
