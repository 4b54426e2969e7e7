"""Every registered kind of table against the one suite."""

from __future__ import annotations

import pytest

from velostream import plugins
from velostream.testing.table_suite import TableSuite


class TestTables(TableSuite):
    @pytest.fixture(params=plugins.names(plugins.Group.TABLES))
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)
