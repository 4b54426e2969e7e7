"""Partitioned Delta tables: ours as others read them, and theirs as we read and write them."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Lake
from deltalake import write_deltalake

from velostream.errors import OptionError, StateError, TableError
from velostream.model.change import Epoch, Mode
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec
from velostream.tables.delta import DeltaTable
from velostream.testing.table_cases import content, rows_of, write

SALES = Schema.of(("id", "BIGINT"), ("day", "DATE"), ("shop", "STRING"), ("open", "BOOLEAN"), ("n", "INT"), key=["id"])
BAG = Schema(SALES.columns)
ROWS = [
    (1, date(2026, 1, 31), "a b/c=d%", True, 1),
    (2, date(2026, 1, 31), None, False, 2),
    (3, None, "b", None, 3),
    (4, date(2026, 1, 31), "a b/c=d%", True, 4),
]


def open_table(folder, *, schema: Schema = SALES, **options: str) -> DeltaTable:
    given = {"url": str(folder), **{name.replace("_", "."): value for name, value in options.items()}}
    return DeltaTable.open(TableSpec("id", "t", schema, options=given))


@pytest.mark.parametrize("schema", [SALES, BAG], ids=["keyed", "bag"])
def test_rows_go_to_their_partitions_and_others_read_them(tmp_path, schema):
    table = open_table(tmp_path, schema=schema, partition_by="day, SHOP,open")
    table.commit(write(Mode.APPEND, *ROWS, schema=schema), Epoch("q", 1))
    theirs = Lake(tmp_path / "t")
    assert theirs.metadata().partition_columns == ["day", "shop", "open"]
    assert len(theirs.file_uris()) == 3
    assert content(theirs.to_pyarrow_table()) == content(rows_of(schema, *ROWS))
    assert content(table.snapshot().scan()) == content(rows_of(schema, *ROWS))


def test_a_change_touches_the_files_of_its_partition_only(tmp_path):
    table = open_table(tmp_path, partition_by="shop")
    table.commit(write(Mode.APPEND, *ROWS, schema=SALES))
    before = set(Lake(tmp_path / "t").file_uris())
    table.commit(write(Mode.UPSERT, (4, None, "b", None, 40), schema=SALES))
    after = set(Lake(tmp_path / "t").file_uris())
    assert len(before - after) == 1, "the file of the partition that row 4 leaves"
    assert len(after - before) == 2
    changed = table.changes(1).arrow.select(["id", "shop", "n", "_change"]).to_pylist()
    assert [tuple(row.values()) for row in changed] == [(4, "a b/c=d%", 4, -1), (4, "b", 40, 1)]
    again = open_table(tmp_path)
    assert again.snapshot().get(4)["shop"] == "b"
    assert again.snapshot(1).get(4)["shop"] == "a b/c=d%"


def test_conditions_on_partition_columns_leave_files_out(tmp_path, monkeypatch):
    table = open_table(tmp_path, partition_by="shop")
    table.commit(write(Mode.APPEND, *ROWS, schema=SALES))
    condition = Call("=", (ColumnRef("shop"), Literal("b", pa.string())))
    for file in tmp_path.glob("t/*.parquet"):
        if len(pa.parquet.read_table(file)) == 2:
            file.unlink()
    assert table.snapshot().scan(condition, ["id"]).to_pylist() == [{"id": 3}]
    assert table.snapshot().count(Call("is_null", (ColumnRef("shop"),))) == 1


def test_a_table_of_somebody_else_is_read_and_written(tmp_path):
    write_deltalake(tmp_path / "t", rows_of(SALES, *ROWS), partition_by=["day", "shop"])
    table = open_table(tmp_path)
    assert content(table.snapshot().scan()) == content(rows_of(SALES, *ROWS))
    table.commit(write(Mode.UPSERT, (1, None, "new", True, 10), (5, None, "b", None, 5), schema=SALES))
    expected = [(1, None, "new", True, 10), *ROWS[1:], (5, None, "b", None, 5)]
    assert content(Lake(tmp_path / "t").to_pyarrow_table()) == content(rows_of(SALES, *expected))
    with pytest.raises(StateError, match="other columns") as caught:
        open_table(tmp_path, partition_by="shop")
    assert "partitioned by: day, shop" in caught.value.detail


def test_many_partitions_are_not_taken_for_many_small_files(tmp_path):
    table = open_table(tmp_path, schema=BAG, partition_by="n")
    for number in range(3):
        table.commit(write(Mode.APPEND, *((number, None, None, None, n) for n in range(30)), schema=BAG))
    assert len(Lake(tmp_path / "t").file_uris()) == 90


def test_what_can_not_be_a_partition_is_refused(tmp_path):
    for odd in ("nothing", "id,day,shop,open,n", ""):
        with pytest.raises(OptionError, match=r"partition\.by"):
            open_table(tmp_path / "x", partition_by=odd)
    with pytest.raises(OptionError, match=r"partition\.by"):
        open_table(tmp_path / "x", schema=Schema.of(("id", "INT"), ("at", "TIMESTAMP")), partition_by="at")
    table = open_table(tmp_path, partition_by="shop")
    with pytest.raises(TableError, match="can't hold the empty text"):
        table.commit(write(Mode.APPEND, (1, None, "", None, 1), schema=SALES))
    assert list(tmp_path.glob("t/*.parquet")) == []
