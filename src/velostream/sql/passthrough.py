"""A pull SELECT that one table answers by itself, without Spark."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from velostream.errors import SqlError
from velostream.model.expression import Call, ColumnRef, Expression, Literal, conjuncts
from velostream.model.schema import Schema
from velostream.sql.grouping import bare_item, group_expressions, grouping_construct
from velostream.sql.lower import NotLowerable, lower
from velostream.sql.lower_resolved import unqualified
from velostream.sql.naming import output_name
from velostream.sql.outputs import expand_star
from velostream.sql.parentheses import without_parentheses
from velostream.sql.plan import AggregateFunction, Input, Item, Order, PassthroughPlan, Relation, RelationKind
from velostream.sql.scope import Frame, origin_of
from velostream.sql.shape import nested_queries, reads_input

_FUNCTIONS: dict[type[exp.Expr], AggregateFunction] = {
    exp.Count: AggregateFunction.COUNT,
    exp.Sum: AggregateFunction.SUM,
    exp.Avg: AggregateFunction.AVG,
    exp.Min: AggregateFunction.MIN,
    exp.Max: AggregateFunction.MAX,
}
_SUMMED = (AggregateFunction.SUM, AggregateFunction.AVG)
_PLAIN_CLAUSES = ("kind", "expressions", "from_", "where", "group", "order", "limit", "offset")


class _NotPlain(Exception):  # noqa: N818 - not an error: Spark runs the query
    pass


def plan_passthrough(select: exp.Select, *, frame: Frame, inputs: tuple[Input, ...]) -> PassthroughPlan | None:
    """The plan if the query is plain enough for its table to answer, else None."""
    from_ = select.args.get("from_")
    others = [clause for clause, value in select.args.items() if value and clause not in _PLAIN_CLAUSES]
    if others or from_ is None or len(inputs) != 1 or not reads_input(from_.this):
        return None
    entry = inputs[0]
    if entry.target.kind is not RelationKind.TABLE or entry.source is not None or entry.target.schema is None:
        return None
    if next(nested_queries(select), None) is not None:
        return None
    try:
        return _Reader(select, frame=frame, relation=entry.target, schema=entry.target.schema).plan()
    except (_NotPlain, NotLowerable):
        return None


class _Reader:
    def __init__(self, select: exp.Select, *, frame: Frame, relation: Relation, schema: Schema) -> None:
        self.select = select
        self.frame = frame
        self.relation = relation
        self.schema = schema

    def plan(self) -> PassthroughPlan:
        items = tuple(item for expression in self.select.expressions for item in self._items(expression))
        groups = self._groups(items)
        condition = self._condition()
        return PassthroughPlan(
            table=self.relation.name,
            items=items,
            condition=condition,
            order=self._order(items, groups),
            limit=self._number("limit"),
            offset=self._number("offset") or 0,
            access=access_path(self.relation, condition),
            groups=groups,
        )

    def _groups(self, items: tuple[Item, ...]) -> tuple[str, ...]:
        """The columns of GROUP BY."""
        if not self.select.args.get("group"):
            functions = [item.function is not None for item in items]
            clauses = [clause for clause in ("order", "limit", "offset") if self.select.args.get(clause)]
            if any(functions) and (clauses or not all(functions)):
                raise _NotPlain
            return ()
        if grouping_construct(self.select) is not None:
            raise _NotPlain
        groups = tuple(dict.fromkeys(map(self._column, group_expressions(self.select, self.frame))))
        columns = {item.column for item in items if item.function is None}
        # Sums of floats depend on the order of the rows, DISTINCT of a sum on more than a group's sum.
        inexact = [item for item in items if item.function in _SUMMED and not self._is_summed_exactly(item)]
        if not groups or not columns <= set(groups) or inexact:
            raise _NotPlain
        if not all(_is_ordered(self.schema.column(name).type) for name in groups):
            raise _NotPlain
        return groups

    def _is_summed_exactly(self, item: Item) -> bool:
        return not item.distinct and not pa.types.is_floating(self.schema.column(str(item.column)).type)

    def _items(self, expression: exp.Expr) -> list[Item]:
        if expression.is_star:
            columns = expand_star(expression, self.frame)
            if columns is None:
                raise _NotPlain
            return [Item(column.name, column.name) for column in columns]
        name = output_name(expression)
        bare = bare_item(expression)
        if isinstance(bare, exp.Column):
            return [Item(name, self._column(bare))]
        function = _FUNCTIONS.get(type(bare))
        if function is None or (isinstance(bare, exp.Count) and len(bare.expressions) > 0):
            raise _NotPlain
        return [self._aggregate(name, function, bare.this)]

    def _aggregate(self, name: str, function: AggregateFunction, argument: exp.Expr) -> Item:
        if isinstance(argument, exp.Star) and function is AggregateFunction.COUNT and not argument.args.get("except_"):
            return Item(name, None, function)
        distinct = isinstance(argument, exp.Distinct)
        if distinct and len(argument.expressions) != 1:
            raise _NotPlain
        inner: exp.Expr = argument.expressions[0] if distinct else argument
        column = self._column(without_parentheses(inner))
        type_ = self.schema.column(column).type
        numeric = pa.types.is_integer(type_) or pa.types.is_decimal(type_)
        if function in (AggregateFunction.SUM, AggregateFunction.AVG) and not (numeric or pa.types.is_floating(type_)):
            raise _NotPlain
        if function in (AggregateFunction.MIN, AggregateFunction.MAX) and not _is_ordered(type_):
            raise _NotPlain
        if distinct and not _is_ordered(type_):
            raise _NotPlain
        return Item(name, column, function, distinct)

    def _column(self, node: exp.Expr) -> str:
        origin = origin_of(node) if isinstance(node, exp.Column) else None
        if origin is None or origin.fields:
            raise _NotPlain
        return origin.column

    def _condition(self) -> Expression | None:
        where = self.select.args.get("where")
        if where is None:
            return None
        try:
            return lower(unqualified(where.this), self.schema)
        except SqlError as error:
            raise _NotPlain from error

    def _order(self, items: tuple[Item, ...], groups: tuple[str, ...]) -> tuple[Order, ...]:
        order = self.select.args.get("order")
        found: list[Order] = []
        for part in order.expressions if order is not None else ():
            if not isinstance(part, exp.Ordered) or part.args.get("with_fill"):
                raise _NotPlain
            column = self._ordered_column(without_parentheses(part.this), items)
            if not _is_ordered(self.schema.column(column).type) or (groups and column not in groups):
                raise _NotPlain
            descending = bool(part.args.get("desc"))
            found.append(Order(column, descending, bool(part.args.get("nulls_first"))))
        return tuple(found)

    def _ordered_column(self, node: exp.Expr, items: tuple[Item, ...]) -> str:
        column: str | None = None
        if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdigit():
            ordinal = int(str(node.this))
            column = _selected_column(items[ordinal - 1]) if 1 <= ordinal <= len(items) else None
        elif isinstance(node, exp.Column) and origin_of(node) is None and not node.table:
            named = [item for item in items if item.name.lower() == str(node.name).lower()]
            column = _selected_column(named[0]) if len(named) == 1 else None
        elif isinstance(node, exp.Column):
            column = self._column(node)
        if column is None:
            raise _NotPlain
        return column

    def _number(self, clause: str) -> int | None:
        found = self.select.args.get(clause)
        if found is None:
            return None
        value = found.expression
        if not isinstance(value, exp.Literal) or value.is_string or not str(value.this).isdigit():
            raise _NotPlain
        return int(str(value.this))


def _selected_column(item: Item) -> str | None:
    return item.column if item.function is None else None


def access_path(relation: Relation, condition: Expression | None) -> str:
    """`key`, `index` or `scan`: what the equalities of a condition allow."""
    fixed = {column.lower() for part in conjuncts(condition) if (column := _fixed_column(part)) is not None}
    key = relation.schema.key if relation.schema is not None else ()
    if key and {name.lower() for name in key} <= fixed:
        return "key"
    if any(index and {name.lower() for name in index} <= fixed for index in relation.indexes):
        return "index"
    return "scan"


def _fixed_column(condition: Expression) -> str | None:
    if not isinstance(condition, Call) or condition.name != "=":
        return None
    left, right = condition.arguments
    if isinstance(left, ColumnRef) and isinstance(right, Literal):
        return left.name
    if isinstance(right, ColumnRef) and isinstance(left, Literal):
        return right.name
    return None


def _is_ordered(type_: pa.DataType) -> bool:
    """Whether every store orders and compares the type as Spark does; not so floats (NaN, -0.0) and nested types."""
    return not (pa.types.is_floating(type_) or pa.types.is_nested(type_) or pa.types.is_null(type_))
