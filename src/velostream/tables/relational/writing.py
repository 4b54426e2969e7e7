"""Writes of one commit to one table, within its transaction.

Where nobody follows the table a write is handed to the store as it is, which then tells how many rows it changed.
Otherwise the rows it touches are read first, and the difference is both written and kept for the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import TableError
from velostream.model.change import CHANGE, Mode, Scope, Write
from velostream.model.expression import Call, ColumnRef, Expression, Literal
from velostream.tables.memory.compare import hashable_rows, match_rows, rows_equal
from velostream.tables.memory.conform import check_not_null, conform
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import key_values
from velostream.tables.relational.database import DuplicateRowError
from velostream.tables.relational.dialect import DriverConnection
from velostream.tables.relational.reading import Reader


class TableWriter:
    """Applies writes over a connection in which a transaction is begun and the table locked. Used once."""

    def __init__(self, connection: DriverConnection, reader: Reader, *, name: str, logged: bool) -> None:
        self._connection = connection
        self._reader = reader
        self._dialect = reader.dialect
        self._layout = reader.layout
        self._schema = reader.layout.schema
        self._name = name
        self._logged = logged
        self._removed: list[pa.Table] = []
        self._added: list[pa.Table] = []
        self._changed = False

    def apply(self, write: Write) -> None:
        """Apply one more write; raises `TableError` when the table can't take it, `DuplicateRowError` for its key."""
        keyed = bool(self._schema.key)
        match write.mode:
            case Mode.APPEND:
                self._append(self._conformed(write.rows))
            case Mode.UPSERT if keyed:
                self._upsert(_last_of_each(self._conformed(write.rows), self._schema.key))
            case Mode.UPSERT:
                self._insert(self._conformed(write.rows))
            case Mode.DELETE if keyed:
                keys = conform(
                    write.rows, table=self._name, schema=self._schema, columns=self._schema.key, check_nulls=False
                )
                self._delete_keys(_last_of_each(keys, self._schema.key))
            case Mode.DELETE:
                self._change_bag(self._conformed(write.rows), np.full(write.rows.num_rows, -1))
            case Mode.CHANGES:
                self._changes(write.rows)
            case Mode.REPLACE if keyed:
                self._replace_keyed(_last_of_each(self._scoped(write), self._schema.key), write.scope)
            case Mode.REPLACE:
                self._replace_bag(self._scoped(write), write.scope)

    @property
    def changed(self) -> bool:
        """Whether anything is other than before."""
        if not self._logged:
            return self._changed
        return bool(self.net_change().num_rows)

    def net_change(self) -> pa.Table:
        """What all writes came to: -1 rows, then +1 rows. Only if the table is logged."""
        nothing = self._reader.stored_schema.empty_table()
        return net_change(pa.concat_tables([nothing, *self._removed]), pa.concat_tables([nothing, *self._added]))

    def _append(self, rows: pa.Table) -> None:
        if self._schema.key and not self._layout.key_enforced and rows.num_rows:
            keys = rows.select(list(self._schema.key))
            repeated = _last_of_each(keys, self._schema.key).num_rows < keys.num_rows
            if repeated or self._reader.find_keys(self._connection, keys, self._schema.key).rows.num_rows:
                raise DuplicateRowError
        self._insert(rows)

    def _insert(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        self._dialect.insert(self._connection, self._layout, rows)
        self._note(added=rows)

    def _upsert(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        if not self._logged and self._layout.key_enforced:
            count = self._dialect.upsert(self._connection, self._layout, rows)
            if count is not None:
                self._changed |= count > 0
                return
        found = self._reader.find_keys(self._connection, rows.select(list(self._schema.key)))
        self._put(rows, found.positions, found.rows)

    def _put(self, rows: pa.Table, positions: Integers, present: pa.Table) -> None:
        """Make these the rows of their keys; those at `positions` have `present` rows now."""
        same = rows_equal(present, rows.take(pa.array(positions)))
        wanted = np.ones(rows.num_rows, dtype=np.bool_)
        wanted[positions[same]] = False
        different = present.filter(pa.array(~same))
        put = rows.filter(pa.array(wanted))
        if not put.num_rows:
            return
        self._note(removed=different, added=put)
        if self._layout.key_enforced and self._dialect.upsert(self._connection, self._layout, put) is not None:
            return
        if different.num_rows:
            self._dialect.delete_keys(self._connection, self._layout, different.select(list(self._schema.key)))
        self._dialect.insert(self._connection, self._layout, put)

    def _delete_keys(self, keys: pa.Table) -> None:
        """Remove the rows of distinct keys."""
        if not keys.num_rows:
            return
        if self._logged:
            self._note(removed=self._reader.find_keys(self._connection, keys).rows)
        count = self._dialect.delete_keys(self._connection, self._layout, keys)
        self._changed |= count > 0

    def _changes(self, rows: pa.Table) -> None:
        signs = self._signs(rows)
        plain = rows.drop_columns([CHANGE])
        if not self._schema.key:
            self._change_bag(self._conformed(plain), signs)
            return
        # A removal may carry no more than the key, so NOT NULL is held for the rows added only.
        conformed = conform(plain, table=self._name, schema=self._schema, check_nulls=False)
        keys = key_values(conformed, self._schema.key)
        last = np.array(sorted(dict(zip(keys, range(len(keys)), strict=True)).values()), dtype=np.int64)
        gone, there = last[signs[last] < 0], last[signs[last] > 0]
        upserted = conformed.take(pa.array(there))
        check_not_null(upserted, table=self._name, schema=self._schema)
        self._delete_keys(conformed.select(list(self._schema.key)).take(pa.array(gone)))
        self._upsert(upserted)

    def _signs(self, rows: pa.Table) -> Integers:
        if CHANGE not in rows.column_names:
            raise TableError(f'changes for table "{self._name}" lack the column "{CHANGE}"', code="missing-column")
        column = rows.column(CHANGE)
        usable = pa.types.is_signed_integer(column.type) and not column.null_count
        if not usable or not np.isin(column.to_numpy(), (1, -1)).all():
            raise TableError(f'column "{CHANGE}" of table "{self._name}" takes 1 and -1 only', code="wrong-type")
        signs: Integers = column.cast(pa.int64()).to_numpy()
        return signs

    def _change_bag(self, rows: pa.Table, signs: Integers) -> None:
        """Add and remove rows by value, in their order; a removal that finds no row does nothing."""
        values = hashable_rows(rows)
        leaving = dict.fromkeys(value for value, sign in zip(values, signs.tolist(), strict=True) if sign < 0)
        present = self._identities_of(rows, values, leaving)
        added: dict[Hashable, list[int]] = defaultdict(list)
        removed: dict[Hashable, int] = defaultdict(int)
        for number, (value, sign) in enumerate(zip(values, signs.tolist(), strict=True)):
            if sign > 0:
                added[value].append(number)
            elif added[value]:
                added[value].pop()
            elif removed[value] < len(present.get(value, ())):
                removed[value] += 1
        identities: list[Any] = []
        gone: list[int] = []
        first = {value: number for number, value in reversed(list(enumerate(values)))}
        for value, count in removed.items():
            # What is both removed and added again stays where it is.
            unchanged = min(count, len(added[value]))
            del added[value][:unchanged]
            identities += present[value][: count - unchanged] if count else []
            gone += [first[value]] * (count - unchanged)
        self._remove_identities(identities, rows.take(pa.array(gone, pa.int64())))
        self._insert(rows.take(pa.array(sorted(n for numbers in added.values() for n in numbers), pa.int64())))

    def _identities_of(
        self, rows: pa.Table, values: Sequence[Hashable], wanted: dict[Hashable, None]
    ) -> dict[Hashable, list[Any]]:
        """For each value that is wanted, what tells the rows apart that have it now."""
        if not wanted:
            return {}
        numbers = {value: number for number, value in enumerate(values) if value in wanted}
        distinct = rows.take(pa.array(list(numbers.values()), pa.int64()))
        by_position = list(numbers)
        found = self._reader.find(self._connection, distinct, self._schema.names[:1], nulls_match=True)
        present: dict[Hashable, list[Any]] = defaultdict(list)
        for position, identity in zip(found.positions.tolist(), found.identities, strict=True):
            present[by_position[position]].append(identity)
        return present

    def _remove_identities(self, identities: Sequence[Any], rows: pa.Table) -> None:
        if not identities:
            return
        self._dialect.delete_identities(self._connection, self._layout, identities)
        self._note(removed=rows)

    def _replace_keyed(self, rows: pa.Table, scope: Scope | None) -> None:
        present = self._reader.scan(self._connection, _in_scope(scope, self._reader))
        keys = {key: number for number, key in enumerate(key_values(rows, self._schema.key))}
        given = np.fromiter(
            (keys.get(key, -1) for key in key_values(present, self._schema.key)), np.int64, count=present.num_rows
        )
        leaving = present.filter(pa.array(given < 0))
        if leaving.num_rows:
            self._note(removed=leaving)
            self._dialect.delete_keys(self._connection, self._layout, leaving.select(list(self._schema.key)))
        if scope is None:
            self._put(rows, given[given >= 0], present.filter(pa.array(given >= 0)))
        else:
            # A key given may belong to a row outside of the scope, which it then brings in.
            found = self._reader.find_keys(self._connection, rows.select(list(self._schema.key)))
            self._put(rows, found.positions, found.rows)

    def _replace_bag(self, rows: pa.Table, scope: Scope | None) -> None:
        present = self._reader.scan_identified(self._connection, _in_scope(scope, self._reader))
        same = match_rows(present.rows, rows)
        gone = np.setdiff1d(np.arange(present.rows.num_rows), same.left)
        self._remove_identities(
            [present.identities[number] for number in gone.tolist()], present.rows.take(pa.array(gone))
        )
        self._insert(rows.take(pa.array(np.setdiff1d(np.arange(rows.num_rows), same.right))))

    def _scoped(self, write: Write) -> pa.Table:
        rows, scope = write.rows, write.scope
        if scope is not None:
            column = self._schema.column(scope.column)
            if all(name.lower() != column.name.lower() for name in rows.column_names):
                rows = rows.append_column(column.name, pa.array([scope.value] * rows.num_rows, type=column.type))
        return self._conformed(rows)

    def _conformed(self, rows: pa.Table) -> pa.Table:
        return conform(rows, table=self._name, schema=self._schema, stored=self._reader.stored_schema)

    def _note(self, *, removed: pa.Table | None = None, added: pa.Table | None = None) -> None:
        self._changed = True
        if not self._logged:
            return
        if removed is not None:
            self._removed.append(removed)
        if added is not None:
            self._added.append(added)


def net_change(removed: pa.Table, added: pa.Table) -> pa.Table:
    """Rows removed and rows added without those that are both, as -1 rows and +1 rows."""
    same = match_rows(removed, added)
    minus = removed.take(pa.array(np.setdiff1d(np.arange(removed.num_rows), same.left)))
    plus = added.take(pa.array(np.setdiff1d(np.arange(added.num_rows), same.right)))
    signs = np.repeat(np.array([-1, 1], dtype=np.int8), (minus.num_rows, plus.num_rows))
    return pa.concat_tables([minus, plus]).append_column(CHANGE, pa.array(signs))


def first_duplicate(rows: pa.Table, key: Sequence[str]) -> int | None:
    """The first row whose key an earlier row has."""
    seen: set[Hashable] = set()
    for number, value in enumerate(key_values(rows, key)):
        if value in seen:
            return number
        seen.add(value)
    return None


def _last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of every key."""
    if len(key) == 1 and not pa.types.is_nested(rows.schema.field(key[0]).type):
        column = rows.column(key[0])
        # NULL is one value of its own; floats have NaNs and zeros that Arrow may tell apart.
        if not pa.types.is_floating(column.type) and pc.count_distinct(column, mode="all").as_py() == len(column):
            return rows
    values = key_values(rows, key)
    last = dict(zip(values, range(len(values)), strict=True))
    if len(last) == len(values):
        return rows
    return rows.take(pa.array(sorted(last.values()), pa.int64()))


def _in_scope(scope: Scope | None, reader: Reader) -> Expression | None:
    if scope is None:
        return None
    column = reader.layout.schema.column(scope.column)
    return Call("<=>", (ColumnRef(column.name), Literal(scope.value, column.type)))
