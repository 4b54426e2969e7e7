"""Names to what they mean, and errors that help where they mean nothing."""

from __future__ import annotations

import pytest

from velostream.errors import OptionError, ResolveError, SourceError, SqlError


def problems_of(call, text: str, **rest) -> list[SqlError]:
    with pytest.raises(SqlError) as caught:
        call(text, **rest)
    return list(caught.value.problems)


def only_problem_of(call, text: str, **rest) -> SqlError:
    (problem,) = problems_of(call, text, **rest)
    return problem


def test_relations_are_renamed_and_keep_the_name_they_are_used_by(view):
    plan = view("SELECT prices.sku, c.title FROM prices JOIN categories c ON prices.category_id = c.category_id")
    assert plan.sql == (
        "SELECT prices.sku, c.title FROM in_0 AS prices JOIN in_1 AS c ON prices.category_id = c.category_id"
    )
    assert [(entry.relation, entry.target.name) for entry in plan.inputs] == [
        ("in_0", "prices"),
        ("in_1", "categories"),
    ]


def test_a_table_under_two_aliases_is_one_input(view):  # B29
    plan = view("SELECT a.id, b.name FROM users a JOIN users b ON a.id = b.id")
    assert len(plan.inputs) == 1
    assert plan.sql == "SELECT a.id, b.name FROM in_0 AS a JOIN in_0 AS b ON a.id = b.id"


def test_tables_are_found_everywhere(view):
    plan = view(
        "WITH q AS (SELECT sku FROM prices) SELECT sku FROM q WHERE sku IN (SELECT sku FROM stock) "
        "UNION ALL SELECT b FROM (SELECT b FROM bag) AS inner_bag"
    )
    assert [entry.target.name for entry in plan.inputs] == ["prices", "stock", "bag"]


def test_an_inputs_name_is_never_a_ctes(view):
    plan = view("WITH in_0 AS (SELECT 1 AS a) SELECT in_0.a, x.b FROM in_0 JOIN bag x ON in_0.a = x.a")
    assert plan.sql.endswith("FROM in_0 JOIN in_0_ AS x ON in_0.a = x.a")


@pytest.mark.parametrize(
    ("text", "message", "column", "near"),
    [
        ("SELECT pric FROM prices", 'column "pric" does not exist', 8, '"price"'),  # B16
        ("SELECT p.pric FROM prices p", 'column "pric" does not exist', 10, '"price"'),
        ("SELECT pp.price FROM prices p", 'alias "pp" does not exist', 8, '"p"'),
        ("SELECT sku FROM price", 'table "price" does not exist', 17, '"prices"'),  # B31
        ("SELECT sku FROM prices WHERE EXISTS (SELECT 1 FROM stock WHERE shp = 1)", 'column "shp"', 64, '"shop"'),
        ("SELECT x.a FROM (SELECT a FROM bag) x WHERE x.b = 'q'", 'column "b" does not exist', 47, None),
        ("WITH q AS (SELECT a AS total FROM bag) SELECT totl FROM q", 'column "totl"', 47, '"total"'),
        ("SELECT a FROM bag ORDER BY c", 'column "c" does not exist', 28, None),
        ("SELECT a AS x FROM bag WHERE x = 1", 'column "x" does not exist', 30, None),
        ("SELECT price FROM prices JOIN stock USING (shop)", 'column "shop" does not exist', 44, None),
        ("SELECT a FROM bag LEFT SEMI JOIN stock USING (a)", 'column "a" does not exist', 47, None),
    ],
)
def test_an_unknown_name_is_an_error_with_place_and_near_names(view, text, message, column, near):
    problem = only_problem_of(view, text)
    assert isinstance(problem, ResolveError)
    assert problem.message.startswith(message)
    assert (problem.line, problem.column) == (1, column)
    assert "^" in str(problem)
    if near is not None:
        assert near in (problem.hint or "")


def test_an_ambiguous_column_names_both_aliases(view):  # B30
    problem = only_problem_of(view, "SELECT sku FROM prices p JOIN stock s ON p.sku = s.sku")
    assert problem.message == 'column "sku" is ambiguous'
    assert problem.hint == "write p.sku or s.sku"


def test_all_problems_are_found_at_once(view):  # B12
    problems = problems_of(view, "SELECT pric,\n  p.skuu\nFROM prices p JOIN nowhere n ON n.x = p.sku")
    assert [(p.message, p.line) for p in problems] == [
        ('column "skuu" does not exist', 2),
        ('table "nowhere" does not exist', 3),
    ]
    problems = problems_of(view, "SELECT pric,\n  p.skuu\nFROM prices p")
    assert [p.line for p in problems] == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT SKU, PRICES.Price FROM Prices",
        "SELECT sku FROM prices JOIN stock USING (sku)",
        "SELECT sku FROM (prices JOIN stock USING (sku)) JOIN bag ON b = sku",
        "SELECT o.addr.city, addr.zip FROM orders o",
        "SELECT a AS x, x + 1 AS y FROM bag",
        "SELECT a AS x, count(*) AS n FROM bag GROUP BY x HAVING n > 1 ORDER BY n, x",
        "SELECT p.sku FROM prices p JOIN stock s ON p.sku = s.sku ORDER BY sku",
        "SELECT transform(tags, t -> concat(t, name)) AS x FROM users",
        "SELECT aggregate(tags, 0, (total, t) -> total + length(t)) AS x FROM users",
        "SELECT t FROM users LATERAL VIEW explode(tags) e AS t",
        "SELECT col FROM users LATERAL VIEW explode(tags) e",
        "SELECT u.id, x.y FROM users u, LATERAL (SELECT u.score AS y) x",
        "SELECT a, `1`, `2` FROM bag PIVOT (count(a) FOR b IN (1, 2))",
        "SELECT id FROM range(10)",
        "SELECT v.k FROM VALUES (1, 2) AS v(k, l)",
        "SELECT q.anything FROM waiting q",
        "SELECT w.x FROM waiting w JOIN users u ON w.x = u.id",
        "SELECT a FROM bag UNION ALL SELECT id FROM users ORDER BY a",
        "SELECT id FROM users u WHERE EXISTS (SELECT 1 FROM bag WHERE a = u.id AND b = name)",
        "SELECT `count(1)` FROM (SELECT count(*) FROM bag) AS q",
        "SELECT current_user, current_date FROM bag",
        "SELECT u.* FROM users u LEFT SEMI JOIN bag ON u.id = bag.a",
        "SELECT id FROM users u LEFT ANTI JOIN stock id ON u.id = id.n",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r",
        "SELECT x.n FROM (SELECT 1 AS n) x",
        "SELECT id, named_struct('a', id).a AS s FROM users",
        "SELECT date_add(DAY, 1, ts) AS t, extract(YEAR FROM ts) AS y, timestampdiff(MONTH, ts, ts) AS m FROM orders",
        "SELECT sum(n) OVER w AS s FROM stock WINDOW w AS (PARTITION BY sku)",
        "SELECT q.sku FROM (SELECT * FROM prices NATURAL JOIN stock) q",
        "SELECT * EXCEPT (score) FROM users",
        "SELECT sku, shop FROM stock GROUP BY GROUPING SETS ((sku), (shop))",
    ],
)
def test_what_spark_understands_is_no_error(plan, text):
    plan(text, continuous=False)


def test_an_older_version_of_a_table_is_refused_with_a_hint(view):
    for odd in ("TIMESTAMP AS OF 'yesterday'", "TIMESTAMP AS OF 20", "TIMESTAMP AS OF now()", "VERSION AS OF '3'"):
        assert "by its number or by a time" in only_problem_of(view, f"SELECT a FROM bag {odd}").message


def test_a_source_gets_its_own_options_over_the_statements(plan, shop):
    plan(
        "CREATE TABLE t AS SELECT id FROM file:///d/o.csv WITH ('format' = 'csv') "
        "WITH ('format' = 'json', 'watch' = 'true', 'key' = 'id')"
    )
    ((_, options),) = shop.asked
    given = [("copied", "id"), ("format", "csv"), ("watch", "true")]
    assert [(option.name, option.value) for option in options] == given


def test_one_source_under_two_aliases_is_one_input(view):
    plan = view("SELECT a.id, b.sku FROM file:///d/o.csv a JOIN file:///d/o.csv b ON a.id = b.id")
    assert len(plan.inputs) == 1


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("CREATE TABLE t AS SELECT id FROM users WITH ('kee' = 'id')", '"key"'),
        ("CREATE TABLE t AS SELECT id FROM file:///d/o.csv o WITH ('formt' = 'csv') WHERE id > 1", '"format"'),
        ("CREATE TABLE t AS SELECT o.id FROM orders o WITH ('u.join.missing' = 'skip')", None),
    ],
)
def test_an_unknown_option_is_an_error_with_the_nearest_name(plan, text, near):
    problem = only_problem_of(plan, text)
    assert isinstance(problem, OptionError)
    assert problem.code == "unknown-option"
    assert problem.line == 1
    assert problem.column > 1
    assert near is None or near in (problem.hint or "")


def test_options_may_have_a_free_part(plan):
    plan(
        "CREATE TABLE t AS SELECT o.id, p.price FROM orders o LEFT JOIN prices p ON o.sku = p.sku "
        "WITH ('p.join.missing' = 'defaults', 'join.missing.default.price' = '0')"
    )
    plan("CREATE TABLE t AS SELECT id FROM kafka://orders WITH ('kafka.group.id' = 'g')")


def test_trouble_with_a_source_passes_through(view, shop, monkeypatch):
    def missing(*_):
        raise SourceError.missing_file("/d/o.csv", pattern=False)

    monkeypatch.setattr(shop, "source", missing)
    with pytest.raises(SourceError):
        view("SELECT id FROM file:///d/o.csv")


def test_a_views_names_are_distinct(view, plan):  # B30
    problem = only_problem_of(view, "SELECT * FROM prices p JOIN stock s ON p.sku = s.sku")
    assert problem.message == 'two columns of the result have the name "sku"'
    assert problem.hint == "write s.sku AS s_sku"
    plan("SELECT * FROM prices p JOIN stock s ON p.sku = s.sku")
    view("SELECT * FROM orders o JOIN prices p ON o.sku = p.sku", distinct_names=False)
