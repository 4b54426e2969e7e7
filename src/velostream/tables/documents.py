"""What tables in document stores, MongoDB and Redis, do alike: entries with incarnations, logs, exclusive stretches."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Protocol, TypeVar

from velostream.errors import NotFoundError, OptionError
from velostream.model.change import ChangeBatch
from velostream.model.options import Option, Options, OptionType
from velostream.tables.base import TableSpec
from velostream.tables.change_log import Changes, net_changes
from velostream.tables.difference import Differ
from velostream.tables.stored import STORE_OPTIONS, StoredTable, is_read_only

DOCUMENT_OPTIONS: tuple[Option, ...] = (
    Option("url", "where the store is"),
    Option("username", "who we are to the store; may stand in the url too"),
    Option("password", "its password; may stand in the url too"),
    *STORE_OPTIONS,
    Option("connect.timeout", "how long to wait for the server", OptionType.DURATION, default="5s"),
)
CACHED_CONDITIONS = 1024


class Entry(Protocol):
    """What the store keeps about a table."""

    @property
    def incarnation(self) -> str:
        """Never given again: a table that was dropped and made anew has another."""

    @property
    def version(self) -> int: ...

    @property
    def followed_from(self) -> int | None:
        """The oldest version whose changes since are kept; None: nobody follows the table."""


EntryT = TypeVar("EntryT", bound=Entry)


class DocumentTable(StoredTable):
    """A table whose commits are serialised by its version in the store, and within the process by a lock."""

    def __init__(self, spec: TableSpec, options: Options, *, incarnation: str) -> None:
        self.name = spec.name
        self.schema = spec.schema
        self._id = spec.id
        self._incarnation = incarnation
        self._read_only = is_read_only(options)
        self._history = options.integer("history") or 0
        self._differ = Differ(spec.name, spec.schema)
        self._lock = threading.RLock()
        self._expected: int | None = None
        """Within `exclusive`, the version it has seen; a commit by another process since then is a conflict."""
        self._closed = False

    @abstractmethod
    def _entry(self) -> Entry | None:
        """What the store keeps about the table now."""

    @abstractmethod
    def _logged(self, since: int, until: int | None) -> tuple[Entry, Sequence[Changes]]:
        """The table's entry, checked, and what commits after `since` did up to `until`, of one state of the store."""

    @abstractmethod
    def _release(self) -> None:
        """Give back connections; called once."""

    @property
    def version(self) -> int:
        """Always 0 for a table that is attached read-only: nobody counts its changes for us."""
        return 0 if self._read_only else self._checked(self._entry()).version

    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        self._refuse_if_read_only("changes")
        entry, steps = self._logged(since, until)
        end = self._end_of_changes(since, until, newest=entry.version, followed_from=entry.followed_from)
        return ChangeBatch(end, net_changes(self.schema, steps).signed())

    def exclusive(self) -> AbstractContextManager[None]:
        """Other processes can't be held off: when one has committed meanwhile, the commit is a conflict."""
        self._refuse_if_read_only("update")
        return self._exclusively()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._release()

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        with self._lock:
            outermost = self._expected is None
            if outermost:
                self._expected = self.version
            try:
                yield
            finally:
                if outermost:
                    self._expected = None

    def _checked(self, entry: EntryT | None) -> EntryT:
        """The entry, if it is still that of the table that was opened."""
        if entry is None or entry.incarnation != self._incarnation:
            raise dropped(self.name)
        return entry


def url_of(kind: str, options: Options, *, example: str) -> str:
    url = options.text("url")
    if not url:
        raise OptionError(f'kind "{kind}" needs the option "url"', hint=f"WITH ('url' = '{example}')")
    return url


def credentials_of(options: Options) -> dict[str, str]:
    """Those that don't stand in the URL."""
    return {name: text for name in ("username", "password") if (text := options.text(name))}


def connect_timeout(options: Options) -> timedelta:
    return options.duration("connect.timeout") or timedelta(milliseconds=1)


def dropped(table: str) -> NotFoundError:
    """The table isn't in the store any more, or it is another one that was made under its name since."""
    gone = NotFoundError.of("table", table)
    gone.detail = "it was dropped from the store since it was opened"
    return gone
