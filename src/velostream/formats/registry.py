"""Formats by name: of files by the option `format` or their extension, of records by the option.

A format whose library is an extra is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import PurePath

from velostream.errors import Category, OptionError, SourceError
from velostream.formats.base import Format, FormatSettings, RecordFormat
from velostream.formats.csv import CsvFormat
from velostream.formats.json import JsonDocumentFormat, JsonLinesFormat
from velostream.formats.parquet import ParquetFormat
from velostream.formats.text import is_wide
from velostream.formats.whole_text import WholeTextFormat

_RECORD_FORMATS = {
    "json": "velostream.formats.line_records:JsonRecords",
    "csv": "velostream.formats.line_records:CsvRecords",
    "tsv": "velostream.formats.line_records:TsvRecords",
    "string": "velostream.formats.plain:StringRecords",
    "avro": "velostream.formats.avro:AvroRecords",
    "protobuf": "velostream.formats.protobuf:ProtobufRecords",
    "debezium": "velostream.formats.debezium:DebeziumRecords",
}
RECORD_NAMES = tuple(_RECORD_FORMATS)
"""The formats of records that come one by one."""
NAMES = ("csv", "tsv", "json", "jsonl", "ndjson", "json_lines", "json_array", "parquet")
EXTENSIONS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def format_name(path: str, option: str | None) -> str:
    """The name of the format of a file; `SourceError` when neither option nor extension tells."""
    if option is not None:
        return option.lower()
    found = EXTENSIONS.get(PurePath(path).suffix.lower())
    if found is None:
        raise SourceError(
            f'format of file "{path}" is not known by its name',
            hint="WITH ('format' = 'csv'), 'tsv', 'json', 'jsonl', 'json_array' or 'parquet'",
            code="unknown-format",
            category=Category.CONFIGURATION,
        )
    return found


def make_format(name: str, settings: FormatSettings, *, head: bytes = b"") -> Format:
    """The format of that name. `json` is lines or a document, whichever `head`, the file's first bytes, shows."""
    if name == "parquet":
        return ParquetFormat(settings)
    if name == "json_array" or (name == "json" and _is_document(head)):
        return JsonDocumentFormat(settings)
    if name == "tsv" and settings.delimiter == ",":
        settings = replace(settings, delimiter="\t")
    lines = CsvFormat if name in ("csv", "tsv") else JsonLinesFormat
    return WholeTextFormat(settings, lines) if is_wide(settings.encoding) else lines(settings)


def record_format(name: str, settings: FormatSettings) -> RecordFormat:
    """The format of that name for records that come one by one; `OptionError` when there is none."""
    target = _RECORD_FORMATS.get(name.lower())
    if target is None:
        raise OptionError.value("format", name, expected="one of " + ", ".join(RECORD_NAMES))
    module, _, attribute = target.partition(":")
    made: RecordFormat = getattr(importlib.import_module(module), attribute)(settings)
    return made


def _is_document(head: bytes) -> bool:
    """Whether a JSON file is one value over several lines rather than an object per line."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return True
    first_line = text.split(b"\n", 1)[0].strip()
    return first_line == b"{" or (first_line.startswith(b"{") and first_line.endswith((b",", b"{", b"[")))
