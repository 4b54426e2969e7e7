"""One replication slot with several readers: whoever they are, it is given up no further than the slowest has come.

A slot can be looked into by one connection at a time, and has one position. Readers of one process take turns, and each
says where it will read on; those that don't run just now are known by the positions that the engine remembers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from velostream.sources.base import Offset


class SlotReaders:
    """The readers of one slot in this process. Thread-safe."""

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._positions: dict[int, int] = {}
        self.made: set[str] = set()
        """What of slot and publication one of the readers made, for the last of them to drop; changed within a turn."""

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Within, no other reader looks into the slot, joins it, leaves it or moves it."""
        with self._turn:
            yield

    def hold(self, reader: object, position: int) -> None:
        """The reader will read on from that position, so all after it must be kept."""
        with self._turn:
            self._positions[id(reader)] = position

    def release(self, reader: object) -> None:
        with self._turn:
            self._positions.pop(id(reader), None)

    def others(self, reader: object) -> list[int]:
        """Where the others will read on."""
        with self._turn:
            return [position for known, position in self._positions.items() if known != id(reader)]


_readers: WeakValueDictionary[tuple[str, str], SlotReaders] = WeakValueDictionary()
_readers_lock = threading.Lock()


def readers_of(server: str, slot: str) -> SlotReaders:
    """Those of a slot, by the name of a database that is the same however it is reached."""
    with _readers_lock:
        found = _readers.get((server, slot))
        if found is None:
            found = _readers[server, slot] = SlotReaders()
        return found


def offsets_of_slot(offsets: Iterable[Offset], *, server: str, slot: str) -> list[dict[str, Any]]:
    """Of positions of all kinds of sources, those that are places in this slot."""
    inner = (offset.get("at", offset) if isinstance(offset, dict) else None for offset in offsets)
    return [at for at in inner if isinstance(at, dict) and (at.get("server"), at.get("slot")) == (server, slot)]
