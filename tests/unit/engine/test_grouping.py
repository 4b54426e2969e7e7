"""Groups of tables in stores: worked out there where that gives our answer, by us where not, and EXPLAIN says which."""

from __future__ import annotations

from decimal import Decimal

import pytest

import velostream
from velostream.tables.relational.snapshot import RelationalSnapshot

COLUMNS = "(id BIGINT PRIMARY KEY, name STRING, shop INT, amount DECIMAL(10,2), weight DOUBLE)"
ROWS = "(1, 'a', 1, 1.50, 0.5), (2, NULL, 1, NULL, 1.5), (3, 'a', NULL, -0.50, NULL), (4, 'b', 2, 7.00, 2.5)"


@pytest.fixture(scope="module")
def connection(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grouping")
    with velostream.connect() as found:
        found.execute(f"CREATE TABLE ours {COLUMNS}")
        found.execute(f"CREATE TABLE theirs {COLUMNS} WITH ('extension' = 'sqlite', 'url' = '{folder}/store.db')")
        for name in ("ours", "theirs"):
            found.execute(f"INSERT INTO {name} VALUES {ROWS}")
        yield found


@pytest.fixture
def explained(connection):
    return lambda text: dict(connection.execute(f"EXPLAIN {text}").fetchall())


@pytest.mark.parametrize(
    "text",
    [
        "SELECT shop, count(*) AS n, sum(id) AS s, avg(id) AS a, min(name) AS low FROM {} GROUP BY shop",
        "SELECT max(id) AS high, shop FROM {} GROUP BY 2 ORDER BY shop DESC LIMIT 2",
        "SELECT name, count(DISTINCT shop) AS n FROM {} GROUP BY name",
        "SELECT name, shop, sum(amount) AS s, avg(amount) AS a, min(amount) AS low FROM {} GROUP BY name, shop",
        "SELECT shop, count(weight) AS n FROM {} WHERE name LIKE 'a%' GROUP BY shop",
        "SELECT sum(id) AS s, count(name) AS n, max(name) AS high FROM {} WHERE id > 2",
        "SELECT sum(id) AS s, count(*) AS n FROM {} WHERE name = 'nobody'",
        "SELECT sum(weight) AS s, avg(DISTINCT shop) AS a FROM {}",
        "SELECT name FROM {} WHERE id < 0 GROUP BY name",
    ],
)
def test_the_store_and_we_answer_alike(connection, text):
    ours, theirs = (connection.execute(text.format(name)).arrow() for name in ("ours", "theirs"))
    assert ours.schema == theirs.schema
    assert sorted(map(repr, ours.to_pylist())) == sorted(map(repr, theirs.to_pylist()))


def test_explain_says_who_works_it_out(explained):
    pushed = explained("SELECT shop, sum(id) FROM theirs WHERE id > 1 AND name LIKE '%a' GROUP BY shop")
    assert pushed["strategy"] == "passthrough"
    assert pushed["condition"] == "evaluated by us, of the rows that sqlite finds by the rest of it"
    assert pushed["groups"] == "computed by us"
    pushed = explained("SELECT shop, max(id) FROM theirs WHERE id > 1 GROUP BY shop")
    assert pushed["condition"] == "evaluated by sqlite"
    assert pushed["groups"] == (
        'computed by sqlite: SELECT "shop", MAX("id") FROM "theirs" WHERE ("id" > ?) GROUP BY "shop"'
    )
    # Its decimals are texts.
    assert explained("SELECT sum(amount) FROM theirs")["groups"] == "computed by us"
    assert "groups" not in explained("SELECT shop, max(id) FROM ours GROUP BY shop")
    assert "condition" not in explained("SELECT id FROM ours WHERE id > 1")


@pytest.mark.parametrize(
    ("expression", "where", "expected"),
    [
        ("SUM(id)", None, 10),
        ("AVG(id)", "shop = 1", 1.5),
        ("MAX(name)", None, "b"),
        ("COUNT(name)", None, 3),
        ("COUNT(DISTINCT name)", None, 2),
        ("SUM(amount)", None, Decimal("8.00")),
        ("SUM(id + 1)", None, 14),
        ("SUM(DISTINCT shop)", None, 3),
        ("SUM(id)", "id > 99", None),
        ("COUNT(DISTINCT id)", "name LIKE 'a%'", 2),
    ],
)
def test_scalars_are_worked_out_by_the_store_too(connection, expression, where, expected):
    assert connection.table("theirs").scalar(expression, where) == expected
    assert connection.table("ours").scalar(expression, where) == expected


def test_a_scalar_of_the_store_reads_no_rows(connection, monkeypatch):
    monkeypatch.setattr(RelationalSnapshot, "scan", None)
    theirs = connection.table("theirs")
    assert (theirs.scalar("SUM(id)", "shop = 1"), theirs.scalar("MIN(name)")) == (3, "a")


def test_a_transaction_sees_its_own_rows_in_groups(connection):
    with connection.begin() as transaction:
        transaction.execute("INSERT INTO theirs VALUES (9, 'a', 1, 0.01, NULL)")
        found = transaction.execute(
            "SELECT shop, count(*) AS n FROM theirs WHERE name = 'a' GROUP BY shop ORDER BY shop"
        )
        assert found.fetchall() == [(None, 1), (1, 2)]
        transaction.execute("DELETE FROM theirs WHERE id = 9")


def test_a_sum_beyond_64_bits_is_an_error_wherever_it_is_worked_out(connection):
    for name in ("ours", "theirs"):
        connection.execute(f"INSERT INTO {name} (id) VALUES (9223372036854775807)")
        with pytest.raises(velostream.errors.QueryError, match="out of the range of BIGINT"):
            connection.execute(f"SELECT sum(id) FROM {name}")
        connection.execute(f"DELETE FROM {name} WHERE id > 99")
