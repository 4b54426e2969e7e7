"""The log: every commit as one checksummed record, on the disk before anybody sees it.

Segments `log-<number>.bin` follow one another without a gap. A record is a fixed prefix, a JSON header padded to eight
bytes, and payloads (Arrow IPC messages, raw integers) whose lengths the header names. A record is written by
one call and synced before its commit is published; so only the last record of the last segment can be torn, and
it belongs to a commit that nobody saw. Recovery cuts it off; any other damage is an error.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from velostream.errors import StateError
from velostream.tables.memory.files import DurableFile, SystemFile, sync_directory

_MAGIC = b"VELOLOG1"
_MARK = b"VREC"
_PREFIX = struct.Struct("<4sIQII")
"""Mark, checksum of the three that follow, length of the body, checksum of the body, length of its JSON header."""
_CHECKED = struct.Struct("<QII")
_ALIGNMENT = 8
_SEGMENT = re.compile(r"log-(\d{10})\.bin")


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it was written."""

    header: Mapping[str, Any]
    payloads: Sequence[pa.Buffer]


class Log:
    """The segments in a directory, and the file of the last one. Used under the commit lock."""

    def __init__(self, directory: Path, *, open_file: Callable[[Path], DurableFile] = SystemFile) -> None:
        self._directory = directory
        self._open_file = open_file
        self._segment = 0
        self._file: DurableFile | None = None
        self._end = 0
        self._torn = False
        self.unmerged_bytes = 0
        """Bytes written since the last base."""

    def records(self, first_segment: int) -> Iterator[Record]:
        """Everything written from a segment on; cuts a torn end off. Call it once, before `append`."""
        segments = [number for number in segment_numbers(self._directory) if number >= first_segment]
        if segments and segments != list(range(first_segment, segments[-1] + 1)):
            raise StateError.corrupt(str(self._directory), reason="a segment of the log is missing")
        for number in segments:
            reader = _SegmentReader(self._path(number), is_last=number == segments[-1])
            yield from reader.records()
            self._end = reader.end
            self.unmerged_bytes += reader.end
        self._segment = segments[-1] if segments else first_segment
        self._torn = bool(segments)

    def append(self, header: Mapping[str, Any], payloads: Sequence[pa.Buffer] = ()) -> None:
        """Write one record and wait until it is on the disk. On failure the log is as it was."""
        record = encode(header, payloads)
        try:
            file = self._ready()
            self._torn = True
            file.write(record)
            file.sync()
        except OSError as error:
            self._restore()
            raise StateError(
                "a commit could not be written to the log",
                detail=f"{self._path(self._segment)}: {error}",
                hint="make room on the disk or check the directory; the commit was not applied and can be repeated",
                code="log-write-failed",
            ) from error
        self._torn = False
        self._end += len(record)
        self.unmerged_bytes += len(record)

    def rotate(self) -> int:
        """Begin a new segment; gives its number. Everything so far is in earlier ones, which end cleanly."""
        before = self._ready()
        self._file = self._start(self._segment + 1)
        self._segment += 1
        before.close()
        return self._segment

    def drop_before(self, segment: int) -> None:
        """Remove segments that a base has made superfluous."""
        for number in segment_numbers(self._directory):
            if number < segment:
                self._path(number).unlink()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _ready(self) -> DurableFile:
        if self._file is None:
            self._file = self._start(self._segment) if self._end < len(_MAGIC) else self._open_file(self._current)
        if self._torn:
            self._file.truncate(self._end)
            self._torn = False
        return self._file

    def _start(self, number: int) -> DurableFile:
        path = self._path(number)
        path.unlink(missing_ok=True)
        file = self._open_file(path)
        try:
            file.write(_MAGIC)
            file.sync()
            sync_directory(self._directory)
        except OSError:
            file.close()
            path.unlink(missing_ok=True)
            raise
        self._end = len(_MAGIC)
        self._torn = False
        return file

    def _restore(self) -> None:
        """Cut off what a failed write may have left; if that fails too, the next append tries again first."""
        if self._file is None:
            return
        try:
            self._file.truncate(self._end)
            self._file.sync()
        except OSError:
            return
        self._torn = False

    @property
    def _current(self) -> Path:
        return self._path(self._segment)

    def _path(self, number: int) -> Path:
        return self._directory / f"log-{number:010d}.bin"


def segment_numbers(directory: Path) -> list[int]:
    """Numbers of the segments in a directory, ascending."""
    matches = (_SEGMENT.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in matches if match is not None)


def encode(header: Mapping[str, Any], payloads: Sequence[pa.Buffer]) -> bytes:
    """One record as bytes, a multiple of eight long, so that payloads stay aligned."""
    named = {**header, "payloads": [len(payload) for payload in payloads]} if payloads else header
    text = _padded(json.dumps(named, separators=(",", ":")).encode(), b" ")
    body = b"".join([text, *(_padded(payload, b"\0") for payload in payloads)])
    checked = _CHECKED.pack(len(body), zlib.crc32(body), len(text))
    return _PREFIX.pack(_MARK, zlib.crc32(checked), *_CHECKED.unpack(checked)) + body


def _padded(data: bytes | pa.Buffer, filling: bytes) -> bytes:
    return bytes(data) + filling * (-len(data) % _ALIGNMENT)


class _SegmentReader:
    """Reads one segment from its beginning; `end` is where its last good record ends."""

    def __init__(self, path: Path, *, is_last: bool) -> None:
        self._path = path
        self._is_last = is_last
        self._data = pa.py_buffer(path.read_bytes())
        self._view = memoryview(self._data)
        self.end = 0

    def records(self) -> Iterator[Record]:
        if bytes(self._view[: len(_MAGIC)]) != _MAGIC:
            # A crash can leave the last file with less than its first line; more than that is no file of ours.
            if self._is_last and _MAGIC.startswith(bytes(self._view)):
                return
            raise StateError.corrupt(str(self._path), reason="it does not begin like a log")
        self.end = len(_MAGIC)
        while self.end < len(self._view):
            found = self._record_at(self.end)
            if found is None:
                if not self._is_last or self._any_record_after(self.end):
                    raise StateError.corrupt(
                        str(self._path), reason=f"the record at byte {self.end} does not match its checksum"
                    )
                return
            record, self.end = found
            yield record

    def _record_at(self, start: int) -> tuple[Record, int] | None:
        """The record at a byte and the byte after it; None where there is no whole one."""
        body_start = start + _PREFIX.size
        if body_start > len(self._view):
            return None
        mark, checksum, length, body_checksum, header_length = _PREFIX.unpack(self._view[start:body_start])
        if mark != _MARK or checksum != zlib.crc32(_CHECKED.pack(length, body_checksum, header_length)):
            return None
        end = body_start + length
        if end > len(self._view) or zlib.crc32(self._view[body_start:end]) != body_checksum:
            return None
        header = json.loads(bytes(self._view[body_start : body_start + header_length]))
        payloads: list[pa.Buffer] = []
        at = body_start + header_length
        for size in header.get("payloads", ()):
            payloads.append(self._data.slice(at, size))
            at += size + -size % _ALIGNMENT
        return Record(header, payloads), end

    def _any_record_after(self, start: int) -> bool:
        """Whether a whole record stands behind a damaged one: then it was no torn end."""
        data = bytes(self._view[start + 1 :])
        at = data.find(_MARK)
        while at >= 0:
            if self._record_at(start + 1 + at) is not None:
                return True
            at = data.find(_MARK, at + 1)
        return False
