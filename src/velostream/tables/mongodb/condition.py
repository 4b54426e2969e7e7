"""Conditions as filter documents, where the server's answer is provably SQL's; the rest is left to us.

A filter says when a condition is true; what NOT needs is a filter that says when it is false, and neither of the two
holds where the condition is NULL. So each expression has both forms, or none and stays with the remainder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from velostream.errors import TableError
from velostream.model.expression import Call, ColumnRef, Expression, Literal, columns_of, conjuncts
from velostream.tables.memory.evaluate import compile_expression
from velostream.tables.mongodb.layout import Document, Layout
from velostream.tables.mongodb.reader import lists_for_commands
from velostream.tables.mongodb.values import BsonValue
from velostream.tables.remainder import Remainder

_NEVER: Document = {"$nor": [{}]}
_LONGEST_PREFIX = 1000
"""Characters of a regular expression; the server refuses longer ones at some length."""
_FLIPPED = {"=": "=", "<>": "<>", "<=>": "<=>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_OPERATORS = {"<": "$lt", "<=": "$lte", ">": "$gt", ">=": "$gte"}
_NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True)
class MongodbCondition:
    """A condition compiled for one table. A `CompiledCondition`."""

    filter: Document
    rest: Remainder | None
    access: str

    @property
    def remainder(self) -> Expression | None:
        return None if self.rest is None else self.rest.condition


@dataclass(frozen=True)
class _Sides:
    """When a condition is true and when it is false; NULL where neither filter matches."""

    true: Document
    false: Document


def compile_filter(condition: Expression, layout: Layout, indexes: Sequence[tuple[str, ...]]) -> MongodbCondition:
    """Raises `NotFoundError` for an unknown column, `CannotCompile` for what neither the server nor we evaluate."""
    compile_expression(condition, layout.schema)
    pushed: list[Document] = []
    kept: list[Expression] = []
    tied: set[str] = set()
    for part in conjuncts(condition):
        sides = _sides(part, layout)
        if sides is None:
            kept.append(part)
            continue
        pushed.append(sides.true)
        match part:
            case Call("=" | "in" | "<=>") if len(columns_of(part)) == 1:
                tied |= {layout.schema.column(name).name for name in columns_of(part)}
            case _:
                pass
    access = "scan"
    if layout.schema.key and tied.issuperset(layout.schema.key):
        access = "key"
    elif any(columns[0] in tied for columns in indexes):
        access = "index"
    return MongodbCondition(_all_of(pushed), Remainder.of(kept, layout.schema), access)


def _sides(expression: Expression, layout: Layout) -> _Sides | None:
    match expression:
        case Call("and" | "or" as name, arguments):
            parts = [_sides(argument, layout) for argument in arguments]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            trues, falses = [part.true for part in known], [part.false for part in known]
            if name == "and":
                return _Sides(_all_of(trues), _any_of(falses))
            return _Sides(_any_of(trues), _all_of(falses))
        case Call("not", (inner,)):
            sides = _sides(inner, layout)
            return None if sides is None else _Sides(sides.false, sides.true)
        case ColumnRef(name) if pa.types.is_boolean(layout.schema.column(name).type):
            path = _path(name, layout)
            return _Sides({path: True}, {path: False})
        case Call("is_null", (ColumnRef(name),)):
            path = _path(name, layout)
            return _Sides({path: None}, {path: {"$ne": None}})
        case Call("in", (ColumnRef(name), *items)) if all(isinstance(item, Literal) for item in items):
            return _membership(name, [item for item in items if isinstance(item, Literal)], layout)
        case Call("like", (ColumnRef(name), Literal(str(pattern), _))):
            return _like(name, pattern, layout)
        case Call(operator, (ColumnRef(name), Literal() as literal)) if operator in _FLIPPED:
            return _comparison(operator, name, literal, layout)
        case Call(operator, (Literal() as literal, ColumnRef(name))) if operator in _FLIPPED:
            return _comparison(_FLIPPED[operator], name, literal, layout)
    return None


def _comparison(operator: str, name: str, literal: Literal, layout: Layout) -> _Sides | None:
    values = layout.values[layout.schema.column(name).name]
    path = _path(name, layout)
    if not values.comparable or literal.type != values.type:
        return None
    if literal.value is None:
        return _Sides({path: None}, {path: {"$ne": None}}) if operator == "<=>" else _Sides(_NEVER, _NEVER)
    value = _constant(literal, layout, name)
    if value is None:
        return None
    if operator == "<=>":
        return _Sides({path: {"$eq": value}}, {path: {"$ne": value}})
    if operator not in ("=", "<>") and not values.ordered:
        return None
    return _Sides(_compared(operator, path, value), _compared(_NEGATED[operator], path, value))


def _compared(operator: str, path: str, value: BsonValue) -> Document:
    """Never true for NULL. To the server NaN is neither below nor above a number; to SQL it is above all of them."""
    if operator == "=":
        return {path: {"$eq": value}}
    if operator == "<>":
        return {path: {"$nin": [value, None]}}
    if not isinstance(value, float):
        return {path: {_OPERATORS[operator]: value}}
    if math.isnan(value):
        against_nan: dict[str, Document] = {
            "<": {path: {"$nin": [value, None]}},
            "<=": {path: {"$ne": None}},
            ">": _NEVER,
            ">=": {path: {"$eq": value}},
        }
        return against_nan[operator]
    compared: Document = {path: {_OPERATORS[operator]: value}}
    return compared if operator in ("<", "<=") else _any_of([compared, {path: {"$eq": math.nan}}])


def _membership(name: str, items: Sequence[Literal], layout: Layout) -> _Sides | None:
    values = layout.values[layout.schema.column(name).name]
    given = [item for item in items if item.value is not None]
    if not values.comparable or any(item.type != values.type for item in given):
        return None
    path = _path(name, layout)
    members = [_constant(item, layout, name) for item in given]
    if None in members:
        return None
    if len(list(lists_for_commands(members))) > 1:
        return None
    true: Document = {path: {"$in": members}}
    return _Sides(true, {path: {"$nin": [*members, None]}} if len(given) == len(items) else _NEVER)


def _like(name: str, pattern: str, layout: Layout) -> _Sides | None:
    """Only `text` and `text%`: for others the server's matcher gives up on long texts without a word."""
    from bson.regex import Regex

    start = pattern.removesuffix("%")
    column = layout.schema.column(name)
    if not pa.types.is_string(column.type) or any(character in start for character in "%_\\\0"):
        return None
    if len(start) > _LONGEST_PREFIX:
        return None
    if start == pattern:
        return _comparison("=", name, Literal(pattern, pa.string()), layout)
    path = _path(name, layout)
    regex = Regex(f"^{re.escape(start)}", "s")
    return _Sides({path: regex}, {path: {"$not": regex, "$ne": None}})


def _constant(literal: Literal, layout: Layout, name: str) -> BsonValue:
    """The constant as the column's values are written; None when none of them can be written so."""
    column = layout.schema.column(name)
    try:
        return layout.values[column.name].encode(pa.array([literal.value], column.type))[0]
    except TableError:
        return None


def _path(name: str, layout: Layout) -> str:
    return layout.paths[layout.schema.column(name).name]


def _all_of(parts: Sequence[Mapping[str, Any]]) -> Document:
    if len(parts) == 1:
        return dict(parts[0])
    return {"$and": list(parts)} if parts else {}


def _any_of(parts: Sequence[Mapping[str, Any]]) -> Document:
    return dict(parts[0]) if len(parts) == 1 else {"$or": list(parts)}
