"""The format seam: bytes to Arrow and back.

Rows come in files or one record at a time. Of files, a `LineFormat` has records that end with a newline, so a file can
be cut into byte ranges, read in parallel and followed while it grows; a `WholeFormat` only makes sense as a whole and
is read in units of its own (row groups). A `RecordFormat` decodes records that were separate to begin with: the values
of messages, the entries of a Redis stream, the bodies of requests.

A source declares the options of `formats.options`, makes `format_settings` of them and gets its format by name from
`formats.registry`. Formats pickle; they never raise for a record that can't be decoded, they reject it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from velostream.errors import Category, FurtherColumnsError, SourceError
from velostream.model.change import may_be_added
from velostream.model.conform import TimeRules
from velostream.model.schema import Schema


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema that stands in an option or in a file an option names."""

    text: str | None = None
    file: str | None = None

    def __bool__(self) -> bool:
        return self.text is not None or self.file is not None

    def load(self) -> bytes:
        """The schema as it is written; `SourceError` when its file can't be read."""
        if self.file is None:
            return (self.text or "").encode()
        try:
            return Path(self.file).read_bytes()
        except OSError as error:
            raise SourceError(
                f'schema file "{self.file}" can\'t be read',
                detail=error.strerror,
                hint="check the path; it is looked for on the machine that reads the records",
                code="unreadable-schema",
                category=Category.CONFIGURATION,
            ) from error


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Where schemas are kept that records only name by number."""

    url: str
    """Without a user in it, so that it may be shown."""
    subject: str | None = None
    """The name under which a writer's schema is kept, `<topic>-value` by custom."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class FormatSettings:
    """How bytes are to be read and written, as the options of a source or sink say."""

    delimiter: str = ","
    quote: str | None = '"'
    header: bool = True
    columns: tuple[str, ...] = ()
    """Names of the fields in order, where no header tells."""
    skip_lines: int = 0
    encoding: str = "utf-8"
    times: TimeRules = field(default_factory=TimeRules)
    refuse_further_fields: bool = False
    """Whether a field that is no column makes its record a bad one; else it is left out."""
    add_further_fields: bool = False
    """Whether such a field is to become a column: its record is not decoded before it is one."""
    system_columns: tuple[str, ...] = ()
    """What the source calls columns of its own: no field becomes a column under one of these names."""
    compression: str | None = None
    """`gzip`, `zstd` and their like, `none`; None is by the file's name."""
    avro_schema: SchemaText = field(default_factory=SchemaText)
    protobuf_schema: SchemaText = field(default_factory=SchemaText)
    protobuf_message: str | None = None
    """Name of the message within the schema; None when it has only one."""
    registry: RegistrySettings | None = None

    @property
    def text_rules(self) -> TimeRules:
        """How values are read out of JSON and CSV, which can hold bytes in base64 only."""
        return replace(self.times, bytes_in_base64=True)

    def adds(self, name: str, schema: Schema) -> bool:
        """Whether a field is to become a column that the schema lacks."""
        return self.add_further_fields and may_be_added(name, schema, system=self.system_columns)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that could not be decoded."""

    place: int
    """Where it began: the byte offset within the data of a line format, the number of the record of a whole one,
    counted from 1, the index among the records handed to a record format.
    """
    raw: bytes
    reason: str


Reject = Callable[[Rejected], None]


def further_field(names: Iterable[str], schema: Schema) -> str | None:
    """Why a record with those fields is bad where further ones are refused; None when each of them is a column."""
    for name in names:
        if schema.find(name) is None:
            return f'field "{name}" is no column, and schema.evolution is fail'
    return None


def further_columns(found: Schema | None, schema: Schema) -> SourceError:
    """The error that tells which of the columns that were found are to be added to a schema."""
    fresh = {
        column.name.lower(): (column.name, column.sql_type)
        for column in (() if found is None else found.columns)
        if schema.find(column.name) is None
    }
    if not fresh:
        return SourceError.unexpected_field("records have fields of which no column can be made", detail=str(found))
    return FurtherColumnsError.of(fresh.values())


@dataclass(frozen=True, slots=True)
class Preamble:
    """What a file begins with before its first record."""

    length: int = 0
    """In bytes: byte order mark, skipped lines, header."""
    names: tuple[str, ...] | None = None
    """Names of the fields of a line, by the header or by position; None while no line shows how many there are."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Complete records from one file, to discover columns from."""

    preamble: Preamble
    data: bytes


class Format(ABC):
    """One way of writing rows down."""

    name: ClassVar[str]

    def __init__(self, settings: FormatSettings) -> None:
        self.settings = settings

    @abstractmethod
    def encode(self, rows: pa.Table, *, first: bool = True) -> bytes:
        """Rows as bytes. `first` is whether they begin a file (a header may be due)."""


class LineFormat(Format):
    """Records end with a newline; a record may hold quoted newlines when `quote` is given."""

    @property
    def quote(self) -> bytes | None:
        """The character within which a newline does not end a record; None when there is no such thing."""
        return None

    @abstractmethod
    def preamble(self, head: bytes, *, final: bool) -> Preamble | None:
        """What the file that begins with `head` has before its records; None while that isn't complete.
        `final` says that nothing follows `head`.
        """

    @abstractmethod
    def infer(self, samples: Sequence[Sample]) -> Schema | None:
        """Columns and types the samples show; None when they hold no record."""

    @abstractmethod
    def decode(self, data: bytes, preamble: Preamble, schema: Schema, reject: Reject) -> pa.Table:
        """Complete records as rows of exactly `schema`; each record that can't be decoded goes to `reject`."""


class WholeFormat(Format):
    """A file is read as a whole, or in units that only its own bookkeeping can find."""

    def check_fields(self, path: Path, names: Iterable[str], schema: Schema) -> None:
        """`SourceError` for a file with a field that is no column, where such are refused or to be added."""
        added = [name for name in names if self.settings.adds(name, schema)]
        if added:
            found = self.infer([path])
            raise further_columns(None if found is None else found.select(added), schema)
        further = further_field(names, schema) if self.settings.refuse_further_fields else None
        if further is not None:
            raise SourceError.unexpected_field(f'file "{path}" has a field too many', detail=further)

    @abstractmethod
    def infer(self, paths: Sequence[Path]) -> Schema | None:
        """Columns and types of the files; None when they hold no record. `SourceError` for an unreadable file."""

    @abstractmethod
    def units(self, path: Path) -> Sequence[int]:
        """Rows in each unit of a file. `SourceError` for an unreadable file."""

    @abstractmethod
    def decode(self, path: Path, start: int, end: int, schema: Schema, reject: Reject) -> Iterator[pa.Table]:
        """The units from `start` up to but not including `end`, as rows of exactly `schema`."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows out of records."""

    rows: pa.Table
    """Of exactly the schema asked for, followed by `_change` (int8, +1 or -1) when the format `gives_changes`."""
    records: pa.Array
    """For each row the index of the record it came from, as int64, never falling."""
    unpaired: frozenset[int] = frozenset()
    """The records that change a row without telling what it was: only a key says which one that is."""


class RecordFormat(ABC):
    """One way of writing a row down as a record of its own."""

    name: ClassVar[str]
    gives_changes: ClassVar[bool] = False
    """A record is a change: it may take a row away, give one or both. Such a format can't encode."""

    def __init__(self, settings: FormatSettings) -> None:
        """Keep the settings and check them. Must not open or connect to anything."""
        self.settings = settings

    @abstractmethod
    def infer(self, records: pa.Array) -> Schema | None:
        """Columns and types, by the schema that was given or by what the records show; None when they show nothing.

        `SourceError` when the schema can't be had, or when no record is of this format.
        """

    @abstractmethod
    def decode(self, records: pa.Array, schema: Schema, reject: Reject) -> Decoded:
        """Records (binary) as rows of `schema`; each that can't be decoded goes to `reject` and stops no other.

        A NULL record gives no row and is not rejected: what it means is the source's business.
        """

    def key_columns(self, keys: pa.Array) -> tuple[str, ...]:
        """Which columns identify a row, by the keys that the records come with; none when those don't tell."""
        return ()

    @abstractmethod
    def encode(self, rows: pa.Table) -> pa.Array:
        """One record (binary) per row, in order. `UnsupportedError` when rows can't be written in this format."""
