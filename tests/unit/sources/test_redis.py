"""Redis as a source, against a real server: values, streams, hashes, and what goes wrong."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from decimal import Decimal

import pytest
import redis

from velostream.errors import Category, OptionError, SourceError, StoreError, render_text
from velostream.model.change import CHANGE
from velostream.sources.base import Emits, SourceSpec
from velostream.sources.redis import RedisSource
from velostream.testing.services.redis import RedisService

from .conftest import Reader as Rows


@pytest.fixture
def url():
    return RedisService.shared().new_database()


@pytest.fixture
def client(url):
    with redis.Redis.from_url(url) as client:
        yield client
        client.flushdb()


def source(url, **options):
    return RedisSource(SourceSpec("redis", url, {name.replace("__", "."): value for name, value in options.items()}))


class Reader(Rows):
    """Lets go of its connection after each reading, as a source between two does."""

    def read(self, *, max_rows: int | None = 1_000):
        rows = super().read(max_rows=max_rows)
        self.source.close()
        return rows


def test_fields_of_entries_are_typed_as_texts_are(url, client):
    client.xadd(
        "s", {"n": "1", "price": "1.50", "at": "2024-05-01T12:00:00Z", "ok": "true", "text": "ü", "raw": b"\xff"}
    )
    client.xadd("s", {"n": "2", "text": "", "late": "007"})
    found = source(url, stream="s")
    assert [column.sql_type for column in found.schema().columns] == [
        *("BIGINT", "DECIMAL(18,2)", "TIMESTAMP", "BOOLEAN", "STRING", "BINARY", "STRING"),
    ]
    first, second = Reader(found).read()
    assert first == {
        "n": 1,
        "price": Decimal("1.50"),
        "at": datetime(2024, 5, 1, 12, tzinfo=UTC),
        "ok": True,
        "text": "ü",
        "raw": b"\xff",
        "late": None,
    }
    assert (second["n"], second["price"], second["text"], second["late"]) == (2, None, "", "007")


def test_entries_are_followed_by_their_ids(url, client):
    for n in range(5):
        client.xadd("s", {"n": n}, id=f"{1000 + n}-{n}")
    reader = Reader(source(url, stream="s", fetch__size="2"))
    assert [row["n"] for row in reader.read(max_rows=3)] == [0, 1, 2]
    assert reader.position == {"id": "1002-2"}
    assert [row["n"] for row in reader.read(max_rows=None)] == [3, 4]
    assert reader.read() == []
    last = client.xadd("s", {"n": 5})
    client.xdel("s", last)
    assert reader.read() == []
    assert reader.position == {"id": last.decode()}  # or a drain would wait for ever


def test_ids_and_their_times_are_columns_that_are_asked_for(url, client):
    client.xadd("s", {"n": 1}, id="1714564800123-7")
    (row,) = Reader(source(url, stream="s", system__columns="_id,_timestamp")).read()
    assert row == {"n": 1, "_id": "1714564800123-7", "_timestamp": datetime(2024, 5, 1, 12, 0, 0, 123000, tzinfo=UTC)}
    assert source(url, stream="s").system_columns == ()


def test_ids_need_not_be_times(url, client):
    client.xadd("s", {"n": 1}, id="1714564800123456-7")
    assert Reader(source(url, stream="s")).read() == [{"n": 1}]
    (row,) = Reader(source(url, stream="s", system__columns="_id,_timestamp")).read()
    assert row == {"n": 1, "_id": "1714564800123456-7", "_timestamp": None}


def test_reading_may_begin_at_the_end_and_entries_may_be_new_values(url, client):
    client.xadd("s", {"id": 1, "v": "a"})
    late = Reader(source(url, stream="s", auto__offset__reset="latest"))
    upserts = source(url, stream="s", changelog="upsert", key="id")
    assert upserts.capabilities.emits is Emits.UPSERTS
    client.xadd("s", {"id": 1, "v": "b"})
    assert late.read() == [{"id": 1, "v": "b"}]
    assert Reader(upserts).read() == [{"id": 1, "v": "a", CHANGE: 1}, {"id": 1, "v": "b", CHANGE: 1}]


def test_a_stream_that_is_gone_or_made_anew_is_an_error(url, client):
    client.xadd("s", {"n": 1})
    reader = Reader(source(url, stream="s"))
    reader.read()
    client.delete("s")
    with pytest.raises(SourceError) as missing:
        reader.read()
    assert (missing.value.category, 'no stream "s"' in missing.value.message) == (Category.MISSING, True)
    client.xadd("s", {"n": 2}, id="5-1")
    with pytest.raises(SourceError) as replaced:
        reader.read()
    assert replaced.value.code == "stream-replaced"
    client.set("text", "x")
    with pytest.raises(SourceError) as no_stream:
        source(url, stream="text").schema()
    assert no_stream.value.category is Category.CONFIGURATION


def test_hashes_are_rows_with_their_names_as_key(url, client):
    for n in (10, 9, 1):
        client.hset(f"user:{n}", mapping={"name": f"u{n}", "age": n})
    client.hset("users", "name", "another")
    client.set("user:text", "no hash")
    client.hset("user*:5", "name", "no wildcard")
    found = source(url, prefix="user:")
    assert found.schema().key == ("_key",)
    assert Reader(found).read() == [
        {"_key": 1, "name": "u1", "age": 1},
        {"_key": 9, "name": "u9", "age": 9},
        {"_key": 10, "name": "u10", "age": 10},
    ]
    assert [row["id"] for row in Reader(source(url, prefix="user:", key="id", limit="2")).read()] == [1, 9]
    assert source(url, prefix="nobody:").schema() is None


def test_hashes_are_read_again_and_the_difference_shows(url, client):
    client.hset("user:1", "name", "a")
    client.hset("user:2", "name", "b")
    reader = Reader(source(url, prefix="user:", watch="true"))
    assert [row["_key"] for row in reader.read()] == [1, 2]
    reader.read()
    client.hset("user:2", "name", "c")
    client.delete("user:1")
    assert reader.read() == ["replaced by", {"_key": 2, "name": "c"}]
    assert reader.read() == []


def test_what_is_no_value_of_its_column_is_set_aside(url, client):
    client.xadd("s", {"n": 1, "t": "x"})
    reader = Reader(source(url, stream="s"))
    odd = client.xadd("s", {"n": "one", "t": "x"})
    client.xadd("s", {"n": 2, "t": b"\xff"})
    client.xadd("s", {"n": 3})
    assert [row["n"] for row in reader.read()] == [1, 3]
    assert sorted(bad.reason.split()[3] for bad in reader.bad) == ["BIGINT,", "STRING,"]
    assert any(bad.position == odd.decode() and b'"one"' in bad.raw for bad in reader.bad)


@pytest.mark.parametrize("options", [{}, {"stream": "s", "prefix": "p"}, {"prefix": "p", "key": "a,b"}])
def test_options_that_say_nothing_are_refused_at_once(url, options):
    with pytest.raises(OptionError):
        source(url, **options)


def test_a_server_that_went_away_is_followed_when_it_is_back():
    with RedisService() as server:
        with redis.Redis.from_url(server.url) as client:
            client.xadd("s", {"n": 1})
        found = source(server.url.removesuffix("/0"), stream="s")
        start = found.initial_offset()
        end = found.latest_offset(start)
        with server.stopped(), pytest.raises(SourceError) as away:
            found.latest_offset(end)
        assert away.value.category is Category.NETWORK
        with redis.Redis.from_url(server.url) as client:
            client.xadd("s", {"n": 2})
        assert found.latest_offset(end) != end
        found.close()


def test_a_password_shows_nowhere(url, monkeypatch):
    monkeypatch.setenv("REDIS_PASSWORD", "p@ss:w/rd")
    place = url.partition("://")[2]
    secret = source(f"redis://stranger:${{REDIS_PASSWORD}}@{place}", stream="s")
    with pytest.raises(SourceError) as refused:
        secret.schema()
    assert refused.value.category is Category.AUTHENTICATION
    assert "p@ss" not in render_text(refused.value) + repr(secret.driver)


def test_a_missing_driver_is_named(url, monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(StoreError) as missing:
        source(url, stream="s").schema()
    assert "velostream[redis]" in missing.value.hint
