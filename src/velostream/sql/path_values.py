"""The values of a path as a Spark expression over a struct, a map, an array, a VARIANT or JSON text.

Where types are known, a path is followed through them while planning: what is left for Spark are fields, `transform`
and `filter`. At every value stands the set of steps that may come next, as in a finite automaton, so that each value is
found once, in the order of the data, however many ways `**` leads to it. JSON text and VARIANTs have their types only
in the data; one vectorised pass of the engine walks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, TypeAlias

import pyarrow as pa
from sqlglot import exp

from velostream.model.path import AnyDepth, AnyField, Comparison, Element, Field, Filter, Path, Slice, Step, path_text
from velostream.model.types import render_type
from velostream.model.variant import holds_variant, is_variant
from velostream.sql.coercion import common_type_of, is_float, is_numeric, is_text, is_time
from velostream.sql.naming import identifier

JSON_VALUES = "velostream_json_values"
"""Function of the engine: (JSON text, path, what is wanted, more paths …) gives an ARRAY of the values along the paths,
as texts, each value once."""
DOCUMENT = "value"
"""The name that a document has at the beginning of the path given to that function."""
VALUE_TYPE = "velostream_value_type"
"""Key of the meta of an expression that paths were compiled to, with its type."""
JSON_NUMBER = pa.decimal128(38, 18)
"""What a number out of JSON text or a VARIANT is in arithmetic and comparisons."""

_COMPARISONS: dict[str, type[exp.Binary]] = {
    "=": exp.EQ,
    "==": exp.EQ,
    "!=": exp.NEQ,
    "<>": exp.NEQ,
    "<": exp.LT,
    "<=": exp.LTE,
    ">": exp.GT,
    ">=": exp.GTE,
}


@dataclass(frozen=True)
class Variant:
    """The type VARIANT, whose values have their types in the data, as documents do."""


VARIANT: Final = Variant()
ValueType: TypeAlias = pa.DataType | Variant


@dataclass(frozen=True)
class Values:
    """The values that a path leads to in one row."""

    tree: exp.Expr
    """An ARRAY of them, never NULL and without NULLs."""
    type: pa.DataType
    """Of each of them."""
    from_text: bool = False
    """Whether they came out of JSON text or a VARIANT, as text whatever they are there."""


def values_along(
    steps: Sequence[Step], value: exp.Expr, type_: ValueType, *, wanted: str = "any", of_row: bool = False
) -> Values:
    """The values below one; `wanted` says which a document gives: `any`, or only each `number` or `text`.

    `of_row`: the value is a whole row, so that the texts in it are columns, which may hold documents.
    """
    if isinstance(type_, Variant) or is_text(type_):
        text = call("to_json", value) if isinstance(type_, Variant) else value
        return Values(_in_document(text, [steps], wanted), pa.string(), from_text=True)
    types = _types_found(steps, value, type_, nested_keys=True)
    nested_keys = len(set(map(pa.types.is_nested, types))) < 2
    if not nested_keys:
        types = _types_found(steps, value, type_, nested_keys=False)
    looking = _Follower(steps, lambda found, _: found, nested_keys=nested_keys)
    if (of_row and looking.looks_into_columns(type_)) or looking.looks_into_variants(value, type_):
        convert = _written_as_text(wanted)
        follower = _Follower(steps, convert, nested_keys=nested_keys, documents=wanted, of_row=of_row)
        return Values(follower.all_values(value, type_, pa.string()), pa.string(), from_text=True)
    target = _common(types)
    follower = _Follower(
        steps, lambda found, found_type: _converted(found, found_type, target), nested_keys=nested_keys
    )
    return Values(follower.all_values(value, type_, target), target)


def _types_found(steps: Sequence[Step], value: exp.Expr, type_: pa.DataType, *, nested_keys: bool) -> list[pa.DataType]:
    found: list[pa.DataType] = []

    def collect(tree: exp.Expr, tree_type: pa.DataType) -> exp.Expr:
        found.append(tree_type)
        return tree

    _Follower(steps, collect, nested_keys=nested_keys).follow(value, type_)
    return found


def _in_document(text: exp.Expr, paths: Sequence[Sequence[Step]], wanted: str) -> exp.Expr:
    """The values along paths in the document that a text is."""
    first, *others = [exp.Literal.string(path_text(Path((Field(DOCUMENT), *steps)))) for steps in paths]
    return call(JSON_VALUES, text, first, exp.Literal.string(wanted), *others)


def _written_as_text(wanted: str) -> _Convert:
    """How values are given as those of documents are: as text, only those of the kind that is wanted."""

    def convert(value: exp.Expr, type_: pa.DataType) -> exp.Expr | None:
        kind = "text" if is_text(type_) else "number" if is_numeric(type_) else "other"
        return _converted(value, type_, pa.string()) if wanted in ("any", kind) else None

    return convert


def single_value(steps: Sequence[Step], value: exp.Expr, type_: ValueType) -> Values:
    """The one value of a path of names and numbers, NULL where there is none; `Values.tree` is that value itself."""
    if isinstance(type_, Variant) or is_text(type_) or leads_into_variant(steps, type_):
        found = values_along(steps, value, type_)
        return replace(found, tree=call("get", found.tree, exp.Literal.number(0)))
    (target,) = _types_found(steps, value, type_, nested_keys=True) or [pa.string()]
    there = _Follower(steps, lambda tree, _: tree, nested_keys=True).follow(value, type_)
    return Values(cast(exp.Null(), target) if there is None else there.tree, target)


def leads_into_variant(steps: Sequence[Step], type_: pa.DataType) -> bool:
    """Whether a path of names and numbers goes on inside of a VARIANT that a value holds."""
    follower = _Follower(steps, lambda found, _: found, nested_keys=True)
    return follower.looks_into_variants(exp.Null(), type_)


def is_single(steps: Sequence[Step], type_: ValueType) -> bool:
    """Whether names and numbers lead to one value: never a number to the key of a map, a name to all of an array."""
    if isinstance(type_, Variant) or is_text(type_):
        return True
    for step in steps:
        if is_variant(type_):
            return True
        if isinstance(step, Element) and pa.types.is_list(type_):
            type_ = type_.value_type
        elif isinstance(step, Field) and pa.types.is_struct(type_):
            found = [field.type for field in type_ if field.name.lower() == step.name.lower()]
            if len(found) != 1:
                return False
            type_ = found[0]
        else:
            return False
    return True


def call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    """A call of a function of Spark's that must stay as it is written."""
    return exp.Anonymous(this=name, expressions=list(arguments))


def cast(value: exp.Expr, type_: pa.DataType) -> exp.Cast:
    """`CAST(value AS type)`."""
    return exp.Cast(this=value, to=exp.DataType.build(render_type(type_), dialect="spark"))


def function_of(body: exp.Expr, *variables: str) -> exp.Lambda:
    """`(variables) -> body`."""
    return exp.Lambda(this=body, expressions=[exp.Identifier(this=name, quoted=False) for name in variables])


def variable(name: str) -> exp.Identifier:
    """A variable inside the body of such a function: no column, so that nothing looks for its origin."""
    return exp.Identifier(this=name, quoted=False)


def field_of(value: exp.Expr, name: str) -> exp.Dot:
    return exp.Dot(this=value, expression=identifier(name))


@dataclass(frozen=True)
class _Found:
    """An expression that gives the values found at and below a place."""

    tree: exp.Expr
    many: bool
    """An ARRAY of values, else one value; each may be NULL where there is nothing."""


_States = frozenset[int]
"""Numbers of the steps that may come next; one past the last: the value is found."""
_Convert = Callable[[exp.Expr, pa.DataType], exp.Expr | None]
"""What is given for a value that is found; None: nothing."""


class _Follower:
    """Follows steps through types, from a value to everything they lead to.

    A map may have any key, so `**.price` may find a whole struct under the key `price` of a map of structs. Where that
    would mix structs with the prices inside of them, it is not looked for: `nested_keys` is False.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        convert: _Convert,
        *,
        nested_keys: bool,
        documents: str | None = None,
        of_row: bool = False,
    ) -> None:
        """With `documents` steps lead into VARIANTs, to values of that kind; `of_row`: steps begin at a row, and lead
        into texts of its columns as well.
        """
        self._steps = steps
        self._convert = convert
        self._nested_keys = nested_keys
        self._documents = documents
        self._of_row = of_row
        self._met_variant = False
        self._variables = 0

    def all_values(self, value: exp.Expr, type_: pa.DataType, target: pa.DataType) -> exp.Expr:
        nothing = cast(call("array"), pa.list_(target))
        found = self.follow(value, type_)
        if found is None:
            return nothing
        name = self._variable()
        there = function_of(exp.Not(this=exp.Is(this=variable(name), expression=exp.Null())), name)
        listed = found.tree if found.many else call("array", found.tree)
        kept = call("filter", listed, there)
        return exp.Coalesce(this=kept, expressions=[nothing]) if found.many else kept

    def follow(self, value: exp.Expr, type_: pa.DataType) -> _Found | None:
        states = self._reached(frozenset((0,)))
        if self._documents is None or not self._of_row:
            return self._at(value, type_, states)
        parts: list[_Found | None] = []
        for column in type_:
            inside = field_of(value.copy(), column.name)
            after = self._after_name(states, str(column.name).lower(), in_struct=True)
            parts.append(self._at(inside, column.type, after) if after else None)
            below = self._paths_below(after)
            if below and is_text(column.type):
                parts.append(_Found(_in_document(inside.copy(), below, self._documents), many=True))
        return _joined([part for part in parts if part is not None])

    def looks_into_variants(self, value: exp.Expr, type_: pa.DataType) -> bool:
        """Whether steps lead into a VARIANT, and on."""
        self.follow(value, type_)
        return self._met_variant

    def looks_into_columns(self, row: pa.StructType) -> bool:
        """Whether steps that begin at a row lead into a column of text."""
        states = self._reached(frozenset((0,)))
        return any(
            is_text(column.type)
            and self._paths_below(self._after_name(states, str(column.name).lower(), in_struct=True))
            for column in row
        )

    def _paths_below(self, states: _States) -> list[Sequence[Step]]:
        """The paths that may go on from a value, but for those that are part of `**`."""
        return [
            self._steps[state:]
            for state in sorted(states)
            if state < len(self._steps) and not (state - 1 in states and isinstance(self._steps[state - 1], AnyDepth))
        ]

    def _at(self, value: exp.Expr, type_: pa.DataType, states: _States) -> _Found | None:
        """What is found at a value and below it; None where the types say that it is nothing."""
        if self._documents is not None and _is_document(type_):
            return self._in_variants(value, states)
        parts: list[_Found | None] = []
        if len(self._steps) in states:
            given = self._convert(value.copy(), type_)
            parts.append(None if given is None else _Found(given, many=False))
        if is_variant(type_):
            self._met_variant |= bool(self._paths_below(states))
        elif pa.types.is_struct(type_):
            for child in type_:
                after = self._after_name(states, str(child.name).lower(), in_struct=True)
                parts.append(self._at(field_of(value.copy(), child.name), child.type, after) if after else None)
        elif pa.types.is_map(type_):
            parts.append(self._in_map(value, type_, states))
        elif pa.types.is_list(type_):
            parts.append(self._in_array(value, type_, states))
        return _joined([part for part in parts if part is not None])

    def _in_variants(self, value: exp.Expr, states: _States) -> _Found | None:
        paths = self._paths_below(states) if len(self._steps) not in states else [(), *self._paths_below(states)]
        return _Found(_in_document(call("to_json", value.copy()), paths, str(self._documents)), many=True)

    def _in_map(self, value: exp.Expr, type_: pa.MapType, states: _States) -> _Found | None:
        always = self._after_any(states, (AnyField,))
        if not self._nested_keys and always and pa.types.is_nested(type_.item_type):
            last = len(self._steps) - 1
            states = frozenset(state for state in states if state != last or not isinstance(self._steps[last], Field))
        names = [step.name for state in sorted(states) if isinstance(step := self._step(state), Field)]
        if not names:
            values = call("map_values", value.copy())
            return self._each(values, lambda item, _: self._at(item, type_.item_type, always)) if always else None
        if not always and len(set(names)) == 1 and is_text(type_.key_type):
            item = call("try_element_at", value.copy(), exp.Literal.string(names[0]))
            return self._at(item, type_.item_type, self._after_name(states, names[0], in_struct=False))

        def entry(item: exp.Expr, _: exp.Expr) -> _Found | None:
            key = field_of(item, "key")
            conditions = [
                (
                    exp.EQ(this=cast(key.copy(), pa.string()), expression=exp.Literal.string(name)),
                    self._after_name(states, name, in_struct=False) - always,
                )
                for name in dict.fromkeys(names)
            ]
            return self._by_conditions(field_of(item, "value"), type_.item_type, conditions, always)

        return self._each(call("map_entries", value.copy()), entry)

    def _in_array(self, value: exp.Expr, type_: pa.ListType, states: _States) -> _Found | None:
        always = self._after_any(states, ())
        chosen: list[tuple[Element | Slice | Filter, _States]] = []
        for state in sorted(states):
            step = self._step(state)
            if step == Slice():
                always |= self._reached(frozenset((state + 1,)))
            elif isinstance(step, Element | Slice | Filter):
                chosen.append((step, self._reached(frozenset((state + 1,)))))
        item_type = type_.value_type
        if not chosen:
            return self._each(value.copy(), lambda item, _: self._at(item, item_type, always)) if always else None
        if not always and len(chosen) == 1:
            step, after = chosen[0]
            if isinstance(step, Element):
                return self._at(_element(value.copy(), step.number), item_type, after)
            item, number = self._variable(), self._variable()
            condition = self._chooses(step, variable(item), item_type, variable(number), value)
            subset = call("filter", value.copy(), function_of(condition, item, number))
            return self._each(subset, lambda item, _: self._at(item, item_type, after))

        def element(item: exp.Expr, number: exp.Expr) -> _Found | None:
            conditions = [(self._chooses(step, item, item_type, number, value), after) for step, after in chosen]
            return self._by_conditions(item, item_type, conditions, always)

        return self._each(value.copy(), element)

    def _each(self, items: exp.Expr, found_in: Callable[[exp.Expr, exp.Expr], _Found | None]) -> _Found | None:
        """What is found in every item of an array, given the item and its number."""
        item, number = self._variable(), self._variable()
        found = found_in(variable(item), variable(number))
        if found is None:
            return None
        if not found.many and found.tree == variable(item):
            return _Found(items, many=True)
        variables = [item, number] if _mentions(found.tree, number) else [item]
        if not found.many:
            return _Found(call("transform", items, function_of(found.tree, *variables)), many=True)
        mapped = call("transform", items, function_of(_or_empty(found.tree), *variables))
        return _Found(call("flatten", mapped), many=True)

    def _by_conditions(
        self,
        value: exp.Expr,
        type_: pa.DataType,
        conditions: Sequence[tuple[exp.Expr, _States]],
        always: _States,
    ) -> _Found | None:
        """What is found in a value for which some of the conditions hold, whichever they are."""
        if not conditions:
            return self._at(value, type_, always) if always else None
        (condition, after), others = conditions[0], conditions[1:]
        holding = self._by_conditions(value, type_, others, always | after)
        failing = self._by_conditions(value, type_, others, always)
        if holding is None or holding == failing:
            return failing
        branch = exp.If(this=condition, true=_listed(holding), false=_empty() if failing is None else _listed(failing))
        return _Found(branch, many=True)

    def _chooses(
        self,
        step: Element | Slice | Filter,
        item: exp.Expr,
        item_type: pa.DataType,
        number: exp.Expr,
        array: exp.Expr,
    ) -> exp.Expr:
        match step:
            case Element(wanted):
                return exp.EQ(this=number.copy(), expression=_bound(wanted, array))
            case Slice(start, stop):
                parts: list[exp.Expr] = []
                if start is not None:
                    parts.append(exp.GTE(this=number.copy(), expression=_bound(start, array)))
                if stop is not None:
                    parts.append(exp.LT(this=number.copy(), expression=_bound(stop, array)))
                return exp.and_(*parts, copy=False)
            case Filter(comparisons):
                return exp.and_(*(_holds(item, item_type, names, one) for names, one in comparisons), copy=False)

    def _step(self, state: int) -> Step | None:
        return self._steps[state] if state < len(self._steps) else None

    def _reached(self, states: _States) -> _States:
        """The states with those that `**` reaches without going further down."""
        found = set(states)
        for state in sorted(states):
            while isinstance(self._step(state), AnyDepth) and state < len(self._steps) - 1:
                state += 1  # noqa: PLW2901 - walks on from the state
                found.add(state)
        return frozenset(found)

    def _after_any(self, states: _States, kinds: tuple[type[Step], ...]) -> _States:
        """The states of a child that is reached by these kinds of steps, or by `**`."""
        found: set[int] = set()
        for state in states:
            step = self._step(state)
            if isinstance(step, kinds):
                found.add(state + 1)
            elif isinstance(step, AnyDepth):
                is_last = state == len(self._steps) - 1
                found |= {state, state + 1} if is_last else {state}
        return self._reached(frozenset(found))

    def _after_name(self, states: _States, name: str, *, in_struct: bool) -> _States:
        """The states of the child of that name; fields of structs have it in any case of letters."""
        named = {
            state + 1
            for state in states
            if isinstance(step := self._step(state), Field) and (step.name.lower() if in_struct else step.name) == name
        }
        return self._after_any(states, (AnyField,)) | self._reached(frozenset(named))

    def _variable(self) -> str:
        self._variables += 1
        return f"velostream_{self._variables}"


def _joined(parts: Sequence[_Found]) -> _Found | None:
    """The values of several places, one after another."""
    if len(parts) <= 1:
        return parts[0] if parts else None
    arrays: list[exp.Expr] = []
    singles: list[exp.Expr] = []
    for part in parts:
        if not part.many:
            singles.append(part.tree)
            continue
        if singles:
            arrays.append(call("array", *singles))
            singles = []
        arrays.append(_or_empty(part.tree))
    if singles:
        arrays.append(call("array", *singles))
    return _Found(arrays[0] if len(arrays) == 1 else call("concat", *arrays), many=True)


def _listed(found: _Found) -> exp.Expr:
    return _or_empty(found.tree) if found.many else call("array", found.tree)


def _or_empty(array: exp.Expr) -> exp.Expr:
    """An array, or the empty one where it is NULL: NULL would swallow its neighbours."""
    return exp.Coalesce(this=array, expressions=[_empty()])


def _empty() -> exp.Expr:
    return call("array")


def _mentions(tree: exp.Expr, name: str) -> bool:
    return any(str(node.name) == name for node in tree.find_all(exp.Identifier))


def _element(array: exp.Expr, number: int) -> exp.Expr:
    """One element, NULL out of range; Spark counts from 1 where it counts from the end."""
    if number >= 0:
        return call("get", array, exp.Literal.number(number))
    return call("try_element_at", array, exp.Neg(this=exp.Literal.number(-number)))


def _bound(number: int, array: exp.Expr) -> exp.Expr:
    """A number of an element; a negative one counts from the end of its array."""
    if number >= 0:
        return exp.Literal.number(number)
    return exp.Sub(this=call("size", array.copy()), expression=exp.Literal.number(-number))


def _holds(item: exp.Expr, type_: pa.DataType, names: Sequence[str], comparison: Comparison) -> exp.Expr:
    """What a filter asks of a field of an element; never true where the types can't be compared."""
    value: exp.Expr = item.copy()
    for name in names:
        if pa.types.is_map(type_) and is_text(type_.key_type):
            value, type_ = call("try_element_at", value, exp.Literal.string(name)), type_.item_type
            continue
        fields = list(type_) if pa.types.is_struct(type_) else []
        found = next((field for field in fields if field.name.lower() == name.lower()), None)
        if found is None:
            return exp.false()
        value, type_ = field_of(value, found.name), found.type
    operand = comparison.operand
    condition = _COMPARISONS[comparison.symbol](this=value, expression=_literal(operand))
    if isinstance(operand, bool):
        return condition if pa.types.is_boolean(type_) else exp.false()
    if isinstance(operand, str):
        return condition if is_text(type_) else exp.false()
    if is_float(type_):
        return exp.and_(exp.Not(this=call("isnan", value.copy())), condition, copy=False)
    return condition if is_numeric(type_) else exp.false()


def _literal(operand: Decimal | str | bool) -> exp.Expr:  # noqa: FBT001 - it is the operand of a comparison
    if isinstance(operand, bool):
        return exp.Boolean(this=operand)
    if isinstance(operand, str):
        return exp.Literal.string(operand)
    number = exp.Literal.number(format(abs(operand), "f"))
    return exp.Neg(this=number) if operand < 0 else number


def _common(types: Iterable[pa.DataType]) -> pa.DataType:
    """The one type that all values of a path are given in: text, where nothing else holds all of them."""
    distinct = list(dict.fromkeys(types))
    if len(distinct) == 1:
        return distinct[0]
    alike = distinct and (all(map(is_numeric, distinct)) or all(map(is_time, distinct)))
    return (common_type_of(distinct) if alike else None) or pa.string()


def _is_document(type_: pa.DataType) -> bool:
    """Whether values are looked into as documents: VARIANTs, and what holds many of them, since Spark 4.2 evaluates no
    function in Python within one over the elements of an array.
    """
    return holds_variant(type_) and (is_variant(type_) or not pa.types.is_struct(type_))


def _converted(value: exp.Expr, type_: pa.DataType, target: pa.DataType) -> exp.Expr:
    if type_ == target:
        return value
    if is_text(target) and pa.types.is_nested(type_):
        return call("to_json", value)
    return cast(value, target)
