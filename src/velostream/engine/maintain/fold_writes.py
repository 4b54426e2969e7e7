"""From the records of a source that is a table to the writes that bring its table up to date."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.model.change import CHANGE, ORIGIN, UNCHANGED, Mode, Scope, Write
from velostream.model.schema import Schema
from velostream.sources.base import Partition
from velostream.tables.base import Table


@dataclass
class _Run:
    """Records of neighbouring partitions that mean the same: rows of one origin, or its whole content."""

    origin: str | None
    replaces: bool
    batches: list[pa.RecordBatch] = field(default_factory=list)


class FoldWrites:
    """Collects the records of a range in their order, until they are taken as writes. For one thread."""

    def __init__(self, table: Table, schema: Schema) -> None:
        """`schema` is the source's; the table has a hidden column more."""
        self._table = table
        self._schema = schema
        self._runs: list[_Run] = []
        self.rows = 0

    def begin(self, partition: Partition) -> None:
        """What is added next belongs to that partition; one without records counts, too, if it replaces."""
        last = self._runs[-1] if self._runs else None
        if last is None or partition.replaces or (last.origin, last.replaces) != (partition.origin, False):
            self._runs.append(_Run(partition.origin, partition.replaces))

    def add(self, batch: pa.RecordBatch) -> None:
        self._runs[-1].batches.append(batch)
        self.rows += batch.num_rows

    @property
    def divisible(self) -> bool:
        """Whether what was added so far may be committed before the rest."""
        return bool(self._runs) and not self._runs[-1].replaces

    def take(self) -> list[Write]:
        """The writes for all that was added; what is added from now on continues the last partition."""
        writes = [write for run in self._runs for write in self._writes(run)]
        self._runs = [_Run(run.origin, run.replaces) for run in self._runs[-1:] if not run.replaces]
        self.rows = 0
        return writes

    def _writes(self, run: _Run) -> list[Write]:
        if not run.batches and not run.replaces:
            return []
        schema = run.batches[0].schema if run.batches else self._schema.arrow
        rows = pa.Table.from_batches(run.batches, schema)
        if run.replaces:
            tagged = _tagged(rows, run.origin)
            return [Write(Mode.REPLACE, tagged, None if run.origin is None else Scope(ORIGIN, run.origin))]
        origin_of_each = ORIGIN in rows.column_names
        rows = _tagged(rows, run.origin)
        key = self._table.schema.key
        if CHANGE not in rows.column_names:
            return [Write(Mode.APPEND, rows)]
        if key and UNCHANGED in rows.column_names:
            rows = completed(rows, key, self._table)
        if key and origin_of_each and ORIGIN not in key:
            rows = with_keys_of_origins(rows, key, self._table)
        # Whether a record is a new value or one half of a change, the last one of a key says how things stand.
        return [Write(Mode.CHANGES, rows)]


def with_keys_of_origins(rows: pa.Table, key: tuple[str, ...], table: Table) -> pa.Table:
    """Tombstones that know a row by its origin, with the key that this row has.

    The row is in an earlier record of the range, else in the table; a tombstone of none that has no key of its own says
    nothing. The key of its own is looked at first: where rows of that key are known to be of that origin it is the one.
    """
    gone = pc.and_(pc.less(rows[CHANGE], 0), pc.is_valid(rows[ORIGIN]))
    if not pc.any(gone).as_py():
        return rows
    origins = pc.unique(rows.filter(gone)[ORIGIN])
    keys: dict[str, dict[tuple[Any, ...], None]] = {}
    for known in _rows_of_origins(rows.filter(gone), key, table).to_pylist():
        keys.setdefault(known[ORIGIN], {})[tuple(known[name] for name in key)] = None
    told: list[dict[str, Any]] = []
    places: list[int] = []
    concerned = np.flatnonzero(pc.is_in(rows[ORIGIN], value_set=origins).to_numpy())
    for place, record in zip(concerned.tolist(), rows.take(concerned).to_pylist(), strict=True):
        own = tuple(record[name] for name in key)
        of_origin = keys.setdefault(record[ORIGIN], {})
        if record[CHANGE] > 0 or None not in own:
            of_origin[own] = None
        if record[CHANGE] < 0:
            told += [{**record, **dict(zip(key, one, strict=True))} for one in of_origin]
            places += [place] * len(of_origin)
            of_origin.clear()
    others = np.flatnonzero(pc.invert(gone).to_numpy())
    everything = pa.concat_tables([rows.take(others), pa.Table.from_pylist(told, rows.schema)])
    return everything.take(np.argsort(np.concatenate([others, np.array(places, np.int64)]), kind="stable"))


def _rows_of_origins(tombstones: pa.Table, key: tuple[str, ...], table: Table) -> pa.Table:
    """The rows of the table that have the tombstones' origins: key and origin of each."""
    snapshot = table.snapshot()
    columns = [ORIGIN, *key]
    own = tombstones.select(list(key))
    by_key = snapshot.lookup(own if len(key) > 1 else own.column(0), columns)
    same = pc.equal(by_key[ORIGIN], tombstones[ORIGIN].take(by_key["_position"]))
    by_key = by_key.filter(same).select(columns)
    left = pc.invert(pc.is_in(tombstones[ORIGIN], value_set=by_key[ORIGIN].combine_chunks()))
    others = pc.unique(tombstones.filter(left)[ORIGIN])
    return pa.concat_tables([by_key, snapshot.lookup_by([ORIGIN], others, columns).select(columns)])


def completed(rows: pa.Table, key_columns: tuple[str, ...], table: Table) -> pa.Table:
    """Records that don't tell all values, with the values that their rows had before: see `model.change.UNCHANGED`.

    Those are in an earlier record of the range, else in the table.
    """
    unchanged = rows[UNCHANGED]
    rows = rows.drop_columns([UNCHANGED])
    if unchanged.null_count == rows.num_rows:
        return rows
    records = rows.to_pylist()
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    snapshot = table.snapshot()

    def before(key: tuple[Any, ...]) -> dict[str, Any]:
        if key in newest:
            return newest[key]
        found = snapshot.get(key if len(key) > 1 else key[0])
        return {} if found is None else dict(found)

    moved: dict[str, Any] | None = None
    for record, kept in zip(records, unchanged.to_pylist(), strict=True):
        key = tuple(record[name] for name in key_columns)
        if record[CHANGE] < 0:
            moved = None if kept is None else before(key)
            newest[key] = {}
            continue
        if kept:
            base = before(key) if moved is None else moved
            record.update({name: base.get(name) for name in kept})
        newest[key] = record
        moved = None
    return pa.Table.from_pylist(records, schema=rows.schema)


def _tagged(rows: pa.Table, origin: str | None) -> pa.Table:
    """With the origin of the rows, where they don't bring one each."""
    if ORIGIN in rows.column_names:
        return rows
    return rows.append_column(ORIGIN, pa.repeat(pa.scalar(origin, pa.string()), rows.num_rows))
