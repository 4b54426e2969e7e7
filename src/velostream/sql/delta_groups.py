"""GROUP BY and DISTINCT over tables by partial results: what a group keeps, and how rows change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from velostream.model.schema import Column, Schema
from velostream.sql.aggregates import FEED, GROUPS, Cutter
from velostream.sql.coercion import is_atomic, is_float, is_integer, type_of
from velostream.sql.delta_steps import NotDelta, is_linear, is_row_by_row, step_of
from velostream.sql.functions import function_name, unwrapped
from velostream.sql.grouping import bare_item
from velostream.sql.keys import key_of_result
from velostream.sql.lower_resolved import lowered, lowered_step
from velostream.sql.maps import plan_map
from velostream.sql.naming import alias, output_name, plain_column
from velostream.sql.outputs import expand_star
from velostream.sql.parentheses import without_parentheses
from velostream.sql.path_values import VALUE_TYPE
from velostream.sql.plan import AggregateFunction, GroupedPlan, Partial, Step, StreamedPlan
from velostream.sql.resolve import Resolution
from velostream.sql.scope import Frame, Origin, origin_of, scope_of, set_origin
from velostream.sql.shape import is_aggregated, outermost_select
from velostream.sql.statements import OptionValue

_FUNCTIONS: dict[type[exp.Expr], AggregateFunction] = {
    exp.Count: AggregateFunction.COUNT,
    exp.Sum: AggregateFunction.SUM,
    exp.Avg: AggregateFunction.AVG,
    exp.Min: AggregateFunction.MIN,
    exp.Max: AggregateFunction.MAX,
}
_EXTREMES = (AggregateFunction.MIN, AggregateFunction.MAX)
_SEES_ALL_GROUPS = {
    "limit": "LIMIT",
    "offset": "OFFSET",
    "distinct": "DISTINCT over groups",
    "qualify": "QUALIFY",
    "windows": "a window over groups",
}
_ONLY_SPARK_KNOWS = pa.large_binary()
"""Stands for a type that is not plain to see: nothing is computed with it, but it is passed on."""
_TIME_WINDOWS = ("window", "session_window")
_MAX_DIGITS, _SUM_DIGITS, _AVERAGE_DIGITS = 38, 10, 4


@dataclass(frozen=True)
class Grouping:
    """A grouping query cut into what it reads, what it keeps and what is on top."""

    feed: exp.Select
    keys: tuple[str, ...]
    partials: tuple[Partial, ...]
    final: exp.Select
    group_types: tuple[pa.DataType, ...]
    result_types: tuple[pa.DataType, ...]
    found_by: tuple[str, ...] | None

    @property
    def has_extremes(self) -> bool:
        return any(partial.function in _EXTREMES for partial in self.partials)


def plan_grouped(tree: exp.Expr, resolution: Resolution) -> GroupedPlan:
    """The plan by partial results of rows that give what they give by themselves; `NotDelta` without one."""
    grouping = cut_groups(tree, resolution)
    if not is_linear(grouping.feed):
        raise NotDelta("")
    if grouping.found_by is None and grouping.has_extremes:
        raise NotDelta("MIN and MAX need the rows of a group to be found by columns of the table")
    return grouped_plan(grouping, step_of(grouping.feed, resolution=resolution))


def plan_streamed(
    select: exp.Select, resolution: Resolution, *, key: tuple[str, ...], options: Sequence[OptionValue]
) -> StreamedPlan:
    """The plan by partial results of a GROUP BY over a stream; `NotDelta` where only Spark's state holds its groups.

    `key` is that of the view. The rows of an endless stream only come, so smallest and largest values never go.
    """
    if any(function_name(call) in _TIME_WINDOWS for call in select.find_all(exp.Func)):
        raise NotDelta("windows close when the watermark passes them, which Spark's state does")
    if any(option.name == "checkpoint" for option in options):
        raise NotDelta("a checkpoint is asked for")
    if any(entry.target.schema is None for entry in resolution.inputs):
        raise NotDelta("the columns of an input are not known yet")
    grouping = cut_groups(select, resolution)
    unique = {name.lower() for name in key_of_result(resolution, ())}
    if grouping.keys and key and not (unique and unique <= {name.lower() for name in key}):
        raise NotDelta(f"several groups may have the same key ({', '.join(key)})")
    feed = plan_map(grouping.feed, frames=resolution.frames, inputs=resolution.inputs)
    return StreamedPlan(feed, grouped_plan(grouping, step_of(grouping.feed, resolution=resolution)))


def grouped_plan(grouping: Grouping, feed: Step) -> GroupedPlan:
    """The plan of a grouping that is fed by a step."""
    return GroupedPlan(
        feed=feed,
        keys=grouping.keys,
        partials=grouping.partials,
        bare=_bare(grouping),
        final=lowered_step(
            grouping.final, sql=grouping.final.sql(dialect="spark"), schema=_groups_schema(grouping), frame=None
        ),
        found_by=grouping.found_by,
    )


def cut_groups(tree: exp.Expr, resolution: Resolution) -> Grouping:
    """Cut an aggregating or DISTINCT query; `NotDelta` when its groups need more than partial results."""
    select = outermost_select(tree)
    scope = scope_of(select) if select is not None else None
    if select is None or scope is None:
        raise NotDelta("it is a set operation")
    typing = Typing(resolution.frames[scope], resolution)
    if is_aggregated(select):
        return _cut_aggregate(select, typing)
    if select.args.get("distinct"):
        return _cut_distinct(select, typing)
    raise NotDelta("")


def _cut_aggregate(select: exp.Select, typing: Typing) -> Grouping:
    for clause, words in _SEES_ALL_GROUPS.items():
        if select.args.get(clause):
            raise NotDelta(f"{words} sees all groups at once")
    cutter = Cutter(select, frame=typing.frame, text="")
    if cutter.problems:
        raise NotDelta(cutter.problems[0].message.replace(" over a stream can't be executed by this version", ""))
    final = cutter.final()
    final.set("order", None)
    if not is_row_by_row(final):
        raise NotDelta("what is on top of its groups sees more than one of them")
    partials: list[Partial] = []
    fed: list[exp.Expr] = []
    types: list[pa.DataType] = []
    for call in cutter.aggregates:
        function, argument = _partial_call(call)
        name = None
        type_ = pa.int64()
        if argument is not None:
            type_ = typing.type_of(argument)
            name = f"x{len(fed)}"
            fed.append(alias(argument, name))
        partials.append(Partial(function, name))
        types.append(result_type(function, type_, call))
    keys = tuple(f"g{number}" for number in range(len(cutter.groups)))
    items = [alias(group.copy(), name) for group, name in zip(cutter.groups, keys, strict=True)]
    return Grouping(
        feed=cutter.reading([*items, *fed] or [alias(exp.Literal.number(1), "x0")]),
        keys=keys,
        partials=tuple(partials),
        final=final,
        group_types=tuple(typing.group_type(group) for group in cutter.groups),
        result_types=tuple(types),
        found_by=typing.found_by(cutter.groups),
    )


def _cut_distinct(select: exp.Select, typing: Typing) -> Grouping:
    for clause in ("limit", "offset", "qualify"):
        if select.args.get(clause):
            raise NotDelta(f"DISTINCT with {clause.upper()} sees all rows at once")
    if select.args["distinct"].args.get("on"):
        raise NotDelta("DISTINCT ON")
    named = [pair for item in select.expressions for pair in typing.outputs(item)]
    keys = tuple(f"g{number}" for number in range(len(named)))
    feed = select.copy()
    feed.set("distinct", None)
    feed.set("order", None)
    feed.set("expressions", [alias(value.copy(), key) for (_, value), key in zip(named, keys, strict=True)])
    columns = [alias(plain_column(key, table=GROUPS), name) for (name, _), key in zip(named, keys, strict=True)]
    groups = [value for _, value in named]
    return Grouping(
        feed=feed,
        keys=keys,
        partials=(),
        final=exp.Select(expressions=columns, from_=exp.From(this=_relation(GROUPS))),
        group_types=tuple(typing.group_type(group) for group in groups),
        result_types=(),
        found_by=typing.found_by(groups),
    )


class Typing:
    """What is known of the columns that a grouping query reads."""

    def __init__(self, frame: Frame, resolution: Resolution) -> None:
        self.frame = frame
        self.resolution = resolution

    def outputs(self, item: exp.Expr) -> Sequence[tuple[str, exp.Expr]]:
        """Name and expression of what a select item gives."""
        if not item.is_star:
            return [(output_name(item), bare_item(item))]
        columns = expand_star(item, self.frame)
        if columns is None or any(column.source is None for column in columns):
            raise NotDelta("only Spark can tell what * stands for")
        found: list[tuple[str, exp.Expr]] = []
        for column in columns:
            reference = plain_column(column.name, table=column.source)
            set_origin(reference, Origin(self.frame.scope, str(column.source), column.name))
            found.append((column.name, reference))
        return found

    def type_of(self, argument: exp.Expr) -> pa.DataType:
        """The type of an aggregate's argument; `NotDelta` when only Spark can tell."""
        found = self._type(argument)
        if found is None:
            raise NotDelta(f"only Spark can tell the type of {argument.sql(dialect='spark')}")
        return found

    def group_type(self, group: exp.Expr) -> pa.DataType:
        return self._type(group) or _ONLY_SPARK_KNOWS

    def found_by(self, groups: Sequence[exp.Expr]) -> tuple[str, ...] | None:
        """The columns of the one table read that are the groups."""
        if len(self.frame.sources) != 1 or len(self.resolution.inputs) != 1 or self.frame.sources[0].input is None:
            return None
        columns: list[str] = []
        for group in groups:
            origin = origin_of(without_parentheses(group))
            if origin is None or origin.fields or origin.scope != self.frame.scope:
                return None
            columns.append(origin.column)
        return tuple(columns) if len(set(columns)) == len(columns) else None

    def _type(self, expression: exp.Expr) -> pa.DataType | None:
        known = expression.meta_get(VALUE_TYPE)
        if isinstance(known, pa.DataType):
            return known
        columns: dict[str, Column] = {}

        def numbered(node: exp.Expr) -> exp.Expr:
            origin = origin_of(node) if isinstance(node, exp.Column) else None
            type_ = self.column_type(origin) if origin is not None else None
            if origin is None or type_ is None:
                return node
            name = f"c{len(columns)}"
            columns[name] = Column(name, type_)
            reference = plain_column(name)
            set_origin(reference, Origin(origin.scope, "", name, origin.fields))
            return reference

        renamed = expression.copy().transform(numbered)
        schema = Schema(tuple(columns.values()))
        found = lowered(renamed, schema)
        return None if found is None else type_of(found, schema)

    def column_type(self, origin: Origin) -> pa.DataType | None:
        """The type of a column of one of the tables read."""
        source = self.frame.source(origin.source) if origin.scope == self.frame.scope else None
        if source is None or source.input is None:
            return None
        schema = self.resolution.input(source.input).target.schema
        column = schema.find(origin.column) if schema is not None else None
        return None if column is None else column.type


def _partial_call(call: exp.Expr) -> tuple[AggregateFunction, exp.Expr | None]:
    """What an aggregate call computes of which argument (None: of the rows); `NotDelta` if partials can't."""
    core = unwrapped(call)
    function = _FUNCTIONS.get(type(core))
    written = call.sql(dialect="spark")
    wrapped = call is not core and not (isinstance(call, exp.Filter) and call.this is core)
    argument = core.this
    if function is None or wrapped or core.expressions or not isinstance(argument, exp.Expr):
        raise NotDelta(f"{written} needs all rows of a group")
    if isinstance(argument, exp.Distinct):
        raise NotDelta(f"{written} needs all rows of a group")
    if isinstance(argument, exp.Star):
        argument = None
    if isinstance(call, exp.Filter):
        value = exp.Literal.number(1) if argument is None else argument.copy()
        return function, exp.Case(ifs=[exp.If(this=call.expression.this.copy(), true=value)])
    return function, None if argument is None else argument.copy()


def check_exact(call: exp.Expr, typing: Typing) -> None:
    """Raises `NotDelta` for an aggregate that may differ when it is computed again over the same rows."""
    function, argument = _partial_call(call)
    if argument is not None:
        result_type(function, typing.type_of(argument), call)


def result_type(function: AggregateFunction, type_: pa.DataType, call: exp.Expr) -> pa.DataType:
    """The type Spark gives the aggregate; `NotDelta` for values whose partial results would not be exact."""
    decimal = pa.types.is_decimal(type_)
    match function:
        case AggregateFunction.COUNT:
            return pa.int64()
        case AggregateFunction.MIN | AggregateFunction.MAX if is_atomic(type_) and not is_float(type_):
            return type_
        case AggregateFunction.SUM if is_integer(type_):
            return pa.int64()
        case AggregateFunction.AVG if is_integer(type_):
            return pa.float64()
        case AggregateFunction.SUM if decimal:
            return pa.decimal128(min(_MAX_DIGITS, type_.precision + _SUM_DIGITS), type_.scale)
        case AggregateFunction.AVG if decimal:
            digits, scale = type_.precision + _AVERAGE_DIGITS, type_.scale + _AVERAGE_DIGITS
            return pa.decimal128(min(_MAX_DIGITS, digits), min(_MAX_DIGITS, scale))
    raise NotDelta(f"{call.sql(dialect='spark')} is no exact number of which a partial result could be kept")


def _bare(grouping: Grouping) -> str:
    items: list[exp.Expr] = [plain_column(key) for key in grouping.keys]
    for number, partial in enumerate(grouping.partials):
        argument = exp.Star() if partial.argument is None else plain_column(partial.argument)
        items.append(alias(exp.Anonymous(this=partial.function.value, expressions=[argument]), f"a{number}"))
    statement = exp.Select(expressions=items or [exp.Literal.number(1)], from_=exp.From(this=_relation(FEED)))
    if grouping.keys:
        statement.set("group", exp.Group(expressions=[plain_column(key) for key in grouping.keys]))
    return statement.sql(dialect="spark")


def _groups_schema(grouping: Grouping) -> Schema:
    groups = zip(grouping.keys, grouping.group_types, strict=True)
    results = ((f"a{number}", type_) for number, type_ in enumerate(grouping.result_types))
    return Schema(tuple(Column(name, type_) for name, type_ in (*groups, *results)))


def _relation(name: str) -> exp.Table:
    return exp.Table(this=exp.Identifier(this=name, quoted=False))
