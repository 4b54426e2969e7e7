"""Lower a SQL expression to `model.Expression`, the form that tables evaluate without Spark.

Only what is sure to give Spark's answer is lowered: both sides of an operator get one type by explicit casts as ANSI mode
coerces them, constants are folded exactly, and an operation that can fail stands only where Spark would evaluate
it for every row too (so never behind an AND, an OR or a CASE that might spare it). Anything else is `NotLowerable`, which is no
error: the caller asks Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pyarrow as pa
from sqlglot import exp

from velostream.errors import ResolveError, SqlError, ValidationError
from velostream.model.expression import Call, Case, Cast, ColumnRef, Expression, Literal
from velostream.model.schema import Schema
from velostream.model.types import parse_type
from velostream.sql.coercion import (
    arithmetic_type,
    common_type,
    common_type_of,
    decimal_of,
    decimal_of_value,
    is_atomic,
    is_float,
    is_integer,
    is_numeric,
    is_text,
    is_total,
    keeps_every_value,
    type_of,
)
from velostream.sql.constants import EXACT, CastError, NotConstant, cast_value, number_literal
from velostream.sql.fold import fold_arithmetic, fold_comparison, fold_function, fold_negation
from velostream.sql.parameters import Parameters, bind
from velostream.sql.places import place_of

__all__ = ["NotLowerable", "lower", "type_of"]

_TRUE = Literal(value=True, type=pa.bool_())
_FALSE = Literal(value=False, type=pa.bool_())
_UNKNOWN = Literal(None, pa.bool_())

_MIRRORED = {"=": "=", "<>": "<>", "<=>": "<=>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EQUALITIES = ("=", "<>", "<=>")
_SAFE_PATTERN = re.compile(r"\^?(?:[\w \-@#%&,:;~'\"/<>=!]|\[[A-Za-z0-9_ \-]+\]|[()|]|(?<=[\w\])])[*+?](?![*+?]))*")
"""Regular expressions that mean the same in Java and in every other engine: no `.`, `$`, back-slashes, lazy quantifiers."""


class NotLowerable(Exception):  # noqa: N818 - not an error: Spark evaluates it instead
    """An expression without a lowered form; `reason` is for EXPLAIN."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def lower(
    tree: exp.Expr,
    schema: Schema,
    parameters: Parameters | None = None,
    *,
    text: str = "",
    qualifiers: Collection[str] | None = None,
) -> Expression:
    """The expression over rows of the schema, parameters put in as constants.

    `text` is the statement the tree was read from, for carets. `qualifiers` are the names a column may be qualified with
    (table and alias); None accepts any. Raises `NotLowerable` when Spark has to evaluate it, and a `SqlError` when nobody
    could: an unknown column, a parameter too many, a constant that can't be cast.
    """
    bound = bind(tree, parameters, text=text)
    lowering = _Lowering(schema, text=text, qualifiers=qualifiers)
    lowering.check_columns(bound)
    try:
        lowered = lowering.lower(bound)
        lowering.check_failing(lowered)
    except RecursionError as error:
        raise NotLowerable("it is nested too deeply") from error
    return lowered


class _Lowering:
    def __init__(self, schema: Schema, *, text: str, qualifiers: Collection[str] | None) -> None:
        self.schema = schema
        self.text = text
        self.qualifiers = None if qualifiers is None else {name.lower() for name in qualifiers}
        self.guards = 0
        """How many AND, OR, CASE … may spare rows what is lowered now."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        self.guards += 1
        try:
            yield
        finally:
            self.guards -= 1

    def type(self, expression: Expression) -> pa.DataType:
        return type_of(expression, self.schema)

    def check_failing(self, expression: Expression, *, guarded: bool = False) -> None:
        """Refuse an operation that can fail for a row that Spark might not evaluate it for."""
        first: Sequence[Expression]
        later: Sequence[Expression] = ()
        match expression:
            case ColumnRef() | Literal():
                return
            case Cast(value, _):
                first = (value,)
            case Case(branches, otherwise):
                first = (branches[0][0],)
                later = [part for branch in branches for part in branch][1:] + (
                    [] if otherwise is None else [otherwise]
                )
            case Call("and" | "or" | "coalesce", (start, *rest)):
                first, later = (start,), rest
            case Call(name, arguments):
                if guarded and self.can_fail(name, arguments):
                    raise NotLowerable(f"{name} can fail and stands behind a condition")
                first = arguments
        for part in first:
            self.check_failing(part, guarded=guarded)
        for part in later:
            self.check_failing(part, guarded=True)

    def can_fail(self, name: str, arguments: Sequence[Expression]) -> bool:
        if name in ("/", "%"):
            return True
        return name in ("+", "-", "*", "neg", "abs") and is_integer(self.type(arguments[0]))

    def refused(self, node: exp.Expr, error: CastError) -> Exception:
        """What a constant that can't be computed means here."""
        if self.guards:
            return NotLowerable(str(error))
        return ValidationError(str(error), code="invalid-value", **self.place(node))

    def place(self, node: exp.Expr) -> dict[str, Any]:
        """Where an error points to."""
        place = place_of(node)
        return {"line": place.line, "column": place.column, "text": self.text or None}

    def check_columns(self, tree: exp.Expr) -> None:
        """All unknown columns are errors, in parts that Spark evaluates too; names inside subqueries aren't ours to know."""
        if tree.find(exp.Query, exp.Lambda) is not None:
            return
        for column in tree.find_all(exp.Column):
            if not isinstance(column.this, exp.Star):
                self.resolve(column)

    def resolve(self, column: exp.Column) -> ColumnRef | None:
        """The column meant; None for a field inside of one."""
        first = column.parts[0]
        if len(column.parts) == 1:
            found = self.schema.find(first.name)
            if found is None:
                raise ResolveError.unknown("column", first.name, known=self.schema.names, **self.place(first))
            return ColumnRef(found.name)
        if self.qualifiers is None or first.name.lower() in self.qualifiers:
            found = self.schema.find(column.parts[1].name)
            if found is not None:
                return ColumnRef(found.name) if len(column.parts) == 2 else None
        inside = self.schema.find(first.name)
        if inside is not None and pa.types.is_nested(inside.type):
            return None
        if self.qualifiers is not None and first.name.lower() not in self.qualifiers:
            raise ResolveError.unknown("table", first.name, known=self.qualifiers, **self.place(first))
        raise ResolveError.unknown(
            "column", column.parts[1].name, known=self.schema.names, **self.place(column.parts[1])
        )

    def lower(self, node: exp.Expr) -> Expression:
        handler = _HANDLERS.get(type(node))
        if handler is None:
            raise NotLowerable(f"{node.key.upper()} is evaluated by Spark")
        return handler(self, node)

    def boolean(self, node: exp.Expr) -> Expression:
        lowered = self.lower(node)
        type_ = self.type(lowered)
        if pa.types.is_null(type_):
            return _UNKNOWN
        if type_ != pa.bool_():
            raise NotLowerable("a condition must be BOOLEAN")
        return lowered

    def literal(self, node: exp.Literal) -> Expression:
        if node.is_string:
            return Literal(str(node.this), pa.string())
        return self.number(node, str(node.this))

    def number(self, node: exp.Expr, text: str) -> Literal:
        try:
            return number_literal(text)
        except CastError as error:
            raise self.refused(node, error) from error
        except ValueError as error:
            raise NotLowerable("a number only Spark reads") from error

    def column(self, node: exp.Column) -> Expression:
        if isinstance(node.this, exp.Star):
            raise NotLowerable("* is no value")
        found = self.resolve(node)
        if found is None:
            raise NotLowerable("fields of nested columns are read by Spark")
        return found

    def logic(self, node: exp.Connector) -> Expression:
        parts = _operands(node)
        lowered = [self.boolean(parts[0])]
        with self.guarded():
            lowered += [self.boolean(part) for part in parts[1:]]
        return _connected("and" if isinstance(node, exp.And) else "or", lowered)

    def negation(self, node: exp.Not) -> Expression:
        value = self.boolean(node.this)
        if isinstance(value, Literal):
            return _UNKNOWN if value.value is None else Literal(not value.value, pa.bool_())
        return Call("not", (value,))

    def comparison(self, node: exp.Binary) -> Expression:
        return self.compare(_COMPARISONS[type(node)], self.lower(node.left), self.lower(node.right), node)

    def distinct(self, node: exp.Binary) -> Expression:
        same = self.compare("<=>", self.lower(node.left), self.lower(node.right), node)
        return Literal(not same.value, pa.bool_()) if isinstance(same, Literal) else Call("not", (same,))

    def compare(self, operator: str, left: Expression, right: Expression, node: exp.Expr) -> Expression:
        target = common_type(self.type(left), self.type(right))
        if target is None or not (is_atomic(target) or pa.types.is_null(target)):
            raise NotLowerable("Spark compares these types")
        for value, other in ((left, right), (right, left)):
            if isinstance(value, Literal) and value.value is None:
                return self.is_missing(other) if operator == "<=>" else _UNKNOWN
        if target == pa.bool_() and operator not in _EQUALITIES:
            raise NotLowerable("Spark orders booleans")
        left, right = self.meet([left, right], target, node)
        if isinstance(left, Literal) and isinstance(right, Literal):
            return Literal(fold_comparison(operator, left.value, right.value), pa.bool_())
        if isinstance(left, Literal):
            left, right, operator = right, left, _MIRRORED[operator]
        return Call(operator, (left, right))

    def is_missing(self, value: Expression) -> Expression:
        if isinstance(value, Literal):
            return _TRUE if value.value is None else _FALSE
        return Call("is_null", (value,))

    def meet(self, values: Sequence[Expression], target: pa.DataType, node: exp.Expr) -> list[Expression]:
        """The values in one type for a comparison: the target, or the narrower type of the only column where every constant
        has an equal in it, so that the column is compared as it is stored."""
        own = {self.type(value) for value in values if not isinstance(value, Literal)}
        constants = [value for value in values if isinstance(value, Literal)]
        if len(own) == 1:
            (narrow,) = own
            if narrow != target and keeps_every_value(narrow, target):
                widened = [self.cast(constant, target, node) for constant in constants]
                if all(_has_equal(constant, narrow) for constant in widened):
                    return [
                        self.narrow(value, target, narrow, node) if isinstance(value, Literal) else value
                        for value in values
                    ]
        return [self.cast(value, target, node) for value in values]

    def narrow(self, value: Expression, target: pa.DataType, narrow: pa.DataType, node: exp.Expr) -> Expression:
        return self.cast(self.cast(value, target, node), narrow, node)

    def cast(self, value: Expression, target: pa.DataType, node: exp.Expr) -> Expression:
        source = self.type(value)
        if source == target:
            return value
        if isinstance(value, Literal):
            if pa.types.is_nested(source) or pa.types.is_nested(target):
                raise NotLowerable("Spark casts nested values")
            try:
                return Literal(cast_value(value.value, source, target), target)
            except CastError as error:
                raise self.refused(node, error) from error
            except NotConstant as error:
                raise NotLowerable("Spark casts this constant") from error
        if not is_total(source, target):
            raise NotLowerable("Spark casts this column")
        return Cast(value, target)

    def between(self, node: exp.Between) -> Expression:
        if node.args.get("symmetric"):
            raise NotLowerable("BETWEEN SYMMETRIC")
        value = self.lower(node.this)
        low = self.compare(">=", value, self.lower(node.args["low"]), node)
        with self.guarded():
            high = self.compare("<=", value, self.lower(node.args["high"]), node)
        return _connected("and", [low, high])

    def membership(self, node: exp.In) -> Expression:
        if any(node.args.get(other) for other in ("query", "unnest", "field")) or not node.expressions:
            raise NotLowerable("IN over a query")
        values = [self.lower(part) for part in (node.this, *node.expressions)]
        target = common_type_of(self.type(value) for value in values)
        if target is None or not (is_atomic(target) or pa.types.is_null(target)):
            raise NotLowerable("Spark compares these types")
        if isinstance(values[0], Literal) and values[0].value is None:
            return _UNKNOWN
        known = [value for value in values if not (isinstance(value, Literal) and value.value is None)]
        unknown = [_UNKNOWN] if len(known) < len(values) else []
        value, *items = self.meet(known, target, node)
        if isinstance(value, Literal) or is_float(target) or not all(isinstance(item, Literal) for item in items):
            return _connected("or", [*(self.compare("=", value, item, node) for item in items), *unknown])
        distinct = tuple(dict.fromkeys(items))
        found = (
            [Call("in", (value, *distinct))] if len(distinct) > 1 else [Call("=", (value, item)) for item in distinct]
        )
        return _connected("or", [*found, *unknown])

    def matching(self, node: exp.Binary) -> Expression:
        value, pattern = self.lower(node.left), self.lower(node.right)
        if not (is_text(self.type(value)) and isinstance(pattern, Literal) and isinstance(pattern.value, str)):
            raise NotLowerable("a pattern that is no constant text")
        if isinstance(value, Literal):
            raise NotLowerable("a constant matched by a pattern")
        if isinstance(node, exp.Like):
            if "\\" in pattern.value:
                raise NotLowerable("a pattern with an escape")
            return Call("like", (value, pattern))
        if not _is_plain_pattern(pattern.value):
            raise NotLowerable("a regular expression of Java's own")
        return Call("rlike", (value, pattern))

    def being(self, node: exp.Is) -> Expression:
        value = self.lower(node.this)
        if isinstance(node.expression, exp.Null):
            return self.is_missing(value)
        if isinstance(node.expression, exp.Boolean) and self.type(value) in (pa.bool_(), pa.null()):
            return self.compare("<=>", value, self.lower(node.expression), node)
        raise NotLowerable("IS with something else")

    def arithmetic(self, node: exp.Binary) -> Expression:
        operator = _ARITHMETIC[type(node)]
        left, right = self.lower(node.left), self.lower(node.right)
        left, right = self.operands(operator, (left, node.left), (right, node.right), node)
        if arithmetic_type(operator, self.type(left), self.type(right)) is None:
            raise NotLowerable("the result has more digits than a DECIMAL holds")
        if isinstance(left, Literal) and isinstance(right, Literal):
            try:
                return fold_arithmetic(operator, left, right)
            except CastError as error:
                raise self.refused(node, error) from error
        for value in (left, right):
            if isinstance(value, Literal) and value.value is None:
                return Literal(None, self.type(Call(operator, (left, right))))
        if (operator == "/" and self.type(left) != pa.float64()) or (
            operator == "%" and not is_integer(self.type(left))
        ):
            raise NotLowerable("Spark divides these")
        return Call(operator, (left, right))

    def operands(
        self,
        operator: str,
        left: tuple[Expression, exp.Expr],
        right: tuple[Expression, exp.Expr],
        node: exp.Expr,
    ) -> tuple[Expression, Expression]:
        """Both sides as the operator takes them: decimals in their own types, all else in one."""
        types = self.type(left[0]), self.type(right[0])
        met = common_type(*types)
        text = any(is_text(type_) for type_ in types)
        if met is None and all(is_integer(type_) or pa.types.is_decimal(type_) for type_ in types):
            met = pa.decimal128(38, 0)
        if met is None or not is_numeric(met) or (text and not any(is_numeric(type_) for type_ in types)):
            raise NotLowerable("Spark computes with these types")
        if operator == "/" and not pa.types.is_decimal(met):
            met = pa.float64()
        if pa.types.is_decimal(met):
            return self.as_decimal(*left), self.as_decimal(*right)
        return self.cast(left[0], met, node), self.cast(right[0], met, node)

    def as_decimal(self, value: Expression, node: exp.Expr) -> Expression:
        type_ = self.type(value)
        if pa.types.is_decimal(type_):
            return value
        if pa.types.is_null(type_):
            raise NotLowerable("NULL with decimals")
        if isinstance(value, Literal) and value.value is not None and _is_written_number(node):
            exact = EXACT.create_decimal(value.value)
            return Literal(exact, decimal_of_value(exact))
        return self.cast(value, decimal_of(type_), node)

    def minus(self, node: exp.Neg) -> Expression:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return self.number(node, f"-{node.this.this}")
        value = self.lower(node.this)
        if not is_numeric(self.type(value)):
            raise NotLowerable("Spark negates this")
        if isinstance(value, Literal):
            try:
                return fold_negation(value)
            except CastError as error:
                raise self.refused(node, error) from error
        return Call("neg", (value,))

    def explicit_cast(self, node: exp.Cast) -> Expression:
        if node.args.get("safe") or node.args.get("format"):
            raise NotLowerable("TRY_CAST")
        try:
            target = parse_type(node.to.sql(dialect="spark"))
        except SqlError as error:
            raise NotLowerable("a type only Spark knows") from error
        if node.to.expressions and is_text(target):
            raise NotLowerable("text of a limited length")
        value = self.lower(node.this)
        if isinstance(value, Literal) and value.value is None:
            return Literal(None, target)
        return self.cast(value, target, node)

    def case(self, node: exp.Case) -> Expression:
        subject = None if node.this is None else self.lower(node.this)
        branches: list[tuple[Expression, Expression]] = []
        for number, branch in enumerate(node.args["ifs"]):
            if number == 0:
                condition = self.case_condition(subject, branch)
            else:
                with self.guarded():
                    condition = self.case_condition(subject, branch)
            with self.guarded():
                branches.append((condition, self.lower(branch.args["true"])))
        with self.guarded():
            default = node.args.get("default")
            otherwise = None if default is None else self.lower(default)
            return self.chosen(branches, otherwise, node)

    def case_condition(self, subject: Expression | None, branch: exp.If) -> Expression:
        if subject is None:
            return self.boolean(branch.this)
        return self.compare("=", subject, self.lower(branch.this), branch)

    def chosen(
        self, branches: Sequence[tuple[Expression, Expression]], otherwise: Expression | None, node: exp.Expr
    ) -> Expression:
        """The CASE with its values in one type, decided where the conditions are constant."""
        values = [value for _, value in branches] + ([] if otherwise is None else [otherwise])
        target = common_type_of(self.type(value) for value in values)
        if target is None:
            raise NotLowerable("Spark brings these types together")
        last = Literal(None, target) if otherwise is None else self.cast(otherwise, target, node)
        open_branches: list[tuple[Expression, Expression]] = []
        for condition, value in branches:
            chosen = self.cast(value, target, node)
            if isinstance(condition, Literal):
                if not condition.value:
                    continue
                last = chosen
                break
            open_branches.append((condition, chosen))
        return Case(tuple(open_branches), last) if open_branches else last

    def if_function(self, node: exp.If) -> Expression:
        return self.case(exp.Case(ifs=[node], default=node.args.get("false")))

    def null_if(self, left: exp.Expr, right: exp.Expr, node: exp.Expr) -> Expression:
        value = self.lower(left)
        same = self.compare("=", value, self.lower(right), node)
        with self.guarded():
            return self.chosen([(same, Literal(None, pa.null()))], value, node)

    def coalesce(self, arguments: Sequence[exp.Expr], node: exp.Expr) -> Expression:
        values = [self.lower(arguments[0])]
        with self.guarded():
            values += [self.lower(argument) for argument in arguments[1:]]
            target = common_type_of(self.type(value) for value in values)
            if target is None:
                raise NotLowerable("Spark brings these types together")
            cast = [self.cast(value, target, node) for value in values]
        open_values: list[Expression] = []
        for value in cast:
            if isinstance(value, Literal) and value.value is None:
                continue
            open_values.append(value)
            if isinstance(value, Literal):
                break
        if not open_values:
            return Literal(None, target)
        return open_values[0] if len(open_values) == 1 else Call("coalesce", tuple(open_values))

    def function(self, node: exp.Expr) -> Expression:
        name, arguments = _function_call(node)
        match name, len(arguments):
            case "lower" | "upper" | "length" | "trim", 1:
                return self.text_function(name, [self.text_argument(self.lower(arguments[0]), node)])
            case "concat", count if count > 0:
                return self.text_function(
                    name, [self.text_argument(self.lower(argument), node) for argument in arguments]
                )
            case "substring", 2 | 3:
                return self.substring(arguments, node)
            case "abs", 1:
                return self.absolute(arguments[0], node)
            case "coalesce", count if count > 0:
                return self.coalesce(arguments, node)
            case "nullif", 2:
                return self.null_if(arguments[0], arguments[1], node)
            case "if", 3:
                return self.case(exp.Case(ifs=[exp.If(this=arguments[0], true=arguments[1])], default=arguments[2]))
        raise NotLowerable(f"function {name or node.key} is evaluated by Spark")

    def text_argument(self, value: Expression, node: exp.Expr) -> Expression:
        type_ = self.type(value)
        if not (is_text(type_) or pa.types.is_null(type_)):
            if not isinstance(value, Literal):
                raise NotLowerable("Spark turns this into text")
            if pa.types.is_binary(type_):
                raise NotLowerable("Spark's functions of BINARY")
        return self.cast(value, pa.string(), node)

    def text_function(self, name: str, arguments: list[Expression]) -> Expression:
        constants = tuple(argument for argument in arguments if isinstance(argument, Literal))
        if len(constants) == len(arguments):
            try:
                return fold_function(name, constants)
            except NotConstant as error:
                raise NotLowerable(f"Spark computes {name}") from error
        if any(constant.value is None for constant in constants):
            return Literal(None, pa.int32() if name == "length" else pa.string())
        return Call(name, tuple(arguments))

    def substring(self, arguments: Sequence[exp.Expr], node: exp.Expr) -> Expression:
        value = self.text_argument(self.lower(arguments[0]), node)
        numbers = [self.lower(argument) for argument in arguments[1:]]
        if not all(
            isinstance(number, Literal) and number.type == pa.int32() and number.value >= 0 for number in numbers
        ):
            raise NotLowerable("Spark counts from the end of the text")
        return self.text_function("substring", [value, *numbers])

    def absolute(self, argument: exp.Expr, node: exp.Expr) -> Expression:
        value = self.lower(argument)
        if not is_numeric(self.type(value)):
            raise NotLowerable("Spark computes abs")
        if isinstance(value, Literal):
            try:
                return fold_function("abs", (value,))
            except CastError as error:
                raise self.refused(node, error) from error
        return Call("abs", (value,))


def _operands(node: exp.Connector) -> list[exp.Expr]:
    """The parts of a chain of one connector, left to right; chains lean left and may be very long."""
    parts: list[exp.Expr] = []
    rest: list[exp.Expr] = [node]
    while rest:
        current = rest.pop()
        while isinstance(current, exp.Paren) and type(current.this) is type(node):
            current = current.this
        if type(current) is type(node):
            rest += [current.expression, current.this]
        else:
            parts.append(current)
    return parts


def _connected(operator: str, parts: Sequence[Expression]) -> Expression:
    """A balanced tree of binary connectors, constants decided."""
    decisive = operator == "or"
    kept: list[Expression] = []
    for part in parts:
        if isinstance(part, Literal) and part.value is not None:
            if part.value == decisive:
                return Literal(decisive, pa.bool_())
            continue
        if part == _UNKNOWN and _UNKNOWN in kept:
            continue
        kept.append(part)
    if not kept:
        return Literal(not decisive, pa.bool_())
    while len(kept) > 1:
        paired: list[Expression] = [Call(operator, pair) for pair in zip(kept[::2], kept[1::2], strict=False)]
        kept = paired + kept[len(paired) * 2 :]
    return kept[0]


def _has_equal(constant: Expression, narrow: pa.DataType) -> bool:
    """Whether a constant of the wider type is also a value of the narrower one."""
    if not isinstance(constant, Literal):
        return False
    try:
        there = cast_value(constant.value, constant.type, narrow)
        back = cast_value(there, narrow, constant.type)
    except (CastError, NotConstant):
        return False
    return bool(back == constant.value)


def _is_written_number(node: exp.Expr) -> bool:
    """A number as written, whose own digits decide its DECIMAL type; a computed one has those of its integer type."""
    while isinstance(node, exp.Paren | exp.Neg | exp.Cast):
        node = node.this
    return isinstance(node, exp.Literal) and not node.is_string


def _is_plain_pattern(pattern: str) -> bool:
    if not pattern.isascii() or _SAFE_PATTERN.fullmatch(pattern) is None:
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return all(first != "[" or second != "^" for first, second in pairwise(pattern))


_NAMES = {
    "char_length": "length",
    "character_length": "length",
    "len": "length",
    "substr": "substring",
    "nvl": "coalesce",
    "ifnull": "coalesce",
    "ucase": "upper",
    "lcase": "lower",
}


def _function_call(node: exp.Expr) -> tuple[str, list[exp.Expr]]:
    """Name and arguments of a call, whether the parser knows the function or not; no name for forms with more to them."""
    if isinstance(node, exp.Anonymous):
        name = str(node.this).lower()
        return _NAMES.get(name, name), list(node.expressions)
    given = {key: value for key, value in node.args.items() if value not in (None, [], False)}
    match node:
        case exp.Lower() | exp.Upper() | exp.Length() | exp.Trim() | exp.Abs() if set(given) == {"this"}:
            return node.key, [node.this]
        case exp.Concat() if set(given) <= {"expressions", "safe"} and given.get("safe"):
            return "concat", list(node.expressions)
        case exp.DPipe():
            return "concat", [node.left, node.right]
        case exp.Substring() if "start" in given and set(given) <= {"this", "start", "length"}:
            return "substring", [given[key] for key in ("this", "start", "length") if key in given]
        case exp.Coalesce() if set(given) <= {"this", "expressions", "is_nvl"}:
            return "coalesce", [node.this, *node.expressions]
        case exp.Nullif():
            return "nullif", [node.this, node.expression]
    return "", []


_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}
_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_FUNCTIONS = (
    exp.Anonymous, exp.Lower, exp.Upper, exp.Length, exp.Trim, exp.Abs, exp.Concat, exp.DPipe, exp.Substring, exp.Coalesce,
    exp.Nullif,
)  # fmt: skip
_Handler = Callable[[_Lowering, "exp.Expr"], Expression]
_HANDLERS: dict[type, Callable[..., Expression]] = {
    exp.Literal: _Lowering.literal,
    exp.RawString: lambda _, node: Literal(str(node.this), pa.string()),
    exp.HexString: lambda _, node: Literal(
        bytes.fromhex(str(node.this).zfill(-(-len(str(node.this)) // 2) * 2)), pa.binary()
    ),
    exp.Boolean: lambda _, node: Literal(bool(node.this), pa.bool_()),
    exp.Null: lambda *_: Literal(None, pa.null()),
    exp.Paren: lambda self, node: self.lower(node.this),
    exp.Column: _Lowering.column,
    exp.And: _Lowering.logic,
    exp.Or: _Lowering.logic,
    exp.Not: _Lowering.negation,
    exp.NullSafeNEQ: _Lowering.distinct,
    exp.Between: _Lowering.between,
    exp.In: _Lowering.membership,
    exp.Like: _Lowering.matching,
    exp.RegexpLike: _Lowering.matching,
    exp.Is: _Lowering.being,
    exp.Neg: _Lowering.minus,
    exp.Cast: _Lowering.explicit_cast,
    exp.TryCast: _Lowering.explicit_cast,
    exp.Case: _Lowering.case,
    exp.If: _Lowering.if_function,
    **dict.fromkeys(_COMPARISONS, _Lowering.comparison),
    **dict.fromkeys(_ARITHMETIC, _Lowering.arithmetic),
    **dict.fromkeys(_FUNCTIONS, _Lowering.function),
}
