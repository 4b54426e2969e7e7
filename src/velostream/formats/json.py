"""JSON: one object per line, or an array of objects. A number written 123.45 is a DECIMAL, digit for digit.

Lines are read into their types by Arrow's own reader, which keeps decimals exact. Lines it stumbles over are parsed one
by one, which bends values to the columns' types where nothing is lost and finds the records that can't be had.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from velostream.errors import Category, SourceError
from velostream.formats.base import (
    FormatSettings,
    LineFormat,
    Preamble,
    Reject,
    Rejected,
    Sample,
    WholeFormat,
    further_columns,
    further_field,
)
from velostream.formats.compression import compressed, compression_of, read_blocks
from velostream.formats.inference import json_text_kinds
from velostream.formats.lines import find_records, skipped_length
from velostream.formats.text import as_utf_8, encoded, is_utf_8, valid_utf_8
from velostream.model.conform import ISO_IN_UTC, TimeRules, cast_column
from velostream.model.inference import ObservedType, is_empty, is_untyped, names_with_values
from velostream.model.rows import json_text, records_to_arrow
from velostream.model.schema import Column, Schema
from velostream.model.variant import decoded, holds_variant, is_variant

_SAMPLE_RECORDS = 10_000
_ONE_BY_ONE = 512
_ROWS_PER_TABLE = 50_000
_BLOCK_BYTES = 1 << 23
_MOST_DIGITS = 38
_FIRST_LINE = re.compile(rb"\s*([^\n]*)")
_NAMES_PER_PATTERN = 40
"""The expression for many more would be larger than the regular expression library runs fast."""


def parse_json(text: str | bytes) -> Any:
    """A JSON value with decimals as `Decimal`; a number with an exponent is a float. `ValueError` if it isn't JSON."""
    return _DECODER.decode(text if isinstance(text, str) else text.decode())


def json_column(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values as JSON text each; what JSON writes as a string (a text, a date, …) is that string itself."""
    texts = [None if value is None else _bare_text(_plain(value, values.type)) for value in values.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


class _FurtherFieldError(Exception):
    """A record has a field that is to become a column."""


def _further_field(record: Mapping[str, Any], schema: Schema, settings: FormatSettings) -> str | None:
    """Why a record is bad for its fields; `_FurtherFieldError` when one of them is to become a column."""
    adding = settings.add_further_fields
    if adding and any(settings.adds(name, schema) and not is_empty(value) for name, value in record.items()):
        raise _FurtherFieldError
    return further_field(record, schema) if settings.refuse_further_fields else None


def _lacking(records: Iterable[Mapping[str, Any]], schema: Schema, settings: FormatSettings) -> Schema | None:
    """The fields that are to become columns, by their values; None when no record has one."""
    if not settings.add_further_fields:
        return None
    beyond = [{name: value for name, value in record.items() if settings.adds(name, schema)} for record in records]
    # One without a value would be STRING for good.
    names = names_with_values(beyond)
    found = infer_records(beyond, settings.times)
    return None if found is None or not names else found.select(names)


class JsonLinesFormat(LineFormat):
    name = "jsonl"

    def preamble(self, head: bytes, *, final: bool) -> Preamble | None:
        length = skipped_length(head, self.settings.skip_lines, final=final)
        return None if length is None else Preamble(length)

    def infer(self, samples: Sequence[Sample]) -> Schema | None:
        lines = itertools.chain.from_iterable(sample.data.splitlines() for sample in samples)
        records = list(itertools.islice((line for line in lines if line.strip()), _SAMPLE_RECORDS))
        parsed = (_parsed_or_none(line, self.settings.encoding) for line in records)
        schema = infer_records((record for record in parsed if record is not None), self.settings.times)
        if schema is None and records:
            raise _not_json(records[0])
        return schema

    def decode(self, data: bytes, preamble: Preamble, schema: Schema, reject: Reject) -> pa.Table:
        if not is_utf_8(self.settings.encoding):
            data, reject = as_utf_8(data, self.settings.encoding, reject)
        try:
            tables = list(self._decode(data, 0, schema, reject))
        except _FurtherFieldError:
            parsed = (_parsed_or_none(line, "utf-8") for line in data.splitlines() if line.strip())
            found = _lacking((record for record in parsed if record is not None), schema, self.settings)
            raise further_columns(found, schema) from None
        return pa.concat_tables(tables) if tables else schema.arrow.empty_table()

    def encode(self, rows: pa.Table, *, first: bool = True) -> bytes:
        lines = b"".join(json_text(record) + b"\n" for record in plain_records(rows))
        return encoded(lines, self.settings.encoding)

    def _decode(self, data: bytes, place: int, schema: Schema, reject: Reject) -> Iterator[pa.Table]:
        rows = self.read_typed(data, schema)
        if rows is not None:
            yield rows
            return
        ends = find_records(data, None, final=True).ends
        if len(ends) <= _ONE_BY_ONE:
            yield self._read_one_by_one(data, ends.tolist(), place, schema, reject)
            return
        # Arrow stops at the first line it can't read, so trying many small pieces costs little more than one big one.
        step = max(_ONE_BY_ONE, len(ends) // 16)
        start = 0
        for index in range(step, len(ends) + step, step):
            end = int(ends[min(index, len(ends)) - 1])
            yield from self._decode(data[start:end], place + start, schema, reject)
            start = end

    def read_typed(self, data: bytes, schema: Schema) -> pa.Table | None:
        """All lines by Arrow's reader, in UTF-8; None if there is one that it can't read into the columns' types."""
        if not data or data.isspace():
            return schema.arrow.empty_table()
        spelled = _spelling(data, schema)
        if any(holds_variant(column.type) for column in schema.columns):
            return None
        if spelled is None or not valid_utf_8(data) or _may_overflow(data, schema):
            return None
        readable = pa.schema(
            [pa.field(name, _read_as(column.type)) for name, column in zip(spelled, schema.columns, strict=True)]
        )
        # Arrow reads exactly these names, and a name in another case would be a field that nobody asked for.
        if _spells_otherwise(data, tuple(_field_names(readable))):
            return None
        try:
            raw = arrow_json.read_json(
                pa.BufferReader(data),
                arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                arrow_json.ParseOptions(explicit_schema=readable, unexpected_field_behavior=self._on_further_field),
            )
            columns = [
                pa.chunked_array(
                    [cast_column(chunk, column.type, times=self.settings.text_rules) for chunk in raw[name].chunks],
                    type=column.type,
                )
                for name, column in zip(spelled, schema.columns, strict=True)
            ]
            if self.settings.add_further_fields and self._goes_beyond(raw.schema, readable, schema):
                return None
            for values in columns:
                if _holds_decimals(values.type):
                    # Arrow 26 doesn't look whether a whole number fits into a type of decimals.
                    values.validate(full=True)
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        if any(not c.nullable and values.null_count for c, values in zip(schema.columns, columns, strict=True)):
            return None
        return pa.Table.from_arrays(columns, schema=schema.arrow)

    @property
    def _on_further_field(self) -> str:
        if self.settings.add_further_fields:
            return "infer"
        return "error" if self.settings.refuse_further_fields else "ignore"

    def _goes_beyond(self, found: pa.Schema, readable: pa.Schema, schema: Schema) -> bool:
        """Whether lines have fields that are to become columns, or within a column some that it doesn't take."""
        if any(found.field(field.name).type != field.type for field in readable):
            return True
        return any(self.settings.adds(field.name, schema) and not is_untyped(field.type) for field in found)

    def _read_one_by_one(self, data: bytes, ends: list[int], place: int, schema: Schema, reject: Reject) -> pa.Table:
        records: list[Mapping[str, Any]] = []
        places: list[tuple[int, bytes]] = []
        start = 0
        for end in ends:
            line = data[start:end].rstrip(b"\r\n")
            if line.strip():
                try:
                    record = _object(line)
                except ValueError as error:
                    reject(Rejected(place + start, line, f"not a JSON object: {error}"))
                else:
                    further = _further_field(record, schema, self.settings)
                    if further is None:
                        records.append(record)
                        places.append((place + start, line))
                    else:
                        reject(Rejected(place + start, line, further))
            start = end

        def misfit(index: int, reason: str) -> None:
            where, line = places[index]
            reject(Rejected(where, line, reason))

        return records_to_arrow(records, schema, misfit, times=self.settings.text_rules)


class JsonDocumentFormat(WholeFormat):
    """A file that is one JSON value: an array of objects, or a single object."""

    name = "json_array"

    def infer(self, paths: Sequence[Path]) -> Schema | None:
        per_file = (self._records(path) for path in paths)
        records = itertools.islice(itertools.chain.from_iterable(per_file), _SAMPLE_RECORDS)
        return infer_records((record for record in records if isinstance(record, Mapping)), self.settings.times)

    def units(self, path: Path) -> Sequence[int]:
        return (len(self._records(path)),)

    def decode(self, path: Path, start: int, end: int, schema: Schema, reject: Reject) -> Iterator[pa.Table]:
        if end <= start:
            return
        records = self._records(path)
        lacking = _lacking((record for record in records if isinstance(record, Mapping)), schema, self.settings)
        if lacking is not None:
            raise further_columns(lacking, schema)
        for first in range(0, len(records), _ROWS_PER_TABLE):
            chunk = records[first : first + _ROWS_PER_TABLE]
            objects: list[tuple[int, Mapping[str, Any]]] = []
            for number, record in enumerate(chunk, first):
                problem = self._problem(record, schema)
                if problem is None:
                    objects.append((number, record))
                else:
                    reject(Rejected(number + 1, json_text(record), problem))

            def misfit(index: int, reason: str, objects: list[tuple[int, Any]] = objects) -> None:
                number, record = objects[index]
                reject(Rejected(number + 1, json_text(record), reason))

            yield records_to_arrow([record for _, record in objects], schema, misfit, times=self.settings.text_rules)

    def encode(self, rows: pa.Table, *, first: bool = True) -> bytes:
        document = b"[" + b",\n ".join(json_text(record) for record in plain_records(rows)) + b"]\n"
        return compressed(encoded(document, self.settings.encoding), self.settings.compression)

    def _problem(self, record: Any, schema: Schema) -> str | None:
        if not isinstance(record, Mapping):
            return "not a JSON object"
        return further_field(record, schema) if self.settings.refuse_further_fields else None

    def _records(self, path: Path) -> list[Any]:
        encoding = "utf-8-sig" if is_utf_8(self.settings.encoding) else self.settings.encoding
        compression = compression_of(str(path), self.settings.compression)
        data = b"".join(read_blocks(path, compression, size=_BLOCK_BYTES))
        try:
            text = data.decode(encoding)
            found = parse_json(text) if text.strip() else []
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f'file "{path}" is not a JSON document',
                detail=str(error),
                hint="WITH ('format' = 'jsonl') if each line is an object of its own",
                code="unreadable-file",
                category=Category.DATA,
            ) from error
        return found if isinstance(found, list) else [found]


def infer_records(records: Iterable[Mapping[str, Any]], times: TimeRules = ISO_IN_UTC) -> Schema | None:
    """Columns and types of parsed JSON objects, in order of first appearance; None when there is none."""
    text_kind = json_text_kinds(times)
    observed: dict[str, ObservedType] = {}
    for record in records:
        for name, value in record.items():
            column = observed.get(name)
            if column is None:
                column = observed[name] = ObservedType(text_kind)
            column.observe(value)
    return Schema(tuple(Column(name, column.type()) for name, column in observed.items())) if observed else None


def _number(text: str) -> Decimal | float:
    return float(text) if "e" in text or "E" in text else Decimal(text)


_DECODER = json.JSONDecoder(parse_float=_number)


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError(f"it is a {type(found).__name__}")  # noqa: TRY004 - a fault of the data
    return found


def _parsed_or_none(line: bytes, encoding: str) -> dict[str, Any] | None:
    try:
        return _object(line if is_utf_8(encoding) else line.decode(encoding).encode())
    except ValueError:
        return None


def _spelling(data: bytes, schema: Schema) -> list[str] | None:
    """How the first record spells the columns, when it does so otherwise than the schema; None if it can't be read."""
    try:
        found = _FIRST_LINE.match(data)
        first = _object(b"" if found is None else found[1])
    except ValueError:
        return None
    by_lower = {name.lower(): name for name in first}
    names = [name if name in first else by_lower.get(name.lower(), name) for name in schema.names]
    return names if len(set(names)) == len(names) else None


def _may_overflow(data: bytes, schema: Schema) -> bool:
    """Whether a whole number in the lines may have so many digits that Arrow 26 makes another one of it.

    It multiplies by the scale within 128 bits; that a product has too many digits for its type is found out later.
    """
    scale = max((one.scale for one in _decimals(column.type for column in schema.columns)), default=0)
    return scale > 0 and re.search(rb"[0-9]{%d}" % (_MOST_DIGITS - scale + 1), data) is not None


def _decimals(types: Iterable[pa.DataType]) -> Iterator[pa.Decimal128Type]:
    """The types of decimals whose values may overflow, within others too."""
    for type_ in types:
        if pa.types.is_decimal(type_) and type_.precision + type_.scale > _MOST_DIGITS:
            yield type_
        elif pa.types.is_struct(type_):
            yield from _decimals(field.type for field in type_)
        elif pa.types.is_list(type_):
            yield from _decimals([type_.value_type])


def _holds_decimals(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return any(_holds_decimals(field.type) for field in type_)
    return _holds_decimals(type_.value_type) if pa.types.is_list(type_) else pa.types.is_decimal(type_)


def _field_names(fields: Iterable[pa.Field]) -> Iterator[str]:
    """The names of fields and of the fields within them."""
    for field in fields:
        yield field.name
        inner = field.type
        while pa.types.is_list(inner):
            inner = inner.value_type
        if pa.types.is_struct(inner):
            yield from _field_names(inner)


def _spells_otherwise(data: bytes, names: tuple[str, ...]) -> bool:
    """Whether a field anywhere in the lines, which are UTF-8, is called like one of the names but for its case."""
    ends = pa.array([0, len(data)], pa.int64()).buffers()[1]
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(data)])
    return any(pc.match_substring_regex(text, pattern)[0].as_py() for pattern in _other_spellings(names))


@cache
def _other_spellings(names: tuple[str, ...]) -> tuple[str, ...]:
    """Expressions for fields that are called like one of the names but for the case of at least one letter."""
    spellings = [list(_in_other_case(name)) for name in dict.fromkeys(names)]
    groups = (spellings[first : first + _NAMES_PER_PATTERN] for first in range(0, len(spellings), _NAMES_PER_PATTERN))
    joined = ("|".join(itertools.chain.from_iterable(group)) for group in groups)
    return tuple(f'"(?:{alternatives})"\\s*:' for alternatives in joined if alternatives)


def _in_other_case(name: str) -> Iterator[str]:
    """One expression per letter: the first one that is in another case. What follows it may be in any."""
    for index, letter in enumerate(name):
        flipped = letter.swapcase()
        if flipped != letter and flipped.lower() == letter.lower():
            yield re.escape(name[:index]) + flipped + f"(?i:{re.escape(name[index + 1 :])})"


def _read_as(type_: pa.DataType) -> pa.DataType:
    """The type Arrow's JSON reader gets: points in time come as text, which is cast by our own rules."""
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_) or pa.types.is_binary(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _read_as(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(_read_as(type_.value_type))
    return type_


def plain_records(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows as dicts of Python values; a map is a dict too, and a VARIANT what it holds."""
    types = {field.name: field.type for field in rows.schema}
    rewritten = {name for name, type_ in types.items() if _is_rewritten(type_)}
    for batch in rows.to_batches(max_chunksize=_ROWS_PER_TABLE):
        for record in batch.to_pylist():
            for name in rewritten:
                record[name] = _plain(record[name], types[name])
            yield record


def _bare_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = json_text(value).decode()
    return str(parse_json(text)) if text.startswith('"') else text


def _is_rewritten(type_: pa.DataType) -> bool:
    """Whether JSON has values of a type in another form than Arrow gives."""
    if pa.types.is_map(type_) or is_variant(type_):
        return True
    if pa.types.is_struct(type_):
        return any(_is_rewritten(field.type) for field in type_)
    return pa.types.is_list(type_) and _is_rewritten(type_.value_type)


def _plain(value: Any, type_: pa.DataType) -> Any:
    """A value as JSON has it: Arrow gives a map as pairs, JSON writes it as an object, and a VARIANT as its value."""
    if value is None:
        return None
    if is_variant(type_):
        return decoded(value)
    if pa.types.is_map(type_):
        return {str(key): _plain(item, type_.item_type) for key, item in value}
    if pa.types.is_struct(type_):
        return {field.name: _plain(value[field.name], field.type) for field in type_}
    if pa.types.is_list(type_):
        return [_plain(inner, type_.value_type) for inner in value]
    return value


def _not_json(line: bytes) -> SourceError:
    shown = line[:80].decode("utf-8", "replace")
    return SourceError(
        "no line is a JSON object",
        detail=f"the first one is {shown!r}",
        hint="WITH ('format' = 'json_array') for one array of objects, WITH ('format' = 'csv') for CSV",
        code="not-json",
        category=Category.DATA,
    )
