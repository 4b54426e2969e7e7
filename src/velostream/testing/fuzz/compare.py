"""Whether two answers are the same bag of rows, in the same types."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa

_CLOSE = 1e-9
_SHOWN = 20


def difference(found: pa.Table, right: pa.Table) -> str | None:
    """What tells the answers apart; None: nothing. The order of rows says nothing, and floats may be a little off."""
    types = [[_plain_type(column.type) for column in table.columns] for table in (found, right)]
    if types[0] != types[1]:
        return f"columns are {types[0]}, right is {types[1]}"
    ours, theirs = _rows(found), _rows(right)
    if Counter(ours) == Counter(theirs):
        return None
    if len(ours) == len(theirs) and all(
        _close(one, other) for one, other in zip(sorted(ours, key=_order), sorted(theirs, key=_order), strict=True)
    ):
        return None
    extra, missing = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    return f"too many: {_shown(extra.elements())}\nmissing:  {_shown(missing.elements())}"


def _shown(rows: Iterable[Any]) -> str:
    listed = list(rows)
    return f"{listed[:_SHOWN]}" + (f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else "")


def _plain_type(column: pa.DataType) -> str:
    """A type without what says nothing about values: zones of timestamps, names and nullability inside lists."""
    if pa.types.is_list(column):
        return f"list<{_plain_type(column.value_type)}>"
    if pa.types.is_map(column):
        return f"map<{_plain_type(column.key_type)}, {_plain_type(column.item_type)}>"
    if pa.types.is_struct(column):
        return f"struct<{', '.join(f'{field.name}: {_plain_type(field.type)}' for field in column)}>"
    return "timestamp" if pa.types.is_timestamp(column) else str(column)


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(map(_hashable, row)) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def _hashable(value: Any) -> Any:
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case list() if value and isinstance(value[0], tuple):
            return tuple(sorted((_hashable(one) for one in value), key=repr))
        case list() | tuple():
            return tuple(_hashable(one) for one in value)
        case dict():
            return tuple((name, _hashable(one)) for name, one in value.items())
        case Decimal():
            # 1.5 and 1.50 are equal, and of one type here; their digits have to be the same nevertheless.
            return str(value)
    return value


def _order(row: tuple[Any, ...]) -> str:
    return repr([f"{value:.6g}" if isinstance(value, float) else value for value in row])


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_close, one, other))
    return bool(one == other)
