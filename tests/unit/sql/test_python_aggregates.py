"""Aggregates in Python as functions of the list that is collected of each group."""

from __future__ import annotations

import pytest

from velostream.errors import NotExecutableError, ValidationError
from velostream.sql.plan import Strategy


def collected(*columns: str) -> str:
    fields = ", ".join(f"'a{number}', {column}" for number, column in enumerate(columns))
    return f"COLLECT_LIST(NAMED_STRUCT({fields}))"


@pytest.mark.parametrize(
    ("item", "spelt"),
    [
        ("spread(n)", f"SPREAD(SORT_ARRAY({collected('n')})) AS `spread(n)`"),
        ("Spread(n, sku) AS s", f"SPREAD(SORT_ARRAY({collected('n', 'sku')})) AS s"),
        ("`spread`(n) + 1 AS s", f"`SPREAD`(SORT_ARRAY({collected('n')})) + 1 AS s"),
        ("spread(DISTINCT n) AS s", "SPREAD(SORT_ARRAY(COLLECT_SET(NAMED_STRUCT('a0', n)))) AS s"),
        ("spread(n) FILTER (WHERE n > 1) AS s", f"SPREAD(SORT_ARRAY({collected('n')} FILTER(WHERE n > 1))) AS s"),
        (
            "spread(n) OVER (PARTITION BY sku) AS s",
            f"SPREAD(SORT_ARRAY({collected('n')} OVER (PARTITION BY sku))) AS s",
        ),
        ("SUM(spread(n)) OVER () AS s", f"SUM(SPREAD(SORT_ARRAY({collected('n')}))) OVER () AS s"),
        (
            "spread((SELECT middle(a) AS m FROM bag)) AS s",
            f"NAMED_STRUCT('a0', (SELECT MIDDLE(SORT_ARRAY({collected('a')})) AS m FROM in_1 AS bag))))) AS s",
        ),
    ],
)
def test_a_call_becomes_one_over_a_sorted_list_of_structs(plan, item, spelt):
    assert spelt in plan(f"SELECT {item} FROM stock").sql


def test_an_order_by_what_is_selected_is_one_by_its_name(plan):
    found = plan(
        "SELECT sku, spread(n) FROM stock GROUP BY sku HAVING middle(n) > 1 ORDER BY spread(n) DESC, middle(n)"
    )
    assert "ORDER BY `spread(n)` DESC, MIDDLE(" in found.sql


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT spread() FROM stock", 'aggregate "spread" needs the columns it is of'),
        ("SELECT spread(*) FROM stock", 'aggregate "spread" needs the columns it is of'),
        ("SELECT spread(n ORDER BY sku) FROM stock", "takes no ORDER BY"),
        ("SELECT spread(n) WITHIN GROUP (ORDER BY sku) FROM stock", "takes no ORDER BY"),
        ("SELECT spread(n) IGNORE NULLS FROM stock", "is always given NULLs"),
        ("SELECT sku FROM stock WHERE spread(n) > 1", "can't stand in WHERE"),
        ("SELECT stock.sku FROM stock JOIN bag ON spread(n) = a", "can't stand in ON"),
        ("SELECT sku FROM stock GROUP BY spread(n)", "can't stand in GROUP BY"),
        ("SELECT spread(middle(n)) FROM stock", "an aggregate can't contain another one"),
        ("SELECT spread(SUM(n)) FROM stock", "an aggregate can't contain another one"),
        ("SELECT MAX(spread(n)) FROM stock", "an aggregate can't contain another one"),
        ("SELECT MAX(n) FILTER (WHERE spread(n) > 1) FROM stock", "can't stand in WHERE"),
    ],
)
def test_what_no_aggregate_can_be_is_refused(plan, query, message):
    with pytest.raises(ValidationError, match=message) as caught:
        plan(query)
    assert query[caught.value.column - 1 :].startswith(("spread", "middle"))


def test_views_recompute_the_groups_that_changed(view):
    grouped = view("SELECT sku, spread(n) AS s, COUNT(*) AS c FROM stock GROUP BY sku")
    assert grouped.strategy is Strategy.DELTA
    assert grouped.delta.partitioned.outputs == ("sku",)
    assert view("SELECT spread(n) AS s FROM stock").strategy is Strategy.REFRESH


def test_streams_keep_their_rows_and_windows_theirs(view, plan):
    kept = view("SELECT sku, spread(id) AS s FROM orders GROUP BY sku")
    assert kept.strategy is Strategy.DELTA
    assert 'aggregate "spread" in Python needs them' in kept.inputs[0].target.reason
    windowed = view("SELECT sku, spread(id) AS s FROM orders GROUP BY sku, window(ts, '1 minute')")
    assert windowed.strategy is Strategy.AGGREGATE
    with pytest.raises(NotExecutableError, match='aggregate "spread" in Python over a stream'):
        plan("INSERT INTO bag SELECT spread(id), sku FROM orders GROUP BY sku", distinct_names=False)
