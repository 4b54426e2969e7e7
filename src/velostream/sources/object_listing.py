"""Objects of a bucket: which ones an address speaks of, what they are, and their content as local files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from velostream.errors import Category, OptionError, SourceError
from velostream.model.object_store import ObjectStore, header
from velostream.sources.file_listing import is_left_out

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

_WILDCARD = re.compile(r"[*?]|\{[^{}]*,[^{}]*\}")
_PATTERN_PART = re.compile(
    r"(?P<folders>\*\*/)|(?P<anything>\*\*)|(?P<name>\*)|(?P<letter>\?)|\{(?P<choices>[^{}]*,[^{}]*)\}"
)
_BLOCK_BYTES = 8 << 20
_SECOND = 1_000_000_000
_COPIES = 3


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What the store says of an object."""

    path: str
    """`bucket/key`."""
    size: int
    modified: int
    """In nanoseconds, cut to whole seconds: that is all that stores tell of the object itself, whatever they list."""
    etag: str = ""
    """Another one for each version. Known where the object itself was asked for, not of a listing."""

    @classmethod
    def listed(cls, info: FileInfo) -> StoredObject:
        return cls(info.path, info.size, info.mtime_ns // _SECOND * _SECOND)


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """An object of a bucket, a folder (`…/`) or a pattern with `*`, `?`, `**` and `{a,b}`."""

    path: str
    """`bucket/key`, as written."""

    @classmethod
    def of(cls, uri: str, store: type[ObjectStore]) -> ObjectAddress:
        """`OptionError` when the address has no bucket, or a pattern for one."""
        path = store.path_of(uri)
        bucket = path.partition("/")[0]
        if not bucket or _WILDCARD.search(bucket):
            one, many = store.shown("bucket/key"), store.shown("bucket/folder/")
            raise OptionError.value("source", uri, expected=f"{one}, {many} or a pattern of keys")
        return cls(path if "/" in path else f"{path}/")

    @property
    def is_pattern(self) -> bool:
        return _WILDCARD.search(self.path) is not None

    @property
    def names_many(self) -> bool:
        """Whether objects may come and go without the address being wrong."""
        return self.is_pattern or self.path.endswith("/")

    @property
    def base(self) -> str:
        """The folder under which all the objects are."""
        wildcard = _WILDCARD.search(self.path)
        return (self.path if wildcard is None else self.path[: wildcard.start()]).rpartition("/")[0]

    @property
    def is_deep(self) -> bool:
        """Whether objects in folders below the base are meant, too."""
        return self.is_pattern and "/" in self.path[len(self.base) + 1 :]

    def matches(self, path: str) -> bool:
        """Whether an object below the base is one of those that are meant."""
        name = path.rpartition("/")[2]
        if name.startswith(".") or is_left_out(name):
            return False
        return not self.is_pattern or re.fullmatch(_expression(self.path), path, re.DOTALL) is not None


class Objects:
    """What an address holds, through Arrow. Connects when first asked, and holds connections until `close`.

    For one thread.
    """

    def __init__(self, store: ObjectStore, address: ObjectAddress) -> None:
        self._store = store
        self.address = address
        self._connected: FileSystem | None = None

    @property
    def _system(self) -> FileSystem:
        if self._connected is None:
            self._connected = self._store.file_system()
        return self._connected

    def close(self) -> None:
        """Connections end with the object that holds them."""
        self._connected = None

    def listed(self) -> dict[str, StoredObject]:
        """The objects there are now, by path and in its order. `SourceError` when the store refuses or is away."""
        from pyarrow.fs import FileSelector, FileType

        with self._speaking(self.address.path):
            if not self.address.names_many:
                single = self._system.get_file_info(self.address.path)
                if single.type is FileType.File:
                    return {single.path: StoredObject.listed(single)}
                if single.type is FileType.NotFound:
                    return {}
            base = self.address.base if self.address.names_many else self.address.path
            selector = FileSelector(base, allow_not_found=True, recursive=self.address.is_deep)
            infos = self._system.get_file_info(selector)
        # Some clients make an empty object first and fill it then.
        files = (info for info in infos if info.type is FileType.File and info.size)
        found = (StoredObject.listed(info) for info in files if self.address.matches(info.path))
        return {one.path: one for one in sorted(found, key=lambda one: one.path)}

    def asked(self, found: StoredObject) -> StoredObject:
        """The object as it is by now, with its version."""
        with self._speaking(found.path), self._system.open_input_file(found.path) as file:
            return self._described(found.path, file.size(), file.metadata())

    def fetch(self, path: str, target: Path, *, most: int | None = None) -> StoredObject:
        """Copy an object, or its first `most` bytes, into a file; tells which one it was.

        A whole copy is of one version: of an object that is replaced meanwhile it is made again. `SourceError` when
        that goes on.
        """
        for _ in range(_COPIES):
            copied = self._copied(path, target, most)
            if most is not None or self.asked(copied).etag == copied.etag:
                return copied
        raise SourceError(
            f'object "{self._store.shown(path)}" is replaced faster than it can be read',
            detail=f"it was another one after each of {_COPIES} copies",
            hint="it is tried again; write objects under names of their own where they change that often",
            code="source-unreachable",
            category=Category.NETWORK,
        )

    def _copied(self, path: str, target: Path, most: int | None) -> StoredObject:
        """What stood there while it was copied, in several requests, is what it was before the first of them."""
        left = most
        with self._speaking(path), self._system.open_input_stream(path) as stream, target.open("wb") as file:
            headers = stream.metadata()
            while block := stream.read(_BLOCK_BYTES if left is None else min(left, _BLOCK_BYTES)):
                file.write(block)
                left = None if left is None else left - len(block)
            return self._described(path, int(headers.get(self._store.size_header, file.tell())), headers)

    def _described(self, path: str, size: int, headers: dict[str, bytes | str]) -> StoredObject:
        told = header(headers, self._store.modified_header) or "1970-01-01T00:00:00+00:00"
        changed_at = datetime.fromisoformat(told).astimezone(UTC)
        return StoredObject(path, size, int(changed_at.timestamp()) * _SECOND, self._store.version_of(headers))

    @contextmanager
    def _speaking(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._trouble(path, error) from error

    def _trouble(self, path: str, error: OSError) -> SourceError:
        category = self._store.category_of(error)
        match category:
            case Category.MISSING:
                what, code = "is not there", "missing-file"
                hint = "check the bucket and the key, or wait for it: WITH ('file.wait.timeout' = '60s')"
            case Category.AUTHENTICATION:
                what, code, hint = "may not be read", "source-refused", self._store.access_hint
            case _:
                what, code, hint = "can't be reached", "source-unreachable", self._store.reach_hint
        message = f'object "{self._store.shown(path)}" {what}'
        return SourceError(message, detail=self._store.told(error), hint=hint, code=code, category=category)


def _expression(pattern: str) -> str:
    """The regular expression of the keys that a pattern stands for."""
    pieces: list[str] = []
    position = 0
    for part in _PATTERN_PART.finditer(pattern):
        pieces.append(re.escape(pattern[position : part.start()]))
        match part.lastgroup:
            case "folders":
                pieces.append("(?:.*/)?")
            case "anything":
                pieces.append(".*")
            case "name":
                pieces.append("[^/]*")
            case "letter":
                pieces.append("[^/]")
            case _:
                pieces.append(f"(?:{'|'.join(_expression(choice) for choice in part['choices'].split(','))})")
        position = part.end()
    return "".join([*pieces, re.escape(pattern[position:])])
