"""Opening files to read, and what it means when one can't be read."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from velostream.errors import Category, SourceError


def open_file(path: str, *, buffered: bool = False) -> BinaryIO:
    """Open for reading; `SourceError` with its category when that fails."""
    try:
        return Path(path).open("rb", buffering=-1 if buffered else 0)
    except OSError as error:
        found = _not_there(path, error)
        if found is None:
            found = SourceError(f'file "{path}" can\'t be read', detail=str(error), code="unreadable-file")
        raise found from error


def unreadable(path: Path, error: Exception, *, what: str) -> SourceError:
    """The error for a file that a library could not read as a file of the format `what`."""
    return _not_there(str(path), error) or SourceError(
        f'file "{path}" is not a readable {what} file',
        detail=str(error) or type(error).__name__,
        hint="WITH ('format' = 'csv') or 'json' if it is that",
        code="unreadable-file",
        category=Category.DATA,
    )


def _not_there(path: str, error: Exception) -> SourceError | None:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return SourceError.missing_file(path, pattern=False)
    return SourceError.no_permission(path) if isinstance(error, PermissionError) else None
