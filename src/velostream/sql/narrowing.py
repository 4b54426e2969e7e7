"""Which tables a query over a stream needs no more of than the rows that a batch asks for.

What isn't looked up is computed by Spark over the tables, and the cost would follow them. But where no row of a table
counts unless a column of it equals something of the stream, the rows with the values of the batch are as good as all
of them; and so, from table to table, are the rows that these lead to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from velostream.model.schema import Schema
from velostream.sql.functions import is_nondeterministic
from velostream.sql.keytypes import expression_type, field_type, key_cast
from velostream.sql.parentheses import conjuncts, without_parentheses
from velostream.sql.plan import Asked, Input, Narrowing
from velostream.sql.scope import input_of, origin_of, scope_of
from velostream.sql.shape import driving_index, from_items, outermost_select, queries_in, reads_input


def find_narrowings(tree: exp.Expr, *, inputs: Sequence[Input]) -> tuple[Narrowing, ...]:
    """The tables of a streaming query that can be narrowed, each after those that its values come from."""
    select = outermost_select(tree)
    position = driving_index(select) if select is not None else None
    scope = scope_of(select) if select is not None else None
    if select is None or position is None or scope is None:
        return ()
    item = from_items(select)[position]
    if not reads_input(item):
        return ()
    return _Finder(tree, _Item(scope, item), {entry.relation: entry for entry in inputs}).narrowings()


@dataclass(frozen=True)
class _Item:
    """A relation in the FROM of one SELECT."""

    scope: int
    node: exp.Expr

    @property
    def relation(self) -> str:
        return input_of(self.node) or ""

    def has(self, column: exp.Expr) -> bool:
        """Whether a column, or a field inside it, is one of this relation."""
        origin = origin_of(column)
        alias_ = str(self.node.alias_or_name).lower()
        return origin is not None and origin.scope == self.scope and origin.source.lower() == alias_


@dataclass(frozen=True)
class _Place:
    """One place where a table is read, and the conditions without which none of its rows counts there."""

    item: _Item
    conditions: tuple[exp.Expr, ...]
    beside: tuple[_Item, ...]
    """The other relations of its FROM."""


class _Finder:
    def __init__(self, tree: exp.Expr, stream: _Item, inputs: Mapping[str, Input]) -> None:
        self._stream = stream
        self._inputs = inputs
        self._places: dict[str, list[_Place | None]] = {}
        for table in tree.find_all(exp.Table):
            relation = input_of(table)
            if relation in inputs and relation != stream.relation:
                self._places.setdefault(str(relation), []).append(_place_of(table))

    def narrowings(self) -> tuple[Narrowing, ...]:
        found: dict[str, Narrowing] = {}
        for relation, places in self._places.items():
            narrowing = self._narrowed(relation, places, [[self._stream] for _ in places])
            if narrowing is not None:
                found[relation] = narrowing
        follows = bool(found)
        while follows:
            follows = False
            for relation in [one for one in self._places if one not in found]:
                narrowing = self._led_to(relation, found)
                if narrowing is not None:
                    found[relation] = narrowing
                    follows = True
        return tuple(found.values())

    def _led_to(self, relation: str, found: Mapping[str, Narrowing]) -> Narrowing | None:
        """A table narrowed by the values of other tables that are."""
        places = self._places[relation]
        drivers = [
            [self._stream, *(one for one in place.beside if one.relation in found)] if place is not None else []
            for place in places
        ]
        return self._narrowed(relation, places, drivers)

    def _narrowed(
        self, relation: str, places: Sequence[_Place | None], drivers: Sequence[Sequence[_Item]]
    ) -> Narrowing | None:
        """The columns whose values are known wherever a table is read, and where they come from."""
        schema = self._inputs[relation].target.schema
        if schema is None:
            return None
        known: list[dict[str, tuple[_Item, str]]] = []
        for place, given in zip(places, drivers, strict=True):
            if place is None:
                return None
            known.append(dict(self._equalities(place, given, schema)))
        columns = [name for name in schema.names if all(name in one for one in known)]
        if columns and schema.key and set(schema.key) <= set(columns):
            columns = list(schema.key)
        if any(len({id(one[name][0].node) for name in columns}) > 1 for one in known):
            # Values of several relations belong together only where these are joined.
            columns = columns[:1]
        if not columns:
            return None
        asked = (_asked(one[columns[0]][0], [one[name][1] for name in columns]) for one in known)
        return Narrowing(relation, tuple(columns), tuple(dict.fromkeys(asked)))

    def _equalities(
        self, place: _Place, drivers: Sequence[_Item], schema: Schema
    ) -> Iterator[tuple[str, tuple[_Item, str]]]:
        """By column of the table: what it is equal to, as SQL of its type, and of which relation that is. The first
        that is told of a column comes last.
        """
        for condition in reversed(place.conditions):
            if not isinstance(condition, exp.EQ):
                continue
            sides = without_parentheses(condition.this), without_parentheses(condition.expression)
            for own, other in (sides, sides[::-1]):
                origin = origin_of(own)
                if not isinstance(own, exp.Column) or origin is None or origin.fields or not place.item.has(own):
                    continue
                column = schema.column(origin.column)
                for driver in reversed(drivers):
                    value = self._value(other, driver, column.type, column.sql_type)
                    if value is not None:
                        yield column.name, (driver, value)

    def _value(self, expression: exp.Expr, driver: _Item, wanted: pa.DataType, name: str) -> str | None:
        columns = list(expression.find_all(exp.Column))
        if not columns or not all(map(driver.has, columns)) or next(queries_in(expression), None) is not None:
            return None
        if any(is_nondeterministic(node) for node in expression.walk()):
            return None
        given = self._inputs[driver.relation].target.schema

        def type_of(column: exp.Column) -> pa.DataType | None:
            origin = origin_of(column)
            if origin is None or given is None:
                return None
            return field_type(given.column(origin.column).type, origin.fields)

        cast = key_cast(expression_type(expression, type_of), wanted)
        return None if cast is None else cast.format(expression.sql(dialect="spark"), type=name)


def _asked(driver: _Item, values: Sequence[str]) -> Asked:
    listed = ", ".join(f"{value} AS k{number}" for number, value in enumerate(values))
    return Asked(driver.relation, f"SELECT {listed} FROM {driver.node.sql(dialect='spark')}")


def _place_of(table: exp.Table) -> _Place | None:
    """Where a table is read by itself; None where what is asked of its rows isn't plain."""
    select = table.find_ancestor(exp.Select)
    scope = scope_of(select) if select is not None else None
    items = from_items(select) if select is not None else []
    if select is None or scope is None or not any(item is table for item in items) or not reads_input(table):
        return None
    where = select.args.get("where")
    conditions = conjuncts(where.this) if where is not None else []
    for join in select.args.get("joins") or ():
        if _must_hold(join, table):
            conditions += conjuncts(join.args.get("on"))
    beside = tuple(_Item(scope, item) for item in items if item is not table and reads_input(item))
    return _Place(_Item(scope, table), tuple(conditions), beside)


def _must_hold(join: exp.Join, table: exp.Table) -> bool:
    """Whether no row of a table counts for which the condition of a join isn't true."""
    kind, side = str(join.args.get("kind") or "").upper(), str(join.args.get("side") or "").upper()
    if join.args.get("method"):
        return False
    if kind in ("SEMI", "ANTI"):
        # The rows of the other side are kept, or not, by what they find here.
        return side in ("", "LEFT") and (join.this is table or kind == "SEMI")
    if kind not in ("", "INNER", "OUTER"):
        return False
    kept_side = {"LEFT": join.this is table, "RIGHT": join.this is not table}
    return kept_side.get(side, not side)
