"""One store as this process uses it: a pool of connections, transactions that are tried again, exclusive stretches.

Tables with one address share one `Database`; that is what lets them commit together.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, TypeVar

from velostream.errors import Category, ClosedError, StoreError, TableError, VelostreamError
from velostream.model.retry import RetryPolicy, RetryStrategy
from velostream.tables.relational.dialect import Dialect, DriverConnection, Failure, Trouble

T = TypeVar("T")

_RETRY = RetryPolicy(
    RetryStrategy.EXPONENTIAL, interval=timedelta(milliseconds=10), multiplier=2, max_delay=timedelta(seconds=1)
)
_IDLE_SECONDS_TRUSTED = 5.0
"""A connection that was used a moment ago is not asked whether it is alive."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How many connections there may be, and how long to try."""

    size: int = 8
    wait: timedelta = timedelta(seconds=30)
    """How long to wait for a connection while all are in use."""
    retry: timedelta = timedelta(seconds=15)
    """How long to try again what failed for a passing reason."""


class DuplicateRowError(Exception):
    """The store refused a row because its key is there; raised out of the transaction, which is then undone."""


@dataclass
class _Held:
    """What a thread holds while it is exclusive, or reads in one transaction."""

    connection: DriverConnection
    lock: Callable[[DriverConnection], None]
    begun: bool = False


@dataclass
class _Local(threading.local):
    held: _Held | None = None


@dataclass
class _Shared:
    database: Database
    users: int = 0


@dataclass
class _Idle:
    connection: DriverConnection
    since: float = field(default_factory=time.monotonic)


class Database:
    """Connections to one store. All methods may be called from any thread."""

    _shared: ClassVar[dict[tuple[str, str], _Shared]] = {}
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, dialect: Dialect, settings: PoolSettings) -> None:
        self.dialect = dialect
        self._settings = settings
        self._idle: list[_Idle] = []
        self._open = 0
        self._changed = threading.Condition()
        self._closed = False
        self._local = _Local()
        self._writing = threading.RLock()
        self._watching: DriverConnection | None = None
        self._watch_lock = threading.Lock()

    @classmethod
    def shared(cls, dialect: Dialect, settings: PoolSettings) -> Database:
        """The database of the dialect's address; to be given back by `release`."""
        with cls._shared_lock:
            shared = cls._shared.setdefault((dialect.kind, dialect.address), _Shared(cls(dialect, settings)))
            shared.users += 1
            return shared.database

    def release(self) -> None:
        """Close all connections once nobody uses the database any more."""
        with self._shared_lock:
            name = (self.dialect.kind, self.dialect.address)
            shared = self._shared[name]
            shared.users -= 1
            if shared.users:
                return
            del self._shared[name]
        self._close()

    @contextmanager
    def reading(self, *, one_state: bool = False) -> Iterator[DriverConnection]:
        """A connection to read from; with `one_state` everything read from it is of one state of the store.

        Within `exclusive` it is the transaction of that, so that one's own reads and writes are one.
        """
        held = self._local.held
        if held is not None:
            with self._failures_told():
                self._begin_held(held)
                yield held.connection
            return
        with self._failures_told(), self._connection() as connection:
            if self.dialect.autocommits and not one_state:
                yield connection
                return
            self.dialect.begin(connection, write=False)
            try:
                yield connection
            finally:
                self.dialect.rollback(connection)

    def write(self, work: Callable[[DriverConnection], T], *, repeatable: bool) -> T:
        """Do the work in a transaction and commit it; again from the start when it fails for a passing reason.

        A commit whose outcome is unknown because the connection was lost is done again only if the work is
        `repeatable`: doing it twice is the same as doing it once.
        """
        deadline = time.monotonic() + self._settings.retry.total_seconds()
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._write_once(work, repeatable=repeatable)
            except _PassingError as passing:
                delay = _RETRY.delay(attempt).total_seconds() * random.uniform(0.5, 1)  # noqa: S311 - no secret
                if time.monotonic() + delay > deadline:
                    raise self._error(passing.failure, attempts=attempt) from passing.__cause__
            time.sleep(delay)

    @contextmanager
    def exclusive(self, lock: Callable[[DriverConnection], None]) -> Iterator[None]:
        """Hold off the commits that `lock` locks out, in a transaction that reads of this thread see. Re-entrant.

        A commit within ends the transaction; the next read begins another.
        """
        if self._local.held is not None:
            yield
            return
        with self._writer(), self._failures_told(), self._connection() as connection:
            self._local.held = held = _Held(connection, lock)
            try:
                self._begin_held(held)
                yield
            finally:
                self._local.held = None
                if held.begun:
                    self.dialect.rollback(connection)

    @contextmanager
    def watching(self) -> Iterator[DriverConnection]:
        """The one connection that only looks for what others do."""
        with self._watch_lock, self._failures_told():
            connection, self._watching = self._watching, None
            if connection is None or self.dialect.lost(connection):
                connection = self.dialect.connect()
            try:
                yield connection
            except BaseException:
                self._discard(connection)
                raise
            self._watching = connection

    def check(self) -> None:
        """Reach the store once, or raise what stands in the way; it isn't waited for."""
        with self._failures_told(), self._connection():
            return

    def _write_once(self, work: Callable[[DriverConnection], T], *, repeatable: bool) -> T:
        held = self._local.held
        if held is not None:
            return self._write_held(held, work)
        committing = False
        try:
            with self._writer(), self._connection() as connection:
                try:
                    self.dialect.begin(connection, write=True)
                    result = work(connection)
                    committing = True
                    self.dialect.commit(connection)
                except BaseException as error:
                    self._undo(connection)
                    raise self._understood(error, again=repeatable or not committing) from error
                return result
        except self.dialect.errors as error:
            # No connection could be made.
            raise self._understood(error, again=True) from error

    def _write_held(self, held: _Held, work: Callable[[DriverConnection], T]) -> T:
        """Inside `exclusive` what was read may not be true any more after a failure, so nothing is tried again."""
        try:
            self._begin_held(held)
            result = work(held.connection)
            self.dialect.commit(held.connection)
        except BaseException as error:
            self._undo(held.connection)
            raise self._understood(error, again=False) from error
        finally:
            held.begun = False
        return result

    def _begin_held(self, held: _Held) -> None:
        if not held.begun:
            self.dialect.begin(held.connection, write=True)
            held.begun = True
            held.lock(held.connection)

    def _understood(self, error: BaseException, *, again: bool) -> BaseException:
        """A driver's error as what is to be done about it; anything else as it is."""
        if not isinstance(error, self.dialect.errors):
            return error
        failure = self.dialect.failure(error)
        if failure.trouble is Trouble.DUPLICATE:
            return DuplicateRowError()
        if failure.trouble is Trouble.TRANSIENT and again:
            return _PassingError(failure)
        return self._error(failure)

    def _undo(self, connection: DriverConnection) -> None:
        try:
            self.dialect.rollback(connection)
        except self.dialect.errors:
            # What led here is told; a connection that can't even roll back is closed by `_connection`.
            self._discard(connection)

    def _error(self, failure: Failure, *, attempts: int = 1) -> VelostreamError:
        if failure.trouble in (Trouble.CONSTRAINT, Trouble.DUPLICATE):
            return TableError(
                f"{self.dialect.kind} refused the rows",
                detail=failure.reason,
                code="constraint",
                category=Category.DATA,
            )
        tried = f" (tried {attempts} times)" if attempts > 1 else ""
        return StoreError(
            f'{self.dialect.kind} at "{self.dialect.address}" failed',
            detail=failure.reason + tried,
            category=failure.category,
        )

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except self.dialect.errors as error:
            raise self._error(self.dialect.failure(error)) from error

    @contextmanager
    def _writer(self) -> Iterator[None]:
        if not self.dialect.one_writer:
            yield
            return
        with self._writing:
            yield

    @contextmanager
    def _connection(self) -> Iterator[DriverConnection]:
        connection = self._take()
        usable = False
        try:
            yield connection
            usable = True
        except self.dialect.errors as error:
            usable = not self.dialect.failure(error).connection_lost
            raise
        except (_PassingError, VelostreamError, DuplicateRowError, GeneratorExit):
            usable = True
            raise
        finally:
            self._give_back(connection, usable=usable)

    def _take(self) -> DriverConnection:
        deadline = time.monotonic() + self._settings.wait.total_seconds()
        while True:
            with self._changed:
                if self._closed:
                    raise ClosedError(f'{self.dialect.kind} at "{self.dialect.address}" is closed')
                if self._idle:
                    idle = self._idle.pop()
                elif self._open < self._settings.size:
                    self._open += 1
                    break
                elif not self._changed.wait(deadline - time.monotonic()):
                    raise StoreError(
                        f'all {self._open} connections to {self.dialect.kind} at "{self.dialect.address}" are in use',
                        hint="WITH ('pool.size' = …) allows more",
                        category=Category.TIMEOUT,
                    )
                else:
                    continue
            trusted = time.monotonic() - idle.since < _IDLE_SECONDS_TRUSTED
            if not self.dialect.lost(idle.connection) and (trusted or self._answers(idle.connection)):
                return idle.connection
            self._give_back(idle.connection, usable=False)
        try:
            return self.dialect.connect()
        except BaseException:
            with self._changed:
                self._open -= 1
                self._changed.notify()
            raise

    def _answers(self, connection: DriverConnection) -> bool:
        try:
            return self.dialect.alive(connection)
        except self.dialect.errors:
            return False

    def _give_back(self, connection: DriverConnection, *, usable: bool) -> None:
        with self._changed:
            keep = usable and not self._closed and not self.dialect.lost(connection)
            if keep:
                self._idle.append(_Idle(connection))
            else:
                self._open -= 1
            self._changed.notify()
        if not keep:
            self._discard(connection)

    def _discard(self, connection: DriverConnection) -> None:
        try:
            connection.close()
        except self.dialect.errors:
            return

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._open -= len(idle)
            self._changed.notify_all()
        for one in idle:
            self._discard(one.connection)
        with self._watch_lock:
            if self._watching is not None:
                self._discard(self._watching)
                self._watching = None


class _PassingError(Exception):
    """A failure after which the same work may succeed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure
