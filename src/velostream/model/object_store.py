"""Object stores as sources and sinks see them: how one is reached, what its trouble is called. A subclass for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from velostream.errors import Category
from velostream.model.options import Option, Options

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class ObjectStore(ABC):
    """One store as one statement reaches it. Goes to Spark's workers as it is; its secrets show in no text of it."""

    scheme: ClassVar[str]
    options: ClassVar[tuple[Option, ...]]
    size_header: ClassVar[str] = "Content-Length"
    modified_header: ClassVar[str] = "Last-Modified"
    version_header: ClassVar[str] = "ETag"
    """Under which names Arrow tells of an object; what stands under the last is another with each version of it."""
    reach_hint: ClassVar[str]
    """What to check when nobody answers."""
    access_hint: ClassVar[str]
    """What to say in order to be let in."""

    @classmethod
    @abstractmethod
    def of(cls, options: Options, uri: str) -> Self:
        """The store that an address means; `OptionError` when options are missing or contradict each other."""

    @abstractmethod
    def file_system(self) -> FileSystem:
        """Objects as `bucket/key` paths, through Arrow. Nothing is connected to before the first call."""

    @abstractmethod
    def category_of(self, error: OSError) -> Category:
        """What kind of trouble Arrow's client speaks of."""

    def told(self, error: OSError) -> str:
        """What Arrow's client says, without secrets. A store whose client may tell one has to take it out."""
        return str(error)

    @classmethod
    def path_of(cls, uri: str) -> str:
        """`bucket/key` of an address."""
        return uri.partition("://")[2]

    @classmethod
    def shown(cls, path: str) -> str:
        """An object's address from its `bucket/key`."""
        return f"{cls.scheme}://{path}"

    def version_of(self, headers: Mapping[str, bytes | str]) -> str:
        return header(headers, self.version_header).strip('"')


def header(headers: Mapping[str, bytes | str], name: str) -> str:
    """What stands under a name of an object's description; empty when nothing does."""
    value = headers.get(name, "")
    return value.decode() if isinstance(value, bytes) else value
