"""Records of a line format that come one by one: JSON objects and CSV lines in messages.

They are joined to lines and decoded together, so that a good batch costs what a piece of a file costs. Where records
and lines turn out not to be the same, each record is decoded by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import OptionError
from velostream.formats.base import (
    Decoded,
    FormatSettings,
    LineFormat,
    Preamble,
    RecordFormat,
    Reject,
    Rejected,
    Sample,
)
from velostream.formats.csv import CsvFormat
from velostream.formats.json import JsonLinesFormat
from velostream.formats.lines import find_records
from velostream.formats.plain import lines_at
from velostream.formats.text import is_wide
from velostream.formats.wire import without_header
from velostream.model.schema import Schema

_NEWLINE = b"\n"
_ONE_BY_ONE = 64
_RejectRecord = Callable[[int, str], None]


class LineRecords(RecordFormat):
    """What JSON and CSV records share."""

    line_format: ClassVar[type[CsvFormat | JsonLinesFormat]]
    written_quote: ClassVar[bytes | None] = None
    """The character within which a newline of encoded records ends none."""

    def __init__(self, settings: FormatSettings) -> None:
        super().__init__(settings)
        if is_wide(settings.encoding):
            raise OptionError.value("encoding", settings.encoding, expected="an encoding whose newline is one byte")
        self._lines: LineFormat = self.line_format(replace(settings, header=False, skip_lines=0))

    def infer(self, records: pa.Array) -> Schema | None:
        data = _joined(self._as_lines(records.drop_null()))
        if not data.strip():
            return None
        return self._lines.infer([Sample(self._lines.preamble(data, final=True) or Preamble(), data)])

    def decode(self, records: pa.Array, schema: Schema, reject: Reject) -> Decoded:
        present = np.flatnonzero(records.is_valid().to_numpy(zero_copy_only=False))
        lines = self._as_lines(records.drop_null() if records.null_count else records)
        # What a record's fields are called must not depend on the records it comes with.
        preamble = Preamble(names=self.settings.columns or schema.names)

        def reject_record(index: int, reason: str) -> None:
            place = int(present[index])
            reject(Rejected(place, records[place].as_py(), reason))

        good = self._decode_lines(lines, 0, preamble, schema, reject_record)
        return Decoded(good.rows, pa.array(present[good.records.to_numpy()], pa.int64()))

    def encode(self, rows: pa.Table) -> pa.Array:
        data = self._lines.encode(rows, first=False)
        ends = find_records(data, self.written_quote, final=True).ends
        return lines_at(data, ends)

    def _decode_lines(
        self, lines: pa.Array, first: int, preamble: Preamble, schema: Schema, reject: _RejectRecord
    ) -> Decoded:
        """Lines together if possible, else in ever smaller pieces; `first` is the number of the first one."""
        together = self._decode_together(lines, first, preamble, schema, reject)
        if together is not None:
            return together
        if len(lines) <= _ONE_BY_ONE:
            return self._decode_each(lines, first, preamble, schema, reject)
        size = max(_ONE_BY_ONE, len(lines) // 16)
        pieces = [
            self._decode_lines(lines[start : start + size], first + start, preamble, schema, reject)
            for start in range(0, len(lines), size)
        ]
        rows = pa.concat_tables([piece.rows for piece in pieces])
        return Decoded(rows, pa.concat_arrays([piece.records for piece in pieces]))

    def _decode_together(
        self, lines: pa.Array, first: int, preamble: Preamble, schema: Schema, reject: _RejectRecord
    ) -> Decoded | None:
        """All lines at once; None when the rows can't be told apart by record."""
        data = _joined(lines)
        if data.count(_NEWLINE) != len(lines):
            return None
        rejected: list[Rejected] = []
        rows = self._lines.decode(data, preamble, schema, rejected.append)
        ends = np.cumsum(pc.binary_length(lines).to_numpy().astype(np.int64) + 1)
        failed = np.searchsorted(ends, [found.place for found in rejected], side="right")
        kept = np.ones(len(lines), bool)
        kept[failed] = False
        if rows.num_rows != kept.sum():
            return None
        for index, found in zip(failed.tolist(), rejected, strict=True):
            reject(first + index, found.reason)
        return Decoded(rows, pa.array(first + np.flatnonzero(kept), pa.int64()))

    def _decode_each(
        self, lines: pa.Array, first: int, preamble: Preamble, schema: Schema, reject: _RejectRecord
    ) -> Decoded:
        tables: list[pa.Table] = []
        kept: list[int] = []
        for index, line in enumerate(lines.to_pylist(), first):
            rejected: list[Rejected] = []
            rows = self._lines.decode(line, preamble, schema, rejected.append)
            if rejected:
                reject(index, rejected[0].reason)
            elif rows.num_rows != 1:
                reject(index, f"is {rows.num_rows} records, not one" if rows.num_rows else "is empty")
            else:
                tables.append(rows)
                kept.append(index)
        rows = pa.concat_tables(tables) if tables else schema.arrow.empty_table()
        return Decoded(rows, pa.array(kept, pa.int64()))

    def _as_lines(self, records: pa.Array) -> pa.Array:
        """The records in a form in which most of them are a line."""
        return records


class JsonRecords(LineRecords):
    """A JSON object each, over several lines if it likes; behind the header of a schema registry if there is one."""

    name = "json"
    line_format = JsonLinesFormat

    def _as_lines(self, records: pa.Array) -> pa.Array:
        if self.settings.registry is not None:
            records = without_header(records)
        if pc.any(pc.match_substring(records, _NEWLINE)).as_py():
            records = pc.replace_substring(records, _NEWLINE, b" ")
        return records


class CsvRecords(LineRecords):
    """A line of CSV each, without a header; its fields are the declared columns, else `_c0`, `_c1` and so on."""

    name = "csv"
    line_format = CsvFormat
    written_quote = b'"'


class TsvRecords(CsvRecords):
    name = "tsv"

    def __init__(self, settings: FormatSettings) -> None:
        super().__init__(replace(settings, delimiter="\t") if settings.delimiter == "," else settings)


def _joined(lines: pa.Array) -> bytes:
    """The lines with a newline after each."""
    if not len(lines):
        return b""
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    joined: bytes = pc.binary_join(whole, _NEWLINE)[0].as_py()
    return joined + _NEWLINE
