"""Aggregates over a stream by partial results: they give what a batch query and what Spark's state give."""

import random
from decimal import Decimal

import pytest

import velostream
from velostream.engine.binding import MAINTAIN

SELECTS = {
    "plain": "SELECT region, COUNT(*) AS n, SUM(amount) AS total, AVG(amount) AS mean FROM {rows} GROUP BY region",
    "extremes": "SELECT region, flag, MIN(day) AS first, MAX(amount) AS most FROM {rows} GROUP BY ALL",
    "chosen": "SELECT flag, COUNT(amount) FILTER (WHERE amount > 0) AS n, SUM(quantity) AS q, AVG(quantity) AS mean"
    " FROM {rows} WHERE quantity IS NOT NULL OR flag GROUP BY flag",
    "passing": "SELECT upper(region) AS name, SUM(amount) * 2 AS twice FROM {rows} GROUP BY upper(region)"
    " HAVING COUNT(*) > 3 AND SUM(amount) > 0",
    "computed": "SELECT quantity % 7 AS bucket, date_trunc('month', day) AS m, COUNT(*) AS n FROM {rows} GROUP BY 1, 2",
    "one": "SELECT COUNT(*) AS n, MIN(amount) AS least, SUM(amount) AS total FROM {rows}",
}
COLUMNS = "region STRING, flag BOOLEAN, amount DECIMAL(12,3), quantity BIGINT, day DATE"


def some_rows(chance, count):
    def value(make):
        return None if chance.random() < 0.15 else make()

    return [
        {
            "region": value(lambda: chance.choice(["north", "North", "süd", ""])),
            "flag": value(lambda: chance.random() < 0.5),
            "amount": value(lambda: Decimal(chance.randrange(-(10**9), 10**9)) / 1000),
            "quantity": value(lambda: chance.randrange(-50, 50)),
            "day": value(lambda: f"2024-{chance.randrange(1, 13):02}-17"),
        }
        for _ in range(count)
    ]


def as_set(connection, sql):
    return {tuple(map(str, row)) for row in connection.execute(sql).fetchall()}


@pytest.mark.parametrize("setting", [{}, {MAINTAIN: "refresh"}], ids=["partial results", "spark's state"])
def test_a_view_equals_its_query_over_all_rows_that_came(setting):
    chance = random.Random(7)
    with velostream.connect(config=setting) as connection:
        connection.execute(f"CREATE STREAM feed ({COLUMNS}) WITH ('source' = 'memory://rows')")
        connection.execute(f"CREATE TABLE kept ({COLUMNS})")
        for name, select in SELECTS.items():
            connection.execute(f"CREATE TABLE {name} AS {select.format(rows='feed')}")
        for count in (1, 40, 200):
            rows = some_rows(chance, count)
            connection.memory("rows").append(rows)
            connection.table("kept").insert(rows)
            for name, select in SELECTS.items():
                connection.drain(name, timeout=120)
                expected = as_set(connection, select.format(rows="kept"))
                assert as_set(connection, f"SELECT * FROM {name}") == expected, name


def test_a_row_that_cannot_be_computed_is_a_dead_letter_and_the_others_count():
    with velostream.connect() as connection:
        connection.execute("CREATE STREAM feed (k STRING, a BIGINT) WITH ('source' = 'memory://rows')")
        connection.execute(
            f"CREATE TABLE sums AS SELECT k, SUM(a * {2**62}) AS total, COUNT(*) AS n FROM feed GROUP BY k"
        )
        connection.memory("rows").append([{"k": "x", "a": 1}, {"k": "x", "a": 2}, {"k": "y", "a": 0}])
        connection.drain("sums", timeout=60)
        assert as_set(connection, "SELECT * FROM sums") == {("x", str(2**62), "1"), ("y", "0", "1")}
        (letter,) = connection.execute("SHOW DEAD LETTERS sums").fetchall()
        assert "out of the range" in " ".join(map(str, letter))


def test_a_sum_that_overflows_fails_the_view_and_nothing_else():
    with velostream.connect() as connection:
        connection.execute("CREATE STREAM feed (k STRING, a BIGINT) WITH ('source' = 'memory://rows')")
        connection.execute("CREATE TABLE sums AS SELECT k, SUM(a) AS total FROM feed GROUP BY k")
        connection.execute("CREATE TABLE counts AS SELECT k, COUNT(*) AS n FROM feed GROUP BY k")
        connection.memory("rows").append([{"k": "x", "a": 2**63 - 1}, {"k": "x", "a": 1}])
        connection.drain("counts", timeout=60)
        with pytest.raises(velostream.errors.VelostreamError, match="out of the range"):
            connection.drain("sums", timeout=60)
        assert connection.status("sums").state == "failed"
        assert as_set(connection, "SELECT * FROM counts") == {("x", "2")}


def test_explain_says_what_holds_the_groups():
    with velostream.connect() as connection:
        connection.execute("CREATE STREAM feed (k STRING, a BIGINT, f DOUBLE) WITH ('source' = 'memory://rows')")
        partial = dict(connection.execute("EXPLAIN CREATE TABLE t AS SELECT k, SUM(a) AS s FROM feed GROUP BY k"))
        assert partial["strategy"] == "aggregate"
        assert "hidden table" in partial["state"]
        in_spark = dict(connection.execute("EXPLAIN CREATE TABLE t AS SELECT k, SUM(f) AS s FROM feed GROUP BY k"))
        assert "Spark's state" in in_spark["state"]
        assert "exact" in in_spark["state"]
