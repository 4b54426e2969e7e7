"""Lowering of what is true, false or unknown: comparisons, IN, LIKE, IS, AND, OR, NOT."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from velostream.model.expression import Call, Expression, Literal
from velostream.sql.coercion import common_type, common_type_of, is_atomic, is_float, is_text, keeps_every_value
from velostream.sql.constants import CastError, NotConstant, cast_value
from velostream.sql.fold import fold_comparison
from velostream.sql.lower_core import LoweringCore, NotLowerable

COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}

_TRUE = Literal(value=True, type=pa.bool_())
_FALSE = Literal(value=False, type=pa.bool_())
_UNKNOWN = Literal(None, pa.bool_())

_MIRRORED = {"=": "=", "<>": "<>", "<=>": "<=>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EQUALITIES = ("=", "<>", "<=>")
_SAFE_PATTERN = re.compile(r"\^?(?:[\w \-@#%&,:;~'\"/<>=!]|\[[A-Za-z0-9_ \-]+\]|[()|]|(?<=[\w\])])[*+?](?![*+?]))*")
"""Regular expressions that mean the same in Java and elsewhere: no `.`, `$`, back-slashes, lazy quantifiers."""


class ConditionLowering(LoweringCore):
    def boolean(self, node: exp.Expr) -> Expression:
        lowered = self.lower(node)
        type_ = self.type(lowered)
        if pa.types.is_null(type_):
            return _UNKNOWN
        if type_ != pa.bool_():
            raise NotLowerable("a condition must be BOOLEAN")
        return lowered

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
        return self.compare(COMPARISONS[type(node)], self.lower(node.left), self.lower(node.right), node)

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
        """The values in one type for a comparison: the target, or the narrower type of the one column there is.

        The latter where every constant has an equal in it, so that the column is compared as it is stored.
        """
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

    def between(self, node: exp.Between) -> Expression:
        value = self.lower(node.this)
        low = self.compare(">=", value, self.lower(node.args["low"]), node)
        with self.guarded():
            high = self.compare("<=", value, self.lower(node.args["high"]), node)
        return _connected("and", [low, high])

    def membership(self, node: exp.In) -> Expression:
        if not node.expressions:
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
            like = Call("like", (value, pattern))
            return Call("not", (like,)) if node.args.get("negate") else like
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


def _is_plain_pattern(pattern: str) -> bool:
    if not pattern.isascii() or _SAFE_PATTERN.fullmatch(pattern) is None:
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
