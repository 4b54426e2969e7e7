"""A feed of MySQL sources: a table on a real server, filled by a test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from velostream.errors import Category
from velostream.plugins import Group, load
from velostream.sources.base import Source, SourceSpec
from velostream.testing.feeds import SourceFeed, Trouble, numbered_rows
from velostream.testing.services.mysql import MysqlService

_numbers = itertools.count(1)


class MysqlFeed(SourceFeed):
    """A table of the shared MariaDB, read in the way that the options say."""

    limit_slack = 10_000
    """All that is there at the start comes in one piece."""
    secrets = ("p@ss:w/rd",)

    def __init__(self, **options: str) -> None:
        self._service = MysqlService.shared()
        self._made: list[Source] = []
        self._table = f"feed_{next(_numbers)}"
        self._options = {"table": self._table} | {name.replace("_", "."): value for name, value in options.items()}
        self._next = self.first_number
        self._service.execute(
            f"CREATE TABLE {self._table} (id BIGINT PRIMARY KEY, name VARCHAR(100), price DECIMAL(18,2))"
        )

    def source(self) -> Source:
        return self._source(**self._options)

    def append(self, count: int) -> bool:
        rows = numbered_rows(self._next, count).to_pylist()
        places = ", ".join("(%s, %s, %s)" for _ in rows)
        values = [row[name] for row in rows for name in ("id", "name", "price")]
        self._service.execute(f"INSERT INTO {self._table} VALUES {places}", values)
        self._next += count
        return True

    def update(self, number: int, name: str) -> bool:
        if self._follows_all:
            self._service.execute(f"UPDATE {self._table} SET name = %s WHERE id = %s", [name, number])
        return self._follows_all

    def delete(self, number: int) -> bool:
        if self._follows_all:
            self._service.execute(f"DELETE FROM {self._table} WHERE id = %s", [number])
        return self._follows_all

    def missing_source(self) -> Source | None:
        return self._source(**(self._options | {"table": "nowhere"}))

    def troubles(self) -> Sequence[Trouble]:
        return (
            Trouble("an unknown user", Category.AUTHENTICATION, self._as_stranger, passes=False),
            Trouble("a user without rights", Category.AUTHENTICATION, self._without_rights, passes=False),
            Trouble("no server at the port", Category.NETWORK, self._elsewhere, passes=False),
            Trouble("a dropped table", Category.MISSING, self._dropped, passes=False),
        )

    def close(self) -> None:
        for source in self._made:
            source.close()
        self._service.execute(f"DROP TABLE IF EXISTS {self._table}")

    @property
    def _follows_all(self) -> bool:
        return "cdc" in self._options

    def _as_stranger(self, _: Source) -> AbstractContextManager[Source]:
        return nullcontext(self._source(**self._options, username="stranger", password=self.secrets[0]))

    def _elsewhere(self, _: Source) -> AbstractContextManager[Source]:
        return nullcontext(self._source(**self._options, port="1"))

    @contextmanager
    def _without_rights(self, _: Source) -> Iterator[Source]:
        self._service.execute("DROP USER IF EXISTS powerless")
        self._service.execute("CREATE USER powerless IDENTIFIED BY %s", [self.secrets[0]])
        yield self._source(**self._options, username="powerless", password=self.secrets[0])
        self._service.execute("DROP USER powerless")

    @contextmanager
    def _dropped(self, source: Source) -> Iterator[Source]:
        source.close()
        self._service.execute(f"DROP TABLE {self._table}")
        yield self.source()

    def _source(self, **options: str) -> Source:
        made: Source = load(Group.SOURCES, "mysql")(SourceSpec("mysql", self._service.url, options))
        self._made.append(made)
        return made
