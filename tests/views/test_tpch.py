"""The 22 queries of TPC-H as views over changing tables: each is what Spark answers, at whatever version one looks."""

from __future__ import annotations

import sys
from collections import Counter

import pyarrow.parquet as pq
import pytest
from tpch import QUERIES, TABLES, Warehouse

import velostream

BATCHES, LOOKS = 51, 3
SOME_DELTA = 15


@pytest.fixture
def connection():
    with velostream.connect() as connection:
        yield connection


def test_every_view_equals_its_query_while_its_tables_change(connection, tmp_path, capsys):
    """Batches are committed as fast as they can be; the views are looked at when they have caught up, now and then."""
    warehouse = Warehouse(seed=7)
    warehouse.load(connection)
    assert len(connection.table("lineitem")) >= 60_000
    strategies = {number: _strategy(connection, query) for number, query in QUERIES.items()}
    for number, query in QUERIES.items():
        connection.execute(f"CREATE TABLE q{number} AS {query}")
    for look in range(LOOKS):
        for _ in range(BATCHES // LOOKS):
            warehouse.change(connection)
        for number in QUERIES:
            connection.drain(f"q{number}", timeout=300)
        _check(connection, tmp_path / str(look))
    followed = [number for number, strategy in strategies.items() if strategy == "delta"]
    with capsys.disabled():
        sys.stdout.write(f"\n{len(followed)} of {len(QUERIES)} TPC-H queries follow changes: {followed}\n")
    assert len(followed) >= SOME_DELTA


def _strategy(connection, query):
    return dict(connection.execute(f"EXPLAIN CREATE TABLE q AS {query}").fetchall())["strategy"]


def _check(connection, folder):
    folder.mkdir()
    session = connection._context.spark.session()
    for name in TABLES:
        path = folder / f"{name}.parquet"
        pq.write_table(connection.table(name).arrow(), path)
        session.read.parquet(str(path)).createOrReplaceTempView(name)
    for number, query in QUERIES.items():
        right = session.sql(query).toArrow()
        found = connection.table(f"q{number}").arrow()
        assert found.num_rows, f"question {number} has no answer, which proves little"
        assert _bag(found) == _bag(right), f"question {number}"


def _bag(rows):
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
