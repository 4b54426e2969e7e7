"""Columns declared before AS: names, types and NOT NULL that the query's result must fit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import ValidationError
from velostream.sources.base import BadRecord

if TYPE_CHECKING:
    from velostream.engine.binding import BoundQuery
    from velostream.model.schema import Schema


def fit_declared(bound: BoundQuery, declared: Schema, name: str) -> BoundQuery:
    """The query with the declared columns as its result; `ValidationError` where they don't fit."""
    found = bound.schema
    if len(declared.columns) != len(found.columns):
        raise ValidationError(
            f'table "{name}" declares {len(declared.columns)} columns and its SELECT gives {len(found.columns)}',
            detail=f"the SELECT gives {', '.join(found.names)}",
        )
    for want, have in zip(declared.columns, found.columns, strict=True):
        if want.name.lower() != have.name.lower() or not _fits(have.type, want.type):
            raise ValidationError(
                f'table "{name}" declares "{want.name}" {want.sql_type}, '
                f'its SELECT gives "{have.name}" {have.sql_type}',
                hint=f"CAST({have.name} AS {want.sql_type}) AS {want.name}",
            )
    schema = declared if declared.key else declared.with_key(found.key)
    return replace(bound, schema=schema, names=declared.names)


def _fits(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether every value of one type is one of the other."""
    if have == want:
        return True
    if pa.types.is_integer(have) and pa.types.is_integer(want):
        return bool(have.bit_width <= want.bit_width)
    if pa.types.is_decimal(have) and pa.types.is_decimal(want):
        return bool(have.scale <= want.scale and have.precision - have.scale <= want.precision - want.scale)
    return bool(pa.types.is_null(have))


def split_off_nulls(rows: pa.Table, schema: Schema) -> tuple[pa.Table, list[BadRecord]]:
    """Rows with a NULL where the table allows none are no reason to stop: they become dead letters."""
    required = [column.name for column in schema.columns if not column.nullable]
    if not required or not any(rows[name].null_count for name in required):
        return rows, []
    missing = pc.is_null(rows[required[0]])
    for name in required[1:]:
        missing = pc.or_(missing, pc.is_null(rows[name]))
    refused = [
        BadRecord(
            json.dumps(row, default=str).encode(), "", f"NULL in one of the NOT NULL columns {', '.join(required)}"
        )
        for row in rows.filter(missing).to_pylist()
    ]
    return rows.filter(pc.invert(missing)), refused
