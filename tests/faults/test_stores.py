"""Tables in stores, through crashes of ours and through the end and return of their server."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import velostream
from velostream.errors import WaitTimeoutError
from velostream.testing.crash import play_until_crash
from velostream.testing.services.postgres import PostgresService

ORDERS = "file://{folder}/orders.csv"
FOLLOWED = "WITH ('watch' = 'true', 'watch.mode' = 'append')"
STORED = "WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{folder}/store.db')"
STATEMENTS = {
    "insert": (
        f"> CREATE TABLE t (id BIGINT, n INT) {STORED};",
        f"> INSERT INTO t SELECT id, n FROM {ORDERS} {FOLLOWED};",
    ),
    "map": (f"> CREATE TABLE t AS SELECT id, n FROM (SELECT id, n FROM {ORDERS} {FOLLOWED}) {STORED};",),
    "aggregate": (
        f"> CREATE TABLE t AS SELECT id, SUM(n) AS n FROM (SELECT * FROM {ORDERS} {FOLLOWED}) GROUP BY id {STORED};",
    ),
    "refresh": (
        f"> CREATE TABLE o AS SELECT id, n FROM {ORDERS} {FOLLOWED};",
        f"> CREATE TABLE t AS SELECT id, SUM(n) AS n FROM o GROUP BY id {STORED};",
    ),
}


def write_orders(path: Path, ids: range) -> None:
    with path.open("a", newline="") as file:
        rows = csv.writer(file)
        if not file.tell():
            rows.writerow(["id", "n"])
        rows.writerows([number, 1] for number in ids)


@pytest.mark.parametrize("statements", STATEMENTS)
def test_a_crash_between_the_store_and_the_log(statements: str, tmp_path: Path):  # B55
    orders = tmp_path / "orders.csv"
    write_orders(orders, range(100))
    script = "\n".join(STATEMENTS[statements]).format(folder=tmp_path)
    play_until_crash(f"{script}\n> SELECT count(*) FROM t;\n-1\n", folder=tmp_path, point="store.after-write")
    # What was read before the crash is in the store, and the source has grown: the batch must be the one it was.
    write_orders(orders, range(100, 150))
    with velostream.connect(tmp_path / "state") as connection:
        for name in connection.queries():
            connection.drain(name, timeout=120)
        assert connection.execute("SELECT count(*), count(DISTINCT id), sum(n) FROM t").fetchall() == [(150, 150, 150)]


def test_a_server_that_goes_and_comes_back(tmp_path: Path, eventually):  # B56
    server = PostgresService.shared()
    stored = f"WITH ('extension' = 'postgres', 'url' = '{server.url}', 'retry.timeout' = '1s'"
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute_script(
            f"""
            CREATE STREAM orders (id BIGINT, sku STRING) WITH ('source' = 'memory://orders');
            CREATE TABLE faults_log (id BIGINT, sku STRING) {stored});
            CREATE TABLE faults_prices (sku STRING PRIMARY KEY, price INT) {stored}, 'poll.interval' = '1s');
            INSERT INTO faults_prices VALUES ('a', 1), ('b', 2);
            INSERT INTO faults_log SELECT * FROM orders;
            CREATE TABLE ours AS SELECT id, sku FROM orders;
            CREATE TABLE priced AS SELECT o.id, p.price FROM orders o LEFT JOIN faults_prices p ON o.sku = p.sku;
            CREATE TABLE dear AS SELECT sku FROM faults_prices WHERE price > 1;
            CREATE TABLE skus (sku STRING);
            CREATE TABLE faults_skus AS SELECT sku FROM skus {stored});
            """
        )
        feed = connection.memory("orders")
        feed.append([{"id": 1, "sku": "a"}])
        for name in ("ours", "priced", "insert_into_faults_log_1", "dear", "faults_skus"):
            connection.drain(name, timeout=120)
        with server.stopped():
            feed.append([{"id": 2, "sku": "b"}])
            connection.drain("ours", timeout=120)
            assert connection.execute("SELECT count(*) FROM ours").fetchall() == [(2,)]
            for name in ("insert_into_faults_log_1", "priced", "faults_log", "dear"):
                eventually(lambda n=name: connection.status(n).state == "degraded", what=f"the trouble of {name}")
                assert connection.status(name).error is not None
            assert connection.execute("SELECT * FROM dear").fetchall() == [("b",)]
            feed.append([{"id": 3, "sku": "a"}])
            connection.execute("INSERT INTO skus VALUES ('a')")
            eventually(lambda: connection.status("faults_skus").attempts > 0, what="the view's first attempt")
            with pytest.raises(WaitTimeoutError, match="did not catch up in time") as caught:
                connection.drain("faults_skus", timeout=0.5)
            assert f"last error: {connection.status('faults_skus').error}" in str(caught.value.detail)
            assert caught.value.hint == caught.value.__cause__.hint
        for name in ("insert_into_faults_log_1", "priced", "faults_skus"):
            connection.drain(name, timeout=60)
        eventually(
            lambda: (
                {connection.status(name).state for name in ("faults_log", "faults_prices", "dear", "priced")}
                == {"ready"}
            ),
            seconds=30,
            what="the recovery",
        )
        assert connection.execute("SELECT id, sku FROM faults_log ORDER BY id").fetchall() == [
            (1, "a"),
            (2, "b"),
            (3, "a"),
        ]
        assert connection.execute("SELECT * FROM priced ORDER BY id").fetchall() == [(1, 1), (2, 2), (3, 1)]
        connection.execute("UPDATE faults_prices SET price = 5 WHERE sku = 'a'")
        assert connection.execute("SELECT sku FROM dear ORDER BY sku").fetchall() == [("a",), ("b",)]
