"""PyMySQL for the kind `mysql`: connections to MySQL and MariaDB, and what its errors mean."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from velostream.errors import Category, StoreError
from velostream.model.mysql import category_of_code, connection_arguments
from velostream.model.server import ServerAddress, has_something_to_read
from velostream.tables.relational.dialect import DriverConnection, Failure, Trouble

_MARIADB_COLLATION = "utf8mb4_nopad_bin"
_MYSQL_COLLATION = "utf8mb4_0900_bin"
_SQL_MODE = "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection, and what was learned of its server."""

    connection: DriverConnection
    """Has an attribute `opened_as` that no other connection has."""
    collation: str
    """The server's name for comparing text by its bytes, without padding."""


def connect(address: ServerAddress, *, ssl: Mapping[str, Any], timeout_seconds: float, lock_seconds: float) -> Opened:
    """A connection in UTC and in strict mode."""
    import pymysql  # type: ignore[import-untyped]

    try:
        connection = pymysql.connect(**connection_arguments(address, timeout_seconds=timeout_seconds), **ssl)
    except RuntimeError as error:
        # MySQL's own way to log in needs a library that PyMySQL doesn't bring along.
        raise StoreError(
            f'MySQL at "{address}" asks for a login that needs another module',
            detail=str(error),
            hint="pip install 'pymysql[rsa]'",
            category=Category.CONFIGURATION,
        ) from error
    connection.opened_as = uuid.uuid4().hex
    mariadb = "mariadb" in connection.get_server_info().lower()
    collation = _MARIADB_COLLATION if mariadb else _MYSQL_COLLATION
    with connection.cursor() as cursor:
        cursor.execute(f"SET NAMES utf8mb4 COLLATE {collation}")
        cursor.execute(
            f"SET SESSION time_zone = '+00:00', sql_mode = '{_SQL_MODE}', "
            f"innodb_lock_wait_timeout = {max(1, round(lock_seconds))}"
        )
        if not mariadb:
            # When a table was last changed is asked of the table, not of what was known a day ago.
            cursor.execute("SET SESSION information_schema_stats_expiry = 0")
    return Opened(cast("DriverConnection", connection), collation)


def is_lost(connection: DriverConnection) -> bool:
    """Whether the connection is closed, or the server has hung up: an idle one has nothing to say but that."""
    pymysql_connection = cast("Any", connection)
    return not pymysql_connection.open or has_something_to_read(pymysql_connection._sock.fileno())  # noqa: SLF001


def failure_of(error: BaseException, *, shown: Callable[[str], str]) -> Failure:
    """What an error of PyMySQL means. `shown` takes secrets out of a text."""
    import pymysql

    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[-1]) if len(error.args) > 1 else ""
    if not code and isinstance(error, pymysql.InterfaceError | pymysql.OperationalError):
        # The driver's own word for a connection that it has closed.
        return Failure(Trouble.TRANSIENT, Category.NETWORK, "the connection is closed", connection_lost=True)
    if not code:
        return Failure(Trouble.CONSTRAINT, Category.DATA, shown(str(error)))
    category = category_of_code(code)
    trouble = _TROUBLES.get(category, Trouble.OTHER)
    return Failure(trouble, category, shown(f"{text} ({code})"), connection_lost=category is Category.NETWORK)


_TROUBLES = {
    Category.CONFLICT: Trouble.DUPLICATE,
    Category.DATA: Trouble.CONSTRAINT,
    Category.CONCURRENCY: Trouble.TRANSIENT,
    Category.NETWORK: Trouble.TRANSIENT,
}
