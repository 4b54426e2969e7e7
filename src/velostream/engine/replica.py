"""Replicas of tables for Spark's Python workers: published by the driver as files, mapped by the workers.

A replica is a base (all rows of one version), an index of it by the looked-up columns, and the changes since. Rows are
numbered through base and changes alike and never move: a change says which numbers are gone and brings rows that get
the next ones. So publishing and following cost what changed, an opened replica serves every version since its base, and
a worker that starts anew only maps files and reads the changes.
"""

from __future__ import annotations

import shutil
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from velostream.errors import TableError
from velostream.model.change import CHANGE
from velostream.model.schema import Schema
from velostream.tables.base import Snapshot, Table
from velostream.tables.memory.growable import Integers, Mask
from velostream.tables.memory.hash_index import HashIndex, Pairs
from velostream.tables.memory.matching import Column, Hashes, as_array, hash_rows, rows_match, rows_without_null

_LARGEST_SHARE = 0.2
"""Changes beyond this share of the base are worth a new one."""
_FEWEST_CHANGES = 10_000
"""Fewer changed rows than that never are."""
_FEWEST_DELTAS = 64
_ROWS_PER_DELTA = 10_000
"""A base of so many rows bears one more file of changes: opening them all must stay cheaper than writing a base."""
_GENERATIONS_KEPT = 2
_REMOVED = "removed"


@dataclass(frozen=True)
class Replica:
    """Where a table's rows of one version are found. Small: it travels with every batch.

    Its files stay as long as this object lives in the driver; keep it until the batch is done.
    """

    folder: str
    """Of one base and what has been published on top of it."""
    index: str
    """Folder of the base's index by `columns`."""
    columns: tuple[str, ...]
    deltas: int
    """How many of the changes belong to this version."""
    version: int

    @property
    def base_path(self) -> Path:
        return Path(self.folder, "base.arrow")

    @property
    def index_path(self) -> Path:
        return Path(self.folder, self.index)

    def delta_path(self, number: int) -> Path:
        return Path(self.folder, f"delta-{number}.arrow")


class LookupReplica:
    """A replica opened in a worker, as of one version."""

    def __init__(self, rows: _Rows, deltas: int) -> None:
        self._rows = rows
        self._deltas = deltas

    @property
    def schema(self) -> pa.Schema:
        return self._rows.base.schema

    def find(self, keys: Sequence[Column], *, most: int | None = None) -> Pairs:
        """Numbers of the rows whose columns equal the keys, as Spark joins: NULL matches nothing, NaN matches NaN.

        `TooManyPairsError` when there are more than `most`.
        """
        complete = rows_without_null(keys)
        if complete is None:
            return self._rows.find(keys, self._deltas, most=most)
        chosen = np.flatnonzero(complete)
        pairs = self._rows.find(_taken(keys, chosen), self._deltas, most=most)
        return Pairs(chosen[pairs.rows], pairs.positions)

    def take(self, positions: Integers, columns: Sequence[str]) -> list[pa.Array]:
        """Columns of the rows of these numbers; -1 is a row of NULLs."""
        return self._rows.take(positions, columns)

    def lookup(self, keys: Sequence[Column], columns: Sequence[str]) -> tuple[Integers, pa.Table]:
        """The rows that match, in the order of the keys and then of the table, and which key each one answers."""
        pairs = self.find(keys)
        return pairs.rows, pa.table(self.take(pairs.positions, columns), names=list(columns))


_TABLES_OPEN = 64
_BASES_OPEN = 2
_Key = TypeVar("_Key")
_opened: OrderedDict[tuple[str, tuple[str, ...]], OrderedDict[str, _Rows]] = OrderedDict()
_opening = threading.Lock()


def open_replica(replica: Replica) -> LookupReplica:
    """The rows of a replica in this process; mapped once, then only what is new is read."""
    with _opening:
        table = (str(Path(replica.folder).parent), replica.columns)
        bases = _opened.setdefault(table, OrderedDict())
        rows = bases.get(replica.folder)
        if rows is None:
            rows = bases[replica.folder] = _Rows(replica)
        rows.follow(replica)
        _keep_recent(_opened, table, most=_TABLES_OPEN)
        _keep_recent(bases, replica.folder, most=_BASES_OPEN)
        return LookupReplica(rows, replica.deltas)


def _close_replicas(directory: Path) -> None:
    """Give back what this process has mapped of the replicas in a directory."""
    with _opening:
        for table in [table for table in _opened if Path(table[0]).is_relative_to(directory)]:
            del _opened[table]


def _keep_recent(opened: OrderedDict[_Key, Any], used: _Key, *, most: int) -> None:
    opened.move_to_end(used)
    while len(opened) > most:
        opened.popitem(last=False)


class _Rows:
    """All rows ever numbered in one folder, with the change that removed them, indexed by some of the columns."""

    def __init__(self, replica: Replica) -> None:
        self.base = _read_base(replica.base_path)
        self.columns = replica.columns
        self.deltas = 0
        self._index = HashIndex.load(replica.index_path)
        self._added = HashIndex.of(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))
        self._added_rows = self.base.slice(0, 0)
        # Change numbers start at 1. Zeros are not really there until they are written to.
        self._base_removed = np.zeros(self.base.num_rows, dtype=np.int32)
        self._added_removed = np.zeros(0, dtype=np.int32)
        self._ends = [self.base.num_rows]
        """How many rows had been numbered after each change."""

    def follow(self, replica: Replica) -> None:
        """Take in the changes up to this version, if they are not known yet."""
        unknown = range(self.deltas + 1, replica.deltas + 1)
        if unknown:
            self.apply([_read_delta(replica.delta_path(number)) for number in unknown])

    def apply(self, changes: Sequence[_Delta]) -> None:
        """Take in the next changes. A reader of an earlier one may be at work, so the index grows last."""
        size, end = self.base.num_rows, self._ends[-1]
        rows = pa.concat_tables([change.rows for change in changes])
        self._added_rows = pa.concat_tables([self._added_rows, rows]).combine_chunks()
        self._added_removed = np.concatenate([self._added_removed, np.zeros(rows.num_rows, dtype=np.int32)])
        for number, change in enumerate(changes, start=self.deltas + 1):
            removed = change.removed
            self._base_removed[removed[removed < size]] = number
            self._added_removed[removed[removed >= size] - size] = number
            self._ends.append(self._ends[-1] + change.rows.num_rows)
        self.deltas += len(changes)
        hashes = hash_rows([rows.column(name) for name in self.columns])
        self._added = self._added.with_more(hashes, np.arange(end, self._ends[-1]))

    def find(self, keys: Sequence[Column], deltas: int, *, most: int | None = None) -> Pairs:
        """Row numbers that equal the keys after so many changes; here NULL equals NULL."""
        pairs = self.candidates(hash_rows(keys), deltas, most=most)
        wanted = keys if _is_every_row(pairs.rows, len(keys[0])) else _taken(keys, pairs.rows)
        equal = rows_match(wanted, self.take(pairs.positions, self.columns))
        return pairs if equal.all() else Pairs(pairs.rows[equal], pairs.positions[equal])

    def candidates(self, hashes: Hashes, deltas: int, *, most: int | None = None) -> Pairs:
        """Row numbers that have these hashes after so many changes."""
        pairs = self._index.find(hashes, most=most)
        if not self.deltas:
            return pairs
        more = self._added.find(hashes, most=most)
        if len(more.rows):
            rows = np.concatenate([pairs.rows, more.rows])
            order = np.argsort(rows, kind="stable")
            pairs = Pairs(rows[order], np.concatenate([pairs.positions, more.positions])[order])
        there = self._is_there(pairs.positions, deltas)
        return pairs if there.all() else Pairs(pairs.rows[there], pairs.positions[there])

    def take(self, positions: Integers, columns: Sequence[str]) -> list[pa.Array]:
        size = self.base.num_rows
        if len(positions) and positions.max() >= size:
            halves = [
                pa.chunked_array([*self.base.column(name).chunks, *self._added_rows.column(name).chunks])
                for name in columns
            ]
        else:
            halves = [self.base.column(name) for name in columns]
        indices = pa.array(positions, mask=positions < 0) if (positions < 0).any() else pa.array(positions)
        return [as_array(column.take(indices)) for column in halves]

    def _is_there(self, positions: Integers, deltas: int) -> Mask:
        size = self.base.num_rows
        removed = np.zeros(len(positions), dtype=np.int32)
        in_base = positions < size
        removed[in_base] = self._base_removed[positions[in_base]]
        removed[~in_base] = self._added_removed[positions[~in_base] - size]
        there: Mask = ((removed == 0) | (removed > deltas)) & (positions < self._ends[deltas])
        return there


class ReplicaPublisher:
    """The driver's side. May be called from many threads; the folder belongs to this object alone."""

    def __init__(self, directory: Path) -> None:
        # Workers outlive connections and know what they have opened by its path, so no two publishers share one.
        self._directory = directory / uuid.uuid4().hex
        self._tables: weakref.WeakKeyDictionary[Table, _Publication] = weakref.WeakKeyDictionary()
        self._count = 0
        self._lock = threading.Lock()
        shutil.rmtree(directory, ignore_errors=True)
        self._directory.mkdir(parents=True)

    def publish(self, table: Table, *, columns: tuple[str, ...], at: int) -> Replica:
        """A replica of the table as of commit number `at`, to be looked up by these columns.

        Costs what has changed since the number published before. `TableError.version_gone` when `at` isn't kept.
        """
        names = tuple(table.schema.column(name).name for name in columns)
        return self._publication(table).publish(table, names, at)

    def publish_rows(self, rows: pa.Table, *, columns: tuple[str, ...]) -> Replica:
        """A replica of rows that belong to no version of a table, gone with the object that is given."""
        with self._lock:
            self._count += 1
            folder = self._directory / "rows" / str(self._count)
        folder.mkdir(parents=True)
        _write_base(rows, folder / "base.arrow")
        _write_index(rows, columns, folder / "index-0")
        replica = Replica(str(folder), "index-0", columns, deltas=0, version=0)
        weakref.finalize(replica, shutil.rmtree, folder, ignore_errors=True)
        return replica

    def close(self) -> None:
        """Remove everything."""
        with self._lock:
            self._tables.clear()
        _close_replicas(self._directory)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _publication(self, table: Table) -> _Publication:
        with self._lock:
            found = self._tables.get(table)
            if found is None:
                self._count += 1
                folder = self._directory / f"table-{self._count}"
                found = self._tables[table] = _Publication(folder)
                weakref.finalize(table, shutil.rmtree, folder, ignore_errors=True)
            return found


class _Publication:
    """What has been published of one table: a few chains, of which the one that reaches furthest is extended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chains: list[_Chain] = []
        self._count = 0
        self._lock = threading.Lock()

    def publish(self, table: Table, columns: tuple[str, ...], at: int) -> Replica:
        with self._lock:
            snapshot = table.snapshot(at)
            replica = self._chain(table, snapshot, at).replica(columns, snapshot.version)
            self._clean()
            return replica

    def _chain(self, table: Table, snapshot: Snapshot, at: int) -> _Chain:
        for chain in self._chains:
            if chain.reaches(snapshot):
                return chain
        furthest = max(self._chains, key=lambda chain: chain.version, default=None)
        if furthest is not None and _extended(furthest, table, snapshot, at):
            return furthest
        self._count += 1
        self._chains.append(_Chain(self._folder / f"base-{self._count}", snapshot))
        return self._chains[-1]

    def _clean(self) -> None:
        furthest = max(self._chains, key=lambda chain: chain.version)
        recent = self._chains[-_GENERATIONS_KEPT:]
        for chain in [chain for chain in self._chains if chain is not furthest and chain not in recent]:
            if not chain.in_use:
                self._chains.remove(chain)
                chain.remove()


def _extended(chain: _Chain, table: Table, snapshot: Snapshot, at: int) -> bool:
    if chain.version > snapshot.version or chain.schema != snapshot.schema:
        return False
    try:
        changes = table.changes(chain.version, at)
    except TableError:
        # The history since then is gone; a new base does without it.
        return False
    return chain.extend(changes.arrow, snapshot.version)


class _Chain:
    """One base and the changes published on top of it."""

    def __init__(self, folder: Path, snapshot: Snapshot) -> None:
        self.schema: Schema = snapshot.schema
        self.version = snapshot.version
        self._folder = folder
        self._deltas_at = {snapshot.version: 0}
        self._deltas = 0
        self._changed = 0
        self._indexes: dict[tuple[str, ...], str] = {}
        self._handed: weakref.WeakValueDictionary[tuple[tuple[str, ...], int], Replica] = weakref.WeakValueDictionary()
        self._finder: _Rows | None = None
        folder.mkdir(parents=True)
        _write_base(snapshot.scan(), folder / "base.arrow")

    @cached_property
    def _base(self) -> pa.Table:
        return _read_base(self._folder / "base.arrow")

    @property
    def in_use(self) -> bool:
        return bool(self._handed)

    def reaches(self, snapshot: Snapshot) -> bool:
        return snapshot.version in self._deltas_at and self.schema == snapshot.schema

    def replica(self, columns: tuple[str, ...], version: int) -> Replica:
        found = self._handed.get((columns, version))
        if found is None:
            found = self._replica(columns, version)
            self._handed[columns, version] = found
        return found

    def extend(self, changes: pa.Table, version: int) -> bool:
        """Publish the changes up to a version; False when a new base is the better way."""
        if changes.num_rows:
            most = max(_FEWEST_CHANGES, int(self._base.num_rows * _LARGEST_SHARE))
            if self._changed + changes.num_rows > most:
                return False
            if self._deltas >= _FEWEST_DELTAS + self._base.num_rows // _ROWS_PER_DELTA:
                return False
            gone, came = _split(changes, self._base.schema)
            removed = self._numbers(gone)
            if removed is None:
                return False
            delta = _Delta(removed, came)
            _write_delta(self._folder / f"delta-{self._deltas + 1}.arrow", delta)
            if self._finder is not None:
                self._finder.apply([delta])
            self._deltas += 1
            self._changed += changes.num_rows
        self._deltas_at[version] = self._deltas
        self.version = version
        return True

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _replica(self, columns: tuple[str, ...], version: int) -> Replica:
        return Replica(str(self._folder), self._index(columns), columns, self._deltas_at[version], version)

    def _index(self, columns: tuple[str, ...]) -> str:
        """The index of the base by these columns, made when first asked for."""
        name = self._indexes.get(columns)
        if name is None:
            name = f"index-{len(self._indexes)}"
            _write_index(self._base, columns, self._folder / name)
            self._indexes[columns] = name
        return name

    def _numbers(self, gone: pa.Table) -> Integers | None:
        """The numbers of rows that went away; None when they can't all be told."""
        if not gone.num_rows:
            return np.zeros(0, dtype=np.int64)
        identity = self.schema.key or self.schema.names
        if self._finder is None:
            here = self._replica(identity, self.version)
            self._finder = _Rows(here)
            self._finder.follow(here)
        rows = [as_array(gone.column(name)) for name in identity]
        hashes, first, group, counts = np.unique(
            hash_rows(rows), return_index=True, return_inverse=True, return_counts=True
        )
        if len(first) < gone.num_rows and not rows_match(rows, _taken(rows, first[group])).all():
            return None
        pairs = self._finder.candidates(hashes, self._deltas)
        chosen = _rank_in_run(pairs.rows) < counts[pairs.rows]
        positions = pairs.positions[chosen]
        if len(positions) != gone.num_rows:
            return None
        expected = _taken(rows, first[pairs.rows[chosen]])
        return positions if rows_match(expected, self._finder.take(positions, identity)).all() else None


def _split(changes: pa.Table, schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
    """Rows that went away and rows that came."""
    signs = as_array(changes.column(CHANGE)).to_numpy()
    rows = changes.select(schema.names).cast(schema)
    return rows.take(pa.array(np.flatnonzero(signs < 0))), rows.take(pa.array(np.flatnonzero(signs > 0)))


def _rank_in_run(values: Integers) -> Integers:
    """For ascending values: how many equal ones stand before each."""
    first = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    return np.arange(len(values)) - np.repeat(starts, np.diff(np.append(starts, len(values))))


def _taken(columns: Sequence[Column], rows: Integers) -> list[pa.Array]:
    indices = pa.array(rows)
    return [as_array(column).take(indices) for column in columns]


def _is_every_row(rows: Integers, count: int) -> bool:
    return len(rows) == count and np.array_equal(rows, np.arange(count))


def _narrowest(count: int) -> type[np.signedinteger]:
    return np.int32 if count < np.iinfo(np.int32).max else np.int64


def _write_base(rows: pa.Table, path: Path) -> None:
    # In one piece as far as Arrow allows: taking rows out of many pieces is slower.
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())


def _write_index(rows: pa.Table, columns: Sequence[str], path: Path) -> None:
    hashes = hash_rows([rows.column(column) for column in columns])
    HashIndex.of(hashes, np.arange(len(hashes), dtype=_narrowest(len(hashes)))).save(path)


def _read_base(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


@dataclass(frozen=True)
class _Delta:
    """A change: the numbers of the rows that are gone, and the rows that came."""

    removed: Integers
    rows: pa.Table


def _write_delta(path: Path, delta: _Delta) -> None:
    """Two Arrow streams, one after the other."""
    with pa.OSFile(str(path), "wb") as file:
        for table in (pa.table({_REMOVED: delta.removed}), delta.rows):
            with pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)


def _read_delta(path: Path) -> _Delta:
    with pa.memory_map(str(path)) as file:
        removed = pa.ipc.open_stream(file).read_all().column(_REMOVED).to_numpy()
        return _Delta(removed, pa.ipc.open_stream(file).read_all())
