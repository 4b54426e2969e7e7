"""One value computed over a table: an aggregate, or an expression of its only row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from sqlglot import exp

from velostream.engine.conditions import Condition
from velostream.engine.dml import Evaluate, evaluated
from velostream.engine.passthrough import aggregate
from velostream.errors import NotExecutableError, QueryError
from velostream.model.expression import columns_of
from velostream.sql.lower import NotLowerable, lower
from velostream.sql.parse import parse_expression
from velostream.sql.plan import AggregateFunction
from velostream.tables.base import Snapshot, Table
from velostream.tables.memory.values import python_value

_FUNCTIONS: dict[type[exp.Expr], AggregateFunction] = {
    exp.Count: AggregateFunction.COUNT,
    exp.Sum: AggregateFunction.SUM,
    exp.Avg: AggregateFunction.AVG,
    exp.Min: AggregateFunction.MIN,
    exp.Max: AggregateFunction.MAX,
}


def scalar_value(table: Table, text: str, condition: Condition | None, evaluate: Evaluate | None) -> Any:
    """The value of the expression over the rows of the condition: None over none, an error over several.

    An aggregate has one value over any rows.
    """
    tree = parse_expression(text)
    snapshot = table.snapshot()
    try:
        return _value(table, tree, text, condition, snapshot)
    except NotLowerable as reason:
        if evaluate is None:
            raise NotExecutableError(f"this expression needs Spark: {reason}", text=text) from None
    source = exp.Table(this=exp.to_identifier(table.name, quoted=True))
    select = exp.select(exp.alias_(tree, "value")).from_(source)
    return _only(evaluate(select if condition is None else select.where(condition.tree), snapshot).column(0), text)


def _value(table: Table, tree: exp.Expr, text: str, condition: Condition | None, snapshot: Snapshot) -> Any:
    where = None if condition is None else condition.expression
    if condition is not None and where is None:
        raise NotLowerable(condition.reason)
    function = _FUNCTIONS.get(type(tree))
    if function is None:
        if tree.find(exp.AggFunc, exp.Anonymous) is not None:
            raise NotLowerable("a function that may be an aggregate")
        return _only(_computed(table, tree, text, snapshot, where), text)
    argument, distinct = tree.this, False
    if isinstance(argument, exp.Star):
        return snapshot.count(where)
    if isinstance(argument, exp.Distinct):
        if len(argument.expressions) != 1:
            raise NotLowerable("DISTINCT of several columns")
        argument, distinct = argument.expressions[0], True
    if tree.args.get("expressions"):
        raise NotLowerable("an aggregate of several columns")
    values = _computed(table, argument, text, snapshot, where)
    return python_value(aggregate(function, values, distinct=distinct, name=text))


def _computed(table: Table, tree: exp.Expr, text: str, snapshot: Snapshot, where: Any) -> pa.Array | pa.ChunkedArray:
    expression = lower(tree, table.schema, text=text, qualifiers=[table.name])
    columns = sorted(columns_of(expression)) or [table.schema.names[0]]
    return evaluated(expression, snapshot.scan(where, columns))


def _only(values: pa.Array | pa.ChunkedArray, text: str) -> Any:
    if len(values) > 1:
        raise QueryError(
            f'scalar "{text}" has {len(values)} rows',
            hint="aggregate them, or give a condition that only one row meets",
            code="several-rows",
        )
    return python_value(values[0]) if len(values) else None
