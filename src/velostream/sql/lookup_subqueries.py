"""Subqueries that ask one table about a row, found by columns that equal the stream's: they can be lookups.

By the primary key there is at most one such row, so EXISTS and IN ask whether it is there and passes, and a scalar
subquery is its value or NULL. By other columns EXISTS and IN are content with any row that passes. A lookup that keeps
the stream's rows answers all of them, wherever in the query they stand.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from sqlglot import exp

from velostream.sql.functions import aggregate_calls, is_generator, is_nondeterministic
from velostream.sql.grouping import bare_item
from velostream.sql.parentheses import conjuncts, without_parentheses
from velostream.sql.rules.conditions import keeps_only_true
from velostream.sql.scope import Origin, origin_of, scope_of, set_origin
from velostream.sql.shape import from_items, nested_queries, reads_input

_CLAUSES = frozenset(("expressions", "from_", "where"))


@dataclass(frozen=True)
class TableSubquery:
    """A subquery over the rows of one table, its columns read as those of a table joined in the query around it."""

    kind: str
    """EXISTS, IN or scalar subquery, for EXPLAIN."""
    place: exp.Expr
    """What is replaced by its answer, in the query around it."""
    table: exp.Expr
    conditions: tuple[exp.Expr, ...]
    value: exp.Expr | None
    """Of a scalar subquery: what it gives."""

    def without(self, met: Collection[int]) -> TableSubquery:
        """The same where the lookup sees to conditions, given by identity."""
        return replace(self, conditions=tuple(one for one in self.conditions if id(one) not in met))

    def answer(self, key: exp.Expr) -> exp.Expr:
        """Its answer, by a column of the table that is NULL exactly where there is no row."""
        found: exp.Expr = exp.Not(this=exp.Is(this=key, expression=exp.Null()))
        if self.value is None and not self.conditions:
            return exp.paren(found, copy=False)
        if self.value is not None:
            if isinstance(self.value, exp.Column) and not self.conditions:
                return self.value
            passing = exp.and_(found, *self.conditions, copy=False)
            return exp.Case(ifs=[exp.If(this=passing, true=self.value)])
        # What the conditions say of a row that isn't there must not be asked: it may be an error.
        asked = exp.Case(ifs=[exp.If(this=found, true=exp.and_(*self.conditions, copy=False))])
        return exp.Coalesce(this=asked, expressions=[exp.false()])


def as_table_subquery(nested: exp.Query, *, scope: int, alias: str) -> TableSubquery | None:
    """The subquery, if it is about one table; `scope` is the query around it, which shall know the table as `alias`."""
    inner = nested.this if isinstance(nested, exp.Subquery) else nested
    if not isinstance(inner, exp.Select) or any(inner.args[one] for one in inner.args if one not in _CLAUSES):
        return None
    items = from_items(inner)
    own = scope_of(inner)
    if own is None or len(items) != 1 or not reads_input(items[0]) or next(nested_queries(inner), None) is not None:
        return None
    where = inner.args.get("where")
    conditions = conjuncts(where.this) if where is not None else []
    place, kind, value = _place(nested, inner)
    if place is None or (value is not None and (aggregate_calls(value) or value.is_star)):
        return None
    if kind == "IN" and value is not None:
        conditions.append(exp.EQ(this=exp.paren(value), expression=exp.paren(place.this)))
        value = None
    parts = [*conditions, *([value] if value is not None else [])]
    if any(_is_of_more_than_a_row(node) for part in (*inner.expressions, *parts) for node in part.walk()):
        return None
    moved = [_moved(part, own, scope, alias) for part in parts]
    known = [part for part in moved if part is not None]
    if len(known) < len(parts):
        return None
    count = len(conditions)
    return TableSubquery(kind, place, items[0], tuple(known[:count]), known[count] if value is not None else None)


def _is_of_more_than_a_row(node: exp.Expr) -> bool:
    """Whether a value is another one where the row stands among others, or is asked for again."""
    return isinstance(node, exp.Window) or is_generator(node) or is_nondeterministic(node)


def _place(nested: exp.Query, inner: exp.Select) -> tuple[exp.Expr | None, str, exp.Expr | None]:
    """What a subquery's answer stands for, what it is, and the value it gives where that matters."""
    parent = nested.parent
    if isinstance(parent, exp.Exists):
        return (None if any(aggregate_calls(item) for item in inner.expressions) else parent), "EXISTS", None
    if len(inner.expressions) != 1 or inner.expressions[0].is_star:
        return None, "", None
    item = bare_item(inner.expressions[0])
    if isinstance(parent, exp.In) and parent.args.get("query") is nested:
        # Elsewhere IN is unknown where NOT EXISTS is true, or has been rewritten already.
        plain = keeps_only_true(parent) and not isinstance(without_parentheses(parent.this), exp.Tuple)
        return (parent if plain else None), "IN", item
    if not isinstance(nested, exp.Subquery) or isinstance(parent, exp.Any | exp.All):
        return None, "", None
    if isinstance(item, exp.Min | exp.Max) and not item.expressions and not isinstance(item.this, exp.Distinct):
        # Of one row, or of none: the value, or NULL.
        item = item.this
    return nested, "scalar subquery", item


def _moved(expression: exp.Expr, own: int, scope: int, alias: str) -> exp.Expr | None:
    """A copy to stand in the query around; None where it isn't plain which columns it reads."""
    copied = expression.copy()
    for column in copied.find_all(exp.Column):
        origin = origin_of(column)
        if origin is None or origin.scope not in (own, scope):
            return None
        if origin.scope == own:
            set_origin(column, Origin(scope, alias, origin.column, origin.fields))
    return exp.paren(copied, copy=False) if isinstance(copied, exp.Connector) else copied
