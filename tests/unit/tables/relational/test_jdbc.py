"""The kind `jdbc`: which database an address means, and what it says when it can't be used."""

from __future__ import annotations

import pyarrow as pa
import pytest

from velostream.errors import Category, OptionError, StoreError, UnsupportedError
from velostream.model.change import Mode
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec, TableWrites
from velostream.tables.jdbc import JdbcTable
from velostream.testing.stores import SqlForeignTable, store_of
from velostream.testing.table_cases import BAG, KEYED, write


def open_at(url: str | None, name: str = "t", *, schema: Schema = KEYED, **options: str) -> JdbcTable:
    given = options if url is None else {"url": url, **options}
    return JdbcTable.open(TableSpec(name, name, schema, options=given))


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


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_server_with_a_kind_of_its_own_is_that_kind_s(tmp_path, kind):
    options = dict(store_of(kind).options(tmp_path, f"jdbc_{kind}"))
    table = open_at(options["url"], options["table"])
    try:
        table.commit(write(Mode.APPEND, (1, "a")))
        assert table.get(1)["name"] == "a"
    finally:
        table.drop()
        table.close()


def test_rows_of_others_without_a_number_are_read_and_not_removed(tmp_path):
    url = f"duckdb:///{tmp_path}/x.duckdb"
    table = open_at(url, schema=BAG)
    table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    others = SqlForeignTable(url, "other")
    others._execute("INSERT INTO t (id, name) VALUES (1, 'a')")
    found = table.snapshot().lookup_by(["name"], pa.array(["b", "a"]), ["id"])
    assert found.column("_position").to_pylist() == [0, 1, 1]
    table.commit(write(Mode.DELETE, (2, "b")))
    with pytest.raises(UnsupportedError, match="delete"):
        table.commit(write(Mode.DELETE, (1, "a"), (1, "a")))
    assert table.snapshot().count() == 2
    others.close()
    table.close()
