"""Documents of MongoDB as rows: a column for each field, values without loss, nested ones nested.

Decimal128 is DECIMAL, a date is a TIMESTAMP of milliseconds, an ObjectId or UUID its text. What has no type of ours
(regular expressions, code, the oplog's own times) is the text of its extended JSON. A field that isn't there is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cache
from typing import Any
from uuid import UUID

import pyarrow as pa

from velostream.model.change import CHANGE
from velostream.model.rows import infer_schema, records_to_arrow
from velostream.model.schema import Column, Schema
from velostream.sources.base import BadRecord, OnBad

ID = "_id"
Document = Mapping[str, Any]
_PYTHON_TYPES = frozenset({type(None), bool, int, float, str, bytes, datetime})
"""Types of values that need nothing done."""


def schema_of(documents: Sequence[Document], fields: Sequence[str] = ()) -> Schema | None:
    """The columns that documents show, `_id` the first of them and the key; None where there are no documents.

    `fields` are those wanted; all where there are none. Documents of a view may have no `_id`: then there is no key.
    """
    if not documents:
        return None
    wanted = {ID, *fields}
    found = infer_schema(
        {name: value for name, value in plain(document).items() if not fields or name in wanted}
        for document in documents
    )
    identity = found.find(ID)
    if identity is None:
        return found
    others = (column for column in found.columns if column is not identity)
    return Schema((Column(identity.name, identity.type, nullable=False), *others), (identity.name,))


def rows_of(documents: Sequence[Document], schema: Schema, on_bad: OnBad) -> pa.Table:
    """Documents as rows of exactly the schema."""

    def reject(index: int, reason: str) -> None:
        on_bad(_bad(documents[index], reason))

    return records_to_arrow([plain(document) for document in documents], schema, reject)


def changes_of(changes: Sequence[tuple[Document, int]], schema: Schema, on_bad: OnBad) -> pa.Table:
    """Documents with their signs as rows of the schema and the sign; of what is gone only `_id` counts."""
    # Tombstones have nothing but their key, so what must not be NULL is looked at here.
    required = [column.name for column in schema.columns if not column.nullable]
    records: list[dict[str, Any]] = []
    told: list[Document] = []
    for document, sign in changes:
        record = plain(document)
        missing = next((name for name in required if sign > 0 and record.get(name) is None), None)
        if missing is not None:
            on_bad(_bad(document, f'column "{missing}" is NOT NULL'))
            continue
        records.append({**record, CHANGE: sign})
        told.append(document)

    def reject(index: int, reason: str) -> None:
        on_bad(_bad(told[index], reason))

    nullable = tuple(Column(column.name, column.type) for column in schema.columns)
    rows = records_to_arrow(records, Schema((*nullable, Column(CHANGE, pa.int8()))), reject)
    return pa.Table.from_arrays(rows.columns, schema=schema.arrow.append(pa.field(CHANGE, pa.int8())))


def plain(document: Document) -> dict[str, Any]:
    """A document with values of Python's own types."""
    conversions = _conversions()
    return {
        name: value if type(value) in _PYTHON_TYPES else _converted(value, conversions)
        for name, value in document.items()
    }


def bson_of(value: Any) -> Any:
    """A value of a column as the server compares it."""
    from bson.decimal128 import Decimal128

    match value:
        case Decimal():
            return Decimal128(value)
        case datetime():
            return value if value.tzinfo is None else value.astimezone(UTC)
        case date():
            return datetime.combine(value, time())
        case _:
            return value


def _converted(value: Any, conversions: Mapping[type, Callable[[Any], Any]]) -> Any:
    convert = conversions.get(type(value))
    if convert is not None:
        return convert(value)
    if isinstance(value, Mapping):
        return plain(value)
    if isinstance(value, list):
        return [one if type(one) in _PYTHON_TYPES else _converted(one, conversions) for one in value]
    if isinstance(value, bytes):
        return bytes(value)
    return _extended_json(value)


def _extended_json(value: Any) -> str:
    from bson import json_util

    return str(json_util.dumps(value))


def _bad(document: Document, reason: str) -> BadRecord:
    return BadRecord(_extended_json(document).encode(), f"document {_extended_json(document.get(ID))}", reason)


@cache
def _conversions() -> Mapping[type, Callable[[Any], Any]]:
    from bson.decimal128 import Decimal128
    from bson.int64 import Int64
    from bson.objectid import ObjectId

    def decimal(value: Any) -> Decimal:
        number: Decimal = value.to_decimal()
        return number

    return {Decimal128: decimal, Int64: int, ObjectId: str, UUID: str}
