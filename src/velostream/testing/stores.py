"""How a table of each kind is opened in tests: its options, another program at its store, its server.

One line per kind in `STORES`. A kind that needs nothing but the directory of its `TableSpec` needs no line, a plug-in's
author may give the suite the same facts by overriding `TableSuite.store`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa

from velostream.tables.base import Table, TableSpec
from velostream.tables.memory import CommitSequence


class Server(Protocol):
    """A real server on loopback, started when the first test asks; see `velostream.testing.services`."""

    @property
    def url(self) -> str: ...

    def stopped(self) -> AbstractContextManager[None]:
        """Takes it away without warning and brings it back at the same address, with what it had stored."""


class ForeignTable(Protocol):
    """A table made and written by another program, by the store's own means: `id` (key), `name`, `amount`.

    Its columns are those of `table_cases.KEYED`: BIGINT, STRING and DECIMAL(10,2).
    """

    def put(self, id_: int, name: str | None, amount: Decimal | None = None) -> None:
        """Make the row, or change the one that is there."""

    def remove(self, id_: int) -> None: ...

    def exists(self) -> bool: ...

    def close(self) -> None: ...


def open_each(table_class: type[Table], specs: Sequence[TableSpec]) -> Sequence[Table]:
    """The tables of a store that makes one group of all it holds."""
    return [table_class.open(spec) for spec in specs]


def open_in_memory(_table_class: type[Table], specs: Sequence[TableSpec]) -> Sequence[Table]:
    """Tables of one commit sequence, as those of a connection are."""
    sequence = CommitSequence.open(specs[0].directory)
    return [sequence.create_table(spec.id, name=spec.name, schema=spec.schema, options=spec.options) for spec in specs]


@dataclass(frozen=True, slots=True)
class TestStore:
    """What the suite must know about a kind's store; the default is one that lives in its `TableSpec`'s directory."""

    __test__ = False

    options: Callable[[Path, str], Mapping[str, str]] = lambda _folder, _name: {}
    """Options of a new table, given a folder that is the test's own and a name that no other table has."""
    foreign: Callable[[Mapping[str, str]], ForeignTable] | None = None
    """Makes the table those options speak of as another program would, for adoption. None: the kind adopts nothing."""
    server: Callable[[], Server] | None = None
    """The server behind the tables, for taking it away. None: there is none."""
    open_together: Callable[[type[Table], Sequence[TableSpec]], Sequence[Table]] = open_each
    """Opens tables that are one commit group; their specs have one directory. Only `transactions` need it."""
    examples: int = 8
    """How many random programs a run affords; thrice as many random conditions."""


class SqlForeignTable:
    """Another program at a database; `url` is one that SQLAlchemy understands."""

    def __init__(self, url: str, name: str) -> None:
        import sqlalchemy

        self._text = sqlalchemy.text
        self._engine = sqlalchemy.create_engine(url)
        self._inspect = sqlalchemy.inspect
        self._name = name
        self._table = self._engine.dialect.identifier_preparer.quote(name)
        self._execute(
            f"CREATE TABLE {self._table} (id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(100), amount DECIMAL(10,2))"
        )

    def put(self, id_: int, name: str | None, amount: Decimal | None = None) -> None:
        with self._engine.begin() as connection:
            connection.execute(self._text(f"DELETE FROM {self._table} WHERE id = :id"), {"id": id_})
            connection.execute(
                self._text(f"INSERT INTO {self._table} VALUES (:id, :name, :amount)"),
                {"id": id_, "name": name, "amount": None if amount is None else str(amount)},
            )

    def remove(self, id_: int) -> None:
        self._execute(f"DELETE FROM {self._table} WHERE id = :id", id=id_)

    def exists(self) -> bool:
        return bool(self._inspect(self._engine).has_table(self._name))

    def close(self) -> None:
        self._engine.dispose()

    def _execute(self, statement: str, **values: Any) -> None:
        with self._engine.begin() as connection:
            connection.execute(self._text(statement), values)


class LakeForeignTable:
    """Another program at a Delta table."""

    def __init__(self, location: Path) -> None:
        import deltalake

        self._lake = deltalake
        self._location = str(location)
        columns = {"id": pa.int64(), "name": pa.string(), "amount": pa.decimal128(10, 2)}
        self._schema = pa.schema(list(columns.items()))
        deltalake.DeltaTable.create(self._location, self._schema)

    def put(self, id_: int, name: str | None, amount: Decimal | None = None) -> None:
        self.remove(id_)
        rows = pa.Table.from_pylist([{"id": id_, "name": name, "amount": amount}], self._schema)
        self._lake.write_deltalake(self._location, rows, mode="append")

    def remove(self, id_: int) -> None:
        self._lake.DeltaTable(self._location).delete(f"id = {int(id_)}")

    def exists(self) -> bool:
        return self._lake.DeltaTable.is_deltatable(self._location)

    def close(self) -> None:
        """Nothing is held."""


class MongodbForeignTable:
    """Another program at a MongoDB, whose documents have fields that are no columns."""

    def __init__(self, url: str, name: str) -> None:
        import pymongo

        self._client: Any = pymongo.MongoClient(url)
        self._collection = self._client.get_default_database()[name]

    def put(self, id_: int, name: str | None, amount: Decimal | None = None) -> None:
        from bson.decimal128 import Decimal128

        values = {"name": name, "amount": None if amount is None else Decimal128(amount), "note": "theirs"}
        self._collection.update_one({"id": id_}, {"$set": values}, upsert=True)

    def remove(self, id_: int) -> None:
        self._collection.delete_one({"id": id_})

    def exists(self) -> bool:
        return self._collection.name in self._collection.database.list_collection_names()

    def close(self) -> None:
        self._collection.drop()
        self._client.close()


class RedisForeignTable:
    """Another program at a Redis: a hash per row, whose key has the row's key after a colon."""

    def __init__(self, url: str, name: str) -> None:
        import redis

        self._client: Any = redis.Redis.from_url(url)
        self._name = name

    def put(self, id_: int, name: str | None, amount: Decimal | None = None) -> None:
        given = {"name": name, "amount": amount}
        self.remove(id_)
        values = {field: str(value) for field, value in given.items() if value is not None}
        self._client.hset(f"{self._name}:{id_}", mapping={"note": "theirs", **values})

    def remove(self, id_: int) -> None:
        self._client.delete(f"{self._name}:{id_}")

    def exists(self) -> bool:
        return bool(self._keys())

    def close(self) -> None:
        for key in self._keys():
            self._client.delete(key)
        self._client.close()

    def _keys(self) -> list[bytes]:
        return list(self._client.scan_iter(match=f"{self._name}:[0-9]*"))


def _service(module: str, name: str) -> Callable[[], Server]:
    """The one server of its kind in this test run, started on the first call."""

    def shared() -> Server:
        return cast("Server", getattr(importlib.import_module(f"velostream.testing.services.{module}"), name).shared())

    return shared


_POSTGRES = _service("postgres", "PostgresService")
_MYSQL = _service("mysql", "MysqlService")
_MONGODB = _service("mongodb", "MongodbService")
_REDIS = _service("redis", "RedisService")

_IMPATIENT = {"connect.timeout": "1s", "retry.timeout": "1s"}
"""A server that is gone is said to be after a second."""

STORES: Mapping[str, TestStore] = {
    "inmemory": TestStore(open_together=open_in_memory, examples=30),
    "cache": TestStore(options=lambda _folder, _name: {"max_size": "100000"}, examples=30),
    "sqlite": TestStore(
        options=lambda folder, name: {"url": f"sqlite:///{folder}/store.db", "table": name},
        foreign=lambda options: SqlForeignTable(options["url"], options["table"]),
    ),
    "jdbc": TestStore(
        options=lambda folder, name: {"url": f"sqlite:///{folder}/store.db", "table": name},
        foreign=lambda options: SqlForeignTable(options["url"], options["table"]),
    ),
    "postgres": TestStore(
        options=lambda _folder, name: {"url": _POSTGRES().url, "table": name, "retry.timeout": "2s"},
        foreign=lambda options: SqlForeignTable(
            options["url"].replace("postgresql://", "postgresql+psycopg://", 1), options["table"]
        ),
        server=_POSTGRES,
    ),
    "mysql": TestStore(
        options=lambda _folder, name: {"url": _MYSQL().url, "table": name, "retry.timeout": "2s"},
        foreign=lambda options: SqlForeignTable(
            options["url"].replace("mysql://", "mysql+pymysql://", 1), options["table"]
        ),
        server=_MYSQL,
    ),
    "mongodb": TestStore(
        options=lambda _folder, name: {"url": _MONGODB().url, "table": name, **_IMPATIENT},
        foreign=lambda options: MongodbForeignTable(options["url"], options["table"]),
        server=_MONGODB,
    ),
    "redis": TestStore(
        options=lambda _folder, name: {"url": _REDIS().url, "table": name, **_IMPATIENT},
        foreign=lambda options: RedisForeignTable(options["url"], options["table"]),
        server=_REDIS,
    ),
    "delta": TestStore(
        options=lambda folder, name: {"url": str(folder / "lake"), "table": name},
        foreign=lambda options: LakeForeignTable(Path(options["url"]) / options["table"]),
    ),
}


def store_of(kind: str) -> TestStore:
    """What is known about a kind's store; a kind without a line here lives in its own directory."""
    return STORES.get(kind.lower(), TestStore())
