"""Views over views: what they show is always the state of one version of their base."""

import threading
import time

import pytest

import velostream
from velostream.testing.scenarios import spark_kept_running

COMMITS = 30


@pytest.fixture(scope="module", autouse=True)
def spark():
    with spark_kept_running():
        yield


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


def commit_pairs(connection, stop):
    """Every commit adds a debit and a credit of the same amount, so in every version of the base both sides agree."""
    for number in range(COMMITS):
        if stop.is_set():
            return
        connection.execute(
            f"INSERT INTO base VALUES ({2 * number}, 'debit', {number}.01), ({2 * number + 1}, 'credit', {number}.01)"
        )
        stop.wait(0.05)


def test_a_diamond_never_shows_what_no_version_of_its_base_had(connection):
    stop = threading.Event()
    writer = threading.Thread(target=commit_pairs, args=(connection, stop))
    writer.start()
    seen = set()
    try:
        deadline = time.monotonic() + 60
        while COMMITS not in seen:
            assert time.monotonic() < deadline, f"seen {sorted(seen)}"
            for debits, credits_, debit, credit in connection.execute("SELECT * FROM balance").fetchall():
                assert (debits, debit) == (credits_, credit)
                seen.add(debits)
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 2, "only the beginning and the end were seen; nothing was put to the test"


def test_every_version_of_a_diamond_is_whole(connection):
    """Subscribers see each commit of the view; none may mix two versions of the base."""
    stop = threading.Event()
    writer = threading.Thread(target=commit_pairs, args=(connection, stop))
    writer.start()
    try:
        content = {}
        for batch in connection.subscribe("balance"):
            for row in batch.arrow.to_pylist():
                change = row.pop("_change")
                key = tuple(row.items())
                content[key] = content.get(key, 0) + change
                if not content[key]:
                    del content[key]
            [row] = map(dict, content)
            assert (row["debits"], row["debit"]) == (row["credits"], row["credit"])
            if row["debits"] == COMMITS:
                break
    finally:
        stop.set()
        writer.join()


def test_drain_brings_the_whole_chain_to_the_present(connection):
    connection.execute("INSERT INTO base VALUES (1, 'debit', 1.00), (2, 'credit', 3.00)")
    connection.drain("balance", timeout=60)
    [row] = connection.execute("SELECT debits, credits, credit - debit FROM balance").fetchall()
    assert (row[0], row[1], str(row[2])) == (1, 1, "2.00")
