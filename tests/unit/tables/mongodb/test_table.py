"""The kind `mongodb` beyond the suite for all tables: connecting, the user's collections, snapshots, indexes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from bson.decimal128 import Decimal128
from pymongo import MongoClient

from velostream.errors import Category, NotFoundError, OptionError, StateError, StoreError, TableError, UnsupportedError
from velostream.model.change import CHANGE, Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.grouping import Grouping, Measure, MeasureKind
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec, TableWrites
from velostream.tables.mongodb.table import MongodbTable
from velostream.testing.services.mongodb import MongodbService
from velostream.testing.table_cases import BAG, KEYED, content, equals, keys, rows_of, write


class Database:
    """A database of the test's own."""

    def __init__(self) -> None:
        self.url = MongodbService.shared().new_database()
        self.client = MongoClient(self.url)
        self.own = self.client.get_default_database()
        self._tables = []

    def open(self, name="t", schema=KEYED, id_=None, **options):
        given = {"url": self.url, "table": name, **{key.replace("_", "."): value for key, value in options.items()}}
        table = MongodbTable.open(TableSpec(id_ or name, name, schema, given))
        self._tables.append(table)
        return table

    def close(self):
        for table in self._tables:
            table.close()
        self.client.drop_database(self.own.name)
        self.client.close()


@pytest.fixture
def database() -> Iterator[Database]:
    made = Database()
    yield made
    made.close()


def opening_error(url, **options):
    spec = TableSpec("t", "t", KEYED, {"url": url, "connect.timeout": "300ms", **options})
    with pytest.raises(StoreError) as caught:
        MongodbTable.open(spec)
    return caught.value


class TestConnecting:  # B54
    def test_a_wrong_password_is_said_and_not_told(self, database):
        error = opening_error(database.url.replace("://", "://ann:s3cret@"))
        assert error.category is Category.AUTHENTICATION
        told = opening_error(database.url, username="ann", password="s3cret")
        assert told.category is Category.AUTHENTICATION
        for shown in (error, told):
            assert "s3cret" not in f"{shown} {shown!r} {shown.__cause__!r}"

    def test_nobody_listens(self):
        assert opening_error("mongodb://127.0.0.1:1/shop").category is Category.NETWORK

    @pytest.mark.parametrize("url", ["mongodb://", "mongodb://h:x/db", "nonsense", "mongodb://ann:s3/cret@h/db"])
    def test_an_address_that_is_none(self, url):
        error = opening_error(url)
        assert error.category is Category.CONFIGURATION
        assert "cret" not in f"{error} {error.__cause__!r}"

    def test_an_address_without_a_database(self, database):
        error = opening_error(database.url.replace(f"/{database.own.name}", "/"))
        assert error.category is Category.CONFIGURATION
        assert error.detail == "the address names no database"

    def test_a_server_without_a_replica_set(self):
        class Standalone(MongodbService):
            def command(self):
                return [part for part in super().command() if part not in ("--replSet", "rs0")]

            def own_url(self):
                return f"mongodb://127.0.0.1:{self.port}/test"

            def ask(self):
                with self._client() as client:
                    client.admin.command("ping")

        with Standalone() as server:
            error = opening_error(server.url)
        assert error.category is Category.CONFIGURATION
        assert "--replSet" in error.hint

    def test_without_an_address(self):
        with pytest.raises(OptionError, match='needs the option "url"'):
            MongodbTable.open(TableSpec("t", "t", KEYED))


class TestCollectionsOfTheUser:
    def test_fields_that_are_no_columns_stay(self, database):
        database.own.t.insert_many([{"id": 1, "name": "a", "amount": None, "tags": ["x"]}])
        table = database.open()
        table.commit(write(Mode.UPSERT, (1, "b", Decimal("2.50"))))
        (found,) = database.own.t.find({}, {"_id": 0})
        assert found == {"id": 1, "name": "b", "amount": Decimal128("2.50"), "tags": ["x"]}

    def test_a_key_that_is_none_is_refused(self, database):
        database.own.t.insert_many([{"id": 1, "name": name, "amount": None} for name in "ab"])
        with pytest.raises(StateError, match="same key"):
            database.open()

    def test_values_of_other_types_are_named(self, database):
        database.own.t.insert_one({"id": "one", "name": "a", "amount": 1.5})
        with pytest.raises(StateError) as caught:
            database.open()
        assert 'column "id"' in caught.value.detail
        assert 'column "amount"' in caught.value.detail

    def test_read_only_writes_nothing_to_the_store(self, database):
        database.own.t.insert_one({"id": 1, "name": "a", "amount": None})
        table = database.open(access="read-only")
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a", None)))
        for refused in (lambda: table.commit(write(Mode.UPSERT, (1, "b"))), table.exclusive, table.follow):
            with pytest.raises(UnsupportedError):
                refused()
        table.drop()
        assert database.own.list_collection_names() == ["t"]

    def test_the_key_may_be_mongodbs_own(self, database):
        database.own.t.insert_one({"_id": "a", "at": datetime(2024, 1, 1, 12)})  # noqa: DTZ001
        schema = Schema.of(("_id", "STRING"), ("at", "TIMESTAMP"), key=["_id"])
        table = database.open(schema=schema)
        table.commit(write(Mode.UPSERT, ("b", datetime(2024, 1, 2, tzinfo=UTC)), schema=schema))
        assert table.snapshot().lookup(pa.array(["b", "a"])).column("_id").to_pylist() == ["b", "a"]
        assert database.own.t.find_one({"_id": "b"})["at"] == datetime(2024, 1, 2)  # noqa: DTZ001

    def test_a_bag_over_them(self, database):
        rows = [(1, "a"), (1, "a"), (2, None)]
        database.own.t.insert_many([{"id": id_, "name": name, "amount": None} for id_, name in rows])
        table = database.open(schema=BAG)
        table.commit(write(Mode.DELETE, (1, "a"), (2, None), (3, "nobody")))
        assert content(table.snapshot().scan()) == content(rows_of(BAG, (1, "a")))


class TestSnapshots:
    def test_a_snapshot_is_one_instant(self, database):  # B33
        table = database.open()
        table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
        before = table.snapshot()
        table.commit(write(Mode.UPSERT, (1, "A"), (3, "c")))
        database.own.t.delete_one({"_id": 2})
        assert content(before.scan()) == content(rows_of(KEYED, (1, "a"), (2, "b")))
        assert (before.count(), before.contains(3), before.get(1)["name"]) == (2, False, "a")
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "A"), (3, "c")))

    def test_several_tables_are_seen_before_or_after_a_commit(self, database):  # B50
        first, second = database.open("first"), database.open("second")
        row = write(Mode.APPEND, (1, "a"))
        first.commit_together([TableWrites(first, [row]), TableWrites(second, [row, keys(1)])])
        assert (first.version, second.version) == (1, 0)
        assert (first.snapshot().count(), second.snapshot().count()) == (1, 0)

    def test_changes_are_kept_as_far_back_as_asked_for(self, database):
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


class TestIndexes:
    def test_an_index_is_used_and_given_up(self, database):
        table = database.open()
        table.commit(write(Mode.APPEND, *((number, f"n{number}") for number in range(50))))
        condition = equals("name", "n7", pa.string())
        assert table.compile_condition(condition).access == "scan"
        table.create_index(["name"])
        table.create_index(["name"])
        assert table.compile_condition(condition).access == "index"
        explained = database.own.t.find(table.compile_condition(condition).filter).explain()
        assert "IXSCAN" in str(explained["queryPlanner"]["winningPlan"])
        assert table.snapshot().scan(condition).column("id").to_pylist() == [7]
        table.drop_index(["name"])
        assert table.compile_condition(condition).access == "scan"

    def test_the_option_makes_them(self, database):
        table = database.open(index="name; amount, name")
        assert [index for index in table.stats()["indexes"] if index != ["id"]] == [["name"], ["amount", "name"]]


def test_a_commit_based_on_what_another_program_changed_is_a_conflict(database):
    mine, theirs = database.open(), database.open()
    mine.commit(write(Mode.APPEND, (1, "a", Decimal(1))))
    with mine.exclusive():
        seen = mine.snapshot().get(1)["amount"]
        theirs.commit(write(Mode.UPSERT, (1, "a", Decimal(5))))
        with pytest.raises(TableError) as caught:
            mine.commit(write(Mode.UPSERT, (1, "a", seen + 1)))
    assert caught.value.code == "write-conflict"
    assert mine.snapshot().get(1)["amount"] == 5


def test_a_table_made_again_is_another_one(database):
    old = database.open()
    old.drop()
    new = database.open(id_="another")
    new.commit(write(Mode.APPEND, (1, "a")))
    with pytest.raises(Exception, match="does not exist"):
        old.commit(write(Mode.APPEND, (2, "b")))
    old.drop()
    assert new.snapshot().count() == 1


def test_rows_without_a_value_are_rows(database):
    table = database.open(schema=BAG)
    table.commit(Write(Mode.APPEND, rows_of(BAG, (), ())))
    assert table.snapshot().count() == 2


def test_a_table_that_another_made_stays_when_its_adopter_drops_it(database):
    made = database.open(id_="first")
    made.commit(write(Mode.APPEND, (1, "a")))
    adopted = database.open(id_="second")
    assert (adopted.origin.id, adopted.origin.made) == ("first", True)
    adopted.drop()
    assert made.snapshot().count() == 1
    made.drop()
    assert "t" not in database.own.list_collection_names()


def test_tables_of_two_clients_are_not_committed_together(database):
    one, alike, other = database.open("a"), database.open("b"), database.open("c", pool_size="3")
    assert one.commit_group == alike.commit_group != other.commit_group
    with pytest.raises(UnsupportedError):
        one.commit_together([TableWrites(one, [write(Mode.APPEND, (1, "a"))]), TableWrites(other, [])])


def test_what_is_to_be_replaced_stays_if_the_new_table_can_not_be_made(database):
    made = database.open(id_="first")
    made.commit(write(Mode.APPEND, (1, "a")))
    with pytest.raises(NotFoundError, match="nothing"):
        database.open(id_="second", if_exists="replace", index="nothing")
    assert made.snapshot().count() == 1


class TestGroups:
    BY_NAME = Grouping((Measure(MeasureKind.COUNT), Measure(MeasureKind.SUM, "id")), ("name",))

    def test_the_users_collection_is_grouped_as_long_as_its_fields_are_what_the_columns_say(self, database):
        database.own["t"].insert_many([{"id": 1, "name": "a"}, {"id": 2**40, "name": "a"}, {"id": 3}])
        table = database.open(schema=Schema.of(("id", "BIGINT"), ("name", "STRING"), key=["id"]), access="read-only")
        found = table.snapshot().group(self.BY_NAME)
        assert sorted(found.to_pylist(), key=str) == [
            {"g0": "a", "m0": 2, "m1": Decimal(2**40 + 1)},
            {"g0": None, "m0": 1, "m1": Decimal(3)},
        ]
        database.own["t"].insert_one({"id": 4, "name": 5})
        assert table.snapshot().group(self.BY_NAME) is None
        only_fitting = Grouping(self.BY_NAME.measures, ("name",), equals("name", "a", pa.string()))
        assert table.snapshot().group(only_fitting).num_rows == 1

    def test_what_is_grouped_where_is_said(self, database):
        table = database.open()
        assert "$group" in table.compile_grouping(self.BY_NAME)
        assert table.compile_grouping(Grouping((Measure(MeasureKind.SUM, "amount"),))) is not None
        for left in (
            # Several of these at once would be kept in the server's memory.
            Grouping((Measure(MeasureKind.DISTINCT, "name"), Measure(MeasureKind.COUNT))),
            Grouping((Measure(MeasureKind.COUNT),), (), Call("like", (ColumnRef("name"), Literal("%a", pa.string())))),
        ):
            assert table.compile_grouping(left) is None
        wide = database.open("wide", Schema.of(("id", "BIGINT"), ("x", "DECIMAL(30,2)"), ("f", "DOUBLE"), key=["id"]))
        for column in ("x", "f"):
            assert wide.compile_grouping(Grouping((Measure(MeasureKind.SUM, column),))) is None
