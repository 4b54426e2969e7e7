"""What tables and sources of MySQL and MariaDB share: how a server is reached, and what its errors mean."""

from __future__ import annotations

import ssl
from typing import Any

from velostream.errors import Category
from velostream.model.options import Option, Options, OptionType
from velostream.model.server import ServerAddress

SCHEMES = ("mysql", "mariadb")
PORT = 3306
SSL_OPTIONS: tuple[Option, ...] = (
    Option("ssl.mode", "disable, require or verify", OptionType.CHOICE, choices=("disable", "require", "verify")),
    Option("ssl.ca", "file with the certificates to trust"),
)


def connection_arguments(address: ServerAddress, *, timeout_seconds: float) -> dict[str, Any]:
    """What PyMySQL's `connect` takes besides `ssl_arguments`: texts are in utf8mb4, statements commit by themselves."""
    return {
        "host": address.host,
        "port": address.port,
        "user": address.username,
        "password": address.password or "",
        "database": address.database,
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": max(1, round(timeout_seconds)),
    }


def ssl_arguments(options: Options) -> dict[str, Any]:
    """What PyMySQL wants to hear of the options `ssl.mode` and `ssl.ca`."""
    mode, authority = options.text("ssl.mode"), options.text("ssl.ca")
    if mode == "disable":
        return {"ssl_disabled": True}
    if mode == "verify":
        # PyMySQL looks at the server's name only if it is told whom to trust.
        known = ssl.get_default_verify_paths()
        trusted = {"ca": known.cafile, "capath": known.capath} if authority is None else {"ca": authority}
        return {"ssl": {**trusted, "check_hostname": True, "verify_mode": True}}
    if mode == "require" or authority is not None:
        return {"ssl": {"ca": authority, "check_hostname": False, "verify_mode": False}}
    return {}


def category_of_code(code: int) -> Category:
    """What kind of trouble a number of the server or of the client library stands for."""
    return _BY_CODE.get(code, Category.UNKNOWN)


_DATA = (1048, 1138, 1216, 1217, 1263, 1264, 1265, 1292, 1364, 1366, 1367, 1406, 1451, 1452, 1690, 3140, 3819, 4025)
_NETWORK = (1040, 1053, 1152, 1158, 1159, 1160, 1161, 1203, 1226, 1927, 2002, 2003, 2005, 2006, 2013, 2055, 4031)
_AUTHENTICATION = (1044, 1045, 1130, 1142, 1143, 1227, 1251, 1524, 1698, 1820, 1862, 2026, 2059, 3118, 4151)
_CONFIGURATION = (1054, 1064, 1071, 1103, 1118, 1193, 1231, 1290, 1300, 1305, 1348, 1381, 1471, 1792, 1836, 1901)
_BY_CODE: dict[int, Category] = {
    code: category
    for category, codes in (
        (Category.CONFLICT, (1022, 1062, 1169, 1586)),
        (Category.DATA, _DATA),
        (Category.CONCURRENCY, (1020, 1050, 1205, 1213, 1412, 1684)),
        (Category.NETWORK, _NETWORK),
        (Category.AUTHENTICATION, _AUTHENTICATION),
        (Category.MISSING, (1049, 1051, 1109, 1146)),
        (Category.TIMEOUT, (1317, 1969, 3024)),
        (Category.STATE, (1021, 1030, 1041, 1114)),
        (Category.CONFIGURATION, _CONFIGURATION),
    )
    for code in codes
}
