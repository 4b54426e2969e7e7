"""Where a server is: URLs, options, variables; and what must not show."""

from __future__ import annotations

import pytest

from velostream.errors import OptionError
from velostream.model.options import Options
from velostream.model.server import ServerAddress
from velostream.tables.base import TableSpec
from velostream.tables.postgres import PostgresTable
from velostream.tables.relational.base import pool_settings
from velostream.tables.relational.database import Database
from velostream.tables.relational.server_table import ServerTable
from velostream.testing.table_cases import KEYED


def address(**options: str) -> ServerAddress:
    return ServerAddress.of(Options(options, ServerTable.options), schemes=("postgresql", "postgres"), port=5432)


@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        ("postgres://h/db", "postgresql://h:5432/db", None),
        ("postgresql+psycopg://u:a%40b@[::1]:7/d", "postgresql://u@[::1]:7/d", "a@b"),
        ("postgresql://u:${PASSWORD}@h:1/d?sslmode=disable", "postgresql://u@h:1/d", "p@s/s:w?rd#"),
        ("postgresql://u:${PASSWORD:?is needed: here}@${HOST:-other}/d", "postgresql://u@other:5432/d", "p@s/s:w?rd#"),
    ],
)
def test_urls(monkeypatch: pytest.MonkeyPatch, url: str, shown: str, password: str | None):
    monkeypatch.setenv("PASSWORD", "p@s/s:w?rd#")
    found = address(url=url)
    assert (str(found), found.password) == (shown, password)


def test_an_option_wins_over_its_part_of_the_url():
    found = address(url="postgresql://u:x@h:1/d", host="other", username="v", password="y", database="e", port="2")
    assert (str(found), found.password) == ("postgresql://v@other:2/e", "y")
    assert str(address(host="h", database="d")) == "postgresql://h:5432/d"


def test_parameters_are_for_the_driver():
    assert address(url="postgresql://h/d?sslmode=require&x=a%20b").parameters == {"sslmode": "require", "x": "a b"}


@pytest.mark.parametrize(
    "url",
    [
        *("mysql://u:hidden@h/d", "postgresql://u:hidden@h", "postgresql://u:hidden@h:port/d", "u:hidden@h/d"),
        *("postgresql://u:hidden/x@h/d", "postgresql://u:x@hidden@h", "postgresql://u:hidden"),
        "postgresql://u@h?password=hidden",
    ],
)
def test_what_is_no_address_is_refused_without_its_password(url: str):
    with pytest.raises(OptionError) as caught:
        address(url=url)
    assert "hidden" not in str(caught.value)


def test_a_password_shows_nowhere():
    found = address(url="postgresql://u:hidden@h/d")
    assert "hidden" not in repr(found)
    assert "hidden" not in str(found)
    assert found.without_password("login with hidden failed") == "login with *** failed"


OTHERWISE = {"password": "wrong", "ssl.mode": "require", "pool.size": "3", "connect.timeout": "1s"}


def database_of(**options: str) -> Database:
    given = Options({"url": "postgresql://ann:right@localhost:1/shop", **options}, PostgresTable.options)
    return Database.shared(PostgresTable.dialect_of(TableSpec("t", "t", KEYED), given), pool_settings(given))


def test_tables_share_connections_only_if_they_connect_alike():
    first, alike = database_of(), database_of()
    others = [database_of(**{name: value}) for name, value in OTHERWISE.items()]
    assert alike is first
    assert len({id(one) for one in (first, *others)}) == 1 + len(others)
    assert "right" not in repr(Database._shared)
    for one in (first, alike, *others):
        one.release()
    assert not any("shop" in address for _, address, _ in Database._shared)
