"""How far a file has been read, and whether it is still the file it was.

The content that was read is known by its fingerprint: the same bytes with more behind them are growth, anything else
is a rewrite and begins a new generation of the file. A position depends on the content alone, so two readers that have
read the same have equal positions.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

from velostream.errors import SourceError

_HEAD_BYTES = 1 << 20
_TAIL_BYTES = 1 << 16
_CLOCK_SKEW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What the file system says of a file; while it stays the same, so does the content."""

    inode: int
    size: int
    modified: int
    """In nanoseconds."""

    @classmethod
    def of(cls, path: str) -> FileIdentity | None:
        """Of the file there is now; None when there is none."""
        try:
            found = Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise SourceError.no_permission(path) from error
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)

    def quiet_for(self, duration: timedelta) -> bool:
        """Whether nobody has written for that long. A modification time far in the future counts as quiet."""
        age = timedelta(microseconds=(time.time_ns() - self.modified) / 1_000)
        return age >= duration or age < -_CLOCK_SKEW


@dataclass(frozen=True, slots=True)
class FileState:
    """The position in one file, as it stands in an offset."""

    path: str
    read: int
    """How far it was read: bytes of a line format, units of a whole one."""
    size: int
    """How many bytes the fingerprint speaks for."""
    fingerprint: str = ""
    generation: int = 0
    """Counts rewrites: ranges of different generations have nothing to do with one another."""
    modified: int = 0
    """Modification time, where a rewrite must be noticed that keeps size, beginning and end; else 0."""
    begin: int = 0
    """Where the reading of this path began: further on for a file that was read under another name before."""
    gone: bool = False
    """The file was deleted, and its rows with it."""

    @property
    def order(self) -> tuple[int, int]:
        """Grows with every step of reading this file."""
        return self.generation, self.read


def fingerprint(file: BinaryIO, length: int) -> str:
    """A digest of the first `length` bytes: all of them up to 1 MiB, the beginning and the end of longer ones."""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(os.pread(file.fileno(), min(length, _HEAD_BYTES), 0))
    if length > _HEAD_BYTES:
        start = max(_HEAD_BYTES, length - _TAIL_BYTES)
        digest.update(os.pread(file.fileno(), length - start, start))
    return digest.hexdigest()


def covers_all(length: int) -> bool:
    """Whether equal fingerprints of that length mean equal content."""
    return length <= _HEAD_BYTES + _TAIL_BYTES
