"""Joins and correlated subqueries over tables: which rows a change anywhere may concern, found along equalities.

One relation of the FROM drives: each of its rows gives its result by itself, together with the rows of the others that
it leads to. An equality leads from one relation to another when without it rows of the two never meet: a conjunct of
the ON of their join, of the WHERE between inner-joined relations, or of the WHERE of a subquery.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from velostream.sql.delta_groups import Typing, check_exact
from velostream.sql.delta_joined import joined_query
from velostream.sql.delta_places import Place, Places, comparable, is_one_row
from velostream.sql.delta_steps import NotDelta
from velostream.sql.functions import aggregate_calls
from velostream.sql.maps import name_items
from velostream.sql.meetings import meeting_of
from velostream.sql.naming import output_name
from velostream.sql.outputs import expand_star
from velostream.sql.parentheses import conjuncts
from velostream.sql.plan import DrivenPlan, Link, Meeting
from velostream.sql.resolve import Resolution
from velostream.sql.rules.conditions import keeps_only_true
from velostream.sql.shape import (
    from_items,
    is_aggregated,
    nested_queries,
    outermost_select,
    window_functions,
)

_ROW_BY_ROW = ("expressions", "from_", "joins", "where", "order", "hint")
_IN_SUBQUERY = (*_ROW_BY_ROW, "group", "having", "distinct", "kind")


@dataclass(frozen=True)
class Driven:
    """A driven query, and columns of its result that no two rows share, if some are known."""

    plan: DrivenPlan
    unique: tuple[str, ...] | None
    meeting: Meeting | None
    """What bounds it, where it is a join of two streams."""


def plan_driven(tree: exp.Expr, resolution: Resolution) -> Driven:
    """The plan of a SELECT without aggregates of its own; `NotDelta` when some relation isn't led to by equalities."""
    named = name_items(tree)
    select = outermost_select(named)
    if select is None:
        raise NotDelta("it is a set operation")
    if any(value for clause, value in select.args.items() if clause not in _ROW_BY_ROW) or is_aggregated(select):
        raise NotDelta("it looks at more than one row of its FROM at a time")
    if next(window_functions(select), None) is not None:
        raise NotDelta("a window function sees many rows at once")
    return _Tracer(Places(resolution)).trace(named, select)


@dataclass(frozen=True)
class _Equality:
    """Columns of two places that are equal; `directed`: only from the first to the second."""

    parent: Place
    parent_column: str
    child: Place
    child_column: str
    directed: bool = False

    def turned(self) -> _Equality:
        return _Equality(self.child, self.child_column, self.parent, self.parent_column)


@dataclass
class _Tracer:
    places: Places
    equalities: list[_Equality] = field(default_factory=list)

    def trace(self, tree: exp.Expr, select: exp.Select) -> Driven:
        root = self._best_root(select, self._select(select))
        links = self._links(root)
        plan = DrivenPlan(
            sql=tree.sql(dialect="spark"),
            readers=(root.reader, *(place.reader for place in self.places.all() if place is not root)),
            links=tuple(links),
            constants=tuple(place.reader.relation for place in self.places.all() if place.constant),
            joined=joined_query(select, self.places, root),
        )
        return Driven(plan, self._unique(select, root), meeting_of(select, self.places))

    def _select(self, select: exp.Select) -> Place:
        """Take in the relations of a SELECT and of the subqueries in it; gives the one that drives."""
        if select.args.get("with_"):
            raise NotDelta("a WITH clause is read")
        frame = self.places.frame(select)
        items = from_items(select)
        if not items:
            raise NotDelta("a subquery without a FROM")
        here = [self.places.admit(item, frame) for item in items]
        joins: Sequence[exp.Join] = select.args.get("joins") or ()
        root = self._root(here, joins)
        for number, join in enumerate(joins, start=1):
            self._join(join, here[:number], here[number], root)
        where = select.args.get("where")
        for condition in conjuncts(where.this) if where is not None else ():
            self._between(condition, [place for place in here if not place.optional and not place.filters])
        for nested in nested_queries(select):
            self._subquery(nested)
        return root

    def _root(self, here: Sequence[Place], joins: Sequence[exp.Join]) -> Place:
        """The relation whose rows give their results by themselves: the first, unless a RIGHT JOIN keeps the other."""
        sides = [str(join.args.get("side") or "").upper() for join in joins]
        if "FULL" in sides:
            raise NotDelta("a FULL JOIN has no side that drives it")
        if "RIGHT" not in sides:
            return here[0]
        if len(joins) > 1:
            raise NotDelta("a RIGHT JOIN among several joins")
        return here[1]

    def _best_root(self, select: exp.Select, first: Place) -> Place:
        """The relation to drive: of inner-joined ones that which leads to a single row of as many others as can be.

        From an order to its customer is one row, from a customer to the orders are many, which a change of one of them
        would concern.
        """
        joins: Sequence[exp.Join] = select.args.get("joins") or ()
        if any(join.args.get("side") or str(join.args.get("kind") or "").upper() in ("SEMI", "ANTI") for join in joins):
            return first
        scope = self.places.frame(select).scope
        return max((place for place in self.places.all() if place.scope == scope), key=self._single_rows)

    def _single_rows(self, root: Place) -> int:
        try:
            self._links(root)
        except NotDelta:
            return -1
        return sum(place.single for place in self.places.all() if place is not root)

    def _join(self, join: exp.Join, left: Sequence[Place], right: Place, root: Place) -> None:
        kind = str(join.args.get("kind") or "").upper()
        side = str(join.args.get("side") or "").upper()
        if join.args.get("method") or kind not in ("", "INNER", "OUTER", "CROSS", "SEMI", "ANTI"):
            raise NotDelta(f"{join.args.get('method') or kind} JOIN")
        right.filters = kind in ("SEMI", "ANTI")
        directed = bool(side) or right.filters
        if side == "LEFT" or right.filters:
            right.optional = True
        elif side == "RIGHT":
            left[0].optional = True
        for part in join.args.get("using") or ():
            self._using(str(part.name), left, right, root, directed=directed)
        for condition in conjuncts(join.args.get("on")):
            if not directed:
                self._between(condition, [*left, right])
                continue
            for one, other in self.places.pairs(condition):
                if {id(one[0]), id(other[0])} <= {id(place) for place in (*left, right)}:
                    parent, child = (other, one) if (one[0] is right) == (side != "RIGHT") else (one, other)
                    if (child[0] is right) or side == "RIGHT":
                        self.equalities.append(_Equality(*parent, *child, directed=True))

    def _using(self, name: str, left: Sequence[Place], right: Place, root: Place, *, directed: bool) -> None:
        having = [place for place in left if place.schema.find(name) is not None and not place.filters]
        column = right.schema.find(name)
        if len(having) != 1 or column is None:
            raise NotDelta(f'USING ("{name}") over more than two relations')
        other = having[0].schema.column(name).name
        parent, child = (
            ((right, column.name), (having[0], other)) if root is right else ((having[0], other), (right, column.name))
        )
        if comparable(parent[0], parent[1], child[0], child[1]):
            self.equalities.append(_Equality(*parent, *child, directed=directed))

    def _between(self, condition: exp.Expr, usable: Sequence[Place]) -> None:
        """An equality that all rows coming out have, whichever of its relations one comes from."""
        known = {id(place) for place in usable}
        for one, other in self.places.pairs(condition):
            if {id(one[0]), id(other[0])} <= known and one[0] is not other[0]:
                self.equalities.append(_Equality(*one, *other))

    def _subquery(self, nested: exp.Query) -> None:
        """A subquery of which only rows that equal the outer ones in some column matter."""
        select = nested.this if isinstance(nested, exp.Subquery) else nested
        if not isinstance(select, exp.Select):
            raise NotDelta("a subquery with a set operation")
        if any(value for clause, value in select.args.items() if clause not in _IN_SUBQUERY):
            raise NotDelta("a subquery with WITH, LIMIT or a window")
        if next(window_functions(select), None) is not None:
            raise NotDelta("a window function in a subquery")
        if is_one_row(select, self.places.resolution):
            place = self.places.admit(from_items(select)[0], self.places.frame(select))
            place.filters = place.constant = True
            return
        outside = {id(place) for place in self.places.all()}
        typing = Typing(self.places.frame(select), self.places.resolution)
        for clause in (*select.expressions, select.args.get("having")):
            for call in aggregate_calls(clause):
                check_exact(call, typing)
        root = self._select(select)
        inside = [place for place in self.places.all() if id(place) not in outside]
        for place in inside:
            place.filters = True
        where = select.args.get("where")
        for condition in conjuncts(where.this) if where is not None else ():
            self._correlation(condition, inside, root)
        self._membership(nested, select, root)

    def _correlation(self, condition: exp.Expr, inside: Sequence[Place], root: Place) -> None:
        inner = {id(place) for place in inside if not place.optional or place is root}
        for pair in self.places.pairs(condition):
            for outer, own in (pair, pair[::-1]):
                if id(own[0]) in inner and id(outer[0]) not in {id(place) for place in inside}:
                    self.equalities.append(_Equality(*outer, *own, directed=True))

    def _membership(self, nested: exp.Query, select: exp.Select, root: Place) -> None:
        """`x IN (SELECT y …)` that only decides which rows stay: of the subquery, rows with y = x matter."""
        holder = nested.parent
        if not isinstance(holder, exp.In) or not keeps_only_true(holder) or len(select.expressions) != 1:
            return
        if is_aggregated(select) and not select.args.get("group"):
            return
        item = select.expressions[0]
        outer = self.places.column(holder.this)
        own = self.places.column(item.this if isinstance(item, exp.Alias) else item)
        usable = own is not None and (own[0] is root or not own[0].optional)
        if outer is not None and own is not None and usable and comparable(*outer, *own):
            self.equalities.append(_Equality(*outer, *own, directed=True))

    def _links(self, root: Place) -> list[Link]:
        """A way from the root to every other place, parents first."""
        reached = [root]
        links: list[Link] = []
        for place in self.places.all():
            place.constant = place.constant and place.filters
        waiting = [place for place in self.places.all() if place is not root and not place.constant]
        while waiting:
            found = next((pair for place in waiting if (pair := self._way(reached, place)) is not None), None)
            alone = [place for place in waiting if self._is_constant(place)]
            if found is None and alone:
                alone[0].constant = True
                waiting.remove(alone[0])
                continue
            if found is None:
                names = ", ".join(f'"{place.alias}"' for place in waiting)
                raise NotDelta(f"no equality of columns leads to {names}")
            place, link = found
            place.single = bool(place.schema.key) and set(place.schema.key) <= set(link.child_columns)
            links.append(link)
            reached.append(place)
            waiting.remove(place)
        return links

    def _is_constant(self, place: Place) -> bool:
        """Whether all rows meet the one row of a place, if it has one."""
        return self.places.resolution.input(place.reader.input).target.one_row and not place.optional

    def _way(self, reached: Sequence[Place], place: Place) -> tuple[Place, Link] | None:
        for parent in reached:
            pairs = {
                equality.child_column: equality.parent_column
                for equality in self._directions()
                if equality.parent is parent and equality.child is place
            }
            if pairs:
                link = Link(parent.reader.relation, tuple(pairs.values()), place.reader.relation, tuple(pairs))
                return place, link
        return None

    def _directions(self) -> Iterator[_Equality]:
        for equality in self.equalities:
            if equality.directed or not equality.child.optional:
                yield equality
            if not equality.directed and not equality.parent.optional:
                yield equality.turned()

    def _unique(self, select: exp.Select, root: Place) -> tuple[str, ...] | None:
        """Output names of the root's key, if every row of it comes out once at most."""
        if not root.schema.key or not all(
            place.single or place.filters or place.constant for place in self.places.all() if place is not root
        ):
            return None
        names = self._outputs(select, root)
        found = [names.get(column.lower()) for column in root.schema.key]
        return tuple(name for name in found if name is not None) if all(found) else None

    def _outputs(self, select: exp.Select, root: Place) -> Mapping[str, str]:
        """Output names of the root's columns that are passed on as they are, by lower-case column."""
        names: dict[str, str] = {}
        for item in select.expressions:
            if item.is_star:
                for column in expand_star(item, self.places.frame(select)) or ():
                    if (column.source or "").lower() == root.alias:
                        names.setdefault(column.name.lower(), column.name)
                continue
            found = self.places.column(item.this if isinstance(item, exp.Alias) else item)
            if found is not None and found[0] is root:
                names.setdefault(found[1].lower(), output_name(item))
        return names
