"""CSV and TSV. An empty field is NULL, a quoted empty one is the empty string.

Columns are read straight into their types by Arrow's own reader. Where that stumbles, the same data is read as text and
each column cast by itself, which finds the guilty records; they are rejected and the others kept.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from velostream.errors import Category, OptionError, SourceError
from velostream.formats.base import (
    FormatSettings,
    LineFormat,
    Preamble,
    Reject,
    Rejected,
    Sample,
    further_columns,
    further_field,
)
from velostream.formats.inference import observe_texts
from velostream.formats.lines import BYTE_ORDER_MARK, Records, find_records
from velostream.formats.text import as_utf_8, encoded, is_utf_8, valid_utf_8
from velostream.model.conform import TimeRules, conform, parse_timestamps
from velostream.model.inference import ObservedType
from velostream.model.rows import fit_value
from velostream.model.schema import Column, Schema

_COUNTED_LINES = 100
_DIRECT = (
    pa.types.is_string,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
)


class CsvFormat(LineFormat):
    name = "csv"

    def __init__(self, settings: FormatSettings) -> None:
        super().__init__(settings)
        if len(settings.delimiter) != 1 or len(settings.delimiter.encode()) != 1:
            raise OptionError.value("delimiter", settings.delimiter, expected="a single character")
        if settings.quote is not None and len(settings.quote.encode()) != 1:
            raise OptionError.value("quote", settings.quote, expected="a single character, or nothing for no quotes")

    @property
    def quote(self) -> bytes | None:
        return None if self.settings.quote is None else self.settings.quote.encode()

    def preamble(self, head: bytes, *, final: bool) -> Preamble | None:
        position = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
        for _ in range(self.settings.skip_lines):
            end = head.find(b"\n", position)
            if end < 0:
                return Preamble(len(head)) if final else None
            position = end + 1
        records = find_records(memoryview(head)[position:], self.quote, final=final)
        if not self.settings.header:
            return Preamble(position, self._positional(head[position:], records))
        for start, end in zip(records.starts.tolist(), records.ends.tolist(), strict=True):
            line = head[position + start : position + end]
            if line.strip():
                return Preamble(position + end, self._header(line))
        return Preamble(len(head)) if final else None

    def infer(self, samples: Sequence[Sample]) -> Schema | None:
        observed: dict[str, ObservedType] = {}
        rows = 0
        for sample in samples:
            data = sample.data
            if b"\0" in data[: 1 << 16]:
                raise _not_text()
            names = sample.preamble.names
            if not names:
                continue
            rejected: list[Rejected] = []
            if not is_utf_8(self.settings.encoding):
                data, _ = as_utf_8(data, self.settings.encoding, rejected.append)
            texts, _ = self._read_texts(data, find_records(data, self.quote, final=True), names, rejected.append)
            if not texts.num_rows and rejected and rejected[0].reason.startswith("not valid"):
                raise _not_text()
            rows += texts.num_rows
            for name, column in zip(texts.column_names, texts.columns, strict=True):
                observe_texts(observed.setdefault(name, ObservedType()), column, times=self.settings.times)
        return Schema(tuple(Column(name, column.type()) for name, column in observed.items())) if rows else None

    def decode(self, data: bytes, preamble: Preamble, schema: Schema, reject: Reject) -> pa.Table:
        if not is_utf_8(self.settings.encoding):
            data, reject = as_utf_8(data, self.settings.encoding, reject)
        names = preamble.names or schema.names
        if not data or not names:
            return schema.arrow.empty_table()
        lacking = self._lacking(data, names, schema)
        if lacking is not None:
            raise further_columns(lacking, schema)
        further = further_field(names, schema) if self.settings.refuse_further_fields else None
        if further is not None:
            records = find_records(data, self.quote, final=True)
            for start, end in zip(records.starts.tolist(), records.ends.tolist(), strict=True):
                reject(Rejected(start, _line(data, start, end), further))
            return schema.arrow.empty_table()
        quoted = self.settings.quote is not None and self.settings.quote.encode() in data
        found = find_records(data, self.quote, final=True) if quoted else None
        if found is None or not len(found.unbalanced):
            rows = self._read_typed(data, names, schema)
            if rows is not None:
                return rows
        return self._read_carefully(data, found or find_records(data, self.quote, final=True), names, schema, reject)

    def _lacking(self, data: bytes, names: tuple[str, ...], schema: Schema) -> Schema | None:
        """The fields that are to become columns, of those that have a value in this data; None when there are none."""
        added = [name for name in names if self.settings.adds(name, schema)]
        if not added:
            return None
        texts, _ = self._read_texts(data, find_records(data, self.quote, final=True), names, _pass_over)
        columns: list[Column] = []
        for name in added:
            values = texts[name]
            if pc.any(pc.not_equal(pc.utf8_trim_whitespace(values), "")).as_py():
                observed = ObservedType()
                observe_texts(observed, values, times=self.settings.times)
                columns.append(Column(name, observed.type()))
        return Schema(tuple(columns)) if columns else None

    def encode(self, rows: pa.Table, *, first: bool = True) -> bytes:
        out = io.BytesIO()
        if first and self.settings.header:
            quoted = csv.writer(text := io.StringIO(), delimiter=self.settings.delimiter, lineterminator="\n")
            quoted.writerow(rows.column_names)
            out.write(text.getvalue().encode())
        options = arrow_csv.WriteOptions(include_header=False, delimiter=self.settings.delimiter)
        # pyarrow 26 writes memory it never filled for a chunk without rows.
        whole = _flat(rows).combine_chunks()
        if whole.num_rows:
            arrow_csv.write_csv(whole, out, options)
        return encoded(out.getvalue(), self.settings.encoding)

    def _header(self, line: bytes) -> tuple[str, ...]:
        text = line.decode(self.settings.encoding, "replace").removeprefix("\ufeff")
        quoting: dict[str, Any] = {"quoting": csv.QUOTE_NONE}
        if self.settings.quote is not None:
            quoting = {"quotechar": self.settings.quote}
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.settings.delimiter, **quoting)
        names: list[str] = []
        for position, written in enumerate(next(filter(None, reader), [])):
            name = written.strip() or f"_c{position}"
            taken = {known.lower() for known in names}
            copies = 2
            unique = name
            while unique.lower() in taken:
                unique, copies = f"{name}_{copies}", copies + 1
            names.append(unique)
        return tuple(names)

    def _positional(self, head: bytes, records: Records) -> tuple[str, ...] | None:
        """Names by position for as many fields as most of the first lines have; one bad line must not decide."""
        spans = list(zip(records.starts.tolist(), records.ends.tolist(), strict=True))[:_COUNTED_LINES]
        widths = Counter(len(self._header(head[start:end])) for start, end in spans if head[start:end].strip())
        if not widths:
            return self.settings.columns or None
        width = widths.most_common(1)[0][0]
        declared = self.settings.columns[:width]
        return declared + tuple(f"_c{position}" for position in range(len(declared), width))

    def _read_typed(self, data: bytes, names: tuple[str, ...], schema: Schema) -> pa.Table | None:
        """All columns in their types at once, or None when any field stands in the way."""
        found = _columns_by_name(names, schema)
        types = {
            names[position]: column.type if any(fits(column.type) for fits in _DIRECT) else pa.string()
            for column, position in found
            if position is not None
        }
        if not types or b"\0" in data:
            return None
        try:
            raw = self._read(data, names, types, list(types))
            arrays = []
            for column, position in found:
                if position is None:
                    arrays.append(pa.chunked_array([pa.nulls(raw.num_rows, column.type)]))
                else:
                    arrays.append(self._typed(raw[names[position]], column))
        except (pa.ArrowException, UnicodeDecodeError, _IrregularError):
            return None
        if any(not c.nullable and a.null_count for c, a in zip(schema.columns, arrays, strict=True)):
            return None
        return pa.Table.from_arrays(arrays, schema=schema.arrow)

    def _typed(self, values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
        if values.type == column.type:
            return values
        if pa.types.is_timestamp(column.type) and column.type.tz:
            texts = values.combine_chunks()
            return pa.chunked_array([parse_timestamps(pc.utf8_trim_whitespace(texts), times=self.settings.times)])
        raise _IrregularError

    def _read(
        self, data: bytes, names: Sequence[str], types: dict[str, pa.DataType], columns: list[str], ragged: Any = None
    ) -> pa.Table:
        quote = self.settings.quote
        return arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(column_names=list(names), use_threads=False, block_size=len(data) + 1),
            arrow_csv.ParseOptions(
                delimiter=self.settings.delimiter,
                quote_char=quote if quote is not None else False,
                double_quote=quote is not None,
                newlines_in_values=quote is not None,
                invalid_row_handler=ragged,
            ),
            arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=columns,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )

    def _read_carefully(
        self, data: bytes, records: Records, names: tuple[str, ...], schema: Schema, reject: Reject
    ) -> pa.Table:
        texts, kept = self._read_texts(data, records, names, reject)
        starts, ends = records.starts, records.ends

        def misfit(index: int, reason: str) -> None:
            record = kept[index]
            reject(Rejected(int(starts[record]), _line(data, starts[record], ends[record]), reason))

        columns: list[pa.ChunkedArray] = []
        for column, position in _columns_by_name(names, schema):
            if position is None:
                columns.append(pa.chunked_array([pa.nulls(texts.num_rows, pa.string())]))
                continue
            values = texts.column(position)
            if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
                # Writers that quote every field write a missing number as "".
                values = pc.if_else(pc.equal(pc.utf8_trim_whitespace(values), ""), None, values)
            columns.append(_parsed_nested(values, column, self.settings.text_rules))
        return conform(pa.table(columns, names=list(schema.names)), schema, misfit, times=self.settings.text_rules)

    def _read_texts(
        self, data: bytes, records: Records, names: tuple[str, ...], reject: Reject
    ) -> tuple[pa.Table, list[int]]:
        """All fields as text, and which record each row came from; records that are no rows are rejected."""
        starts, ends = records.starts.tolist(), records.ends.tolist()
        unfit: dict[int, str] = dict.fromkeys(records.unbalanced.tolist(), "a quote is opened and never closed")
        if not valid_utf_8(data):
            for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
                if not valid_utf_8(data[start:end]):
                    unfit.setdefault(index, "not valid UTF-8")
        if b"\0" in data:
            for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
                if b"\0" in data[start:end]:
                    unfit.setdefault(index, "not valid text: it holds a NUL byte")
        for index, reason in sorted(unfit.items()):
            reject(Rejected(starts[index], _line(data, starts[index], ends[index]), reason))
        blank = _blank_records(data, starts, ends)
        good = [index for index in range(len(starts)) if index not in unfit and index not in blank]
        return self._read_records(data, starts, ends, good, names, reject)

    def _read_records(
        self, data: bytes, starts: list[int], ends: list[int], good: list[int], names: tuple[str, ...], reject: Reject
    ) -> tuple[pa.Table, list[int]]:
        nothing = pa.table({name: pa.array([], pa.string()) for name in names})
        if not good:
            return nothing, []
        ragged: dict[int, str] = {}

        def skip(row: arrow_csv.InvalidRow) -> str:
            ragged[row.number - 1] = f"has {row.actual_columns} fields, expected {row.expected_columns}"
            return "skip"

        joined = b"".join(data[starts[index] : ends[index]].rstrip(b"\r\n") + b"\n" for index in good)
        try:
            rows = self._read(joined, names, dict.fromkeys(names, pa.string()), list(names), skip)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            rows = None
            reason = str(error)
        kept = [index for number, index in enumerate(good) if number not in ragged]
        if rows is not None and rows.num_rows == len(kept) and max(ragged, default=0) < len(good):
            for number, why in sorted(ragged.items()):
                reject(Rejected(starts[good[number]], _line(data, starts[good[number]], ends[good[number]]), why))
            # Arrow leaves the columns out, too, when it skipped every row.
            return (rows if kept else nothing), kept
        if len(good) == 1:
            why = reason if rows is None else "is not one record"
            reject(Rejected(starts[good[0]], _line(data, starts[good[0]], ends[good[0]]), why))
            return nothing, []
        half = len(good) // 2
        first, first_kept = self._read_records(data, starts, ends, good[:half], names, reject)
        second, second_kept = self._read_records(data, starts, ends, good[half:], names, reject)
        return pa.concat_tables([first, second]), first_kept + second_kept


class _IrregularError(Exception):
    """A column that Arrow's reader can't give in its type."""


def _pass_over(_: Rejected) -> None:
    """For records that are looked at and decoded later: they are rejected then."""


def _columns_by_name(names: tuple[str, ...], schema: Schema) -> list[tuple[Column, int | None]]:
    exact = {name: position for position, name in enumerate(names)}
    lower = {name.lower(): position for name, position in exact.items()}
    return [(column, exact.get(column.name, lower.get(column.name.lower()))) for column in schema.columns]


def _blank_records(data: bytes, starts: list[int], ends: list[int]) -> set[int]:
    lengths = np.array(ends) - np.array(starts)
    return {
        int(index) for index in np.flatnonzero(lengths <= 2) if not data[starts[index] : ends[index]].strip(b"\r\n")
    }


def _line(data: bytes, start: int, end: int) -> bytes:
    return data[start:end].rstrip(b"\r\n")


def _parsed_nested(values: pa.ChunkedArray, column: Column, times: TimeRules) -> pa.ChunkedArray:
    """Declared nested columns hold JSON text; what isn't that is left for the cast to refuse."""
    if not pa.types.is_nested(column.type):
        return values
    from velostream.formats.json import parse_json

    try:
        parsed = [
            None if text is None else fit_value(parse_json(text), column.type, times=times)
            for text in values.to_pylist()
        ]
        return pa.chunked_array([pa.array(parsed, column.type)])
    except (ValueError, TypeError, pa.ArrowException):
        return values


def _flat(rows: pa.Table) -> pa.Table:
    """Nested and binary columns as text, which CSV can hold."""
    from velostream.formats.json import json_column

    for position, field in enumerate(rows.schema):
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type) or pa.types.is_duration(field.type):
            rows = rows.set_column(position, field.name, json_column(rows.column(position)))
    return rows


def _not_text() -> SourceError:
    return SourceError(
        "the data is not text in the expected encoding",
        hint="WITH ('encoding' = 'latin-1'), 'utf-16' or another; WITH ('format' = 'parquet') if it is that",
        code="not-text",
        category=Category.DATA,
    )
