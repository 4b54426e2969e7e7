"""Scripts are looked at as if they had run, and nothing of them runs."""

from __future__ import annotations

import pytest

import velostream
from velostream.engine.rehearsal import rehearse


@pytest.fixture
def connection():
    with velostream.connect() as opened:
        yield opened


TABLE = "CREATE TABLE prices (sku STRING PRIMARY KEY, price DECIMAL(10,2))"
STREAM = "CREATE STREAM orders (id BIGINT, sku STRING, n INT) WITH ('source' = 'memory://orders')"
VIEW = "CREATE TABLE best AS SELECT sku, max(price) AS top FROM prices GROUP BY sku"


def test_declared_things_need_no_spark(connection):
    found = rehearse(
        connection, [TABLE, STREAM, "CREATE TABLE p AS SELECT o.id, p.price FROM orders o JOIN prices p USING (sku)"]
    )
    assert [statement.problems for statement in found] == [(), (), ()]
    assert ("strategy", "map") in found[2].plan
    assert not connection._context.spark.started
    assert connection.tables() == []


def test_the_columns_of_a_view_are_known_to_later_statements(connection):
    wrong, right = rehearse(connection, [TABLE, VIEW, "SELECT tpo FROM best", "SELECT top FROM best WHERE sku = 'a'"])[
        2:
    ]
    assert [(problem.code, problem.hint) for problem in wrong.errors] == [("unknown-column", 'did you mean "top"?')]
    assert right.errors == ()
    assert ("strategy", "passthrough") in right.plan


def test_every_statement_is_looked_at_though_one_is_wrong(connection):
    found = rehearse(connection, ["SELEC 1", TABLE, TABLE, "DROP TABLE prices", TABLE, "SELECT a FROM nothing"])
    assert [[problem.code for problem in statement.errors] for statement in found] == [
        ["syntax"],
        [],
        ["already-exists"],
        [],
        [],
        ["unknown-table"],
    ]
    assert found[0].plan == ()
