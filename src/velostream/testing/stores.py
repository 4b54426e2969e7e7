"""How a table of each kind is opened in tests: its options, another program at its store, its server.

One line per kind in `STORES`. A kind that needs nothing but the directory of its `TableSpec` needs no line, a plug-in's
author may give the suite the same facts by overriding `TableSuite.store`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import pyarrow as pa

from velostream.tables.base import Table, TableSpec
from velostream.tables.memory import CommitSequence
from velostream.testing.foreign_tables import (
    ClickhouseForeignTable,
    ForeignTable,
    LakeForeignTable,
    MongodbForeignTable,
    RedisForeignTable,
    SqlForeignTable,
)
from velostream.testing.table_cases import KEYED, rows_of


class Server(Protocol):
    """A real server on loopback, started when the first test asks; see `velostream.testing.services`."""

    @property
    def url(self) -> str: ...

    def stopped(self) -> AbstractContextManager[None]:
        """Takes it away without warning and brings it back at the same address, with what it had stored."""


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
    fill: Callable[[Mapping[str, str], pa.Table], object] | None = None
    """Makes the table those options speak of with rows, as another program would; for kinds that are only read."""
    server: Callable[[], Server] | None = None
    """The server behind the tables, for taking it away. None: there is none."""
    open_together: Callable[[type[Table], Sequence[TableSpec]], Sequence[Table]] = open_each
    """Opens tables that are one commit group; their specs have one directory. Only `transactions` need it."""
    examples: int = 8
    """How many random programs a run affords; thrice as many random conditions."""


def _service(module: str, name: str) -> Callable[[], Server]:
    """The one server of its kind in this test run, started on the first call."""

    def shared() -> Server:
        return cast("Server", getattr(importlib.import_module(f"velostream.testing.services.{module}"), name).shared())

    return shared


_POSTGRES = _service("postgres", "PostgresService")
_MYSQL = _service("mysql", "MysqlService")
_MONGODB = _service("mongodb", "MongodbService")
_REDIS = _service("redis", "RedisService")
_CLICKHOUSE = _service("clickhouse", "ClickhouseService")

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
    "clickhouse": TestStore(
        options=lambda _folder, name: {"url": _CLICKHOUSE().url, "table": name, **_IMPATIENT},
        foreign=lambda options: ClickhouseForeignTable(options["url"], options["table"], rows_of(KEYED)),
        fill=lambda options, rows: ClickhouseForeignTable(options["url"], options["table"], rows),
        server=_CLICKHOUSE,
    ),
    "delta": TestStore(
        options=lambda folder, name: {"url": str(folder / "lake"), "table": name},
        foreign=lambda options: LakeForeignTable(Path(options["url"]) / options["table"]),
    ),
}


def store_of(kind: str) -> TestStore:
    """What is known about a kind's store; a kind without a line here lives in its own directory."""
    return STORES.get(kind.lower(), TestStore())
