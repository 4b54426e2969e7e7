"""Queries that fall apart by values that all their tables hold: groups of any aggregates, FULL joins, windows.

Rows of two different values never meet when every join equates the columns that hold them, and every GROUP BY, DISTINCT
and PARTITION BY keeps the values apart. So what a change touches is known by the values of the changed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from velostream.sql.delta_places import Place, Places, comparable
from velostream.sql.delta_steps import NotDelta, is_row_by_row
from velostream.sql.functions import is_generator
from velostream.sql.grouping import bare_item, group_expressions, grouping_construct
from velostream.sql.keys import key_of_result
from velostream.sql.maps import name_items
from velostream.sql.meetings import meeting_of
from velostream.sql.naming import output_name
from velostream.sql.outputs import expand_star
from velostream.sql.parentheses import conjuncts
from velostream.sql.plan import Meeting, PartitionedPlan
from velostream.sql.resolve import Resolution
from velostream.sql.scope import origin_of
from velostream.sql.shape import from_items, is_aggregated, nested_queries, outermost_select, window_functions

_KNOWN = ("kind", "expressions", "from_", "joins", "where", "group", "having", "distinct", "order", "hint", "qualify")
_ITEM_EXTRAS = ("pivots", "sample", "joins", "laterals", "limit", "offset", "order", "with_")

Column = tuple[Place, str]
Value = dict[int, str]
"""One value: the column that holds it, by the identity of each place."""


@dataclass(frozen=True)
class Partitioned:
    """A partitioned query, and columns of its result that no two rows share, if some are known."""

    plan: PartitionedPlan
    unique: tuple[str, ...] | None
    meeting: Meeting | None
    """What bounds it, where it is no more than a join of two streams."""


def plan_partitioned(tree: exp.Expr, resolution: Resolution) -> Partitioned:
    """The plan of a SELECT that falls apart; `NotDelta` when rows of it can't be kept apart by any value."""
    named = name_items(tree)
    outermost = outermost_select(named)
    if outermost is None:
        raise NotDelta("it is a set operation")
    select = _read_row_by_row(outermost) or outermost
    for clause, value in select.args.items():
        if value and clause not in _KNOWN:
            raise NotDelta(f"{clause.rstrip('_').upper()} sees all rows at once")
    if next(nested_queries(select), None) is not None:
        raise NotDelta("a subquery reads rows that no equality leads to")
    if grouping_construct(select) is not None:
        raise NotDelta(f"GROUP BY {grouping_construct(select)}")
    return _Divider(select, Places(resolution), outermost=outermost).plan(named)


def _read_row_by_row(select: exp.Select) -> exp.Select | None:
    """The subquery whose rows a SELECT only filters and projects, such as those that are first; None: it does more."""
    from_ = select.args.get("from_")
    item = from_.this if from_ is not None else None
    if not isinstance(item, exp.Subquery) or any(map(item.args.get, _ITEM_EXTRAS)):
        return None
    written = item.args.get("alias")
    if written is not None and written.args.get("columns"):
        return None
    if select.args.get("laterals") or select.args.get("with_") or not is_row_by_row(select):
        return None
    if any(is_generator(bare_item(part)) for part in select.expressions):
        return None
    return item.this if isinstance(item.this, exp.Select) else None


class _Divider:
    def __init__(self, select: exp.Select, places: Places, *, outermost: exp.Select) -> None:
        """`outermost` is the SELECT itself, or the one that reads its rows one by one."""
        self.select = select
        self.outermost = outermost
        self.places = places
        self.here = [places.admit(item, places.frame(select)) for item in from_items(select)]
        if not self.here:
            raise NotDelta("nothing is read")
        self.joins: Sequence[exp.Join] = select.args.get("joins") or ()
        for number, join in enumerate(self.joins, start=1):
            self._check_join(join, number)

    def plan(self, tree: exp.Expr) -> Partitioned:
        values = [value for value in self._values() if self._kept_apart(value)]
        if not values:
            raise NotDelta("no value that all its rows hold keeps them apart")
        names = self._shown()
        outputs = tuple(name for value in values if (name := self._output(value, names)) is not None)
        whole = len(outputs) == len(values)
        if not whole and self._compares_rows:
            raise NotDelta("the values that keep its rows apart are not selected")
        plan = PartitionedPlan(
            sql=tree.sql(dialect="spark"),
            readers=tuple(place.reader for place in self.here),
            columns={place.reader.relation: tuple(value[id(place)] for value in values) for place in self.here},
            outputs=outputs if whole else None,
        )
        is_join = self.outermost is self.select and not self._compares_rows
        meeting = meeting_of(self.select, self.places) if is_join else None
        return Partitioned(plan, key_of_result(self.places.resolution, ()) or None, meeting)

    @property
    def _compares_rows(self) -> bool:
        """Whether rows depend on one another, so that computing them again may give others: floats, ties, orders."""
        distinct = self.select.args.get("distinct")
        return bool(is_aggregated(self.select) or distinct or next(window_functions(self.select), None))

    def _values(self) -> Sequence[Value]:
        """Values that every place holds in one column, equated by the join of each."""
        if len(self.here) == 1:
            return [{id(self.here[0]): name} for name in self.here[0].schema.names]
        found: list[Value] = []
        for first in self.here[0].schema.names:
            value = {id(self.here[0]): first}
            for number, join in enumerate(self.joins, start=1):
                column = self._equated(join, value, self.here[number])
                if column is None:
                    break
                value[id(self.here[number])] = column
            else:
                found.append(value)
        return found

    def _check_join(self, join: exp.Join, number: int) -> None:
        """Note which places rows may come without."""
        kind = str(join.args.get("kind") or "").upper()
        side = str(join.args.get("side") or "").upper()
        if join.args.get("method") or kind not in ("", "INNER", "OUTER", "CROSS", "SEMI", "ANTI"):
            raise NotDelta(f"{join.args.get('method') or kind} JOIN")
        if side in ("LEFT", "FULL") or kind in ("SEMI", "ANTI"):
            self.here[number].optional = True
        if side in ("RIGHT", "FULL"):
            for place in self.here[:number]:
                place.optional = True

    def _equated(self, join: exp.Join, value: Value, right: Place) -> str | None:
        """The column of a join's right side that its condition equates with one that holds the value."""
        left = [place for place in self.here if id(place) in value]
        for part in join.args.get("using") or ():
            own = right.schema.find(str(part.name))
            holders = [place for place in left if place.schema.find(str(part.name)) is not None]
            if own is not None and len(holders) == 1 and len(left) == 1:
                other = holders[0].schema.column(str(part.name)).name
                if value[id(holders[0])] == other and comparable(holders[0], other, right, own.name):
                    return own.name
        where = self.select.args.get("where")
        conditions = conjuncts(join.args.get("on"))
        if where is not None and not any(place.optional for place in self.here):
            conditions += conjuncts(where.this)
        for condition in conditions:
            for pair in self.places.pairs(condition):
                for (there, its), (own_place, mine) in (pair, pair[::-1]):
                    if own_place is right and value.get(id(there)) == its:
                        return mine
        return None

    def _kept_apart(self, value: Value) -> bool:
        """Whether every clause that brings rows together keeps those of different values apart."""
        if is_aggregated(self.select) and not self._among(self._groups(), value):
            return False
        if self.select.args.get("distinct") and self._output(value, self._outputs()) is None:
            return False
        return all(self._among(window.args.get("partition_by") or (), value) for window in self._windows())

    def _groups(self) -> Sequence[exp.Expr]:
        return group_expressions(self.select, self.places.frame(self.select))

    def _windows(self) -> Sequence[exp.Window]:
        found = [part for part in window_functions(self.select) if isinstance(part, exp.Window)]
        if any(window.args.get("alias") for window in found):
            raise NotDelta("a named window")
        return found

    def _among(self, expressions: Sequence[exp.Expr], value: Value) -> bool:
        return any(self._holds(self.places.column(expression), value) for expression in expressions)

    def _holds(self, column: Column | None, value: Value) -> bool:
        """Whether a column has the value in every row: it belongs to a place that is never missing."""
        return column is not None and not column[0].optional and value.get(id(column[0])) == column[1]

    def _outputs(self) -> Sequence[tuple[Column, str]]:
        """Columns that are selected as they are, with their output names."""
        found: list[tuple[Column, str]] = []
        aliases = {place.alias: place for place in self.here}
        for item in self.select.expressions:
            if is_generator(item.this if isinstance(item, exp.Alias) else item):
                raise NotDelta("a generator beside groups")
            if item.is_star:
                for star in expand_star(item, self.places.frame(self.select)) or ():
                    place = aliases.get((star.source or "").lower())
                    if place is not None:
                        found.append(((place, star.name), star.name))
                continue
            column = self.places.column(item)
            if column is not None:
                found.append((column, output_name(item)))
        return found

    def _shown(self) -> Sequence[tuple[Column, str]]:
        """Columns that come out as they are, with the names they then have."""
        inner = self._outputs()
        if self.outermost is self.select:
            return inner
        frame = self.places.frame(self.outermost)
        read: list[tuple[str, str]] = []
        for item in self.outermost.expressions:
            if item.is_star:
                read += [(star.name, star.name) for star in expand_star(item, frame) or ()]
                continue
            origin = origin_of(bare_item(item))
            if origin is not None and origin.scope == frame.scope and not origin.fields:
                read.append((origin.column, output_name(item)))
        return [(column, shown) for below, shown in read for column, name in inner if name.lower() == below.lower()]

    def _output(self, value: Value, names: Sequence[tuple[Column, str]]) -> str | None:
        return next((name for column, name in names if self._holds(column, value)), None)
