"""HTTP as a target: rows have arrived only where the server says that it took them."""

import pyarrow as pa
import pytest

from velostream.errors import Category, StoreError
from velostream.model.change import Epoch
from velostream.sinks.base import SinkSpec
from velostream.sinks.http import HttpSink
from velostream.testing.services.http import HttpServer, Reply


@pytest.fixture
def server():
    with HttpServer() as server:
        yield server


def send(url, **options):
    sink = HttpSink(SinkSpec("http", url, {name.replace("_", "."): value for name, value in options.items()}))
    sink.write(pa.table({"id": [1]}), Epoch("query ü", 0))
    sink.close()


@pytest.mark.parametrize("status", [300, 301, 302, 303, 305])
def test_a_redirect_that_would_lose_the_rows_is_refused(server, status):
    url = server.answer("/in", lambda _: Reply(status=status, headers={"Location": "/other"}))
    with pytest.raises(StoreError) as refused:
        send(url)
    assert refused.value.category is Category.CONFIGURATION
    assert [request.path for request in server.requests] == ["/in"]


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("method", ["post", "put"])
def test_rows_follow_a_redirect_and_credentials_stay(server, status, method):
    with HttpServer() as other:
        elsewhere = other.put("/in", "")
        url = server.answer("/in", lambda _: Reply(status=status, headers={"Location": elsewhere}))
        send(url, http_method=method, http_token="t0ken")
        [arrived] = other.requests
    assert (arrived.method, arrived.body) == (method.upper(), b'[{"id":1}]\n')
    assert arrived.headers["content-type"] == "application/json"
    assert "authorization" not in arrived.headers
    assert server.requests[0].headers["authorization"] == "Bearer t0ken"
