"""Delta tables and Spark: files are read where they lie, by Spark itself or by its workers."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import velostream
from velostream.engine.relations import arrow_result
from velostream.model.change import Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec
from velostream.tables.delta import DeltaTable, files
from velostream.tables.delta import snapshot as module
from velostream.testing.services.s3 import S3Service
from velostream.testing.table_cases import content

INSTANT = datetime(1500, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
EVERYTHING = {
    "b": ("BOOLEAN", True),
    "t": ("TINYINT", -128),
    "l": ("BIGINT", -(2**63)),
    "f": ("FLOAT", 1.5),
    "dec": ("DECIMAL(38,10)", Decimal("-1234567890123456789012345678.1234567890")),
    "s": ("STRING", "é\0"),
    "bin": ("BINARY", b"\x00\xff"),
    "day": ("DATE", date(1, 1, 1)),
    "at": ("TIMESTAMP", INSTANT),
    "local": ("TIMESTAMP_NTZ", INSTANT.replace(tzinfo=None)),
    "list": ("ARRAY<STRUCT<a: INT, `b c`: DECIMAL(10,2)>>", [{"a": 1, "b c": Decimal("1.50")}, None]),
    "map": ("MAP<STRING, ARRAY<TIMESTAMP>>", [("k", [INSTANT, None])]),
    "odd.na me": ("STRING", "x"),
    "größe": ("STRING", "y"),
}
SPAN = {"span": ("INTERVAL", timedelta(days=-1, microseconds=3))}


def open_table(folder, schema: Schema, **options: str) -> DeltaTable:
    given = {"url": str(folder), **{name.replace("_", "."): value for name, value in options.items()}}
    return DeltaTable.open(TableSpec("id", "t", schema, options=given))


def filled(folder, columns, **options: str) -> DeltaTable:
    schema = Schema.of(*((name, type_) for name, (type_, _) in columns.items()))
    table = open_table(folder, schema, **options)
    values = {name: value for name, (_, value) in columns.items()}
    table.commit(Write(Mode.APPEND, pa.Table.from_pylist([values, dict.fromkeys(values)], schema=schema.arrow)))
    return table


def test_spark_reads_the_files_of_a_version(session, relations, tmp_path):
    table = filled(tmp_path / "a {b,c} [d]* ?", EVERYTHING)
    older = table.snapshot()
    table.commit(Write(Mode.APPEND, older.scan()))
    for snapshot in (older, table.snapshot()):
        files = snapshot.parquet_files()
        assert files is not None
        frame = relations.frame_of_files(session, files, table.schema)
        assert content(arrow_result(frame)) == content(snapshot.scan())


@pytest.mark.parametrize(
    ("columns", "options"),
    [(EVERYTHING | SPAN, {}), (EVERYTHING, {"partition_by": "day,s,b"})],
    ids=["encoded", "apart"],
)
def test_workers_read_what_spark_would_misread(session, relations, tmp_path, monkeypatch, columns, options):
    monkeypatch.setattr(module, "_FEWEST_ROWS_APART", 0)
    table = filled(tmp_path, columns, **options)
    snapshot = table.snapshot()
    assert snapshot.parquet_files() is None
    parts = snapshot.parts()
    assert parts is not None
    assert content(arrow_result(relations.frame_of_parts(session, parts, table.schema))) == content(snapshot.scan())
    some = snapshot.parts(Call("=", (ColumnRef("t"), Literal(-128, pa.int8()))), ["s", "l"])
    assert some is not None
    narrow = table.schema.select(["s", "l"])
    rows = arrow_result(relations.frame_of_parts(session, some, narrow)).to_pylist()
    assert rows == [{"s": "é\0", "l": -(2**63)}]


@pytest.fixture(params=["folder", "partitioned", "bucket"])
def place(request, tmp_path) -> str:
    """Options of a table by how Spark comes to its rows."""
    if request.param == "bucket":
        server = S3Service.shared()
        options = {"url": server.new_database(), **server.options}
    else:
        options = {"url": str(tmp_path)}
    if request.param == "partitioned":
        options["partition.by"] = "g"
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


def test_big_tables_are_queried_without_coming_to_the_driver(place, monkeypatch):
    with velostream.connect() as connection:
        connection.execute(
            f"CREATE TABLE big (id BIGINT, g INT, n DECIMAL(12,2)) WITH ('extension' = 'delta', {place})"
        )
        count = 60_000
        numbers = np.arange(count)
        rows = {"id": numbers, "g": pa.array(numbers % 3, pa.int32()), "n": pa.array([Decimal("0.10")] * count)}
        connection.table("big").bulk_insert(pa.table(rows))
        connection.execute("CREATE TABLE names (g INT PRIMARY KEY, name STRING)")
        connection.execute("INSERT INTO names VALUES (0, 'zero'), (2, 'two')")

        def refused(*_args, **_options):
            raise AssertionError("the driver has read the table")

        monkeypatch.setattr(module, "_FEWEST_ROWS_APART", count)
        monkeypatch.setattr(module.DeltaSnapshot, "scan", refused)
        asked = """SELECT name, count(*), sum(n), max(id) FROM big JOIN names USING (g)
            WHERE id >= 30000 GROUP BY name ORDER BY name"""
        assert connection.execute(asked).fetchall() == [
            ("two", 10_000, Decimal("1000.00"), 59_999),
            ("zero", 10_000, Decimal("1000.00"), 59_997),
        ]


def test_big_results_are_written_by_the_workers(place, tmp_path, monkeypatch):
    count = 400_000
    numbers = np.arange(count)
    pq.write_table(pa.table({"id": numbers, "g": pa.array(numbers % 3, pa.int32())}), tmp_path / "big.parquet")

    def refused(_files, rows, **_options):
        assert rows.num_rows == 0, "the driver has written rows"
        return []

    with velostream.connect() as connection:
        monkeypatch.setattr(files.DataFiles, "write", refused)
        connection.execute(
            f"CREATE TABLE loaded WITH ('extension' = 'delta', {place}) "
            f"AS SELECT id PRIMARY KEY, g, id * 2 AS twice FROM file://{tmp_path}/big.parquet"
        )
        connection.execute(f"CREATE TABLE copied (twice BIGINT, g INT) WITH ('extension' = 'delta', {place})")
        done = connection.execute(
            "INSERT INTO copied (g, twice) SELECT g, twice FROM loaded WHERE id < (SELECT 390000)"
        )
        assert done.rowcount == 390_000
        monkeypatch.undo()
        assert connection.execute("SELECT count(*), sum(twice), max(g) FROM loaded").fetchall() == [
            (count, count * (count - 1), 2)
        ]
        assert connection.execute("SELECT count(*), sum(twice), max(g) FROM copied").fetchall() == [
            (390_000, 390_000 * 389_999, 2)
        ]
        assert connection.table("loaded").get(399_999)["twice"] == 799_998
        assert connection.table("copied").version == 1


def test_big_batches_of_a_stream_are_written_by_the_workers(tmp_path, monkeypatch):
    count = 120_000
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute("CREATE STREAM events (id BIGINT, n INT) WITH ('source' = 'memory://events')")
        connection.execute(
            f"CREATE TABLE kept (id BIGINT, n INT NOT NULL) WITH ('extension' = 'delta', 'url' = '{tmp_path}/lake')"
        )
        connection.execute("INSERT INTO kept SELECT id, n FROM events WHERE id >= 0")
        events = connection.memory("events")
        staged = []
        monkeypatch.setattr(DeltaTable, "commit", noting(staged, DeltaTable.commit))
        events.append([{"id": 1, "n": 1}, {"id": -1, "n": 2}, {"id": 2, "n": None}])
        connection.drain("kept", timeout=120)
        numbers = np.arange(count)
        events.append(pa.table({"id": numbers, "n": pa.array(numbers % 7, pa.int32())}))
        connection.drain("kept", timeout=120)
        assert staged == [0, 1]
        assert len(connection.table("kept")) == count + 1
        assert len(connection.execute("SHOW DEAD LETTERS").fetchall()) == 1


def noting(staged, commit):
    """A commit that notes how many parts of its rows were in the store before."""

    def noted(table, write, epoch=None):
        staged.append(len(write.staged))
        return commit(table, write, epoch)

    return noted
