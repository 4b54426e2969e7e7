"""One store as this process uses it: transactions that are tried again, and exclusive stretches.

Tables with one address, one password and one set of settings share one `Database`; that is what lets them commit
together.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from velostream.errors import StoreError, TableError, VelostreamError
from velostream.model.retry import Attempts, RetryPolicy
from velostream.tables.relational.dialect import Dialect, DriverConnection, Failure, Trouble
from velostream.tables.relational.pool import ConnectionPool, Lease, NoConnectionError, PoolSettings

T = TypeVar("T")


class _PassingError(Exception):
    """A failure after which the same work may succeed; carries what to raise if it never does."""

    def __init__(self, error: VelostreamError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass
class _Held:
    """What a thread holds while it is exclusive."""

    lease: Lease
    locks: list[Callable[[DriverConnection], None]]
    begun: bool = False


@dataclass
class _Local(threading.local):
    held: _Held | None = None


@dataclass
class _Shared:
    database: Database
    users: int = 0


class Database:
    """Connections to one store. All methods may be called from any thread."""

    _shared: ClassVar[dict[tuple[str, str, str], _Shared]] = {}
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, dialect: Dialect, settings: PoolSettings) -> None:
        self.dialect = dialect
        self._settings = settings
        self._pool = ConnectionPool(dialect, settings)
        self._local = _Local()
        self._writing = threading.RLock()
        self._watching: DriverConnection | None = None
        self._watch_lock = threading.Lock()

    @classmethod
    def shared(cls, dialect: Dialect, settings: PoolSettings) -> Database:
        """The database of tables that connect alike; to be given back by `release`.

        A table with another password must prove it, and one with other settings gets them. Only a store of one writer
        is always one database: a thread that holds two of its tables would wait for itself.
        """
        name = _sharing_name(dialect, settings)
        with cls._shared_lock:
            shared = cls._shared.get(name) or cls._shared.setdefault(name, _Shared(cls(dialect, settings)))
            shared.users += 1
            return shared.database

    def release(self) -> None:
        """Close all connections once nobody uses the database any more."""
        with self._shared_lock:
            name = _sharing_name(self.dialect, self._settings)
            shared = self._shared[name]
            shared.users -= 1
            if shared.users:
                return
            del self._shared[name]
        self._pool.close()
        with self._watch_lock:
            if self._watching is not None:
                self._pool.discard(self._watching)
                self._watching = None

    def check(self) -> None:
        """Reach the store once, or raise what stands in the way; it isn't waited for."""
        with self._failures_told(), self._pool.lease():
            return

    @contextmanager
    def reading(self, *, one_state: bool = False) -> Iterator[DriverConnection]:
        """A connection to read from; with `one_state` everything read from it is of one state of the store.

        Within `exclusive` it is the transaction of that, so that one's own reads and writes are one.
        """
        with self._failures_told(), self._connection_to_read(one_state=one_state) as connection:
            yield connection

    def read(self, work: Callable[[DriverConnection], T], *, one_state: bool = False) -> T:
        """Do the work as in `reading`; again from the start when it fails for a passing reason."""
        if self._local.held is not None:
            with self.reading() as connection:
                return work(connection)

        def once() -> T:
            with (
                self._failures_told(to_repeat=True),
                self._connection_to_read(one_state=one_state) as connection,
            ):
                return work(connection)

        return self._repeatedly(once)

    def write(self, work: Callable[[DriverConnection], T], *, repeatable: bool) -> T:
        """Do the work in a transaction and commit it; again from the start when it fails for a passing reason.

        A commit whose outcome is unknown because the connection was lost is done again only if the work is
        `repeatable`: doing it twice is the same as doing it once.
        """
        held = self._local.held
        if held is not None:
            return self._write_held(held, work)
        return self._repeatedly(lambda: self._write_once(work, repeatable=repeatable))

    @contextmanager
    def exclusive(self, lock: Callable[[DriverConnection], None]) -> Iterator[None]:
        """Hold off the commits that `lock` locks out, in a transaction that reads of this thread see. Re-entrant.

        A commit within ends the transaction; the next read begins another.
        """
        outer = self._local.held
        if outer is not None:
            with self._failures_told():
                self._begin_held(outer)
                lock(outer.lease.connection)
            outer.locks.append(lock)
            try:
                yield
            finally:
                outer.locks.remove(lock)
            return
        with self._writer(), self._failures_told(), self._pool.lease() as lease:
            held = _Held(lease, [lock])
            try:
                self._begin_held(held)
                self._local.held = held
                yield
            finally:
                self._local.held = None
                if held.begun:
                    self._undo(lease)

    @property
    def is_exclusive(self) -> bool:
        """Whether this thread is within `exclusive`."""
        return self._local.held is not None

    @contextmanager
    def watching(self) -> Iterator[DriverConnection]:
        """The one connection that only looks for what others do."""
        with self._watch_lock, self._failures_told():
            connection, self._watching = self._watching, None
            if connection is not None and self.dialect.lost(connection):
                self._pool.discard(connection)
                connection = None
            if connection is None:
                connection = self._pool.connect()
            try:
                yield connection
            except BaseException:
                self._pool.discard(connection)
                raise
            self._watching = connection

    @contextmanager
    def _connection_to_read(self, *, one_state: bool) -> Iterator[DriverConnection]:
        held = self._local.held
        if held is not None:
            self._begin_held(held)
            yield held.lease.connection
            return
        with self._pool.lease() as lease:
            if self.dialect.autocommits and not one_state:
                yield lease.connection
                return
            self.dialect.begin(lease.connection, write=False)
            try:
                yield lease.connection
            finally:
                self._undo(lease)

    def _repeatedly(self, once: Callable[[], T]) -> T:
        attempts = Attempts(RetryPolicy.at_once(), within=self._settings.retry)
        while True:
            try:
                return once()
            except _PassingError as passing:
                if not attempts.pause():
                    error, count = passing.error, attempts.failed
                    error.detail = f"{error.detail} (tried {count} times)" if count > 1 else error.detail
                    raise error from passing.__cause__

    def _write_once(self, work: Callable[[DriverConnection], T], *, repeatable: bool) -> T:
        committing = False
        with self._writer(), self._failures_told(to_repeat=True), self._pool.lease() as lease:
            try:
                self.dialect.begin(lease.connection, write=True)
                result = work(lease.connection)
                committing = True
                self.dialect.commit(lease.connection)
            except BaseException as error:
                self._undo(lease)
                raise self._understood(error, again=repeatable or not committing) from error
            return result

    def _write_held(self, held: _Held, work: Callable[[DriverConnection], T]) -> T:
        """Inside `exclusive` what was read may not be true any more after a failure, so nothing is tried again."""
        try:
            self._begin_held(held)
            result = work(held.lease.connection)
            self.dialect.commit(held.lease.connection)
        except BaseException as error:
            self._undo(held.lease)
            raise self._understood(error, again=False) from error
        finally:
            held.begun = False
        return result

    def _begin_held(self, held: _Held) -> None:
        if not held.begun:
            self.dialect.begin(held.lease.connection, write=True)
            held.begun = True
            for lock in held.locks:
                lock(held.lease.connection)

    def _undo(self, lease: Lease) -> None:
        try:
            self.dialect.rollback(lease.connection)
        except self.dialect.errors:
            # What led here is told; the connection is not used again.
            lease.usable = False

    @contextmanager
    def _failures_told(self, *, to_repeat: bool = False) -> Iterator[None]:
        """The driver's errors as ours; with `to_repeat` as `_PassingError` where the same may succeed."""
        try:
            yield
        except NoConnectionError as error:
            failure = error.failure
            unreachable = StoreError.unreachable(
                self.dialect.kind, where=self.dialect.address, reason=failure.reason, category=failure.category
            )
            if to_repeat and failure.trouble is Trouble.TRANSIENT:
                raise _PassingError(unreachable) from error.__cause__
            raise unreachable from error.__cause__
        except self.dialect.errors as error:
            raise self._understood(error, again=to_repeat) from error

    def _understood(self, error: BaseException, *, again: bool) -> BaseException:
        """A driver's error as what is to be done about it; anything else as it is."""
        if not isinstance(error, self.dialect.errors):
            return error
        failure = self.dialect.failure(error)
        told = self._told(failure)
        return _PassingError(told) if failure.trouble is Trouble.TRANSIENT and again else told

    def _told(self, failure: Failure) -> VelostreamError:
        if failure.trouble in (Trouble.CONSTRAINT, Trouble.DUPLICATE):
            return TableError(f"{self.dialect.kind} refused the rows", detail=failure.reason, code="constraint")
        return StoreError(
            f'{self.dialect.kind} at "{self.dialect.address}" failed',
            detail=failure.reason,
            category=failure.category,
        )

    @contextmanager
    def _writer(self) -> Iterator[None]:
        if not self.dialect.one_writer:
            yield
            return
        with self._writing:
            yield


def _sharing_name(dialect: Dialect, settings: PoolSettings) -> tuple[str, str, str]:
    """Equal for tables that connect alike. The password is in it by its digest only."""
    alike = (dialect.connection_arguments, None if dialect.one_writer else settings)
    return (dialect.kind, dialect.address, hashlib.sha256(repr(alike).encode()).hexdigest())
