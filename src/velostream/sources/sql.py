"""`sql://`: tables and queries of any database that SQLAlchemy has a dialect for, read once or polled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from velostream.errors import OptionError, StoreError
from velostream.model.options import Option, expand_environment
from velostream.sources.database import DATABASE_OPTIONS, DatabaseSource
from velostream.sources.sql_driver import SqlDriver

if TYPE_CHECKING:
    from sqlalchemy import URL

_EXPECTED = "sql://driver:connection, such as sql://sqlite:///file.db or sql://duckdb:file.db"


class SqlSource(DatabaseSource):
    """A table or query behind a SQLAlchemy URL: `sql://sqlite:///f.db`, `sql://mssql+pymssql://user@host/db`.

    Delivery guarantee: exactly-once into tables; rows that come and go between two looks are never seen.
    """

    driver: SqlDriver
    kind: ClassVar[str] = "sql"
    takes_variables: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        # Sessions can't share what they see, so a table of one moment is read by one of them.
        *(option for option in DATABASE_OPTIONS if option.name != "parallel.readers"),
        Option("driver", "the driver, where the address names none"),
        Option("username", "who to connect as; wins over the address"),
        Option("password", "the password; better ${VARIABLE}"),
    )

    def reach(self) -> tuple[SqlDriver, str | None]:
        url = _url(self.spec.uri, self.settings.text("driver"))
        username, password = self.settings.text("username"), self.settings.text("password")
        url = url.set(username=username or url.username, password=password or url.password)
        return SqlDriver(url, self.settings.text("timezone") or "UTC"), None


def _url(uri: str, driver: str | None) -> URL:
    """The address for SQLAlchemy. Variables are put in after it was taken apart."""
    try:
        import sqlalchemy
    except ImportError as error:
        raise StoreError.missing_driver("sql", module="sqlalchemy", extra="sql") from error
    address = uri.removeprefix("sql://")
    if driver is not None and not address.startswith(f"{driver}:"):
        address = f"{driver}:{address}"
    named = re.fullmatch(r"(?P<driver>[\w+.\-]+):(?P<rest>.*)", address, re.DOTALL)
    if named is None:
        raise OptionError.value("source", "sql://…", expected=_EXPECTED)
    text = named["rest"]
    if re.match(r"[\w+.\-]+://", text) is None:
        text = f"{named['driver']}:{text if text.startswith('//') else '///' + text}"
    try:
        url = sqlalchemy.make_url(text)
    except sqlalchemy.exc.ArgumentError as error:
        raise OptionError.value("source", "sql://…", expected=_EXPECTED) from error

    def plain(part: str | None) -> str | None:
        return None if part is None else expand_environment(part)

    password = None if url.password is None else str(url.password)
    return url.set(
        username=plain(url.username), password=plain(password), host=plain(url.host), database=plain(url.database)
    )
