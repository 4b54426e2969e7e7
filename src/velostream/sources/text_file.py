"""A text file as byte ranges that begin and end with its records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from velostream.errors import Category, SourceError
from velostream.formats.base import LineFormat, Preamble
from velostream.formats.lines import Positions, find_records
from velostream.formats.opening import open_file
from velostream.sources.file_state import fingerprint

_HEAD_BYTES = 1 << 16
_FIRST_BLOCK = 1 << 18
_BLOCK_BYTES = 1 << 23
_LONGEST_RECORD = 1 << 28


@dataclass(frozen=True, slots=True)
class Advance:
    """A further position and how many records lie before it, where they were counted."""

    position: int
    rows: int = 0


class TextFile:
    """An open file of a line format. Positions are byte offsets from its beginning."""

    def __init__(self, path: str, line_format: LineFormat) -> None:
        self.path = path
        self._format = line_format
        self._file = open_file(path)
        self.size = os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def fingerprint(self, length: int) -> str:
        return fingerprint(self._file, length)

    def preamble(self, *, final: bool) -> Preamble | None:
        """What stands before the first record; None while it isn't complete."""
        length = _HEAD_BYTES
        while True:
            head = self._read(0, length)
            whole = len(head) >= self.size
            found = self._format.preamble(head, final=final and whole)
            if found is not None or whole:
                return found
            length *= 4

    def advance(self, start: int, *, max_rows: int | None, final: bool, size: int | None = None) -> Advance:
        """The end of the complete records after `start`, at most `max_rows` of them.

        With `final`, a last line without a newline is complete. Records are only counted under a limit.
        """
        end = self.size if size is None else min(size, self.size)
        if max_rows is None and final:
            return Advance(max(start, end))
        if max_rows is None and not self._has_quotes(start, end):
            return Advance(self._last_newline(start, end))
        position = start
        count = 0
        for block, records in self._blocks(start, end, final=final, first=_FIRST_BLOCK):
            if max_rows is not None and count + len(records) >= max_rows:
                return Advance(block + int(records[max_rows - count - 1]), max_rows)
            position = block + int(records[-1])
            count += len(records)
        return Advance(position, count)

    def cuts(self, start: int, end: int, *, part: int) -> list[int]:
        """Ends of parts of about `part` bytes, each at the end of a record; the last is `end`."""
        if end - start <= part + part // 2:
            return [end]
        found: list[int] = []
        position = start
        if not self._has_quotes(start, end):
            while end - position > part + part // 2:
                position = self._next_newline(position + part, end)
                found.append(position)
        else:
            for block, records in self._blocks(start, end, final=True):
                reached = block + int(records[-1])
                if reached - position >= part and end - reached > part // 2:
                    position = reached
                    found.append(position)
        return [cut for cut in found if cut < end] + [end]

    def chunks(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The records of a range in pieces small enough to decode at once, each with its position."""
        for position, data, records in self._data_blocks(start, end, final=True, first=_BLOCK_BYTES):
            yield position, data[: records[-1]]

    def lines_before(self, position: int) -> int:
        """How many lines end before a position."""
        count = 0
        for offset in range(0, position, _BLOCK_BYTES):
            count += self._read(offset, min(_BLOCK_BYTES, position - offset)).count(b"\n")
        return count

    def _blocks(
        self, start: int, end: int, *, final: bool, first: int = _BLOCK_BYTES
    ) -> Iterator[tuple[int, Positions]]:
        for position, _, records in self._data_blocks(start, end, final=final, first=first):
            yield position, records

    def _data_blocks(self, start: int, end: int, *, final: bool, first: int) -> Iterator[tuple[int, bytes, Positions]]:
        """Blocks that begin with a record: position, bytes, ends of the complete records in it (at least one)."""
        length = first
        position = start
        while position < end:
            data = self._read(position, min(length, end - position))
            at_end = position + len(data) >= end
            if not data:
                return
            ends = find_records(data, self._format.quote, final=final and at_end).ends
            if len(ends):
                yield position, data, ends
                position += int(ends[-1])
                length = min(length * 4, _BLOCK_BYTES)
            elif at_end:
                return
            elif length >= _LONGEST_RECORD:
                raise _too_long(self.path, position)
            else:
                length *= 4

    def _last_newline(self, start: int, end: int) -> int:
        position = end
        while position > start:
            begin = max(start, position - _FIRST_BLOCK)
            found = self._read(begin, position - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            position = begin
        return start

    def _next_newline(self, position: int, end: int) -> int:
        while position < end:
            data = self._read(position, min(_HEAD_BYTES, end - position))
            found = data.find(b"\n")
            if found >= 0:
                return position + found + 1
            position += len(data)
        return end

    def _has_quotes(self, start: int, end: int) -> bool:
        quote = self._format.quote
        if quote is None:
            return False
        return any(
            quote in self._read(offset, min(_BLOCK_BYTES, end - offset)) for offset in range(start, end, _BLOCK_BYTES)
        )

    def _read(self, position: int, length: int) -> bytes:
        try:
            return os.pread(self._file.fileno(), length, position)
        except OSError as error:
            raise SourceError(
                f'file "{self.path}" can\'t be read', detail=str(error), code="unreadable-file"
            ) from error


def _too_long(path: str, position: int) -> SourceError:
    return SourceError(
        f'file "{path}" has no line end within {_LONGEST_RECORD >> 20} MiB',
        detail=f"the record begins at byte {position}",
        hint="WITH ('format' = …) if it is not text with one record per line",
        code="record-too-long",
        category=Category.DATA,
    )
