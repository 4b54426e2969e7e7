"""Expressions compiled to vectorised closures over Arrow columns, with Spark's answers in ANSI mode.

What Arrow can't compute exactly as Spark does is `CannotCompile`; the caller asks Spark then. The same goes for an
operation that can fail where Spark might not evaluate it: behind AND, OR, CASE or COALESCE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import UnsupportedError
from velostream.model.expression import Call, Case, Cast, ColumnRef, Expression, Literal
from velostream.model.schema import Schema
from velostream.model.types import render_type
from velostream.tables.memory.operations import (
    ARITHMETIC,
    COMPARISONS,
    FLOAT_COMPARISONS,
    Values,
    capped,
    changed_case,
    choose,
    divide,
    failing,
    remainder,
    total_cast,
)

_MAX_PRECISION = 38
_MAX_EXACT_PRECISION = 76
_PLAIN_PATTERN = re.compile(r"\^?(?:[\w \-@#%&,:;~'\"/<>=!]|\[[A-Za-z0-9_ \-]+\]|[()|]|(?<=[\w\])])[*+?](?![*+?]))*")
"""Regular expressions that mean the same in Java and RE2: no `.`, `$`, back-slashes, lazy or possessive quantifiers."""


class CannotCompile(UnsupportedError):  # noqa: N818 - no fault of anybody's: Spark evaluates it instead
    """An expression that only Spark evaluates as Spark does."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """An expression ready to run."""

    run: Callable[[pa.Table], Values]
    type: pa.DataType


def compile_expression(expression: Expression, schema: Schema) -> Compiled:
    """Compile an expression over rows with the schema's columns.

    Raises `CannotCompile`, and `NotFoundError` for an unknown column.
    """
    return _Compiler(schema).compile(expression)


def evaluate_expression(expression: Expression, rows: pa.Table) -> pa.ChunkedArray:
    """The value of an expression for each row.

    Raises `TableError` where Spark's ANSI mode fails (overflow, division by zero), and `CannotCompile`.
    """
    compiled = compile_expression(expression, Schema.from_arrow(rows.schema))
    return column_of(compiled.run(rows), rows.num_rows, compiled.type)


def column_of(values: Values, length: int, type_: pa.DataType) -> pa.ChunkedArray:
    """Results as a column of that many rows."""
    if isinstance(values, pa.Scalar):
        values = pa.repeat(values, length)
    if isinstance(values, pa.Array):
        values = pa.chunked_array([values])
    return values if values.type == type_ else values.cast(type_)


class _Compiler:
    def __init__(self, schema: Schema, *, guarded: bool = False) -> None:
        self.schema = schema
        self.guarded = guarded

    def compile(self, expression: Expression) -> Compiled:
        match expression:
            case ColumnRef(name):
                column = self.schema.column(name)
                stored = column.name
                return Compiled(lambda rows: rows.column(stored), column.type)
            case Literal(value, type_):
                return self.literal(value, type_)
            case Cast(value, type_):
                return self.cast(self.compile(value), type_)
            case Case(branches, otherwise):
                return self.case(branches, otherwise)
            case Call(name, arguments):
                return self.call(name, arguments)

    def literal(self, value: Any, type_: pa.DataType) -> Compiled:
        try:
            scalar = pa.scalar(value, type_)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError) as error:
            raise CannotCompile(f"constant {value!r} is no {render_type(type_)}") from error
        return Compiled(lambda _: scalar, type_)

    def guard(self) -> _Compiler:
        return _Compiler(self.schema, guarded=True)

    def can_fail(self, what: str) -> None:
        if self.guarded:
            raise CannotCompile(f"{what} can fail and stands behind a condition")

    def call(self, name: str, arguments: Sequence[Expression]) -> Compiled:
        match name, len(arguments):
            case "and" | "or", 2:
                left, right = self.boolean(arguments[0]), self.guard().boolean(arguments[1])
                return _combine(pc.and_kleene if name == "and" else pc.or_kleene, pa.bool_(), left, right)
            case "not", 1:
                return _combine(pc.invert, pa.bool_(), self.boolean(arguments[0]))
            case "is_null", 1:
                return _combine(pc.is_null, pa.bool_(), self.compile(arguments[0]))
            case "=" | "<>" | "<" | "<=" | ">" | ">=" | "<=>", 2:
                return _comparison(name, self.compile(arguments[0]), self.compile(arguments[1]))
            case "in", count if count > 1:
                return self.membership(arguments[0], arguments[1:])
            case "like", 2 | 3:
                return self.like(arguments)
            case "rlike", 2:
                return self.rlike(arguments[0], arguments[1])
            case "+" | "-" | "*" | "/" | "%", 2:
                return self.arithmetic(name, self.compile(arguments[0]), self.compile(arguments[1]))
            case "neg" | "abs", 1:
                return self.signed(name, self.compile(arguments[0]))
            case "coalesce", count if count > 0:
                return self.coalesce(arguments)
            case "concat", count if count > 0:
                return self.concat(arguments)
            case "lower" | "upper" | "length" | "trim", 1:
                return self.text_function(name, self.compile(arguments[0]))
            case "substring", 2 | 3:
                return self.substring(arguments)
            case "year" | "month" | "day", 1:
                return self.date_part(name, self.compile(arguments[0]))
        raise CannotCompile(f'function "{name}" of {len(arguments)} arguments is evaluated by Spark')

    def boolean(self, expression: Expression) -> Compiled:
        compiled = self.compile(expression)
        if pa.types.is_null(compiled.type):
            return self.literal(None, pa.bool_())
        if not pa.types.is_boolean(compiled.type):
            raise CannotCompile(f"a condition is BOOLEAN, not {render_type(compiled.type)}")
        return compiled

    def membership(self, value: Expression, items: Sequence[Expression]) -> Compiled:
        compiled = self.compile(value)
        if not all(isinstance(item, Literal) for item in items) or pa.types.is_floating(compiled.type):
            found = self.call("=", (value, items[0]))
            for item in items[1:]:
                found = _combine(pc.or_kleene, pa.bool_(), found, self.call("=", (value, item)))
            return found
        literals = [item for item in items if isinstance(item, Literal)]
        if any(item.value is not None and item.type != compiled.type for item in literals):
            raise CannotCompile("the values of IN are of several types")
        members = pa.array([item.value for item in literals if item.value is not None], compiled.type)
        has_null = len(members) < len(literals)

        def run(column: Values) -> Values:
            inside = pc.is_in(column, value_set=members)
            unknown = pc.or_(pc.is_null(column), pc.invert(inside)) if has_null else pc.is_null(column)
            return pc.if_else(unknown, pa.scalar(None, pa.bool_()), inside)

        return _combine(run, pa.bool_(), compiled)

    def like(self, arguments: Sequence[Expression]) -> Compiled:
        escape = _constant_text(arguments[2]) if len(arguments) > 2 else None
        return self.matching(arguments[0], _like_to_regex(_constant_text(arguments[1]), escape))

    def rlike(self, value: Expression, pattern: Expression) -> Compiled:
        text = _constant_text(pattern)
        if not text.isascii() or _PLAIN_PATTERN.fullmatch(text) is None:
            raise CannotCompile("a regular expression of Java's own")
        return self.matching(value, text)

    def matching(self, value: Expression, regex: str) -> Compiled:
        compiled = _text(self.compile(value))
        try:
            pc.match_substring_regex(pa.scalar(""), pattern=regex)
        except pa.ArrowInvalid as error:
            raise CannotCompile("a regular expression of Java's own") from error
        return _combine(lambda column: pc.match_substring_regex(column, pattern=regex), pa.bool_(), compiled)

    def arithmetic(self, operator: str, left: Compiled, right: Compiled) -> Compiled:
        type_ = _arithmetic_type(operator, left.type, right.type)
        if operator == "/":
            self.can_fail("a division")
            return _combine(divide, type_, left, right)
        if operator == "%":
            self.can_fail("a division")
            return _combine(remainder, type_, left, right)
        if pa.types.is_integer(type_):
            self.can_fail("integer arithmetic")
        if pa.types.is_decimal(type_) and _exact_digits(operator, left.type, right.type)[0] > _MAX_PRECISION:
            self.can_fail("decimal arithmetic of that many digits")
            return _combine(failing(capped(operator, type_), operator, type_), type_, left, right)
        return _combine(failing(ARITHMETIC[operator], operator, type_), type_, left, right)

    def signed(self, name: str, value: Compiled) -> Compiled:
        if not _is_numeric(value.type):
            raise CannotCompile(f"{name} of {render_type(value.type)}")
        if pa.types.is_integer(value.type):
            self.can_fail("integer arithmetic")
        run = pc.negate_checked if name == "neg" else pc.abs_checked
        return _combine(failing(run, name, value.type), value.type, value)

    def coalesce(self, arguments: Sequence[Expression]) -> Compiled:
        parts = [self.compile(arguments[0]), *(self.guard().compile(argument) for argument in arguments[1:])]
        type_ = _one_type([part.type for part in parts])
        return _combine(pc.coalesce, type_, *(_typed(part, type_) for part in parts))

    def case(self, branches: Sequence[tuple[Expression, Expression]], otherwise: Expression | None) -> Compiled:
        inside = self.guard()
        conditions = [(inside if number else self).boolean(condition) for number, (condition, _) in enumerate(branches)]
        values = [inside.compile(value) for _, value in branches]
        last = self.literal(None, pa.null()) if otherwise is None else inside.compile(otherwise)
        type_ = _one_type([value.type for value in (*values, last)])
        chosen = _typed(last, type_)
        for condition, value in reversed(list(zip(conditions, values, strict=True))):
            chosen = _combine(choose, type_, condition, _typed(value, type_), chosen)
        return chosen

    def concat(self, arguments: Sequence[Expression]) -> Compiled:
        parts = [_text(self.compile(argument)) for argument in arguments]
        return _combine(lambda *texts: pc.binary_join_element_wise(*texts, ""), pa.string(), *parts)

    def text_function(self, name: str, value: Compiled) -> Compiled:
        if name == "length" and pa.types.is_binary(value.type):
            return _combine(pc.binary_length, pa.int32(), value)
        text = _text(value)
        match name:
            case "length":
                return _combine(pc.utf8_length, pa.int32(), text)
            case "trim":
                return _combine(lambda column: pc.ascii_trim(column, characters=" "), pa.string(), text)
            case "lower":
                return _combine(lambda column: changed_case(column, pc.ascii_lower, str.lower), pa.string(), text)
        return _combine(lambda column: changed_case(column, pc.ascii_upper, str.upper), pa.string(), text)

    def substring(self, arguments: Sequence[Expression]) -> Compiled:
        numbers = [argument.value for argument in arguments[1:] if isinstance(argument, Literal)]
        if len(numbers) + 1 < len(arguments) or not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise CannotCompile("Spark counts from the end of the text")
        # Spark reads position 0 as 1.
        start = max(0, numbers[0] - 1)
        stop = start + numbers[1] if len(numbers) > 1 else None
        text = _text(self.compile(arguments[0]))
        return _combine(lambda column: pc.utf8_slice_codeunits(column, start, stop), pa.string(), text)

    def date_part(self, name: str, value: Compiled) -> Compiled:
        if not pa.types.is_date(value.type):
            raise CannotCompile(f"{name} of {render_type(value.type)} depends on the session's time zone")
        part = {"year": pc.year, "month": pc.month, "day": pc.day}[name]
        return _combine(lambda column: part(column).cast(pa.int32()), pa.int32(), value)

    def cast(self, value: Compiled, target: pa.DataType) -> Compiled:
        source = value.type
        if source == target:
            return value
        if pa.types.is_null(source):
            return self.literal(None, target)
        if pa.types.is_integer(source) and pa.types.is_integer(target):
            if target.bit_width < source.bit_width:
                self.can_fail("a cast to a narrower type")
            return _combine(failing(lambda column: column.cast(target), "cast", target), target, value)
        run = total_cast(source, target)
        if run is None:
            raise CannotCompile(f"a cast of {render_type(source)} to {render_type(target)} is evaluated by Spark")
        return _combine(run, target, value)


def _combine(function: Callable[..., Values], type_: pa.DataType, *parts: Compiled) -> Compiled:
    runs = tuple(part.run for part in parts)
    if len(runs) == 1:
        (only,) = runs
        return Compiled(lambda rows: function(only(rows)), type_)
    if len(runs) == 2:
        first, second = runs
        return Compiled(lambda rows: function(first(rows), second(rows)), type_)
    return Compiled(lambda rows: function(*(run(rows) for run in runs)), type_)


def _is_numeric(type_: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _is_comparable(type_: pa.DataType) -> bool:
    return not (pa.types.is_nested(type_) or pa.types.is_null(type_))


def _comparison(operator: str, left: Compiled, right: Compiled) -> Compiled:
    if left.type != right.type or not _is_comparable(left.type):
        raise CannotCompile(f"{render_type(left.type)} {operator} {render_type(right.type)} is evaluated by Spark")
    if pa.types.is_floating(left.type):
        return _combine(FLOAT_COMPARISONS[operator], pa.bool_(), left, right)
    return _combine(COMPARISONS[operator], pa.bool_(), left, right)


def _arithmetic_type(operator: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        found = _decimal_type(operator, left, right)
        if found is not None:
            return found
    elif left == right and _OPERANDS.get(operator, _is_numeric)(left):
        return left
    raise CannotCompile(f"{render_type(left)} {operator} {render_type(right)} is evaluated by Spark")


_OPERANDS: dict[str, Callable[[pa.DataType], bool]] = {
    "%": pa.types.is_signed_integer,
    "/": lambda type_: bool(type_ == pa.float64()),
}
"""What the operators that don't take every number take."""


def _decimal_type(operator: str, left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type that Spark gives: with all digits, or with 38 of them, where a result that has more is an error."""
    if operator not in ARITHMETIC:
        return None
    precision, scale = _exact_digits(operator, left, right)
    if scale > _MAX_PRECISION or precision > _MAX_EXACT_PRECISION:
        return None
    return pa.decimal128(min(precision, _MAX_PRECISION), scale)


def _exact_digits(operator: str, left: pa.DataType, right: pa.DataType) -> tuple[int, int]:
    """Precision and scale of the exact results of `+ - *`."""
    if operator == "*":
        return left.precision + right.precision + 1, left.scale + right.scale
    scale = max(left.scale, right.scale)
    return max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale


def _one_type(types: Sequence[pa.DataType]) -> pa.DataType:
    known = {type_ for type_ in types if not pa.types.is_null(type_)}
    if len(known) > 1:
        raise CannotCompile("Spark brings these types together")
    found: pa.DataType = known.pop() if known else pa.null()
    if pa.types.is_nested(found):
        raise CannotCompile(f"{render_type(found)} is evaluated by Spark")
    return found


def _typed(value: Compiled, type_: pa.DataType) -> Compiled:
    """A NULL without a type becomes one of the type."""
    if value.type == type_:
        return value
    null = pa.scalar(None, type_)
    return Compiled(lambda _: null, type_)


def _text(value: Compiled) -> Compiled:
    if not pa.types.is_string(value.type):
        raise CannotCompile(f"{render_type(value.type)} is no text")
    return value


def _constant_text(expression: Expression) -> str:
    if not isinstance(expression, Literal) or not isinstance(expression.value, str):
        raise CannotCompile("a pattern that is no constant text")
    return expression.value


def _like_to_regex(pattern: str, escape: str | None) -> str:
    if escape is None and "\\" in pattern:
        raise CannotCompile("a pattern with an escape")
    if escape is not None and len(escape) != 1:
        raise CannotCompile("an escape is one character")
    parts: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None or following not in ("%", "_", escape):
                raise CannotCompile("an escape before an ordinary character")
            parts.append(re.escape(following))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
    return "(?s)\\A" + "".join(parts) + "\\z"
