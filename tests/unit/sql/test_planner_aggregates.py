"""GROUP BY over a stream: the feed, the bare aggregate, and what is on top of it."""

from __future__ import annotations

import pytest

from velostream.errors import SqlError, ValidationError
from velostream.sql.plan import AggregatePlan


@pytest.fixture
def aggregate(view):
    def planned(text: str, **rest) -> AggregatePlan:
        plan = view(text, **rest)
        assert plan.aggregate is not None
        return plan.aggregate

    return planned


def test_one_row_per_group_is_the_bare_aggregate_itself(aggregate):  # B43
    found = aggregate(
        "SELECT user_id AS u, count(*) AS n, sum(amount) AS total FROM orders WHERE id > 1 GROUP BY user_id"
    )
    assert found.feed.sql == "SELECT user_id AS c0, amount AS c1 FROM in_0 AS orders WHERE id > 1"
    assert found.sql == "SELECT c0 AS `u`, COUNT(*) AS `n`, SUM(c1) AS `total` FROM feed GROUP BY c0"
    assert found.key == ("u",)
    assert found.final is None


@pytest.mark.parametrize("group", ["lower(o.sku)", "LOWER(sku)", "k", "1", "(lower(sku))"])
def test_a_group_may_be_named_by_expression_alias_or_ordinal(aggregate, group):
    found = aggregate(f"SELECT lower(sku) AS k, max(amount) AS m FROM orders o GROUP BY {group}")
    assert found.sql == "SELECT LOWER(c0) AS `k`, MAX(c1) AS `m` FROM feed GROUP BY LOWER(c0)"
    assert found.key == ("k",)


def test_a_constant_group_is_no_ordinal(aggregate):
    found = aggregate("SELECT sku, 7 AS seven, count(*) AS n FROM orders GROUP BY sku, seven")
    assert found.feed.sql == "SELECT sku AS c0, 7 AS c1 FROM in_0 AS orders"
    assert found.sql == "SELECT c0 AS `sku`, c1 AS `seven`, COUNT(*) AS `n` FROM feed GROUP BY c0, c1"


def test_group_by_all(aggregate):
    found = aggregate("SELECT sku, user_id, count(*) AS n FROM orders GROUP BY ALL")
    assert found.sql == "SELECT c0 AS `sku`, c1 AS `user_id`, COUNT(*) AS `n` FROM feed GROUP BY c0, c1"


def test_expressions_over_aggregates_stay_in_the_bare_aggregate(aggregate):
    found = aggregate("SELECT sku, sum(amount) / count(*) AS mean, mean * 2 AS twice FROM orders GROUP BY sku")
    assert found.sql == (
        "SELECT c0 AS `sku`, SUM(c1) / COUNT(*) AS `mean`, (SUM(c1) / COUNT(*)) * 2 AS `twice` FROM feed GROUP BY c0"
    )


def test_having_order_and_limit_are_on_top(aggregate):
    found = aggregate(
        "SELECT sku, sum(amount) AS total FROM orders GROUP BY sku HAVING total > 10 AND count(*) > 1 "
        "ORDER BY total DESC, max(id) LIMIT 3"
    )
    assert found.sql == ("SELECT c0 AS g0, SUM(c1) AS a0, COUNT(*) AS a1, MAX(c2) AS a2 FROM feed GROUP BY c0")
    assert found.key == ("g0",)
    assert found.final == (
        "SELECT groups.g0 AS `sku`, groups.a0 AS `total` FROM groups WHERE (groups.a0) > 10 AND groups.a1 > 1 "
        "ORDER BY total DESC, groups.a2 LIMIT 3"
    )
    assert found.final_inputs == ()


def test_unselected_group_columns_are_kept_below(aggregate):
    found = aggregate("SELECT count(*) AS n FROM orders GROUP BY user_id, sku")
    assert found.sql == "SELECT c0 AS g0, c1 AS g1, COUNT(*) AS a0 FROM feed GROUP BY c0, c1"
    assert found.key == ("g0", "g1")
    assert found.final == "SELECT groups.a0 AS `n` FROM groups"


def test_a_single_group_has_no_key(aggregate):
    found = aggregate("SELECT count(*), max(amount) + 1 AS m FROM orders")
    assert found.sql == "SELECT COUNT(*) AS a0, MAX(c0) AS a1 FROM feed"
    assert found.key == ()
    assert found.final == "SELECT groups.a0 AS `count(1)`, groups.a1 + 1 AS `m` FROM groups"
    assert aggregate("SELECT count(*) AS n FROM orders").feed.sql == "SELECT 1 AS c0 FROM in_0 AS orders"


def test_another_declared_key_is_a_view_over_the_groups(plan):
    planned = plan("CREATE TABLE t AS SELECT user_id PRIMARY KEY, sku, count(*) AS n FROM orders GROUP BY user_id, sku")
    assert planned.key == ("user_id",)
    assert planned.aggregate is not None
    assert planned.aggregate.key == ("g0", "g1")
    assert planned.aggregate.final is not None


def test_the_feed_goes_through_lookups(aggregate):
    found = aggregate(
        "SELECT c.title, sum(o.amount * p.price) AS total FROM orders o JOIN prices p USING (sku) "
        "JOIN categories c ON c.category_id = p.category_id AND p.price > 1 GROUP BY c.title"
    )
    assert found.sql == "SELECT c0 AS `title`, SUM(c1 * c2) AS `total` FROM feed GROUP BY c0"
    assert found.feed.stages is not None
    assert [lookup.input for lookup in found.feed.stages.lookups] == ["in_1", "in_2"]
    assert found.feed.stages.sql == (
        "SELECT stage.`l1_title` AS c0, stage.`amount` AS c1, stage.`l0_price` AS c2 FROM stage "
        "WHERE stage.`l0_price` > 1"
    )


def test_a_field_of_a_grouped_struct_is_read_from_the_group(aggregate):
    direct = aggregate("SELECT addr, o.addr.city AS city, count(*) AS n FROM orders o GROUP BY addr")
    assert direct.sql == "SELECT c0 AS `addr`, c0.`city` AS `city`, COUNT(*) AS `n` FROM feed GROUP BY c0"
    assert direct.feed.sql == "SELECT addr AS c0 FROM in_0 AS o"
    cut = aggregate("SELECT addr.city AS city, count(*) AS n FROM orders o GROUP BY addr")
    assert cut.final == "SELECT groups.g0.`city` AS `city`, groups.a0 AS `n` FROM groups"


def test_filter_within_group_and_ignore_nulls_belong_to_their_call(aggregate):
    found = aggregate(
        "SELECT sum(amount) FILTER (WHERE id > 3) AS s, first(sku) IGNORE NULLS AS f, "
        "listagg(sku, ',') WITHIN GROUP (ORDER BY ts) AS l FROM orders"
    )
    assert found.sql == (
        "SELECT SUM(c0) FILTER(WHERE c1 > 3) AS a0, FIRST(c2) IGNORE NULLS AS a1, "
        "LISTAGG(c2, ',') WITHIN GROUP (ORDER BY c3) AS a2 FROM feed"
    )


def test_window_functions_over_groups_are_on_top(aggregate):
    found = aggregate(
        "SELECT sku, sum(amount) AS total, sum(sum(amount)) OVER (PARTITION BY lower(sku)) AS whole "
        "FROM orders GROUP BY sku"
    )
    assert found.sql == "SELECT c0 AS g0, SUM(c1) AS a0 FROM feed GROUP BY c0"
    assert found.final == (
        "SELECT groups.g0 AS `sku`, groups.a0 AS `total`, "
        "SUM(groups.a0) OVER (PARTITION BY LOWER(groups.g0)) AS `whole` FROM groups"
    )


def test_a_subquery_in_having_is_on_top_and_one_in_an_argument_is_in_the_feed(aggregate):  # B35
    found = aggregate(
        "SELECT user_id, sum(CASE WHEN EXISTS (SELECT 1 FROM prices p WHERE p.sku = o.sku) THEN amount END) AS s "
        "FROM orders o GROUP BY user_id HAVING EXISTS (SELECT 1 FROM users u WHERE u.id = o.user_id)"
    )
    assert found.feed.sql == (
        "SELECT user_id AS c0, CASE WHEN EXISTS(SELECT 1 FROM in_1 AS p WHERE p.sku = o.sku) THEN amount END AS c1 "
        "FROM in_0 AS o"
    )
    assert found.feed.stages is not None
    assert [lookup.subquery for lookup in found.feed.stages.lookups] == ["EXISTS"]
    assert found.sql == "SELECT c0 AS g0, SUM(c1) AS a0 FROM feed GROUP BY c0"
    assert found.final == (
        "SELECT groups.g0 AS `user_id`, groups.a0 AS `s` FROM groups "
        "WHERE EXISTS(SELECT 1 FROM in_2 AS u WHERE u.id = groups.g0)"
    )
    assert found.final_inputs == ("in_2",)


@pytest.mark.parametrize(
    "group",
    [
        "EXISTS (SELECT 1 FROM prices p WHERE p.sku = o.sku)",
        "o.sku IN (SELECT sku FROM prices)",
        "(SELECT max(p.price) FROM prices p WHERE p.sku = o.sku)",
    ],
)
def test_a_group_with_a_subquery_is_known_again_in_the_select(aggregate, group):
    found = aggregate(f"SELECT {group} AS known, count(*) AS n FROM orders o GROUP BY {group}")
    assert found.sql == "SELECT c0 AS g0, COUNT(*) AS a0 FROM feed GROUP BY c0"
    assert found.final == "SELECT groups.g0 AS `known`, groups.a0 AS `n` FROM groups"


def test_ctes_go_where_they_are_read(aggregate):
    found = aggregate(
        "WITH big AS (SELECT * FROM orders WHERE amount > 9), good AS (SELECT id FROM users) "
        "SELECT user_id, count(*) AS n FROM big GROUP BY user_id HAVING user_id IN (SELECT id FROM good)"
    )
    assert found.feed.sql == (
        "WITH big AS (SELECT * FROM in_0 AS orders WHERE amount > 9) SELECT user_id AS c0 FROM big"
    )
    assert found.final is not None
    assert found.final.startswith("WITH good AS (SELECT id FROM in_1 AS users) SELECT groups.g0 AS `user_id`")


def test_a_column_must_be_grouped_or_aggregated(view):
    with pytest.raises(ValidationError) as caught:
        view("SELECT sku, o.id, count(*) AS n FROM orders o GROUP BY sku")
    assert caught.value.message == 'column "id" is neither grouped nor aggregated'
    assert caught.value.column == 13


@pytest.mark.parametrize(
    "text",
    [
        "SELECT sum(max(amount)) AS x FROM orders",
        "SELECT sku, count(*) AS n FROM orders GROUP BY sku, max(id)",
    ],
)
def test_aggregates_dont_nest(view, text):
    with pytest.raises(SqlError, match="aggregate"):
        view(text)


def test_a_clock_on_top_of_groups_needs_an_interval(plan):
    text = "CREATE TABLE t AS SELECT sku, count(*) AS n, now() AS at FROM orders GROUP BY sku"
    with pytest.raises(ValidationError) as caught:
        plan(text)
    assert caught.value.code == "clock-in-view"
    found = plan(text + " WITH ('refresh.interval' = '1m')").aggregate
    assert found is not None
    assert found.final == "SELECT groups.g0 AS `sku`, groups.a0 AS `n`, CURRENT_TIMESTAMP() AS `at` FROM groups"


def test_a_clock_ahead_of_groups_is_read_once_per_batch(aggregate):
    found = aggregate("SELECT sku, count(*) AS n FROM orders WHERE ts < now() GROUP BY sku")
    assert found.final is None
    assert found.feed.sql.endswith("WHERE ts < CURRENT_TIMESTAMP()")
