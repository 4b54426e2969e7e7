"""Text that can't be cut into byte ranges (compressed, UTF-16, UTF-32), read in one go and handed to a line format."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from velostream.errors import Category, SourceError
from velostream.formats.base import FormatSettings, LineFormat, Preamble, Reject, Rejected, Sample, WholeFormat
from velostream.formats.compression import compressed, compression_of, read_blocks
from velostream.formats.lines import find_records
from velostream.formats.text import encoded, is_wide
from velostream.model.schema import Schema

_BLOCK_BYTES = 1 << 23
_LONGEST_RECORD = 1 << 28
_SAMPLE_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class _Piece:
    """Complete records of a file."""

    preamble: Preamble
    data: bytes
    before: int
    """How many records of the file come before them."""
    ends: np.ndarray[tuple[int], np.dtype[np.int64]]


class WholeTextFormat(WholeFormat):
    """A line format in files that have to be read from their beginning. A file is one unit."""

    name = "whole_text"

    def __init__(self, settings: FormatSettings, lines: type[LineFormat]) -> None:
        super().__init__(settings)
        narrow = "utf-8" if is_wide(settings.encoding) else settings.encoding
        self._lines: LineFormat = lines(replace(settings, encoding=narrow))

    def infer(self, paths: Sequence[Path]) -> Schema | None:
        samples: list[Sample] = []
        for path in paths:
            for piece in self._pieces(path, size=_SAMPLE_BYTES):
                samples.append(Sample(piece.preamble, piece.data))
                break
        return self._lines.infer(samples)

    def units(self, path: Path) -> Sequence[int]:
        count = sum(len(piece.ends) for piece in self._pieces(path, size=_BLOCK_BYTES))
        return (count,) if count else ()

    def decode(self, path: Path, start: int, end: int, schema: Schema, reject: Reject) -> Iterator[pa.Table]:
        if end <= start:
            return
        for piece in self._pieces(path, size=_BLOCK_BYTES):

            def by_number(rejected: Rejected, piece: _Piece = piece) -> None:
                number = int(np.searchsorted(piece.ends, rejected.place, side="right"))
                reject(replace(rejected, place=piece.before + number + 1))

            yield self._lines.decode(piece.data, piece.preamble, schema, by_number)

    def encode(self, rows: pa.Table, *, first: bool = True) -> bytes:
        text = self._lines.encode(rows, first=first)
        if is_wide(self.settings.encoding):
            text = encoded(text, self.settings.encoding, first=first)
        return compressed(text, self.settings.compression)

    def _pieces(self, path: Path, *, size: int) -> Iterator[_Piece]:
        preamble: Preamble | None = None
        held = b""
        before = 0
        blocks = self._blocks(path, size=size)
        while True:
            block = next(blocks, None)
            final = block is None
            held += block or b""
            if preamble is None:
                preamble = self._lines.preamble(held, final=final)
                if preamble is not None:
                    held = held[preamble.length :]
            if preamble is not None:
                ends = find_records(held, self._lines.quote, final=final).ends
                if len(ends):
                    yield _Piece(preamble, held[: int(ends[-1])], before, ends)
                    held = held[int(ends[-1]) :]
                    before += len(ends)
            if final:
                return
            if len(held) > _LONGEST_RECORD:
                raise _too_long(path)

    def _blocks(self, path: Path, *, size: int) -> Iterator[bytes]:
        """The content as the line format reads it."""
        blocks = read_blocks(path, compression_of(str(path), self.settings.compression), size=size)
        if not is_wide(self.settings.encoding):
            yield from blocks
            return
        decoder = codecs.getincrementaldecoder(self.settings.encoding)("replace")
        at_beginning = True
        for block in blocks:
            text = decoder.decode(block)
            yield (text.removeprefix("\ufeff") if at_beginning else text).encode()
            at_beginning = False
        yield decoder.decode(b"", final=True).encode()


def _too_long(path: Path) -> SourceError:
    return SourceError(
        f'file "{path}" has no line end within {_LONGEST_RECORD >> 20} MiB',
        hint="WITH ('format' = …) if it is not text with one record per line",
        code="record-too-long",
        category=Category.DATA,
    )
