"""Which strategy a query gets, its key, and what is refused with what to write instead."""

from __future__ import annotations

import pytest

from velostream.errors import NotExecutableError, ResolveError, SqlError, ValidationError
from velostream.sql.parse import parse_statement
from velostream.sql.plan import RelationKind, Strategy
from velostream.sql.planner import plan_query
from velostream.sql.statements import Emit


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("CREATE TABLE t AS SELECT id, amount * 2 AS x FROM orders WHERE amount > 1", Strategy.MAP),
        ("CREATE TABLE t AS SELECT * FROM memory://feed", Strategy.MAP),
        ("CREATE TABLE t AS SELECT id FROM orders UNION ALL SELECT user_id FROM orders", Strategy.MAP),
        ("CREATE TABLE t AS SELECT q.id FROM (SELECT id FROM orders WHERE id > 1) AS q", Strategy.MAP),
        ("CREATE TABLE t AS WITH q AS (SELECT id FROM orders) SELECT id FROM q", Strategy.MAP),
        ("CREATE TABLE t AS SELECT user_id, count(*) AS n FROM orders GROUP BY user_id", Strategy.AGGREGATE),
        ("CREATE TABLE t AS SELECT count(*) AS n FROM orders", Strategy.AGGREGATE),
        ("CREATE TABLE t AS SELECT max_by(sku, ts) AS last FROM orders", Strategy.AGGREGATE),
        ("CREATE TABLE t AS SELECT sku, max(price) AS m FROM prices GROUP BY sku", Strategy.DELTA),
        ("CREATE TABLE t AS SELECT * FROM prices WHERE price > 1", Strategy.DELTA),
        ("CREATE TABLE t AS SELECT id FROM file:///d/o.csv", Strategy.REFRESH),
        ("CREATE TABLE t AS SELECT DISTINCT b FROM bag ORDER BY b LIMIT 3", Strategy.DELTA),
        ("CREATE TABLE t AS SELECT b FROM bag ORDER BY a LIMIT 3", Strategy.REFRESH),
        ("INSERT INTO bag SELECT user_id, sku FROM orders", Strategy.MAP),
        ("SELECT * FROM users WHERE id = 1", Strategy.PASSTHROUGH),
        ("SELECT id FROM file:///d/o.csv", Strategy.REFRESH),
        ("SELECT 1 AS one", Strategy.REFRESH),
    ],
)
def test_the_shape_decides_the_strategy(plan, text, strategy):
    planned = plan(text)
    assert planned.strategy is strategy
    assert planned.reason


def test_refresh_says_which_inputs_are_tables(view):
    planned = view("SELECT o.id, row_number() OVER (ORDER BY u.name) AS n FROM file:///d/o.csv o CROSS JOIN users u")
    assert planned.strategy is Strategy.REFRESH
    assert planned.reason.startswith('no stream is read: "file:///d/o.csv" is a bounded source, "users" is a table; ')


@pytest.mark.parametrize(
    ("text", "construct"),
    [
        ("SELECT DISTINCT sku FROM orders", "DISTINCT"),
        ("SELECT sku FROM orders ORDER BY sku", "ORDER BY"),
        ("SELECT sku FROM orders LIMIT 3", "LIMIT"),
        ("SELECT sku, row_number() OVER (PARTITION BY sku ORDER BY ts) AS n FROM orders", "a window function"),
        ("SELECT name FROM users WHERE id IN (SELECT user_id FROM orders)", "a subquery"),
        ("SELECT max(n) AS m FROM (SELECT sku, count(*) AS n FROM orders GROUP BY sku) AS q", "an aggregate inside"),
        ("SELECT sku FROM orders UNION SELECT sku FROM orders", "UNION"),
        ("SELECT sku FROM orders EXCEPT SELECT sku FROM prices", "EXCEPT"),
        ("SELECT sku FROM orders UNION ALL SELECT sku FROM prices", "UNION ALL with a table"),
        ("SELECT id FROM orders UNION ALL SELECT id FROM payments", "UNION ALL of two streams"),
        ("SELECT count(DISTINCT sku) AS n FROM orders", "COUNT(DISTINCT sku)"),
        ("SELECT count_distinct(sku) AS n FROM orders", "COUNT(DISTINCT sku)"),
        ("SELECT sku, sum(DISTINCT amount) AS n FROM orders GROUP BY sku", "SUM(DISTINCT amount)"),
        ("SELECT sku, count(*) AS n FROM orders GROUP BY ROLLUP (sku)", "GROUP BY ROLLUP"),
        ("SELECT user_id, explode(array(1)) AS x, count(*) AS n FROM orders GROUP BY user_id", "a generator"),
        ("WITH groups AS (SELECT 1 AS x) SELECT count(*) AS n FROM orders", "a WITH item"),
        ("SELECT p.price FROM prices p LEFT SEMI JOIN orders o ON p.sku = o.sku", "a SEMI or ANTI JOIN"),
        ("SELECT id FROM orders PIVOT (count(*) FOR sku IN ('a', 'b'))", "PIVOT"),
        ("SELECT o.id FROM (orders o JOIN prices p ON o.sku = p.sku)", "a join in parentheses"),
    ],
)
def test_what_a_stream_cant_do_is_a_view_over_its_rows_and_refused_elsewhere(view, plan, text, construct):
    kept = view(text)
    assert kept.strategy in (Strategy.DELTA, Strategy.REFRESH)
    streams = [entry.target for entry in (kept.whole or kept).inputs if entry.target.kept]
    assert streams
    assert construct in streams[0].reason
    with pytest.raises(SqlError) as caught:
        plan(f"INSERT INTO bag {text}", distinct_names=False)
    problem = caught.value.problems[0]
    assert isinstance(problem, NotExecutableError)
    assert construct in problem.message
    assert problem.hint
    assert problem.column > 1


def test_a_stream_that_only_a_subquery_reads_is_kept_and_the_other_one_drives(view):
    planned = view("SELECT o.id FROM orders o WHERE EXISTS (SELECT 1 FROM payments p WHERE p.order_id = o.id)")
    assert planned.strategy is Strategy.MAP
    assert {entry.target.name: entry.target.kept for entry in planned.inputs} == {"orders": False, "payments": True}


@pytest.mark.parametrize(
    "text",
    [
        "SELECT o.id FROM orders o JOIN payments p ON o.id = p.order_id",
        "SELECT a.id FROM orders a JOIN orders b ON a.id = b.id",
    ],
)
def test_two_streams_without_a_time_bound_are_refused(view, text):  # B12
    with pytest.raises(SqlError) as caught:
        view(text)
    assert caught.value.code == "unbounded-join"
    assert "WITHIN" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "call", ["java_method('java.lang.System', 'exit', 1)", "REFLECT('a', 'b')", "try_reflect('a', 'b')"]
)
def test_java_can_not_be_called(plan, call):
    for text in (f"SELECT {call}", f"SELECT 1 WHERE EXISTS (SELECT 1 WHERE {call} = '1')"):
        with pytest.raises(ValidationError, match="not allowed"):
            plan(text)


def test_a_stream_that_nothing_reads_is_an_error(view):
    with pytest.raises(ValidationError, match="nothing reads") as caught:
        view("WITH q AS (SELECT id FROM orders) SELECT a FROM bag")
    assert caught.value.code == "unused-stream"


def test_a_pull_over_a_stream_ends_at_its_limit(plan):
    planned = plan("SELECT id FROM orders LIMIT 3")
    assert (planned.strategy, planned.limit) == (Strategy.MAP, 3)
    assert "LIMIT" not in planned.sql
    with pytest.raises(NotExecutableError):
        plan("SELECT id FROM orders ORDER BY id LIMIT 3")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("CREATE TABLE t AS SELECT id PRIMARY KEY, amount FROM orders", ("id",)),
        ("CREATE TABLE t AS SELECT id, sku, amount FROM orders WITH ('key' = 'sku, id')", ("sku", "id")),
        ("CREATE TABLE t AS SELECT user_id, count(*) AS n FROM orders GROUP BY user_id", ("user_id",)),  # B43
        ("CREATE TABLE t AS SELECT lower(sku) AS s, user_id u, sum(amount) a FROM orders GROUP BY s, 2", ("s", "u")),
        ("CREATE TABLE t AS SELECT count(*) AS n FROM orders GROUP BY user_id", ()),
        ("CREATE TABLE t AS SELECT b, max(a) AS m FROM bag GROUP BY b", ("b",)),
        ("CREATE TABLE t AS SELECT b, max(a) AS m FROM bag GROUP BY ALL", ("b",)),
        ("CREATE TABLE t AS SELECT b, max(a) AS m FROM bag GROUP BY ROLLUP (b)", ()),
        ("CREATE TABLE t AS SELECT shop AS s, sku, n FROM stock WHERE n > 1", ("sku", "s")),
        ("CREATE TABLE t AS SELECT * FROM stock", ("sku", "shop")),
        ("CREATE TABLE t AS SELECT sku, n FROM stock", ()),
        ("CREATE TABLE t AS SELECT upper(sku) AS sku, price FROM prices", ()),
        ("CREATE TABLE t AS SELECT id, explode(tags) AS tag FROM users", ()),
        ("CREATE TABLE t AS SELECT * FROM orders", ()),
        ("CREATE TABLE t AS SELECT p.sku, s.n FROM prices p JOIN stock s ON p.sku = s.sku", ()),
    ],
)
def test_the_key_of_the_result(plan, text, key):
    assert plan(text).key == key


def test_a_key_column_must_be_in_the_result(plan):
    with pytest.raises(ResolveError) as caught:
        plan("CREATE TABLE t AS SELECT id, sku FROM orders WITH ('key' = 'skuu')")
    assert caught.value.hint == 'did you mean "sku"?'
    assert caught.value.column > 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("CREATE TABLE t AS SELECT a, rand() AS r FROM bag", "not-repeatable"),
        ("CREATE TABLE t AS SELECT uuid() AS u, a FROM bag", "not-repeatable"),
        ("CREATE TABLE t AS SELECT a FROM bag WHERE rand() > 0.5", "not-repeatable"),
        ("CREATE TABLE t AS SELECT user_id, sum(rand()) AS s FROM orders GROUP BY user_id", "not-repeatable"),
        ("CREATE TABLE t AS SELECT a, now() AS at FROM bag", "clock-in-view"),
        ("CREATE TABLE t AS SELECT a FROM bag WHERE current_date() > '2020-01-01'", "clock-in-view"),
        ("CREATE TABLE t AS SELECT a, localtimestamp AS at FROM bag", "clock-in-view"),
    ],
)
def test_what_cant_be_computed_again_is_refused(plan, text, code):
    with pytest.raises(ValidationError) as caught:
        plan(text)
    assert caught.value.code == code
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t AS SELECT a, now() AS at FROM bag WITH ('refresh.interval' = '1m')",
        "CREATE STREAM s AS SELECT id, uuid() AS u, now() AS at FROM orders",
        "SELECT a, rand() AS r, now() AS at FROM bag",
    ],
)
def test_they_may_stand_where_nothing_is_computed_again(plan, text):
    plan(text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("SELECT count(*) AS n FROM orders", "warning-global-aggregate"),
        ("SELECT o.id FROM orders o RIGHT JOIN prices p ON o.sku = p.sku", "warning-one-sided-join"),
        ("SELECT o.id FROM prices p FULL JOIN orders o ON o.sku = p.sku", "warning-one-sided-join"),
        ("SELECT o.id FROM orders o JOIN prices p ON o.amount > p.price", "warning-scan-join"),
        ("SELECT id FROM orders EMIT FINAL", "warning-emit-final"),
    ],
)
def test_doubtful_queries_are_planned_with_a_warning(view, text, code):  # B12
    (warning,) = view(text).warnings
    assert warning.code == code
    assert warning.hint


@pytest.mark.parametrize(
    "text",
    [
        "SELECT o.id, p.price FROM orders o LEFT JOIN prices p ON o.sku = p.sku",
        "SELECT sku, count(*) AS n FROM orders GROUP BY sku",
        "SELECT id FROM file:///d/o.csv EMIT FINAL",
        "SELECT count(*) AS n FROM bag",
        "SELECT w.x FROM waiting w JOIN users u ON w.x = u.id",
    ],
)
def test_sound_queries_have_no_warning(view, text):  # B12
    assert view(text).warnings == ()


def test_a_plan_without_columns_yet_is_provisional(view):
    planned = view("SELECT w.*, u.name FROM waiting w JOIN users u ON w.user_id = u.id")
    assert planned.strategy is Strategy.MAP
    assert planned.map is not None
    assert planned.map.stages is None
    assert '"waiting"' in planned.map.why_not
    assert [entry.target.kind for entry in planned.inputs] == [RelationKind.STREAM, RelationKind.TABLE]


def test_emit_and_order_are_noted(plan):
    assert plan("CREATE TABLE t AS SELECT id FROM orders").emit is Emit.CHANGES
    assert plan("SELECT id FROM file:///d/o.csv EMIT FINAL").emit is Emit.FINAL
    assert plan("SELECT a FROM bag ORDER BY a").ordered
    assert plan("SELECT a FROM bag UNION ALL SELECT a FROM bag ORDER BY a").ordered
    assert plan("(SELECT a FROM bag) ORDER BY a").ordered
    assert plan("(SELECT a FROM bag ORDER BY a)").ordered
    assert not plan("SELECT a FROM (SELECT a FROM bag ORDER BY a) AS q").ordered


def test_planning_does_not_change_the_query(shop):
    text = "SELECT o.id, o.sku IN (SELECT sku FROM prices) AS known FROM orders o FULL JOIN users u ON o.user_id = u.id"
    query = parse_statement(text).query
    before = query.tree.sql(dialect="spark")
    first = plan_query(query, options=(), catalog=shop, text=text, continuous=True)
    assert query.tree.sql(dialect="spark") == before
    assert plan_query(query, options=(), catalog=shop, text=text, continuous=True).sql == first.sql


@pytest.mark.parametrize(
    ("condition", "bounded"),
    [
        ("a.ts BETWEEN b.ts AND b.ts + INTERVAL '5' MINUTE", True),
        ("b.ts >= a.ts - INTERVAL '1' HOUR AND a.ts + INTERVAL '1' HOUR > b.ts", True),
        ("a.ts = b.ts", True),
        ("a.ts >= b.ts", False),
        ("a.ts >= b.ts AND b.ts < a.ts", False),
        ("a.ts BETWEEN TIMESTAMP '2024-01-01' AND now()", False),
        ("a.id >= b.id AND a.id < b.id + 10", False),
        ("CAST(a.sku AS TIMESTAMP) BETWEEN b.ts AND b.ts + INTERVAL '5' MINUTE", True),
        ("to_timestamp(a.sku, 'yyyy') BETWEEN timestamp_seconds(b.id) AND b.ts", True),
        ("a.ts >= b.ts AND a.user_id <= b.user_id", False),
    ],
)
def test_two_streams_are_joined_where_event_times_bound_them(view, condition, bounded):
    text = f"SELECT a.id FROM orders a JOIN orders b ON a.id = b.id AND {condition}"
    if bounded:
        assert all(entry.target.kept for entry in (view(text).whole or view(text)).inputs)
        return
    with pytest.raises(SqlError) as caught:
        view(text)
    assert caught.value.code == "unbounded-join"


_HOURS = "SELECT id, window(ts, '1 hour').start AS begins FROM orders GROUP BY id, window(ts, '1 hour')"


@pytest.mark.parametrize(
    ("text", "bounded"),
    [
        (
            "SELECT a.id FROM orders a, orders b WHERE a.id = b.id AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' DAY",
            True,
        ),
        ("SELECT a.id FROM orders a JOIN orders b ON a.id = b.id AND a.ts <= b.ts WHERE a.ts >= b.ts", True),
        ("SELECT a.id FROM orders a LEFT JOIN orders b ON a.id = b.id WHERE a.ts BETWEEN b.ts AND b.ts", False),
        (f"SELECT a.id FROM ({_HOURS}) a JOIN ({_HOURS}) b ON a.begins = b.begins", True),
        (f"WITH h AS ({_HOURS}) SELECT a.id FROM h a JOIN (SELECT begins AS s FROM h) b ON a.begins = b.s", True),
        (f"SELECT a.id FROM ({_HOURS}) a JOIN ({_HOURS}) b ON a.id = b.id", False),
        (f"SELECT a.id FROM ({_HOURS}) a JOIN orders b ON a.begins = b.ts", False),
        ("SELECT a.id FROM (SELECT id FROM orders) a JOIN orders b ON a.id >= b.id AND a.id <= b.id", False),
        ("SELECT a.id FROM orders a, waiting b WHERE a.id = b.id AND happened_at BETWEEN ts AND ts", True),
    ],
)
def test_where_bounds_inner_joins_and_windows_bound_by_being_the_same(view, text, bounded):
    if bounded:
        planned = view(text)
        assert all(entry.target.kept for entry in (planned.whole or planned).inputs)
        return
    with pytest.raises(SqlError) as caught:
        view(text)
    assert caught.value.code == "unbounded-join"


def test_within_is_a_condition_on_event_times(view, shop):
    shop.query_options += ["event.time.field"]
    text = "SELECT a.id FROM orders a LEFT JOIN orders b WITHIN 90s ON a.id = b.id"
    plan = view(f"{text} WITH ('event.time.field' = 'ts')")
    assert "CAST(`a`.`ts` AS TIMESTAMP) BETWEEN CAST(`b`.`ts` AS TIMESTAMP) - INTERVAL '90' SECOND AND " in plan.sql
    with pytest.raises(SqlError, match='the event time of "a"'):
        view(text)


@pytest.mark.parametrize("call", ["negative()", "negate()", "negative(1, 2)"])
def test_a_sign_of_nothing_is_left_for_spark_to_refuse(view, call):
    assert call.upper() in view(f"SELECT {call} AS n FROM orders").sql.upper()
