"""What several kinds of sources share: common options and parameters written into the URI."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from velostream.errors import OptionError
from velostream.model.address import split_parameters
from velostream.model.options import Option, OptionType
from velostream.model.schema import Column, Schema
from velostream.model.types import parse_type
from velostream.sources.base import Emits, SourceSpec

COMMON_OPTIONS = (
    Option(
        "bad.records",
        "what becomes of records that can't be decoded",
        OptionType.CHOICE,
        "dead_letter",
        ("dead_letter", "fail", "skip"),
    ),
    Option("max.rows.per.trigger", "most rows read in one step", OptionType.INTEGER),
    Option("record.schema", "columns of the records, as in CREATE TABLE"),
    Option("timezone", "zone of timestamps that carry none", OptionType.TEXT, "UTC"),
    Option("key", "columns that identify a record, for changelog = upsert or changes"),
)

OFFSET_RESET = Option("auto.offset.reset", "where reading begins: earliest or latest", OptionType.TEXT, "earliest")

_EMITS = {"append": Emits.APPENDS, "upsert": Emits.UPSERTS, "changes": Emits.CHANGES}


def with_parameters(spec: SourceSpec) -> SourceSpec:
    """The spec with the URI's parameters among its options, where WITH hasn't set them, and the bare URI."""
    address, parameters = split_parameters(spec.uri)
    given = {name.lower(): value for name, value in spec.options.items()}
    return replace(spec, uri=address, options=parameters | given) if parameters else spec


def declared_columns(spec: SourceSpec, record_schema: str | None) -> Schema | None:
    """Columns the statement declares, else those of the option `record.schema`."""
    if spec.columns is not None or not record_schema:
        return spec.columns
    return parse_columns(record_schema)


def parse_columns(text: str) -> Schema:
    """`id BIGINT, name STRING NOT NULL, tags ARRAY<STRING>` as a schema; `OptionError` when it isn't that."""
    columns: list[Column] = []
    listing = text.strip()
    if listing.startswith("(") and listing.endswith(")"):
        listing = listing[1:-1]
    for part in _top_level_parts(listing):
        match = re.fullmatch(r"\s*(`[^`]+`|\"[^\"]+\"|[^\s:]+)\s*[:\s]\s*(.+?)(\s+NOT\s+NULL)?\s*", part, re.IGNORECASE)
        if match is None:
            raise OptionError.value("record.schema", text, expected="a list of columns: id BIGINT, name STRING")
        columns.append(Column(match[1].strip('`"'), parse_type(match[2]), nullable=match[3] is None))
    return Schema(tuple(columns))


def begins_at_latest(reset: str | None) -> tuple[bool, tuple[str, ...]]:
    """Whether `auto.offset.reset` asks for the end, and the warning when it says neither end nor beginning."""
    wanted = (reset or "earliest").strip().lower()
    if wanted in ("earliest", "latest"):
        return wanted == "latest", ()
    return False, (f'auto.offset.reset "{reset}" is neither earliest nor latest; reading from the earliest record',)


def emits_of(changelog: str | None) -> Emits:
    """What the `changelog` option says a record means."""
    return _EMITS[(changelog or "append").lower()]


def names_of(listing: str | None) -> tuple[str, ...]:
    """Names of a comma-separated option value."""
    return tuple(name.strip() for name in (listing or "").split(",") if name.strip())


def _top_level_parts(text: str) -> Iterable[str]:
    depth = 0
    start = 0
    for index, character in enumerate(text):
        if character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]
