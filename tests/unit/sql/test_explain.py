"""What EXPLAIN and VALIDATE say."""

from __future__ import annotations

import pytest

from velostream.sql.explain import explain_rows, validate_statement
from velostream.sql.parse import parse_statement


@pytest.fixture
def explained(plan):
    def rows(text: str, *, extended: bool = False, **rest) -> list[tuple[str, str]]:
        return explain_rows(plan(text, **rest), extended=extended)

    return rows


@pytest.fixture
def validated(shop):
    def found(text: str) -> list[tuple[str, int, int]]:
        return [(p.code, p.line, p.column) for p in validate_statement(parse_statement(text), shop, text)]

    return found


def test_a_join_names_strategy_table_key_access_and_why(explained):
    rows = dict(explained("CREATE TABLE t AS SELECT o.id, p.price FROM orders o LEFT JOIN prices p ON o.sku = p.sku"))
    assert rows["strategy"] == "map"
    assert '"orders"' in rows["why"]
    assert rows["input in_0"] == 'stream "orders" (appends are followed)'
    assert rows["input in_1"] == 'table "prices"'
    assert rows["driven by"] == 'stream "orders"'
    assert rows["lookup"] == (
        "LEFT JOIN table \"prices\" by key (sku), an index lookup: the join's equalities are the table's key; "
        "driven by `sku`"
    )
    assert rows["key"] == "none: a bag of rows"
    assert rows["state"] == "none"


def test_a_lookup_without_the_key_says_that_an_index_is_made(explained):
    rows = dict(explained("CREATE TABLE t AS SELECT o.id FROM orders o JOIN stock s ON o.sku = s.sku"))
    assert rows["lookup"].startswith('JOIN table "stock" by index on (sku), made for this query')


def test_the_general_path_says_why(explained):
    rows = explained("CREATE TABLE t AS SELECT o.id FROM orders o JOIN prices p ON o.amount > p.price")
    assert "by scan" in dict(rows)["reading"]
    assert 'no column of "p" is compared for equality' in dict(rows)["general path"]
    assert any(name == "warning" for name, _ in rows)


def test_an_aggregate_shows_groups_state_and_what_is_on_top(explained):
    rows = dict(
        explained(
            "CREATE TABLE t AS SELECT user_id, count(*) AS n FROM orders GROUP BY user_id "
            "HAVING user_id IN (SELECT id FROM users)",
            extended=True,
        )
    )
    assert rows["strategy"] == "aggregate"
    assert rows["groups"] == "one per (g0)"
    assert rows["on top"].endswith('a view over the groups and table "users"')
    assert rows["key"] == "user_id"
    assert rows["state"].startswith("the groups, in Spark's state store: ")
    assert rows["sql of feed"] == "SELECT user_id AS c0 FROM in_0 AS orders"
    assert rows["sql over feed"] == "SELECT c0 AS g0, COUNT(*) AS a0 FROM feed GROUP BY c0"
    assert "FROM groups" in rows["sql over groups"]


@pytest.mark.parametrize(
    ("condition", "access"),
    [("id = 1", "by key"), ("name = 'x'", "by index"), ("score > 1", "by scan: the condition fixes")],
)
def test_a_passthrough_shows_its_access(explained, condition, access):  # B20
    assert access in dict(explained(f"SELECT * FROM users WHERE {condition}"))["access"]


def test_sql_is_shown_when_extended(explained):
    text = "CREATE TABLE t AS SELECT o.id, p.price FROM orders o JOIN prices p ON o.sku = p.sku"
    assert not [name for name, _ in explained(text) if name.startswith("sql")]
    assert [name for name, _ in explained(text, extended=True) if name.startswith("sql")] == ["sql", "sql over stage"]


def test_limit_emit_and_a_source_without_columns_are_shown(explained):
    rows = dict(explained("SELECT x FROM waiting LIMIT 3"))
    assert rows["limit"] == "ends after 3 rows"
    assert rows["emit"] == "changes"
    assert "columns not known yet" in rows["input in_0"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CREATE TABLE t AS SELECT id FROM orders", []),
        ("CREATE TABLE t AS SELECT idd,\n skuu FROM orders", [("unknown-column", 1, 26), ("unknown-column", 2, 2)]),
        ("CREATE TABLE t AS SELECT count(*) AS n FROM orders", [("warning-global-aggregate", 1, 26)]),
        ("VALIDATE SELECT nam FROM users", [("unknown-column", 1, 17)]),
        ("SELECT * FROM prices p JOIN stock s ON p.sku = s.sku", []),
        ("CREATE STREAM x AS SELECT o.id, u.id FROM orders o JOIN users u ON o.user_id = u.id", []),
        (
            "CREATE TABLE x AS SELECT o.id, u.id FROM orders o JOIN users u ON o.user_id = u.id",
            [("duplicate-column", 1, 32)],
        ),
        ("INSERT INTO nowhere SELECT id FROM orders", [("unknown-table", 1, 13)]),
        ("INSERT INTO bag (a, c) VALUES (1, 2)", [("unknown-column", 1, 13)]),
        ("UPDATE bag SET c = 1", [("unknown-column", 1, 16)]),
        ("DELETE FROM bog WHERE a = 1", [("unknown-table", 1, 13)]),
        ("CREATE TABLE x (a INT) WITH ('kee' = 'a')", [("unknown-option", 1, 30)]),
        ("SHOW TABLES", []),
    ],
)
def test_validate_gives_all_problems_and_warnings(validated, text, expected):  # B12
    assert validated(text) == expected
