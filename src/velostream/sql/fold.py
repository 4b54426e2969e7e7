"""Operators and functions over constants, computed as Spark does in ANSI mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from velostream.model.expression import Literal
from velostream.model.types import render_type
from velostream.sql.coercion import arithmetic_type, integer_range, is_float, is_integer
from velostream.sql.constants import EXACT, CastError, NotConstant, cast_value, fit_decimal


class ArithmeticFaultError(CastError):
    """Overflow or division by zero; in ANSI mode an error."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)


def fold_comparison(operator: str, left: Any, right: Any) -> bool:
    """Two values of one type, neither NULL."""
    order = _order(left, right)
    return {
        "=": order == 0,
        "<=>": order == 0,
        "<>": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }[operator]


def _order(left: Any, right: Any) -> int:
    if isinstance(left, float) and (math.isnan(left) or math.isnan(right)):
        return int(math.isnan(left)) - int(math.isnan(right))
    return int(left > right) - int(left < right)


def fold_arithmetic(operator: str, left: Literal, right: Literal) -> Literal:
    """`+ - * / %` of two constants brought to one type (decimals keep their own)."""
    type_ = arithmetic_type(operator, left.type, right.type)
    if type_ is None:
        raise NotConstant
    if left.value is None or right.value is None:
        return Literal(None, type_)
    if operator in "/%" and right.value == 0:
        raise ArithmeticFaultError("division by zero")
    if pa.types.is_decimal(type_):
        return Literal(_decimal(operator, left.value, right.value, type_), type_)
    if is_integer(type_):
        value = _integer(operator, left.value, right.value)
        low, high = integer_range(type_)
        if not low <= value <= high:
            raise ArithmeticFaultError(
                f"{left.value} {operator} {right.value} is out of the range of {render_type(type_)}"
            )
        return Literal(value, type_)
    return Literal(cast_value(_float(operator, left.value, right.value), pa.float64(), type_), type_)


def _decimal(operator: str, left: Decimal, right: Decimal, type_: pa.DataType) -> Decimal:
    operation: Callable[[Decimal, Decimal], Decimal] = {
        "+": EXACT.add,
        "-": EXACT.subtract,
        "*": EXACT.multiply,
        "/": EXACT.divide,
        "%": EXACT.remainder,
    }[operator]
    return fit_decimal(operation(left, right), type_)


def _integer(operator: str, left: int, right: int) -> int:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            remainder = abs(left) % abs(right)
            return -remainder if left < 0 else remainder


def _float(operator: str, left: float, right: float) -> float:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case _:
            return math.fmod(left, right)


def fold_negation(value: Literal) -> Literal:
    if value.value is None:
        return value
    if is_integer(value.type):
        low, high = integer_range(value.type)
        if not low <= -value.value <= high:
            raise ArithmeticFaultError(f"-({value.value}) is out of the range of {render_type(value.type)}")
    negated = -value.value if is_float(value.type) or is_integer(value.type) else EXACT.minus(value.value)
    return Literal(negated, value.type)


def fold_function(name: str, arguments: tuple[Literal, ...]) -> Literal:
    """A function of constants; text outside ASCII changes case by tables that are Spark's own."""
    if any(argument.value is None for argument in arguments):
        return Literal(None, pa.int32() if name == "length" else arguments[0].type)
    first = arguments[0].value
    match name:
        case "lower" | "upper":
            if not first.isascii():
                raise NotConstant
            return Literal(first.lower() if name == "lower" else first.upper(), pa.string())
        case "trim":
            return Literal(first.strip(" "), pa.string())
        case "length":
            return Literal(len(first), pa.int32())
        case "concat":
            return Literal("".join(argument.value for argument in arguments), pa.string())
        case "substring":
            start = max(0, arguments[1].value - 1)  # Spark reads position 0 as 1
            end = start + arguments[2].value if len(arguments) > 2 else len(first)
            return Literal(first[start:end], pa.string())
        case "abs":
            return fold_negation(arguments[0]) if first < 0 else arguments[0]
    raise NotConstant
