"""SET, REFRESH TABLE and EXPLAIN ANALYZE."""

from __future__ import annotations

import pytest

import velostream
from velostream.errors import NotExecutableError, NotFoundError, OptionError, QueryError


@pytest.fixture
def connection(spark_kept):
    with velostream.connect() as opened:
        yield opened


def test_settings_hold_for_the_connection(connection):
    connection.execute("SET spark.sql.shuffle.partitions = 3")
    assert connection._context.spark.session().conf.get("spark.sql.shuffle.partitions") == "3"
    connection.execute("CREATE TABLE t (a INT)")
    connection.execute("SET 'velostream.maintain' = 'refresh'")
    connection.execute("CREATE TABLE v AS SELECT a FROM t")
    connection.execute("INSERT INTO t VALUES (1)")
    assert connection.execute("SELECT * FROM v").fetchall() == [(1,)]
    stages = [row[0] for row in connection.execute("EXPLAIN ANALYZE QUERY v")]
    assert "compute all rows" in stages
    assert "follow changes" not in stages


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SET spark.sql.ansi.enabled = 'false'", "the engine relies on"),
        ("SET spark.sql.caseSensitive = 'true'", "the engine relies on"),
        ("SET spark.sql.legacy.allowHashOnMapType = 'true'", "the engine relies on"),
        ("SET spark.master = 'local[1]'", "fixed when Spark starts"),
        ("SET velostream.mantain = 'refresh'", 'option "velostream.mantain" is not known'),
        ("SET velostream.maintain = 'never'", "can't be"),
    ],
)
def test_settings_that_can_not_be_are_refused(connection, statement, message):
    with pytest.raises(OptionError, match=message):
        connection.execute(statement)


def test_a_bounded_source_is_read_again(connection, tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text("sku,price\n1,10\n2,20\n")
    connection.execute(f"CREATE TABLE prices AS SELECT * FROM '{file}'")
    connection.execute("CREATE TABLE dear AS SELECT sku, price FROM prices WHERE price > 15")
    assert connection.execute("SELECT * FROM dear").fetchall() == [(2, 20)]
    for price in range(30, 40):
        file.write_text(f"sku,price\n2,20\n3,{price}\n")
        connection.execute("REFRESH TABLE prices")
        assert sorted(connection.execute("SELECT * FROM dear")) == [(2, 20), (3, price)]
        assert sorted(connection.execute("SELECT * FROM prices")) == [(2, 20), (3, price)]


def test_refreshing_a_view_in_trouble_tries_again(connection, tmp_path):
    allowed = tmp_path / "allowed"
    allowed.touch()

    def guarded(number):
        if not allowed.exists():
            raise ValueError("not now")
        return number

    connection.create_function("guarded", guarded, returns="INT")
    connection.execute("CREATE TABLE t (a INT)")
    connection.execute("CREATE TABLE v AS SELECT guarded(a) AS a FROM t")
    connection.execute("INSERT INTO t VALUES (1)")
    connection.drain("v", timeout=60)
    allowed.unlink()
    connection.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(QueryError, match="not now"):
        connection.drain("v", timeout=60)
    allowed.touch()
    connection.execute("REFRESH TABLE v")
    assert sorted(connection.execute("SELECT * FROM v")) == [(1,), (2,)]


def test_what_a_stream_has_brought_is_not_computed_again(connection):
    connection.execute("CREATE TABLE t (a INT)")
    connection.execute("REFRESH TABLE t")
    connection.memory("feed").append([{"a": 1}])
    connection.execute("CREATE TABLE kept AS SELECT a FROM memory://feed")
    with pytest.raises(NotExecutableError, match="holds what a stream has brought"):
        connection.execute("REFRESH TABLE kept")
    with pytest.raises(NotFoundError):
        connection.execute("REFRESH TABLE nothing")


def test_work_of_a_query_is_shown_by_stages(connection):
    connection.execute("CREATE TABLE prices (sku INT PRIMARY KEY, price INT)")
    connection.execute("INSERT INTO prices VALUES (1, 10), (2, 20)")
    connection.memory("orders").append([{"id": n, "sku": n % 4} for n in range(8)])
    connection.execute(
        "CREATE TABLE priced AS SELECT o.id, p.price, prices.price AS was FROM memory://orders o "
        "LEFT JOIN prices p ON o.sku = p.sku LEFT JOIN prices ON prices.sku = o.id"
    )
    connection.drain("priced", timeout=120)
    result = connection.execute("EXPLAIN ANALYZE QUERY priced")
    assert result.columns == ["stage", "batches", "rows", "seconds", "detail"]
    stages = {row[0]: row[1:] for row in result}
    assert stages['query "priced"'][1] == 8
    for stage in ("read and compute", "commit"):
        batches, rows, seconds, _ = stages[stage]
        assert batches >= 1
        assert rows == 8
        assert seconds > 0
    assert stages['lookup in "prices" as p'] == (None, 8, None, "50.0% found")
    assert stages['lookup in "prices"'] == (None, 8, None, "25.0% found")
    with pytest.raises(NotFoundError, match="prices"):
        connection.execute("EXPLAIN ANALYZE QUERY prices")
