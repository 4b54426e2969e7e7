"""Questions about groups of a table's rows as plain data, so that a store can answer them without giving the rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from velostream.model.expression import Expression
from velostream.model.schema import Schema

_MOST_DIGITS = 38


class MeasureKind(StrEnum):
    """What is to be known of a group. An average is a sum and a count."""

    COUNT = "count"
    """How many rows, or how many values that aren't NULL."""
    DISTINCT = "distinct"
    """How many different values that aren't NULL."""
    SUM = "sum"
    """The exact sum of integers or decimals; NULL of no values."""
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Measure:
    kind: MeasureKind
    column: str | None = None
    """None: the rows themselves are counted."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Rows for which a condition is true, grouped by the values of columns; NULL is a value like any other here.

    Without columns there is one group, which is there without rows too.
    """

    measures: tuple[Measure, ...]
    by: tuple[str, ...] = ()
    condition: Expression | None = None

    def answer_schema(self, schema: Schema) -> pa.Schema:
        """Columns of the answer, a row per group: `g0…gn` the values grouped by, `m0…mn` the measures."""
        groups = [pa.field(f"g{place}", schema.column(name).type) for place, name in enumerate(self.by)]
        measures = [
            pa.field(f"m{place}", _measured_type(measure, schema)) for place, measure in enumerate(self.measures)
        ]
        return pa.schema([*groups, *measures])


def _measured_type(measure: Measure, schema: Schema) -> pa.DataType:
    if measure.column is None or measure.kind in (MeasureKind.COUNT, MeasureKind.DISTINCT):
        return pa.int64()
    type_ = schema.column(measure.column).type
    if measure.kind is MeasureKind.SUM:
        return pa.decimal128(_MOST_DIGITS, type_.scale if pa.types.is_decimal(type_) else 0)
    return type_
