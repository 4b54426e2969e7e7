"""Connections to Redis: a pool per table, lost connections made again, the driver's errors told as ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from velostream.errors import Category, StoreError
from velostream.model.redis import category_of, keys_beginning_with
from velostream.model.retry import Attempts, RetryPolicy
from velostream.tables.redis.scripts import COMMIT, READ

T = TypeVar("T")
KIND = "redis"
_LONGEST_SCRIPT_SECONDS = 120
_KEYS_PER_LOOK = 5000
_STAMP_FIELDS = ("run_id", "rdb_last_save_time", "rdb_changes_since_last_save", "expired_keys", "evicted_keys")
"""What moves with every change of any key; the counter of changes starts again with every save."""


class Connection:
    """A pool of connections. Threads may share it."""

    def __init__(self, client: Any, *, where: str, patience: timedelta) -> None:
        """Use `Connection.to`."""
        self.client = client
        self.where = where
        self.patience = patience
        self._read = client.register_script(READ)
        self._commit = client.register_script(COMMIT)

    @classmethod
    def to(
        cls, url: str, *, credentials: Mapping[str, str], timeout: timedelta, patience: timedelta, pool_size: int
    ) -> Connection:
        """A checked connection: the server has answered and knows the user. `StoreError` with its category."""
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        try:
            pool = redis.BlockingConnectionPool.from_url(
                url,
                **credentials,
                max_connections=pool_size,
                timeout=_LONGEST_SCRIPT_SECONDS,
                socket_connect_timeout=timeout.total_seconds(),
                socket_timeout=_LONGEST_SCRIPT_SECONDS,
                socket_keepalive=True,
                decode_responses=False,
                # Trying again is decided here, where it is known what may be asked twice.
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except (ValueError, TypeError, redis.RedisError) as error:
            # The driver may quote the part of the address it stumbled over, and that may be of a password.
            raise StoreError.unreachable(
                KIND,
                where=url.partition("://")[0] + "://…",
                reason=str(error) if "@" not in url else "the address can't be read; names in it are percent-encoded",
                category=Category.CONFIGURATION,
            ) from None
        given = pool.connection_kwargs
        place = given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"
        made = cls(redis.Redis.from_pool(pool), where=f"redis://{place}/{given.get('db', 0)}", patience=patience)
        try:
            with made.told():
                made.client.ping()
        except BaseException:
            made.close()
            raise
        return made

    @contextmanager
    def told(self) -> Iterator[None]:
        """The driver's errors inside as ours."""
        import redis

        try:
            yield
        except redis.RedisError as error:
            category = category_of(error)
            if category in (Category.NETWORK, Category.AUTHENTICATION):
                raise StoreError.unreachable(KIND, where=self.where, reason=str(error), category=category) from error
            raise StoreError(
                f'{KIND} at "{self.where}" refused a request', detail=str(error), category=category
            ) from error

    def ask(self, question: Callable[[Any], T]) -> T:
        """Ask something that may be asked again, until it is answered or patience ends."""
        import redis

        attempts = Attempts(RetryPolicy.at_once(), within=self.patience)
        with self.told():
            while True:
                try:
                    return question(self.client)
                except (redis.ConnectionError, redis.TimeoutError) as error:
                    if category_of(error) is not Category.NETWORK or not attempts.pause():
                        raise

    def read(self, keys: Sequence[str], arguments: Sequence[Any]) -> list[Any]:
        return list(self.ask(lambda _: self._read(keys=keys, args=arguments)))

    def commit(self, keys: Sequence[str], arguments: Sequence[Any]) -> list[Any]:
        """The script knows a commit that it has done, so a lost answer is asked for again."""
        return list(self.ask(lambda _: self._commit(keys=keys, args=arguments)))

    def hashes(self, prefix: str) -> list[bytes]:
        """What follows the prefix in the names of all hashes that have it; sorted."""
        start = len(prefix.encode())

        def question(client: Any) -> list[bytes]:
            found = client.scan_iter(match=keys_beginning_with(prefix), count=_KEYS_PER_LOOK, _type="hash")
            # A key may be met twice. Behind a further colon lie what we keep about the table, and other tables.
            return sorted({key[start:] for key in found if b":" not in key[start:]})

        return self.ask(question)

    def stamp(self) -> str | None:
        """What differs once any key of the server was changed; None where the server doesn't tell."""
        told = self.ask(lambda client: client.info("everything"))
        if not all(name in told for name in _STAMP_FIELDS):
            return None
        return ":".join(str(told[name]) for name in _STAMP_FIELDS)

    def close(self) -> None:
        self.client.close()
        self.client.connection_pool.disconnect()
