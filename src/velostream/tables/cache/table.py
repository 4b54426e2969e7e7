"""The kind `cache`: a memory table that keeps the rows used last.

It is a memory table from which rows are deleted when there are too many or when they are too old. To everybody else
such a deletion is a commit like any other: it has a version of its own, right after that of the write that caused it,
and the row is a -1 in `changes`, so a view over a cache is the query over what the cache holds. A snapshot taken before
still shows the row.

A row is used when it is written and when a read finds it: by key, by other columns or by a condition. Such a read is a
hit if it finds a row, each key of a batch counting for itself. A scan without a condition uses all rows alike, so it
leaves their order as it is. Rows older than `ttl` leave when somebody looks at the table next: at a read, at a write,
or when its version or stamp is asked for. In a durable table rows outlive a restart, but not the order of their use,
nor their age: they count as written when the table is opened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa

from velostream.model.change import CHANGE, ChangeBatch, Epoch, Mode, Write
from velostream.model.expression import Expression
from velostream.model.options import Option, Options, OptionType
from velostream.tables.base import CompiledCondition, KeyValue, Row, Snapshot, Table, TableCapabilities, TableSpec
from velostream.tables.cache.options import CacheLimits
from velostream.tables.cache.recency import HitCounter, Recency
from velostream.tables.lookups import POSITION
from velostream.tables.memory.conform import conform
from velostream.tables.memory.keys import key_normaliser, key_values
from velostream.tables.memory.table import MemoryTable
from velostream.tables.memory.values import python_values
from velostream.tables.stored import WRITABLE

_OWN_WAYS = ("ttl", "retention")
"""What a memory table has options for and a cache does itself: it has to know which rows leave."""
_HISTORY = "20"
"""Versions kept for those who follow the table. Who is further behind reads it again: it has few rows."""


class CacheTable(Table):
    """See the module's text for what is used, what leaves, and how that shows."""

    kind: ClassVar[str] = "cache"
    options: ClassVar[tuple[Option, ...]] = (
        Option("max_size", "how many rows are kept", OptionType.INTEGER, default="10000"),
        Option("ttl", "how long after it was written a row is kept; for ever by default", OptionType.DURATION),
        *(option for option in MemoryTable.options if option.name not in _OWN_WAYS),
    )
    capabilities: ClassVar[TableCapabilities] = replace(WRITABLE, versions=True)

    def __init__(self, rows: MemoryTable, limits: CacheLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Over a memory table that nobody else writes to."""
        self.name = rows.name
        self.schema = rows.schema
        self.hits = HitCounter()
        self._rows = rows
        self.limits = limits
        self._recency: Recency[tuple[Any, ...]] = Recency(max_size=limits.max_size, ttl=limits.ttl, clock=clock)
        self._identity = self.schema.key or self.schema.names
        """The columns by which a row is told from others: of a bag all of them, equal rows being one entry."""
        self._normalise_key = key_normaliser([self.schema.column(name).type for name in self._identity])
        self._evicted = 0
        self._expired = 0
        with rows.exclusive():
            self._note_added(rows.snapshot().scan())
            self._evict()

    @classmethod
    def open(cls, spec: TableSpec) -> CacheTable:
        options = Options(spec.options, cls.options)
        of_memory = {name: value for name, value in options.items() if name not in ("max_size", "ttl")}
        limits = CacheLimits.of(options)
        return cls(MemoryTable.open(replace(spec, options={"history": _HISTORY} | of_memory)), limits)

    @property
    def version(self) -> int:
        self._expire()
        return self._rows.version

    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        self._expire()
        with self._rows.exclusive():
            before = self._rows.version
            after = self._rows.commit(write, epoch)
            if after != before:
                self._note(self._rows.changes(before).arrow)
            self._renew(write)
            self._evict()
            return self._rows.version

    def exclusive(self) -> AbstractContextManager[None]:
        return self._rows.exclusive()

    def snapshot(self, version: int | None = None) -> Snapshot:
        self._expire()
        return _CacheSnapshot(self, self._rows.snapshot(version))

    def version_at(self, instant: datetime) -> int:
        return self._rows.version_at(instant)

    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        self._expire()
        return self._rows.changes(since, until)

    def compile_condition(self, condition: Expression) -> CompiledCondition:
        return self._rows.compile_condition(condition)

    def create_index(self, columns: Sequence[str]) -> None:
        self._rows.create_index(columns)

    def drop_index(self, columns: Sequence[str]) -> None:
        self._rows.drop_index(columns)

    def stats(self) -> Mapping[str, Any]:
        """The memory table's figures, and `max_size`, `hits`, `misses`, `hit_rate`, `evicted` and `expired`."""
        self._expire()
        return {
            **self._rows.stats(),
            "max_size": self.limits.max_size,
            **self.hits.figures(),
            "evicted": self._evicted,
            "expired": self._expired,
        }

    def drop(self) -> None:
        self._rows.drop()

    def close(self) -> None:
        self._rows.close()

    def used(self, rows: pa.Table) -> None:
        """A read has found these rows; they have the columns of `identity`."""
        self._recency.use(key_values(rows, self._identity))

    def used_key(self, key: KeyValue, *, found: bool) -> None:
        """A read has asked for a key, in whatever form."""
        self.hits.count(asked=1, found=int(found))
        if found:
            self._recency.use([key if self._normalise_key is None else self._normalise_key(key)])

    @property
    def identity(self) -> Sequence[str]:
        return self._identity

    def _note(self, changed: pa.Table) -> None:
        """What a commit did, as `changes` tells it: rows that went, then rows that came."""
        gone = changed.column(CHANGE).to_pylist().count(-1)
        self._recency.remove(key_values(changed.slice(0, gone), self._identity))
        self._note_added(changed.slice(gone))

    def _note_added(self, rows: pa.Table) -> None:
        values = zip(*(python_values(rows.column(name)) for name in self._identity), strict=True)
        self._recency.add(zip(key_values(rows, self._identity), values, strict=True))

    def _renew(self, write: Write) -> None:
        """A row written again as it was is no change, but it is used, and as old as its last writing."""
        if not self.schema.key or write.mode is Mode.DELETE:
            return
        rows = write.rows.drop_columns([CHANGE]) if CHANGE in write.rows.column_names else write.rows
        keys = conform(rows, table=self.name, schema=self.schema, columns=self.schema.key, check_nulls=False)
        self._recency.renew(key_values(keys, self.schema.key))

    def _evict(self) -> None:
        """With other commits held off."""
        evicted = self._recency.evict()
        self._evicted += len(evicted)
        self._delete(evicted)

    def _expire(self) -> None:
        if not self._recency.has_expired:
            return
        with self._rows.exclusive():
            expired = self._recency.expire()
            self._expired += len(expired)
            self._delete(expired)

    def _delete(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            arrays = [
                pa.array(values, self.schema.column(name).type)
                for name, values in zip(self._identity, zip(*rows, strict=True), strict=True)
            ]
            self._rows.commit(Write(Mode.DELETE, pa.Table.from_arrays(arrays, names=list(self._identity))))


class _CacheSnapshot(Snapshot):
    """A snapshot of the memory table whose reads count as use."""

    def __init__(self, table: CacheTable, rows: Snapshot) -> None:
        self.schema = rows.schema
        self.version = rows.version
        self._table = table
        self._rows = rows

    def get(self, key: KeyValue) -> Row | None:
        found = self._rows.get(key)
        self._table.used_key(key, found=found is not None)
        return found

    def contains(self, key: KeyValue) -> bool:
        found = self._rows.contains(key)
        self._table.used_key(key, found=found)
        return found

    def lookup(self, keys: pa.Array | pa.ChunkedArray | pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        return self._looked_up(self._rows.lookup(keys, self._with_identity(columns)), len(keys), columns)

    def lookup_by(
        self,
        on: Sequence[str],
        keys: pa.Array | pa.ChunkedArray | pa.Table,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        return self._looked_up(self._rows.lookup_by(on, keys, self._with_identity(columns)), len(keys), columns)

    def scan(self, condition: Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        if condition is None:
            return self._rows.scan(None, columns)
        found = self._used_by(condition, self._with_identity(columns))
        return found.select(self._names(columns))

    def count(self, condition: Expression | None = None) -> int:
        if condition is None:
            return self._rows.count()
        return int(self._used_by(condition, self._table.identity).num_rows)

    def batches(self, size: int, offset: int = 0) -> Iterator[pa.RecordBatch]:
        return self._rows.batches(size, offset)

    def _looked_up(self, found: pa.Table, asked: int, columns: Sequence[str] | None) -> pa.Table:
        self._table.hits.count(asked=asked, found=len(found.column(POSITION).unique()))
        self._table.used(found)
        return found.select([POSITION, *self._names(columns)])

    def _used_by(self, condition: Expression, columns: Sequence[str]) -> pa.Table:
        found = self._rows.scan(condition, columns)
        self._table.used(found)
        self._table.hits.count(asked=1, found=min(1, found.num_rows))
        return found

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        return [self.schema.column(name).name for name in (self.schema.names if columns is None else columns)]

    def _with_identity(self, columns: Sequence[str] | None) -> list[str]:
        """The columns asked for and those that tell which rows they are."""
        names = self._names(columns)
        return [*names, *(name for name in self._table.identity if name not in names)]
