"""What a write changes in a store: the rows that go and the rows that come, worked out from the rows concerned.

For kinds that keep their rows in somebody else's store. The store is asked for as few rows as the mode allows, through
`StoredRows`; what comes out is minimal: a row that is there already is neither removed nor added.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velostream.errors import TableError
from velostream.model.change import CHANGE, Mode, Scope, Write
from velostream.model.schema import Schema
from velostream.tables.memory.compare import hashable_rows, match_rows, rows_equal
from velostream.tables.memory.conform import check_not_null, conform, stored_schema
from velostream.tables.memory.keys import hashable_values, key_values
from velostream.tables.memory.values import python_value

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Present:
    """Rows of the store with what the store calls each of them."""

    rows: pa.Table
    handles: Sequence[Any]

    def within(self, scope: Scope) -> Present:
        """Those of a scope."""
        column = self.rows.column(scope.column)
        wanted = hashable_values(pa.array([scope.value], column.type))[0]
        values = hashable_values(column)
        return _chosen(self, np.array([place for place, value in enumerate(values) if value == wanted], dtype=np.int64))


class StoredRows(Protocol):
    """The store as it is inside the commit under way."""

    def of_keys(self, keys: pa.Table) -> Present:
        """The rows with these keys. Asked of keyed tables only; the keys are distinct and may hold NULLs."""

    def equal_to(self, rows: pa.Table) -> Present:
        """At least all rows that equal one of these. Asked of bags only."""

    def all(self, scope: Scope | None) -> Present:
        """All rows, of the scope if there is one."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The net effect of one write. In a keyed table a changed row is in both, under its one key."""

    removed: Present
    added: pa.Table

    @property
    def empty(self) -> bool:
        return not (self.added.num_rows or self.removed.rows.num_rows)


class Differ:
    """Works out differences for one table. Holds no rows, so any thread may use it."""

    def __init__(self, name: str, schema: Schema) -> None:
        self._name = name
        self._schema = schema
        self._stored = stored_schema(schema)

    def difference(self, write: Write, store: StoredRows) -> Difference:
        """Raises `TableError` when the table can't take the rows; `duplicate-key` is the store's to find on APPEND."""
        if self._schema.key:
            return self._keyed(write, store)
        return self._bag(write, store)

    def duplicate_key(self, rows: pa.Table, row: int) -> TableError:
        values = tuple(python_value(rows.column(name)[row]) for name in self._schema.key)
        return TableError.duplicate_key(self._name, values[0] if len(values) == 1 else values)

    def _keyed(self, write: Write, store: StoredRows) -> Difference:
        match write.mode:
            case Mode.APPEND:
                rows = self._conformed(write.rows)
                self._check_distinct(rows)
                return Difference(self._nothing(), rows)
            case Mode.UPSERT:
                wanted = self._last_of_each(self._conformed(write.rows))
                return self._put(wanted, store.of_keys(self._keys(wanted)))
            case Mode.DELETE:
                keys = self._last_of_each(self._given_keys(write.rows))
                return Difference(store.of_keys(keys), self._stored.empty_table())
            case Mode.CHANGES:
                return self._change_keyed(write.rows, store)
            case Mode.REPLACE:
                wanted = self._last_of_each(self._scoped(write))
                present = store.all(write.scope)
                if write.scope is not None:
                    present = self._merged(present, store.of_keys(self._keys(wanted)))
                return self._put(wanted, present)

    def _change_keyed(self, given: pa.Table, store: StoredRows) -> Difference:
        """The last change of a key says whether there is a row of it, and which."""
        signs = self._signs(given)
        rows = conform(given.drop_columns([CHANGE]), table=self._name, schema=self._schema, check_nulls=False)
        last = sorted(_last_places(key_values(rows, self._schema.key)))
        touched = rows.take(pa.array(last, type=pa.int64()))
        wanted = touched.filter(pa.array(signs[last] > 0))
        check_not_null(wanted, table=self._name, schema=self._schema)
        return self._put(wanted, store.of_keys(self._keys(touched)))

    def _put(self, wanted: pa.Table, present: Present) -> Difference:
        """Every present row goes unless it is wanted as it is; every wanted row comes unless it is there."""
        if not present.rows.num_rows:
            return Difference(present, wanted)
        places = {key: place for place, key in enumerate(key_values(wanted, self._schema.key))}
        found = [places.get(key, -1) for key in key_values(present.rows, self._schema.key)]
        wanted_at = np.array(found, dtype=np.int64)
        both = np.flatnonzero(wanted_at >= 0)
        same = rows_equal(present.rows.take(pa.array(both)), wanted.take(pa.array(wanted_at[both])))
        going = np.ones(present.rows.num_rows, dtype=np.bool_)
        going[both[same]] = False
        coming = np.ones(wanted.num_rows, dtype=np.bool_)
        coming[wanted_at[both[same]]] = False
        return Difference(_chosen(present, np.flatnonzero(going)), wanted.filter(pa.array(coming)))

    def _bag(self, write: Write, store: StoredRows) -> Difference:
        match write.mode:
            case Mode.APPEND | Mode.UPSERT:
                return Difference(self._nothing(), self._conformed(write.rows))
            case Mode.DELETE:
                rows = self._conformed(write.rows)
                return self._change_bag(rows, np.full(rows.num_rows, -1), store)
            case Mode.CHANGES:
                signs = self._signs(write.rows)
                return self._change_bag(self._conformed(write.rows.drop_columns([CHANGE])), signs, store)
            case Mode.REPLACE:
                wanted, present = self._scoped(write), store.all(write.scope)
                same = match_rows(present.rows, wanted)
                going = np.setdiff1d(np.arange(present.rows.num_rows), same.left)
                coming = np.setdiff1d(np.arange(wanted.num_rows), same.right)
                return Difference(_chosen(present, going), wanted.take(pa.array(coming)))

    def _change_bag(self, rows: pa.Table, signs: Integers, store: StoredRows) -> Difference:
        if not (signs < 0).any():
            return Difference(self._nothing(), rows)
        groups: dict[Hashable, list[int]] = {}
        for row, value in enumerate(hashable_rows(rows)):
            groups.setdefault(value, []).append(row)
        shrinking = [group[0] for group in groups.values() if (signs[group] < 0).any()]
        present = store.equal_to(rows.take(pa.array(shrinking, type=pa.int64())))
        there: dict[Hashable, list[int]] = {}
        for row, value in enumerate(hashable_rows(present.rows)):
            there.setdefault(value, []).append(row)
        coming: list[int] = []
        going: list[int] = []
        for value, group in groups.items():
            have = there.get(value, [])
            count = len(have)
            for sign in signs[group]:
                # A removal of a row that isn't there changes nothing.
                count = max(0, count + int(sign))
            going += have[count:]
            coming += group[: max(0, count - len(have))]
        return Difference(
            _chosen(present, np.array(going, dtype=np.int64)), rows.take(pa.array(sorted(coming), type=pa.int64()))
        )

    def _check_distinct(self, rows: pa.Table) -> None:
        keys = key_values(rows, self._schema.key)
        if len(set(keys)) == len(keys):
            return
        seen: set[Hashable] = set()
        for row, key in enumerate(keys):
            if key in seen:
                raise self.duplicate_key(rows, row)
            seen.add(key)

    def _last_of_each(self, rows: pa.Table) -> pa.Table:
        last = _last_places(key_values(rows, self._schema.key))
        return rows if len(last) == rows.num_rows else rows.take(pa.array(sorted(last)))

    def _merged(self, first: Present, second: Present) -> Present:
        """Both, each row once."""
        known = set(key_values(first.rows, self._schema.key))
        keys = key_values(second.rows, self._schema.key)
        more = _chosen(second, np.array([at for at, key in enumerate(keys) if key not in known], dtype=np.int64))
        return Present(pa.concat_tables([first.rows, more.rows]), [*first.handles, *more.handles])

    def _scoped(self, write: Write) -> pa.Table:
        rows, scope = write.rows, write.scope
        if scope is not None:
            column = self._schema.column(scope.column)
            if all(name.lower() != column.name.lower() for name in rows.column_names):
                rows = rows.append_column(column.name, pa.array([scope.value] * rows.num_rows, type=column.type))
        return self._conformed(rows)

    def _signs(self, rows: pa.Table) -> Integers:
        if CHANGE not in rows.column_names:
            raise TableError(f'changes for table "{self._name}" lack the column "{CHANGE}"', code="missing-column")
        column = rows.column(CHANGE)
        usable = pa.types.is_signed_integer(column.type) and not column.null_count
        signs: Integers = column.to_numpy().astype(np.int64) if usable else np.zeros(1, dtype=np.int64)
        if not np.isin(signs, (1, -1)).all():
            raise TableError(f'column "{CHANGE}" of table "{self._name}" takes 1 and -1 only', code="wrong-type")
        return signs

    def _conformed(self, rows: pa.Table) -> pa.Table:
        return conform(rows, table=self._name, schema=self._schema, stored=self._stored)

    def _given_keys(self, rows: pa.Table) -> pa.Table:
        return conform(rows, table=self._name, schema=self._schema, columns=self._schema.key, check_nulls=False)

    def _keys(self, rows: pa.Table) -> pa.Table:
        return rows.select(list(self._schema.key))

    def _nothing(self) -> Present:
        return Present(self._stored.empty_table(), ())


def _last_places(keys: Sequence[Hashable]) -> list[int]:
    """Where each distinct key stands last."""
    return list(dict(zip(keys, range(len(keys)), strict=True)).values())


def _chosen(present: Present, places: Integers) -> Present:
    if len(places) == present.rows.num_rows:
        return present
    handles = present.handles
    return Present(present.rows.take(pa.array(places)), [handles[place] for place in places.tolist()])
