"""Which tables the general path needs in part, found by what of the batch."""

from __future__ import annotations

import pytest


@pytest.fixture
def narrowed(view):
    """Plans a query that takes the general path and gives, by table, its columns and where their values come from."""

    def planned(text: str) -> dict[str, tuple[tuple[str, ...], list[str]]]:
        plan = view(text)
        stateless = plan.map if plan.aggregate is None else plan.aggregate.feed
        assert stateless is not None
        assert stateless.why_not
        names = {entry.relation: entry.target.name for entry in plan.inputs}
        return {
            names[found.input]: (found.columns, [asked.sql for asked in found.asked]) for found in stateless.narrowings
        }

    return planned


def test_an_outer_join_with_more_than_equalities(narrowed):
    text = "SELECT o.id, p.price FROM orders o LEFT JOIN prices p ON o.sku = p.sku AND p.price > o.amount"
    assert narrowed(text) == {"prices": (("sku",), ["SELECT o.sku AS k0 FROM in_0 AS o"])}
    swapped = "SELECT o.id, p.price FROM prices p RIGHT JOIN orders o ON lower(o.sku) = p.sku AND p.price > o.amount"
    assert narrowed(swapped) == {"prices": (("sku",), ["SELECT LOWER(o.sku) AS k0 FROM in_1 AS o"])}


@pytest.mark.parametrize(
    "asked",
    [
        "(SELECT SUM(n) FROM stock s WHERE s.sku = o.sku)",
        "o.id IN (SELECT s.n FROM stock s WHERE s.sku = o.sku)",
        "NOT EXISTS (SELECT 1 FROM stock s WHERE s.sku = o.sku AND s.n > o.id)",
        "o.user_id > ALL (SELECT s.n FROM stock s WHERE s.shop > 1 AND o.sku = s.sku)",
        "(SELECT COUNT(*) FROM (SELECT 1 AS one) x JOIN stock s ON s.sku = o.sku)",
    ],
)
def test_correlated_subqueries(narrowed, asked):
    assert narrowed(f"SELECT o.id, {asked} AS answer FROM orders o") == {
        "stock": (("sku",), ["SELECT o.sku AS k0 FROM in_0 AS o"])
    }


def test_all_columns_that_are_compared_count_and_a_key_is_enough(narrowed):
    text = "SELECT id FROM orders o WHERE (SELECT SUM(n) FROM stock s WHERE s.n = o.user_id AND s.sku = o.sku) > 1"
    assert narrowed(text) == {"stock": (("sku", "n"), ["SELECT o.sku AS k0, o.user_id AS k1 FROM in_0 AS o"])}
    whole = "s.n = o.user_id AND s.sku = o.sku AND s.shop = o.user_id"
    text = f"SELECT id FROM orders o WHERE (SELECT SUM(n) FROM stock s WHERE {whole}) > 1"
    assert narrowed(text) == {"stock": (("sku", "shop"), ["SELECT o.sku AS k0, o.user_id AS k1 FROM in_0 AS o"])}


def test_values_are_of_the_columns_type(narrowed):
    text = "SELECT id FROM orders o WHERE (SELECT COUNT(*) FROM stock s WHERE s.n = o.id) > 1"
    assert narrowed(text) == {"stock": (("n",), ["SELECT TRY_CAST(o.id AS INT) AS k0 FROM in_0 AS o"])}


def test_one_table_leads_to_the_next(narrowed):
    text = (
        "SELECT o.id FROM orders o WHERE o.amount > ANY (SELECT p.price FROM prices p "
        "JOIN categories c ON c.category_id = p.category_id WHERE p.sku = o.sku AND c.title <> 'x')"
    )
    assert narrowed(text) == {
        "prices": (("sku",), ["SELECT o.sku AS k0 FROM in_0 AS o"]),
        "categories": (("category_id",), ["SELECT p.category_id AS k0 FROM in_1 AS p"]),
    }


def test_a_table_read_twice_is_found_by_either(narrowed):
    text = (
        "SELECT o.id, (SELECT SUM(n) FROM stock s WHERE s.sku = o.sku) AS a, "
        "(SELECT SUM(n) FROM stock s WHERE s.sku = upper(o.sku) AND s.shop = 1) AS b FROM orders o"
    )
    assert narrowed(text) == {
        "stock": (("sku",), ["SELECT o.sku AS k0 FROM in_0 AS o", "SELECT UPPER(o.sku) AS k0 FROM in_0 AS o"])
    }


def test_what_an_aggregate_is_fed_with(narrowed):
    text = "SELECT sku, SUM((SELECT MAX(n) FROM stock s WHERE s.sku = o.sku)) AS n FROM orders o GROUP BY sku"
    assert narrowed(text)["stock"][0] == ("sku",)


@pytest.mark.parametrize(
    "text",
    [
        # Rows count that equal nothing of the stream.
        "SELECT o.id, o.user_id IN (SELECT s.n FROM stock s) AS answer FROM orders o",
        "SELECT o.id FROM orders o WHERE o.user_id NOT IN (SELECT s.n FROM stock s)",
        "SELECT o.id FROM orders o WHERE (SELECT SUM(n) FROM stock s WHERE s.sku = o.sku OR s.shop = 1) > 1",
        "SELECT o.id FROM orders o WHERE (SELECT SUM(n) FROM stock s WHERE NOT s.sku = o.sku) > 1",
        "SELECT (SELECT SUM(n) FROM stock s) AS a, (SELECT SUM(n) FROM stock s WHERE s.sku = o.sku) AS b FROM orders o",
        "SELECT o.id FROM orders o WHERE (SELECT COUNT(*) FROM bag b LEFT JOIN stock s ON b.b = o.sku) > 1",
        # What they equal can't be told of a row of the stream by itself, or not surely.
        "SELECT o.id FROM orders o WHERE (SELECT SUM(n) FROM stock s WHERE s.sku = uuid()) > 1",
        "SELECT o.id FROM orders o WHERE (SELECT SUM(score) FROM users u WHERE u.score = o.amount) > 1",
        "SELECT o.id FROM (SELECT id, sku FROM orders) o WHERE (SELECT SUM(n) FROM stock s WHERE s.sku = o.sku) > 1",
        "SELECT o.id FROM orders o WHERE (SELECT SUM(n) FROM (SELECT * FROM stock) s WHERE s.sku = o.sku) > 1",
    ],
)
def test_what_is_read_as_a_whole(narrowed, text):
    assert "stock" not in narrowed(text)
    assert "users" not in narrowed(text)
