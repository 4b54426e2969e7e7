"""psycopg for the kind `postgres`: connections, what comes over them, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from velostream.errors import Category, StoreError
from velostream.model.postgres import category_of_state, category_of_text, connection_arguments
from velostream.model.server import ServerAddress, has_something_to_read
from velostream.tables.relational.dialect import DriverConnection, Failure, Trouble

_OLDEST_SERVER = 15
"""The first whose unique indexes can hold NULL once: NULLS NOT DISTINCT."""


def connect(
    address: ServerAddress, *, parameters: Mapping[str, str], timeout_seconds: float, lock_seconds: float
) -> DriverConnection:
    """A connection whose cursors take $1, $2 and give binary values, with UTC as its time zone."""
    import psycopg

    arguments = connection_arguments(
        address,
        parameters=parameters,
        timeout_seconds=timeout_seconds,
        settings={
            # A plan made for any number of keys would serve neither one nor a million.
            "plan_cache_mode": "force_custom_plan",
            "lock_timeout": f"{round(lock_seconds * 1000)}ms",
        },
    )
    connection = psycopg.connect(autocommit=True, cursor_factory=_binary_cursor(), **arguments)
    _register_loaders(connection)
    version = connection.info.server_version // 10_000
    if version < _OLDEST_SERVER:
        connection.close()
        raise StoreError(
            f'PostgreSQL at "{address}" is too old',
            detail=f"it is {version}, and {_OLDEST_SERVER} is the oldest that will do",
            category=Category.CONFIGURATION,
        )
    return cast("DriverConnection", connection)


def is_lost(connection: DriverConnection) -> bool:
    """Whether the connection is closed, or the server has hung up: an idle one has nothing to say but that."""
    psycopg_connection = cast("Any", connection)
    return bool(psycopg_connection.closed) or has_something_to_read(psycopg_connection.fileno())


def failure_of(error: BaseException, *, shown: Callable[[str], str]) -> Failure:
    """What an error of psycopg means. `shown` takes secrets out of a text."""
    import psycopg

    reason = shown(str(error).strip() or type(error).__name__)
    state = getattr(error, "sqlstate", None) or ""
    if not state:
        return _failure_without_code(error, reason)
    if isinstance(error, psycopg.errors.UniqueViolation | psycopg.errors.ExclusionViolation):
        if error.diag.schema_name == "pg_catalog":
            # Two of us made the same thing at once, and it is there now.
            return Failure(Trouble.TRANSIENT, Category.CONCURRENCY, reason)
        return Failure(Trouble.DUPLICATE, Category.CONFLICT, reason)
    category = category_of_state(state)
    trouble = _BY_CATEGORY.get(category, Trouble.OTHER)
    return Failure(trouble, category, reason, connection_lost=category is Category.NETWORK)


def _binary_cursor() -> Any:
    import psycopg

    class BinaryCursor(psycopg.RawCursor[Any]):
        """Parameters are $1, $2; what comes back is binary."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.format = psycopg.pq.Format.BINARY

    return BinaryCursor


def _register_loaders(connection: Any) -> None:
    """Times come as the integers they are stored as, which reach further than Python's; JSON as its text."""
    from psycopg.adapt import Loader
    from psycopg.pq import Format

    def loader(load_value: Any) -> type[Loader]:
        class Binary(Loader):
            format = Format.BINARY

            def load(self, data: Any) -> Any:
                return load_value(bytes(data))

        return Binary

    def interval(data: bytes) -> int:
        microseconds = int.from_bytes(data[:8], signed=True) + int.from_bytes(data[8:12], signed=True) * 86_400_000_000
        if any(data[12:]):
            raise StoreError(
                "an interval of months has no fixed length",
                detail="INTERVAL is of days and parts of them",
                category=Category.DATA,
            )
        return microseconds

    def integer(data: bytes) -> int:
        return int.from_bytes(data, signed=True)

    for name, load_value in {
        "timestamptz": integer,
        "timestamp": integer,
        "date": integer,
        "interval": interval,
        "tid": int.from_bytes,
        "jsonb": lambda data: data[1:].decode(),
        "json": lambda data: data.decode(),
    }.items():
        connection.adapters.register_loader(name, loader(load_value))


def _failure_without_code(error: BaseException, reason: str) -> Failure:
    """Errors of the driver itself: a connection that can't be made or is gone, a value it refuses.

    The server's answer to a refused login has no code in psycopg, only a text that begins with FATAL.
    """
    import psycopg

    if isinstance(error, psycopg.DataError):
        return Failure(Trouble.CONSTRAINT, Category.DATA, reason)
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Failure(Trouble.OTHER, Category.CONFIGURATION, reason)
    category = category_of_text(reason)
    if category is not None:
        return Failure(Trouble.OTHER, category, reason, connection_lost=True)
    return Failure(Trouble.TRANSIENT, Category.NETWORK, reason, connection_lost=True)


_BY_CATEGORY: dict[Category, Trouble] = {
    Category.NETWORK: Trouble.TRANSIENT,
    Category.CONCURRENCY: Trouble.TRANSIENT,
    Category.DATA: Trouble.CONSTRAINT,
}
