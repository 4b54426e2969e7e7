"""Conditions as text, parsed and lowered once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

from sqlglot import exp

from velostream.model.expression import Expression
from velostream.model.schema import Schema
from velostream.sql.lower import NotLowerable, lower
from velostream.sql.parameters import Parameters, bind
from velostream.sql.parse import parse_expression
from velostream.tables.base import CompiledCondition, Table

if TYPE_CHECKING:
    from velostream.engine.scalar import ScalarPlan

_CAPACITY = 1024
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Condition:
    """A condition with its parameters put in: as a tree for Spark, and lowered where tables can evaluate it."""

    text: str
    tree: exp.Expr
    expression: Expression | None
    reason: str = ""
    """Why there is no lowered form."""
    compiled: CompiledCondition | None = None
    """What the table made of it, where it was asked to."""

    @property
    def access(self) -> str:
        """How the rows are found: by "key", "index" or "scan" of the table, or by "spark"."""
        return "spark" if self.compiled is None else self.compiled.access

    @property
    def remainder(self) -> Expression | None:
        """What the store can't evaluate itself, so that we do on the rows it gives; None when it does all of it."""
        return None if self.compiled is None else self.compiled.remainder


class Recent(Generic[_Value]):
    """What was used last, so many of it; for many threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, _Value] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def get(self, key: Hashable) -> _Value | None:
        with self._lock:
            found = self._known.get(key)
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
                self._known.move_to_end(key)
            return found

    def put(self, key: Hashable, value: _Value) -> _Value:
        with self._lock:
            self._known[key] = value
            if len(self._known) > _CAPACITY:
                self._known.popitem(last=False)
        return value


class ConditionCache:
    """The last conditions and scalars asked of a table. Holds no data, so it never makes an answer stale."""

    def __init__(self, schema: Schema, name: str) -> None:
        self.schema = schema
        self._name = name
        self._conditions: Recent[Condition] = Recent()
        self.scalars: Recent[ScalarPlan] = Recent()

    @property
    def hits(self) -> int:
        return self._conditions.hits

    @property
    def misses(self) -> int:
        return self._conditions.misses

    def condition(self, text: str, parameters: Parameters | None) -> Condition:
        """The condition of a text; a `SqlError` when it isn't one or names an unknown column."""
        key = _cache_key(text, parameters)
        # No key: a parameter that can't be told apart from others is nothing to remember.
        found = None if key is None else self._conditions.get(key)
        if found is None:
            found = self._made(text, parameters)
            if key is not None:
                self._conditions.put(key, found)
        return found

    def _made(self, text: str, parameters: Parameters | None) -> Condition:
        tree = bind(_parsed(text), parameters, text=text)
        try:
            return Condition(text, tree, lower(tree, self.schema, text=text, qualifiers=[self._name]))
        except NotLowerable as error:
            return Condition(text, tree, None, error.reason)


@lru_cache(maxsize=_CAPACITY)
def _parsed(text: str) -> exp.Expr:
    """The tree of a text, which nobody may change: the same condition comes with ever new parameters."""
    return parse_expression(text)


def _cache_key(text: str, parameters: Parameters | None) -> Hashable | None:
    """What tells conditions apart; None when a parameter can't be told apart by hashing."""
    if not parameters:
        return text
    items = parameters.items() if isinstance(parameters, Mapping) else enumerate(parameters)
    # 1, 1.0 and True are equal in Python and different literals in SQL; so are 1.5 and 1.50 as decimals.
    key = (text, tuple((name, type(value), str(value), value) for name, value in items))
    try:
        hash(key)
    except TypeError:
        return None
    return key


_CACHES: WeakKeyDictionary[Table, ConditionCache] = WeakKeyDictionary()
_CACHES_LOCK = threading.Lock()


def cache_of(table: Table) -> ConditionCache:
    """The one cache of a table, whoever asks; a new one when the table's columns have changed."""
    with _CACHES_LOCK:
        cache = _CACHES.get(table)
        if cache is None or (cache.schema is not table.schema and cache.schema != table.schema):
            cache = _CACHES[table] = ConditionCache(table.schema, table.name)
        return cache
