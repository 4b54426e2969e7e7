"""The options by which sources and sinks say how their records are written, and the settings made of them.

A source or sink that reads or writes records adds `RECORD_OPTIONS` to its own, one of files `FILE_OPTIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from velostream.formats.base import FormatSettings, RegistrySettings, SchemaText
from velostream.formats.text import check_encoding
from velostream.model.conform import TimeRules
from velostream.model.options import Option, Options, OptionType
from velostream.model.schema import Schema

DELIMITER = Option("delimiter", "character between fields of CSV", OptionType.TEXT, ",")
QUOTE = Option("quote", "character around fields of CSV; nothing for none", OptionType.TEXT, '"')
ENCODING = Option("encoding", "encoding of text", OptionType.TEXT, "utf-8")
HEADER = Option("header", "whether the first line names the columns", OptionType.BOOLEAN, "true")
TIMESTAMP_FORMAT = Option("timestamp.format", "how timestamps are written, where not ISO-8601")
SKIP_LINES = Option("skip.lines", "lines to leave out at the beginning of each file", OptionType.INTEGER, "0")
COMPRESSION = Option(
    "compression",
    "how files are compressed; default: by their names",
    OptionType.CHOICE,
    None,
    ("none", "gzip", "zstd", "bz2", "lz4"),
)
SCHEMA_EVOLUTION = Option(
    "schema.evolution",
    "what becomes of fields that are no columns; a table that copies the source adds them by default",
    OptionType.CHOICE,
    "ignore",
    ("add", "fail", "ignore"),
)
SCHEMA_OPTIONS = (
    Option("avro.schema", "Avro schema of the records, as JSON"),
    Option("avro.schema.file", "file that holds the Avro schema"),
    Option("protobuf.schema", "protobuf schema of the records: .proto text, or a descriptor set in base64"),
    Option("protobuf.schema.file", "file that holds it: .proto text, or a descriptor set as protoc writes it"),
    Option("protobuf.message", "name of the message, where the schema has several"),
    Option("schema.registry.url", "address of the schema registry"),
    Option("schema.registry.subject", "name of the schema in the registry, for records that are written"),
    Option("schema.registry.username", "user of the schema registry"),
    Option("schema.registry.password", "password of the schema registry"),
)
RECORD_OPTIONS = (DELIMITER, QUOTE, ENCODING, TIMESTAMP_FORMAT, SCHEMA_EVOLUTION, *SCHEMA_OPTIONS)
"""Of whatever reads or writes records one by one, next to its own `format`, `timezone` and `record.schema`."""
FILE_OPTIONS = (DELIMITER, QUOTE, ENCODING, TIMESTAMP_FORMAT, SCHEMA_EVOLUTION, HEADER, SKIP_LINES, COMPRESSION)

_TAB = {"\\t": "\t", "tab": "\t"}
_PATTERN_LETTERS = re.compile(r"([A-Za-z])\1*")
_DIRECTIVES = {
    "yyyy": "%Y",
    "yy": "%y",
    "MM": "%m",
    "M": "%m",
    "MMM": "%b",
    "MMMM": "%B",
    "dd": "%d",
    "d": "%d",
    "HH": "%H",
    "H": "%H",
    "hh": "%I",
    "h": "%I",
    "mm": "%M",
    "ss": "%S",
    "a": "%p",
    "EEE": "%a",
    "EEEE": "%A",
    "XXX": "%z",
    "Z": "%z",
}


def format_settings(
    options: Options,
    *,
    declared: Schema | None = None,
    subject: str | None = None,
    system_columns: Iterable[str] = (),
) -> FormatSettings:
    """What the options say; one that its kind doesn't know has its default.

    `declared` are the columns the statement declares. `subject` is what a writer's schema is called in the registry
    unless the options name it. `system_columns` are the names of columns that the source can have by itself.
    """
    delimiter = options.text("delimiter") or ","
    quote = options.text("quote") if "quote" in options else QUOTE.default
    return FormatSettings(
        delimiter=_TAB.get(delimiter.lower(), delimiter),
        quote=quote or None,
        header=options.boolean("header") if "header" in options else True,
        columns=() if declared is None else declared.names,
        skip_lines=options.integer("skip.lines") or 0,
        encoding=check_encoding(options.text("encoding") or "utf-8"),
        times=TimeRules(options.text("timezone") or "UTC", strptime_pattern(options.text("timestamp.format"))),
        refuse_further_fields=options.text("schema.evolution") == "fail",
        add_further_fields=options.text("schema.evolution") == "add",
        system_columns=tuple(system_columns),
        compression=options.text("compression"),
        avro_schema=_schema_text(options, "avro.schema"),
        protobuf_schema=_schema_text(options, "protobuf.schema"),
        protobuf_message=options.text("protobuf.message"),
        registry=_registry(options, subject),
    )


def strptime_pattern(written: str | None) -> str | None:
    """A timestamp format as `strptime` takes it; Spark's letters (`yyyy-MM-dd HH:mm:ss`) are translated."""
    if written is None or "%" in written:
        return written
    pattern = _PATTERN_LETTERS.sub(lambda run: _DIRECTIVES.get(run[0], run[0]), written)
    return pattern.replace("'", "")


def _schema_text(options: Options, name: str) -> SchemaText:
    return SchemaText(options.text(name), options.text(f"{name}.file"))


def _registry(options: Options, subject: str | None) -> RegistrySettings | None:
    url = options.text("schema.registry.url")
    if not url:
        return None
    address = urlsplit(url.rstrip("/"))
    return RegistrySettings(
        address._replace(netloc=address.netloc.rpartition("@")[2]).geturl(),
        options.text("schema.registry.subject") or subject,
        options.text("schema.registry.username") or _unquoted(address.username),
        options.text("schema.registry.password") or _unquoted(address.password),
    )


def _unquoted(part: str | None) -> str | None:
    return None if part is None else unquote(part)
