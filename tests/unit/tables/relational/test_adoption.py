"""Tables that are there already: adopted, attached, refused, replaced."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import (
    AlreadyExistsError,
    Category,
    NotFoundError,
    StateError,
    StoreError,
    TableError,
    UnsupportedError,
)
from velostream.model.change import Mode, Write
from velostream.model.expression import ColumnRef
from velostream.model.schema import Column, Schema
from velostream.testing.table_cases import BAG, KEYED, content, equals, rows_of, write


@pytest.fixture
def theirs(store):
    store.theirs.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(20) COLLATE NOCASE, amount NUMERIC)")
    store.theirs.execute("INSERT INTO t VALUES (1, 'a', 1.5), (2, NULL, '2.25'), (3, 'A', 7)")
    return store.theirs


def test_numbers_of_others_are_exact_decimals(store, theirs):
    found = store.open().snapshot().scan()
    expected = [(1, "a", Decimal("1.50")), (2, None, Decimal("2.25")), (3, "A", Decimal("7.00"))]
    assert content(found) == content(rows_of(KEYED, *expected))


def test_a_collation_of_theirs_does_not_change_our_answers(store, theirs):
    table = store.open()
    assert table.snapshot().count(equals("name", "a", pa.string())) == 1
    assert table.snapshot().lookup_by(["name"], pa.array(["A"]), ["id"]).column("id").to_pylist() == [3]


def test_a_key_of_theirs_that_ignores_case_is_ours_by_its_bytes(store):
    store.theirs.execute("CREATE TABLE k (name TEXT COLLATE NOCASE NOT NULL UNIQUE, n INTEGER)")
    store.theirs.execute("INSERT INTO k VALUES ('a', 1)")
    schema = Schema((Column("name", pa.string(), nullable=False), Column("n", pa.int32())), ("name",))
    table = store.open("k", schema)
    assert not table.contains("A")
    table.commit(Write(Mode.DELETE, pa.table({"name": ["A"]})))
    assert table.contains("a")


def test_notations_of_theirs_are_compared_by_us(store):
    """2 is true as well, and 0.1 is the float nearest to it."""
    store.theirs.execute("CREATE TABLE f (n INTEGER, ok BOOLEAN, ratio REAL, day TEXT)")
    store.theirs.execute("INSERT INTO f VALUES (1, 2, 0.1, '2024-05-01 00:00:00'), (2, 0, 0.2, '2024-05-02')")
    schema = Schema.of(("n", "INT"), ("ok", "BOOLEAN"), ("ratio", "FLOAT"), ("day", "DATE"))
    snapshot = store.open("f", schema).snapshot()
    for condition in (
        ColumnRef("ok"),
        equals("ratio", 0.1, pa.float32()),
        equals("day", date(2024, 5, 1), pa.date32()),
    ):
        assert snapshot.scan(condition, ["n"]).column("n").to_pylist() == [1]


def test_a_primary_key_of_theirs_may_hold_null(store):
    store.theirs.execute("CREATE TABLE p (name TEXT PRIMARY KEY, n INTEGER)")
    schema = Schema.of(("name", "STRING"), ("n", "INT"), key=["name"])
    table = store.open("p", schema)
    table.commit(write(Mode.APPEND, (None, 1), ("a", 2), schema=schema))
    with pytest.raises(TableError, match="None exists already"):
        table.commit(write(Mode.APPEND, (None, 3), schema=schema))


def test_what_differs_is_shown(store, theirs):
    schema = Schema.of(("id", "BIGINT"), ("name", "BINARY"), ("paid", "DATE"), key=["id"])
    with pytest.raises(StateError) as caught:
        store.open(schema=schema)
    assert caught.value.code == "schema-mismatch"
    assert caught.value.detail == 'column "name" is VARCHAR(20), not BINARY; column "paid" DATE is not there'


def test_a_column_that_would_get_no_value_is_refused_unless_nothing_is_written(store):
    store.theirs.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, amount TEXT, needed TEXT NOT NULL)")
    with pytest.raises(StateError, match="other columns"):
        store.open()
    assert store.open(access="read-only").snapshot().count() == 0


def test_other_columns_of_theirs_stay_as_they_are(store):
    store.theirs.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, amount TEXT, extra TEXT)")
    store.theirs.execute("INSERT INTO t VALUES (1, 'a', NULL, 'theirs')")
    store.open().commit(write(Mode.UPSERT, (1, "ours")))
    assert store.theirs.execute("SELECT name, extra FROM t").fetchall() == [("ours", "theirs")]


def test_a_key_that_theirs_does_not_hold_is_held_by_us(store):  # B49
    store.theirs.execute("CREATE TABLE t (id INTEGER, name TEXT, amount TEXT)")
    table = store.open()
    table.commit(write(Mode.APPEND, (1, "a"), (None, "n")))
    for key in (1, None):
        with pytest.raises(TableError) as caught:
            table.commit(write(Mode.APPEND, (2, "b"), (key, "again")))
        assert caught.value.code == "duplicate-key"
        assert repr(key) in caught.value.message
    table.commit(write(Mode.UPSERT, (None, "m"), (1, "A"), (3, "c")))
    assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "A"), (None, "m"), (3, "c")))


def test_a_value_that_is_none_of_the_type_is_an_error_with_its_column(store):
    store.theirs.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, amount NUMERIC)")
    store.theirs.execute("INSERT INTO t VALUES (1, 'a', 'many')")
    with pytest.raises(TableError, match='column "amount"'):
        store.open().snapshot().scan()


def test_a_view_is_attached_read_only(store, theirs):
    theirs.execute("CREATE VIEW v AS SELECT id, name, amount FROM t WHERE id < 3")
    view = store.open("v", access="read-only")
    assert view.snapshot().scan(columns=["id"]).column("id").to_pylist() == [1, 2]
    assert [batch.num_rows for batch in view.snapshot().batches(1)] == [1, 1]
    for refused in (
        lambda: view.commit(write(Mode.APPEND, (9, "x"))),
        view.follow,
        view.exclusive,
        lambda: view.changes(0),
    ):
        with pytest.raises(UnsupportedError) as caught:
            refused()
        assert caught.value.code == "unsupported-capability"


def test_read_only_writes_nothing_to_the_store(store, theirs):
    before = theirs.execute("SELECT name FROM sqlite_master").fetchall()
    table = store.open(access="read-only")
    assert table.get(1)["name"] == "a"
    table.drop()
    assert theirs.execute("SELECT name FROM sqlite_master").fetchall() == before
    assert theirs.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_table_of_ours_attached_read_only_has_its_version(store):
    ours = store.open()
    ours.commit(write(Mode.APPEND, (1, "a")))
    since = ours.follow()
    ours.commit(write(Mode.APPEND, (2, "b")))
    attached = store.open(access="read-only", id_="other")
    assert attached.version == ours.version
    assert attached.changes(since).arrow.column("id").to_pylist() == [2]


def test_read_only_needs_something_to_read(store):
    with pytest.raises(StoreError) as caught:
        store.open(access="read-only")
    assert caught.value.category is Category.MISSING
    store.theirs.execute("CREATE TABLE other (id INTEGER)")
    with pytest.raises(NotFoundError):
        store.open(access="read-only")


def test_if_exists(store, theirs):
    with pytest.raises(AlreadyExistsError):
        store.open(if_exists="fail")
    replaced = store.open(if_exists="replace")
    assert replaced.snapshot().count() == 0
    replaced.commit(write(Mode.APPEND, (1, "a")))
    # The same table found again is neither in the way nor replaced.
    for choice in ("fail", "replace"):
        assert store.open(if_exists=choice).snapshot().count() == 1
    replaced.drop()
    assert theirs.execute("SELECT count(*) FROM sqlite_master WHERE name = 't'").fetchone() == (0,)


def test_names_of_sqlites_own_may_be_columns(store):
    schema = Schema.of(("rowid", "STRING"), ("_rowid_", "INT"))
    table = store.open(schema=schema)
    table.commit(write(Mode.APPEND, ("b", 1), ("a", 2), ("b", 1), schema=schema))
    table.commit(write(Mode.DELETE, ("b", 1), schema=schema))
    assert table.snapshot().scan().column("rowid").to_pylist() == ["b", "a"]


def test_rows_that_nothing_tells_apart_can_not_be_removed(store):
    store.theirs.execute("CREATE TABLE t (id INTEGER, name TEXT, amount TEXT, PRIMARY KEY (id)) WITHOUT ROWID")
    table = store.open(schema=BAG)
    table.commit(write(Mode.APPEND, (1, "a")))
    with pytest.raises(UnsupportedError, match="delete"):
        table.commit(write(Mode.DELETE, (1, "a")))


def test_what_others_see_of_a_table_of_ours(store):
    schema = Schema.of(
        ("amount", "DECIMAL(10,2)"), ("day", "DATE"), ("ratio", "DOUBLE"), ("tags", "ARRAY<STRING>"), ("ok", "BOOLEAN")
    )
    table = store.open(schema=schema)
    table.commit(write(Mode.APPEND, (Decimal("1.50"), date(2024, 2, 29), float("nan"), ["x"], True), schema=schema))
    assert store.theirs.execute("SELECT * FROM t").fetchall() == [("1.50", "2024-02-29", "NaN", '["x"]', 1)]


def test_a_table_that_another_made_stays_when_its_adopter_drops_it(store):
    made = store.open(id_="first")
    made.commit(write(Mode.APPEND, (1, "a")))
    adopted = store.open(id_="second")
    assert (adopted.origin.id, adopted.origin.made) == ("first", True)
    adopted.drop()
    assert made.version == 1
    assert made.get(1)["id"] == 1
    made.drop()
    assert store.theirs.execute("SELECT name FROM sqlite_master WHERE name = 't'").fetchall() == []
