"""The kind `redis` beyond the suite for all tables: connecting, hashes of the user's, expiry, sorted sets."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from velostream.errors import Category, NotFoundError, StateError, StoreError, TableError, UnsupportedError
from velostream.model.change import CHANGE, Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec
from velostream.tables.memory.compare import hashable_rows
from velostream.tables.memory.evaluate import evaluate_expression
from velostream.tables.redis.table import RedisTable
from velostream.testing.services.redis import RedisService
from velostream.testing.table_cases import BAG, KEYED, content, rows_of, write


class Database:
    """A database of the test's own."""

    def __init__(self) -> None:
        self.url = RedisService.shared().new_database()
        self.client = redis.Redis.from_url(self.url, decode_responses=True)
        self._tables = []

    def open(self, name="t", schema=KEYED, id_=None, **options):
        given_options = {"url": self.url, "table": name, **{key.replace("_", "."): v for key, v in options.items()}}
        table = RedisTable.open(TableSpec(id_ or name, name, schema, given_options))
        self._tables.append(table)
        return table

    def close(self):
        for table in self._tables:
            table.close()
        self.client.flushdb()
        self.client.close()


@pytest.fixture
def database() -> Iterator[Database]:
    made = Database()
    yield made
    made.close()


def opening_error(url, **options):
    spec = TableSpec("t", "t", KEYED, {"url": url, "connect.timeout": "300ms", "retry.timeout": "0s", **options})
    with pytest.raises(StoreError) as caught:
        RedisTable.open(spec)
    return caught.value


class TestConnecting:  # B54
    def test_a_wrong_password_is_said_and_not_told(self, database):
        for error in (
            opening_error(database.url.replace("://", "://ann:s3cret@")),
            opening_error(database.url, username="ann", password="s3cret"),
        ):
            assert error.category is Category.AUTHENTICATION
            assert "s3cret" not in f"{error} {error!r} {error.__cause__!r}"

    def test_nobody_listens(self):
        assert opening_error("redis://127.0.0.1:1/0").category is Category.NETWORK

    @pytest.mark.parametrize("url", ["redis://h:x/0", "nonsense", "http://ann:s3cret@h/db"])
    def test_an_address_that_is_none(self, url):
        error = opening_error(url)
        assert error.category is Category.CONFIGURATION
        assert "s3cret" not in f"{error} {error.__cause__!r}"

    def test_a_database_that_is_not_there(self, database):
        missing = database.url.rsplit("/", 1)[0] + "/99999"
        assert opening_error(missing).category is Category.CONFIGURATION


class TestHashesOfTheUser:
    def test_fields_that_are_no_columns_stay(self, database):
        database.client.hset("t:1", mapping={"name": "a", "note": "theirs"})
        database.client.hset("t:2", mapping={"name": "b", "amount": "1.5"})
        table = database.open()
        table.commit(write(Mode.UPSERT, (1, None, Decimal("2.50")), (3, "c")))
        assert database.client.hgetall("t:1") == {"amount": "2.50", "note": "theirs"}
        assert database.client.hgetall("t:3") == {"name": "c"}
        assert content(table.snapshot().scan()) == content(
            rows_of(KEYED, (1, None, Decimal("2.50")), (2, "b", Decimal("1.50")), (3, "c"))
        )

    def test_the_key_is_written_where_theirs_have_it(self, database):
        database.client.hset("t:1", mapping={"id": "1", "name": "a", "amount": "1"})
        database.open().commit(write(Mode.APPEND, (2, "b")))
        assert database.client.hgetall("t:2") == {"id": "2", "name": "b"}

    def test_what_does_not_fit_is_named(self, database):
        database.client.hset("t:one", mapping={"name": "a", "amount": "much"})
        with pytest.raises(StateError) as caught:
            database.open()
        assert 'column "id"' in caught.value.detail
        assert 'column "amount"' in caught.value.detail

    def test_keys_must_be_written_as_they_will_be_looked_up(self, database):
        database.client.hset("t:007", mapping={"name": "a", "amount": "1"})
        with pytest.raises(StateError) as caught:
            database.open()
        assert "007" in caught.value.detail

    def test_names_of_other_things_are_no_rows(self, database):
        database.client.hset("t:1", mapping={"name": "a", "amount": "1"})
        database.client.hset("t:1:orders", mapping={"total": "5"})
        database.client.set("t:counter", "5")
        schema = Schema.of(("id", "STRING"), ("name", "STRING"), ("amount", "DECIMAL(10,2)"), key=["id"])
        table = database.open(schema=schema)
        assert table.snapshot().scan().column("id").to_pylist() == ["1"]
        assert not table.snapshot().contains("1:orders")
        with pytest.raises(TableError):
            table.commit(write(Mode.APPEND, ("1:orders", "x"), schema=schema))

    def test_read_only_writes_nothing_to_the_store(self, database):
        database.client.hset("t:1", mapping={"name": "a", "amount": "1"})
        table = database.open(access="read-only")
        assert table.snapshot().get(1)["name"] == "a"
        for refused in (lambda: table.commit(write(Mode.UPSERT, (1, "b"))), table.exclusive, table.follow):
            with pytest.raises(UnsupportedError):
                refused()
        table.drop()
        assert database.client.keys() == ["t:1"]
        with pytest.raises(NotFoundError):
            database.open("nothing", access="read-only")

    def test_dropping_a_table_leaves_those_whose_names_begin_alike(self, database):
        short, long = database.open("a"), database.open("a:b")
        for table in (short, long):
            table.commit(write(Mode.APPEND, (1, "x")))
        short.drop()
        assert long.snapshot().count() == 1
        assert not database.client.exists("a:1", "a::meta", "a::rows")


class TestLayout:
    def test_rows_are_readable_by_other_programs(self, database):
        table = database.open()
        table.commit(write(Mode.APPEND, (1, "a", Decimal("1.50")), (2, None, None)))
        assert database.client.hgetall("t:1") == {"id": "1", "name": "a", "amount": "1.50"}
        assert database.client.hgetall("t:2") == {"id": "2"}

    def test_rows_without_a_value_are_rows(self, database):
        bag = database.open(schema=BAG)
        bag.commit(Write(Mode.APPEND, rows_of(BAG, (), ())))
        keyed = database.open("keyed")
        keyed.commit(Write(Mode.APPEND, rows_of(KEYED, ())))
        assert (bag.snapshot().count(), keyed.snapshot().count()) == (2, 1)
        assert keyed.snapshot().get(None).as_dict() == {"id": None, "name": None, "amount": None}

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sets(st.tuples(st.text(",:% a\0é", max_size=3) | st.none(), st.none() | st.integers(0, 3)), max_size=6))
    def test_different_keys_are_different_rows(self, database, keys):
        schema = Schema.of(("a", "STRING"), ("b", "INT"), ("v", "INT"), key=["a", "b"])
        table = database.open(schema=schema)
        rows = [(*key, number) for number, key in enumerate(keys)]
        table.commit(write(Mode.REPLACE, *rows, schema=schema))
        assert content(table.snapshot().scan()) == content(rows_of(schema, *rows))


class TestExpiry:
    def test_rows_expire(self, database):
        table = database.open(ttl="50ms", index="id")
        table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
        snapshot = table.snapshot()
        _wait(lambda: snapshot.count() == 0)
        assert snapshot.get(1) is None
        assert snapshot.scan().num_rows == 0
        table.commit(write(Mode.APPEND, (1, "again")))
        assert snapshot.scan().column("name").to_pylist() == ["again"]
        assert database.client.zcard("t::rows") == database.client.zcard("t::index:id") - 1 == 1

    def test_a_write_makes_a_row_young(self, database):
        table = database.open(ttl="1h")
        table.commit(write(Mode.APPEND, (1, "a")))
        database.client.pexpire("t:1", 1000)
        table.commit(write(Mode.UPSERT, (1, "b")))
        assert database.client.pttl("t:1") > 3_000_000

    def test_what_expires_unseen_is_not_followed(self, database):
        with pytest.raises(UnsupportedError):
            database.open(ttl="1h").follow()


_RANKED = Schema.of(
    ("n", "BIGINT"), ("x", "DOUBLE"), ("price", "DECIMAL(38,10)"), ("at", "TIMESTAMP"), ("name", "STRING")
)
_VALUES = {
    "n": [-(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1],
    "x": [-math.inf, -0.0, 0.1, 1e300, math.inf, math.nan],
    "price": [Decimal("0.0000000001"), Decimal(10**27), Decimal(10**27) + Decimal("0.0000000001"), Decimal(-1)],
    "at": [datetime(year, 1, 1, 0, 0, 0, 1, tzinfo=UTC) for year in (1, 2024, 9999)],
    "name": ["a"],
}
_ROWS = [
    tuple(_VALUES[name][number % len(_VALUES[name])] if number % 7 else None for name in _RANKED.names)
    for number in range(24)
]


@pytest.fixture(scope="module")
def ranked() -> Iterator[RedisTable]:
    made = Database()
    table = made.open(schema=_RANKED, index="n, x, price, at")
    table.commit(write(Mode.APPEND, *_ROWS, schema=_RANKED))
    yield table
    made.close()


class TestSortedSets:
    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_a_range_gives_what_a_look_at_every_row_gives(self, ranked, data):
        column = data.draw(st.sampled_from(["n", "x", "price", "at"]))
        type_ = _RANKED.column(column).type
        operators = st.sampled_from(["=", "<", "<=", ">", ">="])
        bounds = [
            Call(data.draw(operators), (ColumnRef(column), Literal(data.draw(st.sampled_from(_VALUES[column])), type_)))
            for _ in range(data.draw(st.integers(1, 2)))
        ]
        condition = bounds[0] if len(bounds) == 1 else Call("and", tuple(bounds))
        if all(math.isfinite(bound.arguments[1].value) for bound in bounds if column == "x"):
            assert ranked.compile_condition(condition).access == "index"
        everything = ranked.snapshot().scan()
        expected = everything.filter(evaluate_expression(condition, everything))
        assert hashable_rows(ranked.snapshot().scan(condition)) == hashable_rows(expected)
        assert ranked.snapshot().count(condition) == expected.num_rows

    def test_sets_follow_the_rows(self, database):
        table = database.open(index="amount")
        table.commit(write(Mode.APPEND, (1, "a", Decimal(1)), (2, "b", Decimal(2)), (3, "c", Decimal(3))))
        table.commit(write(Mode.UPSERT, (1, "a", Decimal(9)), (2, "b", None)))
        table.commit(Write(Mode.DELETE, pa.table({"id": [3]})))
        over = Call(">", (ColumnRef("amount"), Literal(Decimal(0), KEYED.column("amount").type)))
        assert table.compile_condition(over).access == "index"
        assert table.snapshot().scan(over).column("id").to_pylist() == [1]
        assert database.client.zrange("t::index:amount", 1, -1, withscores=True) == [("1", 9.0)]

    def test_a_column_without_an_order_of_numbers_is_refused(self, database):
        with pytest.raises(UnsupportedError) as caught:
            database.open(index="name")
        assert "a sorted set ranks numbers" in caught.value.detail
        assert not database.client.keys()

    def test_an_index_holds_for_every_object_of_the_table(self, database):
        first, second = database.open(), database.open()
        first.commit(write(Mode.APPEND, (1, "a", Decimal(1)), (2, "b", None)))
        first.create_index(["amount"])
        first.create_index(["Amount"])
        second.commit(write(Mode.UPSERT, (3, "c", Decimal(3)), (1, "a", Decimal(2))))
        over = Call(">", (ColumnRef("amount"), Literal(Decimal(1), KEYED.column("amount").type)))
        for table in (first, second):
            assert table.compile_condition(over).access == "index"
            assert table.snapshot().scan(over).column("id").to_pylist() == [1, 3]
        first.drop_index(["amount"])
        assert first.compile_condition(over).access == "scan"
        assert second.snapshot().scan(over).column("id").to_pylist() == [1, 3]


class Swallowing:
    """A way to the server on which the next answer can be lost, after the server has done what it was asked."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lose_answer = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            for source, sink, answers in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._forward, args=(source, sink, answers), daemon=True).start()

    def _forward(self, source, sink, answers):
        with source, sink:
            try:
                while data := source.recv(65536):
                    if answers and self.lose_answer.is_set():
                        self.lose_answer.clear()
                        break
                    sink.sendall(data)
            except OSError:
                pass
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def close(self):
        self._listener.close()


def test_a_commit_whose_answer_got_lost_is_not_done_twice(database):
    server = RedisService.shared()
    way = Swallowing(int(database.url.rsplit(":", 1)[1].split("/")[0]))
    options = {"url": database.url.replace(f":{server.port}/", f":{way.port}/"), "table": "t"}
    table = RedisTable.open(TableSpec("t", "t", BAG, options))
    commit = table._connection.commit

    def commit_unheard(keys, arguments):
        way.lose_answer.set()
        return commit(keys, arguments)

    table._connection.commit = commit_unheard
    assert table.commit(write(Mode.APPEND, (1, "a"))) == 1
    assert not way.lose_answer.is_set()
    assert table.snapshot().count() == 1
    table.close()
    way.close()


def test_changes_are_kept_as_far_back_as_asked_for(database):
    table = database.open(history="2")
    table.commit(write(Mode.APPEND, (1, "a")))
    since = table.follow()
    for name in "bcd":
        table.commit(write(Mode.UPSERT, (1, name)))
    with pytest.raises(TableError) as caught:
        table.changes(since)
    assert caught.value.code == "changes-expired"
    kept = table.changes(table.version - 2).arrow
    assert [(row["name"], row[CHANGE]) for row in kept.to_pylist()] == [("b", -1), ("d", 1)]


def test_a_commit_based_on_what_another_program_changed_is_a_conflict(database):
    mine, theirs = database.open(), database.open()
    mine.commit(write(Mode.APPEND, (1, "a", Decimal(1))))
    with mine.exclusive():
        seen = mine.snapshot().get(1)["amount"]
        theirs.commit(write(Mode.UPSERT, (1, "a", Decimal(5))))
        with pytest.raises(TableError) as caught:
            mine.commit(write(Mode.UPSERT, (1, "a", seen + 1)))
    assert caught.value.code == "write-conflict"


def _wait(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_table_that_another_made_stays_when_its_adopter_drops_it(database):
    made = database.open(id_="first")
    made.commit(write(Mode.APPEND, (1, "a")))
    adopted = database.open(id_="second")
    assert (adopted.origin.id, adopted.origin.made) == ("first", True)
    adopted.drop()
    assert made.snapshot().count() == 1
    made.drop()
    assert not database.client.exists("t::meta")


def test_what_is_to_be_replaced_stays_if_the_new_table_can_not_be_made(database):
    made = database.open(id_="first")
    made.commit(write(Mode.APPEND, (1, "a")))
    with pytest.raises(NotFoundError, match="nothing"):
        database.open(id_="second", if_exists="replace", index="nothing")
    assert made.snapshot().count() == 1
