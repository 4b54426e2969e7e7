"""The kind `redis`: a row is a hash, a commit a script that changes rows, version and epoch in one step."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, ClassVar, Self

from velostream.errors import StoreError, TableError, UnsupportedError
from velostream.model.change import ChangeBatch, Epoch, Mode, Write
from velostream.model.expression import Expression
from velostream.model.options import Option, Options, OptionType
from velostream.tables.base import Table, TableCapabilities, TableSpec
from velostream.tables.change_log import Changes, net_changes
from velostream.tables.difference import Differ
from velostream.tables.document_stores import (
    OPTIONS,
    connect_timeout,
    dropped,
    is_read_only,
    pool_size,
    read_only,
    retry_timeout,
    unknown_version,
    url_of,
)
from velostream.tables.redis.client import KIND, Connection
from velostream.tables.redis.condition import RedisCondition, compile_condition
from velostream.tables.redis.opening import Opening
from velostream.tables.redis.reader import Reader
from velostream.tables.redis.snapshot import RedisSnapshot
from velostream.tables.redis.state import TableState, create_index, drop_index, remove
from velostream.tables.redis.writer import Writer

_CACHED_CONDITIONS = 1024
_ATTEMPTS = 4
_PAUSE_SECONDS = 0.005
_VERSION_BYTES = 8


class RedisTable(Table):
    """Hashes with a common prefix in a database of a Redis server."""

    kind: ClassVar[str] = KIND
    options: ClassVar[tuple[Option, ...]] = (
        *OPTIONS,
        Option("index", "columns of numbers or times, a,b, that have a sorted set each for conditions on ranges"),
        Option("ttl", "how long after its last write a row expires", OptionType.DURATION),
    )
    capabilities: ClassVar[TableCapabilities] = TableCapabilities(
        insert=True,
        update=True,
        delete=True,
        upsert=True,
        lookup=True,
        conditions=True,
        epochs=True,
        changes=True,
        durable=True,
    )

    def __init__(self, spec: TableSpec, options: Options, connection: Connection, opened: Opening) -> None:
        """Use `open`."""
        self.name = spec.name
        self.schema = spec.schema
        self._connection = connection
        self._layout = opened.layout
        self._id = spec.id
        self.origin = opened.origin
        self._read_only = is_read_only(options)
        history = options.integer("history") or 0
        self._writer = Writer(connection, opened.layout, opened.incarnation, history)
        self._differ = Differ(spec.name, spec.schema)
        self._lock = threading.RLock()
        self._expected: int | None = None
        """Within `exclusive`, the version it has seen; a commit by another process since then is a conflict."""
        self._compiled = lru_cache(_CACHED_CONDITIONS)(self._compile)
        self._closed = False

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
            credentials={name: text for name in ("username", "password") if (text := options.text(name))},
            timeout=connect_timeout(options),
            patience=retry_timeout(options),
            pool_size=pool_size(options),
        )
        try:
            return cls(spec, options, connection, Opening.of(spec, options, connection))
        except BaseException:
            connection.close()
            raise

    @property
    def version(self) -> int:
        return 0 if self._read_only else self._state().version

    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        self._refuse_if_read_only("insert")
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
        if version is not None and version != newest:
            if version > newest:
                raise unknown_version(self.name, version, newest)
            raise TableError.version_gone(self.name, version, oldest=newest)
        reader = Reader(self._connection, self._layout)
        return RedisSnapshot(self.name, reader, newest, compile_condition=self.compile_condition)

    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        self._refuse_if_read_only("changes")
        state, steps = self._logged(since, until)
        end = state.version if until is None else until
        if max(since, end) > state.version:
            raise unknown_version(self.name, max(since, end), state.version)
        oldest = state.version if state.followed_from is None else state.followed_from
        if since < oldest:
            raise TableError.version_gone(self.name, since, oldest=oldest)
        return ChangeBatch(end, net_changes(self.schema, steps).signed())

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

    def exclusive(self) -> AbstractContextManager[None]:
        self._refuse_if_read_only("update")
        return self._exclusively()

    def drop(self) -> None:
        if self._read_only:
            return
        with self._lock:
            state = TableState.of(self._connection, self._layout)
            if state is not None and state.incarnation == self._writer.incarnation and state.id == self._id:
                remove(self._connection, self._layout, state, everything=state.made)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._connection.close()

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        with self._lock:
            outermost = self._expected is None
            if outermost:
                self._expected = self.version
            try:
                yield
            finally:
                if outermost:
                    self._expected = None

    def _commit(self, write: Write, epoch: Epoch | None) -> int:
        """Work out the difference and apply it, again if another process was faster."""
        number = self._writer.next_number()
        deadline = time.monotonic() + self._connection.patience.total_seconds()
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
            if time.monotonic() >= deadline:
                raise TableError.conflict(self.name)
            time.sleep(_PAUSE_SECONDS)

    def _logged(self, since: int, until: int | None) -> tuple[TableState, list[Changes]]:
        """The table's state and what commits did, read in one step."""
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

    def _state(self) -> TableState:
        return self._checked(TableState.of(self._connection, self._layout))

    def _checked(self, state: TableState | None) -> TableState:
        if state is None or state.incarnation != self._writer.incarnation:
            raise dropped(self.name)
        return state

    def _compile(self, condition: Expression) -> RedisCondition:
        state = TableState.of(self._connection, self._layout)
        return compile_condition(condition, self._layout, () if state is None else state.indexes)

    def _refuse_if_read_only(self, capability: str) -> None:
        if self._read_only:
            raise read_only(self.kind, self.name, capability)
