"""What of a WHERE goes to the tables: never more than can be spared."""

from __future__ import annotations

import pytest

from velostream.model.expression import columns_of
from velostream.model.schema import Schema
from velostream.sql.pushdown import pushed_condition

T = Schema.of(("id", "BIGINT"), ("name", "STRING"), ("n", "INT"), key=["id"])


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT * FROM t WHERE id > 1 AND lower(name) = 'a'", {"id", "name"}),
        ("SELECT count(*) FROM t AS x WHERE x.id = 1 GROUP BY x.n HAVING count(*) > 1", {"id"}),
        ("SELECT * FROM t JOIN u ON t.id = u.id WHERE t.n = 1 AND u.m = 2 AND t.id = u.id", {"n"}),
        ("SELECT * FROM u JOIN t ON t.id = u.id WHERE (t.n = 1 AND t.name = 'a')", {"n", "name"}),
        ("SELECT * FROM t LEFT JOIN u ON t.id = u.id WHERE t.n = 1", {"n"}),
        ("SELECT * FROM t LEFT ANTI JOIN u ON t.id = u.id WHERE t.n = 1", {"n"}),
        ("SELECT * FROM t WHERE n = 1 AND id IN (SELECT id FROM u)", {"n"}),
    ],
)
def test_conditions_on_one_table_are_taken_out(sql, columns):
    assert columns_of(pushed_condition(sql, "T", T)) == columns


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t",
        "SELECT * FROM u LEFT JOIN t ON t.id = u.id WHERE t.n IS NULL",
        "SELECT * FROM t RIGHT JOIN u ON t.id = u.id WHERE t.n IS NULL",
        "SELECT * FROM t FULL JOIN u ON t.id = u.id WHERE t.n = 1",
        "SELECT * FROM t JOIN u USING (id) WHERE id = 1",
        "SELECT * FROM t AS a JOIN t AS b ON a.id = b.id WHERE a.n = 1",
        "SELECT * FROM t WHERE n = 1 OR id IN (SELECT id FROM u)",
        "SELECT * FROM u WHERE EXISTS (SELECT 1 FROM t WHERE t.n = 1)",
        "SELECT * FROM t WHERE n = 1 UNION ALL SELECT * FROM u",
        "WITH t AS (SELECT 1 AS n) SELECT * FROM t WHERE n = 1",
        "SELECT * FROM t WHERE soundex(name) = 'x'",
        "SELECT * FROM t WHERE 1 = 1",
        "SELECT * FROM t WHERE t.nothing = 1",
    ],
)
def test_what_could_be_missed_stays(sql):
    assert pushed_condition(sql, "t", T) is None
