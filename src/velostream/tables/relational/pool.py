"""Connections to one store, kept for the next who needs one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from velostream.errors import Category, ClosedError, StoreError
from velostream.tables.relational.dialect import Dialect, DriverConnection, Failure

_IDLE_SECONDS_TRUSTED = 5.0
"""A connection that was used a moment ago is not asked whether it is alive."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How many connections there may be, and how long to try."""

    size: int = 8
    most_idle: int | None = None
    """How many to keep while nobody uses them; None: all."""
    validation_query: str | None = None
    """What a connection that lay idle must answer; None: what the dialect asks."""
    wait: timedelta = timedelta(seconds=30)
    """How long to wait for a connection while all are in use."""
    retry: timedelta = timedelta(seconds=15)
    """How long to try again what failed for a passing reason."""


class NoConnectionError(Exception):
    """A connection couldn't be made; nothing was done."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass
class Lease:
    """A connection for one use; whoever finds it broken says so."""

    connection: DriverConnection
    usable: bool = True


@dataclass(frozen=True, slots=True)
class _Idle:
    connection: DriverConnection
    since: float = field(default_factory=time.monotonic)


class ConnectionPool:
    """At most so many connections at a time; for any thread."""

    def __init__(self, dialect: Dialect, settings: PoolSettings) -> None:
        self._dialect = dialect
        self._settings = settings
        self._idle: list[_Idle] = []
        self._open = 0
        self._changed = threading.Condition()
        self._closed = False

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """A connection; given back at the end unless it isn't usable. Raises `NoConnectionError`, and `StoreError`."""
        lease = Lease(self._take())
        try:
            yield lease
        except self._dialect.errors:
            # Nobody knows what state it is in.
            lease.usable = False
            raise
        finally:
            self._give_back(lease)

    def close(self) -> None:
        """Close the idle connections now, those in use when they are given back."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._open -= len(idle)
            self._changed.notify_all()
        for one in idle:
            self.discard(one.connection)

    def connect(self) -> DriverConnection:
        """A connection of the caller's own, beside the pool."""
        try:
            return self._dialect.connect()
        except self._dialect.errors as error:
            raise NoConnectionError(self._dialect.failure(error)) from error

    def discard(self, connection: DriverConnection) -> None:
        try:
            connection.close()
        except self._dialect.errors:
            # It is of no use either way.
            return

    def _take(self) -> DriverConnection:
        deadline = time.monotonic() + self._settings.wait.total_seconds()
        while (idle := self._idle_or_room(deadline)) is not None:
            if self._answers(idle):
                return idle.connection
            self._give_back(Lease(idle.connection, usable=False))
        try:
            return self.connect()
        except BaseException:
            with self._changed:
                self._open -= 1
                self._changed.notify()
            raise

    def _idle_or_room(self, deadline: float) -> _Idle | None:
        """An idle connection; None when one may be made, which is then counted."""
        with self._changed:
            while True:
                if self._closed:
                    raise ClosedError(f'{self._dialect.kind} at "{self._dialect.address}" is closed')
                if self._idle:
                    return self._idle.pop()
                if self._open < self._settings.size:
                    self._open += 1
                    return None
                if not self._changed.wait(deadline - time.monotonic()):
                    raise StoreError(
                        f'all {self._open} connections to {self._dialect.kind} at "{self._dialect.address}" are in use',
                        hint="WITH ('pool.size' = …) allows more",
                        category=Category.TIMEOUT,
                    )

    def _answers(self, idle: _Idle) -> bool:
        if self._dialect.lost(idle.connection):
            return False
        if time.monotonic() - idle.since < _IDLE_SECONDS_TRUSTED:
            return True
        try:
            if self._settings.validation_query is None:
                return self._dialect.alive(idle.connection)
            list(self._dialect.rows(idle.connection, self._settings.validation_query))
        except self._dialect.errors:
            return False
        return True

    def _give_back(self, lease: Lease) -> None:
        most_idle = self._settings.size if self._settings.most_idle is None else self._settings.most_idle
        usable = lease.usable and not self._dialect.lost(lease.connection)
        with self._changed:
            keep = usable and not self._closed and len(self._idle) < most_idle
            if keep:
                self._idle.append(_Idle(lease.connection))
            else:
                self._open -= 1
            self._changed.notify()
        if not keep:
            self.discard(lease.connection)
