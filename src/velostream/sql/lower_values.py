"""Lowering of values: literals, columns, arithmetic, casts, CASE and the functions whose answers are surely Spark's."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import InvalidOperation

import pyarrow as pa
from sqlglot import exp

from velostream.errors import SqlError
from velostream.model.expression import Call, Case, Expression, Literal
from velostream.model.types import parse_type
from velostream.sql.coercion import (
    DATE_PARTS,
    arithmetic_type,
    common_type,
    common_type_of,
    decimal_of,
    decimal_of_value,
    is_integer,
    is_numeric,
    is_text,
)
from velostream.sql.constants import EXACT, CastError, NotConstant, number_literal
from velostream.sql.fold import fold_arithmetic, fold_function, fold_negation
from velostream.sql.lower_conditions import ConditionLowering
from velostream.sql.lower_core import NotLowerable

ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}

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


class ValueLowering(ConditionLowering):
    def literal(self, node: exp.Literal) -> Expression:
        if node.is_string:
            return Literal(str(node.this), pa.string())
        return self.number(node, str(node.this))

    def raw_text(self, node: exp.RawString) -> Expression:
        return Literal(str(node.this), pa.string())

    def binary(self, node: exp.HexString) -> Expression:
        digits = str(node.this)
        return Literal(bytes.fromhex(digits if len(digits) % 2 == 0 else f"0{digits}"), pa.binary())

    def truth(self, node: exp.Boolean) -> Expression:
        return Literal(bool(node.this), pa.bool_())

    def null(self, _node: exp.Null) -> Expression:
        return Literal(None, pa.null())

    def number(self, node: exp.Expr, text: str) -> Literal:
        try:
            return number_literal(text)
        except CastError as error:
            raise self.refused(node, error) from error
        except (ValueError, InvalidOperation) as error:
            raise NotLowerable("a number only Spark reads") from error

    def column(self, node: exp.Column) -> Expression:
        if isinstance(node.this, exp.Star):
            raise NotLowerable("* is no value")
        found = self.resolve(node)
        if found is None:
            raise NotLowerable("fields of nested columns are read by Spark")
        return found

    def arithmetic(self, node: exp.Binary) -> Expression:
        operator = ARITHMETIC[type(node)]
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
        branches = [(branch.this, branch.args["true"]) for branch in node.args["ifs"]]
        return self.choice(node.this, branches, node.args.get("default"), node)

    def if_function(self, node: exp.If) -> Expression:
        return self.choice(None, [(node.this, node.args["true"])], node.args.get("false"), node)

    def choice(
        self,
        subject: exp.Expr | None,
        branches: Sequence[tuple[exp.Expr, exp.Expr]],
        default: exp.Expr | None,
        node: exp.Expr,
    ) -> Expression:
        """A CASE; with a subject each branch is taken when it equals the subject."""
        compared = None if subject is None else self.lower(subject)

        def condition(branch: exp.Expr) -> Expression:
            if compared is None:
                return self.boolean(branch)
            return self.compare("=", compared, self.lower(branch), branch)

        conditions = [condition(branches[0][0])]
        with self.guarded():
            conditions += [condition(branch) for branch, _ in branches[1:]]
            values = [self.lower(value) for _, value in branches]
            otherwise = None if default is None else self.lower(default)
            return self.chosen(list(zip(conditions, values, strict=True)), otherwise, node)

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
                return self.choice(None, [(arguments[0], arguments[1])], arguments[2], node)
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

    def extract(self, node: exp.Expr) -> Expression:
        """A part of a date; those of a timestamp depend on the session's time zone, which only Spark knows."""
        part = str(node.this.name).lower()
        value = self.lower(node.expression)
        if part not in DATE_PARTS or isinstance(value, Literal) or not pa.types.is_date(self.type(value)):
            raise NotLowerable("Spark computes EXTRACT")
        return Call(part, (value,))

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


def _is_written_number(node: exp.Expr) -> bool:
    """A number as written, whose own digits decide its DECIMAL type; a computed one has those of its integer type."""
    while isinstance(node, exp.Paren | exp.Neg | exp.Cast):
        node = node.this
    return isinstance(node, exp.Literal) and not node.is_string


def _function_call(node: exp.Expr) -> tuple[str, list[exp.Expr]]:
    """Name and arguments of a call, whether the parser has a kind of node for the function or not."""
    match node:
        case exp.Anonymous():
            name = str(node.this).lower()
            return _NAMES.get(name, name), list(node.expressions)
        case exp.DPipe():
            return "concat", [node.left, node.right]
        case exp.Substring():
            arguments = [node.this, node.args.get("start"), node.args.get("length")]
            return "substring", [argument for argument in arguments if argument is not None]
    return node.key, [node.this, *node.expressions]
