"""Which files a file source speaks of: a path, a folder or a pattern with `*`, `?`, `**` and `{a,b}`."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from velostream.errors import Category, SourceError
from velostream.model.address import file_path

_WILDCARD = re.compile(r"[*?]|\{[^{}]*,[^{}]*\}")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_UNFINISHED = (".tmp", ".part", ".crc", ".swp")


@dataclass(frozen=True, slots=True)
class Listing:
    """An address of files. Looks at the disk only when asked for `paths`."""

    pattern: str

    @classmethod
    def of(cls, uri: str) -> Listing:
        return cls(file_path(uri))

    @property
    def is_pattern(self) -> bool:
        return _WILDCARD.search(self.pattern) is not None

    @property
    def is_folder(self) -> bool:
        return not self.is_pattern and (self.pattern.endswith("/") or Path(self.pattern).is_dir())

    @property
    def names_many(self) -> bool:
        """Whether files may come and go without the address being wrong."""
        return self.is_pattern or self.is_folder

    @property
    def base(self) -> Path:
        """The folder under which all the files are."""
        if self.is_folder:
            return Path(self.pattern)
        fixed = self.pattern[: match.start()] if (match := _WILDCARD.search(self.pattern)) else self.pattern
        return Path(fixed.rpartition("/")[0] or ("/" if fixed.startswith("/") else "."))

    def paths(self) -> list[str]:
        """The files there are now, absolute and sorted by name; hidden and unfinished ones are left out of many.

        Raises `SourceError` for a single path that is there and is no file.
        """
        if self.is_pattern:
            found = {path for pattern in _expand_braces(self.pattern) for path in _matches(pattern)}
        elif self.is_folder:
            found = set(_matches(f"{glob.escape(self.pattern.rstrip('/'))}/*"))
        else:
            path = Path(self.pattern)
            if path.exists() and not path.is_file():
                raise SourceError(
                    f'path "{self.pattern}" is not a regular file',
                    hint="name a file, a folder or a pattern",
                    code="not-a-file",
                    category=Category.CONFIGURATION,
                )
            found = {self.pattern} if path.is_file() else set()
        return sorted(str(Path(path).absolute()) for path in found)


def is_left_out(name: str) -> bool:
    """Whether a file of that name is none of many that are read: bookkeeping of a writer, or not finished."""
    return name.startswith("_") or name.endswith(_UNFINISHED)


def _matches(pattern: str) -> Iterator[str]:
    # Path.glob takes no absolute pattern and shows hidden files.
    for path in glob.iglob(pattern, recursive=True):  # noqa: PTH207
        name = path.rpartition("/")[2]
        if not is_left_out(name) and Path(path).is_file():
            yield path


def _expand_braces(pattern: str) -> list[str]:
    """Patterns for `glob`, which knows no braces and reads `[` as one of its own."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern.replace("[", "[[]")]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [expanded for choice in match[1].split(",") for expanded in _expand_braces(before + choice + after)]
