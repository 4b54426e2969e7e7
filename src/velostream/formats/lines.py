"""Where records end in text, found without decoding them.

A record is a line; with a quote character it is the shortest run of lines that holds an even number of them. A quote
that is not closed within `MAX_QUOTED` bytes is a mistake in that line and not the beginning of a record that long, so
one stray quote costs one line and never the rest of the file. The rule only looks forward from a record's first byte,
so every reader cuts the same file the same way, wherever its ranges begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_QUOTED = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NEWLINE = 0x0A

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Records:
    """Ends of the complete records of some data (each one past its newline), and which have a quote left open."""

    ends: Positions
    unbalanced: Positions
    """Indices of records in which a quote was opened and not closed."""

    @property
    def starts(self) -> Positions:
        return np.concatenate((np.zeros(1, np.int64), self.ends[:-1])) if len(self.ends) else self.ends


def skipped_length(head: bytes, lines: int, *, final: bool) -> int | None:
    """How many bytes a byte order mark and the first `lines` lines take of a file that begins with `head`; None while
    they aren't complete. `final` says that nothing follows `head`.
    """
    length = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
    for _ in range(lines):
        end = head.find(b"\n", length)
        if end < 0:
            return len(head) if final else None
        length = end + 1
    return length if final or len(head) > len(BYTE_ORDER_MARK) else None


def find_records(data: bytes | memoryview, quote: bytes | None, *, final: bool) -> Records:
    """The complete records of `data`, which begins at the start of one.

    With `final`, nothing follows: a last line without a newline and an open quote end there. Without it, what isn't
    complete is left for later.
    """
    octets = np.frombuffer(data, np.uint8)
    line_ends = np.flatnonzero(octets == _NEWLINE).astype(np.int64) + 1
    if final and len(octets) and (not len(line_ends) or line_ends[-1] < len(octets)):
        line_ends = np.append(line_ends, len(octets))
    nothing = np.zeros(0, np.int64)
    if quote is None or not len(line_ends):
        return Records(line_ends, nothing)
    quotes = np.flatnonzero(octets == quote[0])
    if not len(quotes):
        return Records(line_ends, nothing)
    quotes_before_end = np.searchsorted(quotes, line_ends)
    odd_lines = np.flatnonzero(np.diff(quotes_before_end, prepend=0) & 1)
    if not len(odd_lines):
        return Records(line_ends, nothing)
    return _join_lines(line_ends, odd_lines, size=len(octets), final=final)


def cut_records(data: bytes, quote: bytes | None, *, size: int) -> Iterator[tuple[int, bytes]]:
    """All records in pieces of about so many bytes, each with its position. Of no data there is no piece."""
    start = 0
    while start < len(data):
        length = size
        while True:
            end = start + length
            if end >= len(data):
                yield start, data[start:]
                return
            if quote is None:
                found = data.rfind(b"\n", start, end) + 1
            else:
                ends = find_records(memoryview(data)[start:end], quote, final=False).ends
                found = start + int(ends[-1]) if len(ends) else 0
            if found > start:
                break
            length *= 2
        yield start, data[start:found]
        start = found


def _join_lines(line_ends: Positions, odd_lines: Positions, *, size: int, final: bool) -> Records:
    """Pair each line that opens a quote with the one that closes it."""
    is_end = np.ones(len(line_ends), bool)
    open_lines: list[int] = []
    complete = len(line_ends)
    position = 0
    while position < len(odd_lines):
        opening = int(odd_lines[position])
        begins = int(line_ends[opening - 1]) if opening else 0
        closing = int(odd_lines[position + 1]) if position + 1 < len(odd_lines) else None
        if closing is not None and line_ends[closing] - begins <= MAX_QUOTED:
            is_end[opening:closing] = False
            position += 2
        elif closing is not None or final or size - begins > MAX_QUOTED:
            open_lines.append(opening)
            position += 1
        else:
            complete = opening
            break
    kept = is_end[:complete]
    record_of_line = np.cumsum(kept) - 1
    return Records(line_ends[:complete][kept], record_of_line[np.array(open_lines, np.int64)])
