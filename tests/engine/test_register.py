"""Data from Python as a table: queried, joined, replaced."""

from __future__ import annotations

from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest

import velostream
from velostream.errors import InUseError, VelostreamError

USERS = [{"id": 1, "limit": Decimal("10.50")}, {"id": 2, "limit": None}]


@pytest.fixture
def connection(spark_kept):
    with velostream.connect() as connection:
        yield connection


@pytest.mark.parametrize(
    "form",
    [
        lambda _: USERS,
        lambda _: pa.Table.from_pylist(USERS),
        lambda _: pa.RecordBatch.from_pylist(USERS),
        lambda _: pd.DataFrame({"id": [1, 2], "limit": [Decimal("10.50"), None]}),
        lambda session: session.createDataFrame(pa.Table.from_pylist(USERS)),
    ],
    ids=["dicts", "arrow", "batch", "pandas", "spark"],
)
def test_any_data_is_a_table(connection, session, form):
    users = connection.register("users", form(session), key=["id"])
    assert connection.tables() == ["users"]
    assert users.get(1)["limit"] == Decimal("10.50")
    assert connection.execute('SELECT id, "limit" FROM users ORDER BY id').fetchall() == [
        (1, Decimal("10.50")),
        (2, None),
    ]


def test_views_follow_what_is_registered_again(connection):
    connection.register("users", USERS)
    connection.execute("CREATE TABLE counted AS SELECT COUNT(*) AS n FROM users")
    assert connection.execute("SELECT n FROM counted").fetchall() == [(2,)]
    connection.register("users", USERS[:1])
    assert connection.execute("SELECT n FROM counted").fetchall() == [(1,)]
    with pytest.raises(InUseError, match="counted"):
        connection.register("users", [{"name": "other columns"}])
    assert connection.execute("SELECT n FROM counted").fetchall() == [(1,)]


def test_other_columns_replace_a_table_nobody_reads(connection):
    connection.register("users", USERS)
    connection.register("users", [{"name": "ann"}])
    assert connection.execute("SELECT * FROM users").fetchall() == [("ann",)]


@pytest.mark.parametrize("data", [7, "text", [1, 2], pa.table({}), [], None, object()])
def test_what_is_no_data_is_refused(connection, data):
    with pytest.raises(VelostreamError):
        connection.register("users", data)
    assert connection.tables() == []


def test_a_view_or_stream_is_not_replaced_by_data(connection):
    connection.execute("CREATE STREAM s (id BIGINT) WITH ('source' = 'memory://s')")
    with pytest.raises(VelostreamError, match="s"):
        connection.register("s", USERS)


def test_registered_data_outlives_the_connection(tmp_path):
    with velostream.connect(tmp_path) as connection:
        connection.register("users", USERS, key=["id"])
    with velostream.connect(tmp_path) as connection:
        assert connection.table("users").get(2)["limit"] is None
