"""Where a database server is, by URL or options, and whether it is still there; the password shows nowhere."""

from __future__ import annotations

import re
import select
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from velostream.errors import OptionError
from velostream.model.options import Option, Options, OptionType, expand_environment

SERVER_OPTIONS: tuple[Option, ...] = (
    Option("host", "the server's host"),
    Option("port", "the server's port", OptionType.INTEGER),
    Option("database", "the database on the server"),
    Option("username", "who to connect as"),
    Option("password", "the password; better ${VARIABLE}"),
    Option("connect.timeout", "how long to wait for a connection to be made", OptionType.DURATION, default="10s"),
    Option("read.replica.url", "a replica of the server; reads go there and see what has arrived there"),
)
"""Options of kinds that talk to a server; each wins over its part of the URL."""

_VARIABLE = re.compile(r"\$\{[^}]*\}")


@dataclass(frozen=True)
class ServerAddress:
    """One database on one server, as one user."""

    scheme: str
    host: str
    port: int
    database: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    parameters: Mapping[str, str] = field(default_factory=dict)
    """What stands behind the `?` of the URL; for the driver."""

    def __str__(self) -> str:
        user = f"{self.username}@" if self.username else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{user}{host}:{self.port}/{self.database}"

    def without_password(self, text: str) -> str:
        """A driver's text, safe to be shown."""
        return text.replace(self.password, "***") if self.password else text

    @classmethod
    def of(cls, options: Options, *, schemes: tuple[str, ...], port: int) -> ServerAddress:
        """The server that the options name. `schemes` are those a URL may have, the one to show first."""
        url = options.get("url", "")
        masked, plain = without_variables(url)
        parts = urlsplit(masked)
        if url and parts.scheme.partition("+")[0] not in schemes:
            raise OptionError.value("url", f"{parts.scheme}:…", expected=f"{schemes[0]}://user@host:{port}/database")
        host, port_text = _host_and_port(parts.netloc.rpartition("@")[2])
        database = options.text("database") or plain(parts.path.lstrip("/"))
        if not database:
            # What stands before an @ that is missing may be a password, as may the parameters.
            _, at, place = parts.netloc.rpartition("@")
            raise OptionError.value(
                "url", f"…@{plain(place)}" if at else "…", expected=f"{schemes[0]}://user@host:{port}/database"
            )
        return cls(
            scheme=schemes[0],
            host=options.text("host") or plain(host) or "localhost",
            port=options.integer("port") or _number(plain(port_text)) or port,
            database=database,
            username=options.text("username") or plain(parts.username),
            password=options.text("password") or plain(parts.password),
            parameters={name: plain(value) or "" for name, value in parse_qsl(parts.query, keep_blank_values=True)},
        )


def server_and_table(
    uri: str, settings: Options, *, schemes: tuple[str, ...], port: int
) -> tuple[ServerAddress, str | None]:
    """The server, and the table where the address names one: `postgres://db/table`, with the host in an option."""
    table = None
    server = {option.name: settings[option.name] for option in SERVER_OPTIONS if option.name in settings}
    authority, _, rest = uri.partition("://")[2].partition("/")
    if "host" in server and "database" not in server and not set("@:") & set(authority):
        uri, table = f"{schemes[0]}:///{authority}", rest
    options = Options({"url": uri, **server}, (*SERVER_OPTIONS, Option("url", "the address")))
    return ServerAddress.of(options, schemes=schemes, port=port), table or None


def without_variables(url: str) -> tuple[str, Callable[[str | None], str | None]]:
    """A URL that can be taken apart, and what makes of its parts the texts they stand for.

    Variables are put in after that, so that any character may stand in their values.
    """
    variables = _VARIABLE.findall(url)
    masked = url
    for number, variable in enumerate(variables):
        masked = masked.replace(variable, _mask(number), 1)

    def plain(text: str | None) -> str | None:
        return None if text is None else expand_environment(_unmasked(unquote(text), variables))

    return masked, plain


def connect_seconds(options: Options) -> float:
    """How long a connection may take to be made."""
    timeout = options.duration("connect.timeout")
    return 10.0 if timeout is None else timeout.total_seconds()


def lock_seconds(options: Options) -> float:
    """How long a statement may wait for a lock that somebody else holds."""
    timeout = options.duration("query.timeout")
    return 30.0 if timeout is None else timeout.total_seconds()


def has_something_to_read(descriptor: int) -> bool:
    """Whether bytes, or the end of them, have arrived at a socket. Takes no time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(0))


def _mask(number: int) -> str:
    return f"variable-{number}-of-url"


def _unmasked(text: str, variables: list[str]) -> str:
    for number, variable in enumerate(variables):
        text = text.replace(_mask(number), variable)
    return text


def _host_and_port(place: str) -> tuple[str, str | None]:
    """`host`, `host:port`, `[::1]:port`."""
    match = re.fullmatch(r"(?:\[(?P<six>[^\]]*)\]|(?P<host>[^:]*))(?::(?P<port>.*))?", place)
    if match is None:
        return place, None
    return match["six"] or match["host"] or "", match["port"]


def _number(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdigit():
        # It may be a part of a password in which a slash stands.
        raise OptionError.value("url", "…:…", expected="a port number behind the host")
    return int(text)
