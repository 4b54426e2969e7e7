"""A driven query as joins and expressions in plain data, so that changed rows meet looked-up rows without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

import pyarrow as pa
from sqlglot import exp

from velostream.errors import SqlError
from velostream.model.expression import Expression
from velostream.model.schema import Column, Schema
from velostream.sql.coercion import type_of
from velostream.sql.delta_places import Place, Places, comparable
from velostream.sql.delta_steps import NotDelta
from velostream.sql.functions import aggregate_calls
from velostream.sql.grouping import bare_item
from velostream.sql.lower import NotLowerable, lower
from velostream.sql.naming import plain_column
from velostream.sql.outputs import expand_star
from velostream.sql.parentheses import conjuncts, without_parentheses
from velostream.sql.plan import JoinedQuery, JoinKind, JoinPart
from velostream.sql.shape import from_items, queries_in

_IN_SUBQUERY = ("expressions", "from_", "where", "distinct", "kind")


def joined_query(select: exp.Select, places: Places, root: Place) -> JoinedQuery | None:
    """The query in plain data; None when Spark has to evaluate it.

    All its places are admitted already, and `root` is the one whose rows give their results by themselves.
    """
    try:
        return _Joiner(select, places, root).query()
    except (NotLowerable, NotDelta, SqlError):
        return None


def column_name(place: Place, column: str) -> str:
    """What a column of a place is called among the joined rows."""
    return f"{place.reader.relation}.{column}"


@dataclass(frozen=True)
class _Pair:
    """A column of the rows so far that equals one of the place to join."""

    left: str
    right: str


@dataclass(frozen=True)
class _Equalities:
    pairs: list[_Pair]
    rest: list[exp.Expr]
    """Conditions that are left to check."""


@dataclass(frozen=True)
class _Scalar:
    """A value of one row of a place."""

    place: Place
    value: exp.Expr


@dataclass
class _Joiner:
    select: exp.Select
    places: Places
    root: Place
    parts: list[JoinPart] = field(default_factory=list)

    def query(self) -> JoinedQuery:
        here = [self._place(item) for item in from_items(self.select)]
        joins: Sequence[exp.Join] = self.select.args.get("joins") or ()
        where = self.select.args.get("where")
        conditions = conjuncts(where.this) if where is not None else []
        plain = [condition for condition in conditions if not self._asks(condition)]
        for place in self.places.all():
            if place.constant:
                kind = JoinKind.LEFT if place.filters else JoinKind.INNER
                self.parts.append(JoinPart(place.reader.relation, kind, (), ()))
        if any(_side(join) == "RIGHT" for join in joins):
            first = here[1]
            self._outer(joins[0], [first], here[0], JoinKind.LEFT)
        else:
            first = here[0]
            plain = self._in_order(here, joins, plain)
        for nested in [*queries_in(where), *(query for item in self.select.expressions for query in queries_in(item))]:
            self._look_up(nested)
        for condition in conditions:
            if self._asks(condition):
                self._filter(condition)
        return JoinedQuery(
            first=first.reader.relation,
            parts=tuple(self.parts),
            condition=self._all(plain),
            items=tuple(item for part in self.select.expressions for item in self._items(part)),
        )

    def _asks(self, condition: exp.Expr) -> bool:
        """Whether a condition has a subquery that differs from row to row."""
        return any(self._scalar(nested) is None for nested in queries_in(condition))

    def _scalar(self, nested: exp.Expr) -> _Scalar | None:
        """What a subquery gives of one row: of the same for all rows, or of one that is looked up by its key."""
        select = nested.this if isinstance(nested, exp.Subquery) else None
        if not isinstance(select, exp.Select) or len(select.expressions) != 1 or len(from_items(select)) != 1:
            return None
        place = self._place(from_items(select)[0], self.places.frame(select).scope)
        value = bare_item(select.expressions[0])
        others = [clause for clause, part in select.args.items() if part and clause not in ("expressions", "from_")]
        if place.constant and place.filters and not others:
            return _Scalar(place, value)
        columns = list(value.find_all(exp.Column))
        if not place.single or others != ["where"] or not all(isinstance(c.parent, exp.Max) for c in columns):
            return None
        if not columns or len(columns) != len(list(value.find_all(exp.Max))):
            return None
        return _Scalar(place, value.transform(lambda node: node.this if isinstance(node, exp.Max) else node))

    def _look_up(self, nested: exp.Expr) -> None:
        """Join the one row that a subquery looks up."""
        found = self._scalar(nested)
        if found is None or found.place.constant:
            return
        outside = [known for known in self.places.all() if known is not found.place and not known.filters]
        equal = self._pairs(conjuncts(nested.this.args["where"].this), outside, found.place)
        if equal.rest:
            raise NotLowerable("a subquery that Spark evaluates")
        self._add(JoinKind.LEFT, found.place, equal.pairs)

    def _place(self, item: exp.Expr, scope: int | None = None) -> Place:
        known = self.places.frame(self.select).scope if scope is None else scope
        return self.places.known[known, str(item.alias).lower()]

    def _in_order(self, here: Sequence[Place], joins: Sequence[exp.Join], plain: list[exp.Expr]) -> list[exp.Expr]:
        """Join the places of the FROM, inner ones ahead of the first outer one in any order that equalities lead.

        Gives the conditions of the WHERE that are left to check.
        """
        inner = next((number for number, join in enumerate(joins) if _kind(join) is not JoinKind.INNER), len(joins))
        if any(join.args.get("using") for join in joins[:inner]):
            inner = 0
        on = [condition for join in joins[:inner] for condition in conjuncts(join.args.get("on"))]
        left = [*on, *plain]
        joined, waiting = [here[0]], [place for place in here[1 : inner + 1] if not place.constant]
        while waiting:
            place = max(waiting, key=lambda place: self._narrowness(place, self._pairs(left, joined, place).pairs))
            equal = self._pairs(left, joined, place)
            self._add(JoinKind.INNER, place, equal.pairs)
            left = equal.rest
            joined.append(place)
            waiting.remove(place)
        for join, place in zip(joins[inner:], here[inner + 1 :], strict=True):
            if place.constant:
                left += conjuncts(join.args.get("on"))
            else:
                self._outer(join, joined, place, _kind(join))
            if not place.filters:
                joined.append(place)
        return left

    @staticmethod
    def _narrowness(place: Place, pairs: Sequence[_Pair]) -> int:
        """How few rows of a place a row may meet: one at most, some, all."""
        columns = {pair.right for pair in pairs}
        return 2 if place.schema.key and set(place.schema.key) <= columns else min(1, len(columns))

    def _outer(self, join: exp.Join, joined: Sequence[Place], place: Place, kind: JoinKind) -> None:
        """Join a place by what its own join says alone."""
        equal = self._pairs(conjuncts(join.args.get("on")), joined, place)
        found = equal.pairs
        for part in join.args.get("using") or ():
            holders = [one for one in joined if one.schema.find(str(part.name)) is not None]
            own = place.schema.find(str(part.name))
            if len(holders) != 1 or own is None:
                raise NotLowerable("USING over more than two relations")
            other = holders[0].schema.column(str(part.name)).name
            if not comparable(holders[0], other, place, own.name):
                raise NotLowerable("USING over columns of two types")
            found.append(_Pair(column_name(holders[0], other), own.name))
        self._add(kind, place, found, equal.rest)

    def _filter(self, condition: exp.Expr) -> None:
        """A condition with a subquery: one that rows of a single table fulfil or don't."""
        negated = isinstance(condition, exp.Not)
        bare = without_parentheses(condition.this) if isinstance(condition, exp.Not) else condition
        kind = JoinKind.ANTI if negated else JoinKind.SEMI
        if isinstance(bare, exp.Exists):
            self._semi(bare.this, kind, None)
        elif isinstance(bare, exp.In) and not negated and isinstance(bare.args.get("query"), exp.Query):
            self._semi(bare.args["query"], kind, bare.this)
        else:
            raise NotLowerable("a subquery that Spark evaluates")

    def _semi(self, nested: exp.Query, kind: JoinKind, member: exp.Expr | None) -> None:
        select = nested.this if isinstance(nested, exp.Subquery) else nested
        if not isinstance(select, exp.Select) or any(
            value for clause, value in select.args.items() if clause not in _IN_SUBQUERY
        ):
            raise NotLowerable("a subquery that Spark evaluates")
        if any(aggregate_calls(item) for item in select.expressions):
            raise NotLowerable("a subquery that Spark evaluates")
        (item,) = from_items(select)
        place = self._place(item, self.places.frame(select).scope)
        where = select.args.get("where")
        conditions = conjuncts(where.this) if where is not None else []
        outside = [known for known in self.places.all() if known is not place and not known.filters]
        equal = self._pairs(conditions, outside, place)
        found = equal.pairs
        if member is not None:
            outer, own = self.places.column(member), self.places.column(select.expressions[0])
            if outer is None or own is None or own[0] is not place or not comparable(*outer, *own):
                raise NotLowerable("IN over an expression")
            found.append(_Pair(column_name(*outer), own[1]))
        self._add(kind, place, found, equal.rest)

    def _pairs(self, conditions: Sequence[exp.Expr], joined: Sequence[Place], place: Place) -> _Equalities:
        """The equalities between places joined already and one to join, and the conditions that say more than that."""
        known = {id(one) for one in joined}
        found: dict[_Pair, None] = {}
        rest: list[exp.Expr] = []
        for condition in conditions:
            pairs = [
                _Pair(column_name(*other), own[1])
                for pair in self.places.pairs(condition)
                for other, own in (pair, pair[::-1])
                if id(other[0]) in known and own[0] is place
            ]
            found.update(dict.fromkeys(pairs))
            if not pairs or not isinstance(condition, exp.EQ):
                rest.append(condition)
        return _Equalities(list(found), rest)

    def _add(self, kind: JoinKind, place: Place, pairs: Sequence[_Pair], conditions: Sequence[exp.Expr] = ()) -> None:
        if not pairs:
            raise NotLowerable("no equality of columns leads to a relation")
        self.parts.append(
            JoinPart(
                place.reader.relation,
                kind,
                tuple(pair.left for pair in pairs),
                tuple(pair.right for pair in pairs),
                self._all(conditions),
            )
        )

    def _items(self, part: exp.Expr) -> Sequence[Expression]:
        if not part.is_star:
            return [self._lowered(bare_item(part))]
        columns = expand_star(part, self.places.frame(self.select))
        if columns is None or any(column.source is None for column in columns):
            raise NotLowerable("only Spark can tell what * stands for")
        scope = self.places.frame(self.select).scope
        places = [self.places.known[scope, str(column.source).lower()] for column in columns]
        return [
            lower(plain_column(column_name(place, column.name)), self._schema)
            for place, column in zip(places, columns, strict=True)
        ]

    def _all(self, conditions: Sequence[exp.Expr]) -> Expression | None:
        if not conditions:
            return None
        lowered = self._lowered(reduce(lambda one, other: exp.And(this=one, expression=other), _copies(conditions)))
        if type_of(lowered, self._schema) != pa.bool_():
            raise NotLowerable("a condition that is no BOOLEAN")
        return lowered

    def _lowered(self, expression: exp.Expr) -> Expression:
        def renamed(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column | exp.Subquery):
                return node
            if isinstance(node, exp.Subquery):
                scalar = self._scalar(node)
                if scalar is None:
                    raise NotLowerable("a subquery that Spark evaluates")
                return exp.paren(scalar.value.transform(renamed), copy=False)
            found = self.places.column(node)
            if found is None:
                raise NotLowerable("only Spark can tell what a name means")
            return plain_column(column_name(*found))

        return lower(expression.copy().transform(renamed, copy=False), self._schema)

    @cached_property
    def _schema(self) -> Schema:
        return Schema(
            tuple(
                Column(column_name(place, column.name), column.type)
                for place in self.places.all()
                for column in place.schema.columns
            )
        )


def _copies(conditions: Sequence[exp.Expr]) -> list[exp.Expr]:
    return [exp.paren(condition.copy(), copy=False) for condition in conditions]


def _side(join: exp.Join) -> str:
    return str(join.args.get("side") or "").upper()


def _kind(join: exp.Join) -> JoinKind:
    kind = str(join.args.get("kind") or "").upper()
    if kind in ("SEMI", "ANTI"):
        return JoinKind.SEMI if kind == "SEMI" else JoinKind.ANTI
    return JoinKind.LEFT if _side(join) == "LEFT" else JoinKind.INNER
