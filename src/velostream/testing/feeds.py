"""Feeds: something a source reads, under a test's control.

A conformance suite knows a kind of source only through its feed: how to put rows there, one that is broken, or nothing
at all. Rows are known by their numbers, which count from `first_number` in the column `number_column`.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from velostream.errors import Category
from velostream.formats.base import FormatSettings
from velostream.formats.compression import compression_of
from velostream.formats.registry import make_format
from velostream.model.spool import Spool
from velostream.plugins import Group, load
from velostream.sources.base import Emits, Source, SourceSpec

_LONG_AGO = 60


@dataclass(frozen=True, slots=True)
class Trouble:
    """One way in which what a source reads from can fail: its server stopped, its table dropped, a wrong password."""

    name: str
    category: Category
    """What the error must say it is."""
    happening: Callable[[Source], AbstractContextManager[Source]]
    """Given a source that works, makes the trouble and gives the source that meets it: the same one, or another made
    with a wrong password. At the context's end the trouble is over.
    """
    passes: bool = True
    """Whether the source that met it works again afterwards."""


class SourceFeed(ABC):
    """What a source of one kind, with one set of options, reads. One test uses one feed.

    Rows are those of `numbered_rows` unless `numbered` says otherwise.
    """

    number_column = "id"
    first_number = 1
    numbered = True
    """Whether the rows have the columns and values of `numbered_rows`; else only their numbers are looked at."""
    limit_slack = 0
    """By how many rows a step may pass `max_rows`, where rows can only be had in larger units."""
    secrets: tuple[str, ...] = ()
    """What must never stand in an error: passwords, tokens."""

    @abstractmethod
    def source(self) -> Source:
        """A new source object over this feed."""

    @abstractmethod
    def append(self, count: int) -> bool:
        """Make `count` more rows available. False when this kind can't be given any after its start."""

    def append_bad_record(self) -> bool:
        """Make one record available that can't be decoded. False when there is no such thing in this kind."""
        return False

    def update(self, number: int, name: str) -> bool:
        """Give the row of that number another `name`. False when this kind's rows can't change."""
        return False

    def delete(self, number: int) -> bool:
        """Take the row of that number away. False when this kind's rows can't go."""
        return False

    def missing_source(self) -> Source | None:
        """A source of what isn't there, which says so; None when nothing can be missing."""
        return None

    def troubles(self) -> Sequence[Trouble]:
        """What can happen to what this kind reads from."""
        return ()

    def close(self) -> None:
        """Give back what the feed holds. Called once, at the end of the test."""


def numbered_rows(first: int, count: int) -> pa.Table:
    """Rows `first` to `first + count - 1`: `id BIGINT, name STRING, price DECIMAL(18,2)`."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([None if number % 7 == 0 else f"name {number}" for number in numbers], pa.string()),
            "price": pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(18, 2)),
        }
    )


class MemoryFeed(SourceFeed):
    """The spool behind `memory://feed`."""

    def __init__(self, folder: Path, **options: str) -> None:
        self._spool = Spool(folder / "feed", durable=False)
        self._options = {name.replace("_", "."): value for name, value in options.items()}
        self._next = self.first_number

    def source(self) -> Source:
        options = self._options | {"spool": str(self._spool.directory)}
        made: Source = load(Group.SOURCES, "memory")(SourceSpec("memory", "memory://feed", options))
        return made

    def append(self, count: int) -> bool:
        self._spool.append(numbered_rows(self._next, count))
        self._next += count
        return True

    def append_bad_record(self) -> bool:
        self._spool.append(pa.table({"id": ["not a number"], "name": ["bad"]}))
        return True


class FileFeed(SourceFeed):
    """Files of one format. With `one_file` they grow, else each batch of rows is a file of its own."""

    def __init__(self, folder: Path, suffix: str, *, one_file: bool, **options: str) -> None:
        self._folder = folder / "files"
        self._folder.mkdir()
        self._suffix = suffix
        self._one_file = one_file
        self._options = {name.replace("_", "."): value for name, value in options.items()}
        name, _, compression = suffix.partition(".")
        settings = FormatSettings(compression=compression_of(f"x.{compression}", None))
        self._format = make_format(options.get("format", name), settings)
        self._next = self.first_number
        self._rows = numbered_rows(self.first_number, 0)
        self._files = 0

    def source(self) -> Source:
        return self._source(self._folder / f"rows.{self._suffix}" if self._one_file else self._folder)

    def append(self, count: int) -> bool:
        rows = numbered_rows(self._next, count)
        self._write(self._format.encode(rows, first=not self._one_file or self._files == 0))
        self._rows = pa.concat_tables([self._rows, rows])
        self._next += count
        return True

    def append_bad_record(self) -> bool:
        header = b"" if self._one_file else self._format.encode(numbered_rows(self._next, 0))
        self._write(header + b"\x00\xff broken\n")
        return True

    def update(self, number: int, name: str) -> bool:
        return self._rewrite(lambda row: row | {"name": name} if row["id"] == number else row)

    def delete(self, number: int) -> bool:
        return self._rewrite(lambda row: None if row["id"] == number else row)

    def missing_source(self) -> Source | None:
        return None if self.source().capabilities.follows else self._source(self._folder / f"nowhere.{self._suffix}")

    def troubles(self) -> Sequence[Trouble]:
        return (Trouble("the folder is away", Category.MISSING, self._away),)

    @contextmanager
    def _away(self, source: Source) -> Iterator[Source]:
        elsewhere = self._folder.rename(self._folder.with_name("elsewhere"))
        yield source
        elsewhere.rename(self._folder)

    def _source(self, path: Path) -> Source:
        made: Source = load(Group.SOURCES, "file")(SourceSpec("file", f"file://{path}", self._options))
        return made

    def _rewrite(self, edit: Callable[[dict[str, Any]], dict[str, Any] | None]) -> bool:
        """Write the one file anew, each row as `edit` gives it back or not at all. False where rows can't change."""
        if not self._one_file or self.source().capabilities.emits is not Emits.CHANGES:
            return False
        edited = [row for row in map(edit, self._rows.to_pylist()) if row is not None]
        self._rows = pa.Table.from_pylist(edited, self._rows.schema)
        (self._folder / f"rows.{self._suffix}").unlink()
        self._write(self._format.encode(self._rows))
        return True

    def _write(self, data: bytes) -> None:
        name = "rows" if self._one_file else f"rows-{self._files:04d}"
        path = self._folder / f"{name}.{self._suffix}"
        with path.open("ab") as file:
            file.write(data)
        # So that a file that must be quiet before it is read is that at once.
        long_ago = time.time() - _LONG_AGO + self._files
        os.utime(path, (long_ago, long_ago))
        self._files += 1


class GeneratorFeed(SourceFeed):
    """`rate://` or `generator://`: the rows asked for first are all there ever are."""

    numbered = False

    def __init__(self, kind: str, *, number_column: str, first_number: int, **options: str) -> None:
        self.number_column = number_column
        self.first_number = first_number
        self._kind = kind
        self._options = {name.replace("_", "."): value for name, value in options.items()}
        self._rows = 0

    def source(self) -> Source:
        spec = SourceSpec(self._kind, f"{self._kind}://rows", self._options | {"rows": str(self._rows)})
        made: Source = load(Group.SOURCES, self._kind)(spec)
        return made

    def append(self, count: int) -> bool:
        if self._rows:
            return False
        self._rows = count
        return True
