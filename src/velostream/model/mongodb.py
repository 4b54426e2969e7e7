"""What tables and sources in MongoDB share: where a server is, a client to it, and what the driver's errors mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from velostream.errors import Category, OptionError
from velostream.model.server import without_variables

APPLICATION = "velostream"
"""The name that the server shows for our connections."""

_EXPECTED = "mongodb://user@host:27017/database"
_URL = re.compile(
    r"(?P<scheme>mongodb(?:\+srv)?)://(?:(?P<user>[^:/@]*)(?::(?P<password>[^@]*))?@)?(?P<hosts>[^/@?]+)/(?P<database>[^/?]+)"
)
_AUTHENTICATION = frozenset({13, 18, 8000})
_MISSING = frozenset({26, 60})
_CONFIGURATION = frozenset({2, 9, 14, 20, 59, 72, 73, 115, 166, 40573})
_WRITE_CONFLICT = 112


@dataclass(frozen=True)
class MongodbAddress:
    """One database of a server or a replica set, as one user."""

    scheme: str
    hosts: str
    database: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further settings of the driver, in lower case: `replicaset`, `authsource`, `tls` …"""

    @classmethod
    def of(cls, url: str, *, username: str | None, password: str | None, settings: Mapping[str, str]) -> MongodbAddress:
        """The database that a URL names; a user and password given beside it win."""
        masked, plain = without_variables(url)
        parts = _URL.fullmatch(masked)
        if parts is None:
            # What can't be read may hold a password.
            raise OptionError.value("url", "mongodb://…", expected=_EXPECTED)
        return cls(
            parts["scheme"],
            str(plain(parts["hosts"])),
            str(plain(parts["database"])),
            username or plain(parts["user"]),
            password or plain(parts["password"]),
            settings,
        )

    def __str__(self) -> str:
        return f"{self.scheme}://{self.hosts}/{self.database}"

    def client(self, timeout: timedelta) -> Any:
        """A client of the driver that has not connected yet. Raises what the driver raises."""
        from pymongo import MongoClient

        milliseconds = max(1, int(timeout.total_seconds() * 1000))
        # In lower case, as those given are: the driver takes them in any.
        settings: dict[str, Any] = {
            "appname": APPLICATION,
            "connecttimeoutms": milliseconds,
            "serverselectiontimeoutms": milliseconds,
            "datetime_conversion": "DATETIME_AUTO",
            "uuidrepresentation": "standard",
            # Clients that live for one reading have no use for connections that only watch the server.
            "servermonitoringmode": "poll",
            "connect": False,
            **self.settings,
        }
        if self.username is not None:
            settings |= {"username": self.username, "password": self.password}
        return MongoClient(str(self), **settings)

    def without_password(self, text: str) -> str:
        """A driver's text, safe to be shown."""
        return text.replace(self.password, "***") if self.password else text


def category_of(error: BaseException) -> Category:
    """What kind of trouble an error of the driver is, by its class and the server's code."""
    from pymongo import errors

    code = getattr(error, "code", None)
    if code in _AUTHENTICATION:
        return Category.AUTHENTICATION
    if code in _MISSING:
        return Category.MISSING
    if code == _WRITE_CONFLICT:
        return Category.CONCURRENCY
    if isinstance(error, errors.ExecutionTimeout):
        return Category.TIMEOUT
    if isinstance(error, errors.ConnectionFailure):
        return Category.NETWORK
    if isinstance(error, errors.DocumentTooLarge):
        return Category.DATA
    if code in _CONFIGURATION or isinstance(error, errors.ConfigurationError | errors.InvalidName):
        return Category.CONFIGURATION
    return Category.UNKNOWN
