"""PyMySQL for the kind `mysql`: connections to MySQL and MariaDB, and what its errors mean."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from velostream.errors import Category, StoreError
from velostream.model.options import Options
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
        connection = pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.username,
            password=address.password or "",
            database=address.database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=max(1, round(timeout_seconds)),
            **ssl,
        )
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


def ssl_arguments(options: Options) -> dict[str, Any]:
    """What PyMySQL wants to hear of the options `ssl.mode` and `ssl.ca`."""
    mode, authority = options.text("ssl.mode"), options.text("ssl.ca")
    if mode == "disable":
        return {"ssl_disabled": True}
    arguments: dict[str, Any] = {}
    if authority is not None:
        arguments["ssl_ca"] = authority
    if mode is not None:
        arguments |= {"ssl": {}, "ssl_verify_cert": mode == "verify", "ssl_verify_identity": mode == "verify"}
    return arguments


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
    trouble, category = _BY_CODE.get(code, (Trouble.OTHER, Category.UNKNOWN))
    return Failure(trouble, category, shown(f"{text} ({code})"), connection_lost=category is Category.NETWORK)


_BY_CODE: dict[int, tuple[Trouble, Category]] = {
    code: (trouble, category)
    for trouble, category, codes in (
        (Trouble.DUPLICATE, Category.CONFLICT, (1022, 1062, 1169, 1586)),
        (
            Trouble.CONSTRAINT,
            Category.DATA,
            (
                1048,
                1138,
                1216,
                1217,
                1263,
                1264,
                1265,
                1292,
                1364,
                1366,
                1367,
                1406,
                1451,
                1452,
                1690,
                3819,
                3140,
                4025,
            ),
        ),
        (Trouble.TRANSIENT, Category.CONCURRENCY, (1020, 1050, 1205, 1213, 1412, 1684)),
        (
            Trouble.TRANSIENT,
            Category.NETWORK,
            (1040, 1053, 1152, 1158, 1159, 1160, 1161, 1203, 1226, 1927, 2002, 2003, 2005, 2006, 2013, 2055, 4031),
        ),
        (
            Trouble.OTHER,
            Category.AUTHENTICATION,
            (1044, 1045, 1130, 1142, 1143, 1227, 1251, 1524, 1698, 1820, 1862, 2026, 2059, 3118, 4151),
        ),
        (Trouble.OTHER, Category.MISSING, (1049, 1051, 1109, 1146)),
        (Trouble.OTHER, Category.TIMEOUT, (1317, 1969, 3024)),
        (Trouble.OTHER, Category.STATE, (1021, 1030, 1041, 1114)),
        (
            Trouble.OTHER,
            Category.CONFIGURATION,
            (1054, 1064, 1071, 1103, 1118, 1193, 1231, 1290, 1300, 1305, 1348, 1471, 1792, 1836, 1901),
        ),
    )
    for code in codes
}
"""By the server's and the client library's own numbers."""
