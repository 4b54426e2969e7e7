"""Functions in Python within queries of every kind, replaced while in use, and missing after a restart."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import velostream
from velostream.engine.status import State
from velostream.errors import QueryError, SqlError, ValidationError

RATE = Decimal("1.10")


def gross(price):
    return None if price is None else (price * RATE).quantize(Decimal("0.01"))


def doubled(numbers: pa.Array) -> pa.Array:
    return pc.multiply(numbers, 2)


def checked(number):
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


@pytest.fixture
def prices(spark_kept):
    with velostream.connect() as connection:
        connection.create_function("gross", gross, returns="DECIMAL(12,2)")
        connection.create_function("doubled", doubled, returns="BIGINT")
        connection.execute("CREATE TABLE prices (sku INT PRIMARY KEY, price DECIMAL(10,2))")
        connection.execute("INSERT INTO prices VALUES (1, 10.00), (2, NULL)")
        yield connection


def test_functions_are_called_by_pulls_views_and_streams(prices):
    assert prices.execute("SELECT gross(price), Doubled(sku) FROM prices ORDER BY sku").fetchall() == [
        (Decimal("11.00"), 2),
        (None, 4),
    ]
    prices.execute("CREATE TABLE shown AS SELECT sku, gross(price) AS price FROM prices")
    prices.execute("CREATE TABLE total AS SELECT SUM(gross(price)) AS price FROM prices")
    prices.execute("INSERT INTO prices VALUES (3, 20.00)")
    assert sorted(prices.execute("SELECT * FROM shown")) == [(1, Decimal("11.00")), (2, None), (3, Decimal("22.00"))]
    assert prices.execute("SELECT * FROM total").fetchall() == [(Decimal("33.00"),)]
    prices.create_function("checked", checked, returns="INT")
    prices.execute("CREATE TABLE kept AS SELECT checked(n) AS n FROM memory://numbers")
    prices.memory("numbers").append([{"n": 1}, {"n": -2}, {"n": 3}])
    prices.drain("kept", timeout=120)
    assert sorted(prices.execute("SELECT * FROM kept")) == [(1,), (3,)]
    (letter,) = prices.execute("SHOW DEAD LETTERS").fetchall()
    assert letter[3] == 'function "checked" failed: ValueError: -2 is negative'


def test_a_function_that_is_replaced_computes_views_anew(prices):
    prices.execute("INSERT INTO prices VALUES (3, 20.00)")
    prices.execute("CREATE TABLE shown AS SELECT sku, gross(price) AS price FROM prices")
    prices.execute("CREATE TABLE bare AS SELECT gross(price) AS price FROM prices")
    prices.execute("CREATE TABLE total AS SELECT SUM(gross(price)) AS price FROM prices")
    assert prices.execute("SELECT price FROM shown WHERE sku = 1").fetchall() == [(Decimal("11.00"),)]
    prices.create_function("gross", lambda price: price, returns="DECIMAL(12,2)")
    prices.execute("DELETE FROM prices WHERE sku = 3")
    assert prices.execute("SELECT price FROM shown WHERE sku = 1").fetchall() == [(Decimal("10.00"),)]
    assert prices.execute("SELECT price FROM bare WHERE price IS NOT NULL").fetchall() == [(Decimal("10.00"),)]
    assert prices.execute("SELECT price FROM total").fetchall() == [(Decimal("10.00"),)]
    (shown,) = prices.execute("SHOW FUNCTIONS LIKE 'gross'").fetchall()
    assert shown == ("gross", "python", "DECIMAL(12,2)")


def test_what_is_no_function_is_refused(prices):
    with pytest.raises(ValidationError, match="one of Spark's own"):
        prices.create_function("upper", gross, returns="STRING")
    with pytest.raises(ValidationError, match="no name"):
        prices.create_function("a b", gross, returns="STRING")
    with pytest.raises(ValidationError, match="takes no arguments"):
        prices.create_function("nothing", lambda: 1, returns="INT")
    with pytest.raises(SqlError, match='function "unheard" does not exist') as caught:
        prices.execute("SELECT unheard(sku) FROM prices")
    assert caught.value.code == "unknown-function"
    assert "con.create_function" in str(caught.value.hint)
    prices.create_function("wrong", lambda _: "text", returns="INT")
    with pytest.raises(QueryError, match='function "wrong" failed') as failed:
        prices.execute("SELECT wrong(sku) FROM prices")
    assert failed.value.code == "function-failed"


def test_a_query_waits_for_its_function_after_a_restart(spark_kept, tmp_path):
    with velostream.connect(tmp_path) as connection:
        connection.create_function("gross", gross, returns="DECIMAL(12,2)")
        connection.execute("CREATE TABLE prices (sku INT PRIMARY KEY, price DECIMAL(10,2))")
        connection.execute("CREATE TABLE shown AS SELECT sku, gross(price) AS price FROM prices")
        connection.execute("INSERT INTO prices VALUES (1, 10.00)")
        connection.drain("shown", timeout=60)
    with velostream.connect(tmp_path) as connection:
        connection._resuming.join()
        status = connection.status("shown")
        assert status.state is State.WAITING
        assert status.reason.startswith('function "gross" is not registered')
        with pytest.raises(ValidationError, match="is not registered"):
            connection.execute("SELECT gross(price) FROM prices")
        connection.create_function("gross", gross, returns="DECIMAL(12,2)")
        connection.wait("shown", timeout=60)
        connection.execute("INSERT INTO prices VALUES (2, 20.00)")
        assert sorted(connection.execute("SELECT * FROM shown")) == [(1, Decimal("11.00")), (2, Decimal("22.00"))]
