"""The kind `jdbc` over a database that has no kind of its own, against the suite for all tables.

What `jdbc` does over SQLite, PostgreSQL and MySQL is what those kinds do; over DuckDB it has nothing but standard SQL.
"""

from __future__ import annotations

import pytest

from velostream.testing.stores import SqlForeignTable, TestStore
from velostream.testing.table_suite import TableSuite


class TestDuckdb(TableSuite):
    @pytest.fixture
    def kind(self) -> str:
        return "jdbc"

    @property
    def store(self) -> TestStore:
        return TestStore(
            options=lambda folder, name: {"url": f"duckdb:///{folder}/store.duckdb", "table": name},
            foreign=lambda options: SqlForeignTable(options["url"], options["table"]),
            examples=3,
        )
