"""Conditions as a memory table runs them: by its key, by an index, or by looking at every row."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from velostream.model.expression import Call, ColumnRef, Expression, Literal, columns_of, conjuncts
from velostream.model.schema import Schema
from velostream.model.types import render_type
from velostream.tables.memory.evaluate import CannotCompile, Compiled, column_of, compile_expression
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import hashable_values

if TYPE_CHECKING:
    from velostream.tables.memory.snapshot import MemorySnapshot
    from velostream.tables.memory.table import MemoryTable

_MOST_KEYS = 100_000
"""A condition that allows more combinations of key values than that is answered by a scan."""
_CACHED_PLANS = 1024


@dataclass(frozen=True)
class Filter:
    """A compiled condition and the columns it reads."""

    compiled: Compiled
    columns: tuple[str, ...]

    @classmethod
    def of(cls, parts: Sequence[Expression], schema: Schema) -> Filter | None:
        """The conjunction of conditions; None for none."""
        if not parts:
            return None
        condition = _conjunction(parts)
        columns = tuple(sorted({schema.column(name).name for name in columns_of(condition)}))
        compiled = compile_expression(condition, schema)
        if not (pa.types.is_boolean(compiled.type) or pa.types.is_null(compiled.type)):
            raise CannotCompile(f"a condition is BOOLEAN, not {render_type(compiled.type)}")
        return cls(compiled, columns)

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        """True, false or NULL for each row."""
        return column_of(self.compiled.run(rows), rows.num_rows, pa.bool_())


@dataclass(frozen=True)
class Equality:
    """A conjunct that says which values a column may have."""

    values: tuple[Hashable, ...]
    conjunct: Expression


@dataclass(frozen=True)
class Access:
    """An index to look up, the values to look for, and what is left to check of the rows found."""

    columns: tuple[str, ...]
    wanted: Sequence[Hashable]
    rest: Filter | None


class Plan:
    """A condition compiled for one table; holds no data, so it is never stale. A `CompiledCondition`."""

    remainder: Expression | None = None
    """All of a condition is evaluated here."""

    def __init__(self, table: MemoryTable, condition: Expression) -> None:
        self._table = table
        self._schema = table.schema
        self._parts = conjuncts(condition)
        self._equalities = _equalities(self._parts, self._schema)
        self._whole = Filter.of([condition], self._schema)
        self._known_access: tuple[object, Access | None] | None = None
        """For the indexes of the last snapshot asked, which are rarely others."""

    @property
    def access(self) -> str:
        """`key`, `index` or `scan`, with the indexes there are now."""
        columns = self._columns(self._table.indexes)
        if columns is None:
            return "scan"
        return "key" if columns == self._schema.key else "index"

    def find(self, snapshot: MemorySnapshot) -> Sequence[int] | Integers:
        """Like `positions`; a short list where few rows are found by an index."""
        few = self._few(snapshot)
        return self.positions(snapshot) if few is None else few

    def scan(self, snapshot: MemorySnapshot, columns: Sequence[str] | None) -> pa.Table:
        """The rows for which the condition is true, in the table's order."""
        return snapshot.take(self.positions(snapshot), columns)

    def count(self, snapshot: MemorySnapshot) -> int:
        few = self._few(snapshot)
        return len(self.positions(snapshot) if few is None else few)

    def positions(self, snapshot: MemorySnapshot) -> Integers:
        """Ascending positions of the rows for which the condition is true."""
        access = self._access_of(snapshot)
        if access is None:
            return _kept(self._whole, snapshot, snapshot.visible_positions)
        self._table.plans.by_index += 1
        return _kept(access.rest, snapshot, snapshot.positions_of(access.columns, access.wanted))

    def _few(self, snapshot: MemorySnapshot) -> Sequence[int] | None:
        """The positions where an index finds few of them and nothing is left to check; else None."""
        access = self._access_of(snapshot)
        if access is None or access.rest is not None:
            return None
        few = snapshot.few_positions_of(access.columns, access.wanted)
        if few is not None:
            self._table.plans.by_index += 1
        return few

    def _access_of(self, snapshot: MemorySnapshot) -> Access | None:
        """By which index a snapshot finds the rows; None for by none."""
        secondary = snapshot.secondary
        known = self._known_access
        if known is not None and known[0] is secondary:
            return known[1]
        columns = self._columns(snapshot.indexes)
        access = None if columns is None else Access(columns, self._wanted(columns), self._rest_after(columns))
        self._known_access = (secondary, access)
        return access

    def _columns(self, indexes: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
        """The columns to look up: the key, else the index that uses the most of the condition."""
        usable = [columns for columns in indexes if all(name in self._equalities for name in columns)]
        usable = [columns for columns in usable if self._combinations(columns) <= _MOST_KEYS]
        if self._schema.key and self._schema.key in usable:
            return self._schema.key
        return max(usable, key=len, default=None)

    def _combinations(self, columns: tuple[str, ...]) -> int:
        return prod(len(self._equalities[name].values) for name in columns)

    def _wanted(self, columns: tuple[str, ...]) -> Sequence[Hashable]:
        if len(columns) == 1:
            return self._equalities[columns[0]].values
        return list(product(*(self._equalities[name].values for name in columns)))

    def _rest_after(self, columns: tuple[str, ...]) -> Filter | None:
        """What is left to check of rows found by these columns."""
        answered = [self._equalities[name].conjunct for name in columns]
        rest = [part for part in self._parts if not any(part is done for done in answered)]
        return Filter.of(rest, self._schema)


@dataclass
class PlanCache:
    """The plans used last, for any thread."""

    hits: int = 0
    misses: int = 0
    by_index: int = 0
    """How often a condition was answered by the key or an index."""
    _plans: OrderedDict[Expression, Plan] = field(default_factory=OrderedDict)
    _by_identity: dict[int, tuple[Expression, Plan]] = field(default_factory=dict)
    """Plans of expressions that are the very same object: hashing one costs more than answering it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def plan(self, table: MemoryTable, condition: Expression) -> Plan:
        same = self._by_identity.get(id(condition))
        if same is not None and same[0] is condition:
            self.hits += 1
            return same[1]
        found = self._plan(table, condition)
        if len(self._by_identity) >= _CACHED_PLANS:
            self._by_identity = {}
        self._by_identity[id(condition)] = (condition, found)
        return found

    def _plan(self, table: MemoryTable, condition: Expression) -> Plan:
        with self._lock:
            known = self._plans.get(condition)
            if known is not None:
                self.hits += 1
                self._plans.move_to_end(condition)
                return known
            self.misses += 1
        made = Plan(table, condition)
        with self._lock:
            self._plans[condition] = made
            if len(self._plans) > _CACHED_PLANS:
                self._plans.popitem(last=False)
        return made


def _conjunction(parts: Sequence[Expression]) -> Expression:
    """All of them, as a balanced tree: a condition may have thousands."""
    while len(parts) > 1:
        pairs: list[Expression] = [Call("and", pair) for pair in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*pairs, *parts[2 * len(pairs) :]]
    return parts[0]


def _kept(remaining: Filter | None, snapshot: MemorySnapshot, positions: Integers) -> Integers:
    if remaining is None or not len(positions):
        return positions
    mask = remaining.mask(snapshot.columns_at(positions, remaining.columns))
    kept: Integers = positions[np.asarray(mask.fill_null(False))]
    return kept


def _equalities(parts: Sequence[Expression], schema: Schema) -> Mapping[str, Equality]:
    """For each column that a conjunct ties to constants: its values, and that conjunct. The first one counts."""
    found: dict[str, Equality] = {}
    for part in parts:
        match part:
            case Call("=", (ColumnRef(name), Literal() as other)) | Call("=", (Literal() as other, ColumnRef(name))):
                literals: Sequence[Expression] = (other,)
            case Call("in", (ColumnRef(name), *items)):
                literals = items
            case _:
                continue
        column = schema.column(name)
        values = _constants(literals, column.type)
        if values is not None:
            found.setdefault(column.name, Equality(values, part))
    return found


def _constants(literals: Sequence[Expression], type_: pa.DataType) -> tuple[Hashable, ...] | None:
    """Constants of a column's own type as its keys; NULLs match nothing. None when they can't be looked up."""
    values: list[object] = []
    for literal in literals:
        if not isinstance(literal, Literal):
            return None
        if literal.value is None:
            continue
        if literal.type != type_:
            return None
        values.append(literal.value)
    return tuple(dict.fromkeys(hashable_values(pa.array(values, type_))))
