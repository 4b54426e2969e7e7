"""Debezium's change events as JSON: an envelope with the row before and after, with its schema or without.

An insert or a snapshot read gives a row, a delete takes one away, an update does both. An update without the row
before is the new value of its key. With the schema, types are exact: decimals, dates, points in time. Without it they
are what the JSON shows, and a decimal in base64 can't be told from a text.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from velostream.errors import Category, SourceError, UnsupportedError
from velostream.formats.base import Decoded, RecordFormat, Reject, Rejected
from velostream.formats.connect_types import ConnectType, connect_type
from velostream.formats.json import infer_records, parse_json
from velostream.formats.wire import without_header
from velostream.model.change import CHANGE
from velostream.model.inference import ObservedType
from velostream.model.rows import records_to_arrow
from velostream.model.schema import Column, Schema

_SCHEMA = b'{"schema":{'
_PAYLOAD = b',"payload":'
_GIVES = ("c", "r", "u")
_TAKES = ("u", "d")
_UNCHANGED = "__debezium_unavailable_value"
"""Stands for a large value that an update left as it was and PostgreSQL therefore did not log."""
_UNCHANGED_BYTES = base64.b64encode(_UNCHANGED.encode()).decode()
_SILENT = ("m",)
"""Messages written to the log by hand, which are no rows."""
_FAULTS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What an event that isn't what its schema says leads to."""
_SIGN = Column(CHANGE, pa.int8())


@dataclass(frozen=True, slots=True)
class _Change:
    sign: int
    row: Mapping[str, Any]
    record: int


class DebeziumRecords(RecordFormat):
    """The values of a topic that Debezium writes. A tombstone, a NULL record, repeats the delete before it."""

    name = "debezium"
    gives_changes = True

    def infer(self, records: pa.Array) -> Schema | None:
        rows: list[Mapping[str, Any]] = []
        typed: dict[str, ConnectType] = {}
        problem: str | None = None
        for record in self._bodies(records.drop_null()).to_pylist():
            try:
                envelope = _Envelope.parse(record)
                rows += [row for _, row in envelope.changes()]
                typed |= envelope.types
            except _FAULTS as error:
                problem = problem or str(error)
        if typed:
            return _columns(typed, rows)
        if not rows and problem is not None:
            raise _not_debezium(problem)
        return infer_records(rows, self.settings.times)

    def decode(self, records: pa.Array, schema: Schema, reject: Reject) -> Decoded:
        changes: list[_Change] = []
        unpaired: set[int] = set()
        failed: set[int] = set()

        def fail(record: int, reason: str) -> None:
            if record not in failed:
                failed.add(record)
                reject(Rejected(record, records[record].as_py(), reason))

        for index, record in enumerate(self._bodies(records).to_pylist()):
            if record is None:
                continue
            try:
                envelope = _Envelope.parse(record)
                changes += [_Change(sign, row, index) for sign, row in envelope.changes()]
                if envelope.unpaired:
                    unpaired.add(index)
            except _FAULTS as error:
                fail(index, f"not a Debezium event: {error}")
        # What is taken away may be known by its key alone, so NOT NULL is asked of the rows that are given only.
        relaxed = Schema(tuple(Column(column.name, column.type) for column in schema.columns))
        rows = [change.row for change in changes]
        unfit: dict[int, str] = {}
        table = records_to_arrow(rows, relaxed, unfit.__setitem__, times=self.settings.text_rules)
        for index, reason in unfit.items():
            fail(changes[index].record, reason)
        changes = [change for index, change in enumerate(changes) if index not in unfit]
        for change, name in _missing(changes, table, schema):
            fail(change.record, f'column "{name}" is NOT NULL')
        kept = [index for index, change in enumerate(changes) if change.record not in failed]
        table = table.take(pa.array(kept, pa.int64()))
        signs = pa.array([changes[index].sign for index in kept], pa.int8())
        signed = pa.Table.from_arrays([*table.columns, signs], schema=Schema((*schema.columns, _SIGN)).arrow)
        places = pa.array([changes[index].record for index in kept], pa.int64())
        return Decoded(signed, places, frozenset(unpaired - failed))

    def encode(self, rows: pa.Table) -> pa.Array:
        raise UnsupportedError(
            "Debezium's events can only be read",
            hint="WITH ('format' = 'json') writes rows as JSON",
            code="unsupported-format",
        )

    def key_columns(self, keys: pa.Array) -> tuple[str, ...]:
        for key in self._bodies(keys.drop_null()).to_pylist():
            try:
                found = parse_json(key)
            except _FAULTS:
                continue
            payload = found.get("payload", found) if isinstance(found, dict) else None
            if isinstance(payload, dict):
                return tuple(payload)
        return ()

    def _bodies(self, records: pa.Array) -> pa.Array:
        return records if self.settings.registry is None else without_header(records)


@dataclass(frozen=True, slots=True)
class _Envelope:
    """One event: what happened, the row before and after, and what the schema says of the row's fields."""

    payload: Mapping[str, Any]
    types: Mapping[str, ConnectType]

    @classmethod
    def parse(cls, record: bytes) -> _Envelope:
        """`ValueError` when the record is no event."""
        payload, types = _parsed(record)
        if not isinstance(payload, dict) or "op" not in payload:
            raise ValueError("it has no payload with an op")
        return cls(payload, types)

    @property
    def unpaired(self) -> bool:
        """An update that doesn't tell the row before."""
        return self.payload["op"] == "u" and self.payload.get("before") is None

    def changes(self) -> Iterable[tuple[int, Mapping[str, Any]]]:
        """Rows that are gone and that are there now. `ValueError` for what can't be said row by row."""
        operation = self.payload["op"]
        if operation in _SILENT:
            return
        if operation not in _GIVES + _TAKES:
            raise ValueError(f'the operation "{operation}" changes no single row')
        before, after = self._row("before"), self._row("after")
        if after is not None and before is not None:
            # A value that was too large to be logged again is not NULL: then the row before is not told in full.
            known = {name: value for name, value in before.items() if value is not None}
            after = {name: known.get(name, value) if _is_unchanged(value) else value for name, value in after.items()}
        if after is not None and any(map(_is_unchanged, after.values())):
            raise ValueError("a large value that did not change was not sent; the table needs REPLICA IDENTITY FULL")
        if operation in _TAKES and before is not None:
            yield -1, before
        if operation in _GIVES:
            if after is None:
                raise ValueError(f'the operation "{operation}" has no row after')
            yield 1, after
        elif before is None:
            raise ValueError("a delete has no row before; the table needs a replica identity or a key")

    def _row(self, side: str) -> Mapping[str, Any] | None:
        row = self.payload.get(side)
        if isinstance(row, str):
            # Of a document store, whose documents are JSON in a text.
            row = parse_json(row)
        if row is None:
            return None
        if not self.types:
            return dict(row)
        return {
            name: found.convert(value)
            if value is not None and not _is_unchanged(value) and (found := self.types.get(name)) is not None
            else value
            for name, value in row.items()
        }


def _is_unchanged(value: Any) -> bool:
    """The placeholder comes as a text, as bytes in base64, and as a list of nothing but it."""
    if isinstance(value, list):
        return len(value) == 1 and _is_unchanged(value[0])
    return isinstance(value, str) and value in (_UNCHANGED, _UNCHANGED_BYTES)


def _parsed(record: bytes) -> tuple[Any, Mapping[str, ConnectType]]:
    # Events of one table begin with the same schema, byte for byte, which need not be read again and again.
    end = record.find(_PAYLOAD) if record.startswith(_SCHEMA) else -1
    if end > 0:
        try:
            return parse_json(record[end + len(_PAYLOAD) : -1]), _row_types(record[len(_SCHEMA) - 1 : end])
        except ValueError:
            # The mark may stand within the schema.
            pass
    found = parse_json(record)
    if isinstance(found, dict) and "payload" in found:
        return found["payload"], _types_of(found.get("schema"))
    return found, {}


@cache
def _row_types(schema: bytes) -> Mapping[str, ConnectType]:
    return _types_of(parse_json(schema))


def _types_of(schema: Any) -> Mapping[str, ConnectType]:
    """What an envelope's schema says of the fields of a row; nothing when there is no schema."""
    if not isinstance(schema, dict):
        return {}
    sides = {field.get("field"): field for field in schema.get("fields") or ()}
    row = sides.get("after") or sides.get("before") or {}
    return {field["field"]: connect_type(field) for field in row.get("fields") or ()}


def _columns(types: Mapping[str, ConnectType], rows: list[Mapping[str, Any]]) -> Schema:
    columns: list[Column] = []
    for name, found in types.items():
        type_ = found.type
        if type_ is None:
            observed = ObservedType()
            for row in rows:
                observed.observe(row.get(name))
            type_ = observed.type()
        columns.append(Column(name, type_))
    return Schema(tuple(columns))


def _missing(changes: list[_Change], table: pa.Table, schema: Schema) -> Iterable[tuple[_Change, str]]:
    """The rows that are given with a NULL where the schema says NOT NULL."""
    for column in schema.columns:
        if not column.nullable and table[column.name].null_count:
            nulls = table[column.name].is_null().to_numpy()
            for index in np.flatnonzero(nulls).tolist():
                if changes[index].sign > 0:
                    yield changes[index], column.name


def _not_debezium(problem: str) -> SourceError:
    return SourceError(
        "no record is a Debezium event",
        detail=problem,
        hint="WITH ('format' = 'json') if the records are the rows themselves",
        code="not-debezium",
        category=Category.DATA,
    )
