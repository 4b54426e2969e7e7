"""redis-py for Redis as a source: hashes as rows, and what the driver's errors mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from velostream.errors import Category, SourceError, StoreError
from velostream.model.redis import category_of, keys_beginning_with
from velostream.model.schema import Column, Schema
from velostream.model.server import ServerAddress
from velostream.sources.base import OnBad
from velostream.sources.database import DatabaseDriver, DatabaseSession, Selection, Statement
from velostream.sources.redis_values import Record, rows_of, schema_of

_SAMPLE = 1_000
_KEYS_PER_LOOK = 5_000
_HASHES_AT_ONCE = 1_000


@dataclass(frozen=True)
class RedisDriver(DatabaseDriver):
    """One database of a server. A relation is the beginning of the names of hashes, or the name of a stream."""

    kind: ClassVar[str] = "redis"

    address: ServerAddress
    key: str = "_key"
    """The column that holds what follows the prefix in the names of hashes."""
    secure: bool = False
    verify: bool = False
    connect_seconds: float = 5.0
    wait_seconds: float = 60.0
    """How long the server may stay silent."""
    timezone: str = "UTC"

    def open(self, *, snapshot: str | None = None, shared: bool = False) -> RedisSession:
        return RedisSession(self, self.client())

    def client(self) -> Any:
        """A client whom the server has answered."""
        with self.failures():
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry

            client = redis.Redis(
                host=self.address.host,
                port=self.address.port,
                db=self._database(),
                username=self.address.username or None,
                password=self.address.password,
                socket_connect_timeout=self.connect_seconds,
                socket_timeout=self.wait_seconds,
                socket_keepalive=True,
                # Trying again is decided by whoever waits for the answer.
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                ssl=self.secure,
                ssl_cert_reqs="required" if self.verify else "none",
                ssl_check_hostname=self.verify,
            )
            try:
                client.ping()
            except BaseException:
                client.close()
                raise
            return client

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Within, errors of the driver become errors of this source."""
        try:
            import redis
        except ImportError as error:
            raise StoreError.missing_driver(self.kind, module="redis", extra="redis") from error
        try:
            yield
        except redis.RedisError as error:
            category, where = category_of(error), str(self.address)
            reason = self.address.without_password(str(error) or type(error).__name__)
            if category is Category.NETWORK:
                raise SourceError.unreachable(self.kind, where=where, reason=reason, category=category) from error
            raise SourceError.refused(self.kind, where=where, reason=reason, category=category) from error

    def missing(self, name: str) -> SourceError:
        reason = "there is no key of that name"
        return SourceError.missing_table(self.kind, name, where=str(self.address), reason=reason, what="stream")

    def quote(self, name: str) -> str:
        return name

    def marker(self, position: int) -> str:
        return str(position)

    def select(
        self,
        selection: Selection,
        columns: Sequence[str],
        *,
        conditions: Sequence[str] = (),
        values: Sequence[Any] = (),
    ) -> Statement:
        return Statement(str(selection.table), (selection.limit,))

    def _database(self) -> int:
        if not self.address.database.isdigit():
            raise SourceError.refused(
                self.kind,
                where=str(self.address),
                reason="databases of Redis have numbers: redis://host:6379/0",
                category=Category.CONFIGURATION,
            )
        return int(self.address.database)


class RedisSession(DatabaseSession):
    """One client. What it reads is of no one moment: each hash is read by itself."""

    def __init__(self, driver: RedisDriver, client: Any) -> None:
        self._driver = driver
        self._client = client

    def discover(self, selection: Selection) -> Schema | None:
        """Judged by the first hashes in the order of their names; None while there are none."""
        prefix = str(selection.table)
        names = self._names(prefix)[:_SAMPLE]
        found = schema_of([dict(record.fields) for record in self._hashes(prefix, names)])
        if found is None:
            return None
        key = schema_of([{self._driver.key.encode(): name[len(prefix.encode()) :]} for name in names])
        own = () if key is None else (Column(self._driver.key, key.columns[0].type, nullable=False),)
        others = (column for column in found.columns if column.name.lower() != self._driver.key.lower())
        return Schema((*own, *others), (self._driver.key,))

    def rows(self, statement: Statement, schema: Schema, on_bad: OnBad, *, size: int) -> Iterator[pa.RecordBatch]:
        prefix, (limit,) = statement.sql, statement.values
        names = self._names(prefix)[:limit]
        at_once = min(size, _HASHES_AT_ONCE)
        for first in range(0, len(names), at_once):
            records = self._hashes(prefix, names[first : first + at_once])
            yield from rows_of(records, schema, on_bad, timezone=self._driver.timezone).to_batches()

    def close(self) -> None:
        self._client.close()

    def _names(self, prefix: str) -> list[bytes]:
        """Names of hashes, shorter ones first, so that numbers come in their order."""
        with self._driver.failures():
            found = self._client.scan_iter(match=keys_beginning_with(prefix), count=_KEYS_PER_LOOK, _type="hash")
            # A key may be met twice.
            return sorted(set(found), key=lambda name: (len(name), name))

    def _hashes(self, prefix: str, names: Sequence[bytes]) -> list[Record]:
        with self._driver.failures(), self._client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.hgetall(name)
            found: list[Mapping[bytes, bytes]] = pipeline.execute()
        start, key = len(prefix.encode()), self._driver.key.encode()
        return [
            Record(name.decode(errors="replace"), {**fields, key: name[start:]})
            for name, fields in zip(names, found, strict=True)
            # One without fields is gone since.
            if fields
        ]
