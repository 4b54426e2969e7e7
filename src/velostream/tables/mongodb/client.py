"""Connections to MongoDB: one client per address, shared by its tables; the driver's errors told as ours."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from velostream.errors import Category, StoreError, VelostreamError
from velostream.model.mongodb import APPLICATION, category_of
from velostream.model.retry import Attempts, RetryPolicy, RetryStrategy

T = TypeVar("T")
KIND = "mongodb"
_log = logging.getLogger(__name__)
_IDLE = "idleSession"
_SNAPSHOT_UNAVAILABLE = 246
_SNAPSHOT_TOO_OLD = 239
_ATTEMPTS = 4
"""After so many conflicts it is looked whether anybody is behind them."""
_RETRY = RetryPolicy(
    RetryStrategy.LINEAR,
    interval=timedelta(milliseconds=20),
    increment=timedelta(milliseconds=20),
    max_delay=timedelta(milliseconds=500),
)
_READ_AGAIN_WITHIN = timedelta(milliseconds=500)


class Connection:
    """A client in use. Threads may share it; a lost connection is made again by the next call."""

    _open: dict[tuple[Any, ...], Connection] = {}  # noqa: RUF012 - one registry for the process
    _open_lock = threading.Lock()

    def __init__(self, identity: tuple[Any, ...], client: Any, *, database: str, where: str) -> None:
        """Use `Connection.to`."""
        self._identity = identity
        self._users = 1
        self.client = client
        self.database = client[database]
        self.where = where
        self.group = (KIND, id(client))
        """A transaction is of one client's session, so tables of other clients have no part in it."""

    @classmethod
    def to(cls, url: str, *, credentials: Mapping[str, str], timeout: timedelta, pool_size: int) -> Connection:
        """A checked connection: the server has answered and knows the user. `StoreError` with its category."""
        identity = (url, *sorted(credentials.items()), timeout, pool_size)
        with cls._open_lock:
            known = cls._open.get(identity)
            if known is not None:
                known._users += 1  # noqa: SLF001 - its own class
                return known
        made = cls._connect(identity, url, credentials, timeout, pool_size)
        with cls._open_lock:
            cls._open.setdefault(identity, made)
        return made

    @classmethod
    def _connect(
        cls, identity: tuple[Any, ...], url: str, credentials: Mapping[str, str], timeout: timedelta, pool_size: int
    ) -> Connection:
        from pymongo import MongoClient
        from pymongo.errors import PyMongoError
        from pymongo.uri_parser import parse_uri

        try:
            parsed = parse_uri(url)
            milliseconds = int(timeout.total_seconds() * 1000)
            settings: dict[str, Any] = {
                "appName": APPLICATION,
                **credentials,
                "connect": False,
                "maxPoolSize": pool_size,
                "serverSelectionTimeoutMS": milliseconds,
                "connectTimeoutMS": milliseconds,
                "datetime_conversion": "DATETIME_AUTO",
            }
            client: Any = MongoClient(url, **settings)
        except (PyMongoError, ValueError, TypeError) as error:
            # The driver may quote the part of the address it stumbled over, and that may be of a password.
            raise StoreError.unreachable(
                KIND,
                where=url.partition("://")[0] + "://…",
                reason=str(error) if "@" not in url else "the address can't be read; names in it are percent-encoded",
                category=Category.CONFIGURATION,
            ) from None
        hosts = ",".join(f"{host}:{port}" for host, port in parsed["nodelist"])
        database = parsed["database"]
        where = f"mongodb://{hosts}/{database or ''}"
        if not database:
            raise StoreError.unreachable(
                KIND, where=where, reason="the address names no database", category=Category.CONFIGURATION
            )
        made = cls(identity, client, database=database, where=where)
        try:
            made._check()
        except BaseException:
            client.close()
            raise
        return made

    def _check(self) -> None:
        with self.told():
            # Asks for rights too: `hello` and `ping` answer anybody.
            self.database.command({"listCollections": 1, "nameOnly": True, "authorizedCollections": True})
            hello = self.client.admin.command("hello")
        if "setName" not in hello and hello.get("msg") != "isdbgrid":
            raise StoreError(
                f'{KIND} at "{self.where}" is a single server without a replica set',
                detail="rows and epochs are written in one transaction, which needs a replica set",
                hint="start mongod with --replSet rs0 and run rs.initiate(): one member is enough",
                category=Category.CONFIGURATION,
            )

    @contextmanager
    def told(self) -> Iterator[None]:
        """The driver's errors inside as ours."""
        from pymongo.errors import PyMongoError

        try:
            yield
        except PyMongoError as error:
            raise self._ours(error) from error

    def read(self, ask: Callable[[], T]) -> T:
        """Ask something that changes nothing, again where a connection was lost or a snapshot isn't there yet."""
        from pymongo.errors import ConnectionFailure, OperationFailure, ServerSelectionTimeoutError

        attempts = Attempts(_RETRY, within=_READ_AGAIN_WITHIN)
        while True:
            try:
                with self.told():
                    return ask()
            except StoreError as error:
                cause = error.__cause__
                lost = isinstance(cause, ConnectionFailure) and not isinstance(cause, ServerSelectionTimeoutError)
                early = isinstance(cause, OperationFailure) and cause.code == _SNAPSHOT_UNAVAILABLE
                if not (lost or early) or not attempts.pause():
                    raise

    def transact(self, work: Callable[[Any], T], *, patience: timedelta) -> T:
        """Run work in a transaction, given its session: all of it is done and on disk, or nothing.

        Work is run again after a conflict with another writer or a lost connection, until patience ends. A commit
        whose answer got lost is asked for again, which the server recognises. `StoreError` otherwise.
        """
        from pymongo.errors import PyMongoError

        attempts = Attempts(_RETRY, within=patience)
        with self.told(), self.client.start_session() as session:
            while True:
                try:
                    with session.start_transaction(**_transaction_settings()):
                        done = work(session)
                        # Left to the end of the block, an unknown result could not be told from a failure of the work.
                        self._commit(session, attempts)
                except PyMongoError as error:
                    if not error.has_error_label("TransientTransactionError") or not attempts.pause():
                        raise
                    if attempts.failed % _ATTEMPTS == 0:
                        self._end_orphans()
                else:
                    return done

    def _end_orphans(self) -> None:
        """End transactions of ours whose process is gone: the server would keep their locks for a minute.

        Ending one of a process that lives does no harm, it begins anew.
        """
        from pymongo.errors import PyMongoError

        try:
            with self.client.admin.aggregate(
                [{"$currentOp": {"idleConnections": True, "idleSessions": True}}]
            ) as found:
                operations = list(found)
            connected = {operation.get("connectionId") for operation in operations if operation["type"] != _IDLE}
            orphans = [
                {"id": operation["lsid"]["id"]}
                for operation in operations
                if operation["type"] == _IDLE
                and operation.get("appName") == APPLICATION
                and "transaction" in operation
                and operation.get("connectionId") not in connected
            ]
            if orphans:
                self.client.admin.command({"killSessions": orphans})
        except PyMongoError as error:
            _log.debug("orphaned transactions at %s are left to the server: %s", self.where, error)

    @staticmethod
    def _commit(session: Any, attempts: Attempts) -> None:
        from pymongo.errors import PyMongoError

        while True:
            try:
                session.commit_transaction()
            except PyMongoError as error:
                if not error.has_error_label("UnknownTransactionCommitResult") or not attempts.pause():
                    raise
            else:
                return

    def close(self) -> None:
        """Give back one use; the last one closes the client."""
        with self._open_lock:
            self._users -= 1
            if self._users:
                return
            if self._open.get(self._identity) is self:
                del self._open[self._identity]
        self.client.close()

    def _ours(self, error: Exception) -> VelostreamError:
        category = category_of(error)
        if category is Category.NETWORK or category is Category.AUTHENTICATION:
            return StoreError.unreachable(KIND, where=self.where, reason=str(error), category=category)
        return StoreError(f'{KIND} at "{self.where}" refused a request', detail=str(error), category=category)


def _transaction_settings() -> dict[str, Any]:
    from pymongo import ReadPreference
    from pymongo.read_concern import ReadConcern
    from pymongo.write_concern import WriteConcern

    return {
        "read_concern": ReadConcern("snapshot"),
        "write_concern": WriteConcern("majority"),
        "read_preference": ReadPreference.PRIMARY,
    }


def is_snapshot_gone(error: StoreError) -> bool:
    """Whether the server has given up the instant that was to be read."""
    return getattr(error.__cause__, "code", None) in (_SNAPSHOT_TOO_OLD, _SNAPSHOT_UNAVAILABLE)
