"""A cache in front of a table in a slower store: reads by key go through it, writes go through and clear the way.

With `'cache.max_size'` or `'cache.ttl'` among its options a table of any kind is opened behind such a layer. `get`,
`contains` and `lookup` are answered from the rows read last; what isn't there is read from the store, in one batch, and
kept, keys that have no row included. Scans, conditions and lookups by other columns always go to the store.

What we write ourselves leaves the cache before it is committed, so nobody reads a row of ours that is no more. What
others write to the store is seen after `cache.ttl` at the latest (a minute unless the option says otherwise).

Whoever reads in order to write must not work with rows of that age: within `exclusive()`, and from a snapshot whose
`version` was asked for, every read goes to the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import pyarrow as pa

from velostream.errors import OptionError, TableError, UnsupportedError
from velostream.model.change import CHANGE, ChangeBatch, Epoch, Mode, Write
from velostream.model.expression import Expression
from velostream.model.grouping import Grouping
from velostream.model.options import Option, Options, OptionType
from velostream.tables.base import CompiledCondition, KeyValue, Row, Snapshot, Table, TableSpec, TableWrites
from velostream.tables.cache.options import CacheLimits
from velostream.tables.cache.recency import HitCounter, Recency
from velostream.tables.lookups import POSITION, Wanted
from velostream.tables.memory.conform import conform, stored_schema
from velostream.tables.memory.keys import key_normaliser, key_values
from velostream.tables.memory.rows import decoded_rows

_PREFIX = "cache."
LAYER_OPTIONS: tuple[Option, ...] = (
    Option("cache.max_size", "rows kept in memory in front of the store", OptionType.INTEGER, default="10000"),
    Option("cache.ttl", "after which time writes of others are seen for sure", OptionType.DURATION, default="1m"),
)
"""Options of a table of any kind; `open_table` takes them out before the kind sees the rest."""


def open_table(table_class: type[Table], spec: TableSpec) -> Table:
    """Open a table of a kind, behind a cache if the options ask for one."""
    of_layer = {name: value for name, value in spec.options.items() if name.lower().startswith(_PREFIX)}
    if not of_layer:
        return table_class.open(spec)
    limits = CacheLimits.of(Options(of_layer, LAYER_OPTIONS), prefix=_PREFIX)
    if not spec.schema.key:
        raise OptionError(
            f'table "{spec.name}" has no key to cache its rows by',
            hint="declare one: PRIMARY KEY after a column or select item, or WITH ('key' = 'a,b')",
        )
    rest = {name: value for name, value in spec.options.items() if name not in of_layer}
    return CachedTable(table_class.open(replace(spec, options=rest)), limits)


def commit_together(parts: Sequence[TableWrites], epoch: Epoch | None = None) -> None:
    """Commit tables of one group, any of which may be behind caches."""
    behind: list[TableWrites] = []
    with ExitStack() as changing:
        for part in parts:
            if isinstance(part.table, CachedTable):
                # Which rows a transaction of many writes changes isn't worth finding out.
                changing.enter_context(part.table.rows.changing(None))
                behind.append(replace(part, table=part.table.behind))
            else:
                behind.append(part)
        behind[0].table.commit_together(behind, epoch)


class CachedTable(Table):
    """A table behind a cache. It can do what the table can, and keeps its promises."""

    def __init__(self, behind: Table, limits: CacheLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        # One class stands before tables of all kinds: what it can do is what the table behind can.
        self.kind = behind.kind  # type: ignore[misc]
        self.options = behind.options  # type: ignore[misc]
        self.capabilities = behind.capabilities  # type: ignore[misc]
        self.name = behind.name
        self.schema = behind.schema
        self.origin = behind.origin
        self.behind = behind
        self.rows = _KnownRows(limits, clock)
        self.normalise_key = key_normaliser([self.schema.column(name).type for name in self.schema.key])
        self._of_thread = _ExclusiveStretches()

    @classmethod
    def open(cls, spec: TableSpec) -> CachedTable:
        raise UnsupportedError(f'table "{spec.name}" is opened by its kind; use open_table')

    @property
    def version(self) -> int:
        return self.behind.version

    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        with self.rows.changing(self._keys_of(write)):
            return self.behind.commit(write, epoch)

    @property
    def commit_group(self) -> object:
        return self.behind.commit_group

    def commit_together(self, parts: Sequence[TableWrites], epoch: Epoch | None = None) -> None:
        commit_together(parts, epoch)

    def follow(self) -> int:
        return self.behind.follow()

    def stamp(self) -> str | None:
        return self.behind.stamp()

    def snapshot(self, version: int | None = None) -> Snapshot:
        """The newest version goes through the cache, an older one and any within `exclusive()` to the store."""
        if version is not None or self._of_thread.depth:
            return self.behind.snapshot(version)
        return _CachedSnapshot(self)

    def version_at(self, instant: datetime) -> int:
        return self.behind.version_at(instant)

    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        return self.behind.changes(since, until)

    def compile_condition(self, condition: Expression) -> CompiledCondition:
        return self.behind.compile_condition(condition)

    def compile_grouping(self, grouping: Grouping) -> str | None:
        return self.behind.compile_grouping(grouping)

    def create_index(self, columns: Sequence[str]) -> None:
        self.behind.create_index(columns)

    def drop_index(self, columns: Sequence[str]) -> None:
        self.behind.drop_index(columns)

    def stats(self) -> Mapping[str, Any]:
        """The table's own figures, and `cache_rows`, `cache_hits`, `cache_misses` and `cache_hit_rate`."""
        figures = {"rows": len(self.rows), **self.rows.hits.figures()}
        return {**self.behind.stats(), **{f"cache_{name}": value for name, value in figures.items()}}

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self.behind.exclusive():
            self._of_thread.depth += 1
            try:
                yield
            finally:
                self._of_thread.depth -= 1

    def drop(self) -> None:
        self.behind.drop()

    def close(self) -> None:
        self.behind.close()

    def _keys_of(self, write: Write) -> list[Hashable] | None:
        """Whose rows a write may change; None: anybody's."""
        if write.mode is Mode.REPLACE or not self.schema.key:
            return None
        rows = write.rows.drop_columns([CHANGE]) if CHANGE in write.rows.column_names else write.rows
        keys = conform(rows, table=self.name, schema=self.schema, columns=self.schema.key, check_nulls=False)
        return key_values(keys, self.schema.key)


class _ExclusiveStretches(threading.local):
    """How many of `CachedTable.exclusive()` a thread is in."""

    depth = 0


@dataclass(frozen=True)
class _Known:
    """What a version of the store has under a key."""

    row: pa.Table | None
    version: int

    @cached_property
    def decoded(self) -> Row | None:
        return None if self.row is None else next(iter(decoded_rows(self.row.to_batches()[0])))


class _KnownRows:
    """The rows a layer knows, and which snapshots may use and add them.

    A row that was read at a version is right for later ones as long as it is here: a commit of ours takes the rows of
    its keys out before it begins. Nothing is added while it is under way, and nothing later of what was read before it
    had ended, well or not.
    """

    def __init__(self, limits: CacheLimits, clock: Callable[[], float]) -> None:
        self.hits = HitCounter()
        self._recency: Recency[_Known] = Recency(max_size=limits.max_size, ttl=limits.ttl, clock=clock)
        self._lock = threading.Lock()
        self.generation = 0
        """Moves when a commit begins and when it ends."""
        self._committing = 0

    def __len__(self) -> int:
        return len(self._recency)

    @contextmanager
    def changing(self, keys: Sequence[Hashable] | None) -> Iterator[None]:
        """Around a commit that may change the rows of these keys; None: of any."""
        with self._lock:
            self._committing += 1
            self.generation += 1
            if keys is None:
                self._recency.clear()
            else:
                self._recency.remove(keys)
        try:
            yield
        finally:
            with self._lock:
                self._committing -= 1
                self.generation += 1

    def find(self, key: Hashable, version: int | None) -> _Known | None:
        """What is known of a key, for a version; None: for the newest."""
        known = self._recency.find(key)
        return known if known is None or version is None or known.version <= version else None

    def add(self, read: Mapping[Hashable, _Known], *, generation: int) -> None:
        """What was read from the store; `generation` is from before that."""
        with self._lock:
            if self._committing or generation != self.generation:
                return
            self._recency.remove(read)
            self._recency.add(read.items())
            self._recency.evict()


class _CachedSnapshot(Snapshot):
    """A table's rows by key read through the cache.

    Of a kind with versions it is one version. Of another one every call answers from the newest rows, and what the
    cache knows is answered without a word to the store.

    `version` is for telling whether anything was committed since the rows were read, so it is never newer than one of
    them, and once it was asked for the cache isn't used any more. Ask before the first read: what the cache gave before
    that counts as read when it got there, however little has changed since.
    """

    def __init__(self, table: CachedTable) -> None:
        self.schema = table.schema
        self._table = table
        self._rows = table.rows
        self._generation = table.rows.generation
        self._pinned = table.behind.snapshot() if table.capabilities.versions else None
        self._from_store = False
        """Whether the cache is passed by."""
        self._oldest_read: int | None = None
        """The lowest version of what was answered."""

    @cached_property
    def version(self) -> int:  # type: ignore[override]
        self._from_store = True
        if self._pinned is not None:
            return self._pinned.version
        newest = self._table.behind.version
        return newest if self._oldest_read is None else min(newest, self._oldest_read)

    def get(self, key: KeyValue) -> Row | None:
        return self._of_key(key).decoded

    def contains(self, key: KeyValue) -> bool:
        return self._of_key(key).row is not None

    def lookup(self, keys: pa.Array | pa.ChunkedArray | pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        if not self.schema.key:
            return self._behind.lookup(keys, columns)
        names = [self.schema.column(name).name for name in (self.schema.names if columns is None else columns)]
        wanted = Wanted(keys, on=self.schema.key, schema=self.schema, table=self._table.name)
        generation = self._rows.generation
        found = self._found(wanted.distinct)
        if self._pinned is None and self._rows.generation != generation:
            # A commit in between: what was known may be from before it, what was read from after it.
            found = self._read(wanted.distinct)
        return wanted.answer(found, names)

    def lookup_by(
        self,
        on: Sequence[str],
        keys: pa.Array | pa.ChunkedArray | pa.Table,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        return self._behind.lookup_by(on, keys, columns)

    def scan(self, condition: Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        return self._behind.scan(condition, columns)

    def count(self, condition: Expression | None = None) -> int:
        return self._behind.count(condition)

    def group(self, grouping: Grouping) -> pa.Table | None:
        return self._behind.group(grouping)

    def batches(self, size: int, offset: int = 0) -> Iterator[pa.RecordBatch]:
        return self._behind.batches(size, offset)

    @property
    def _behind(self) -> Snapshot:
        """The store, as it is at the pinned version or now; what it answers with has at least its version."""
        behind = self._table.behind.snapshot() if self._pinned is None else self._pinned
        self._note(behind.version)
        return behind

    def _known(self, key: Hashable) -> _Known | None:
        if self._from_store:
            return None
        known = self._rows.find(key, None if self._pinned is None else self._pinned.version)
        if known is not None:
            self._note(known.version)
        return known

    def _note(self, version: int) -> None:
        """A version that rows were read at."""
        if self._oldest_read is None or version < self._oldest_read:
            self._oldest_read = version

    def _of_key(self, key: KeyValue) -> _Known:
        normalise = self._table.normalise_key
        hashable = key if normalise is None else normalise(key)
        try:
            known = self._known(hashable)
        except TypeError as error:
            raise TableError(
                f'{key!r} can\'t be a key of table "{self._table.name}"',
                hint="a key is a scalar, or a tuple for a composite key",
                code="wrong-type",
            ) from error
        self._rows.hits.count(asked=1, found=int(known is not None))
        if known is not None:
            return known
        generation = self._generation_of_read()
        behind = self._behind
        found = behind.get(key)
        row = None if found is None else pa.Table.from_pylist([found.as_dict()], stored_schema(self.schema))
        read = _Known(row, behind.version)
        self._rows.add({hashable: read}, generation=generation)
        return read

    def _found(self, keys: pa.Table) -> pa.Table:
        """The rows of keys, those that aren't known from the store."""
        known = [self._known(key) for key in key_values(keys, self.schema.key)]
        self._rows.hits.count(asked=len(known), found=sum(one is not None for one in known))
        missing = [place for place, one in enumerate(known) if one is None]
        found = [one.row for one in known if one is not None and one.row is not None]
        if missing:
            found.append(self._read(keys.take(pa.array(missing))))
        return pa.concat_tables([stored_schema(self.schema).empty_table(), *found])

    def _read(self, keys: pa.Table) -> pa.Table:
        """The rows of keys from the store; they are known from now on."""
        generation = self._generation_of_read()
        behind = self._behind
        given = keys if len(self.schema.key) > 1 else keys.column(0)
        found = behind.lookup(given).drop_columns([POSITION]).cast(stored_schema(self.schema))
        read = dict.fromkeys(key_values(keys, self.schema.key), _Known(None, behind.version))
        for place, key in enumerate(key_values(found, self.schema.key)):
            # A copy: a slice would keep the whole batch in memory.
            read[key] = _Known(found.take([place]), behind.version)
        self._rows.add(read, generation=generation)
        return found

    def _generation_of_read(self) -> int:
        """From before the store was looked at, be it now or when the version was pinned."""
        return self._rows.generation if self._pinned is None else self._generation
