"""Where a Delta table lies: a folder of this machine, or a prefix of a bucket in an object store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow.fs import FileSystem, FileType, LocalFileSystem

from velostream.errors import Category, OptionError, StoreError
from velostream.model.options import Options
from velostream.model.s3 import S3Store

_S3_SCHEMES = ("s3", "s3a")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CATEGORIES = (
    (
        Category.AUTHENTICATION,
        re.compile(r"\b40[13]\b|forbidden|access.?denied|InvalidAccessKey|SignatureDoesNot", re.IGNORECASE),
    ),
    (Category.MISSING, re.compile(r"NoSuchBucket|bucket does not exist", re.IGNORECASE)),
    (Category.NETWORK, re.compile(r"connect|timed? ?out|error sending request|dns", re.IGNORECASE)),
)
"""By text: neither library gives more than that."""


@dataclass(frozen=True, slots=True)
class Location:
    """The root of a table. Goes to Spark's workers as it is."""

    root: str
    """A path of the file system: `/data/lake/t`, or `bucket/lake/t`."""
    store: S3Store | None = field(default=None, repr=False)
    """None: this machine's files."""

    @classmethod
    def of(cls, url: str, options: Options) -> Location:
        """What the option `url` names: a path, a file:// URI or an s3:// URI."""
        parts = urlsplit(url)
        if parts.scheme.lower() in _S3_SCHEMES and parts.netloc:
            return cls(f"{parts.netloc}{unquote(parts.path)}".rstrip("/"), S3Store.of(options))
        if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
            raise OptionError.value("url", url, expected="a path, a file:// URI or an s3:// URI")
        return cls.local(Path(unquote(parts.path) if parts.scheme else url))

    @classmethod
    def local(cls, path: Path) -> Location:
        return cls(str(path.absolute()))

    def __str__(self) -> str:
        return self.root if self.store is None else f"s3://{self.root}"

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.root}/{name}", self.store)

    @property
    def file_system(self) -> FileSystem:
        return _file_system(self.store)

    @property
    def storage_options(self) -> dict[str, str] | None:
        """What `deltalake` needs beside the text of the location."""
        return None if self.store is None else self.store.storage_options()

    def path(self, name: str) -> str:
        """A file of the table in the file system; `name` is as the log has it: relative or absolute, a URI's text."""
        plain = unquote(name)
        parts = urlsplit(name)
        if parts.scheme in _S3_SCHEMES:
            return f"{parts.netloc}{unquote(parts.path)}"
        if parts.scheme == "file" or plain.startswith("/"):
            return plain.removeprefix("file://")
        return f"{self.root}/{plain}"

    def read_text(self, name: str) -> str:
        """`FileNotFoundError` when there is no such file."""
        with self.file_system.open_input_stream(f"{self.root}/{name}") as file:
            return bytes(file.read()).decode()

    def exist(self, names: Iterable[str]) -> bool:
        paths = [self.path(name) for name in names]
        return not paths or all(info.type is FileType.File for info in self.file_system.get_file_info(paths))

    def remove(self, name: str) -> None:
        self.file_system.delete_file(self.path(name))

    def remove_all(self) -> None:
        self.file_system.delete_dir(self.root)


@lru_cache(maxsize=16)
def _file_system(store: S3Store | None) -> FileSystem:
    return LocalFileSystem() if store is None else store.file_system()


@contextmanager
def wrapped_errors(location: Location, *also: type[Exception]) -> Iterator[None]:
    """Around whatever touches the table's files; `also` are other exceptions that mean trouble with them."""
    try:
        yield
    except (OSError, pa.ArrowException, *also) as error:
        # `deltalake` writes for terminals: in colours, a cause per line.
        text = " ".join(_COLOUR.sub("", str(error)).replace("↳", " ").split())
        category = next(
            (found for found, known in _CATEGORIES if location.store and known.search(text)), Category.UNKNOWN
        )
        raise StoreError.unreachable("delta", where=str(location), reason=text, category=category) from error
