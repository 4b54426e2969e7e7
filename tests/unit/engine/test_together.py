"""Which statements can share a Spark query."""

import pytest

from velostream.engine.together import Projection, groups
from velostream.sql.plan import MapPlan


def projection(sql):
    return Projection.of(MapPlan(driving="in_0", sql=sql))


def test_the_parts_of_a_simple_statement():
    found = projection("SELECT *, o.id AS `order id`, price * 2 AS double FROM in_0 AS o WHERE price > 1 OR id IS NULL")
    assert found == Projection(
        driving="in_0",
        relation="in_0 AS o",
        columns="*, o.id AS `order id`, price * 2 AS double",
        stars=1,
        others=2,
        condition="price > 1 OR id IS NULL",
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM in_0 AS o JOIN t ON o.a = t.a",
        "SELECT a FROM in_0 AS o LATERAL VIEW EXPLODE(xs) t AS a",
        "SELECT DISTINCT a FROM in_0 AS o",
        "SELECT a FROM in_0 AS o ORDER BY a LIMIT 3",
        "SELECT a, ROW_NUMBER() OVER (ORDER BY a) AS n FROM in_0 AS o WHERE a > 1",
        "SELECT a FROM in_0 AS o WHERE EXISTS(SELECT 1)",
        "SELECT a FROM in_0 AS o WHERE RAND() > 0.5",
        "SELECT a + 1 FROM in_0 AS o",
        "SELECT EXPLODE(xs) AS x FROM in_0 AS o",
        "SELECT POSEXPLODE_OUTER(xs) AS x FROM in_0 AS o",
        "SELECT STACK(2, a, b) AS x FROM in_0 AS o",
        "SELECT a, WINDOW(ts, '10 minutes', '5 minutes') AS w FROM in_0 AS o",
        "SELECT a FROM (SELECT a FROM in_0) AS o",
        "SELECT a FROM in_0 AS o UNION ALL SELECT a FROM in_0 AS o",
    ],
)
def test_what_is_more_than_a_projection_and_a_filter_runs_by_itself(sql):
    assert projection(sql) is None


def test_only_statements_under_one_alias_share_and_no_query_becomes_too_wide():
    narrow, star, other = (projection(f"SELECT {item} FROM in_0 AS {alias}") for item, alias in ("ao", "*o", "ax"))
    members = [("a", narrow), ("b", None), ("c", narrow), ("d", other), ("e", star)]
    assert list(groups(members, batch_width=3)) == [["a", "c", "e"]]
    stars = [(number, star) for number in range(5)]
    assert list(groups(stars, batch_width=30)) == [[0, 1], [2, 3]]
