"""Stream–table joins: the lookups of the fast way, the SQL on top, and when there is only the general path."""

from __future__ import annotations

import pyarrow as pa
import pytest

from velostream.errors import SqlError
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Schema
from velostream.sql.plan import AsOf, KeyPair, Lookup, MapPlan, RelationKind, Stages

_PASSING = "COALESCE(CASE WHEN NOT stage.`l0_sku` IS NULL THEN stage.`l0_price` > 1 END, FALSE)"


@pytest.fixture
def stages(view):
    """Plans a query and gives its stages, which it must have."""

    def planned(text: str, **rest) -> Stages:
        plan = view(text, **rest)
        assert plan.map is not None
        assert plan.map.why_not == ""
        assert plan.map.stages is not None
        return plan.map.stages

    return planned


@pytest.fixture
def general(view):
    """Plans a query and gives its map, which must have no stages."""

    def planned(text: str, **rest) -> MapPlan:
        plan = view(text, **rest)
        assert plan.map is not None
        assert plan.map.stages is None
        return plan.map

    return planned


def test_an_inner_join_looks_up_by_key(stages):
    found = stages("SELECT o.id, p.price * 2 AS twice FROM orders o JOIN prices p ON o.sku = p.sku WHERE p.price > 1")
    assert found.lookups == (Lookup("in_1", False, (KeyPair("`sku`", "sku"),), ("price",), "l0_", "key", alias="p"),)
    assert found.sql == "SELECT stage.`id` AS `id`, stage.`l0_price` * 2 AS twice FROM stage WHERE stage.`l0_price` > 1"


def test_the_general_path_gives_the_same_names(view):
    plan = view("SELECT o.id, o.addr.city, p.price * 2, o.sku AS s FROM orders o LEFT JOIN prices p ON p.sku = o.sku")
    assert plan.map is not None
    assert plan.map.sql == (
        "SELECT o.id AS `id`, o.addr.city AS `city`, p.price * 2 AS `(price * 2)`, o.sku AS s "
        "FROM in_0 AS o LEFT JOIN in_1 AS p ON p.sku = o.sku"
    )
    assert plan.map.stages is not None
    assert plan.map.stages.lookups[0].outer
    assert plan.map.stages.sql == (
        "SELECT stage.`id` AS `id`, stage.`addr`.`city` AS `city`, stage.`l0_price` * 2 AS `(price * 2)`, "
        "stage.`sku` AS s FROM stage"
    )


def test_lookups_chain(stages):  # B29
    found = stages(
        "SELECT o.id, c.title FROM orders o LEFT JOIN prices p ON o.sku = p.sku "
        "JOIN categories c ON c.category_id = p.category_id"
    )
    assert [(lookup.prefix, lookup.outer, lookup.columns) for lookup in found.lookups] == [
        ("l0_", True, ("category_id",)),
        ("l1_", False, ("title",)),
    ]
    assert found.lookups[1].keys == (KeyPair("`l0_category_id`", "category_id"),)


def test_a_table_may_be_looked_up_twice(stages):  # B29
    found = stages(
        "SELECT a.name AS x, b.name AS y FROM orders o JOIN users a ON o.id = a.id JOIN users b ON a.id = b.id"
    )
    assert [(lookup.input, lookup.prefix) for lookup in found.lookups] == [("in_1", "l0_"), ("in_1", "l1_")]
    assert found.lookups[1].keys == (KeyPair("`l0_id`", "id"),)
    assert found.sql == "SELECT stage.`l0_name` AS x, stage.`l1_name` AS y FROM stage"


def test_using_and_star_keep_the_users_order(stages):
    found = stages("SELECT * FROM orders JOIN prices USING (sku)")
    assert found.sql.startswith("SELECT stage.`sku` AS `sku`, stage.`id` AS `id`, stage.`amount` AS `amount`")
    assert found.sql.endswith("stage.`l0_price` AS `price`, stage.`l0_category_id` AS `category_id` FROM stage")
    swapped = stages("SELECT p.*, o.id FROM prices p JOIN orders o USING (sku)")
    assert swapped.sql == (
        "SELECT stage.`l0_sku` AS `sku`, stage.`l0_price` AS `price`, stage.`l0_category_id` AS `category_id`, "
        "stage.`id` AS `id` FROM stage"
    )


def test_the_columns_of_using_come_first_in_a_qualified_star(stages):
    found = stages("SELECT o.* FROM orders o LEFT JOIN stock s USING (sku)")
    assert found.sql.startswith("SELECT stage.`sku` AS `sku`, stage.`id` AS `id`, stage.`amount` AS `amount`")
    found = stages(
        "SELECT s.* FROM orders o JOIN prices p USING (sku) JOIN stock s ON s.n = o.user_id AND s.sku = o.sku"
    )
    assert found.sql.startswith("SELECT stage.`l1_sku` AS `sku`, stage.`l1_shop` AS `shop`")


def test_same_named_columns_of_both_sides_are_kept_in_a_stream(stages):  # B30
    found = stages("SELECT * FROM orders o JOIN users u ON o.user_id = u.id", distinct_names=False)
    assert found.sql.startswith("SELECT stage.`id` AS `id`")
    assert "stage.`l0_id` AS `id`" in found.sql


@pytest.mark.parametrize(
    ("join", "outer"),
    [
        ("prices p JOIN orders o ON p.sku = o.sku", False),
        ("prices p RIGHT JOIN orders o ON p.sku = o.sku", True),
        ("prices p LEFT JOIN orders o ON p.sku = o.sku", False),
        ("prices p FULL JOIN orders o ON p.sku = o.sku", True),
        ("orders o RIGHT JOIN prices p ON p.sku = o.sku", False),
        ("orders o FULL OUTER JOIN prices p ON p.sku = o.sku", True),
        ("orders o LEFT OUTER JOIN prices p ON p.sku = o.sku", True),
    ],
)
def test_the_stream_drives_whichever_side_it_is_on(stages, join, outer):  # B28, B29
    (lookup,) = stages(f"SELECT o.id, p.price FROM {join}").lookups
    assert lookup.outer is outer


@pytest.mark.parametrize(
    ("join", "turned"),
    [
        ("prices p LEFT JOIN orders o ON p.sku = o.sku", "in_0 AS p JOIN in_1 AS o"),
        ("prices p FULL JOIN orders o ON p.sku = o.sku", "in_0 AS p RIGHT JOIN in_1 AS o"),
        ("orders o RIGHT OUTER JOIN prices p ON p.sku = o.sku", "in_0 AS o JOIN in_1 AS p"),
        ("orders o FULL OUTER JOIN prices p ON p.sku = o.sku", "in_0 AS o LEFT OUTER JOIN in_1 AS p"),
    ],
)
def test_the_general_path_is_driven_by_the_stream_too(view, join, turned):
    plan = view(f"SELECT o.id, p.price FROM {join}")
    assert plan.map is not None
    assert turned in plan.map.sql
    assert turned in plan.sql


def test_conditions_besides_equalities_filter_an_inner_join(stages):  # B28
    found = stages(
        "SELECT o.id FROM orders o JOIN prices p ON (o.sku = p.sku AND p.price < o.amount) AND p.category_id = 3 "
        "WHERE o.id > 0 OR o.id < -5"
    )
    assert found.lookups[0].keys == (KeyPair("`sku`", "sku"),)
    assert found.lookups[0].columns == ("price", "category_id")
    assert found.sql == (
        "SELECT stage.`id` AS `id` FROM stage WHERE stage.`l0_price` < stage.`amount` AND stage.`l0_category_id` = 3 "
        "AND (stage.`id` > 0 OR stage.`id` < -5)"
    )


def test_a_composite_key_and_part_of_it(stages):
    both = stages("SELECT s.n FROM orders o JOIN stock s ON s.shop = o.user_id AND o.sku = s.sku").lookups[0]
    assert both.access == "key"
    assert {pair.column for pair in both.keys} == {"sku", "shop"}
    assert stages("SELECT s.n FROM orders o JOIN stock s ON o.sku = s.sku").lookups[0].access == "index"


@pytest.mark.parametrize(
    ("condition", "driving"),
    [
        ("o.user_id = u.id", "CAST(`user_id` AS BIGINT)"),
        ("lower(o.sku) = u.name", "LOWER(`sku`)"),  # B28
        ("CAST(o.sku AS BIGINT) = u.id", "CAST(`sku` AS BIGINT)"),
        ("u.name = o.addr.city", "`addr`.`city`"),
        ("u.name = concat(trim(o.sku), '-', o.addr.zip)", "CONCAT(TRIM(`sku`), '-', `addr`.`zip`)"),
    ],
)
def test_driving_values_become_the_columns_type(stages, condition, driving):
    (lookup,) = stages(f"SELECT o.id, u.score FROM orders o JOIN users u ON {condition}").lookups
    assert lookup.keys[0].driving == driving


def test_a_number_too_big_for_the_column_matches_nothing(stages):
    (lookup,) = stages("SELECT o.id, c.title FROM orders o JOIN categories c ON o.id = c.category_id").lookups
    assert lookup.keys[0].driving == "TRY_CAST(`id` AS INT)"


def test_decimals_are_only_widened(shop, stages, general):
    shop.add("rates", RelationKind.TABLE, Schema.of(("at", "DECIMAL(12,3)"), ("rate", "INT"), key=["at"]))
    shop.add("narrow", RelationKind.TABLE, Schema.of(("at", "DECIMAL(10,1)"), ("rate", "INT"), key=["at"]))
    wide = stages("SELECT r.rate FROM orders o JOIN rates r ON o.amount = r.at").lookups[0]
    assert wide.keys[0].driving == "CAST(`amount` AS DECIMAL(12,3))"
    assert "DECIMAL(10,2)" in general("SELECT r.rate FROM orders o JOIN narrow r ON o.amount = r.at").why_not


def test_a_prefix_never_meets_a_column_of_the_stream(shop, stages):
    shop.add("odd", RelationKind.STREAM, Schema.of(("l0_price", "INT"), ("sku", "STRING")))
    found = stages("SELECT o.l0_price AS mine, p.price AS theirs FROM odd o JOIN prices p ON o.sku = p.sku")
    assert found.sql == "SELECT stage.`l0_price` AS mine, stage.`l0__price` AS theirs FROM stage"


@pytest.mark.parametrize(
    ("text", "kind", "sql"),
    [
        (
            "SELECT o.id FROM orders o WHERE EXISTS (SELECT 1 FROM prices p WHERE p.sku = o.sku)",
            "EXISTS",
            "SELECT stage.`id` AS `id` FROM stage WHERE (NOT stage.`l0_sku` IS NULL)",
        ),
        (
            "SELECT o.id FROM orders o WHERE NOT EXISTS (SELECT * FROM prices p WHERE o.sku = p.sku AND p.price > 1)",
            "EXISTS",
            "SELECT stage.`id` AS `id` FROM stage WHERE NOT " + _PASSING,
        ),
        (
            "SELECT id FROM orders WHERE id > 1 AND sku IN (SELECT sku FROM prices WHERE price > 1)",
            "IN",
            "SELECT stage.`id` FROM stage WHERE stage.`id` > 1 AND " + _PASSING,
        ),
        (
            "SELECT o.id, (SELECT p.price FROM prices p WHERE p.sku = o.sku) AS price FROM orders o",
            "scalar subquery",
            "SELECT stage.`id` AS `id`, stage.`l0_price` AS price FROM stage",
        ),
        (
            "SELECT o.id FROM orders o WHERE (SELECT p.price FROM prices p WHERE p.sku = o.sku) IN (1, 2)",
            "scalar subquery",
            "SELECT stage.`id` AS `id` FROM stage WHERE stage.`l0_price` IN (1, 2)",
        ),
        (
            "SELECT id, (SELECT max(price * 2) FROM prices p WHERE p.sku = o.sku) AS paid FROM orders o",
            "scalar subquery",
            "SELECT stage.`id`, CASE WHEN NOT stage.`l0_sku` IS NULL THEN stage.`l0_price` * 2 END AS paid FROM stage",
        ),
    ],
)
def test_a_subquery_about_one_row_is_a_lookup(stages, text, kind, sql):  # B35
    found = stages(text)
    (lookup,) = found.lookups
    assert (lookup.subquery, lookup.outer, lookup.access) == (kind, True, "key")
    assert lookup.keys == (KeyPair("`sku`", "sku"),)
    assert found.sql == sql


def test_a_subquery_that_any_row_answers_is_a_lookup_by_all_that_is_equal(stages):  # B35
    text = "SELECT o.id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM stock s WHERE s.sku = o.sku AND s.n > 2 + 1)"
    found = stages(text)
    (lookup,) = found.lookups
    assert (lookup.subquery, lookup.outer, lookup.access, lookup.any_row) == ("EXISTS", True, "index", True)
    assert lookup.keys == (KeyPair("`sku`", "sku"),)
    assert lookup.condition == Call(">", (ColumnRef("n"), Literal(3, pa.int32())))
    assert lookup.columns == ("sku",)
    assert found.sql == "SELECT stage.`id` AS `id` FROM stage WHERE NOT (NOT stage.`l0_sku` IS NULL)"
    (lookup,) = stages("SELECT id FROM orders WHERE user_id IN (SELECT a FROM bag)").lookups
    assert (lookup.subquery, lookup.any_row, lookup.condition) == ("IN", True, None)
    assert [pair.column for pair in lookup.keys] == ["a"]


def test_subqueries_stand_beside_joins_and_may_call_their_table_the_same(stages):  # B35
    found = stages(
        "SELECT p.price FROM orders o JOIN prices p ON o.sku = p.sku WHERE EXISTS "
        "(SELECT 1 FROM categories p WHERE p.category_id = o.user_id AND p.title <> o.sku) "
        "AND (SELECT name FROM users u WHERE u.id = p.category_id) = 'Ada'"
    )
    assert [(lookup.prefix, lookup.outer, lookup.alias) for lookup in found.lookups] == [
        ("l0_", False, "p"),
        ("l1_", True, "p"),
        ("l2_", True, "u"),
    ]
    assert found.lookups[2].keys == (KeyPair("CAST(`l0_category_id` AS BIGINT)", "id"),)
    assert "stage.`l1_title` <> stage.`sku`" in found.sql


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "SELECT o.id FROM orders o LEFT JOIN prices p ON o.sku = p.sku AND p.price > 1",
            "a condition besides equalities",
        ),
        ("SELECT o.id FROM orders o JOIN prices p ON o.amount > p.price", "no column of"),
        ("SELECT o.id FROM orders o JOIN prices p ON p.sku = 'a'", "no column of"),
        ("SELECT o.id FROM orders o JOIN users u ON o.sku = u.id", "STRING with u.id BIGINT"),
        ("SELECT o.id FROM orders o JOIN users u ON o.id = u.score", "BIGINT with u.score DOUBLE"),
        ("SELECT o.id FROM orders o JOIN users u ON o.id + 1 = u.id", "a type only Spark can tell"),
        ("SELECT o.id FROM orders o JOIN users u ON o.addr.nothing = u.name", "a type only Spark can tell"),
        ("SELECT o.id FROM orders o, prices p WHERE o.sku = p.sku", "CROSS JOIN"),
        ("SELECT o.id FROM orders o LEFT SEMI JOIN prices p ON o.sku = p.sku", "SEMI JOIN"),
        ("SELECT o.id FROM orders o NATURAL JOIN prices p", "NATURAL JOIN"),
        ("SELECT o.id FROM prices p JOIN stock s ON p.sku = s.sku JOIN orders o ON o.sku = s.sku", "each other"),
        ("SELECT id FROM orders WHERE sku NOT IN (SELECT sku FROM prices)", "a subquery reads a table"),
        ("SELECT id, (SELECT n FROM stock s WHERE s.sku = o.sku) AS n FROM orders o", "one row by its primary key"),
        ("SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM bag WHERE b = sku AND a > o.id)", "only Spark can"),
        ("SELECT id, sku IN (SELECT sku FROM prices) AS known FROM orders", "a subquery reads a table"),
        ("SELECT id FROM orders WHERE sku IN (SELECT sku FROM prices LIMIT 1)", "a subquery reads a table"),
        ("SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM prices WHERE price > 1)", "a subquery reads a table"),
        ("SELECT o.id FROM orders o WHERE EXISTS (SELECT max(price) FROM prices p WHERE p.sku = o.sku)", "a subquery"),
        ("SELECT id FROM orders WHERE sku IN (SELECT explode(array(sku)) FROM prices WHERE sku = sku)", "in a way"),
        ("SELECT o.id FROM orders o WHERE EXISTS (SELECT explode(array()) FROM prices p WHERE p.sku = o.sku)", "in a"),
        ("SELECT (SELECT rank() OVER (ORDER BY price) FROM prices p WHERE p.sku = o.sku) FROM orders o", "in a way"),
        ("SELECT id FROM orders o WHERE (SELECT sum(n) FROM stock s WHERE s.sku = o.sku) IN (1, 2)", "in a way"),
        (
            "SELECT o.id FROM orders o WHERE o.user_id IN (SELECT b FROM bag)",
            'the key of "bag" compares INT with bag.b',
        ),
        ("SELECT o.id, (SELECT sum(price) FROM prices p WHERE p.sku = o.sku) AS m FROM orders o", "a subquery"),
        ("SELECT o.id, (SELECT count(*) FROM prices p WHERE p.sku = o.sku) AS m FROM orders o", "a subquery"),
        (
            "SELECT o.id FROM orders o WHERE EXISTS (SELECT 1 FROM prices p WHERE p.sku = o.sku AND p.price > rand())",
            "a subquery",
        ),
        ("SELECT o.id FROM orders o JOIN (SELECT sku FROM prices) p ON o.sku = p.sku", "FROM has more"),
        ("WITH q AS (SELECT id, sku FROM orders) SELECT q.id FROM q JOIN prices USING (sku)", "FROM has more"),
        (
            "SELECT o.id FROM orders o JOIN prices p ON o.sku = p.sku LATERAL VIEW explode(array(1)) e AS x",
            "LATERAL VIEW",
        ),
        (
            "SELECT o.sku, p.price FROM orders o JOIN prices p ON o.sku = p.sku UNION ALL SELECT sku, 1 FROM orders",
            "a set",
        ),
    ],
)
def test_no_fast_way_says_why(general, text, why):
    found = general(text)
    assert why in found.why_not
    assert found.driving == "in_0" or "each other" in found.why_not


def test_a_stream_alone_needs_no_fast_way(general):
    found = general("SELECT id FROM orders WHERE amount > 1")
    assert found.why_not == ""
    assert found.sql == "SELECT id FROM in_0 AS orders WHERE amount > 1"


def test_asof_is_a_lookup_of_the_nearest_version(view, shop):
    schema = Schema.of(("sku", "STRING"), ("valid_from", "TIMESTAMP"), ("rate", "DECIMAL(10,2)"))
    shop.add("rates", RelationKind.TABLE, schema, version_column="valid_from")
    shop.query_options += ["event.time.field"]
    join = "SELECT o.id, r.rate FROM orders o ASOF LEFT JOIN rates r"
    plan = view(f"{join} MATCH_CONDITION (o.ts >= r.valid_from) ON o.sku = r.sku").map
    assert plan.stages.lookups[0].as_of == AsOf("`ts`", "valid_from", is_latest=True, is_inclusive=True)
    assert plan.stages.lookups[0].outer
    by_options = view(f"{join} ON o.sku = r.sku WITH ('event.time.field' = 'ts')").map
    assert by_options.stages == plan.stages
    later = view(f"{join} MATCH_CONDITION (o.ts < r.valid_from) ON r.sku = o.sku").map
    assert later.stages.lookups[0].as_of == AsOf("`ts`", "valid_from", is_latest=False, is_inclusive=False)
    general = view(f"{join} MATCH_CONDITION (o.ts >= r.valid_from) ON o.sku = r.sku AND r.rate > 1").map
    assert general.stages is None
    assert "ORDER BY r.valid_from DESC LIMIT 1" in general.sql
    with pytest.raises(SqlError, match="which version is meant"):
        view(f"{join} ON o.sku = r.sku")
    with pytest.raises(SqlError, match="MATCH_CONDITION compares"):
        view(f"{join} MATCH_CONDITION (o.ts >= o.ts) ON o.sku = r.sku")
