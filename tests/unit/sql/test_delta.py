"""Which views follow changes, by which plan, and why others are computed again."""

from __future__ import annotations

import pyarrow as pa
import pytest

from velostream.model.schema import Column, Schema
from velostream.sql.explain import explain_rows
from velostream.sql.plan import JoinKind, RelationKind, Strategy

RANKED = "SELECT *, row_number() OVER (PARTITION BY shop ORDER BY n) AS r FROM stock"
MOST = "SELECT MAX(q.n) AS m FROM (SELECT sku, SUM(n) AS n FROM stock GROUP BY sku) q"
HOURS = "SELECT id, window(at, '1 hour').start AS hour, COUNT(*) AS n FROM visits GROUP BY id, window(at, '1 hour')"


def kinds(planned):
    """The parts of a delta plan that are there."""
    plan = planned.delta
    names = ("linear", "grouped", "driven", "partitioned", "top")
    return [] if plan is None else [name for name in names if getattr(plan, name) is not None]


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("SELECT sku, price * 2 AS twice FROM prices WHERE price > 1", ["linear"]),
        ("SELECT explode(tags) AS tag FROM users", ["linear"]),
        ("SELECT sku FROM prices UNION ALL SELECT b FROM bag", ["linear"]),
        ("SELECT x FROM (SELECT price + 1 AS x FROM prices) AS q WHERE x > 2", ["linear"]),
        ("SELECT category_id, COUNT(*) AS n, AVG(price) AS p FROM prices GROUP BY category_id", ["grouped"]),
        ("SELECT category_id, MAX(sku) AS m FROM prices GROUP BY category_id HAVING COUNT(*) > 1", ["grouped"]),
        ("SELECT COUNT(*) AS n FROM bag", ["grouped"]),
        ("SELECT DISTINCT b FROM bag", ["grouped"]),
        ("SELECT p.sku, s.n FROM prices p JOIN stock s ON s.sku = p.sku", ["driven"]),
        ("SELECT p.sku, s.n FROM prices p LEFT JOIN stock s USING (sku)", ["driven"]),
        ("SELECT p.sku, c.title FROM prices p RIGHT JOIN categories c ON p.category_id = c.category_id", ["driven"]),
        ("SELECT sku FROM prices p WHERE NOT EXISTS (SELECT 1 FROM stock s WHERE s.sku = p.sku)", ["driven"]),
        ("SELECT sku FROM prices WHERE sku IN (SELECT sku FROM stock WHERE n > 3)", ["driven"]),
        ("SELECT sku, (SELECT SUM(n) FROM stock s WHERE s.sku = p.sku) AS n FROM prices p", ["driven"]),
        (
            "SELECT shop, SUM(price) AS p FROM stock s JOIN prices p ON p.sku = s.sku GROUP BY shop",
            ["grouped", "driven"],
        ),
        ("SELECT category_id, STDDEV(price) AS p FROM prices GROUP BY category_id", ["partitioned"]),
        (
            "SELECT category_id, COUNT(DISTINCT sku) AS n, COUNT(*) AS m FROM prices GROUP BY category_id",
            ["partitioned"],
        ),
        ("SELECT p.sku, s.n FROM prices p FULL JOIN stock s ON p.sku = s.sku", ["partitioned"]),
        ("SELECT shop, sku, rank() OVER (PARTITION BY shop ORDER BY n) AS r FROM stock", ["partitioned"]),
        (f"SELECT sku AS s, n, shop FROM ({RANKED}) WHERE r <= 2", ["partitioned"]),
        ("SELECT * FROM prices ORDER BY price DESC LIMIT 3", ["linear", "top"]),
        ("SELECT shop, SUM(n) AS n FROM stock GROUP BY shop ORDER BY n LIMIT 3", ["grouped", "top"]),
    ],
)
def test_the_shape_decides_how_changes_are_followed(view, query, parts):
    planned = view(query)
    assert planned.strategy is Strategy.DELTA
    assert kinds(planned) == parts


@pytest.mark.parametrize(
    ("query", "parts", "left"),
    [
        ("SELECT c, COUNT(*) AS n FROM (SELECT shop, COUNT(*) AS c FROM stock GROUP BY shop) AS q GROUP BY c",
         [["grouped"]], ["grouped"]),
        ("WITH q AS (SELECT shop, SUM(n) AS n FROM stock GROUP BY shop) SELECT a.n FROM q a JOIN q b ON a.n = b.n",
         [["grouped"]], ["driven"]),
        ("SELECT sku FROM prices WHERE price > (SELECT AVG(price) FROM prices)", [["grouped"]], ["driven"]),
        ("SELECT shop FROM stock GROUP BY shop HAVING SUM(n) > (SELECT SUM(n) / 2 FROM stock)",
         [["grouped"], ["grouped"]], ["driven"]),
        ("SELECT sku FROM prices WHERE EXISTS (SELECT 1 FROM bag WHERE a > 3)", [["grouped"]], ["driven"]),
        ("SELECT sku FROM prices WHERE sku NOT IN (SELECT sku FROM stock)", [["grouped"]], ["driven"]),
        ("SELECT sku FROM prices WHERE price NOT IN (SELECT MAX(price) FROM prices GROUP BY category_id)",
         [["grouped"], ["grouped"]], ["driven"]),
        ("SELECT shop, MAX(price) AS p FROM stock s JOIN prices p ON p.sku = s.sku GROUP BY shop",
         [["driven"]], ["grouped"]),
        ("SELECT p.category_id, STDDEV(n) AS d FROM stock s JOIN prices p ON p.sku = s.sku GROUP BY p.category_id",
         [["driven"]], ["partitioned"]),
        ("SELECT category_id, COUNT(DISTINCT sku) AS n FROM prices GROUP BY category_id", [["grouped"]], ["grouped"]),
        ("SELECT sku FROM prices p WHERE price > (SELECT SUM(n) FROM stock s WHERE s.sku = p.sku AND n > 1)",
         [["grouped"]], ["driven"]),
        ("SELECT sku FROM prices WHERE sku IN (SELECT sku FROM stock GROUP BY sku HAVING SUM(n) > 3)",
         [["grouped"]], ["driven"]),
        (f"SELECT a.shop FROM (SELECT shop, SUM(n) AS n FROM stock GROUP BY shop) a JOIN ({MOST}) b ON a.n = b.m",
         [["grouped"], ["grouped"]], ["driven"]),
        (f"SELECT h.id, q.sku FROM ({RANKED}) q JOIN ({HOURS}) h ON q.r = h.id AND h.hour > DATE '2024-01-01'",
         [["grouped"], ["partitioned"]], ["driven"]),
        ("SELECT p.sku, p.price FROM prices p ORDER BY price LIMIT 5 OFFSET 3", [["linear", "top"]], ["linear", "top"]),
    ],
)  # fmt: skip
def test_what_no_plan_can_follow_is_followed_in_parts(view, shop, query, parts, left):
    shop.add("visits", RelationKind.TABLE, Schema.of(("id", "INT"), ("at", "TIMESTAMP")))
    planned = view(query)
    assert planned.strategy is Strategy.DELTA
    assert kinds(planned) == left
    assert sorted(kinds(entry.part) for entry in planned.inputs if entry.part is not None) == parts
    assert planned.whole.strategy is Strategy.REFRESH


def test_a_part_is_read_once_however_often_it_is_named(view):
    planned = view("WITH q AS (SELECT shop, SUM(n) AS n FROM stock GROUP BY shop) SELECT n FROM q WHERE n = "
                   "(SELECT MAX(n) FROM q)")  # fmt: skip
    (relation,) = [entry for entry in planned.inputs if not entry.target.one_row]
    (constant,) = [entry for entry in planned.inputs if entry.target.one_row]
    assert [entry.part for entry in constant.part.inputs] == [relation.part]


@pytest.mark.parametrize(
    ("query", "joined"),
    [
        ("SELECT shop, (SELECT MAX(price) FROM prices p WHERE p.sku = s.sku) AS p FROM stock s", True),
        ("SELECT shop, (SELECT COALESCE(MAX(price), 0) FROM prices p WHERE p.sku = s.sku) AS p FROM stock s", True),
        ("SELECT shop, (SELECT MAX(1) FROM prices p WHERE p.sku = s.sku) AS p FROM stock s", True),
        ("SELECT shop, (SELECT COUNT(price) FROM prices p WHERE p.sku = s.sku) AS p FROM stock s", False),
        ("SELECT sku FROM prices p WHERE EXISTS (SELECT 1 FROM stock s WHERE s.sku = p.sku AND s.n > p.price)", True),
        ("SELECT sku FROM prices p WHERE price > 1 OR EXISTS (SELECT 1 FROM stock s WHERE s.sku = p.sku)", False),
        ("SELECT p.sku, initcap(s.sku) AS x FROM prices p JOIN stock s ON s.sku = p.sku", False),
    ],
)
def test_what_is_joined_without_spark(view, query, joined):
    """A value of no row is NULL, not what its expression gives of NULLs of that row, unless these are all it reads."""
    assert (view(query).delta.driven.joined is not None) == joined


def test_not_in_columns_that_are_never_null_asks_for_no_null(view, shop):
    """B34: where neither side can be NULL, NOT IN is NOT EXISTS."""
    key = Schema((Column("k", pa.int32(), nullable=False),), ("k",))
    for name in ("left_keys", "right_keys"):
        shop.add(name, RelationKind.TABLE, key)
    planned = view("SELECT k FROM left_keys WHERE k NOT IN (SELECT k FROM right_keys)")
    assert [entry.part for entry in planned.inputs] == [None, None]
    assert planned.delta.driven.joined.parts[0].kind is JoinKind.ANTI


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT b FROM bag ORDER BY a LIMIT 3", "ORDER BY a is not selected"),
        ("SELECT a FROM bag EXCEPT SELECT shop FROM stock", "a set operation"),
        ("SELECT a, row_number() OVER (ORDER BY b) AS n FROM bag", "no value that all its rows hold keeps them apart"),
        ("SELECT STDDEV(price) AS s FROM prices", "no value that all its rows hold"),
        ("SELECT p.sku FROM prices p CROSS JOIN bag", 'no equality of columns leads to "bag"'),
        ("SELECT sku, sku IN (SELECT sku FROM stock) AS known FROM prices", "only Spark can tell what its names mean"),
        ("SELECT u.id FROM users u JOIN users v ON u.score = v.score", 'no equality of columns leads to "v"'),
        ("SELECT category_id, COUNT(*) AS n FROM prices GROUP BY ROLLUP (category_id)", "ROLLUP"),
    ],
)
def test_what_is_computed_again_says_why(view, query, why):
    planned = view(query)
    assert planned.strategy is Strategy.REFRESH
    assert why in planned.reason


@pytest.mark.parametrize(
    ("query", "strategy"),
    [
        ("SELECT sku PRIMARY KEY, price FROM prices", Strategy.DELTA),
        ("SELECT price PRIMARY KEY, sku FROM prices", Strategy.REFRESH),
        ("SELECT p.sku PRIMARY KEY, c.title FROM prices p JOIN categories c USING (category_id)", Strategy.DELTA),
        ("SELECT p.sku PRIMARY KEY, s.n FROM prices p JOIN stock s ON p.sku = s.sku", Strategy.REFRESH),
        ("SELECT shop PRIMARY KEY, COUNT(*) AS n FROM stock GROUP BY shop", Strategy.DELTA),
    ],
)
def test_a_declared_key_must_be_unique_for_sure(view, query, strategy):
    """Of two rows with one key the later wins; when that one goes the other would have to come back."""
    assert view(query).strategy is strategy


@pytest.mark.parametrize(
    ("query", "root"),
    [
        ("SELECT c.title, p.sku FROM categories c JOIN prices p ON p.category_id = c.category_id", "prices"),
        ("SELECT c.title, n FROM categories c, prices p, stock s WHERE p.category_id = c.category_id AND p.sku = s.sku",
         "stock"),
        ("SELECT c.title, p.sku FROM categories c LEFT JOIN prices p ON p.category_id = c.category_id", "categories"),
    ],
)  # fmt: skip
def test_what_leads_to_single_rows_drives(view, query, root):
    """A changed price concerns one row of prices, but all those of its category if categories drove."""
    planned = view(query)
    driving = planned.delta.driven.readers[0].input
    assert [entry.target.name for entry in planned.inputs if entry.relation == driving] == [root]


def test_explain_tells_the_way_the_lookups_and_the_cost(view):
    rows = explain_rows(
        view("SELECT shop, SUM(price) AS p FROM stock s JOIN prices p ON p.sku = s.sku GROUP BY shop"), extended=True
    )
    found = dict(rows)
    assert found["strategy"] == "delta"
    assert found["driven by"].startswith('table "stock"')
    assert found["lookup"] == '"prices" by index on (sku), and back to "stock" on (sku)'
    assert found["driven by"].endswith("computed before and after, without Spark")
    assert found["cost"].startswith("each changed row and those it is linked to, whatever the size of the inputs")
    assert found["state"] == "one row per group in a hidden table: the number of its rows, counts and exact sums"
    assert "r0" in found["sql over lookups"]


def test_explain_says_what_needs_no_spark(view):
    plain = dict(explain_rows(view("SELECT sku, price * 2 AS p FROM prices"), extended=False))
    assert plain["changes"] == "filter and projection of the changed rows, without Spark"
    spark = dict(explain_rows(view("SELECT sku, initcap(sku) AS p FROM prices"), extended=False))
    assert spark["changes"] == "filter and projection of the changed rows, in Spark"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT q.* FROM ({inner}) AS q WHERE p < 3 OR sku = 'y'",
        "WITH q AS ({inner}) SELECT q.sku, q.p FROM q WHERE p < 3 OR sku = 'y'",
    ],
)
def test_a_subquery_that_only_projects_becomes_part_of_the_query(view, query):
    inner = "SELECT sku, price AS p FROM prices WHERE price > 1 OR sku = 'x'"
    step = view(query.format(inner=inner)).delta.linear
    assert step.names == ("sku", "p")
    assert step.items is not None
    assert step.sql.count("SELECT") == 1
    assert "(price > 1 OR sku = 'x') AND (price < 3 OR sku = 'y')" in step.sql


def test_a_name_that_would_change_its_meaning_keeps_the_subquery(view):
    """Inside, `sku` is a column of the table; outside it names the sum."""
    step = view("SELECT q.x AS sku, COUNT(*) AS n FROM (SELECT price + 1 AS x FROM prices) AS q GROUP BY sku").delta
    assert "SELECT price + 1 AS x" in step.grouped.feed.sql
