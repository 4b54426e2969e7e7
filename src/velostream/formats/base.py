"""The format seam: bytes to Arrow and back.

A `LineFormat` has records that end with a newline, so a file can be cut into byte ranges, read in parallel and followed
while it grows. A `WholeFormat` is a file that only makes sense as a whole and is read in units of its own (row groups).
Formats hold no state and pickle; they never raise for a record that can't be decoded, they reject it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from velostream.model.conform import TimeRules
from velostream.model.schema import Schema


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


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that could not be decoded."""

    place: int
    """Where it began: the byte offset within the data of a line format, the number of the record of a whole one."""
    raw: bytes
    reason: str


Reject = Callable[[Rejected], None]


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

    @abstractmethod
    def infer(self, paths: Sequence[Path]) -> Schema | None:
        """Columns and types of the files; None when they hold no record. `SourceError` for an unreadable file."""

    @abstractmethod
    def units(self, path: Path) -> Sequence[int]:
        """Rows in each unit of a file. `SourceError` for an unreadable file."""

    @abstractmethod
    def decode(self, path: Path, start: int, end: int, schema: Schema, reject: Reject) -> Iterator[pa.Table]:
        """The units from `start` up to but not including `end`, as rows of exactly `schema`."""
