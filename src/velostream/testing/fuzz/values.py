"""Types of random columns, values that bring mistakes to light, and how both are written in SQL."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from random import Random
from typing import Any

import pyarrow as pa

NULLS = 0.15
"""How many of the values of a column are NULL."""


class Family(StrEnum):
    """What may be done with a value. Values of one family compare with each other."""

    WHOLE = "whole"
    DECIMAL = "decimal"
    TEXT = "text"
    TRUTH = "truth"
    DAY = "day"
    INSTANT = "instant"
    FLOAT = "float"
    LIST = "list"
    STRUCT = "struct"
    MAP = "map"
    APPROXIMATE = "approximate"
    """A float whose last digits depend on the order of rows, or a list of any type: shown, and no more than that."""


ORDERED = (Family.WHOLE, Family.DECIMAL, Family.TEXT, Family.DAY, Family.INSTANT, Family.FLOAT, Family.TRUTH)
"""Families whose values have an order, which is the same everywhere."""


@dataclass(frozen=True)
class ColumnType:
    """A type of a declared column."""

    family: Family
    sql: str
    arrow: pa.DataType


WHOLE = ColumnType(Family.WHOLE, "INT", pa.int32())
LONG = ColumnType(Family.WHOLE, "BIGINT", pa.int64())
MONEY = ColumnType(Family.DECIMAL, "DECIMAL(10,2)", pa.decimal128(10, 2))
FRACTION = ColumnType(Family.DECIMAL, "DECIMAL(7,4)", pa.decimal128(7, 4))
TEXT = ColumnType(Family.TEXT, "STRING", pa.string())
TRUTH = ColumnType(Family.TRUTH, "BOOLEAN", pa.bool_())
DAY = ColumnType(Family.DAY, "DATE", pa.date32())
INSTANT = ColumnType(Family.INSTANT, "TIMESTAMP", pa.timestamp("us", "UTC"))
FLOAT = ColumnType(Family.FLOAT, "DOUBLE", pa.float64())
LIST = ColumnType(Family.LIST, "ARRAY<INT>", pa.list_(pa.int32()))
STRUCT = ColumnType(
    Family.STRUCT, "STRUCT<p INT, q STRING>", pa.struct([pa.field("p", pa.int32()), pa.field("q", pa.string())])
)
MAP = ColumnType(Family.MAP, "MAP<STRING, INT>", pa.map_(pa.string(), pa.int32()))

DECLARED = (WHOLE, LONG, MONEY, MONEY, FRACTION, TEXT, TEXT, TRUTH, DAY, INSTANT, FLOAT, LIST, STRUCT, MAP)
"""Types that columns are drawn from; those named twice are the common ones."""

_TEXTS = (
    "",
    "a",
    "A",
    "b",
    "b ",
    "it's",
    'say "x"',
    "back\\slash",
    "a%b",
    "a_b",
    "10",
    "NULL",
    "line\nbreak",
    "ß☃",
    "😀",
)
_MONIES = ("0.00", "0.01", "-0.50", "1.50", "12.30", "100.00", "-99.99")
_FRACTIONS = ("0.0000", "0.1000", "-0.0001", "2.5000", "100.0000")
_FLOATS = (0.0, -0.0, 0.125, -1.5, 2.0, 1000.5, math.nan)
"""Sums of these but NaN are exact, whatever their order."""
_FIRST_DAY = date(2023, 12, 30)
FIRST_INSTANT = datetime.fromisoformat("2024-02-28 23:59:59")
"""What instants lie a few days after."""
_DAYS = (0, 1, 2, 31, 61, 400)
_MICROSECONDS = (0, 1, 999_999)


def random_value(random: Random, column_type: ColumnType, *, nulls: float = NULLS) -> Any:
    """A value as Python has it; few different ones, so that rows meet."""
    if random.random() < nulls:
        return None
    match column_type.family:
        case Family.WHOLE:
            return random.choice((-2, 0, 1, 2, 3, 4, 7)) + (
                2**40 if column_type is LONG and random.random() < 0.1 else 0
            )
        case Family.DECIMAL:
            return Decimal(random.choice(_MONIES if column_type is MONEY else _FRACTIONS))
        case Family.TEXT:
            return random.choice(_TEXTS)
        case Family.TRUTH:
            return random.random() < 0.5
        case Family.DAY:
            return _FIRST_DAY + timedelta(days=random.choice(_DAYS))
        case Family.INSTANT:
            return FIRST_INSTANT + timedelta(days=random.choice(_DAYS), microseconds=random.choice(_MICROSECONDS))
        case Family.FLOAT:
            return random.choice(_FLOATS)
        case Family.LIST:
            return [random_value(random, WHOLE) for _ in range(random.randrange(3))]
        case Family.STRUCT:
            return {"p": random_value(random, WHOLE), "q": random_value(random, TEXT)}
        case Family.MAP:
            return {name: random_value(random, WHOLE) for name in ("a", "b") if random.random() < 0.5}
        case Family.APPROXIMATE:
            raise AssertionError("no column is declared approximate")


def literal(value: Any) -> str:
    """A value as SQL, with its type; NULL has none."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value) if abs(value) < 2**31 else f"{value}L"
        case Decimal():
            return str(value)
        case float():
            return f"double('{value!r}')"
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n") + "'"
        case datetime():
            return f"TIMESTAMP'{value.isoformat(sep=' ', timespec='microseconds')}'"
        case date():
            return f"DATE'{value.isoformat()}'"
        case list():
            return f"CAST(array({', '.join(map(literal, value))}) AS ARRAY<INT>)"
        case {"p": first, "q": second}:
            return f"named_struct('p', CAST({literal(first)} AS INT), 'q', CAST({literal(second)} AS STRING))"
        case Mapping():
            entries = ", ".join(f"{literal(name)}, {literal(one)}" for name, one in value.items())
            return f"CAST(map({entries}) AS MAP<STRING, INT>)"
    raise AssertionError(f"no literal for {value!r}")


def quoted(name: str) -> str:
    """A name as both dialects take it."""
    return f"`{name.replace('`', '``')}`"


def arrow_rows(rows: Sequence[Mapping[str, Any]], types: Mapping[str, ColumnType]) -> pa.Table:
    """Rows as Arrow, in exactly the declared types."""
    columns = {}
    for name, column_type in types.items():
        values = [row[name] for row in rows]
        if column_type.family is Family.MAP:
            values = [None if value is None else list(value.items()) for value in values]
        columns[name] = pa.array(values, column_type.arrow)
    return pa.table(columns)
