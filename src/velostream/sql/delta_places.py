"""The places of a query where tables are read, each under a name of its own, and the equalities between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp

from velostream.model.schema import Schema
from velostream.sql.delta_steps import NotDelta
from velostream.sql.parentheses import conjuncts, without_parentheses
from velostream.sql.plan import Reader
from velostream.sql.resolve import Resolution
from velostream.sql.scope import Frame, input_of, origin_of, scope_of
from velostream.sql.shape import from_items, is_aggregated, reads_input


@dataclass
class Place:
    """A relation of some FROM."""

    reader: Reader
    schema: Schema
    scope: int
    alias: str
    optional: bool = False
    """Rows without one of its own rows may come out, with NULLs: only its own join leads to it."""
    single: bool = False
    """Leads to one row at most: the link to it holds all of its key."""
    filters: bool = False
    """Gives no rows of its own: the right side of a SEMI or ANTI join, or in a subquery."""
    constant: bool = False
    """Has one row, which all rows of the query meet."""


@dataclass
class Places:
    """All places of one query, which is changed to read them by their own names."""

    resolution: Resolution
    known: dict[tuple[int, str], Place] = field(default_factory=dict)

    def all(self) -> Sequence[Place]:
        return list(self.known.values())

    def frame(self, select: exp.Select) -> Frame:
        scope = scope_of(select)
        if scope is None:
            raise NotDelta("only Spark can tell what its names mean")
        return self.resolution.frames[scope]

    def admit(self, item: exp.Expr, frame: Frame) -> Place:
        """A relation of a FROM as a place; `NotDelta` when it is no plain table."""
        relation = input_of(item)
        if relation is None or not reads_input(item):
            raise NotDelta("FROM has more than plain tables (a subquery, a WITH item, a function or a sample)")
        schema = self.resolution.input(relation).target.schema
        alias = str(item.alias).lower()
        if schema is None or (frame.scope, alias) in self.known:
            raise NotDelta("two relations have the same alias")
        reader = Reader(f"r{len(self.known)}", relation)
        item.set("this", exp.Identifier(this=reader.relation, quoted=False))
        place = Place(reader, schema, frame.scope, alias)
        self.known[frame.scope, alias] = place
        return place

    def pairs(self, condition: exp.Expr) -> Iterator[tuple[tuple[Place, str], tuple[Place, str]]]:
        """The places and columns that a conjunct says are equal; of an OR those that all its sides say are."""
        if isinstance(condition, exp.EQ):
            one, other = self.column(condition.this), self.column(condition.expression)
            if one is not None and other is not None and comparable(*one, *other):
                yield one, other
        elif isinstance(condition, exp.Or):
            sides = (without_parentheses(side) for side in (condition.this, condition.expression))
            left, right = ([pair for part in conjuncts(side) for pair in self.pairs(part)] for side in sides)
            yield from (pair for pair in left if _same(pair) in map(_same, right))

    def may_be_null(self, node: exp.Expr) -> bool:
        """Whether an expression is more than a column that is declared NOT NULL."""
        bare = without_parentheses(node)
        origin = origin_of(bare) if isinstance(bare, exp.Column) else None
        source = None if origin is None else self.resolution.frames[origin.scope].source(origin.source)
        if origin is None or origin.fields or source is None or source.input is None:
            return True
        schema = self.resolution.input(source.input).target.schema
        return schema is None or schema.column(origin.column).nullable

    def column(self, node: exp.Expr) -> tuple[Place, str] | None:
        """The place and column that an expression is; None for anything else."""
        bare = without_parentheses(node.this if isinstance(node, exp.Alias) else node)
        origin = origin_of(bare) if isinstance(bare, exp.Column) else None
        if origin is None or origin.fields:
            return None
        place = self.known.get((origin.scope, origin.source.lower()))
        return None if place is None else (place, origin.column)


def _same(pair: tuple[tuple[Place, str], tuple[Place, str]]) -> frozenset[tuple[int, str]]:
    return frozenset((id(place), column.lower()) for place, column in pair)


def has_one_row(select: exp.Select) -> bool:
    """Whether a SELECT gives exactly one row whatever it reads."""
    cut = ("group", "having", "limit", "offset", "distinct", "qualify")
    return is_aggregated(select) and not any(map(select.args.get, cut))


def is_one_row(select: exp.Select, resolution: Resolution) -> bool:
    """Whether a SELECT only reads columns of a relation that always has one row."""
    others = [clause for clause, value in select.args.items() if value and clause not in ("expressions", "from_")]
    items = from_items(select)
    relation = input_of(items[0]) if len(items) == 1 else None
    return not others and relation is not None and resolution.input(relation).target.one_row


def comparable(one: Place, one_column: str, other: Place, other_column: str) -> bool:
    """Whether an index finds exactly what `=` finds equal: values of one type, or integers of any width."""
    left, right = one.schema.column(one_column).type, other.schema.column(other_column).type
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return True
    return bool(left == right) and not (
        pa.types.is_floating(left) or pa.types.is_nested(left) or pa.types.is_null(left)
    )
