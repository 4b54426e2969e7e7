"""Text that can't be cut into byte ranges (UTF-16, UTF-32), read as a whole and handed to a line format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from velostream.formats.base import FormatSettings, LineFormat, Preamble, Reject, Rejected, Sample, WholeFormat
from velostream.formats.csv import CsvFormat
from velostream.formats.json import JsonLinesFormat
from velostream.formats.lines import find_records
from velostream.model.schema import Schema


class WholeTextFormat(WholeFormat):
    """CSV or JSON lines in an encoding whose newline is more than one byte. A file is one unit."""

    name = "text"

    def __init__(self, settings: FormatSettings, lines: type[CsvFormat | JsonLinesFormat]) -> None:
        super().__init__(settings)
        self._lines: LineFormat = lines(replace(settings, encoding="utf-8"))

    def infer(self, paths: Sequence[Path]) -> Schema | None:
        return self._lines.infer([Sample(*self._content(path)) for path in paths])

    def units(self, path: Path) -> Sequence[int]:
        _, data = self._content(path)
        return (len(find_records(data, self._lines.quote, final=True).ends),)

    def decode(self, path: Path, start: int, end: int, schema: Schema, reject: Reject) -> Iterator[pa.Table]:
        if end <= start:
            return
        preamble, data = self._content(path)

        def by_line(rejected: Rejected) -> None:
            reject(replace(rejected, place=data.count(b"\n", 0, rejected.place) + 1))

        yield self._lines.decode(data, preamble, schema, by_line)

    def encode(self, rows: pa.Table, *, first: bool = True) -> bytes:
        return self._lines.encode(rows, first=first).decode().encode(self.settings.encoding)

    def _content(self, path: Path) -> tuple[Preamble, bytes]:
        data = path.read_bytes().decode(self.settings.encoding, "replace").removeprefix("\ufeff").encode()
        preamble = self._lines.preamble(data, final=True) or Preamble()
        return preamble, data[preamble.length :]
