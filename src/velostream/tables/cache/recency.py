"""Which entries of a cache were used last, and which have been there for too long."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    written_at: float
    count: int = 1
    """How many rows it stands for: equal rows of a table without a key are one entry."""


class Recency(Generic[V]):
    """Entries by key, in the order of their use and in the order of their writing. Any thread may call any method.

    Nothing leaves by itself: `evict` and `expire` take out what has to go and give it to the caller.
    """

    def __init__(self, *, max_size: int, ttl: timedelta | None, clock: Callable[[], float]) -> None:
        self._max_size = max_size
        self._ttl = None if ttl is None else ttl.total_seconds()
        self._clock = clock
        self._used: OrderedDict[Hashable, _Entry[V]] = OrderedDict()
        self._written: OrderedDict[Hashable, None] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._size

    def add(self, entries: Iterable[tuple[Hashable, V]]) -> None:
        """Each is a new row, used and written now; a key that is there already has one row more."""
        with self._lock:
            for key, value in entries:
                entry = self._used.get(key)
                if entry is None:
                    self._used[key] = _Entry(value, self._clock())
                    self._written[key] = None
                else:
                    entry.count += 1
                    self._renew(key, entry)
                self._size += 1

    def renew(self, keys: Iterable[Hashable]) -> None:
        """They are written again as they are; those that aren't there are passed over."""
        with self._lock:
            for key in keys:
                entry = self._used.get(key)
                if entry is not None:
                    self._renew(key, entry)

    def use(self, keys: Iterable[Hashable]) -> None:
        """They are used now; those that aren't there are passed over."""
        with self._lock:
            for key in keys:
                if key in self._used:
                    self._used.move_to_end(key)

    def find(self, key: Hashable) -> V | None:
        """The value of a key, which is used now; None when it isn't there or too old."""
        with self._lock:
            entry = self._used.get(key)
            if entry is None or self._is_old(entry):
                return None
            self._used.move_to_end(key)
            return entry.value

    def remove(self, keys: Iterable[Hashable]) -> None:
        """One row less for each; those that aren't there are passed over."""
        with self._lock:
            for key in keys:
                if key in self._used:
                    self._take(key, 1)

    def clear(self) -> None:
        with self._lock:
            self._used.clear()
            self._written.clear()
            self._size = 0

    def evict(self) -> list[V]:
        """Take out what was used longest ago, until no more is left than may be; a value for each row."""
        evicted: list[V] = []
        with self._lock:
            while self._size > self._max_size:
                key = next(iter(self._used))
                evicted += self._take(key, self._size - self._max_size)
        return evicted

    @property
    def has_expired(self) -> bool:
        """Whether `expire` would find something; cheap enough to be asked before every read."""
        if self._ttl is None:
            return False
        with self._lock:
            key = next(iter(self._written), _NOTHING)
            return key is not _NOTHING and self._is_old(self._used[key])

    def expire(self) -> list[V]:
        """Take out what was written too long ago; a value for each row."""
        expired: list[V] = []
        with self._lock:
            while self._written:
                key = next(iter(self._written))
                if not self._is_old(self._used[key]):
                    break
                expired += self._take(key, self._used[key].count)
        return expired

    def _is_old(self, entry: _Entry[V]) -> bool:
        return self._ttl is not None and self._clock() - entry.written_at >= self._ttl

    def _renew(self, key: Hashable, entry: _Entry[V]) -> None:
        entry.written_at = self._clock()
        self._used.move_to_end(key)
        self._written.move_to_end(key)

    def _take(self, key: Hashable, most: int) -> list[V]:
        entry = self._used[key]
        taken = min(entry.count, most)
        entry.count -= taken
        self._size -= taken
        if not entry.count:
            del self._used[key]
            del self._written[key]
        return [entry.value] * taken


_NOTHING: Hashable = object()


class HitCounter:
    """How often what was asked for was there."""

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self._lock = threading.Lock()

    def count(self, *, asked: int, found: int) -> None:
        with self._lock:
            self.hits += found
            self.misses += asked - found

    @property
    def rate(self) -> float:
        """Between 0 and 1; 0 when nothing was asked."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    def figures(self) -> dict[str, float]:
        return {"hits": self.hits, "misses": self.misses, "hit_rate": self.rate}
