"""UPDATE … FROM, DELETE … USING and UPSERT … ON taken apart: what the source gives, what is looked up, what is left."""

from __future__ import annotations

import pytest

from velostream.errors import NotExecutableError, ResolveError, ValidationError
from velostream.model.schema import Schema
from velostream.sql.pairs import plan_pairs
from velostream.sql.parse import parse_statement
from velostream.sql.scope import Columns

STOCK = Schema.of(("product", "STRING"), ("n", "INT"), ("place", "STRUCT<hall: INT>"), key=["product"])
ORDERS = Columns(("product", "quantity", "price"), complete=True)


def taken_apart(sql, source=ORDERS):
    plan = plan_pairs(parse_statement(sql), target=STOCK, source=source)
    return {
        "query": plan.query.tree.sql(dialect="spark"),
        "looked up": {one.column: one.driving for one in plan.equalities},
        "condition": None if plan.condition is None else plan.condition.sql(dialect="spark"),
        "set": {name: tree.sql(dialect="spark") for name, tree in plan.assignments.items()},
    }


def test_conditions_on_the_source_alone_are_the_querys_own():
    sql = (
        "UPDATE stock SET n = n - o.quantity FROM s o WHERE stock.product = upper(o.product) AND o.price > 1 AND n > 0"
    )
    assert taken_apart(sql) == {
        "query": "SELECT UPPER(o.product) AS _driving_0, o.quantity AS _driving_1 FROM s AS o WHERE o.price > 1",
        "looked up": {"product": "_driving_0"},
        "condition": "`n` > 0",
        "set": {"n": "`n` - `_driving_1`"},
    }


def test_what_may_not_be_evaluated_for_every_row_is_left_where_it_stands():
    sql = "UPDATE stock SET n = CASE WHEN n > 0 THEN 10 / quantity ELSE quantity + 1 END FROM s o"
    apart = taken_apart(sql)
    assert apart["query"] == "SELECT quantity AS _driving_0 FROM s AS o"
    assert apart["set"] == {"n": "CASE WHEN `n` > 0 THEN 10 / `_driving_0` ELSE `_driving_0` + 1 END"}


def test_fields_aliases_and_names_in_any_case():
    apart = taken_apart("UPDATE stock AS t SET N = T.place.hall + o.quantity FROM s o WHERE o.product = t.PRODUCT")
    assert apart["set"] == {"n": "`place`.hall + `_driving_1`"}
    assert apart["looked up"] == {"product": "_driving_0"}


def test_a_subquery_that_reads_other_tables_belongs_to_the_source():
    apart = taken_apart("DELETE FROM stock USING s o WHERE stock.product = o.product AND n < (SELECT max(m) FROM u)")
    assert apart["query"] == "SELECT o.product AS _driving_0, (SELECT MAX(m) FROM u) AS _driving_1 FROM s AS o"
    assert apart["condition"] == "`n` < `_driving_1`"


def test_a_delete_without_a_condition_meets_every_row():
    assert taken_apart("DELETE FROM stock USING s o") == {
        "query": "SELECT 1 AS _driving_0 FROM s AS o",
        "looked up": {},
        "condition": None,
        "set": {},
    }


@pytest.mark.parametrize(
    ("select", "source", "query"),
    [
        ("SELECT o.product, o.quantity FROM s o", ("product", "quantity"), "SELECT o.product, o.quantity FROM s AS o"),
        ("SELECT * FROM s o", ("product", "quantity"), "SELECT * FROM s AS o"),
        (
            "SELECT o.product, max(o.quantity) AS m FROM s o GROUP BY o.product",
            ("product", "m"),
            "SELECT o.product, MAX(o.quantity) AS m FROM s AS o GROUP BY o.product",
        ),
    ],
)
def test_on_finds_the_items_of_the_select(select, source, query):
    apart = taken_apart(f"UPSERT INTO stock (product, n) {select} ON stock.product = o.product", Columns(source, True))
    assert apart["query"] == query
    assert apart["looked up"] == {"product": "_driving_value_0"}


def test_on_may_ask_for_more_than_is_selected():
    source = Columns(("product", "quantity"), complete=True)
    apart = taken_apart("UPSERT INTO stock (product, n) SELECT product, quantity FROM s o ON stock.n = o.price", source)
    assert apart["query"] == "SELECT product, quantity, o.price AS _driving_2 FROM s AS o"
    assert apart["looked up"] == {"n": "_driving_2"}


@pytest.mark.parametrize(
    ("sql", "error", "words"),
    [
        ("UPDATE stock SET n = 1 FROM s o WHERE product = 'a'", ResolveError, 'column "product" is ambiguous'),
        ("UPDATE stock SET m = 1 FROM s o", ResolveError, 'column "m" does not exist'),
        ("UPDATE stock SET n = 1, N = 2 FROM s o", ValidationError, 'column "n" is set twice'),
        ("DELETE FROM stock USING s o WHERE stock.m = o.price", ResolveError, 'column "m" does not exist'),
        (
            "DELETE FROM stock USING s o WHERE EXISTS (SELECT 1 FROM u WHERE u.a = stock.n)",
            NotExecutableError,
            "a subquery can't read columns of the table that is changed",
        ),
        (
            "UPSERT INTO stock (product) SELECT product, quantity, price FROM s o ON stock.product = o.product",
            ValidationError,
            'UPSERT gives 3 columns and table "stock" takes 1',
        ),
    ],
)
def test_what_is_wrong_is_said(sql, error, words):
    with pytest.raises(error) as raised:
        taken_apart(sql)
    assert raised.value.message.startswith(words)
