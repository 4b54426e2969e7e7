"""Pull SELECTs that a table answers itself, and those that need Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from velostream.model.expression import Call, ColumnRef, Literal
from velostream.sql.plan import AggregateFunction, Item, Order, PassthroughPlan, Strategy


@pytest.fixture
def passthrough(plan):
    def planned(text: str) -> PassthroughPlan:
        found = plan(text).passthrough
        assert found is not None
        return found

    return planned


def test_columns_condition_order_and_limit(passthrough):
    found = passthrough("SELECT u.id AS i, NAME FROM users u WHERE u.name = 'x' ORDER BY 2 DESC, i LIMIT 5 OFFSET 2")
    assert found == PassthroughPlan(
        table="users",
        items=(Item("i", "id"), Item("NAME", "name")),
        condition=Call("=", (ColumnRef("name"), Literal("x", pa.string()))),
        order=(Order("name", descending=True, nulls_first=False), Order("id")),
        limit=5,
        offset=2,
        access="index",
    )


def test_star_is_all_columns_in_order(passthrough):
    assert [item.name for item in passthrough("SELECT * FROM users").items] == ["id", "name", "score", "tags"]
    assert [item.name for item in passthrough("SELECT u.*, u.id AS again FROM users u").items][-1] == "again"
    assert [item.name for item in passthrough("SELECT * EXCEPT (tags) FROM users").items] == ["id", "name", "score"]


def test_aggregates_have_sparks_names(passthrough):
    found = passthrough("SELECT count(*), COUNT(name), sum(id) AS s, max(u.name), count(DISTINCT name) FROM users u")
    assert found.items == (
        Item("count(1)", None, AggregateFunction.COUNT),
        Item("count(name)", "name", AggregateFunction.COUNT),
        Item("s", "id", AggregateFunction.SUM),
        Item("max(name)", "name", AggregateFunction.MAX),
        Item("count(DISTINCT name)", "name", AggregateFunction.COUNT, distinct=True),
    )


def test_groups_are_columns_by_any_of_their_names(passthrough):
    found = passthrough("SELECT u.name AS who, max(id) FROM users u WHERE id > 1 GROUP BY who ORDER BY 1 DESC LIMIT 3")
    assert found.groups == ("name",)
    assert found.items == (Item("who", "name"), Item("max(id)", "id", AggregateFunction.MAX))
    assert found.order == (Order("name", descending=True, nulls_first=False),)
    assert (found.limit, found.condition is None) == (3, False)
    assert passthrough("SELECT count(*) AS n FROM stock GROUP BY shop, sku").groups == ("shop", "sku")
    assert passthrough("SELECT sku, shop, count(*) AS n FROM stock GROUP BY ALL").groups == ("sku", "shop")


@pytest.mark.parametrize(
    ("condition", "access"),
    [
        ("id = 1", "key"),  # B20
        ("1 = id AND score > 0", "key"),
        ("name = 'x'", "index"),
        ("id > 1", "scan"),
        ("id = 1 OR name = 'x'", "scan"),
    ],
)
def test_the_condition_decides_the_access(passthrough, condition, access):
    assert passthrough(f"SELECT * FROM users WHERE {condition}").access == access


def test_a_composite_key_needs_all_its_columns(passthrough):
    assert passthrough("SELECT n FROM stock WHERE shop = 1 AND sku = 'a'").access == "key"
    assert passthrough("SELECT n FROM stock WHERE sku = 'a'").access == "scan"


def test_nulls_are_ordered_as_spark_orders_them(passthrough):
    assert passthrough("SELECT a FROM bag ORDER BY a, b DESC").order == (Order("a"), Order("b", True, False))
    assert passthrough("SELECT a FROM bag ORDER BY a NULLS LAST, b DESC NULLS FIRST").order == (
        Order("a", False, False),
        Order("b", True, True),
    )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a + 1 AS x FROM bag",
        "SELECT DISTINCT a FROM bag",
        "SELECT a + 1 AS x, count(*) AS n FROM bag GROUP BY a + 1",
        "SELECT a, count(*) + 1 AS n FROM bag GROUP BY a",
        "SELECT a, count(*) AS n FROM bag GROUP BY a HAVING count(*) > 1",
        "SELECT a, count(*) AS n FROM bag GROUP BY a ORDER BY n",
        "SELECT a, count(a) AS n FROM bag GROUP BY a ORDER BY 2",
        "SELECT a, count(*) AS n FROM bag GROUP BY ROLLUP (a)",
        "SELECT score, count(*) AS n FROM users GROUP BY score",
        "SELECT tags, count(*) AS n FROM users GROUP BY tags",
        "SELECT name, sum(score) AS s FROM users GROUP BY name",
        "SELECT name, sum(DISTINCT id) AS s FROM users GROUP BY name",
        "SELECT count(*) FROM bag HAVING count(*) > 1",
        "SELECT count(*) + 1 AS n FROM bag",
        "SELECT count(a, b) FROM bag",
        "SELECT sum(b) FROM bag",
        "SELECT max(score) FROM users",
        "SELECT max(tags) FROM users",
        "SELECT count(*) FROM bag LIMIT 1",
        "SELECT id FROM users ORDER BY score",
        "SELECT id FROM users ORDER BY tags",
        "SELECT id FROM users ORDER BY id + 1",
        "SELECT id AS x FROM users ORDER BY rand()",
        "SELECT id FROM users LIMIT 1 + 1",
        "SELECT id FROM users WHERE id IN (SELECT a FROM bag)",
        "SELECT (SELECT max(a) FROM bag) AS m FROM users",
        "SELECT u.id FROM users u JOIN bag ON a = u.id",
        "SELECT id FROM (SELECT id FROM users) q",
        "SELECT id FROM users UNION ALL SELECT a FROM bag",
        "SELECT q.x FROM users AS q(x, y, z, w)",
        "SELECT id FROM users TABLESAMPLE (10 PERCENT)",
        "SELECT row_number() OVER (ORDER BY id) AS n FROM users",
        "SELECT id, sum(id) FROM users",
        "SELECT o.addr.city FROM file:///d/o.csv o",
        "SELECT id FROM users WHERE transform(tags, t -> t) IS NULL",
        "WITH q AS (SELECT 1 AS one) SELECT id FROM users",
    ],
)
def test_everything_else_is_run_by_spark(plan, text):
    found = plan(text)
    assert found.strategy is Strategy.REFRESH
    assert found.passthrough is None


def test_a_view_is_never_passed_through(view):
    assert view("SELECT * FROM users").strategy is Strategy.DELTA
