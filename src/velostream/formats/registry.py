"""Formats by name: of files by the option `format` or their extension, of records by the option.

A format whose library is an extra is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from velostream.errors import Category, OptionError, SourceError
from velostream.formats.base import Format, FormatSettings, LineFormat, RecordFormat
from velostream.formats.compression import NONE, bare_name
from velostream.formats.csv import CsvFormat
from velostream.formats.json import JsonDocumentFormat, JsonLinesFormat
from velostream.formats.plain import TextFormat
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
NAMES = ("csv", "tsv", "json", "jsonl", "ndjson", "json_lines", "json_array", "text", "parquet", "avro", "orc")
"""The formats of files."""
NATIVE_NAMES = tuple(name for name in NAMES if name != "avro")
"""Those of files that are decoded by libraries which let go of Python's lock."""
EXTENSIONS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".log": "text",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".avro": "avro",
    ".orc": "orc",
}
_LINES: dict[str, type[LineFormat]] = {"csv": CsvFormat, "tsv": CsvFormat, "text": TextFormat}
_BINARY: dict[str, str] = {
    "parquet": "velostream.formats.parquet:ParquetFormat",
    "avro": "velostream.formats.avro:AvroFileFormat",
    "orc": "velostream.formats.orc:OrcFormat",
}


def format_by_extension(path: str) -> str | None:
    """The name of the format a file's name speaks of; a suffix that tells of compression is passed over."""
    return EXTENSIONS.get(PurePath(bare_name(path)).suffix.lower())


def format_name(path: str, option: str | None) -> str:
    """The name of the format of a file; `SourceError` when neither option nor extension tells."""
    found = format_by_extension(path) if option is None else option.lower()
    if found is None:
        raise SourceError(
            f'format of file "{path}" is not known by its name',
            hint="WITH ('format' = 'csv'), 'tsv', 'json', 'jsonl', 'json_array', 'text', 'parquet', 'avro' or 'orc'",
            code="unknown-format",
            category=Category.CONFIGURATION,
        )
    return found


def make_format(name: str, settings: FormatSettings, *, head: bytes = b"") -> Format:
    """The format of that name for files. `settings.compression` is that of the file, whatever its name.

    `json` is lines or a document, whichever `head`, the file's first bytes when decompressed, shows.
    """
    if name in _BINARY:
        if settings.compression not in (None, NONE):
            raise OptionError.value(
                "compression", settings.compression or "", expected=f"none: {name} files compress what is in them"
            )
        made: Format = _load(_BINARY[name])(settings)
        return made
    if name == "json_array" or (name == "json" and _is_document(head)):
        return JsonDocumentFormat(settings)
    if name == "tsv" and settings.delimiter == ",":
        settings = replace(settings, delimiter="\t")
    lines = _LINES.get(name, JsonLinesFormat)
    whole = is_wide(settings.encoding) or settings.compression not in (None, NONE)
    return WholeTextFormat(settings, lines) if whole else lines(settings)


def record_format(name: str, settings: FormatSettings) -> RecordFormat:
    """The format of that name for records that come one by one; `OptionError` when there is none."""
    target = _RECORD_FORMATS.get(name.lower())
    if target is None:
        raise OptionError.value("format", name, expected="one of " + ", ".join(RECORD_NAMES))
    made: RecordFormat = _load(target)(settings)
    return made


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _is_document(head: bytes) -> bool:
    """Whether a JSON file is one value over several lines rather than an object per line."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return True
    first_line = text.split(b"\n", 1)[0].strip()
    return first_line == b"{" or (first_line.startswith(b"{") and first_line.endswith((b",", b"{", b"[")))
