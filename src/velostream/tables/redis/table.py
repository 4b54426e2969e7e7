"""The kind `redis`: a row is a hash, a commit a script that changes rows, version and epoch in one step."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, ClassVar, Self

from velostream.errors import StoreError, TableError, UnsupportedError
from velostream.model.change import Epoch, Mode, Write
from velostream.model.expression import Expression
from velostream.model.options import Option, Options, OptionType
from velostream.model.retry import Attempts, RetryPolicy, RetryStrategy
from velostream.tables.base import TableSpec
from velostream.tables.change_log import Changes
from velostream.tables.documents import (
    CACHED_CONDITIONS,
    DOCUMENT_OPTIONS,
    DocumentTable,
    connect_timeout,
    credentials_of,
    dropped,
    url_of,
)
from velostream.tables.redis.client import KIND, Connection
from velostream.tables.redis.condition import RedisCondition, compile_condition
from velostream.tables.redis.opening import Opening
from velostream.tables.redis.reader import Reader
from velostream.tables.redis.snapshot import RedisSnapshot
from velostream.tables.redis.state import TableState, create_index, drop_index, remove
from velostream.tables.redis.writer import Writer
from velostream.tables.stored import pool_size, retry_timeout

_ATTEMPTS = 4
_AFTER_CONFLICT = RetryPolicy(RetryStrategy.FIXED, interval=timedelta(milliseconds=5))
"""A commit of another process takes no longer; it would win again if we waited for longer each time."""
_VERSION_BYTES = 8


class RedisTable(DocumentTable):
    """Hashes with a common prefix in a database of a Redis server."""

    kind: ClassVar[str] = KIND
    options: ClassVar[tuple[Option, ...]] = (
        *DOCUMENT_OPTIONS,
        Option("index", "columns of numbers or times, a,b, that have a sorted set each for conditions on ranges"),
        Option("ttl", "how long after its last write a row expires", OptionType.DURATION),
    )

    def __init__(self, spec: TableSpec, options: Options, connection: Connection, opened: Opening) -> None:
        """Use `open`."""
        super().__init__(spec, options, incarnation=opened.incarnation)
        self.origin = opened.origin
        self._connection = connection
        self._layout = opened.layout
        self._writer = Writer(connection, opened.layout, opened.incarnation, self._history)
        self._compiled = lru_cache(CACHED_CONDITIONS)(self._compile)

    @classmethod
    def open(cls, spec: TableSpec) -> Self:
        options = Options(spec.options, cls.options)
        url = url_of(cls.kind, options, example="redis://localhost:6379/0")
        try:
            import redis  # noqa: F401
        except ImportError as error:
            raise StoreError.missing_driver(cls.kind, module="redis", extra="redis") from error
        connection = Connection.to(
            url,
            credentials=credentials_of(options),
            timeout=connect_timeout(options),
            patience=retry_timeout(options),
            pool_size=pool_size(options) or 1,
        )
        try:
            return cls(spec, options, connection, Opening.of(spec, options, connection))
        except BaseException:
            connection.close()
            raise

    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        self._check_writable(write)
        with self._lock:
            version = self._commit(write, epoch)
            if self._expected is not None:
                self._expected = version
            return version

    def follow(self) -> int:
        self._refuse_if_read_only("changes")
        if self._state().ttl:
            refused = UnsupportedError.capability(self.kind, "changes")
            refused.detail = f'rows of table "{self.name}" expire in the store, which doesn\'t tell what they were'
            raise refused
        meta = self._layout.meta

        def start(pipeline: Any) -> None:
            version = pipeline.hget(meta, "version")
            pipeline.multi()
            pipeline.hsetnx(meta, "followed_from", version)

        # Watched, so that no commit comes between the version and the log that begins after it.
        self._connection.ask(lambda client: client.transaction(start, meta))
        return self._state().version

    def stamp(self) -> str | None:
        return self._connection.stamp()

    def snapshot(self, version: int | None = None) -> RedisSnapshot:
        newest = self.version
        self._check_newest(version, newest)
        reader = Reader(self._connection, self._layout)
        return RedisSnapshot(self.name, reader, newest, compile_condition=self.compile_condition)

    def compile_condition(self, condition: Expression) -> RedisCondition:
        return self._compiled(condition)

    def stats(self) -> Mapping[str, Any]:
        cache = self._compiled.cache_info()
        return {
            "rows": self.snapshot().count(),
            "version": self.version,
            "plan_cache_hits": cache.hits,
            "plan_cache_misses": cache.misses,
            "indexes": [[name] for name in self._state().indexes],
        }

    def create_index(self, columns: Sequence[str]) -> None:
        self._refuse_if_read_only("indexes")
        names = [self.schema.column(name).name for name in columns]
        if len(names) != 1:
            raise UnsupportedError.capability(self.kind, "indexes of several columns")
        create_index(self._connection, self._layout, names[0])
        self._compiled.cache_clear()

    def drop_index(self, columns: Sequence[str]) -> None:
        self._refuse_if_read_only("indexes")
        for name in columns:
            drop_index(self._connection, self._layout, self.schema.column(name).name)
        self._compiled.cache_clear()

    def drop(self) -> None:
        if self._read_only:
            return
        with self._lock:
            state = TableState.of(self._connection, self._layout)
            if state is not None and state.incarnation == self._incarnation and state.id == self._id:
                remove(self._connection, self._layout, state, everything=state.made)

    def _release(self) -> None:
        self._connection.close()

    def _commit(self, write: Write, epoch: Epoch | None) -> int:
        """Work out the difference and apply it, again if another process was faster."""
        number = self._writer.next_number()
        attempts = Attempts(_AFTER_CONFLICT, within=self._connection.patience)
        taken = 0
        while True:
            state = self._state()
            if epoch is not None and self._is_repeat(epoch):
                return state.version
            if self._expected is not None and state.version != self._expected:
                raise TableError.conflict(self.name)
            reader = Reader(self._connection, self._layout)
            difference = self._differ.difference(write, reader)
            if reader.versions <= {state.version}:
                if difference.empty and epoch is None:
                    return state.version
                based_on = state.version if reader.versions or self._expected is not None else None
                answer, *details = self._writer.commit(difference, state, number=number, epoch=epoch, expected=based_on)
                match answer:
                    case b"done" | b"repeat":
                        return int(details[0])
                    case b"dropped":
                        raise dropped(self.name)
                    case b"duplicate":
                        taken += 1
                        if write.mode is Mode.APPEND or taken == _ATTEMPTS:
                            raise self._differ.duplicate_key(difference.added, int(details[0]))
                    case _ if self._expected is not None:
                        raise TableError.conflict(self.name)
            if not attempts.pause():
                raise TableError.conflict(self.name)

    def _logged(self, since: int, until: int | None) -> tuple[TableState, list[Changes]]:
        last = "+inf" if until is None else str(until)

        def question(client: Any) -> list[Any]:
            with client.pipeline() as pipeline:
                pipeline.hgetall(self._layout.meta)
                pipeline.zrangebyscore(self._layout.changes, f"({since}", last)
                return list(pipeline.execute())

        meta, found = self._connection.ask(question)
        in_order = sorted(found, key=lambda entry: struct.unpack_from(">Q", entry))
        steps = [Changes.decode(entry[_VERSION_BYTES:]) for entry in in_order]
        return self._checked(TableState.from_hash(meta)), steps

    def _is_repeat(self, epoch: Epoch) -> bool:
        last = self._connection.ask(lambda client: client.hget(self._layout.epochs, epoch.writer))
        return last is not None and epoch.number <= int(last)

    def _entry(self) -> TableState | None:
        return TableState.of(self._connection, self._layout)

    def _state(self) -> TableState:
        return self._checked(self._entry())

    def _compile(self, condition: Expression) -> RedisCondition:
        state = TableState.of(self._connection, self._layout)
        return compile_condition(condition, self._layout, () if state is None else state.indexes)
