"""Protobuf records, by a schema that an option gives or a registry keeps.

Messages are parsed one by one and read field by field, so each column is made at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.errors import Category, SourceError, UnsupportedError, VelostreamError
from velostream.formats.base import Decoded, RecordFormat, Reject, Rejected
from velostream.formats.json import plain_records
from velostream.formats.protobuf_schema import main_file, message_at, message_class, message_of, parse_message, place_of
from velostream.formats.protobuf_types import columns_of, fill, read_columns
from velostream.formats.schema_registry import RegisteredSchema, SchemaRegistry, concerns_one_record, registry_at
from velostream.formats.wire import header, message_path, path_bytes, schema_id
from velostream.model.rows import columns_to_arrow
from velostream.model.schema import Schema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor


class ProtobufRecords(RecordFormat):
    """A message each. With a registry, a record begins with the number of its schema and the place of its message."""

    name = "protobuf"

    def infer(self, records: pa.Array) -> Schema | None:
        if self._given is not None:
            return columns_of(self._given)
        messages: dict[Descriptor, None] = {}
        for record in records.drop_null().to_pylist():
            try:
                messages[self._registered(record)[0]] = None
            except ValueError:
                continue
            except VelostreamError as error:
                if not concerns_one_record(error):
                    raise
        columns = {column.name: column for message in messages for column in columns_of(message).columns}
        return Schema(tuple(columns.values())) if columns else None

    def decode(self, records: pa.Array, schema: Schema, reject: Reject) -> Decoded:
        parsed: dict[Descriptor, tuple[list[int], list[Any]]] = {}
        given = self._given if self.settings.registry is None else None
        for index, record in enumerate(records.to_pylist()):
            if record is None:
                continue
            try:
                message, body = (given, record) if given is not None else self._registered(record)
                value = parse_message(message, body)
            except VelostreamError as error:
                if self.settings.registry is None or not concerns_one_record(error):
                    raise
                reject(Rejected(index, record, error.message))
            except ValueError as error:
                reject(Rejected(index, record, f"not a message of its schema: {error}"))
            else:
                places, values = parsed.setdefault(message, ([], []))
                places.append(index)
                values.append(value)
        pieces = [self._rows(message, *found, records, schema, reject) for message, found in parsed.items()]
        if len(pieces) == 1:
            return pieces[0]
        return _in_order(pieces, schema)

    def encode(self, rows: pa.Table) -> pa.Array:
        if self._given is None or not self.settings.protobuf_schema:
            raise SourceError(
                "format protobuf needs the schema of what is written",
                hint="WITH ('protobuf.schema.file' = 'row.proto')",
                code="missing-schema",
                category=Category.CONFIGURATION,
            )
        make = message_class(self._given)
        prefix = self._prefix(self._given)
        encoded: list[bytes] = []
        for record in plain_records(rows):
            message = make()
            try:
                fill(message, record, self._given)
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                raise UnsupportedError(
                    f'a row does not fit message "{self._given.full_name}"',
                    detail=str(error),
                    hint="CAST the columns to the types of the message's fields",
                    code="unsupported-format",
                ) from error
            encoded.append(prefix + message.SerializeToString())
        return pa.array(encoded, pa.binary())

    def _rows(
        self,
        message: Descriptor,
        places: list[int],
        values: Sequence[Any],
        records: pa.Array,
        schema: Schema,
        reject: Reject,
    ) -> Decoded:
        failed: set[int] = set()

        def misfit(index: int, reason: str) -> None:
            failed.add(index)
            reject(Rejected(places[index], records[places[index]].as_py(), reason))

        columns = read_columns(values, message, schema.names)
        rows = columns_to_arrow(columns, schema, misfit, times=self.settings.times)
        kept = [place for index, place in enumerate(places) if index not in failed]
        return Decoded(rows, pa.array(kept, pa.int64()))

    def _registered(self, record: bytes) -> tuple[Descriptor, bytes]:
        """The type of a record's message by the registry, and the message's bytes."""
        number = schema_id(record)
        if number is None:
            raise ValueError("it does not begin with the number of a schema")
        path, start = message_path(record)
        return message_at(_registered_file(self._registry, number), path), record[start:]

    def _prefix(self, message: Descriptor) -> bytes:
        if self.settings.registry is None:
            return b""
        subject = self.settings.registry.subject
        text = self.settings.protobuf_schema.load().decode("utf-8", "replace")
        if subject is None:
            raise _no_schema()
        number = self._registry.register(subject, RegisteredSchema(text, "PROTOBUF"))
        return header(number) + path_bytes(place_of(message))

    @cached_property
    def _given_schema(self) -> bytes:
        return self.settings.protobuf_schema.load()

    @property
    def _given(self) -> Descriptor | None:
        if self.settings.protobuf_schema:
            return message_of(main_file(self._given_schema), self.settings.protobuf_message)
        if self.settings.registry is None:
            raise _no_schema()
        return None

    @property
    def _registry(self) -> SchemaRegistry:
        if self.settings.registry is None:
            raise _no_schema()
        return registry_at(self.settings.registry)


def _registered_file(registry: SchemaRegistry, number: int) -> FileDescriptor:
    schema = registry.schema(number)
    return main_file(schema.text.encode(), tuple(_imported(registry, schema).items()))


def _imported(registry: SchemaRegistry, schema: RegisteredSchema) -> dict[str, str]:
    """Everything a schema imports, however deep."""
    found: dict[str, str] = {}
    for name, subject, version in schema.references:
        imported = registry.referenced(subject, version)
        found |= {name: imported.text} | _imported(registry, imported)
    return found


def _in_order(pieces: list[Decoded], schema: Schema) -> Decoded:
    """Rows of messages of several types, in the order of their records."""
    if not pieces:
        return Decoded(schema.arrow.empty_table(), pa.array([], pa.int64()))
    places = pa.concat_arrays([piece.records for piece in pieces])
    order = pa.compute.array_sort_indices(places)
    return Decoded(pa.concat_tables([piece.rows for piece in pieces]).take(order), places.take(order))


def _no_schema() -> SourceError:
    return SourceError(
        "format protobuf needs the schema of the records",
        hint="WITH ('protobuf.schema.file' = 'row.proto') or ('schema.registry.url' = …)",
        code="missing-schema",
        category=Category.CONFIGURATION,
    )
