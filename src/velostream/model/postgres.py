"""What tables and sources of PostgreSQL share: how a server is reached, and what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from velostream.errors import Category
from velostream.model.server import ServerAddress


def connection_arguments(
    address: ServerAddress, *, parameters: Mapping[str, str], timeout_seconds: float, settings: Mapping[str, str]
) -> dict[str, Any]:
    """What psycopg's `connect` takes; `settings` are of the session, with UTC as its time zone."""
    # A moment that others still read is held by a transaction in which nothing happens.
    said = {"timezone": "UTC", "idle_in_transaction_session_timeout": "0", **settings}
    return {
        "host": address.host,
        "port": address.port,
        "dbname": address.database,
        "user": address.username,
        "password": address.password,
        "application_name": "velostream",
        "connect_timeout": max(2, round(timeout_seconds)),
        # A server that vanished without a word is noticed within a minute.
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
        **parameters,
        "options": " ".join([parameters.get("options", ""), *(f"-c {n}={v}" for n, v in said.items())]).strip(),
    }


def category_of_state(state: str) -> Category:
    """What kind of trouble a SQLSTATE stands for."""
    return next((category for prefix, category in _BY_STATE.items() if state.startswith(prefix)), Category.UNKNOWN)


def category_of_text(text: str) -> Category | None:
    """What kind of trouble a refused login is: the server's answer has no code in psycopg, only a text."""
    return next((category for pattern, category in _BY_TEXT.items() if re.search(pattern, text)), None)


_BY_STATE: dict[str, Category] = {
    "08": Category.NETWORK,
    "57P": Category.NETWORK,
    "53300": Category.NETWORK,
    "57014": Category.TIMEOUT,
    "53": Category.STATE,
    "55000": Category.STATE,
    "55006": Category.CONCURRENCY,
    "58": Category.STATE,
    "40": Category.CONCURRENCY,
    "55P03": Category.CONCURRENCY,
    "23": Category.DATA,
    "22": Category.DATA,
    "428C9": Category.DATA,
    "42501": Category.AUTHENTICATION,
    "28": Category.AUTHENTICATION,
    "3D000": Category.MISSING,
    "3F000": Category.MISSING,
    "42P01": Category.MISSING,
    "42704": Category.MISSING,
    "42": Category.CONFIGURATION,
    "0A": Category.CONFIGURATION,
    "25006": Category.CONFIGURATION,
}
"""By the beginning of the SQLSTATE, the longer ones first where one begins another."""

_BY_TEXT: dict[str, Category] = {
    "authentication failed|no password supplied|no pg_hba.conf entry": Category.AUTHENTICATION,
    "role .* does not exist|permission denied for database|certificate": Category.AUTHENTICATION,
    "database .* does not exist": Category.MISSING,
    "invalid connection option": Category.CONFIGURATION,
}
