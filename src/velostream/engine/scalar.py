"""One value computed over a table: an aggregate, or an expression of its only row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from velostream.engine.conditions import Condition, ConditionCache
from velostream.engine.dml import Evaluate, evaluated
from velostream.engine.grouping import is_measured, measured_value, measures_of
from velostream.engine.passthrough import aggregate
from velostream.errors import NotExecutableError, QueryError
from velostream.model.expression import ColumnRef, Expression, columns_of
from velostream.model.grouping import Grouping
from velostream.sql.lower import NotLowerable, lower
from velostream.sql.parse import parse_expression
from velostream.sql.plan import AggregateFunction, Item
from velostream.tables.base import Snapshot, Table
from velostream.tables.memory.values import shown_value

_FUNCTIONS: dict[type[exp.Expr], AggregateFunction] = {
    exp.Count: AggregateFunction.COUNT,
    exp.Sum: AggregateFunction.SUM,
    exp.Avg: AggregateFunction.AVG,
    exp.Min: AggregateFunction.MIN,
    exp.Max: AggregateFunction.MAX,
}


@dataclass(frozen=True)
class ScalarPlan:
    """What a scalar's text means for one table; holds no data."""

    tree: exp.Expr
    function: AggregateFunction | None = None
    """None: the value of the only row."""
    argument: Expression | None = None
    """None counts the rows, whatever is in them."""
    columns: tuple[str, ...] = ()
    distinct: bool = False
    item: Item | None = None
    """The aggregate, where the table's store may know it without giving its rows."""
    reason: str | None = None
    """Why the table can't answer it."""


def scalar_value(
    table: Table, text: str, condition: Condition | None, *, known: ConditionCache, evaluate: Evaluate | None
) -> Any:
    """The value of the expression over the rows of the condition: None over none, an error over several.

    An aggregate has one value over any rows. `known` keeps what the text means.
    """
    plan = known.scalars.get(text)
    if plan is None:
        plan = known.scalars.put(text, _plan(table, text))
    snapshot = table.snapshot()
    try:
        return _value(plan, text, condition, snapshot)
    except NotLowerable as reason:
        if evaluate is None:
            raise NotExecutableError(f"this expression needs Spark: {reason}", text=text) from None
    source = exp.Table(this=exp.to_identifier(table.name, quoted=True))
    select = exp.select(exp.alias_(plan.tree.copy(), "value")).from_(source)
    return _only(evaluate(select if condition is None else select.where(condition.tree), snapshot).column(0), text)


def _value(plan: ScalarPlan, text: str, condition: Condition | None, snapshot: Snapshot) -> Any:
    where = None if condition is None else condition.expression
    if condition is not None and where is None:
        raise NotLowerable(condition.reason)
    if plan.reason is not None:
        raise NotLowerable(plan.reason)
    if plan.argument is None:
        return snapshot.count(where)
    if plan.item is not None:
        measured = snapshot.group(Grouping(measures_of(plan.item), condition=where))
        if measured is not None:
            return shown_value(measured_value(plan.item, measured, snapshot.schema))
    values = evaluated(plan.argument, snapshot.scan(where, plan.columns))
    if plan.function is None:
        return _only(values, text)
    return shown_value(aggregate(plan.function, values, distinct=plan.distinct, name=text))


def _plan(table: Table, text: str) -> ScalarPlan:
    tree = parse_expression(text)
    try:
        return _lowered(table, tree, text)
    except NotLowerable as error:
        return ScalarPlan(tree, reason=error.reason)


def _lowered(table: Table, tree: exp.Expr, text: str) -> ScalarPlan:
    function = _FUNCTIONS.get(type(tree))
    argument, distinct = tree, False
    if function is None:
        if tree.find(exp.AggFunc, exp.Anonymous) is not None:
            raise NotLowerable("a function that may be an aggregate")
    else:
        argument = tree.this
        if isinstance(argument, exp.Star):
            return ScalarPlan(tree, function)
        if isinstance(argument, exp.Distinct):
            if len(argument.expressions) != 1:
                raise NotLowerable("DISTINCT of several columns")
            argument, distinct = argument.expressions[0], True
        if tree.args.get("expressions"):
            raise NotLowerable("an aggregate of several columns")
    expression = lower(argument, table.schema, text=text, qualifiers=[table.name])
    columns = tuple(sorted(columns_of(expression))) or (table.schema.names[0],)
    item = Item(text, expression.name, function, distinct) if isinstance(expression, ColumnRef) and function else None
    measured = item if item is not None and is_measured(item, table.schema) else None
    return ScalarPlan(tree, function, expression, columns, distinct, measured)


def _only(values: pa.Array | pa.ChunkedArray, text: str) -> Any:
    if len(values) > 1:
        raise QueryError(
            f'scalar "{text}" has {len(values)} rows',
            hint="aggregate them, or give a condition that only one row meets",
            code="several-rows",
        )
    return shown_value(values[0]) if len(values) else None
