"""Receivers: what arrives by itself is put into a spool, by threads of this process.

There is one receiver per spool, whoever asks for it. It runs while somebody follows the spool, and for a while after
somebody has merely looked at it: a statement that waits for its first record looks every moment, each time as another
source.
"""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from velostream.errors import VelostreamError
from velostream.formats.json import parse_json
from velostream.formats.lines import find_records
from velostream.model.rows import json_text
from velostream.model.schema import Schema
from velostream.model.spool import Spool

RECORD = "record"
PLACE = "place"
RECEIVED = Schema.of((RECORD, "BINARY"), (PLACE, "STRING"))
"""What a spool of received records holds: each as it came, and where it came from."""
_LINGER_SECONDS = 10.0
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """Records that came together, and what is to be remembered with them."""

    records: Sequence[bytes]
    place: str
    note: Mapping[str, str] = field(default_factory=dict)


class Inbox:
    """Takes arrivals from many threads; those that come while one is being written are written together."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._waiting: list[tuple[tuple[Arrival, ...], threading.Event]] = []
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def put(self, *arrivals: Arrival) -> None:
        """Returns when their records are durable. `OSError` when they can't be written."""
        written = threading.Event()
        with self._lock:
            self._waiting.append((arrivals, written))
        with self._writing:
            if written.is_set():
                return
            with self._lock:
                taken, self._waiting = self._waiting, []
            # Arrivals of other threads that fail with this one are tried again by those.
            try:
                self._write([one for together, _ in taken for one in together])
            except BaseException:
                with self._lock:
                    self._waiting = [pair for pair in taken if pair[1] is not written] + self._waiting
                raise
            for _, done in taken:
                done.set()

    def _write(self, arrivals: Sequence[Arrival]) -> None:
        records = [record for arrival in arrivals for record in arrival.records]
        places = [
            f"{arrival.place} record {number}" if len(arrival.records) > 1 else arrival.place
            for arrival in arrivals
            for number in range(1, len(arrival.records) + 1)
        ]
        note = {name: value for arrival in arrivals for name, value in arrival.note.items()}
        self.spool.append(pa.table([records, places], schema=RECEIVED.arrow), note=note)


class Receiver(ABC):
    """Brings records from outside into an inbox, on threads of its own."""

    trouble: VelostreamError | None = None
    """Why nothing comes at present."""

    @abstractmethod
    def start(self) -> None:
        """Begin; `SourceError` when that can't be done."""

    @abstractmethod
    def stop(self) -> None:
        """End, and give back what is held. What was put into the inbox stays."""


@dataclass(frozen=True, slots=True)
class RecordCutter:
    """Finds the records that came as one text: elements of a JSON array, lines, else the whole of it."""

    format: str
    quote: bytes | None = b'"'
    """Between two of them, CSV may hold line breaks."""

    def records_of(self, body: bytes, *, of_lines: bool = False) -> list[bytes]:
        """What isn't JSON is a record too: that it can't be decoded is found when it is read."""
        if self.format in ("csv", "tsv"):
            found = find_records(body, self.quote, final=True)
            cut = [body[start:end] for start, end in zip(found.starts, found.ends, strict=True)]
            return [record.rstrip(b"\r\n") for record in cut if record.strip()]
        if self.format == "string" or of_lines:
            return [line for line in body.splitlines() if line.strip()]
        text = body.strip()
        if self.format != "json" or not text.startswith(b"["):
            return [body] if text else []
        try:
            return [json_text(record) for record in parse_json(text)]
        except (ValueError, RecursionError):
            return [body]


class _Running:
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.followers: weakref.WeakSet[object] = weakref.WeakSet()
        self.asked_at = time.monotonic()

    @property
    def is_idle(self) -> bool:
        return not self.followers and time.monotonic() - self.asked_at > _LINGER_SECONDS


_lock = threading.RLock()
"""Of the table of receivers, held for moments. Whoever holds it takes no other lock."""
_locks: weakref.WeakValueDictionary[Path, threading.RLock] = weakref.WeakValueDictionary()
_running: dict[Path, _Running] = {}
_watching: threading.Thread | None = None


def running_receiver(spool: Spool, make: Callable[[], Receiver], *, follower: object | None = None) -> Receiver:
    """The receiver of a spool, started now if it isn't running; kept until `release` where there is a follower."""
    with _lock_of(spool.directory):
        found = _running.get(spool.directory)
        if found is None:
            receiver = make()
            receiver.start()
            found = _Running(receiver)
        found.asked_at = time.monotonic()
        if follower is not None:
            found.followers.add(follower)
        with _lock:
            _running[spool.directory] = found
            _watch()
        return found.receiver


def release(spool: Spool, follower: object) -> None:
    """The follower is no longer one; the last of them stops the receiver."""
    with _lock_of(spool.directory):
        found = _running.get(spool.directory)
        if found is None or follower not in found.followers:
            return
        found.followers.discard(follower)
        if not found.followers:
            _end(spool.directory)


def _lock_of(directory: Path) -> threading.RLock:
    """Of one spool's receiver: starting and stopping take their time, which others must not wait for."""
    with _lock:
        found = _locks.get(directory)
        if found is None:
            found = _locks[directory] = threading.RLock()
        return found


def _end(directory: Path) -> None:
    """Called under the spool's lock, so that its next receiver begins when this one is done."""
    with _lock:
        ended = _running.pop(directory)
    ended.receiver.stop()


def _watch() -> None:
    global _watching  # noqa: PLW0603 - the one thread for all receivers of the process
    if _watching is None:
        _watching = threading.Thread(target=_end_idle_ones, name="receivers", daemon=True)
        _watching.start()


def _end_idle_ones() -> None:
    global _watching  # noqa: PLW0603 - likewise
    while True:
        time.sleep(_LOOK_SECONDS)
        with _lock:
            idle = [directory for directory, one in _running.items() if one.is_idle]
        for directory in idle:
            with _lock_of(directory):
                found = _running.get(directory)
                if found is not None and found.is_idle:
                    _end(directory)
        with _lock:
            if not _running:
                _watching = None
                return
