"""MySQL in SQL: views over captured tables over restarts, and with the server away and back."""

from __future__ import annotations

import time
from decimal import Decimal

import pytest

import velostream
from velostream.testing.services.mysql import MysqlService

PASSWORD = "s3cr3t-p4ss"


@pytest.fixture
def server():
    """One of the test's own, as it is stopped."""
    with MysqlService() as server:
        yield server


def run(server, *statements):
    for statement in statements:
        server.execute(statement)


def spent(connection):
    return sorted(connection.execute("SELECT customer, n, total FROM spent").fetchall())


def test_views_follow_a_captured_table_over_restarts_and_troubles(server, tmp_path):  # B37, B43, B55, B56
    run(
        server,
        f"CREATE USER follower IDENTIFIED BY '{PASSWORD}'",
        "GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO follower",
        "CREATE TABLE orders (id INT PRIMARY KEY, customer VARCHAR(9), amount DECIMAL(10,2), paid TINYINT(1))",
        "INSERT INTO orders SELECT seq, CONCAT('c', seq % 2), seq / 4, TRUE FROM seq_1_to_25",
    )
    address = server.url.replace("root@", f"follower:{PASSWORD}@")
    orders = f"'{address}?table=orders&cdc=true'"
    with velostream.connect(tmp_path) as connection:
        connection.execute(
            "CREATE TABLE spent AS SELECT customer, COUNT(*) AS n, SUM(amount) AS total "
            f"FROM {orders} o GROUP BY customer"
        )
        connection.execute(f"CREATE TABLE open_orders AS SELECT id, amount FROM {orders} o WHERE NOT paid")
        connection.wait("spent", timeout=60)
        connection.wait("open_orders", timeout=60)
        assert spent(connection) == [("c0", 12, Decimal("39.00")), ("c1", 13, Decimal("42.25"))]
        run(server, "DELETE FROM orders WHERE id = 1", "UPDATE orders SET paid = FALSE WHERE id = 2")
        connection.drain("open_orders", timeout=60)
        assert connection.execute("SELECT id, amount FROM open_orders").fetchall() == [(2, Decimal("0.50"))]
    run(
        server,
        "UPDATE orders SET id = 100, customer = 'c2' WHERE id = 2",
        "INSERT INTO orders VALUES (3, 'c1', 1, 0) ON DUPLICATE KEY UPDATE amount = 1000",
    )
    with velostream.connect(tmp_path) as connection:
        connection.wait("spent", timeout=60)
        connection.drain("spent", timeout=60)
        after = [("c0", 11, Decimal("38.50")), ("c1", 12, Decimal("1041.25")), ("c2", 1, Decimal("0.50"))]
        assert spent(connection) == after
        assert [row[0] for row in connection.execute("SELECT id FROM open_orders").fetchall()] == [100]
        deadline = time.monotonic() + 60
        with server.stopped():
            while connection.status("spent").state == "ready" and time.monotonic() < deadline:
                time.sleep(0.05)
            assert spent(connection) == after
        run(server, "TRUNCATE TABLE orders", "INSERT INTO orders VALUES (1, 'c9', 9.99, 1)")
        while spent(connection) != [("c9", 1, Decimal("9.99"))]:
            assert time.monotonic() < deadline, spent(connection)
            time.sleep(0.05)
        shown = [*connection.execute("SHOW QUERIES").fetchall(), *connection.execute("SHOW STATUS").fetchall()]
        assert PASSWORD not in str(shown)
