"""Parameters of a statement: `?` takes the next of a list, `:name` one of a mapping.

Binding puts typed literals in their place, so that what follows (lowering, rendering for Spark) knows no parameters
and no value ever becomes part of the text unquoted.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from sqlglot import exp

from velostream.errors import ValidationError, did_you_mean
from velostream.sql.coercion import decimal_of_value

Parameters = Sequence[Any] | Mapping[str, Any]

Tree = TypeVar("Tree", bound=exp.Expr)

_MARK = "velostream_parameter_"


def bind(tree: Tree, parameters: Parameters | None, *, text: str = "") -> Tree:
    """The tree with every parameter put in, of the same kind unless it is nothing but a parameter.

    It is the tree itself when there is no parameter. Too few, too many or wrongly named ones are a `ValidationError`.
    """
    return cast("Tree", bind_all([tree], parameters, text=text)[0])


def bind_all(trees: Sequence[exp.Expr], parameters: Parameters | None, *, text: str = "") -> list[exp.Expr]:
    """Like `bind`, for all the trees of one statement in the order in which they are written."""
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence | Mapping | None):
        raise ValidationError(
            f"parameters are a list or a mapping, not a {type(parameters).__name__}",
            hint="give [value] for a single ?",
            code="parameter-type",
        )
    if not parameters and not any(tree.find(exp.Placeholder) for tree in trees):
        return list(trees)
    copies = [tree.copy() for tree in trees]
    found = [placeholder for copy in copies for placeholder in _in_text_order(copy)]
    values = _values_for(found, parameters if parameters is not None else (), text=text)
    literals = {id(placeholder): literal_node(value) for placeholder, value in zip(found, values, strict=True)}
    for placeholder in found:
        if placeholder.parent is not None:
            placeholder.replace(literals[id(placeholder)])
    return [literals.get(id(copy), copy) for copy in copies]


def _in_text_order(tree: exp.Expr) -> list[exp.Placeholder]:
    """The placeholders as they are written; a tree's own order is that of its parser, so ask the rendered text."""
    found = list(tree.find_all(exp.Placeholder))
    if len(found) < 2:
        return found
    names = [placeholder.this for placeholder in found]
    for number, placeholder in enumerate(found):
        placeholder.set("this", f"{_MARK}{number:06d}_")
    rendered = tree.sql(dialect="spark")
    order = sorted(range(len(found)), key=lambda number: rendered.find(f"{_MARK}{number:06d}_"))
    for placeholder, name in zip(found, names, strict=True):
        placeholder.set("this", name)
    return [found[number] for number in order]


def _values_for(placeholders: Sequence[exp.Placeholder], parameters: Parameters, *, text: str) -> list[Any]:
    named = [placeholder for placeholder in placeholders if placeholder.this]
    if named and len(named) < len(placeholders):
        raise ValidationError(
            "a statement takes either ? or :name parameters, not both", code="mixed-parameters", text=text or None
        )
    if named or isinstance(parameters, Mapping):
        return _named_values(placeholders, parameters, text=text)
    if len(parameters) != len(placeholders):
        raise ValidationError(
            f"the statement has {len(placeholders)} parameters and {len(parameters)} were given",
            hint="give one value for each ? in a list",
            code="missing-parameter" if len(parameters) < len(placeholders) else "extra-parameter",
            text=text or None,
        )
    return list(parameters)


def _named_values(placeholders: Sequence[exp.Placeholder], parameters: Parameters, *, text: str) -> list[Any]:
    names = [str(placeholder.this) for placeholder in placeholders if placeholder.this]
    if not isinstance(parameters, Mapping):
        given = "a list was given" if parameters else "none were given"
        raise ValidationError(
            f"the statement takes the named parameters {', '.join(':' + name for name in names)} and {given}",
            hint="give a mapping such as {" + ", ".join(f'"{name}": …' for name in names[:3]) + "}",
            code="missing-parameter",
            text=text or None,
        )
    if len(names) < len(placeholders):
        raise ValidationError(
            f"the statement has {len(placeholders)} parameters ? and a mapping was given",
            hint="give the values in a list, or write :name in the statement",
            code="missing-parameter",
            text=text or None,
        )
    for name in names:
        if name not in parameters:
            raise ValidationError(
                f'parameter ":{name}" has no value',
                hint=did_you_mean(name, parameters),
                code="missing-parameter",
                text=text or None,
            )
    unused = sorted(set(parameters) - set(names))
    if unused:
        raise ValidationError(
            f'parameter "{unused[0]}" is not in the statement',
            hint=did_you_mean(unused[0], names),
            code="extra-parameter",
            text=text or None,
        )
    return [parameters[name] for name in names]


def literal_node(value: object) -> exp.Expr:
    """A tree that Spark and `lower` read as exactly this Python value."""
    if hasattr(value, "item") and not isinstance(value, (list, tuple)) and getattr(value, "shape", None) == ():
        value = value.item()
    match value:
        case None:
            return exp.Null()
        case bool():
            return exp.Boolean(this=value)
        case int():
            return _number_node(str(abs(value)), negative=value < 0)
        case float():
            return _cast_node(_double_text(value), "DOUBLE")
        case decimal.Decimal():
            return _decimal_node(value)
        case str():
            return exp.Literal.string(value)
        case bytes() | bytearray() | memoryview():
            return exp.HexString(this=bytes(value).hex().upper())
        case dt.datetime():
            moment = value if value.tzinfo is None else value.astimezone(dt.UTC)
            return _cast_node(moment.replace(tzinfo=None).isoformat(sep=" ") + "Z", "TIMESTAMP")
        case dt.date():
            return _cast_node(value.isoformat(), "DATE")
        case uuid.UUID():
            return exp.Literal.string(str(value))
        case list() | tuple():
            return exp.Array(expressions=[literal_node(item) for item in value])
        case Mapping():
            pairs = [(literal_node(key), literal_node(item)) for key, item in value.items()]
            keys, items = exp.Array(expressions=[k for k, _ in pairs]), exp.Array(expressions=[v for _, v in pairs])
            return exp.VarMap(keys=keys, values=items)
    raise ValidationError(
        f"a parameter can't be a {type(value).__name__}",
        hint="bool, int, float, Decimal, str, bytes, date, datetime, None, and lists and dicts of them are taken",
        code="parameter-type",
    )


def _number_node(digits: str, *, negative: bool) -> exp.Expr:
    number = exp.Literal.number(digits)
    return exp.Neg(this=number) if negative else number


def _cast_node(text: str, type_: str) -> exp.Expr:
    return exp.Cast(this=exp.Literal.string(text), to=exp.DataType.build(type_, dialect="spark"))


def _double_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _decimal_node(value: decimal.Decimal) -> exp.Expr:
    type_ = decimal_of_value(value)
    if type_ is None:
        raise ValidationError(
            f"the decimal {value} can't be a parameter",
            detail="a DECIMAL has at most 38 digits and is finite",
            code="parameter-type",
        )
    return _cast_node(format(value, "f"), f"DECIMAL({type_.precision},{type_.scale})")
