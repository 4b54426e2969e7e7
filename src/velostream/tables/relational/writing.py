"""Writes of one commit to one table, within its transaction.

Where nobody follows the table, an append, an upsert and a deletion by key are handed to the store as they are, which
tells how many rows they changed. Otherwise the rows concerned are read, and the difference is both written and kept
for the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import UnsupportedError
from velostream.model.change import Mode, Scope, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.tables.change_log import Changes, net_changes
from velostream.tables.difference import Differ, Difference, Present
from velostream.tables.memory.conform import conform
from velostream.tables.memory.keys import key_values
from velostream.tables.relational.dialect import DriverConnection, Trouble
from velostream.tables.relational.reading import Reader


class DuplicateRowError(Exception):
    """A row appended has a key that is there already; raised out of the transaction, which is then undone."""

    def __init__(self, table: str, reader: Reader, rows: pa.Table) -> None:
        super().__init__(table)
        self.table = table
        self.reader = reader
        self.rows = rows


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
        self._differ = Differ(name, self._schema)
        self._stored_rows = _RowsInTransaction(connection, reader)
        self._steps: list[Changes] = []
        self._changed = False

    def apply(self, write: Write) -> None:
        """Apply one more write; raises `TableError` when the table can't take it, `DuplicateRowError` for its key."""
        if not self._logged and self._handed_over(write):
            return
        difference = self._differ.difference(write, self._stored_rows)
        if difference.empty:
            return
        self._changed = True
        if self._logged:
            self._steps.append(Changes(difference.removed.rows, difference.added))
        if write.mode is Mode.APPEND:
            self._append(difference.added)
        else:
            self._write(difference)

    @property
    def changed(self) -> bool:
        """Whether anything is other than before."""
        return not self.net_change().empty if self._logged else self._changed

    def net_change(self) -> Changes:
        """What all writes came to. Only if the table is logged."""
        return self._steps[0] if len(self._steps) == 1 else net_changes(self._schema, self._steps)

    def _handed_over(self, write: Write) -> bool:
        """Let the store do the write and count; False, with nothing done, when it has no statement for it."""
        keyed = bool(self._schema.key)
        match write.mode:
            case Mode.APPEND:
                rows = self._conformed(write.rows)
                self._append(rows)
                self._changed |= bool(rows.num_rows)
                return True
            case Mode.UPSERT if keyed and self._layout.key_enforced:
                rows = _last_of_each(self._conformed(write.rows), self._schema.key)
                count = self._dialect.upsert(self._connection, self._layout, rows) if rows.num_rows else 0
                self._changed |= bool(count)
                return count is not None
            case Mode.DELETE if keyed:
                keys = conform(
                    write.rows, table=self._name, schema=self._schema, columns=self._schema.key, check_nulls=False
                )
                distinct = _last_of_each(keys, self._schema.key)
                if distinct.num_rows:
                    self._changed |= self._dialect.delete_keys(self._connection, self._layout, distinct) > 0
                return True
        return False

    def _append(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        if self._schema.key and not self._layout.key_enforced:
            keys = rows.select(list(self._schema.key))
            repeated = _last_of_each(keys, self._schema.key).num_rows < keys.num_rows
            if repeated or self._stored_rows.of_keys(keys).rows.num_rows:
                raise DuplicateRowError(self._name, self._reader, rows)
        try:
            self._dialect.insert(self._connection, self._layout, rows)
        except self._dialect.errors as error:
            if self._schema.key and self._dialect.failure(error).trouble is Trouble.DUPLICATE:
                raise DuplicateRowError(self._name, self._reader, rows) from error
            raise

    def _write(self, difference: Difference) -> None:
        removed, added = difference.removed, difference.added
        if not self._schema.key:
            if removed.rows.num_rows:
                self._delete_identities(removed.handles)
            if added.num_rows:
                self._dialect.insert(self._connection, self._layout, added)
            return
        key = list(self._schema.key)
        before, after = key_values(removed.rows, key), key_values(added, key)
        gone, staying = set(before).difference(after), set(before).intersection(after)
        if gone:
            places = [place for place, value in enumerate(before) if value in gone]
            leaving = removed.rows.select(key).take(pa.array(places, pa.int64()))
            self._dialect.delete_keys(self._connection, self._layout, leaving)
        if staying:
            self._dialect.update(self._connection, self._layout, added.filter(pa.array([k in staying for k in after])))
        if len(staying) < added.num_rows:
            new = added.filter(pa.array([k not in staying for k in after])) if staying else added
            self._dialect.insert(self._connection, self._layout, new)

    def _delete_identities(self, identities: Sequence[Any]) -> None:
        if any(identity is None for identity in identities):
            refused = UnsupportedError.capability(self._dialect.kind, "delete")
            refused.detail = f'equal rows of table "{self._name}" can\'t be told apart in the store'
            refused.hint = "declare a key: WITH ('key' = 'a,b')"
            raise refused
        self._dialect.delete_identities(self._connection, self._layout, identities)

    def _conformed(self, rows: pa.Table) -> pa.Table:
        return conform(rows, table=self._name, schema=self._schema, stored=self._reader.stored_schema)


class _RowsInTransaction:
    """The table's rows as the transaction sees them. A `difference.StoredRows`."""

    def __init__(self, connection: DriverConnection, reader: Reader) -> None:
        self._connection = connection
        self._reader = reader

    def of_keys(self, keys: pa.Table) -> Present:
        found = self._reader.find(self._connection, keys)
        return Present(found.rows, range(found.rows.num_rows))

    def equal_to(self, rows: pa.Table) -> Present:
        found = self._reader.find(self._connection, rows)
        return Present(found.rows, found.identities or [None] * found.rows.num_rows)

    def all(self, scope: Scope | None) -> Present:
        if scope is None:
            return self._reader.scan_identified(self._connection, None)
        column = self._reader.layout.schema.column(scope.column)
        condition = Call("<=>", (ColumnRef(column.name), Literal(scope.value, column.type)))
        return self._reader.scan_identified(self._connection, condition)


def _last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of every key."""
    if len(key) == 1:
        column = rows.column(key[0])
        # NULL is one value of its own; floats have NaNs and zeros that Arrow may tell apart.
        countable = not (pa.types.is_nested(column.type) or pa.types.is_floating(column.type))
        if countable and len(pc.unique(column)) == len(column):
            return rows
    values = key_values(rows, key)
    last = dict(zip(values, range(len(values)), strict=True))
    if len(last) == len(values):
        return rows
    return rows.take(pa.array(sorted(last.values()), pa.int64()))
