"""Views over views: what they show is always the state of one version of their base."""

import collections
import itertools
import threading
import time

import pytest

import velostream

STATES = 6
"""How many different states of the view must have been looked at."""


@pytest.fixture
def connection():
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE base (id BIGINT PRIMARY KEY, side STRING, amount DECIMAL(10,2))")
        connection.execute(
            "CREATE TABLE debit AS SELECT COUNT(*) AS n, SUM(amount) AS total FROM base WHERE side = 'debit'"
        )
        connection.execute("CREATE TABLE doubled AS SELECT id, amount FROM base WHERE side = 'credit'")
        connection.execute("CREATE TABLE credit AS SELECT COUNT(*) AS n, SUM(amount) AS total FROM doubled")
        connection.execute(
            "CREATE TABLE balance AS SELECT d.n AS debits, c.n AS credits, d.total AS debit, c.total AS credit "
            "FROM debit d CROSS JOIN credit c"
        )
        connection.wait("balance", timeout=60)
        yield connection


@pytest.fixture
def commits(connection):
    """Commits that go on until the test ends. Each adds a debit and a credit of the same amount, so both sides agree
    in every version of the base.
    """
    stop = threading.Event()

    def commit_pairs():
        for number in itertools.count():
            pair = f"({2 * number}, 'debit', {number}.01), ({2 * number + 1}, 'credit', {number}.01)"
            connection.execute(f"INSERT INTO base VALUES {pair}")
            if stop.wait(0.02):
                return

    writer = threading.Thread(target=commit_pairs)
    writer.start()
    yield
    stop.set()
    writer.join()


def test_a_diamond_never_shows_what_no_version_of_its_base_had(connection, commits):
    seen = set()
    deadline = time.monotonic() + 60
    while len(seen) < STATES:
        assert time.monotonic() < deadline, f"seen {sorted(seen)}"
        [row] = connection.table("balance").arrow().to_pylist()
        assert (row["debits"], row["debit"]) == (row["credits"], row["credit"])
        seen.add(row["debits"])


def test_every_version_of_a_diamond_is_whole(connection, commits):
    """Subscribers see each commit of the view; none may mix two versions of the base."""
    content = collections.Counter()
    seen = set()
    for batch in connection.subscribe("balance"):
        for row in batch.arrow.to_pylist():
            content[tuple(row[name] for name in ("debits", "debit", "credits", "credit"))] += row["_change"]
        [(debits, debit, credits_, credit)] = +content
        assert (debits, debit) == (credits_, credit)
        seen.add(debits)
        if len(seen) == STATES:
            return


def test_drain_brings_the_whole_chain_to_the_present(connection):
    connection.execute("INSERT INTO base VALUES (1, 'debit', 1.00), (2, 'credit', 3.00)")
    connection.drain("balance", timeout=60)
    [row] = connection.execute("SELECT debits, credits, credit - debit FROM balance").fetchall()
    assert (row[0], row[1], str(row[2])) == (1, 1, "2.00")
