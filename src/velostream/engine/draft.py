"""A table as one transaction sees it: a version of it, with the transaction's own writes on top.

Nothing is written to the table itself. What is there is the version without the rows that went and with the rows that
came, so reading costs what the version costs and a write costs what it writes, whatever the size of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import pyarrow as pa

from velostream.errors import TableError, UnsupportedError
from velostream.model.change import CHANGE, ChangeBatch, Epoch, Mode, Write
from velostream.model.expression import Expression
from velostream.model.schema import Schema
from velostream.tables.base import CompiledCondition, KeyValue, Row, Snapshot, Table, TableCapabilities, TableSpec
from velostream.tables.lookups import as_keys
from velostream.tables.memory.compare import match_rows, rows_equal
from velostream.tables.memory.conform import conform
from velostream.tables.memory.keys import key_values
from velostream.tables.memory.sequence import CommitSequence, Part

_POSITION = "_position"
Keys: TypeAlias = pa.Array | pa.ChunkedArray | pa.Table


class DraftTable(Table):
    """Takes commits as a table does and keeps them to itself. For one thread at a time."""

    kind: ClassVar[str] = "draft"
    capabilities: ClassVar[TableCapabilities] = TableCapabilities(
        insert=True, update=True, delete=True, upsert=True, lookup=True, conditions=True
    )

    def __init__(self, table: Table, base: Snapshot, *, eager: bool = False) -> None:
        """With `eager` a write is worked out, and refused, when it is given; else when somebody looks."""
        self.table = table
        self.name = table.name
        self.schema = base.schema
        self.base = base
        # Before the first row is read: a snapshot of a store may look it up only now, and must not miss a commit.
        self._version = base.version
        self._eager = eager
        self._pending: list[Write] = []
        """Writes that nobody has looked at yet."""
        self._overlay: _Overlay | None = None

    @classmethod
    def open(cls, spec: TableSpec) -> Self:
        raise UnsupportedError(f'table "{spec.name}" can\'t be a draft of its own')

    @property
    def version(self) -> int:
        """Of the table, when the transaction first touched it."""
        return self._version

    @property
    def changed(self) -> bool:
        return bool(self._pending) or self._overlay is not None

    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        """Take a write."""
        if epoch is not None:
            raise UnsupportedError("a draft has no epochs; the commit of its transaction has")
        self._pending.append(write)
        if self._eager:
            self.settle()
        return self.version

    def settle(self) -> None:
        """Work out the writes taken so far; raises what the table would. A write that is refused leaves nothing."""
        pending, self._pending = self._pending, []
        for write in pending:
            if self._overlay is None:
                self._overlay = _Overlay(self.name, self.base)
            self._overlay.apply(write)

    def snapshot(self, version: int | None = None) -> Snapshot:
        if version is not None:
            raise UnsupportedError(f'older versions of table "{self.name}" can\'t be read in a transaction')
        self.settle()
        return self.base if self._overlay is None else _DraftSnapshot(self.base, self._overlay)

    def writes(self) -> Sequence[Write]:
        """What the table has to do to become this: one write if they were settled, else those given."""
        if self._overlay is None:
            return list(self._pending)
        self.settle()
        return self._overlay.writes()

    def check_unchanged(self, newest: Snapshot) -> None:
        """Raise `TableError.conflict` if a row that was written here was changed by someone else since the version.

        By key where the table has one, else by the rows that went.
        """
        if self._overlay is None or newest.version == self.base.version:
            return
        if self._overlay.conflicts_with(newest):
            raise TableError.conflict(self.name)

    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        raise UnsupportedError(f'changes of table "{self.name}" can\'t be followed in a transaction')

    def compile_condition(self, condition: Expression) -> CompiledCondition:
        return self.table.compile_condition(condition)

    def exclusive(self) -> AbstractContextManager[None]:
        """Nobody else writes here."""
        return nullcontext()


class _Overlay:
    """Rows that went from a version and rows that came, each as a little table: always found by key or index.

    What went is part of the version, so of anything asked, the version's answer without the answer of what went, and
    with that of what came, is the answer.
    """

    def __init__(self, name: str, base: Snapshot) -> None:
        self._name = name
        self._base = base
        self._schema = base.schema
        self._sequence = CommitSequence.open(None)
        loose = Schema(tuple(replace(column, nullable=True) for column in self._schema.columns), self._schema.key)
        self.gone = self._sequence.create_table("gone", name=name, schema=loose)
        self.came = self._sequence.create_table("came", name=name, schema=self._schema)

    def apply(self, write: Write) -> None:
        if write.scope is not None:
            raise UnsupportedError(f'a part of table "{self._name}" can\'t be replaced in a transaction')
        if write.mode is Mode.REPLACE:
            self._commit(Write(Mode.REPLACE, self._base.scan()), Write(Mode.REPLACE, write.rows))
        elif self._schema.key:
            self._apply_by_key(write)
        else:
            self._apply_by_row(write)

    def _apply_by_key(self, write: Write) -> None:
        match write.mode:
            case Mode.APPEND:
                rows = self._conformed(write.rows)
                taken = _without_position(self._standing(self._keys(rows), self._schema.key))
                if taken.num_rows:
                    raise TableError.duplicate_key(self._name, _shown(taken.slice(0, 1)))
                self._commit(None, Write(Mode.APPEND, rows))
            case Mode.UPSERT:
                self._put(self._conformed(write.rows))
            case Mode.DELETE:
                self._remove(write.rows)
            case _:
                signs = write.rows.column(CHANGE).to_numpy()
                rows = write.rows.drop_columns([CHANGE])
                keys = key_values(self._key_columns(rows), self._schema.key)
                last = np.array(sorted(dict(zip(keys, range(len(keys)), strict=True)).values()), dtype=np.int64)
                self._remove(rows.take(last[signs[last] < 0]))
                self._put(self._conformed(rows.take(last[signs[last] > 0])))

    def _apply_by_row(self, write: Write) -> None:
        match write.mode:
            case Mode.APPEND | Mode.UPSERT:
                self._commit(None, Write(Mode.APPEND, write.rows))
            case Mode.DELETE:
                self._remove_rows(self._conformed(write.rows))
            case _:
                signs = write.rows.column(CHANGE).to_numpy()
                rows = self._conformed(write.rows.drop_columns([CHANGE]))
                self._remove_rows(rows.filter(pa.array(signs < 0)))
                self._commit(None, Write(Mode.APPEND, rows.filter(pa.array(signs > 0))))

    def _put(self, rows: pa.Table) -> None:
        self._commit(Write(Mode.UPSERT, self._of_base(self._keys(rows))), Write(Mode.UPSERT, rows))

    def _remove(self, rows: pa.Table) -> None:
        keys = self._key_columns(rows)
        self._commit(Write(Mode.UPSERT, self._of_base(as_keys(keys))), Write(Mode.DELETE, keys))

    def _remove_rows(self, rows: pa.Table) -> None:
        own = match_rows(self.came.snapshot().scan(), rows)
        rest = np.setdiff1d(np.arange(rows.num_rows), own.right)
        self._commit(Write(Mode.APPEND, rows.take(rest)), Write(Mode.DELETE, rows.take(own.right)))

    def _commit(self, gone: Write | None, came: Write | None) -> None:
        pairs = ((self.gone, gone), (self.came, came))
        self._sequence.commit(Part(writes=[(table, write) for table, write in pairs if write is not None]))

    def _of_base(self, keys: Keys) -> pa.Table:
        return _without_position(self._base.lookup(keys))

    def _standing(self, keys: Keys, columns: Sequence[str] | None) -> pa.Table:
        """Rows of the version that haven't gone, by key."""
        return without(self._base.lookup(keys, columns), self.gone.snapshot().lookup(keys, columns))

    def writes(self) -> list[Write]:
        gone, came = self.gone.snapshot().scan(), self.came.snapshot().scan()
        if not gone.num_rows and not came.num_rows:
            return []
        signed = [
            rows.append_column(CHANGE, pa.repeat(pa.scalar(sign, pa.int8()), rows.num_rows))
            for rows, sign in ((gone, -1), (came, 1))
        ]
        return [Write(Mode.CHANGES, concatenated(signed))]

    def conflicts_with(self, newest: Snapshot) -> bool:
        gone, came = self.gone.snapshot().scan(), self.came.snapshot().scan()
        if not self._schema.key:
            return bool(len(match_rows(newest.scan(), gone).right) < gone.num_rows)
        keys = as_keys(concatenated([rows.select(list(self._schema.key)) for rows in (gone, came)]))
        before, now = self._base.lookup(keys), newest.lookup(keys)
        return bool(before.num_rows != now.num_rows or not rows_equal(before, now).all())

    def _conformed(self, rows: pa.Table) -> pa.Table:
        return conform(rows, table=self._name, schema=self._schema)

    def _key_columns(self, rows: pa.Table) -> pa.Table:
        return conform(rows, table=self._name, schema=self._schema, columns=self._schema.key, check_nulls=False)

    def _keys(self, rows: pa.Table) -> Keys:
        return as_keys(rows.select(list(self._schema.key)))


class _DraftSnapshot(Snapshot):
    """The version and the overlay as they are now; a later write makes a new one."""

    def __init__(self, base: Snapshot, overlay: _Overlay) -> None:
        self.schema = base.schema
        self.version = base.version
        self._base = base
        self._gone = overlay.gone.snapshot()
        self._came = overlay.came.snapshot()

    def get(self, key: KeyValue) -> Row | None:
        came = self._came.get(key)
        if came is not None:
            return came
        return None if self._gone.contains(key) else self._base.get(key)

    def contains(self, key: KeyValue) -> bool:
        return self._came.contains(key) or (not self._gone.contains(key) and self._base.contains(key))

    def lookup(self, keys: Keys, columns: Sequence[str] | None = None) -> pa.Table:
        standing = without(self._base.lookup(keys, columns), self._gone.lookup(keys, columns))
        return _by_position(standing, self._came.lookup(keys, columns))

    def lookup_by(self, on: Sequence[str], keys: Keys, columns: Sequence[str] | None = None) -> pa.Table:
        standing = without(self._base.lookup_by(on, keys, columns), self._gone.lookup_by(on, keys, columns))
        return _by_position(standing, self._came.lookup_by(on, keys, columns))

    def scan(self, condition: Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        standing = without(self._base.scan(condition, columns), self._gone.scan(condition, columns))
        return concatenated([standing, self._came.scan(condition, columns)])

    def count(self, condition: Expression | None = None) -> int:
        return self._base.count(condition) - self._gone.count(condition) + self._came.count(condition)

    def batches(self, size: int, offset: int = 0) -> Iterator[pa.RecordBatch]:
        rows = self.scan()
        for start in range(offset, rows.num_rows, size):
            yield rows.slice(start, size).combine_chunks().to_batches()[0]


def without(rows: pa.Table, gone: pa.Table) -> pa.Table:
    """The rows without those of another bag, which are all among them."""
    if not gone.num_rows or not rows.num_rows:
        return rows
    kept = np.ones(rows.num_rows, dtype=np.bool_)
    kept[match_rows(rows, gone).left] = False
    return rows.filter(pa.array(kept))


def concatenated(parts: Sequence[pa.Table]) -> pa.Table:
    """Rows of one kind one after another; the parts may differ in which columns they call NOT NULL."""
    return pa.concat_tables(parts, promote_options="permissive")


def _by_position(standing: pa.Table, came: pa.Table) -> pa.Table:
    rows = concatenated([standing, came])
    return rows.take(np.argsort(rows.column(_POSITION).to_numpy(), kind="stable"))


def _without_position(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([_POSITION])


def _shown(key: pa.Table) -> Any:
    values = tuple(key.to_pylist()[0].values())
    return values[0] if len(values) == 1 else values
