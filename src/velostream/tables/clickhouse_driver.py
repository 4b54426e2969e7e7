"""clickhouse-connect for the kind `clickhouse`: connections with bound parameters, and what its errors mean."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from velostream.errors import Category
from velostream.model.server import ServerAddress
from velostream.tables.clickhouse_types import READ_FORMATS, Bound
from velostream.tables.relational.dialect import Failure, Trouble

_MARKER = re.compile(r"\{p(\d+)\}")
_CLIENT = "velostream"

# What it logs it raises as well.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())


def marker(position: int) -> str:
    """What stands for a bound value until its type is known; `quote` keeps names from looking like it."""
    return f"{{p{position}}}"


def quote(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("{", "\\x7B")
    return f'"{escaped}"'


class Connection:
    """A client in the form of PEP 249, as far as it is used. There are no transactions to commit."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def to(cls, address: ServerAddress, *, secure: bool, verify: bool, timeout: float, wait: float) -> Connection:
        import clickhouse_connect

        return cls(
            clickhouse_connect.get_client(
                host=address.host,
                port=address.port,
                username=address.username,
                password=address.password or "",
                database=address.database,
                interface="https" if secure else "http",
                verify=verify,
                connect_timeout=max(1, round(timeout)),
                send_receive_timeout=max(1, round(wait)),
                client_name=_CLIENT,
                # Trying again is decided by whoever knows what may be asked twice.
                query_retries=0,
                # A server lets one query at a time run in a session.
                autogenerate_session_id=False,
            )
        )

    def cursor(self) -> Cursor:
        return Cursor(self._client)

    def commit(self) -> None:
        """Nothing is written."""

    def rollback(self) -> None:
        """Nothing was begun."""

    def close(self) -> None:
        self._client.close()


class Cursor:
    """One query, whose rows come in blocks as the server sends them."""

    rowcount = -1

    def __init__(self, client: Any) -> None:
        self._client = client
        self._held = ExitStack()
        self._blocks: Iterator[Sequence[Sequence[Any]]] = iter(())

    def execute(self, statement: str, parameters: Sequence[Bound] = ()) -> None:
        bound = {f"p{place}": one.value for place, one in enumerate(parameters)}
        typed = _MARKER.sub(lambda found: f"{{p{found[1]}:{parameters[int(found[1])].type}}}", statement)
        stream = self._client.query_row_block_stream(typed, parameters=bound, query_formats=READ_FORMATS)
        self._blocks = iter(self._held.enter_context(stream))

    def fetchmany(self, _size: int) -> Sequence[Sequence[Any]]:
        """The next block, whatever its size; an empty one at the end."""
        return next((block for block in self._blocks if block), ())

    def close(self) -> None:
        self._held.close()


def failure_of(error: BaseException, *, shown: Callable[[str], str]) -> Failure:
    """What an error of the driver means. `shown` takes secrets out of a text."""
    code = getattr(error, "code", None)
    reason = shown(str(error).partition(" (for url ")[0])
    if code is None:
        return Failure(Trouble.TRANSIENT, Category.NETWORK, reason, connection_lost=True)
    trouble, category = _BY_CODE.get(code, (Trouble.OTHER, Category.UNKNOWN))
    return Failure(trouble, category, reason, connection_lost=category is Category.NETWORK)


_BY_CODE: dict[int, tuple[Trouble, Category]] = {
    code: (trouble, category)
    for trouble, category, codes in (
        (Trouble.TRANSIENT, Category.NETWORK, (95, 209, 210, 236, 279, 425)),
        (Trouble.TRANSIENT, Category.CONCURRENCY, (202, 473)),
        (Trouble.OTHER, Category.AUTHENTICATION, (192, 193, 194, 195, 497, 516)),
        (Trouble.OTHER, Category.MISSING, (60, 81, 218)),
        (Trouble.OTHER, Category.TIMEOUT, (159, 160)),
        (Trouble.OTHER, Category.STATE, (241, 243, 252)),
        (Trouble.OTHER, Category.CONFIGURATION, (16, 42, 43, 46, 47, 62, 115, 457)),
    )
    for code in codes
}
"""By the server's own numbers."""
