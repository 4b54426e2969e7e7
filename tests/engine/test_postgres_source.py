"""PostgreSQL in SQL: views over captured tables, a server away and back, rows written to it, what must not show."""

from __future__ import annotations

import time
from contextlib import closing
from decimal import Decimal

import psycopg
import pytest

import velostream
from velostream.testing.services.postgres import PostgresService

PASSWORD = "s3cr3t-p4ss"


@pytest.fixture(scope="module")
def connection():
    with velostream.connect() as connection:
        yield connection


@pytest.fixture
def url():
    return PostgresService.shared().new_database()


def run(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            answer = connection.execute(statement)
    return answer.fetchall() if answer.description else []


def test_a_view_follows_a_captured_table_until_it_is_dropped(connection, url):  # B37, B43
    run(url, "CREATE TABLE orders (id int PRIMARY KEY, customer text, amount numeric(10,2))")
    run(url, "INSERT INTO orders SELECT i, 'c' || i % 2, i / 4.0 FROM generate_series(1, 25) i")
    connection.execute(
        f"CREATE TABLE spent AS SELECT customer, COUNT(*) AS n, SUM(amount) AS total FROM '{url}' o "
        "WITH ('table' = 'orders', 'cdc' = 'true') GROUP BY customer"
    )
    connection.wait("spent", timeout=60)
    run(url, "INSERT INTO orders SELECT i, 'c1', 1 FROM generate_series(26, 35) i", "DELETE FROM orders WHERE id = 1")
    run(url, "UPDATE orders SET customer = 'c2', amount = 0.10 WHERE id = 2")
    connection.drain("spent", timeout=60)
    assert sorted(connection.execute("SELECT customer, n, total FROM spent").fetchall()) == [
        ("c0", 11, Decimal("38.50")),
        ("c1", 22, Decimal("52.00")),
        ("c2", 1, Decimal("0.10")),
    ]
    assert len(run(url, "SELECT * FROM pg_publication")) == 1
    connection.execute("DROP TABLE spent")
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert (run(url, slots), run(url, "SELECT * FROM pg_publication")) == ([], [])


def test_a_table_that_is_not_there_is_waited_for_if_asked(connection, url):  # B5
    waiting = f"CREATE TABLE patient AS SELECT id FROM '{url}?table=later'"
    with pytest.raises(velostream.errors.SourceError) as missing:
        connection.execute(waiting)
    assert "database.wait.timeout" in missing.value.hint
    connection.execute(f"{waiting} WITH ('database.wait.timeout' = '60s', 'database.retry.interval' = '100ms')")
    assert connection.status("patient").state == "waiting"
    run(url, "CREATE TABLE later (id int)", "INSERT INTO later VALUES (1)")
    connection.wait("patient", timeout=60)
    assert connection.execute("SELECT id FROM patient").fetchall() == [(1,)]


@pytest.mark.parametrize("options", ["", "&cdc=true", "&incremental.column=n", "&poll.interval=1s"])
def test_a_select_sees_what_is_there_and_leaves_nothing_behind(connection, url, options):
    run(url, "CREATE TABLE t (n int, name text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    run(url, "INSERT INTO t VALUES (1, 'one'), (1, 'one'), (2, 'two')")
    rows = connection.execute(f"SELECT * FROM '{url}?table=t{options}' ORDER BY n").fetchall()
    assert rows == [(1, "one"), (1, "one"), (2, "two")]
    assert run(url, "SELECT * FROM pg_publication") == []


def test_rows_of_a_stream_go_into_a_table_by_their_keys(connection, url):
    feed = connection.memory("arrivals")
    feed.append([{"id": 1, "name": "one"}, {"id": 2, "name": "two"}])
    connection.execute(f"INSERT INTO '{url}?table=arrived&key=id' SELECT id, name FROM memory://arrivals")
    feed.append([{"id": 2, "name": "zwei"}])
    rows = "SELECT id, name FROM arrived ORDER BY id"
    deadline = time.monotonic() + 60
    while run(url, rows) != [(1, "one"), (2, "zwei")]:
        assert time.monotonic() < deadline, run(url, rows)
        time.sleep(0.05)


def test_a_server_that_is_away_degrades_what_reads_it_and_nothing_else(connection):  # B56
    with PostgresService() as server:
        run(server.url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        connection.execute(f"CREATE TABLE seen AS SELECT id FROM '{server.url}?table=t&poll.interval=100ms'")
        connection.execute("CREATE TABLE apart (id INT)")
        connection.wait("seen", timeout=60)
        deadline = time.monotonic() + 60
        with server.stopped():
            while connection.status("seen").state != "degraded":
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert connection.execute("SELECT id FROM seen").fetchall() == [(1,)]
            assert connection.status("apart").state == "ready"
        run(server.url, "INSERT INTO t VALUES (2)")
        while len(connection.table("seen")) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert connection.status("seen").state == "ready"
        connection.execute("DROP TABLE seen")


def test_a_load_that_loses_its_server_begins_anew(connection, eventually):  # B5, B56
    with PostgresService() as server:
        run(server.url, "CREATE TABLE t (id int)", "INSERT INTO t SELECT generate_series(1, 1000)")
        with closing(psycopg.connect(server.url)) as holder:
            # The load waits for this lock, so it is under way when the server goes.
            holder.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            connection.execute(f"CREATE TABLE loaded AS SELECT id FROM '{server.url}?table=t'")
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            eventually(lambda: run(server.url, waits), what="the load")
            assert connection.status("loaded").state == "loading"
            with server.stopped(suddenly=True):
                eventually(lambda: connection.status("loaded").attempts, what="an attempt that failed")
                status = connection.status("loaded")
                assert (status.state, "can't be reached" in status.error) == ("waiting", True)
                assert status.next_retry_at is not None
                assert len(connection.table("loaded")) == 0
        connection.wait("loaded", timeout=60)
        assert sorted(connection.execute("SELECT id FROM loaded").fetchall()) == [(n,) for n in range(1, 1001)]
        status = connection.status("loaded")
        assert (status.percent, status.eta, status.attempts) == (100.0, 0.0, 0)
        connection.execute("DROP TABLE loaded")


def test_a_load_may_be_limited(connection, url):
    run(url, "CREATE TABLE t (id int)", "INSERT INTO t SELECT generate_series(1, 50000)")
    limited = f"CREATE OR REPLACE TABLE some AS SELECT id FROM '{url}?table=t&fetch.size=1000"
    connection.execute(f"{limited}&loading.bulk.max_records=3'")
    connection.wait("some", timeout=60)
    assert len(connection.table("some")) == 3
    connection.execute(f"{limited}&loading.bulk.max_duration=0s'")
    connection.wait("some", timeout=60)
    assert len(connection.table("some")) == 1000
    assert "max_duration" in str(connection.status("some").warnings)


def test_what_a_log_keeps_for_a_table_is_among_its_figures(connection, url, eventually):
    run(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connection.execute(f"CREATE TABLE watched AS SELECT id FROM '{url}?table=t&cdc=true'")
    connection.wait("watched", timeout=60)
    eventually(lambda: "retained log bytes" in connection.status("watched").gauges, what="a first measure")
    figures = {metric: value for _, metric, value in connection.execute("SHOW METRICS watched").fetchall()}
    assert int(figures["retained log bytes"]) >= 0
    run(url, "ALTER TABLE t ADD extra int", "INSERT INTO t VALUES (2, 2)")
    connection.drain("watched", timeout=60)
    eventually(lambda: '"extra"' in str(connection.execute("SHOW STATUS watched").fetchall()), what="a warning")
    connection.execute("DROP TABLE watched")


def test_a_column_that_came_later_is_taken_in_by_who_asks_for_it_then(connection, url):  # B10
    run(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    options = "'cdc' = 'true', 'schema.evolution' = 'ignore'"
    create = f"CREATE OR REPLACE TABLE {{}} AS SELECT * FROM '{url}?table=t' WITH ({options})"
    for name in ("early", "replaced"):
        connection.execute(create.format(name))
        connection.wait(name, timeout=60)
    run(url, "ALTER TABLE t ADD extra int DEFAULT 7", "INSERT INTO t VALUES (2, 8)")
    connection.execute(create.format("replaced"))
    connection.wait("replaced", timeout=60)
    run(url, "INSERT INTO t VALUES (3, 9)")
    for name, rows in (("early", [(1,), (2,), (3,)]), ("replaced", [(1, 7), (2, 8), (3, 9)])):
        connection.drain(name, timeout=60)
        assert sorted(connection.execute(f"SELECT * FROM {name}").fetchall()) == rows
        connection.execute(f"DROP TABLE {name}")
    assert run(url, "SELECT * FROM pg_publication") == []


def test_tables_that_share_a_slot_lose_nothing_over_a_restart(url, tmp_path):  # B55
    for table in ("a", "b"):
        run(url, f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    with velostream.connect(tmp_path / "state") as connection:
        for table in ("a", "b"):
            options = "WITH ('cdc' = 'true', 'slot.name' = 'both', 'publication.name' = 'both')"
            connection.execute(f"CREATE TABLE {table} AS SELECT id FROM '{url}?table={table}' {options}")
            connection.wait(table, timeout=60)
        run(url, "BEGIN", "INSERT INTO a VALUES (2)", "INSERT INTO b VALUES (2)", "COMMIT")
        for table in ("a", "b"):
            connection.drain(table, timeout=60)
        assert len(run(url, slots)) == 1
    run(url, "INSERT INTO b VALUES (3)", "INSERT INTO a VALUES (3)")
    with velostream.connect(tmp_path / "state") as connection:
        for table in ("b", "a"):
            connection.wait(table, timeout=60)
            connection.drain(table, timeout=60)
            assert sorted(connection.execute(f"SELECT id FROM {table}").fetchall()) == [(1,), (2,), (3,)]
        connection.execute("DROP TABLE a")
        run(url, "INSERT INTO b VALUES (4)")
        connection.drain("b", timeout=60)
        assert (len(connection.table("b")), run(url, slots)) == (4, [("both",)])
        connection.execute("DROP TABLE b")
        assert (run(url, slots), run(url, "SELECT * FROM pg_publication")) == ([], [])


def test_a_password_is_in_one_file_only(url, tmp_path):
    run(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    host = url.partition("@")[2]
    address = f"postgres://postgres:{PASSWORD}@{host}?table=t&poll.interval=1s"
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute(f"CREATE TABLE kept AS SELECT id FROM '{address}'")
        connection.wait("kept", timeout=60)
        shown = [
            *connection.execute("SHOW QUERIES").fetchall(),
            *connection.execute("SHOW STATUS").fetchall(),
            *connection.execute("SHOW PROPERTIES kept").fetchall(),
        ]
        assert PASSWORD not in str(shown)
        with pytest.raises(velostream.errors.VelostreamError) as missing:
            connection.execute(f"CREATE TABLE nope AS SELECT id FROM '{address}x'".replace("table=t", "table=nowhere"))
        assert PASSWORD not in str(missing.value)
    holders = [path.name for path in (tmp_path / "state").rglob("*") if path.is_file() and holds(path)]
    assert holders == ["statements.private"]
    assert (tmp_path / "state" / "statements.private").stat().st_mode & 0o077 == 0
    with velostream.connect(tmp_path / "state") as connection:
        run(url, "INSERT INTO t VALUES (3)")
        connection.wait("kept", timeout=60)
        connection.drain("kept", timeout=60)
        assert sorted(connection.execute("SELECT id FROM kept").fetchall()) == [(1,), (2,), (3,)]


def holds(path):
    return PASSWORD.encode() in path.read_bytes()
