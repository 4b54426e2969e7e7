"""Fields of hashes and of a stream's entries as rows: texts that are judged and read as those of a CSV file are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from velostream.formats.inference import observe_texts
from velostream.model.conform import TimeRules, conform
from velostream.model.inference import Kind, ObservedType
from velostream.model.rows import json_text
from velostream.model.schema import Column, Schema
from velostream.sources.base import BadRecord, OnBad


@dataclass(frozen=True, slots=True)
class Record:
    """Fields under a name: a hash, or an entry of a stream."""

    name: str
    fields: Mapping[bytes, bytes]


def schema_of(samples: Sequence[Mapping[bytes, bytes]]) -> Schema | None:
    """The columns that fields show, in the order in which they first appear; None where there is nothing."""
    values: dict[bytes, list[bytes]] = {}
    for fields in samples:
        for name, value in fields.items():
            values.setdefault(name, []).append(value)
    if not values:
        return None
    return Schema(tuple(Column(name.decode(errors="replace"), _type(found)) for name, found in values.items()))


def rows_of(records: Sequence[Record], schema: Schema, on_bad: OnBad, *, timezone: str) -> pa.Table:
    """Records as rows of exactly the schema; a field that isn't there, or is empty where no text is, is NULL."""
    kept = [record for record in records if _is_readable(record, schema, on_bad)]
    by_lower = [{name.decode(errors="replace").lower(): value for name, value in one.fields.items()} for one in kept]
    columns = {
        column.name: _texts([fields.get(column.name.lower()) for fields in by_lower], column.type)
        for column in schema.columns
    }

    def reject(index: int, reason: str) -> None:
        on_bad(_bad(kept[index], reason))

    return conform(pa.table(columns), schema, reject, times=TimeRules(timezone)).combine_chunks()


def _type(values: Sequence[bytes]) -> pa.DataType:
    observed = ObservedType()
    try:
        observe_texts(observed, pa.array([value.decode() for value in values], pa.string()))
    except UnicodeDecodeError:
        observed.observe_kind(Kind.BINARY)
    return observed.type()


def _is_readable(record: Record, schema: Schema, on_bad: OnBad) -> bool:
    """Whether all that should be text is; if not, the record is set aside."""
    for name, value in record.fields.items():
        column = schema.find(name.decode(errors="replace"))
        if column is None or pa.types.is_binary(column.type):
            continue
        try:
            value.decode()
        except UnicodeDecodeError as error:
            on_bad(_bad(record, f'column "{column.name}" is {column.sql_type}, and this is no UTF-8: {error}'))
            return False
    return True


def _texts(values: Sequence[bytes | None], type_: pa.DataType) -> pa.Array:
    if pa.types.is_binary(type_):
        return pa.array(values, pa.binary())
    empty = pa.types.is_string(type_)
    return pa.array(
        [value.decode() if value or (empty and value is not None) else None for value in values], pa.string()
    )


def _bad(record: Record, reason: str) -> BadRecord:
    raw = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in record.fields.items()}
    return BadRecord(json_text(raw), record.name, reason)
