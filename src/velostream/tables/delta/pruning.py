"""Conditions in the form in which Parquet's statistics and Arrow's scanner leave rows out.

Only ever a part of the whole truth: what is left out surely doesn't qualify, what comes back is checked by us. So
nothing of a condition has to be expressible here, and floats, whose NaN has no place in statistics, never are.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from velostream.model.expression import Call, ColumnRef, Expression, Literal, conjuncts
from velostream.model.schema import Schema
from velostream.tables.memory.keys import as_array

_MOST_VALUES = 10_000
"""A longer list of values costs more to compare with than it leaves out."""
_COMPARISONS: Mapping[str, Callable[[Any, Any], ds.Expression]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TURNED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def pruning_of(condition: Expression, schema: Schema) -> ds.Expression | None:
    """What a condition excludes for sure; None when nothing can be said."""
    return _all_of([_of_conjunct(part, schema) for part in conjuncts(condition)])


def having(values: pa.Table, schema: Schema) -> ds.Expression | None:
    """Rows that may have one of the values in the columns of the same names; NULL is a value."""
    return _all_of([_among(name, as_array(values.column(name)), schema) for name in values.column_names])


def equalities(condition: Expression, schema: Schema) -> frozenset[str]:
    """Columns that a condition ties to constants."""
    tied: set[str] = set()
    for part in conjuncts(condition):
        match part:
            case Call("=", (ColumnRef(name), Literal())) | Call("=", (Literal(), ColumnRef(name))):
                tied.add(schema.column(name).name)
            case Call("in", (ColumnRef(name), *_)):
                tied.add(schema.column(name).name)
            case _:
                pass
    return frozenset(tied)


def _of_conjunct(part: Expression, schema: Schema) -> ds.Expression | None:
    match part:
        case Call(name, (ColumnRef(column), Literal() as literal)) if name in _COMPARISONS:
            return _compared(name, column, literal, schema)
        case Call(name, (Literal() as literal, ColumnRef(column))) if name in _COMPARISONS:
            return _compared(_TURNED[name], column, literal, schema)
        case Call("in", (ColumnRef(column), *items)):
            literals = [item for item in items if isinstance(item, Literal)]
            if len(literals) < len(items) or any(item.type != schema.column(column).type for item in literals):
                return None
            given = [item.value for item in literals if item.value is not None]
            return _among(column, pa.array(given, schema.column(column).type), schema)
        case Call("is_null", (ColumnRef(column),)):
            return ds.field(schema.column(column).name).is_null()
        case _:
            return None


def _compared(name: str, column: str, literal: Literal, schema: Schema) -> ds.Expression | None:
    target = schema.column(column)
    if literal.value is None or literal.type != target.type or not _is_prunable(target.type):
        return None
    return _COMPARISONS[name](ds.field(target.name), ds.scalar(pa.scalar(literal.value, target.type)))


def _among(column: str, values: pa.Array, schema: Schema) -> ds.Expression | None:
    target = schema.column(column)
    if not _is_prunable(target.type) or len(values) > _MOST_VALUES:
        return None
    field = ds.field(target.name)
    found = field.isin(values.drop_null())
    return found | field.is_null() if values.null_count else found


def _is_prunable(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_date(type_)
        or pa.types.is_timestamp(type_)
    )


def _all_of(parts: Sequence[ds.Expression | None]) -> ds.Expression | None:
    known = [part for part in parts if part is not None]
    return functools.reduce(operator.and_, known) if known else None
