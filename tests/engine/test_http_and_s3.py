"""HTTP and object stores as statements see them: polled, streamed, taken in by a webhook, written to."""

import json
import time
from decimal import Decimal

import httpx
import pytest

import velostream
from velostream.testing.services.azure import AzureService
from velostream.testing.services.base import LOOPBACK, free_port
from velostream.testing.services.gs import GsService
from velostream.testing.services.http import HttpServer, Reply
from velostream.testing.services.s3 import S3Service


@pytest.fixture(scope="module")
def connection():
    with velostream.connect() as connection:
        yield connection


@pytest.fixture
def server():
    with HttpServer() as server:
        yield server


@pytest.fixture(params=[S3Service, GsService, AzureService], ids=lambda service: service.kind)
def store(request):
    return request.param.shared()


@pytest.fixture
def bucket(store):
    return store.new_database()


@pytest.fixture
def store_options(store):
    return ", ".join(f"'{name}' = '{value}'" for name, value in store.options.items())


def until(connection, sql, expected):
    deadline = time.monotonic() + 30
    while (found := sorted(connection.execute(sql).fetchall())) != expected:
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.01)


def until_state(connection, table, state):
    deadline = time.monotonic() + 30
    while (status := connection.status(table)).state != state:
        assert time.monotonic() < deadline, f"still {status}"
        time.sleep(0.01)
    return status


def put_object(store, bucket, key, text):
    with store.file_system().open_output_stream(f"{bucket.partition('://')[2]}/{key}") as stream:
        stream.write(text.encode())


def test_a_polled_resource_is_a_table_that_follows_it(connection, server, monkeypatch):
    monkeypatch.setenv("PRICES_TOKEN", "t0p:s3cret@")
    url = server.put("/prices", '{"data": {"items": [{"sku": "a", "price": 1.10}, {"sku": "b", "price": 2.20}]}}')
    connection.execute(
        f"""CREATE TABLE prices AS SELECT sku PRIMARY KEY, price FROM {url}?region=eu
        WITH ('http.records' = 'data.items[*]', 'poll.interval' = '50ms', 'http.auth' = 'bearer',
              'http.token' = '${{PRICES_TOKEN}}')"""
    )
    until(connection, "SELECT * FROM prices", [("a", Decimal("1.10")), ("b", Decimal("2.20"))])
    assert server.requests[-1].parameters == {"region": "eu"}
    assert server.requests[-1].headers["authorization"] == "Bearer t0p:s3cret@"
    server.put("/prices", '{"data": {"items": [{"sku": "b", "price": 2.25}, {"sku": "c", "price": 3}]}}')
    until(connection, "SELECT sku FROM prices", [("b",), ("c",)])
    with server.stopped():
        status = until_state(connection, "prices", "degraded")
        assert "can't be reached" in f"{status.reason} {status.error}"
        assert connection.execute("SELECT count(*) FROM prices").fetchone() == (2,)
    server.put("/prices", '{"data": {"items": []}}')
    until(connection, "SELECT sku FROM prices", [])
    until_state(connection, "prices", "ready")
    connection.execute("DROP TABLE prices")


def test_wrong_credentials_fail_at_once(connection, server):
    url = server.answer("/closed", lambda _: Reply(b"no", 403))
    with pytest.raises(velostream.errors.SourceError) as refused:
        connection.execute(f"CREATE TABLE closed AS SELECT * FROM {url}")
    assert refused.value.category == "authentication"


def test_a_resource_is_waited_for(connection, server):
    url = f"{server.url}/later.csv"
    connection.execute(
        f"CREATE TABLE later AS SELECT id FROM {url} WITH ('http.wait.timeout' = '30s', 'http.retry.interval' = '50ms')"
    )
    server.put("/later.csv", "id\n7\n", content_type="text/csv")
    until(connection, "SELECT id FROM later", [(7,)])


def test_events_are_a_stream(connection, server):
    url = server.events("/ticks")
    # Without declared columns the statement waits for the first event, and misses none.
    connection.execute(
        f"CREATE TABLE totals AS SELECT sku, SUM(n) AS n FROM {url} WITH ('http.mode' = 'sse') GROUP BY sku"
    )
    server.send("/ticks", '{"sku": "a", "n": 1}')
    until(connection, "SELECT sku, n FROM totals", [("a", 1)])
    server.hang_up()
    server.send("/ticks", '{"sku": "a", "n": 2}', '{"sku": "b", "n": 5}')
    until(connection, "SELECT sku, n FROM totals", [("a", 3), ("b", 5)])
    connection.execute("DROP TABLE totals")


def test_a_webhook_keeps_what_it_has_said_yes_to(tmp_path):  # B55
    url = f"http://{LOOPBACK}:{free_port()}/orders"
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute(
            f"""CREATE TABLE orders AS SELECT id, amount FROM {url}
            WITH ('http.mode' = 'webhook', 'record.schema' = 'id BIGINT, amount DECIMAL(10,2)')"""
        )
        connection.wait("orders", timeout=60)
        assert httpx.post(url, json={"id": 1, "amount": 1.25}).status_code == 200
        until(connection, "SELECT * FROM orders", [(1, Decimal("1.25"))])
        # What was taken just before the end is there afterwards, whether or not it was read in time.
        assert httpx.post(url, content=b'[{"id": 2, "amount": 2.50}, {"id": "x"}]').status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.post(url, json={"id": 3})
    with velostream.connect(tmp_path / "state") as connection:
        until(connection, "SELECT * FROM orders", [(1, Decimal("1.25")), (2, Decimal("2.50"))])
        connection.drain("orders", timeout=30)
        letters = connection.execute("SHOW DEAD LETTERS orders").arrow().to_pylist()
        assert len(letters) == 1
        assert httpx.post(url, json={"id": 4, "amount": 4}).status_code == 200
        until(connection, "SELECT id FROM orders", [(1,), (2,), (4,)])


def test_objects_are_followed_as_they_come_change_and_go(connection, store, bucket, store_options):  # B42
    put_object(store, bucket, "in/a.csv", "id,name\n1,one\n2,two\n")
    connection.execute(
        f"""CREATE TABLE objects AS SELECT id, name FROM {bucket}/in/*.csv
        WITH ('poll.interval' = '50ms', {store_options})"""
    )
    until(connection, "SELECT * FROM objects", [(1, "one"), (2, "two")])
    put_object(store, bucket, "in/b.csv", "id,name\n3,three\n")
    put_object(store, bucket, "in/a.csv", "id,name\n1,one\n2,TWO\n")
    until(connection, "SELECT * FROM objects", [(1, "one"), (2, "TWO"), (3, "three")])
    store.file_system().delete_file(f"{bucket.partition('://')[2]}/in/a.csv")
    until(connection, "SELECT * FROM objects", [(3, "three")])
    connection.execute("DROP TABLE objects")


def test_rows_are_written_to_a_bucket_and_to_a_webhook(connection, server, bucket, store_options):
    connection.execute("CREATE TABLE out_rows (id BIGINT, amount DECIMAL(10,2))")
    connection.execute("INSERT INTO out_rows VALUES (1, 1.50), (2, NULL)")
    connection.execute(f"INSERT INTO {bucket}/out/ WITH ('format' = 'jsonl', {store_options}) SELECT * FROM out_rows")
    back = connection.execute(
        f"SELECT id, amount FROM {bucket}/out/*.jsonl WITH ({store_options}) ORDER BY id"
    ).fetchall()
    assert back == [(1, Decimal("1.50")), (2, None)]
    url = server.answer("/in", lambda _: Reply())
    connection.execute(f"INSERT INTO {url} WITH ('http.headers.X-Api-Key' = 'k') SELECT * FROM out_rows ORDER BY id")
    [request] = server.requests
    assert json.loads(request.body) == [{"id": 1, "amount": 1.5}, {"id": 2, "amount": None}]
    assert request.headers["x-api-key"] == "k"
    assert request.headers["idempotency-key"]
    connection.execute("DROP TABLE out_rows")
