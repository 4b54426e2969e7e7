"""Statements that wait for a source that isn't there yet, or has no rows to take columns from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from velostream.engine.binding import NoSchemaYetError
from velostream.errors import Category, SourceError
from velostream.model.duration import parse_duration
from velostream.sql.sources import uri_parameters
from velostream.sql.statements import Create, OptionValue

_LOOK_AGAIN_SECONDS = 0.1


class WaitingRoom:
    """Looks again, every moment, for what its members wait for. Members are known by their entry's id."""

    def __init__(self, closing: threading.Event, lock: threading.RLock) -> None:
        """`lock` is held while looking: what comes of it may change the catalog."""
        self._closing = closing
        self._lock = lock
        self._members: dict[str, Callable[[], bool]] = {}
        self._thread: threading.Thread | None = None

    def add(self, entry_id: str, look_again: Callable[[], bool]) -> None:
        """`look_again` is called until it says that there is nothing left to wait for."""
        self._members[entry_id] = look_again
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="waiting", daemon=True)
            self._thread.start()

    def remove(self, entry_id: str) -> None:
        self._members.pop(entry_id, None)

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_AGAIN_SECONDS):
            for entry_id, look_again in list(self._members.items()):
                with self._lock:
                    if entry_id in self._members and look_again():
                        self.remove(entry_id)


@dataclass(frozen=True)
class Patience:
    """How long a statement waits for a source, and how often it looks."""

    seconds: float
    interval: float = 0.0


def patience_of(statement: Create, trouble: Exception) -> Patience | None:
    """For how long a new statement may wait; None when waiting wasn't asked for or can't help."""
    if isinstance(trouble, NoSchemaYetError):
        return Patience(float("inf"))
    if not isinstance(trouble, SourceError) or trouble.category is not Category.MISSING or statement.query is None:
        return None
    sources = statement.query.sources
    given = [*statement.options, *(option for source in sources for option in source.options)]
    given += [option for source in sources for option in uri_parameters(source.uri)[1]]
    seconds = _longest(given, ".wait.timeout")
    return Patience(seconds, _longest(given, ".retry.interval")) if seconds else None


def _longest(options: list[OptionValue], suffix: str) -> float:
    """The longest duration given for a source by an option of that ending."""
    durations = [
        parse_duration(option.value).total_seconds()
        for option in options
        if option.name.endswith(suffix) and not option.name.startswith("table.")
    ]
    return max(durations, default=0.0)
