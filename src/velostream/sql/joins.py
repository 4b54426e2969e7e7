"""The fast way of a stream–table join: equality keys become lookups, the rest SQL over what they give.

So do subqueries that ask for a row of a table; what they give is then a column of the stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa
from sqlglot import exp

from velostream.model.expression import Call, Cast, Expression
from velostream.model.schema import Column, Schema
from velostream.model.types import render_type
from velostream.sql.asof import NearestRow, nearest_row
from velostream.sql.coercion import is_total, type_of
from velostream.sql.functions import is_nondeterministic
from velostream.sql.keytypes import expression_type, field_type, key_cast
from velostream.sql.lookup_subqueries import TableSubquery, as_table_subquery
from velostream.sql.lower_resolved import lowered, lowered_step
from velostream.sql.naming import alias as aliased
from velostream.sql.naming import identifier, named, plain_column
from velostream.sql.outputs import expand_star
from velostream.sql.parentheses import conjuncts, without_parentheses
from velostream.sql.plan import AsOf, Input, KeyPair, Lookup, Stages
from velostream.sql.scope import Frame, Origin, StarColumn, input_of, origin_of, set_origin
from velostream.sql.shape import driving_index, from_items, nested_queries, queries_in, reads_input

STAGE = "stage"


@dataclass(frozen=True)
class FastWay:
    """Stages, or why there are none though tables are read."""

    stages: Stages | None = None
    why_not: str = ""


class _NoFastWay(Exception):  # noqa: N818 - not an error: the general path runs the query
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def find_fast_way(select: exp.Select | None, *, frame: Frame | None, inputs: Sequence[Input]) -> FastWay:
    """The lookups of a streaming SELECT whose joins already read with the stream driving.

    `inputs` are all the query reads; without a table among them there is nothing to look up.
    """
    if len(inputs) < 2:
        return FastWay()
    if select is None or frame is None:
        return FastWay(None, "a set operation reads the tables")
    try:
        return FastWay(_Planner(select, frame=frame, inputs=inputs).stages())
    except _NoFastWay as reason:
        return FastWay(None, reason.reason)


@dataclass
class _Joined:
    """One relation of the FROM in the order of lookups, the stream first."""

    alias: str
    relation: str
    schema: Schema
    prefix: str = ""
    used: dict[str, None] = field(default_factory=dict)
    """Stored names of the columns that anything reads, in order of first use."""
    subquery: str = ""
    """What it is read by, if not by a join; the alias is then one of ours, and `shown` the query's."""
    shown: str = ""
    any_row: bool = False
    """Whether any one row is wanted that the equalities find and the condition lets pass."""
    condition: Expression | None = None


@dataclass(frozen=True)
class _Equality:
    driving: exp.Expr
    column: str


_Compared = dict[int, tuple[exp.Expr, _Equality]]
"""Conditions, by identity, that are equalities with a column."""


class _Planner:
    def __init__(self, select: exp.Select, *, frame: Frame, inputs: Sequence[Input]) -> None:
        self.select = _with_named_items(select)
        self.frame = frame
        self.inputs = {entry.relation: entry for entry in inputs}
        self.joined: dict[str, _Joined] = {}
        self.residual: list[exp.Expr] = []

    def stages(self) -> Stages:
        self._check_form()
        position = driving_index(self.select)
        items = from_items(self.select)
        joins: list[exp.Join] = list(self.select.args.get("joins") or ())
        if position is None or position > 1:
            raise _NoFastWay("tables are joined to each other before the stream")
        self._admit(items[position], driving=True)
        lookups: list[tuple[_Joined, bool, list[_Equality]]] = []
        as_of: dict[str, AsOf] = {}
        for number, join in enumerate(joins, start=1):
            swapped = number == position
            table = items[0] if swapped else join.this
            outer = self._outer(join, swapped=swapped)
            nearest = nearest_row(table)
            joined = self._admit(table if nearest is None else nearest.table, driving=False)
            if nearest is None:
                lookups.append((joined, outer, self._equalities(join, joined, outer=outer)))
            else:
                equalities, as_of[joined.prefix] = self._as_of(nearest, joined)
                lookups.append((joined, outer, equalities))
        lookups += [self._subquery(nested) for nested in list(nested_queries(self.select))]
        keys = [tuple(self._key_pair(equality, joined) for equality in pairs) for joined, _, pairs in lookups]
        statement = self._statement()
        sql = statement.sql(dialect="spark")
        stages = Stages(
            tuple(
                Lookup(
                    joined.relation,
                    outer,
                    pairs,
                    tuple(joined.used),
                    joined.prefix,
                    _access(joined, pairs),
                    as_of.get(joined.prefix),
                    joined.shown or joined.alias,
                    joined.subquery,
                    joined.any_row,
                    joined.condition,
                )
                for (joined, outer, _), pairs in zip(lookups, keys, strict=True)
            ),
            sql,
        )
        schema = self._stage_schema()
        if schema is None or any(value is None for lookup in stages.lookups for value in _driving_values(lookup)):
            return stages
        step = lowered_step(statement, sql=sql, schema=schema, frame=None)
        return stages if step.items is None else replace(stages, step=step)

    def _stage_schema(self) -> Schema | None:
        """All that is there after the lookups, whether anything reads it or not; None where names are ambiguous."""
        columns = [
            Column(joined.prefix + column.name, column.type)
            for joined in self.joined.values()
            for column in joined.schema.columns
        ]
        distinct = {column.name.lower() for column in columns}
        return Schema(tuple(columns)) if len(distinct) == len(columns) else None

    def _as_of(self, nearest: NearestRow, joined: _Joined) -> tuple[list[_Equality], AsOf]:
        """The equalities of an ASOF JOIN, and which of the rows they find it means."""
        pairs: list[_Equality] = []
        found: AsOf | None = None
        for condition in nearest.conditions:
            equality = self._equality(condition, joined)
            if equality is not None and all(pair.column != equality.column for pair in pairs):
                pairs.append(equality)
                continue
            if found is not None or not isinstance(condition, exp.GTE | exp.GT | exp.LTE | exp.LT):
                raise _NoFastWay(f'the ASOF JOIN to "{joined.alias}" has a condition besides equalities')
            own, driving = without_parentheses(condition.expression), without_parentheses(condition.this)
            if origin_of(own) is None or not self._drives(driving, joined):
                own, driving = driving, own
            found = self._nearest(condition, own, driving, joined, descending=nearest.descending)
        if not pairs or found is None:
            raise _NoFastWay(f'no column of "{joined.alias}" is compared for equality with the stream')
        return pairs, found

    def _nearest(
        self, condition: exp.Expr, own: exp.Expr, driving: exp.Expr, joined: _Joined, *, descending: bool
    ) -> AsOf:
        origin = origin_of(own) if isinstance(own, exp.Column) else None
        if origin is None or origin.fields or not self._drives(driving, joined):
            raise _NoFastWay(f'the times of the ASOF JOIN to "{joined.alias}" are more than columns')
        wanted = joined.schema.column(origin.column)
        if expression_type(driving, self._type_of) != wanted.type:
            raise _NoFastWay(f"the time compared with {joined.alias}.{wanted.name} is no {wanted.sql_type}")
        expression = self._rewritten(driving, qualifier=None)
        value = self._value(expression, wanted.type)
        text = expression.sql(dialect="spark")
        return AsOf(text, wanted.name, descending, isinstance(condition, exp.GTE | exp.LTE), value)

    def _check_form(self) -> None:
        plain = all(reads_input(item) or nearest_row(item) is not None for item in from_items(self.select))
        if self.select.args.get("with_") or not plain:
            raise _NoFastWay("FROM has more than plain tables and streams (a subquery, CTE, function or sample)")
        if any(next(queries_in(join.args.get("on")), None) for join in self.select.args.get("joins") or ()):
            raise _NoFastWay("a subquery in ON reads a table")
        if self.select.args.get("laterals"):
            raise _NoFastWay("LATERAL VIEW")
        for entry in self.inputs.values():
            if entry.target.schema is None:
                raise _NoFastWay(f'the columns of "{entry.target.name}" are not known yet')
        aliases = [source.alias.lower() for source in self.frame.sources]
        if len(set(aliases)) < len(aliases):
            raise _NoFastWay("two relations have the same alias")

    def _subquery(self, nested: exp.Query) -> tuple[_Joined, bool, list[_Equality]]:
        """The lookup that answers a subquery, which is replaced by what the lookup finds."""
        alias = f"subquery {len(self.joined)}"
        found = as_table_subquery(nested, scope=self.frame.scope, alias=alias)
        relation = input_of(found.table) if found is not None else None
        target = self.inputs[relation].target if relation in self.inputs else None
        if found is None or relation is None or target is None or target.schema is None:
            raise _NoFastWay("a subquery reads a table in a way that is no lookup")
        joined = _Joined(
            alias, relation, target.schema, self._prefix(), subquery=found.kind, shown=str(found.table.alias_or_name)
        )
        self.joined[alias] = joined
        # Keys of tables in stores aren't surely unique.
        by_key = {} if target.store else self._compared(found, joined, columns=target.schema.key)
        if by_key and len(by_key) == len(target.schema.key):
            pairs, left = by_key, found.without(by_key)
        else:
            pairs, left = self._any_row(found, joined)
        compared = [equality for _, equality in pairs.values()]
        column = plain_column(compared[0].column)
        set_origin(column, Origin(self.frame.scope, alias, compared[0].column))
        found.place.replace(left.answer(column))
        return joined, True, compared

    def _compared(self, found: TableSubquery, joined: _Joined, *, columns: Sequence[str]) -> _Compared:
        """Conditions that compare these columns, each one once, with what drives the lookup."""
        wanted = {name.lower() for name in columns}
        compared: _Compared = {}
        for condition in found.conditions:
            equality = self._equality(condition, joined)
            if equality is not None and equality.column.lower() in wanted:
                wanted.remove(equality.column.lower())
                compared[id(condition)] = condition, equality
        return compared

    def _any_row(self, found: TableSubquery, joined: _Joined) -> tuple[_Compared, TableSubquery]:
        """What finds the rows of which there may be several, any of which is enough; and what is left to be asked."""
        if found.value is not None:
            raise _NoFastWay("a scalar subquery reads a table, and not one row by its primary key")
        pairs = self._compared(found, joined, columns=joined.schema.names)
        if not pairs:
            raise _NoFastWay("a subquery reads a table, and compares no column of it for equality with the stream")
        rest = found.without(pairs).conditions
        conditions = [lowered(one, joined.schema) if self._is_about(one, joined) else None for one in rest]
        known = [one for one in conditions if one is not None]
        if len(known) < len(rest):
            raise _NoFastWay("a subquery reads a table, with a condition that only Spark can evaluate for its rows")
        joined.any_row = True
        joined.condition = reduce(lambda left, right: Call("and", (left, right)), known) if known else None
        return pairs, replace(found, conditions=())

    def _is_about(self, condition: exp.Expr, joined: _Joined) -> bool:
        origins = [origin_of(column) for column in condition.find_all(exp.Column)]
        return all(origin is not None and origin.source == joined.alias for origin in origins)

    def _admit(self, item: exp.Expr, *, driving: bool) -> _Joined:
        relation = input_of(item)
        schema = self.inputs[relation].target.schema if relation in self.inputs else None
        if relation is None or schema is None:
            raise _NoFastWay("FROM has more than plain tables and streams")
        prefix = "" if driving else self._prefix()
        joined = _Joined(str(item.alias), relation, schema, prefix)
        self.joined[joined.alias.lower()] = joined
        return joined

    def _prefix(self) -> str:
        """A prefix no column of the stream begins with."""
        driving = next(iter(self.joined.values()))
        prefix = f"l{len(self.joined) - 1}_"
        while any(name.lower().startswith(prefix) for name in driving.schema.names):
            prefix += "_"
        return prefix

    def _outer(self, join: exp.Join, *, swapped: bool) -> bool:
        kind = str(join.args.get("kind") or "").upper()
        side = str(join.args.get("side") or "").upper()
        if join.args.get("method") or kind not in ("", "INNER", "OUTER"):
            raise _NoFastWay(f"{join.args.get('method') or kind} JOIN has no keys to look up by")
        if side == ("RIGHT" if swapped else "LEFT"):
            return True
        if side:
            raise _NoFastWay(f"{side} JOIN")
        return False

    def _equalities(self, join: exp.Join, joined: _Joined, *, outer: bool) -> list[_Equality]:
        pairs = [self._using(str(part.name), joined) for part in join.args.get("using") or ()]
        for condition in conjuncts(join.args.get("on")):
            equality = self._equality(condition, joined)
            taken = equality is not None and any(pair.column == equality.column for pair in pairs)
            if equality is not None and not taken:
                pairs.append(equality)
            elif outer:
                raise _NoFastWay(
                    f'the outer join to "{joined.alias}" has a condition besides equalities with its columns'
                )
            else:
                self.residual.append(condition)
        if not pairs:
            raise _NoFastWay(f'no column of "{joined.alias}" is compared for equality with the stream')
        return pairs

    def _using(self, name: str, joined: _Joined) -> _Equality:
        column = joined.schema.find(name)
        for earlier in self.joined.values():
            found = earlier.schema.find(name)
            if earlier is not joined and found is not None and column is not None:
                reference = plain_column(found.name)
                set_origin(reference, Origin(self.frame.scope, earlier.alias, found.name))
                return _Equality(reference, column.name)
        raise _NoFastWay(f'USING ("{name}") has no column of the stream')

    def _equality(self, condition: exp.Expr, joined: _Joined) -> _Equality | None:
        if not isinstance(condition, exp.EQ):
            return None
        for column, driving in (
            (without_parentheses(condition.this), without_parentheses(condition.expression)),
            (without_parentheses(condition.expression), without_parentheses(condition.this)),
        ):
            origin = origin_of(column) if isinstance(column, exp.Column) else None
            mine = origin is not None and not origin.fields and origin.source.lower() == joined.alias.lower()
            if origin is not None and mine and self._drives(driving, joined):
                return _Equality(driving, origin.column)
        return None

    def _drives(self, expression: exp.Expr, joined: _Joined) -> bool:
        """Whether an expression reads only what is there before this lookup, and something of it."""
        if any(is_nondeterministic(part) for part in expression.walk()):
            return False
        origins = [origin_of(column) for column in expression.find_all(exp.Column)]
        return bool(origins) and all(
            origin is not None
            and origin.source.lower() in self.joined
            and origin.source.lower() != joined.alias.lower()
            for origin in origins
        )

    def _key_pair(self, equality: _Equality, joined: _Joined) -> KeyPair:
        wanted = joined.schema.column(equality.column)
        given = expression_type(equality.driving, self._type_of)
        cast = key_cast(given, wanted.type)
        if cast is None:
            shown = "a type only Spark can tell" if given is None else render_type(given)
            name = joined.shown or joined.alias
            raise _NoFastWay(f'the key of "{name}" compares {shown} with {name}.{wanted.name} {wanted.sql_type}')
        expression = self._rewritten(equality.driving, qualifier=None)
        text = cast.format(expression.sql(dialect="spark"), type=wanted.sql_type)
        return KeyPair(text, wanted.name, self._value(expression, wanted.type))

    def _value(self, expression: exp.Expr, wanted: pa.DataType) -> Expression | None:
        """An expression over the stage so far as plain data of a type; None when Spark has to evaluate it."""
        schema = self._stage_schema()
        value = None if schema is None else lowered(expression, schema)
        if schema is None or value is None:
            return None
        given = type_of(value, schema)
        if given == wanted:
            return value
        return Cast(value, wanted) if is_total(given, wanted) else None

    def _type_of(self, column: exp.Column) -> pa.DataType | None:
        origin = origin_of(column)
        if origin is None:
            return None
        return field_type(self.joined[origin.source.lower()].schema.column(origin.column).type, origin.fields)

    def _statement(self) -> exp.Select:
        items: list[exp.Expr] = []
        for item in self.select.expressions:
            if item.is_star:
                items += self._expanded(item)
            else:
                items.append(self._rewritten(item, qualifier=STAGE))
        conditions = [self._rewritten(condition, qualifier=STAGE) for condition in self.residual]
        where = self.select.args.get("where")
        if where is not None:
            conditions.append(self._rewritten(where.this, qualifier=STAGE))
        statement = exp.Select(
            expressions=items, from_=exp.From(this=exp.Table(this=exp.Identifier(this=STAGE, quoted=False)))
        )
        if conditions:
            statement.set("where", exp.Where(this=exp.and_(*conditions, copy=False)))
        if next(nested_queries(statement), None) is not None:
            raise _NoFastWay("a subquery reads a table in a way that is no lookup")
        return statement

    def _expanded(self, item: exp.Expr) -> list[exp.Expr]:
        columns = expand_star(item, self.frame)
        if columns is None or any(column.source is None for column in columns):
            raise _NoFastWay(f"only Spark can tell what {item.sql(dialect='spark')} stands for")
        return [aliased(self._stage_column(column), column.name) for column in columns]

    def _stage_column(self, column: StarColumn) -> exp.Expr:
        return self._reference(Origin(self.frame.scope, column.source or "", column.name), qualifier=STAGE)

    def _rewritten(self, expression: exp.Expr, *, qualifier: str | None) -> exp.Expr:
        """A copy that reads the stage instead of the relations."""

        def replaced(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column):
                return node
            origin = origin_of(node)
            if origin is None and node.table:
                raise _NoFastWay(f"only Spark can tell what {node.sql(dialect='spark')} means")
            return node if origin is None else self._reference(origin, qualifier=qualifier)

        return expression.copy().transform(replaced, copy=False)

    def _reference(self, origin: Origin, *, qualifier: str | None) -> exp.Expr:
        joined = self.joined.get(origin.source.lower())
        if joined is None:
            raise _NoFastWay(f'only Spark can tell what "{origin.source}" is')
        if joined.prefix:
            joined.used.setdefault(origin.column, None)
        column: exp.Expr = plain_column(joined.prefix + origin.column, table=qualifier)
        for name in origin.fields:
            column = exp.Dot(this=column, expression=identifier(name))
        return column


def _with_named_items(select: exp.Select) -> exp.Select:
    """A copy that may be changed; the names of its items are those of what is written there."""
    copied = select.copy()
    copied.set("expressions", [named(item) for item in copied.expressions])
    return copied


def _driving_values(lookup: Lookup) -> Iterator[Expression | None]:
    """Everything that a lookup reads of the stage so far, as plain data."""
    yield from (pair.value for pair in lookup.keys)
    if lookup.as_of is not None:
        yield lookup.as_of.value


def _access(joined: _Joined, pairs: Sequence[KeyPair]) -> str:
    columns = {pair.column.lower() for pair in pairs}
    return "key" if columns == {name.lower() for name in joined.schema.key} else "index"
