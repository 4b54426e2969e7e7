"""Feeds of database sources: a table on a real server, filled by a test."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from velostream.errors import Category
from velostream.plugins import Group, load
from velostream.sources.base import Source, SourceSpec
from velostream.testing.feeds import SourceFeed, Trouble, numbered_rows
from velostream.testing.services.clickhouse import ClickhouseService
from velostream.testing.services.postgres import PostgresService

_EVERYTHING = 10_000
"""A database gives all that it holds at the start in one piece."""
_numbers = itertools.count(1)


class PostgresFeed(SourceFeed):
    """A table of the shared PostgreSQL, read in the way that the options say."""

    limit_slack = _EVERYTHING
    secrets = ("p@ss:w/rd",)

    def __init__(self, **options: str) -> None:
        self._url = PostgresService.shared().url
        self._made: list[Source] = []
        self._table = f"feed_{next(_numbers)}"
        self._options = {"table": self._table} | {name.replace("_", "."): value for name, value in options.items()}
        if "cdc" in self._options:
            # Workers look into the slot, too, so it can't be one that belongs to a connection.
            self._options["slot.name"] = f"slot_of_{self._table}"
        self._next = self.first_number
        self._execute(f"CREATE TABLE {self._table} (id bigint PRIMARY KEY, name text, price numeric(18,2))")

    def source(self) -> Source:
        return self._source(**self._options)

    def append(self, count: int) -> bool:
        import psycopg

        rows = numbered_rows(self._next, count).to_pylist()
        with psycopg.connect(self._url) as connection, connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {self._table} VALUES (%(id)s, %(name)s, %(price)s)".encode(),
                rows,
            )
        self._next += count
        return True

    def update(self, number: int, name: str) -> bool:
        if self._follows_all:
            self._execute(f"UPDATE {self._table} SET name = '{name}' WHERE id = {number}")
        return self._follows_all

    def delete(self, number: int) -> bool:
        if self._follows_all:
            self._execute(f"DELETE FROM {self._table} WHERE id = {number}")
        return self._follows_all

    def missing_source(self) -> Source | None:
        return self._source(**(self._options | {"table": "nowhere"}))

    def troubles(self) -> Sequence[Trouble]:
        return (
            Trouble("an unknown user", Category.AUTHENTICATION, self._as("stranger"), passes=False),
            Trouble("a user without rights", Category.AUTHENTICATION, self._without_rights, passes=False),
            Trouble("no server at the port", Category.NETWORK, self._elsewhere, passes=False),
            Trouble("a dropped table", Category.MISSING, self._dropped, passes=False),
        )

    def close(self) -> None:
        """Drop the table, and the slot if there is one, which would keep the server's log for ever."""
        for source in self._made:
            source.close()
        slot = self._options.get("slot.name", "")
        self._execute(
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}'",
            f"DROP PUBLICATION IF EXISTS velostream_{slot}",
            f"DROP TABLE IF EXISTS {self._table}",
        )

    @property
    def _follows_all(self) -> bool:
        return "cdc" in self._options

    def _as(self, user: str) -> Callable[[Source], AbstractContextManager[Source]]:
        return lambda _: nullcontext(self._source(**self._options, username=user, password=self.secrets[0]))

    def _elsewhere(self, _: Source) -> AbstractContextManager[Source]:
        return nullcontext(self._source(**self._options, port="1"))

    @contextmanager
    def _without_rights(self, _: Source) -> Iterator[Source]:
        self._execute("DROP ROLE IF EXISTS powerless", "CREATE ROLE powerless LOGIN")
        yield self._source(**self._options, username="powerless", password=self.secrets[0])
        self._execute("DROP ROLE powerless")

    @contextmanager
    def _dropped(self, source: Source) -> Iterator[Source]:
        source.close()
        self._execute(f"DROP TABLE {self._table}")
        yield self.source()

    def _source(self, **options: str) -> Source:
        made: Source = load(Group.SOURCES, "postgres")(SourceSpec("postgres", self._url, options))
        self._made.append(made)
        return made

    def _execute(self, *statements: str) -> None:
        import psycopg

        with psycopg.connect(self._url, autocommit=True, options="-c lock_timeout=10s") as connection:
            for statement in statements:
                connection.execute(statement.encode())


class SqlFeed(SourceFeed):
    """A table of a database in a file, through SQLAlchemy."""

    limit_slack = _EVERYTHING

    def __init__(self, folder: Path, driver: str, **options: str) -> None:
        self._address = f"{driver}:///{folder / 'feed.db'}"
        self._options = {"table": "feed"} | {name.replace("_", "."): value for name, value in options.items()}
        self._next = self.first_number
        self._execute("CREATE TABLE feed (id BIGINT PRIMARY KEY, name VARCHAR(100), price DECIMAL(18, 2))")

    def source(self) -> Source:
        return self._source(**self._options)

    def append(self, count: int) -> bool:
        rows = numbered_rows(self._next, count).to_pylist()
        listed = [{**row, "price": str(row["price"])} for row in rows]
        self._execute("INSERT INTO feed VALUES (:id, :name, :price)", listed)
        self._next += count
        return True

    def missing_source(self) -> Source | None:
        return self._source(**(self._options | {"table": "nowhere"}))

    def _source(self, **options: str) -> Source:
        made: Source = load(Group.SOURCES, "sql")(SourceSpec("sql", f"sql://{self._address}", options))
        return made

    def _execute(self, statement: str, rows: list[dict[str, object]] | None = None) -> None:
        import sqlalchemy

        engine = sqlalchemy.create_engine(self._address, poolclass=sqlalchemy.pool.NullPool)
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text(statement), rows)
        engine.dispose()


class ClickhouseFeed(SourceFeed):
    """A table of the shared ClickHouse, whose engine is real and whose HTTP layer stands in for the server's."""

    limit_slack = _EVERYTHING
    secrets = ("p@ss:w/rd",)

    def __init__(self, **options: str) -> None:
        self._service = ClickhouseService.shared()
        self._table = f"feed_{next(_numbers)}"
        # ClickHouse knows neither keys nor an order of its own: what was inserted apart is read at once.
        self._options = {"table": self._table, "key": "id", "order.by": "id"}
        self._options |= {name.replace("_", "."): value for name, value in options.items()}
        self._next = self.first_number
        columns = "id Int64, name Nullable(String), price Decimal(18, 2)"
        self._service.execute(f"CREATE TABLE {self._table} ({columns}) ENGINE = MergeTree ORDER BY id")

    def source(self) -> Source:
        return self._source(**self._options)

    def append(self, count: int) -> bool:
        rows = numbered_rows(self._next, count).to_pylist()
        lines = (f'{{"id":{row["id"]},"name":{json.dumps(row["name"])},"price":"{row["price"]}"}}' for row in rows)
        self._service.load(f"INSERT INTO {self._table} FORMAT JSONEachRow", "\n".join(lines).encode())
        self._next += count
        return True

    def missing_source(self) -> Source | None:
        return self._source(**(self._options | {"table": "nowhere"}))

    def troubles(self) -> Sequence[Trouble]:
        return (
            Trouble("a wrong password", Category.AUTHENTICATION, self._as_a_stranger, passes=False),
            Trouble("no server at the port", Category.NETWORK, self._elsewhere, passes=False),
            Trouble("a dropped table", Category.MISSING, self._dropped, passes=False),
        )

    def close(self) -> None:
        self._service.execute(f"DROP TABLE IF EXISTS {self._table}")

    def _as_a_stranger(self, _: Source) -> AbstractContextManager[Source]:
        return nullcontext(self._source(**self._options, password=self.secrets[0]))

    def _elsewhere(self, _: Source) -> AbstractContextManager[Source]:
        return nullcontext(self._source(**self._options, port="1"))

    @contextmanager
    def _dropped(self, _: Source) -> Iterator[Source]:
        self.close()
        yield self.source()

    def _source(self, **options: str) -> Source:
        made: Source = load(Group.SOURCES, "clickhouse")(SourceSpec("clickhouse", self._service.url, options))
        return made
