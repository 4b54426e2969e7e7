"""A stranger's kind of table, known by its entry point alone, against the suite that ships with the package."""

from __future__ import annotations

import pytest

from velostream import plugins
from velostream.testing.table_suite import TableSuite


class TestArrowFile(TableSuite):
    @pytest.fixture
    def kind(self) -> str:
        return "arrowfile"


def test_the_stranger_is_known_by_its_name_in_any_case():
    assert "arrowfile" in plugins.names(plugins.Group.TABLES)
    assert plugins.load(plugins.Group.TABLES, "arrowFile").kind == "arrowFile"
