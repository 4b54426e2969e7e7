"""The kind `jdbc`: which database an address means, and what it says when it can't be used."""

from __future__ import annotations

import pytest

from velostream.errors import Category, OptionError, StoreError
from velostream.model.change import Mode
from velostream.tables.base import TableSpec, TableWrites
from velostream.tables.jdbc import JdbcTable
from velostream.testing.table_cases import KEYED, write


def open_at(url: str | None, name: str = "t", **options: str) -> JdbcTable:
    given = options if url is None else {"url": url, **options}
    return JdbcTable.open(TableSpec(name, name, KEYED, options=given))


def test_an_address_is_needed():  # B52
    with pytest.raises(OptionError) as caught:
        open_at(None)
    assert caught.value.code == "missing-option"
    assert "data_source" in caught.value.message


@pytest.mark.parametrize("url", ["no address", "://", "duckdb"])
def test_something_that_is_no_address_is_refused_without_being_shown(url):
    with pytest.raises(OptionError) as caught:
        open_at(url)
    assert caught.value.code == "invalid-option-value"


@pytest.mark.parametrize("url", ["nosuchdialect://me:secret@h/db", "mssql+pyodbc://me:secret@h/db"])
def test_a_driver_that_is_not_installed_is_named(url):
    with pytest.raises(StoreError) as caught:
        open_at(url)
    assert caught.value.code == "missing-driver"
    assert caught.value.category is Category.CONFIGURATION
    assert "secret" not in str(caught.value)


def test_a_database_that_can_not_be_opened_is_told_at_once(tmp_path):  # B54
    with pytest.raises(StoreError) as caught:
        open_at(f"duckdb:///{tmp_path}/no/such/folder/x.duckdb")
    assert (caught.value.code, caught.value.category) == ("store-unreachable", Category.MISSING)


def test_a_database_with_a_kind_of_its_own_is_that_kind_s(store):
    ours = store.open("one")
    theirs = open_at(f"sqlite:///{store.path}", "other")
    assert ours.commit_group is theirs.commit_group
    parts = [TableWrites(table, [write(Mode.APPEND, (1, "a"))]) for table in (ours, theirs)]
    theirs.commit_together(parts)
    assert (ours.snapshot().count(), theirs.snapshot().count()) == (1, 1)
    theirs.close()
