"""Conditions as Redis can help with them: by key, by a range of a sorted set; everything else is looked at by us."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import pyarrow as pa

from velostream.model.expression import Call, ColumnRef, Expression, Literal, conjuncts
from velostream.model.schema import Schema
from velostream.tables.memory.evaluate import compile_expression
from velostream.tables.redis.layout import Layout, scores
from velostream.tables.redis.reader import Range
from velostream.tables.remainder import Remainder

_MOST_KEYS = 100_000
"""A condition that allows more combinations of key values than that is answered by a scan."""
_FLIPPED = {"=": "=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_ROUNDING = 1e-12
"""How far a score may be from its value, relatively; more than any conversion to a double is off."""


@dataclass(frozen=True)
class RedisCondition:
    """A condition compiled for one table: which rows to fetch, and what to check of them. A `CompiledCondition`."""

    keys: pa.Table | None
    range: Range | None
    rest: Remainder | None

    @property
    def access(self) -> str:
        if self.keys is not None:
            return "key"
        return "scan" if self.range is None else "index"

    @property
    def remainder(self) -> Expression | None:
        return None if self.rest is None else self.rest.condition


def compile_condition(condition: Expression, layout: Layout, indexes: Sequence[str]) -> RedisCondition:
    """Raises `NotFoundError` for an unknown column, `CannotCompile` for what only Spark evaluates."""
    schema = layout.schema
    compile_expression(condition, schema)
    parts = conjuncts(condition)
    equalities = _equalities(parts, schema)
    if schema.key and all(name in equalities for name in schema.key):
        columns = [equalities[name] for name in schema.key]
        if math.prod(len(values) for values, _ in columns) <= _MOST_KEYS:
            answered = [part for _, part in columns]
            rest = [part for part in parts if not any(part is done for done in answered)]
            return RedisCondition(_keys(schema, [values for values, _ in columns]), None, Remainder.of(rest, schema))
    # Scores are rounded, so what a range gives is checked again.
    return RedisCondition(None, _range(parts, layout, indexes), Remainder.of(parts, schema))


def _equalities(parts: Sequence[Expression], schema: Schema) -> Mapping[str, tuple[list[object], Expression]]:
    """For each column that a conjunct ties to constants of its type: the constants, and that conjunct."""
    found: dict[str, tuple[list[object], Expression]] = {}
    for part in parts:
        match part:
            case Call("=", (ColumnRef(name), Literal() as other)) | Call("=", (Literal() as other, ColumnRef(name))):
                literals: Sequence[Expression] = (other,)
            case Call("in", (ColumnRef(name), *items)):
                literals = items
            case _:
                continue
        column = schema.column(name)
        constants = [literal for literal in literals if isinstance(literal, Literal)]
        if len(constants) == len(literals) and all(literal.type == column.type for literal in constants):
            values = list(dict.fromkeys(literal.value for literal in constants if literal.value is not None))
            found.setdefault(column.name, (values, part))
    return found


def _keys(schema: Schema, values: Sequence[Sequence[object]]) -> pa.Table:
    combinations = list(product(*values))
    arrays = [
        pa.array([combination[place] for combination in combinations], schema.column(name).type)
        for place, name in enumerate(schema.key)
    ]
    return pa.Table.from_arrays(arrays, names=list(schema.key))


def _range(parts: Sequence[Expression], layout: Layout, indexes: Sequence[str]) -> Range | None:
    """The range of the first indexed column that the conjuncts bound."""
    for name in indexes:
        lowest, highest = -math.inf, math.inf
        for part in parts:
            match part:
                case Call(operator, (ColumnRef(column), Literal() as literal)) if operator in _FLIPPED:
                    pass
                case Call(operator, (Literal() as literal, ColumnRef(column))) if operator in _FLIPPED:
                    operator = _FLIPPED[operator]
                case _:
                    continue
            type_ = layout.schema.column(name).type
            if layout.schema.column(column).name != name or literal.value is None or literal.type != type_:
                continue
            score = float(scores(pa.array([literal.value], type_))[0].as_py())
            if operator in ("=", ">", ">="):
                lowest = max(lowest, _widened(score, -1))
            if operator in ("=", "<", "<="):
                highest = min(highest, _widened(score, 1))
        if (lowest, highest) != (-math.inf, math.inf):
            return Range(name, lowest, highest)
    return None


def _widened(score: float, sign: int) -> float:
    return score if math.isinf(score) else score + sign * abs(score) * _ROUNDING
