"""A SQLite file as we and as other programs see it."""

from __future__ import annotations

import sqlite3

import pytest

from velostream.model.schema import Schema
from velostream.tables.base import TableSpec
from velostream.tables.sqlite import SqliteTable
from velostream.testing.table_cases import KEYED


class Store:
    """One file, the tables we opened in it, and another program's connection to it."""

    def __init__(self, path):
        self.path = path
        self.opened = []
        self._theirs = None

    @property
    def theirs(self) -> sqlite3.Connection:
        if self._theirs is None:
            self._theirs = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        return self._theirs

    def open(self, name: str = "t", schema: Schema = KEYED, *, id_: str | None = None, **options: str) -> SqliteTable:
        given = {"url": f"sqlite:///{self.path}", **{key.replace("_", "."): value for key, value in options.items()}}
        table = SqliteTable.open(TableSpec(id_ or name, name, schema, options=given))
        self.opened.append(table)
        return table

    def close(self) -> None:
        for table in self.opened:
            table.close()
        if self._theirs is not None:
            self._theirs.close()


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store.db")
    yield made
    made.close()
