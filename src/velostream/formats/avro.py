"""Avro: records by a schema that an option gives or a registry keeps, and container files.

Values are read by fastavro, one record after the other, and made into columns together. Decimals are exact.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import pyarrow as pa

from velostream.errors import Category, SourceError, StoreError
from velostream.formats.avro_types import AvroSchema, columns_of, schema_of
from velostream.formats.base import Decoded, RecordFormat, Reject, Rejected, WholeFormat
from velostream.formats.json import plain_records
from velostream.formats.opening import open_file, unreadable
from velostream.formats.schema_registry import RegisteredSchema, SchemaRegistry, concerns_one_record, registry_at
from velostream.formats.wire import HEADER_LENGTH, header, schema_id
from velostream.model.rows import json_text, records_to_arrow
from velostream.model.schema import Schema

_ROWS_PER_UNIT = 250_000
_ROWS_PER_TABLE = 50_000


class AvroRecords(RecordFormat):
    """Avro's binary encoding, one value per record.

    With a registry each record begins with the number of the schema it was written with. Without one all are written
    with the schema of `avro.schema`. A schema given next to a registry is the one to read by: its defaults fill in
    fields that a record doesn't have.
    """

    name = "avro"

    def infer(self, records: pa.Array) -> Schema | None:
        if self._given is not None:
            return columns_of(self._given)
        registry = self._registry
        columns: dict[str, Any] = {}
        numbers = {schema_id(record) for record in records.drop_null().to_pylist()} - {None}
        for number in sorted(filter(None, numbers)):
            try:
                schema = _parsed(registry.schema(number).text)
            except SourceError as error:
                if not concerns_one_record(error):
                    raise
                continue
            columns |= {column.name: column for column in columns_of(schema).columns}
        if not columns:
            return self._columns_of_subject(registry)
        return Schema(tuple(columns.values()))

    def decode(self, records: pa.Array, schema: Schema, reject: Reject) -> Decoded:
        values: list[dict[str, Any]] = []
        places: list[int] = []
        for index, record in enumerate(records.to_pylist()):
            if record is None:
                continue
            try:
                values.append(_as_row(self._read(record)))
                places.append(index)
            except SourceError as error:
                if self.settings.registry is None or not concerns_one_record(error):
                    raise
                reject(Rejected(index, record, error.message))
            except Exception as error:  # noqa: BLE001 - fastavro raises whatever arbitrary bytes lead to
                reject(Rejected(index, record, f"not Avro of its schema: {str(error) or type(error).__name__}"))
        failed: set[int] = set()

        def misfit(index: int, reason: str) -> None:
            failed.add(index)
            reject(Rejected(places[index], records[places[index]].as_py(), reason))

        rows = records_to_arrow(values, schema, misfit, times=self.settings.times)
        kept = [place for index, place in enumerate(places) if index not in failed]
        return Decoded(rows, pa.array(kept, pa.int64()))

    def encode(self, rows: pa.Table) -> pa.Array:
        text = self._given_text or json.dumps(schema_of(rows.schema))
        parsed = _parsed(text)
        prefix = b""
        if self.settings.registry is not None:
            subject = self.settings.registry.subject
            if subject is None:
                raise _no_subject()
            prefix = header(self._registry.register(subject, RegisteredSchema(text)))
        write = _fastavro().schemaless_writer
        encoded: list[bytes] = []
        for record in plain_records(rows):
            out = io.BytesIO()
            out.write(prefix)
            write(out, parsed, record)
            encoded.append(out.getvalue())
        return pa.array(encoded, pa.binary())

    def _columns_of_subject(self, registry: SchemaRegistry) -> Schema | None:
        """Columns by the newest schema of the subject; None while nobody has written with one."""
        subject = None if self.settings.registry is None else self.settings.registry.subject
        if subject is None:
            return None
        try:
            return columns_of(_parsed(registry.latest(subject).text))
        except SourceError as error:
            if error.code != "unknown-schema":
                raise
            return None

    def _read(self, record: bytes) -> Any:
        writer, reader, start = self._given, None, 0
        if self.settings.registry is not None:
            number = schema_id(record)
            if number is None:
                raise ValueError("it does not begin with the number of a schema")
            writer, reader, start = _parsed(self._registry.schema(number).text), self._given, HEADER_LENGTH
        body = io.BytesIO(record)
        body.seek(start)
        value = _fastavro().schemaless_reader(body, writer, reader)
        if body.tell() != len(record):
            raise ValueError(f"{len(record) - body.tell()} bytes are left over")
        return value

    @property
    def _given(self) -> AvroSchema | None:
        return None if self._given_text is None else _parsed(self._given_text)

    @cached_property
    def _given_text(self) -> str | None:
        if self.settings.avro_schema:
            return self.settings.avro_schema.load().decode("utf-8", "replace")
        if self.settings.registry is None:
            raise SourceError(
                "format avro needs the schema of the records",
                hint="WITH ('avro.schema' = '{…}'), ('avro.schema.file' = …) or ('schema.registry.url' = …)",
                code="missing-schema",
                category=Category.CONFIGURATION,
            )
        return None

    @property
    def _registry(self) -> SchemaRegistry:
        if self.settings.registry is None:
            raise _no_subject()
        return registry_at(self.settings.registry)


class AvroFileFormat(WholeFormat):
    """Container files, which carry their schema. A unit is a run of blocks of so many rows."""

    name = "avro"

    def infer(self, paths: Sequence[Path]) -> Schema | None:
        columns: dict[str, Any] = {}
        for path in paths:
            with open_file(str(path), buffered=True) as file:
                for column in columns_of(_reader(file, path).writer_schema).columns:
                    columns.setdefault(column.name.lower(), column)
        return Schema(tuple(columns.values())) if columns else None

    def units(self, path: Path) -> Sequence[int]:
        units: list[int] = []
        with open_file(str(path), buffered=True) as file:
            for unit, block in _blocks_by_unit(file, path):
                units += [0] * (unit + 1 - len(units))
                units[unit] += block.num_records
        return units

    def decode(self, path: Path, start: int, end: int, schema: Schema, reject: Reject) -> Iterator[pa.Table]:
        number = 0
        gathered: list[dict[str, Any]] = []
        with open_file(str(path), buffered=True) as file:
            self.check_fields(path, columns_of(_reader(file, path).writer_schema).names, schema)
            file.seek(0)
            for unit, block in _blocks_by_unit(file, path):
                if unit >= end:
                    break
                number += block.num_records
                if unit >= start:
                    gathered += map(_as_row, block)
                while len(gathered) >= _ROWS_PER_TABLE:
                    yield self._table(gathered[:_ROWS_PER_TABLE], number - len(gathered), schema, reject)
                    del gathered[:_ROWS_PER_TABLE]
        if gathered:
            yield self._table(gathered, number - len(gathered), schema, reject)

    def encode(self, rows: pa.Table, *, first: bool = True) -> bytes:
        out = io.BytesIO()
        _fastavro().writer(out, _parsed(json.dumps(schema_of(rows.schema))), plain_records(rows), codec="deflate")
        return out.getvalue()

    def _table(self, records: list[dict[str, Any]], before: int, schema: Schema, reject: Reject) -> pa.Table:
        def misfit(index: int, reason: str) -> None:
            reject(Rejected(before + index + 1, json_text(records[index]), reason))

        return records_to_arrow(records, schema, misfit, times=self.settings.times)


def _as_row(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"value": value}


@cache
def _parsed(text: str) -> AvroSchema:
    """A schema as fastavro wants it, parsed once; `SourceError` when it is none."""
    try:
        return _fastavro().parse_schema(json.loads(text))
    except Exception as error:
        raise SourceError(
            "the Avro schema is not one",
            detail=f"{type(error).__name__}: {error}",
            hint='{"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}',
            code="unreadable-schema",
            category=Category.CONFIGURATION,
        ) from error


def _fastavro() -> ModuleType:
    try:
        import fastavro
    except ImportError as error:
        raise StoreError.missing_driver("avro", module="fastavro", extra="avro") from error
    return fastavro


def _reader(file: BinaryIO, path: Path) -> Any:
    try:
        return _fastavro().block_reader(file)
    except (ValueError, EOFError, OSError, KeyError) as error:
        raise unreadable(path, error, what="Avro") from error


def _blocks_by_unit(file: BinaryIO, path: Path) -> Iterator[tuple[int, Any]]:
    """The blocks of a file, each with the number of the unit it belongs to."""
    unit = rows = 0
    for block in _blocks(file, path):
        if rows >= _ROWS_PER_UNIT:
            unit, rows = unit + 1, 0
        rows += block.num_records
        yield unit, block


def _blocks(file: BinaryIO, path: Path) -> Iterator[Any]:
    """The blocks of a file; `SourceError` where it is cut off or damaged."""
    blocks = iter(_reader(file, path))
    while True:
        try:
            yield next(blocks)
        except StopIteration:
            return
        except (ValueError, EOFError, OSError, IndexError) as error:
            raise unreadable(path, error, what="Avro") from error


def _no_subject() -> SourceError:
    return SourceError(
        "the schema registry needs a subject for the schema of what is written",
        hint="WITH ('schema.registry.subject' = 'orders-value')",
        code="missing-schema",
        category=Category.CONFIGURATION,
    )
