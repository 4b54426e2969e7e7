"""The suite of all tables against the smallest form of the memory table: packed, keys by hash, all of it in files."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from velostream.model.schema import Schema
from velostream.tables.base import TableSpec
from velostream.testing.table_suite import TableSuite


class TestSmallestForm(TableSuite):
    @pytest.fixture
    def kind(self) -> str:
        return "inmemory"

    @pytest.fixture(autouse=True)
    def _tiny(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("velostream.tables.memory.settings._PACKED_ROWS", 3)
        monkeypatch.setattr("velostream.tables.memory.index._FEWEST_HASHED", 2)
        monkeypatch.setattr("velostream.tables.memory.index._MOST_RECENT", 3)

    def new_spec(self, schema: Schema, options: Mapping[str, str] | None = None) -> TableSpec:
        return super().new_spec(schema, {"table_model": "compact", "memory.limit": "1", **(options or {})})
