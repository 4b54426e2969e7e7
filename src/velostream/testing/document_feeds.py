"""Feeds of sources that are no SQL databases: documents, hashes and streams on real servers, filled by a test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from velostream.errors import Category
from velostream.plugins import Group, load
from velostream.sources.base import Source, SourceSpec
from velostream.testing.feeds import SourceFeed, Trouble, numbered_rows
from velostream.testing.services.mongodb import MongodbService
from velostream.testing.services.redis import RedisService

_EVERYTHING = 10_000
"""A database gives all that it holds at the start in one piece."""
_numbers = itertools.count(1)


class MongodbFeed(SourceFeed):
    """A collection of the shared MongoDB, read in the way that the options say."""

    number_column = "_id"
    limit_slack = _EVERYTHING
    secrets = ("p@ss:w/rd",)

    def __init__(self, **options: str) -> None:
        self._url = MongodbService.shared().url
        self._name = f"feed_{next(_numbers)}"
        self._options = {"collection": self._name} | {name.replace("_", "."): value for name, value in options.items()}
        self._next = self.first_number
        self._made: list[Source] = []

    def source(self) -> Source:
        return self._source(**self._options)

    def append(self, count: int) -> bool:
        from bson.decimal128 import Decimal128

        rows = numbered_rows(self._next, count).to_pylist()
        documents = [{"_id": row["id"], **row, "price": Decimal128(format(row["price"], "f"))} for row in rows]
        with self._collection() as collection:
            collection.insert_many(documents)
        self._next += count
        return True

    def append_bad_record(self) -> bool:
        with self._collection() as collection:
            collection.insert_one({"_id": -1, "id": "not a number"})
        return True

    def update(self, number: int, name: str) -> bool:
        if self._follows_all:
            with self._collection() as collection:
                collection.update_one({"_id": number}, {"$set": {"name": name}})
        return self._follows_all

    def delete(self, number: int) -> bool:
        if self._follows_all:
            with self._collection() as collection:
                collection.delete_one({"_id": number})
        return self._follows_all

    def missing_source(self) -> Source | None:
        return self._source(**(self._options | {"collection": "nowhere"}))

    def troubles(self) -> Sequence[Trouble]:
        return (
            Trouble("an unknown user", Category.AUTHENTICATION, self._as_a_stranger, passes=False),
            Trouble("no server at the port", Category.NETWORK, self._elsewhere, passes=False),
            Trouble("a dropped collection", Category.MISSING, self._dropped, passes=False),
        )

    def close(self) -> None:
        for source in self._made:
            source.close()
        with self._collection() as collection:
            collection.drop()

    @property
    def _follows_all(self) -> bool:
        return "cdc" in self._options

    def _as_a_stranger(self, _: Source) -> AbstractContextManager[Source]:
        return nullcontext(self._source(**self._options, username="stranger", password=self.secrets[0]))

    def _elsewhere(self, _: Source) -> AbstractContextManager[Source]:
        away = {**self._options, "connect.timeout": "500ms", "directconnection": "true"}
        return nullcontext(self._source("mongodb://127.0.0.1:1/test", **away))

    @contextmanager
    def _dropped(self, _: Source) -> Iterator[Source]:
        with self._collection() as collection:
            collection.drop()
        yield self.source()

    @contextmanager
    def _collection(self) -> Iterator[Any]:
        """For a moment only: a client of the driver opens and closes connections as it likes, and they are counted."""
        import pymongo

        client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(self._url)
        with client:
            yield client.get_default_database()[self._name]

    def _source(self, url: str | None = None, **options: str) -> Source:
        made: Source = load(Group.SOURCES, "mongodb")(SourceSpec("mongodb", url or self._url, options))
        self._made.append(made)
        return made


class RedisFeed(SourceFeed):
    """A stream, or hashes whose names begin alike, of the shared Redis."""

    limit_slack = _EVERYTHING
    secrets = ("p@ss:w/rd",)

    def __init__(self, kind: str, **options: str) -> None:
        self._url = RedisService.shared().new_database()
        self._kind = kind
        self._options = {kind: "feed:"} | {name.replace("_", "."): value for name, value in options.items()}
        self._next = self.first_number
        self._made: list[Source] = []

    def source(self) -> Source:
        return self._source(**self._options)

    def append(self, count: int) -> bool:
        rows = numbered_rows(self._next, count).to_pylist()
        with self._client() as client:
            for row in rows:
                fields = {name: str(value) for name, value in row.items() if value is not None}
                if self._kind == "stream":
                    client.xadd("feed:", fields)
                else:
                    client.hset(f"feed:{fields.pop('id')}", mapping=fields)
        self._next += count
        return True

    def append_bad_record(self) -> bool:
        with self._client() as client:
            if self._kind == "stream":
                client.xadd("feed:", {"id": "not a number"})
            else:
                client.hset("feed:0", "price", "not a number")
        return True

    def missing_source(self) -> Source | None:
        return self._source(stream="nowhere") if self._kind == "stream" else None

    def troubles(self) -> Sequence[Trouble]:
        return (
            Trouble("an unknown user", Category.AUTHENTICATION, self._as_a_stranger, passes=False),
            Trouble("no server at the port", Category.NETWORK, self._elsewhere, passes=False),
            Trouble("no such database", Category.CONFIGURATION, self._beyond, passes=False),
        )

    def close(self) -> None:
        for source in self._made:
            source.close()
        with self._client() as client:
            client.flushdb()

    def _as_a_stranger(self, _: Source) -> AbstractContextManager[Source]:
        return nullcontext(self._source(**self._options, username="stranger", password=self.secrets[0]))

    def _elsewhere(self, _: Source) -> AbstractContextManager[Source]:
        return nullcontext(self._source(**self._options, port="1"))

    def _beyond(self, _: Source) -> AbstractContextManager[Source]:
        return nullcontext(self._source(**self._options, database="1000000"))

    def _client(self) -> Any:
        import redis

        return redis.Redis.from_url(self._url)

    def _source(self, **options: str) -> Source:
        made: Source = load(Group.SOURCES, "redis")(SourceSpec("redis", self._url, options))
        self._made.append(made)
        return made
