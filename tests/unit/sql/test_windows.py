"""Time windows: every spelling means the same groups, and a stream's say what has to be kept of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from velostream.errors import SqlError
from velostream.sql.explain import explain_rows
from velostream.sql.plan import LateData, QueryPlan, Strategy, WindowState
from velostream.sql.statements import Emit


def state(plan: QueryPlan) -> WindowState:
    assert plan.aggregate is not None
    assert plan.aggregate.window is not None
    return plan.aggregate.window


@pytest.mark.parametrize(
    "window",
    [
        "sku WINDOW TUMBLING(ts, 5m)",
        "sku WINDOW TUMBLING(orders.ts, 5 minutes)",
        "sku WINDOW TUMBLING (ts, SIZE 5 MINUTES)",
        "sku, window(ts, '300 seconds')",
        "window(ts, '300 seconds'), sku",
        "ALL WINDOW TUMBLING(ts, 300)",
    ],
)
def test_every_spelling_of_a_tumbling_window_is_one_plan(view, window):
    named = "_window_start" if "WINDOW" in window else "window.start AS _window_start"
    plan = view(f"SELECT sku, {named}, count(*) AS n FROM orders GROUP BY {window}")
    assert plan.strategy is Strategy.AGGREGATE
    assert plan.aggregate is not None
    assert plan.aggregate.final is None
    assert set(plan.key) == {"sku", "_window_start"}
    assert set(plan.aggregate.key) == {"sku", "_window_start"}
    assert "WINDOW(" in plan.aggregate.feed.sql
    assert ".start" in plan.aggregate.feed.sql
    assert "WINDOW(" not in plan.aggregate.sql
    assert plan.emit is Emit.FINAL
    assert state(plan).gap is None


def test_the_end_of_a_window_is_its_start_and_its_length(view):
    plan = view(
        "SELECT _window_start AS s, _window_end AS e, max(amount) AS m FROM orders WINDOW SLIDING(ts, 10m, 1.5s)"
    )
    assert plan.aggregate is not None
    assert plan.aggregate.sql == (
        "SELECT c0 AS `s`, c0 + INTERVAL '600' SECOND AS `e`, MAX(c1) AS `m` FROM feed GROUP BY c0"
    )
    assert "'1.5 seconds'" in plan.aggregate.feed.sql


def test_sessions_are_grouped_by_spark_and_carry_their_rows(view):
    plan = view(
        "SELECT sku, _window_start, _window_end, count(*) AS n FROM orders GROUP BY sku WINDOW SESSION(ts, 30s)"
    )
    assert plan.key == ("sku", "_window_start")
    assert plan.aggregate is not None
    assert plan.aggregate.sql.endswith("GROUP BY c0, SESSION_WINDOW(c1, '30 seconds')")
    assert "COLLECT_LIST(_row) AS _rows" in state(plan).tracked
    assert state(plan).gap == timedelta(seconds=30)


def test_having_and_order_see_the_window(view):
    plan = view(
        "SELECT count(DISTINCT sku) AS n FROM orders WINDOW TUMBLING(ts, 1h) "
        "HAVING _window_start > '2024-01-01' ORDER BY _window_end LIMIT 3"
    )
    assert plan.aggregate is not None
    assert plan.aggregate.final == (
        "SELECT groups.a0 AS `n` FROM groups WHERE groups.g0 > '2024-01-01' "
        "ORDER BY (groups.g0 + INTERVAL '3600' SECOND) LIMIT 3"
    )


def test_over_tables_spark_runs_the_window_itself(view):
    plan = view("SELECT _window_start, count(*) AS n FROM file:///d/o.csv WINDOW TUMBLING(ts, 5m)")
    assert plan.strategy is Strategy.REFRESH
    assert plan.sql == (
        "SELECT WINDOW(ts, '300 seconds').start AS `_window_start`, COUNT(*) AS n FROM in_0 AS o "
        "GROUP BY WINDOW(ts, '300 seconds')"
    )


def test_options_say_how_late_a_row_may_be(view, shop):
    shop.query_options += ["event.time.field", "watermark", "late.data"]
    plan = view(
        "SELECT _window_start, count(*) AS n FROM orders WINDOW TUMBLING(5m) EMIT CHANGES "
        "WITH ('event.time.field' = 'ts', 'watermark' = '10s', 'late.data' = 'dead_letter')"
    )
    assert state(plan).watermark == timedelta(seconds=10)
    assert state(plan).late is LateData.DEAD_LETTER
    assert state(plan).emit is Emit.CHANGES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT count(*) AS n FROM orders WINDOW TUMBLING(5m)", "has no event time"),
        ("SELECT count(*) AS n FROM orders WINDOW TUMBLING(tss, 5m)", '"tss"'),
        ("SELECT count(*) AS n FROM orders WINDOW TUMBLING(ts, 0s)", "needs a length"),
        ("SELECT count(*) AS n FROM orders WINDOW HOPPING(ts, 1m, 2m)", "would leave rows out"),
        ("SELECT _window_start FROM orders", '"_window_start"'),
        ("SELECT count(*) AS n FROM orders WINDOW TUMBLING(ts, 5m) WITH ('late.data' = 'no')", "no"),
    ],
)
def test_what_is_wrong_with_a_window_is_said_where_it_is(view, shop, text, message):
    shop.query_options += ["event.time.field", "watermark", "late.data"]
    with pytest.raises(SqlError, match=message) as caught:
        view(text)
    assert caught.value.line == 1


def test_explain_says_when_a_window_is_over_and_what_is_kept(view, shop):
    shop.query_options += ["watermark", "late.data"]
    plan = view(
        "SELECT sku, _window_start, count(*) AS n FROM orders GROUP BY sku WINDOW SESSION(ts, 30s) "
        "WITH ('watermark' = '10s', 'late.data' = 'dead_letter')"
    )
    rows = dict(explain_rows(plan, extended=True))
    assert rows["window"] == (
        "sessions, ended by 30s without a row; over when the newest event time is 10s past the end; "
        "rows after that are dead letters"
    )
    assert rows["state"] == "the rows of windows that are not over"
    assert rows["emit"] == "final"


@pytest.mark.parametrize(
    ("rest", "appends"),
    [
        ("", True),
        (" HAVING count(*) > 1", True),
        (" EMIT CHANGES", False),
        (" ORDER BY n LIMIT 3", False),
        (" WITH ('late.data' = 'update')", False),
    ],
)
def test_windows_that_are_over_can_be_written_on(view, shop, rest, appends):
    shop.query_options += ["late.data"]
    plan = view(f"SELECT _window_start, count(*) AS n FROM orders WINDOW TUMBLING(ts, 5m){rest}")
    assert plan.only_appends is appends
