"""Paths of a query said in Spark's words: lists of values, aggregates of them, ANY and ALL of them.

`positions.*.shares` is an ARRAY of the values in each row, `SUM(positions.*.shares)` their sum, and
`ANY(positions.*.shares) > 100` asks whether one of them is greater. A path of names and numbers is the one value there,
into JSON text and VARIANTs too, NULL where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from velostream.errors import SqlError, ValidationError
from velostream.model.path import AnyDepth, AnyField, Element, Field, Step, parse_path
from velostream.model.types import parse_type
from velostream.model.variant import VARIANT
from velostream.sql.coercion import is_text
from velostream.sql.columns import ColumnResolver
from velostream.sql.functions import function_name, is_aggregate, unwrapped
from velostream.sql.keytypes import field_type
from velostream.sql.naming import identifier, output_name
from velostream.sql.parentheses import without_parentheses
from velostream.sql.path_aggregates import AGGREGATES, number_values, of_group, of_row, stands_for_row
from velostream.sql.path_types import ColumnTypes, written_type
from velostream.sql.path_values import (
    JSON_NUMBER,
    VALUE_TYPE,
    Values,
    ValueType,
    Variant,
    call,
    cast,
    function_of,
    is_single,
    leads_into_variant,
    single_value,
    values_along,
    variable,
)
from velostream.sql.paths import is_wildcard_path, path_as_written
from velostream.sql.plan import Catalog
from velostream.sql.pointing import pointer
from velostream.sql.resolve import Resolution, resolve_query
from velostream.sql.scope import Frame, Origin, origin_of, scope_of
from velostream.sql.statements import OptionValue, Query

_NUMBER = "velostream_path"
"""Key of the meta of a node that may be a path, with its number: resolving works on a copy of the tree."""
_ROW, _ANY = "velostream_row", "velostream_any"
_QUANTIFIERS = {"any": "exists", "some": "exists", "all": "forall"}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_TEXT_PREDICATES = (exp.Like, exp.ILike, exp.RegexpLike)
_PREDICATES = (*_COMPARISONS, *_TEXT_PREDICATES, exp.NullSafeEQ, exp.In, exp.Between)


def spell_out_paths(query: Query, *, options: tuple[OptionValue, ...], catalog: Catalog, text: str) -> Query:
    """The query without paths. Where a relation has no columns yet, calls of `wildcard_path` stand in for them."""
    tree = query.tree.copy()
    candidates = list(_candidates(tree))
    if not candidates:
        return query
    for number, node in enumerate(candidates):
        node.meta[_NUMBER] = number
    resolution = resolve_query(replace(query, tree=tree), options=options, catalog=catalog, text=text)
    if resolution.problems:
        return query
    _Speller(resolution, text).run(candidates)
    for node in tree.walk():
        node.meta.pop(_NUMBER, None)
    return replace(query, tree=tree)


def _candidates(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The nodes that may be paths: calls of `wildcard_path`, stars behind a column, and columns with parts below."""
    relations = {str(table.alias_or_name).lower() for table in tree.find_all(exp.Table, exp.Subquery, exp.Lateral)}
    for node in tree.walk():
        if is_wildcard_path(node):
            yield node
        elif isinstance(node, exp.Column):
            parts = [str(part.name).lower() for part in node.parts]
            below = isinstance(node.parent, exp.Dot | exp.Bracket) and node.arg_key == "this"
            if below or (len(parts) > 1 and (parts[0] not in relations or len(parts) > 2)):
                yield node


@dataclass(frozen=True)
class _Head:
    """Where a path begins: an expression, its type, and the steps from there."""

    value: exp.Expr
    type: ValueType
    steps: tuple[Step, ...]
    row: Frame | None = None
    """The frame of whose columns a path makes one struct, where it begins with a star."""


class _UnknownTypeError(Exception):
    """Only Spark can tell the type of what a path begins with."""


class _Speller:
    def __init__(self, resolution: Resolution, text: str) -> None:
        self._resolution = resolution
        self._text = text
        self._types = ColumnTypes(resolution)
        self._resolved = {
            node.meta[_NUMBER]: node for node in resolution.tree.walk() if node.meta_get(_NUMBER) is not None
        }
        self._is_provisional = any(entry.target.schema is None for entry in resolution.inputs)
        self._variables = 0

    def run(self, candidates: Sequence[exp.Expr]) -> None:
        """Replace all paths; those of inner queries first, whose types the outer ones may need."""
        waiting = list(reversed(candidates))
        while waiting:
            left = [node for node in waiting if not self._is_done(node, last=False)]
            if len(left) == len(waiting):
                for node in left:
                    self._is_done(node, last=True)
                return
            waiting = left

    def _is_done(self, node: exp.Expr, *, last: bool) -> bool:
        try:
            self._spell_out(node)
        except _UnknownTypeError:
            if not last:
                return False
            if is_wildcard_path(node):
                self._stand_in_or_refuse(node)
        return True

    def _spell_out(self, node: exp.Expr) -> None:
        if is_wildcard_path(node):
            self._replace(node, self._wildcard_head(node))
        elif isinstance(node, exp.Column) and node.is_star:
            head = self._star_head(node)
            if head is not None:
                self._replace(node, head)
        else:
            self._spell_out_single(node)

    def _replace(self, node: exp.Expr, head: _Head) -> None:
        around, declared = node, None
        while isinstance(around.parent, exp.Paren | exp.Cast) and around.arg_key == "this":
            around = around.parent
            declared = around if isinstance(around, exp.Cast) else declared
        user = around.parent
        if isinstance(user, exp.Distinct) and user.parent is not None and is_aggregate(user.parent):
            user = user.parent
        quantifier = _QUANTIFIERS.get(function_name(user)) if isinstance(user, exp.Anonymous) else None
        if quantifier is not None and user is not None:
            self._quantified(node, around, user, head, declared, quantifier)
        elif user is not None and is_aggregate(user):
            self._aggregated(node, around, user, self._values(head, declared))
        elif isinstance(user, _COMPARISONS) and any(isinstance(part, exp.Literal) for part in user.iter_expressions()):
            raise ValidationError(
                f'the values of the path "{_written(node)}" are compared with one value',
                hint=f"ANY({_written(node)}) or ALL({_written(node)}) is compared with a value",
                code="wrong-type",
                **pointer(node, self._text),
            )
        elif not node.is_star or not self._is_struct(head):
            values = self._values(head, None)
            self._put(node, node, values.tree, pa.list_(values.type))

    @staticmethod
    def _is_struct(head: _Head) -> bool:
        """Whether `a.b.*` stands for the columns that Spark makes of a struct."""
        type_ = None if isinstance(head.type, Variant) else field_type(head.type, _leading_names(head.steps))
        return type_ is not None and bool(pa.types.is_struct(type_))

    def _values(self, head: _Head, declared: exp.Cast | None, *, wanted: str = "any") -> Values:
        """The values of a path; as a cast around it says where there is one, else as they are found."""
        found = values_along(head.steps, head.value, head.type, wanted=wanted, of_row=head.row is not None)
        if head.row is not None:
            found = replace(found, tree=_reading_columns(found.tree, head.row))
        if declared is None:
            return found
        listed = parse_type(declared.to.sql(dialect="spark"))
        element = listed.value_type if pa.types.is_list(listed) else pa.string()
        return Values(cast(found.tree, pa.list_(element)), element)

    def _aggregated(self, node: exp.Expr, around: exp.Expr, aggregate: exp.Expr, values: Values) -> None:
        function = AGGREGATES.get(type(aggregate))
        if function is None or aggregate.this is not around or aggregate.expressions:
            raise ValidationError(
                f"{aggregate.sql(dialect='spark').partition('(')[0]} is no aggregate of paths",
                hint=f"one of {', '.join(AGGREGATES.values())}; explode(path) in a LATERAL VIEW gives a row per value",
                code="unknown-function",
                **pointer(node, self._text),
            )
        if function in ("SUM", "AVG") or (function != "COUNT" and values.from_text):
            numbers = number_values(values)
            if numbers is None:
                raise ValidationError(
                    f"{function} needs numbers, and the values of the path are none",
                    hint="COUNT takes any values",
                    code="wrong-type",
                    **pointer(node, self._text),
                )
            values = numbers
        outermost = aggregate
        while isinstance(outermost.parent, exp.Filter | exp.Window) and outermost.arg_key == "this":
            outermost = outermost.parent
        if stands_for_row(aggregate, self._is_path_aggregate):
            tree, type_ = of_row(function, values)
        else:
            tree, type_ = of_group(function, values, lambda plain: _wrapped(plain, aggregate, outermost))
        self._put(node, outermost, tree, type_)

    def _is_path_aggregate(self, wrapped: exp.Expr) -> bool:
        argument = unwrapped(wrapped).this
        while isinstance(argument, exp.Paren | exp.Cast):
            argument = argument.this
        return isinstance(argument, exp.Expr) and argument.meta_get(_NUMBER) is not None

    def _quantified(
        self,
        node: exp.Expr,
        around: exp.Expr,
        user: exp.Expr,
        head: _Head,
        declared: exp.Cast | None,
        function: str,
    ) -> None:
        """`ANY(path) > 100` as `exists(values, value -> value > 100)`."""
        operand = user
        while isinstance(operand.parent, exp.Paren):
            operand = operand.parent
        predicate = operand.parent
        quantifier = str(user.name).upper()
        if not isinstance(predicate, _PREDICATES) or user.expressions != [around]:
            raise ValidationError(
                f"{quantifier} of a path needs a comparison",
                hint=f"{quantifier}({_written(node)}) > 100",
                **pointer(node, self._text),
            )
        others = [part for part in predicate.iter_expressions() if part is not operand]
        wanted = "text" if isinstance(predicate, _TEXT_PREDICATES) else self._kind_of(node, others)
        values = self._values(head, declared, wanted=wanted or "any")
        if values.from_text and wanted is None:
            raise ValidationError(
                f'as what the values of "{_written(node)}" are to be compared is not plain to see',
                hint=f"{quantifier}(CAST({_written(node)} AS ARRAY<STRING>)) says it",
                code="unknown-type",
                **pointer(node, self._text),
            )
        if values.from_text and wanted == "number":
            values = replace(values, tree=cast(values.tree, pa.list_(JSON_NUMBER)))
        self._variables += 1
        name = f"{_ANY}_{self._variables}"
        self._name_item(node)
        operand.replace(variable(name))
        if isinstance(predicate, exp.In | exp.Between) and isinstance(predicate.parent, exp.Not):
            # NOT IN and NOT BETWEEN are comparisons as <> is one.
            predicate = predicate.parent
        place = exp.Null()
        predicate.replace(place)
        # The comparison itself, not a copy: other paths in it are still to be replaced.
        place.replace(call(function, values.tree, function_of(predicate, name)))

    def _kind_of(self, node: exp.Expr, compared: Sequence[exp.Expr]) -> str | None:
        """Whether values of documents are compared as `number` or as `text`; None when that is not plain to see."""
        kinds = {self._kind_of_one(node, without_parentheses(part)) for part in compared}
        return kinds.pop() if len(kinds) == 1 else None

    def _kind_of_one(self, node: exp.Expr, part: exp.Expr) -> str | None:
        if isinstance(part, exp.Neg):
            part = without_parentheses(part.this)
        if isinstance(part, exp.Literal):
            return "text" if part.is_string else "number"
        type_: ValueType | None = None
        if isinstance(part, exp.Cast):
            type_ = written_type(part.to.sql(dialect="spark"))
        elif isinstance(part, exp.Column) and not part.is_star:
            frame, clause = self._place(node)
            column = part.copy()
            ColumnResolver(problems=[], text="").resolve(column, frame=frame, clause=clause)
            origin = origin_of(column)
            type_ = None if origin is None else self._types.of(origin)
        if type_ is None or isinstance(type_, Variant):
            return None
        if is_text(type_):
            return "text"
        is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
        return "number" if is_number else None

    def _spell_out_single(self, column: exp.Expr) -> None:
        """A path of names and numbers that Spark can't follow, or fails to follow where an element isn't there."""
        origin = origin_of(self._resolved[column.meta[_NUMBER]])
        if origin is None:
            return
        whole, steps = _climbed(column)
        whole_type = self._types.of(replace(origin, fields=()))
        if whole_type is None:
            raise _UnknownTypeError
        below = (*(Field(name) for name in origin.fields), *steps)
        goes_on = any(isinstance(step, Element) and (step.number < 0 or step is not steps[-1]) for step in steps)
        is_document = isinstance(whole_type, Variant) or is_text(whole_type) or leads_into_variant(below, whole_type)
        if not below or not (goes_on or is_document) or not is_single(below, whole_type):
            return
        found = single_value(below, self._reference(origin), whole_type)
        self._put(column, whole, found.tree, found.type)

    def _wildcard_head(self, node: exp.Expr) -> _Head:
        steps = self._steps(node)
        frame, clause = self._place(node)
        if isinstance(steps[0], AnyField | AnyDepth):
            return self._row_head(node, frame, steps)
        names = _leading_names(steps)[:3]
        column = _column_named(names)
        for part in column.parts:
            part.meta.update({key: node.meta[key] for key in ("line", "col") if key in node.meta})
        problems: list[SqlError] = []
        ColumnResolver(problems=problems, text=self._text).resolve(column, frame=frame, clause=clause)
        if problems:
            raise problems[0]
        origin = origin_of(column)
        if origin is None:
            raise _UnknownTypeError
        return self._head(origin, (*(Field(name) for name in origin.fields), *steps[len(names) :]))

    def _star_head(self, node: exp.Column) -> _Head | None:
        """`positions.*` as a path, if no relation goes by that name."""
        frame, clause = self._place(node)
        names = [str(part.name) for part in node.parts if isinstance(part, exp.Identifier)]
        visible: Frame | None = frame
        while visible is not None:
            if len(names) == 1 and visible.source(names[0]) is not None:
                return None
            visible = visible.outer
        column = _column_named(names)
        ColumnResolver(problems=[], text="").resolve(column, frame=frame, clause=clause)
        origin = origin_of(column)
        if origin is None:
            return None
        return self._head(origin, (*(Field(name) for name in origin.fields), AnyField()))

    def _row_head(self, node: exp.Expr, frame: Frame, steps: tuple[Step, ...]) -> _Head:
        """All columns of the row as one struct, for a path that begins with a star."""
        if frame.star is None:
            raise _UnknownTypeError
        fields: list[pa.Field] = []
        names = [column.name.lower() for column in frame.star]
        for column in frame.star:
            if names.count(column.name.lower()) > 1:
                raise ValidationError(
                    f'two columns are called "{column.name}", and the path "{_written(node)}" begins with all of them',
                    hint="begin it with a column, or give the columns names of their own in a subquery",
                    code="ambiguous-column",
                    **pointer(node, self._text),
                )
            type_ = None if column.source is None else self._types.of(Origin(frame.scope, column.source, column.name))
            if type_ is None:
                raise _UnknownTypeError
            fields.append(pa.field(column.name, VARIANT if isinstance(type_, Variant) else type_))
        return _Head(variable(_ROW), pa.struct(fields), steps, frame)

    def _head(self, origin: Origin, steps: tuple[Step, ...]) -> _Head:
        type_ = self._types.of(replace(origin, fields=()))
        if type_ is None:
            raise _UnknownTypeError
        return _Head(self._reference(origin), type_, steps)

    def _reference(self, origin: Origin) -> exp.Column:
        table = identifier(origin.source) if origin.source else None
        return exp.Column(this=identifier(origin.column), table=table)

    def _place(self, node: exp.Expr) -> tuple[Frame, str]:
        """What the names of a path may mean where it stands, and the clause that is in."""
        found: exp.Expr = self._resolved[node.meta[_NUMBER]]
        while found.parent is not None and not isinstance(found.parent, exp.Select):
            found = found.parent
        scope = scope_of(found.parent) if found.parent is not None else None
        if scope is None:
            raise ValidationError(
                f'the path "{_written(node)}" stands where no columns are read',
                hint="give it a name among the items of the SELECT, and use that",
                **pointer(node, self._text),
            )
        clause = "on" if found.arg_key in ("joins", "laterals") else str(found.arg_key)
        return self._resolution.frames[scope], clause

    def _steps(self, node: exp.Expr) -> tuple[Step, ...]:
        try:
            return parse_path(_written(node)).steps
        except SqlError as error:
            place = pointer(node, self._text)
            place["column"] += max(error.column - 1, 0)
            raise ValidationError(error.message, hint=error.hint, code=error.code, **place) from None

    def _put(self, node: exp.Expr, replaced: exp.Expr, tree: exp.Expr, type_: pa.DataType) -> None:
        self._name_item(node)
        item = self._resolved[node.meta[_NUMBER]]
        while item.parent is not None and not isinstance(item.parent, exp.Select | exp.Alias):
            item = item.parent
        if _is_whole_item(replaced):
            item.meta[VALUE_TYPE] = type_
        replaced.replace(exp.paren(tree, copy=False) if isinstance(tree, exp.Div) else tree)

    def _name_item(self, node: exp.Expr) -> None:
        """Write down the name that the select item has as it was written."""
        item = node
        while item.parent is not None and not isinstance(item.parent, exp.Select):
            item = item.parent
        if isinstance(item.parent, exp.Select) and item.arg_key == "expressions" and not isinstance(item, exp.Alias):
            name = _item_name(item)
            holder = exp.Alias(this=exp.Null(), alias=identifier(name))
            item.replace(holder)
            holder.set("this", item)

    def _stand_in_or_refuse(self, node: exp.Expr) -> None:
        if not self._is_provisional:
            raise ValidationError(
                f'the type of what the path "{_written(node)}" begins with is not known here',
                hint="CAST it to its type in the subquery that it comes from, or make that a table",
                code="unknown-type",
                **pointer(node, self._text),
            )
        self._name_item(node)
        user = node.parent
        if user is not None and type(user) in AGGREGATES and stands_for_row(user, self._is_path_aggregate):
            user.replace(node.copy())


def _column_named(names: Sequence[str]) -> exp.Column:
    """A column by at most three names, from the left: of its relation, its own, of a field."""
    parts = zip(("this", "table", "db"), reversed(names), strict=False)
    return exp.Column(**{part: identifier(name) for part, name in parts})


def _climbed(column: exp.Expr) -> tuple[exp.Expr, tuple[Step, ...]]:
    """The whole of a path of names and numbers that begins with a column, and its steps from there."""
    steps: list[Step] = []
    node = column
    while (parent := node.parent) is not None and node.arg_key == "this":
        step = _plain_step(parent)
        if step is None:
            break
        steps.append(step)
        node = parent
    return node, tuple(steps)


def _plain_step(node: exp.Expr) -> Step | None:
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        return Field(str(node.expression.name))
    if not isinstance(node, exp.Bracket) or len(node.expressions) != 1:
        return None
    key = node.expressions[0]
    sign = -1 if isinstance(key, exp.Neg) else 1
    literal = key.this if isinstance(key, exp.Neg) else key
    if not isinstance(literal, exp.Literal):
        return None
    if literal.is_string:
        return Field(str(literal.this)) if sign > 0 else None
    return Element(sign * int(str(literal.this))) if str(literal.this).isdigit() else None


def _leading_names(steps: Sequence[Step]) -> list[str]:
    names: list[str] = []
    for step in steps:
        if not isinstance(step, Field):
            break
        names.append(step.name)
    return names


def _reading_columns(tree: exp.Expr, frame: Frame) -> exp.Expr:
    """The tree with fields of the whole row read as the columns they are."""
    columns = {column.name: column.source for column in frame.star or ()}

    def read(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Dot) and node.this == variable(_ROW):
            name = str(node.expression.name)
            source = columns[name]
            return exp.Column(this=identifier(name), table=identifier(source) if source else None)
        return node

    return tree.transform(read)


def _wrapped(plain: exp.Expr, aggregate: exp.Expr, outermost: exp.Expr) -> exp.Expr:
    """An aggregate of Spark's in the FILTER and OVER that another one stands in."""
    if aggregate is outermost:
        return plain
    copied = outermost.copy()
    inner = copied
    while isinstance(inner.this, exp.Filter | exp.Window):
        inner = inner.this
    inner.set("this", plain)
    return copied


def _is_whole_item(node: exp.Expr) -> bool:
    parent = node.parent
    if isinstance(parent, exp.Alias):
        node, parent = parent, parent.parent
    return isinstance(parent, exp.Select) and node.arg_key == "expressions"


def _item_name(item: exp.Expr) -> str:
    bare = without_parentheses(item)
    if bare.is_star and isinstance(bare, exp.Column):
        return str(bare.table)
    return output_name(item)


def _written(node: exp.Expr) -> str:
    """A path as it stands in the text."""
    return path_as_written(node) if is_wildcard_path(node) else node.sql(dialect="spark")
