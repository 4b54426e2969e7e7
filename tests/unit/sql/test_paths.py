"""Paths in queries: what they become, what they are called, and what is wrong with those that are refused."""

from __future__ import annotations

import re

import pytest

from velostream.errors import SqlError, ValidationError
from velostream.model.path import parse_path, path_text
from velostream.model.schema import Schema
from velostream.sql.parse import parse_statement
from velostream.sql.plan import RelationKind, Strategy
from velostream.sql.render import render

FUNDS = Schema.of(
    ("id", "INT"),
    ("positions", "MAP<STRING, STRUCT<shares: INT, price: DECIMAL(10,2)>>"),
    ("desk", "STRUCT<a: STRUCT<shares: INT, price: DECIMAL(10,2)>, b: STRUCT<shares: BIGINT>, name: STRING>"),
    ("orders", "ARRAY<STRUCT<id: INT, amount: DECIMAL(10,2), items: ARRAY<STRUCT<sku: STRING, n: INT>>>>"),
    ("doc", "STRING"),
    key=["id"],
)


@pytest.fixture
def funds(shop):
    shop.add("funds", RelationKind.TABLE, FUNDS)
    shop.add("trades", RelationKind.STREAM, FUNDS)
    return shop


@pytest.mark.parametrize(
    ("path", "compiled"),
    [
        ("desk.*.shares", "FILTER(ARRAY(CAST(`f`.`desk`.`a`.`shares` AS BIGINT), `f`.`desk`.`b`.`shares`), "),
        ("orders[*].amount", "TRANSFORM(`f`.`orders`, velostream_1 -> velostream_1.`amount`)"),
        ("positions.*.price", "TRANSFORM(MAP_VALUES(`f`.`positions`), velostream_1 -> velostream_1.`price`)"),
        ('positions."AAPL".*', "TRY_ELEMENT_AT(`f`.`positions`, 'AAPL').`shares`"),
        ("orders[1:-1]", "velostream_2 >= 1 AND velostream_2 < SIZE(`f`.`orders`) - 1"),
        ("orders[amount > 100 AND id <> 3].id", "velostream_1.`amount` > 100 AND velostream_1.`id` <> 3"),
        ("orders[*].items[-1].n", "TRY_ELEMENT_AT(velostream_1.`items`, -1).`n`"),
        ("orders[amount > 'text']", "velostream_1, velostream_2) -> FALSE"),
        ("doc.a.*.b", 'VELOSTREAM_JSON_VALUES(`f`.`doc`, \'"value"."a".*."b"\', \'any\')'),
        ("desk.*.nothing", "CAST(ARRAY() AS ARRAY<STRING>)"),
    ],
)
def test_a_path_is_an_expression_of_spark(funds, plan, path, compiled):  # B24 B26
    assert compiled in plan(f"SELECT {path} FROM funds f").sql


def test_a_map_of_structs_gives_no_structs_among_their_fields(funds, plan):
    without_text = "(SELECT id, positions, desk, orders FROM funds) f"
    assert "AS ARRAY<DECIMAL(10, 2)>" in plan(f"SELECT **.price FROM {without_text}").sql
    assert "AS ARRAY<STRING>" in plan("SELECT desk.** FROM funds").sql


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("**.price", "'\"value\".**.\"price\"', 'any')"),
        ("*.price", "'\"value\".\"price\"', 'any')"),
        ("**.doc.price", '\'"value".**."doc"."price"\', \'any\', \'"value"."price"\')'),
    ],
)
def test_a_path_from_a_star_looks_into_the_documents_of_columns(funds, plan, path, inside):  # B26
    assert f"VELOSTREAM_JSON_VALUES(`funds`.`doc`, {inside}" in plan(f"SELECT {path} FROM funds").sql
    assert "VELOSTREAM_JSON_VALUES" not in plan("SELECT * FROM funds").sql


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ("positions.*.shares", "shares"),
        ("orders[*]", "orders"),
        ("SUM(positions.*.shares)", "sum(positions.*.shares)"),
        ("doc.users[0].email", "email"),
    ],
)
def test_columns_of_paths_have_names(funds, plan, item, name):
    assert f" AS `{name}`" in plan(f"SELECT id, {item} FROM funds").sql


@pytest.mark.parametrize(
    ("select", "of_row"),
    [
        ("SELECT id, SUM(orders[*].amount) FROM funds", True),
        ("SELECT id FROM funds WHERE SUM(orders[*].amount) > 5", True),
        ("SELECT id FROM funds ORDER BY SUM(orders[*].amount)", True),
        ("SELECT MAX(SUM(orders[*].amount)) FROM funds", True),
        ("SELECT SUM(orders[*].amount) FROM funds", False),
        ("SELECT SUM(orders[*].amount) / COUNT(*) AS mean FROM funds", False),
        ("SELECT id % 2 AS k, SUM(orders[*].amount) AS s FROM funds GROUP BY id % 2", False),
        ("SELECT id, SUM(orders[*].amount) OVER (ORDER BY id) AS s FROM funds", False),
    ],
)
def test_an_aggregate_of_a_path_is_of_the_row_where_sql_has_no_place_for_one(funds, plan, select, of_row):  # B27
    assert bool(re.search(r"(?<!_)\bSUM\(", plan(select).sql)) is not of_row


@pytest.mark.parametrize(
    ("item", "compiled"),
    [
        ("orders[1].amount", "GET(`f`.`orders`, 1).`amount`"),
        ("orders[-1]", "TRY_ELEMENT_AT(`f`.`orders`, -1)"),
        ("f.orders[0].items[2].sku", "GET(GET(`f`.`orders`, 0).`items`, 2).`sku`"),
        ("orders[1]", "orders[1]"),
        ("orders.amount", "orders.amount"),
        ("desk.a.shares", "desk.a.shares"),
        ("positions['AAPL'].price", "positions['AAPL'].price"),
    ],
)
def test_a_path_of_names_and_numbers_is_one_value(funds, plan, item, compiled):
    assert f"SELECT {compiled}" in plan(f"SELECT {item} FROM funds f").sql


def test_any_and_all_ask_each_value(funds, plan):
    sql = plan("SELECT id FROM funds WHERE ANY(positions.*.shares) > 100 AND 3 < ALL(orders[*].id)").sql
    assert "EXISTS(" in sql
    assert "velostream_any_1 > 100" in sql or "velostream_any_2 > 100" in sql
    assert re.search(r"FORALL\(.*3 < velostream_any_\d\)", sql)
    assert "'text'" in plan("SELECT id FROM funds WHERE ANY(doc.names[*]) LIKE 'a%'").sql
    assert "'number'" in plan("SELECT id FROM funds WHERE ANY(doc.sizes[*]) > 1").sql


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("ANY(doc.names[*]) = f.desk.name", "text"),
        ("ANY(doc.names[*]) IN ('a', 'b')", "text"),
        ("ALL(doc.names[*]) = CAST(f.id AS STRING)", "text"),
        ("ANY(doc.sizes[*]) > f.id", "number"),
        ("ANY(doc.sizes[*]) BETWEEN -1 AND f.desk.b.shares", "number"),
        ("ANY(CAST(doc.flags[*] AS ARRAY<BOOLEAN>)) = TRUE", "any"),
    ],
)
def test_values_of_documents_are_compared_as_what_they_are_compared_with(funds, plan, condition, kind):
    assert f"'{kind}')" in plan(f"SELECT id FROM funds f WHERE {condition}").sql


@pytest.mark.parametrize("other", ["TRUE", "lower('A')", "(SELECT 'a')"])
def test_values_of_documents_are_never_left_out_unseen(funds, plan, other):
    with pytest.raises(ValidationError, match="is not plain to see") as caught:
        plan(f"SELECT id FROM funds WHERE ALL(doc.names[*]) = {other}")
    assert caught.value.hint == "ALL(CAST(doc.names[*] AS ARRAY<STRING>)) says it"


def test_not_in_and_not_between_are_asked_of_each_value(funds, plan):
    for condition in ("IN (1, 2)", "BETWEEN 1 AND 2"):
        sql = plan(f"SELECT id FROM funds WHERE ANY(orders[*].id) NOT {condition}").sql
        assert "NOT EXISTS" not in sql
        assert f"-> NOT velostream_any_1 {condition}" in sql


def test_paths_on_both_sides_of_a_comparison_are_followed(funds, plan):
    sql = plan("SELECT id FROM funds WHERE SUM(orders[*].amount) < ANY(orders[*].amount)").sql
    assert "WILDCARD_PATH" not in sql
    sql = plan("SELECT id FROM funds WHERE ANY(orders[*].id) = ALL(positions.*.shares)").sql
    assert "WILDCARD_PATH" not in sql


def test_a_path_may_begin_with_the_alias_of_its_column(funds, plan):
    sql = plan("SELECT f.positions.* FROM funds f JOIN trades t ON f.id = t.id WHERE ANY(f.positions.*.shares) > 1").sql
    assert "MAP_VALUES(`f`.`positions`)" in sql
    assert "f.desk.*" in plan("SELECT f.desk.* FROM funds f").sql
    with pytest.raises(SqlError, match='alias "g" does not exist'):
        plan("SELECT g.positions.* FROM funds f")
    with pytest.raises(SqlError, match='column "position" does not exist'):
        plan("SELECT f.position.* FROM funds f")


def test_a_path_over_all_columns_needs_names_that_are_one_columns(funds, plan):
    with pytest.raises(ValidationError, match='two columns are called "id"'):
        plan("SELECT **.amount FROM funds f JOIN trades t ON f.id = t.id")


def test_a_star_behind_a_struct_in_a_select_is_sparks_own(funds, plan):
    assert "desk.*" in plan("SELECT desk.* FROM funds").sql
    assert "MAP_VALUES" in plan("SELECT positions.* FROM funds").sql
    assert "SIZE" in plan("SELECT COUNT(desk.*) FROM funds").sql
    assert "COUNT(f.*)" in plan("SELECT COUNT(f.*) FROM funds f").sql


def test_types_are_followed_through_subqueries(funds, plan):
    sql = plan("WITH q AS (SELECT * FROM funds) SELECT x.o[*].id FROM (SELECT orders AS o FROM q) x").sql
    assert "TRANSFORM(`x`.`o`" in sql
    assert "TO_JSON(`x`.`v`)" in plan("SELECT v.a[*] FROM (SELECT parse_json(doc) AS v FROM funds) x").sql
    nested = "SELECT x.amounts[0:1] FROM (SELECT orders[*].amount AS amounts FROM funds) x"
    assert "ARRAY<DECIMAL(10, 2)>" in plan(nested).sql


def test_paths_keep_rows_apart(funds, view):
    assert view("SELECT id, positions.*.shares AS s, SUM(orders[*].amount) AS o FROM trades").strategy is Strategy.MAP
    assert view("SELECT id, positions.*.shares AS s FROM funds").strategy is Strategy.DELTA
    grouped = view("SELECT id % 2 AS k, SUM(orders[*].amount) AS s, COUNT(orders[*]) AS n FROM funds GROUP BY id % 2")
    assert grouped.strategy is Strategy.DELTA


def test_a_path_waits_for_the_columns_of_its_stream(funds, view):
    planned = view("SELECT id, SUM(orders[*].amount) AS total FROM waiting")
    assert planned.strategy is Strategy.MAP


@pytest.mark.parametrize(
    ("select", "message", "column"),
    [
        ("SELECT nothing.*.x FROM funds", 'column "nothing" does not exist', 8),
        ("SELECT id, orders[amount > other] FROM funds", '"other" is neither a number nor quoted text', 28),
        ("SELECT STDDEV(positions.*.shares) FROM funds", "STDDEV is no aggregate of paths", 15),
        ("SELECT SUM(orders[*].items) FROM funds", "SUM needs numbers", 12),
        ("SELECT ANY(positions.*.shares) FROM funds", "ANY of a path needs a comparison", 12),
        ("SELECT id FROM funds WHERE positions.*.shares > 3", "are compared with one value", 28),
        ("SELECT x.a[*] FROM (SELECT upper(doc) AS a FROM funds) x", "is not known here", 8),
    ],
)
def test_a_path_that_can_not_be_followed_is_refused_with_its_place(funds, plan, select, message, column):  # B25
    with pytest.raises(SqlError, match=re.escape(message)) as caught:
        plan(select)
    assert (caught.value.line, caught.value.column) == (1, column)


def test_unknown_aggregates_are_answered_with_the_known_ones(funds, plan):  # B27
    with pytest.raises(ValidationError) as caught:
        plan("SELECT COUNT(DISTINCT orders[*].id) FROM funds")
    assert "COUNT, SUM, AVG, MIN, MAX" in str(caught.value.hint)


def test_a_path_is_written_again_as_it_was():
    text = "SELECT positions.*.shares FROM t WHERE ANY(a.**.b) > 1"
    assert render(parse_statement(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("a.*.b", "a.**", "**.x", "a[0].b[-1]", "a[*]", "a[1:]", "a[:-2].b", "a[x = TRUE]"),
        """a[b.c > 1.50 AND "d ""e" = 'it''s'].f""",
    ],
)
def test_a_path_as_text_is_read_back(text):
    path = parse_path(text)
    assert parse_path(path_text(path)) == path
