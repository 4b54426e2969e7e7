"""Statements that wait for a source that isn't there yet, or has no rows to take columns from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from velostream.engine.binding import NoSchemaYetError
from velostream.errors import Category, SourceError, StoreError
from velostream.model.duration import parse_duration
from velostream.model.options import Option, Options
from velostream.model.retry import RetryPolicy, RetryStrategy
from velostream.sql.sources import uri_parameters
from velostream.sql.statements import Create, OptionValue

_LOOK_AGAIN_SECONDS = 0.1
_TIMEOUT = ".wait.timeout"
_MAY_PASS = (Category.MISSING, Category.NETWORK, Category.UNKNOWN)
_SOON = RetryPolicy(
    RetryStrategy.EXPONENTIAL, interval=timedelta(milliseconds=100), max_delay=timedelta(milliseconds=300)
)
"""For what is close by: a file, or the first rows of something that is there."""


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
    retry: RetryPolicy = _SOON

    def pause(self, trouble: Exception | None, attempts: int) -> float:
        """Seconds until it looks again; the first rows of what is there are never waited for by the policy."""
        policy = _SOON if isinstance(trouble, NoSchemaYetError) else self.retry
        return policy.delay(attempts).total_seconds()


@dataclass(frozen=True)
class Tried:
    """How often something was tried, and for how long."""

    times: int
    seconds: float

    def told_in(self, error: SourceError | StoreError) -> SourceError | StoreError:
        """The error with that in its detail."""
        detail = f"looked for {self.times} times within {self.seconds:.0f} s"
        return type(error)(
            error.message,
            detail=detail if not error.detail else f"{error.detail}; {detail}",
            hint=error.hint,
            code=error.code,
            category=error.category,
        )


def patience_of(statement: Create, trouble: Exception) -> Patience | None:
    """For how long a new statement may wait; None when waiting wasn't asked for or can't help."""
    if isinstance(trouble, NoSchemaYetError):
        return Patience(float("inf"))
    if not isinstance(trouble, SourceError) or trouble.category not in _MAY_PASS or statement.query is None:
        return None
    sources = statement.query.sources
    given = [*statement.options, *(option for source in sources for option in source.options)]
    given += [option for source in sources for option in uri_parameters(source.uri)[1]]
    waits = {option.name.removesuffix(_TIMEOUT): _seconds(option) for option in given if _is_timeout(option)}
    prefix = max(waits, key=lambda name: waits[name], default="")
    return Patience(waits[prefix], _retry_policy(given, prefix)) if waits.get(prefix) else None


def _is_timeout(option: OptionValue) -> bool:
    return option.name.endswith(_TIMEOUT) and not option.name.startswith("table.")


def _seconds(option: OptionValue) -> float:
    return parse_duration(option.value).total_seconds()


def _retry_policy(given: list[OptionValue], prefix: str) -> RetryPolicy:
    """How often to look: for files as often as was said, for what is on a server by its policy."""
    options = {option.name: option.value for option in given if option.name.startswith(f"{prefix}.retry.")}
    known = (Option(f"{prefix}.retry.*", "the policy"),)
    if prefix != "file":
        return RetryPolicy.from_options(Options(options, known), prefix=prefix)
    interval = Options(options, known).duration("file.retry.interval")
    return _SOON if interval is None else RetryPolicy(RetryStrategy.FIXED, interval=interval)
