"""What tables, sources and sinks in ClickHouse share: a client, names and bound values, types, and what errors mean."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from velostream.errors import Category
from velostream.model.options import Option, Options, OptionType
from velostream.model.server import SERVER_OPTIONS, ServerAddress, connect_seconds

SCHEMES = ("clickhouse",)
PORT = 8123
SSL_MODE = Option("ssl.mode", "disable, require or verify", OptionType.CHOICE, choices=("disable", "require", "verify"))

_SERVER = tuple(option for option in SERVER_OPTIONS if option.name != "read.replica.url")
CONNECTION_OPTIONS: tuple[Option, ...] = (
    *_SERVER,
    SSL_MODE,
    Option("socket.timeout", "how long the server may stay silent", OptionType.DURATION, "5m"),
)
"""Options of sources and sinks; each wins over its part of the address."""

_MARKER = re.compile(r"\{p(\d+)\}")
_CLIENT = "velostream"
_KEPT_SECONDS = 30.0
"""How long a client that nobody has stays open, and may know an older state of the server's settings."""

# What it logs it raises as well.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())


_giving = threading.Lock()
_given_back: list[_Kept] = []
"""Clients that nobody has, the longest first."""


@dataclass(frozen=True, slots=True)
class _Kept:
    at: float
    server: ClickhouseServer
    client: Any


@dataclass(frozen=True, slots=True)
class Bound:
    """A value for a parameter of a type."""

    type: str
    value: Any


@dataclass(frozen=True)
class ClickhouseServer:
    """A server and how to talk to it."""

    address: ServerAddress
    secure: bool = False
    verify: bool = False
    connect_seconds: float = 10.0
    wait_seconds: float = 30.0
    """How long the server may stay silent."""

    @classmethod
    def of(cls, uri: str, settings: Options) -> ClickhouseServer:
        """The server of a source or sink, whose options are `CONNECTION_OPTIONS` among others."""
        given = {option.name: settings[option.name] for option in _SERVER if option.name in settings}
        options = Options({"url": uri, **given}, (*_SERVER, Option("url", "the address")))
        silence = settings.duration("socket.timeout")
        return cls.at(
            ServerAddress.of(options, schemes=SCHEMES, port=PORT),
            ssl_mode=settings.text("ssl.mode"),
            connect_seconds=connect_seconds(settings),
            wait_seconds=300.0 if silence is None else silence.total_seconds(),
        )

    @classmethod
    def at(
        cls, address: ServerAddress, *, ssl_mode: str | None, connect_seconds: float, wait_seconds: float
    ) -> ClickhouseServer:
        mode = ssl_mode or "disable"
        return cls(address, mode != "disable", mode == "verify", connect_seconds, wait_seconds)

    def borrowed(self) -> Any:
        """A client for a while, maybe one that was given back a moment ago: making one takes three requests."""
        with _giving:
            while _given_back and time.monotonic() - _given_back[0].at > _KEPT_SECONDS:
                _given_back.pop(0).client.close()
            for place, kept in enumerate(_given_back):
                if kept.server == self:
                    return _given_back.pop(place).client
        return self.client()

    def give_back(self, client: Any) -> None:
        """Let somebody else have a client, whatever was done with it: it knows nothing but the server's settings."""
        with _giving:
            _given_back.append(_Kept(time.monotonic(), self, client))

    def client(self) -> Any:
        """A client of clickhouse-connect that the server has answered. Raises what the driver raises."""
        import clickhouse_connect

        return clickhouse_connect.get_client(
            host=self.address.host,
            port=self.address.port,
            username=self.address.username,
            password=self.address.password or "",
            database=self.address.database,
            interface="https" if self.secure else "http",
            verify=self.verify,
            connect_timeout=max(1, round(self.connect_seconds)),
            send_receive_timeout=max(1, round(self.wait_seconds)),
            client_name=_CLIENT,
            # Trying again is decided by whoever knows what may be asked twice.
            query_retries=0,
            # A server lets one query at a time run in a session.
            autogenerate_session_id=False,
        )


def marker(position: int) -> str:
    """What stands for a bound value until its type is known; `quote` keeps names from looking like it."""
    return f"{{p{position}}}"


def quote(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("{", "\\x7B")
    return f'"{escaped}"'


def typed(statement: str, values: Sequence[Bound]) -> tuple[str, dict[str, Any]]:
    """A statement whose markers name the types of their values, and the values by name, as the driver takes them."""
    text = _MARKER.sub(lambda found: f"{{p{found[1]}:{values[int(found[1])].type}}}", statement)
    return text, {f"p{place}": one.value for place, one in enumerate(values)}


def is_nullable(store_type: str) -> bool:
    return re.match(r"(LowCardinality\()?Nullable\(", store_type) is not None


def bare_type(store_type: str) -> str:
    """The type without what it says about storage and NULLs."""
    for wrapper in ("LowCardinality(", "Nullable("):
        if store_type.startswith(wrapper):
            store_type = store_type[len(wrapper) : -1]
    return store_type


def type_arguments(text: str) -> Iterator[str]:
    """Arguments of a type, which may have arguments themselves."""
    depth, start = 0, 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            yield text[start:place].strip()
            start = place + 1
    yield text[start:].strip()


def category_of(error: BaseException) -> Category:
    """What kind of trouble an error of the driver is, by the server's own numbers; without one it never answered."""
    code = getattr(error, "code", None)
    return Category.NETWORK if code is None else _BY_CODE.get(code, Category.UNKNOWN)


def reason_of(error: BaseException) -> str:
    """What the driver says, without the address."""
    return str(error).partition(" (for url ")[0]


_BY_CODE: dict[int, Category] = {
    code: category
    for category, codes in (
        (Category.NETWORK, (95, 209, 210, 236, 279, 425)),
        (Category.CONCURRENCY, (202, 473)),
        (Category.AUTHENTICATION, (192, 193, 194, 195, 497, 516)),
        (Category.MISSING, (60, 81, 218)),
        (Category.TIMEOUT, (159, 160)),
        (Category.STATE, (241, 243, 252)),
        (Category.CONFIGURATION, (16, 42, 43, 46, 47, 53, 62, 70, 115, 386, 457)),
    )
    for code in codes
}
