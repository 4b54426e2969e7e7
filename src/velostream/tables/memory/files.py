"""Files that are on the disk when a call returns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class DurableFile(Protocol):
    """A file written at its end. Tests put in ones that fail."""

    def write(self, data: bytes) -> None:
        """Append all of it, or raise `OSError`; part of it may then be in the file."""

    def sync(self) -> None:
        """Return once everything written is on the disk."""

    def truncate(self, size: int) -> None:
        """Cut the file; the next write goes there."""

    def close(self) -> None: ...


class SystemFile:
    """A `DurableFile` of the operating system, without a buffer of its own."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        os.close(self._descriptor)


def sync_directory(directory: Path) -> None:
    """Make files created, renamed or removed in a directory so for good."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
