"""The parts that a query is cut into: each is resolved and typed by itself, so that others can read it like a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from velostream.model.schema import Column, Schema
from velostream.sql.coercion import is_float
from velostream.sql.delta_groups import Typing, result_type
from velostream.sql.delta_steps import NotDelta
from velostream.sql.functions import function_name, is_aggregate_call, unwrapped
from velostream.sql.naming import plain_column
from velostream.sql.parentheses import without_parentheses
from velostream.sql.plan import AggregateFunction, Catalog, Input, Relation
from velostream.sql.resolve import Resolution, resolve_query
from velostream.sql.scope import Frame, Origin, scope_of, set_origin, without_meaning
from velostream.sql.shape import from_items, outermost_select
from velostream.sql.statements import Query
from velostream.sql.window_calls import window_field

if TYPE_CHECKING:
    from velostream.sql.statements import OptionValue, SourceRef

_RESULT = "result of an aggregate"
_FUNCTIONS: dict[type[exp.Expr], AggregateFunction] = {
    exp.Sum: AggregateFunction.SUM,
    exp.Avg: AggregateFunction.AVG,
    exp.Min: AggregateFunction.MIN,
    exp.Max: AggregateFunction.MAX,
}
_RANKS = ("row_number", "rank", "dense_rank")
_DOUBLES = (exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop)


def resolved_part(tree: exp.Expr, known: Mapping[str, Input]) -> Resolution:
    """A part of a resolved query, or what is left of one, resolved by itself; `known` is all it may read, by name."""
    bare = without_meaning(tree)
    if not isinstance(bare, exp.Expression):
        raise NotDelta("it is no query")
    found = resolve_query(Query(bare), options=(), catalog=_Known(known), text="")
    if found.problems:
        raise NotDelta(found.problems[0].message)
    inputs = tuple(replace(known[entry.target.name], relation=entry.relation) for entry in found.inputs)
    return replace(found, inputs=inputs)


def schema_of_part(resolution: Resolution) -> Schema:
    """The columns of a query as Spark will give them; `NotDelta` when only Spark can tell their types."""
    return _columns_of(outermost_select(resolution.tree), resolution)


def _columns_of(select: exp.Expr | None, resolution: Resolution) -> Schema:
    if not isinstance(select, exp.Select) or (scope := scope_of(select)) is None:
        raise NotDelta("it reads a set operation")
    typing = _ResultTyping(select, resolution.frames[scope], resolution)
    items = [pair for item in select.expressions for pair in typing.outputs(item)]
    if len({name.lower() for name, _ in items}) < len(items):
        raise NotDelta("two columns of a subquery have the same name")
    return Schema(tuple(Column(name, typing.result(expression)) for name, expression in items))


@dataclass(frozen=True)
class _Known(Catalog):
    """The relations that a part of a query may read."""

    inputs: Mapping[str, Input] = field(default_factory=dict)

    def relation(self, name: str) -> Relation | None:
        found = self.inputs.get(name.lower())
        return None if found is None else replace(found.target, name=name.lower())

    def names(self) -> Sequence[str]:
        return tuple(self.inputs)

    def source(self, reference: SourceRef, options: tuple[OptionValue, ...]) -> Relation:
        raise NotDelta(f"{reference.uri} is no part of the query")

    def option_names(self, reference: SourceRef | None) -> Sequence[str]:
        return ()

    def python_aggregates(self) -> Collection[str]:
        return ()


class _ResultTyping(Typing):
    """Types of select items, those of aggregates, ranks and windows among them, over tables and subqueries."""

    def __init__(self, select: exp.Select, frame: Frame, resolution: Resolution) -> None:
        super().__init__(frame, resolution)
        self._select = select

    def result(self, expression: exp.Expr) -> pa.DataType:
        self._results: list[pa.DataType] = []

        def read(node: exp.Expr) -> exp.Expr:
            call = node.this if isinstance(node, exp.Window) else node
            if isinstance(node, exp.Window) and function_name(call) in _RANKS:
                self._results.append(pa.int32())
            elif window_field(node) is not None:
                self._results.append(self._time_of(without_parentheses(node.this)))
            elif is_aggregate_call(call):
                self._results.append(self._aggregate(call))
            else:
                return node
            column = plain_column(_RESULT)
            set_origin(column, Origin(self.frame.scope, _RESULT, str(len(self._results) - 1)))
            return column

        return self.type_of(expression.copy().transform(read))

    def column_type(self, origin: Origin) -> pa.DataType | None:
        if origin.source == _RESULT:
            return self._results[int(origin.column)]
        known = super().column_type(origin)
        if known is not None or origin.scope != self.frame.scope:
            return known
        for item in from_items(self._select):
            if isinstance(item, exp.Subquery) and str(item.alias_or_name).lower() == origin.source.lower():
                column = _columns_of(item.this, self.resolution).find(origin.column)
                return None if column is None else column.type
        return None

    def _time_of(self, window: exp.Expr) -> pa.DataType:
        """The type of the start and end of a window: that of its time, where that is a timestamp already."""
        type_ = self.type_of(window.expressions[0])
        if not pa.types.is_timestamp(type_):
            raise NotDelta("only Spark can tell the type of its windows")
        return type_

    def _aggregate(self, call: exp.Expr) -> pa.DataType:
        core = unwrapped(call)
        if isinstance(core, exp.Count):
            return pa.int64()
        if isinstance(core, _DOUBLES):
            return pa.float64()
        function = _FUNCTIONS.get(type(core))
        argument = core.this
        if isinstance(argument, exp.Distinct) and len(argument.expressions) == 1:
            (argument,) = argument.expressions
        if function is None or not isinstance(argument, exp.Expr):
            raise NotDelta(f"only Spark can tell the type of {call.sql(dialect='spark')}")
        type_ = self.type_of(argument)
        if is_float(type_):
            extreme = function in (AggregateFunction.MIN, AggregateFunction.MAX)
            return type_ if extreme else pa.float64()
        return result_type(function, type_, call)
