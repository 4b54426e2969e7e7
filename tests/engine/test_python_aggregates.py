"""Aggregates in Python: in queries asked once, views, streams and windows; failing, replaced, after a restart."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import velostream
from velostream.engine.status import State
from velostream.errors import QueryError, ValidationError


def spread(prices):
    known = [price for price in prices if price is not None]
    return max(known) - min(known) if known else None


def middle(values: pa.Array) -> pa.Scalar | int:
    return values[len(values) // 2] if len(values) else -1


def said(keys, words):
    return " ".join(f"{key}{word}" for key, word in zip(keys, words, strict=True))


def whole(values):
    if None in values:
        raise ValueError("a value is missing")
    return len(values)


@pytest.fixture(scope="module")
def connection(spark_kept):
    with velostream.connect() as made:
        made.create_function("spread", spread, returns="DECIMAL(12,2)", kind="aggregate")
        made.create_function("middle", middle, returns="BIGINT", kind="aggregate")
        made.create_function("said", said, returns="STRING", kind="aggregate")
        made.create_function("whole", whole, returns="INT", kind="aggregate")
        yield made


@pytest.fixture
def items(connection):
    connection.execute("CREATE OR REPLACE TABLE items (id INT PRIMARY KEY, shop STRING, n INT, price DECIMAL(10,2))")
    connection.execute(
        "INSERT INTO items VALUES (1, 'a', 5, 1.00), (2, 'a', 1, 2.50), (3, 'b', 7, NULL), (4, 'b', NULL, 3.00)"
    )
    yield connection
    connection.execute("DROP TABLE items CASCADE")


def rows(connection, sql):
    return connection.execute(sql).fetchall()


def test_a_query_asked_once_gives_every_group_its_value(items):
    grouped = "SELECT shop, spread(price), middle(n), said(n, shop) AS said, COUNT(*) FROM items GROUP BY shop"
    found = items.execute(f"{grouped} HAVING middle(n) > 0 ORDER BY spread(price) DESC, shop")
    assert found.columns == ["shop", "spread(price)", "middle(n)", "said", "count(1)"]
    assert found.fetchall() == [("a", Decimal("1.50"), 5, "1a 5a", 2), ("b", Decimal("0.00"), 7, "Noneb 7b", 2)]
    assert rows(items, "SELECT middle(n) FILTER (WHERE n < 6), middle(n % 2), middle(DISTINCT n % 2) FROM items") == [
        (5, 1, 1)
    ]
    assert rows(items, "SELECT spread(price), middle(n), said(n, shop) FROM items WHERE id > 9") == [(None, -1, "")]
    assert rows(items, "SELECT id, middle(n) OVER (PARTITION BY shop) FROM items WHERE id < 4 ORDER BY id") == [
        (1, 5),
        (2, 5),
        (3, 7),
    ]
    assert items.table("items").scalar("spread(price)", "shop = 'a'") == Decimal("1.50")


def test_a_view_computes_the_groups_that_changed(items):
    items.execute("CREATE TABLE shops AS SELECT shop, spread(price) AS s, SUM(n) AS n FROM items GROUP BY shop")
    items.execute("CREATE TABLE total AS SELECT middle(DISTINCT n) AS m FROM items")
    explained = dict(rows(items, "EXPLAIN CREATE TABLE x AS SELECT shop, spread(price) AS s FROM items GROUP BY shop"))
    assert explained["strategy"] == "delta"
    assert explained["lookup"] == '"items" by index on (shop)'
    items.execute("UPDATE items SET shop = 'c', price = 9.00 WHERE id = 4")
    assert sorted(rows(items, "SELECT * FROM shops")) == [
        ("a", Decimal("1.50"), 6),
        ("b", None, 7),
        ("c", Decimal("0.00"), None),
    ]
    items.execute("DELETE FROM items WHERE shop = 'b'")
    assert {row[0] for row in rows(items, "SELECT * FROM shops")} == {"a", "c"}
    assert rows(items, "SELECT * FROM total") == [(1,)]


def test_a_view_whose_aggregate_fails_keeps_its_rows_until_that_is_over(items, eventually):
    with pytest.raises(QueryError, match='function "whole" failed: ValueError: a value is missing'):
        items.execute("SELECT whole(n) FROM items")
    items.execute("CREATE TABLE wholes AS SELECT shop, whole(price) AS n FROM items WHERE id <> 3 GROUP BY shop")
    assert sorted(rows(items, "SELECT * FROM wholes")) == [("a", 2), ("b", 1)]
    items.execute("INSERT INTO items VALUES (5, 'a', 1, NULL)")
    with pytest.raises(QueryError, match="a value is missing"):
        items.drain("wholes", timeout=60)
    assert items.status("wholes").state is State.DEGRADED
    assert sorted(rows(items, "SELECT * FROM wholes")) == [("a", 2), ("b", 1)]
    items.execute("UPDATE items SET price = 4.00 WHERE id = 5")
    eventually(lambda: rows(items, "SELECT n FROM wholes WHERE shop = 'a'") == [(3,)], what="the view is whole again")
    eventually(lambda: items.status("wholes").state is State.READY, what="the view is ready")


def test_streams_and_windows_are_aggregated(connection):
    connection.execute("CREATE TABLE heard AS SELECT k, said(n, k) AS s FROM memory://words GROUP BY k")
    connection.execute(
        "CREATE TABLE minutes AS SELECT k, middle(n) AS m, COUNT(*) AS c FROM memory://words "
        "WINDOW TUMBLING(at, 1m) GROUP BY k HAVING middle(n) > 1"
    )
    feed = connection.memory("words")

    def word(minute, k, n):
        return {"at": datetime(2026, 1, 1, 0, minute), "k": k, "n": n}  # noqa: DTZ001 - naive means UTC

    feed.append([word(0, "x", 2), word(0, "x", 1), word(0, "y", 1), word(1, "x", 5)])
    connection.drain("heard", timeout=120)
    assert sorted(rows(connection, "SELECT * FROM heard")) == [("x", "1x 2x 5x"), ("y", "1y")]
    feed.append([word(2, "y", 0)])
    connection.drain("heard", timeout=120)
    assert sorted(rows(connection, "SELECT * FROM heard")) == [("x", "1x 2x 5x"), ("y", "0y 1y")]
    connection.drain("minutes", timeout=120)
    assert sorted(rows(connection, "SELECT * FROM minutes")) == [("x", 2, 2), ("x", 5, 1)]
    connection.execute("DROP TABLE heard")
    connection.execute("DROP TABLE minutes")


def test_an_aggregate_is_replaced_and_waited_for_after_a_restart(spark_kept, tmp_path):
    with velostream.connect(tmp_path) as connection:
        connection.create_function("spread", spread, returns="DECIMAL(12,2)", kind="aggregate")
        connection.execute("CREATE TABLE t (id INT PRIMARY KEY, k STRING, price DECIMAL(10,2))")
        connection.execute("INSERT INTO t VALUES (1, 'a', 1.00), (2, 'a', 4.00)")
        connection.execute("CREATE TABLE v AS SELECT k, spread(price) AS s FROM t GROUP BY k")
        connection.execute("CREATE TABLE s AS SELECT k, spread(n) AS s FROM memory://numbers GROUP BY k")
        connection.memory("numbers").append([{"k": "a", "n": 1}, {"k": "a", "n": 8}])
        connection.drain("s", timeout=60)
        assert rows(connection, "SHOW FUNCTIONS LIKE 'spread'") == [("spread", "python aggregate", "DECIMAL(12,2)")]
    with velostream.connect(tmp_path) as connection:
        connection._resuming.join()
        assert connection.status("v").reason.startswith('function "spread" is not registered')
        assert connection.status("s").state is State.WAITING
        with pytest.raises(ValidationError, match="is not registered"):
            connection.execute("SELECT k, spread(price) FROM t GROUP BY k")
        connection.create_function("spread", spread, returns="DECIMAL(12,2)", kind="aggregate")
        connection.wait("v", timeout=60)
        connection.execute("INSERT INTO t VALUES (3, 'a', 5.00)")
        assert rows(connection, "SELECT * FROM v") == [("a", Decimal("4.00"))]
        connection.memory("numbers").append([{"k": "a", "n": 11}])
        connection.drain("s", timeout=60)
        assert rows(connection, "SELECT * FROM s") == [("a", Decimal("10.00"))]
        connection.create_function("spread", len, returns="DECIMAL(12,2)", kind="aggregate")
        connection.drain("s", timeout=60)
        assert rows(connection, "SELECT v.s, s.s FROM v JOIN s USING (k)") == [(Decimal("3.00"), Decimal("3.00"))]


@pytest.mark.parametrize("name", ["median", "group_concat", "sum"])
def test_names_of_other_aggregates_are_refused(connection, name):
    with pytest.raises(ValidationError, match="one of Spark's own"):
        connection.create_function(name, spread, returns="INT", kind="aggregate")


def test_a_kind_that_is_none_is_refused(connection):
    with pytest.raises(ValidationError, match='can\'t be of the kind "table"'):
        connection.create_function("odd", spread, returns="INT", kind="table")


_CHANGES = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.none() | st.sampled_from("abc"),
        st.none() | st.integers(-5, 5),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(_CHANGES, min_size=2, max_size=2))
def test_a_view_is_what_python_computes_of_the_rows(connection, changes):
    connection.execute("CREATE OR REPLACE TABLE pairs (id INT PRIMARY KEY, k STRING, n INT)")
    connection.execute(
        "CREATE TABLE kept AS SELECT k, said(n, id) AS s, middle(DISTINCT n) AS m, "
        "middle(id) FILTER (WHERE n > 0) AS f FROM pairs GROUP BY k"
    )
    # So many that following the changes of a few groups pays off.
    held = {id_: (f"other {id_ % 20}", id_) for id_ in range(100, 300)}
    pairs = connection.table("pairs")
    pairs.insert([{"id": id_, "k": k, "n": n} for id_, (k, n) in held.items()])
    connection.drain("kept", timeout=60)
    for batch in changes:
        for id_, k, n, stays in batch:
            if stays:
                held[id_] = (k, n)
                pairs.upsert([{"id": id_, "k": k, "n": n}])
            elif held.pop(id_, None) is not None:
                pairs.delete(f"id = {id_}")
        groups = defaultdict(list)
        for id_, (k, n) in held.items():
            groups[k].append((n, id_))
        expected = {(k, *_by_hand(members)) for k, members in groups.items()}
        assert set(rows(connection, "SELECT * FROM kept")) == expected
    connection.execute("DROP TABLE pairs CASCADE")


def _by_hand(members):
    ordered = sorted(members, key=lambda pair: (pair[0] is not None, pair[0] or 0, pair[1]))
    values = sorted({n for n, _ in members}, key=lambda n: (n is not None, n or 0))
    positive = sorted(id_ for n, id_ in members if n is not None and n > 0)
    return (
        " ".join(f"{n}{id_}" for n, id_ in ordered),
        values[len(values) // 2],
        positive[len(positive) // 2] if positive else -1,
    )
