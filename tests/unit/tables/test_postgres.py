"""What is PostgreSQL's own: its types, its views, its errors, and other programs at the same tables."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from velostream.errors import Category, StoreError, TableError, UnsupportedError, VelostreamError
from velostream.model.change import Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Column, Schema
from velostream.tables.base import Table, TableSpec
from velostream.tables.postgres import PostgresTable
from velostream.tables.postgres_driver import failure_of
from velostream.tables.relational.dialect import Trouble
from velostream.testing.services.postgres import PostgresService

Open = Callable[..., PostgresTable]


@pytest.fixture(scope="module")
def url() -> str:
    return PostgresService.shared().new_database()


@pytest.fixture
def theirs(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Another program at the database."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def open_table(url: str) -> Iterator[Open]:
    opened: list[Table] = []

    def open_(schema: Schema, table: str, **options: str) -> PostgresTable:
        named = {name.replace("_", "."): value for name, value in options.items()}
        spec = TableSpec(table, table, schema, {"url": url, "table": table, "retry.timeout": "2s", **named})
        made = PostgresTable.open(spec)
        opened.append(made)
        return made

    yield open_
    for table in opened:
        table.close()


def rows_of(schema: Schema, *rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema.arrow)


def upsert(table: Table, *rows: tuple[Any, ...]) -> None:
    table.commit(Write(Mode.UPSERT, rows_of(table.schema, *rows)))


@pytest.mark.parametrize(
    ("state", "trouble", "category"),
    [
        ("3D000", Trouble.OTHER, Category.MISSING),
        ("42P01", Trouble.OTHER, Category.MISSING),
        ("28P01", Trouble.OTHER, Category.AUTHENTICATION),
        ("42501", Trouble.OTHER, Category.AUTHENTICATION),
        ("08006", Trouble.TRANSIENT, Category.NETWORK),
        ("57P01", Trouble.TRANSIENT, Category.NETWORK),
        ("53300", Trouble.TRANSIENT, Category.NETWORK),
        ("53100", Trouble.OTHER, Category.STATE),
        ("57014", Trouble.OTHER, Category.TIMEOUT),
        ("40P01", Trouble.TRANSIENT, Category.CONCURRENCY),
        ("23514", Trouble.CONSTRAINT, Category.DATA),
        ("22003", Trouble.CONSTRAINT, Category.DATA),
        ("42601", Trouble.OTHER, Category.CONFIGURATION),
    ],
)
def test_errors_are_told_by_their_codes(state: str, trouble: Trouble, category: Category):  # B4
    failure = failure_of(psycopg.errors.lookup(state)("so it is"), shown=str)
    assert (failure.trouble, failure.category) == (trouble, category)
    assert failure.connection_lost == (category is Category.NETWORK)


@pytest.mark.parametrize(
    ("change", "category"),
    [
        ({"database": "no_such_database"}, Category.MISSING),
        ({"username": "no_such_role"}, Category.AUTHENTICATION),
        ({"port": "1"}, Category.NETWORK),
    ],
)
def test_a_store_that_can_not_be_used_says_why_and_keeps_the_password(
    open_table: Open, change: dict[str, str], category: Category
):  # B54
    with pytest.raises(StoreError) as caught:
        open_table(Schema.of(("id", "INT"), key=["id"]), "t", password="hidden-word", **change)
    assert caught.value.category is category
    assert "hidden-word" not in str(caught.value)


def test_a_materialized_view_is_attached_and_seen_anew_when_refreshed(
    open_table: Open, theirs: psycopg.Connection[Any]
):
    theirs.execute("CREATE TABLE base (id int, v numeric(10,2))")
    theirs.execute("INSERT INTO base VALUES (1, 1.50)")
    theirs.execute("CREATE MATERIALIZED VIEW summed AS SELECT id, sum(v)::numeric(12,2) AS total FROM base GROUP BY id")
    schema = Schema.of(("id", "INT"), ("total", "DECIMAL(12,2)"), key=["id"])
    table = open_table(schema, "summed", access="read-only")
    stamp = table.stamp()
    assert table.stamp() == stamp
    assert table.snapshot().scan().to_pylist() == [{"id": 1, "total": Decimal("1.50")}]
    theirs.execute("INSERT INTO base VALUES (1, 2.25)")
    theirs.execute("REFRESH MATERIALIZED VIEW summed")
    assert table.stamp() != stamp
    assert table.snapshot().lookup(pa.array([1, 2], pa.int32()), ["total"]).to_pylist() == [
        {"_position": 0, "total": Decimal("3.75")}
    ]
    with pytest.raises(UnsupportedError):
        upsert(table, (1, Decimal(0)))
    assert theirs.execute("SELECT to_regclass('_velostream_tables')").fetchone() == (None,)


def test_a_view_can_not_tell_whether_it_changed(open_table: Open, theirs: psycopg.Connection[Any]):
    theirs.execute("CREATE VIEW seven AS SELECT 7 AS id")
    table = open_table(Schema.of(("id", "INT"), key=["id"]), "seven", access="read-only")
    assert table.stamp() is None
    assert table.snapshot().contains(7)


def test_texts_that_postgres_can_not_hold_keep_their_value_and_their_order(open_table: Open):
    schema = Schema.of(("k", "STRING"), ("v", "STRUCT<a: STRING, b: ARRAY<STRING>>"), key=["k"])
    table = open_table(schema, "odd_texts")
    texts = [
        "",
        "\0",
        "\0\0",
        "\0\x01",
        "\0a",
        "\x01",
        "\x01\0",
        "\x01\x01",
        "\x01\x02",
        "\x02",
        "a",
        "\\u0000",
        "\\\0",
    ]
    upsert(table, *((text, {"a": text, "b": [text, None]}) for text in texts))
    snapshot = table.snapshot()
    found = snapshot.scan().to_pylist()
    assert [row["k"] for row in found] == sorted(texts)
    assert all(row["v"] == {"a": row["k"], "b": [row["k"], None]} for row in found)
    assert snapshot.lookup(pa.array(texts), ["k"]).column("k").to_pylist() == texts
    for text in texts:
        below = Call("<", (ColumnRef("k"), Literal(text, pa.string())))
        assert snapshot.count(below) == sum(other < text for other in texts), repr(text)


def test_keys_may_be_longer_than_any_index_entry(open_table: Open, theirs: psycopg.Connection[Any]):
    table = open_table(Schema.of(("k", "STRING"), ("n", "BIGINT"), key=["k"]), "long_keys")
    # Random text, so that the server's compression doesn't make it short.
    keys = ["".join(uuid.uuid4().hex for _ in range(1000)) + end for end in ("a", "b")]
    upsert(table, *((key, 1) for key in keys))
    upsert(table, (keys[1], 2))
    assert [table.snapshot().get(key)["n"] for key in keys] == [1, 2]  # type: ignore[index]
    with pytest.raises(psycopg.errors.UniqueViolation):
        theirs.execute("INSERT INTO long_keys VALUES (%s, 3)", (keys[0],))
    theirs.execute("INSERT INTO long_keys VALUES ('written by others', 3)")
    assert table.snapshot().get("written by others")["n"] == 3  # type: ignore[index]


def test_an_index_takes_texts_of_any_length(open_table: Open):
    table = open_table(Schema.of(("id", "INT"), ("note", "STRING"), ("n", "INT"), key=["id"]), "noted")
    for columns in (["note"], ["n", "note"], ["n"], ["note"]):
        table.create_index(columns)
    note = "".join(uuid.uuid4().hex for _ in range(1000))
    upsert(table, (1, note, 1), (2, "short", 2))
    assert table.snapshot().lookup_by(["note"], pa.array([note]), ["id"]).to_pylist() == [{"_position": 0, "id": 1}]
    table.drop_index(["note"])
    assert table.snapshot().lookup_by(["note"], pa.array([note]), ["id"]).to_pylist() == [{"_position": 0, "id": 1}]


def test_columns_of_others_are_read_and_written_in_their_types(open_table: Open, theirs: psycopg.Connection[Any]):
    theirs.execute(
        "CREATE TABLE varied (id integer PRIMARY KEY, name varchar(20), tags text[], scores numeric(8,2)[], "
        "code uuid, doc json, amount numeric, at timestamp, days date[], made timestamptz DEFAULT now())"
    )
    schema = Schema.of(
        ("id", "BIGINT"),
        ("name", "STRING"),
        ("tags", "ARRAY<STRING>"),
        ("scores", "ARRAY<DECIMAL(10,2)>"),
        ("code", "STRING"),
        ("doc", "STRUCT<a: INT>"),
        ("amount", "DECIMAL(20,4)"),
        ("at", "TIMESTAMP"),
        ("days", "ARRAY<DATE>"),
        key=["id"],
    )
    table = open_table(schema, "varied")
    code = str(uuid.uuid4())
    row = (
        1,
        "é",
        ['a "quoted", {one}', None, ""],
        [Decimal("1.50"), None],
        code,
        {"a": 1},
        Decimal("1.2500"),
        datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        [date(1, 1, 1), date(9999, 12, 31)],
    )
    nothing = (2, *([None] * 8))
    upsert(table, row, nothing)
    assert table.snapshot().scan().to_pylist() == rows_of(schema, row, nothing).to_pylist()
    changed = (1, "é", [], *row[3:])
    upsert(table, changed)
    assert theirs.execute("SELECT tags, scores, code::text, at FROM varied WHERE id = 1").fetchone() == (
        [],
        [Decimal("1.50"), None],
        code,
        datetime(2024, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001 - a timestamp without a zone
    )
    by_name = table.snapshot().lookup_by(["name"], pa.array(["é", "e"]), ["id"])
    assert by_name.to_pylist() == [{"_position": 0, "id": 1}]


def test_keys_of_others_are_found_exactly_whatever_their_type_calls_equal(
    open_table: Open, theirs: psycopg.Connection[Any]
):
    theirs.execute("CREATE EXTENSION citext")
    theirs.execute("CREATE TABLE people (name citext PRIMARY KEY, n integer)")
    theirs.execute("INSERT INTO people VALUES ('anna', 1)")
    table = open_table(Schema.of(("name", "STRING"), ("n", "INT"), key=["name"]), "people")
    snapshot = table.snapshot()
    assert snapshot.lookup(pa.array(["Anna", "anna"]), ["n"]).to_pylist() == [{"_position": 1, "n": 1}]
    assert snapshot.count(Call("=", (ColumnRef("name"), Literal("ANNA", pa.string())))) == 0
    with pytest.raises(TableError):
        upsert(table, ("Anna", 2))
    upsert(table, ("anna", 2))
    assert theirs.execute("SELECT name, n FROM people").fetchall() == [("anna", 2)]


def test_values_beyond_our_types_are_told(open_table: Open, theirs: psycopg.Connection[Any]):
    theirs.execute("CREATE TABLE beyond (id integer PRIMARY KEY, on_day date, amount numeric)")
    schema = Schema.of(("id", "INT"), ("on_day", "DATE"), ("amount", "DECIMAL(10,2)"), key=["id"])
    table = open_table(schema, "beyond")
    for value in ("(1, 'infinity', NULL)", "(1, NULL, 'NaN')", "(1, NULL, 1.234)"):
        theirs.execute(f"INSERT INTO beyond VALUES {value}".encode())
        with pytest.raises(TableError) as caught:
            table.snapshot().scan()
        assert caught.value.code == "wrong-type"
        theirs.execute("DELETE FROM beyond")


def test_equal_rows_of_others_are_told_apart(open_table: Open, theirs: psycopg.Connection[Any]):
    theirs.execute("CREATE TABLE pairs (a integer, b text)")
    theirs.execute("INSERT INTO pairs VALUES (1, 'x'), (1, 'x'), (1, NULL), (2, 'y')")
    schema = Schema.of(("a", "INT"), ("b", "STRING"))
    table = open_table(schema, "pairs")
    table.commit(Write(Mode.DELETE, rows_of(schema, (1, "x"), (1, None), (3, "z"))))
    assert theirs.execute("SELECT a, b FROM pairs ORDER BY a").fetchall() == [(1, "x"), (2, "y")]


def test_a_value_the_store_refuses_applies_nothing(open_table: Open, theirs: psycopg.Connection[Any]):
    theirs.execute("CREATE TABLE checked (id bigint PRIMARY KEY, name varchar(3) CHECK (name <> 'no'))")
    table = open_table(Schema(_columns(("id", "BIGINT", False), ("name", "STRING", True)), ("id",)), "checked")
    for name in ("no", "too long", "a\0b"):
        for mode in (Mode.UPSERT, Mode.APPEND):
            with pytest.raises(VelostreamError) as caught:
                table.commit(Write(mode, rows_of(table.schema, (1, "yes"), (2, name))))
            assert caught.value.category is Category.DATA
    assert table.snapshot().count() == 0


def test_a_value_the_store_would_round_is_refused(open_table: Open, theirs: psycopg.Connection[Any]):
    theirs.execute("CREATE TABLE rounded (id bigint PRIMARY KEY, n numeric(8,2), at timestamp(3) with time zone)")
    schema = Schema.of(("id", "BIGINT"), ("n", "DECIMAL(10,4)"), ("at", "TIMESTAMP"), key=["id"])
    table = open_table(schema, "rounded")
    at = datetime(2024, 1, 1, 0, 0, 0, 123000, tzinfo=UTC)
    upsert(table, (1, Decimal("1.2500"), at))
    assert table.snapshot().scan().to_pylist() == rows_of(schema, (1, Decimal("1.2500"), at)).to_pylist()
    for row in ((2, Decimal("1.2345"), None), (2, None, at.replace(microsecond=1))):
        for mode in (Mode.UPSERT, Mode.APPEND):
            with pytest.raises(TableError):
                table.commit(Write(mode, rows_of(schema, row)))
    assert table.snapshot().count() == 1


def test_names_of_databases_and_tables_may_be_anything(open_table: Open, theirs: psycopg.Connection[Any]):
    theirs.execute('CREATE SCHEMA "odd %s schema"')
    name = 'odd %s schema.ta"ble %s'
    table = open_table(Schema.of(("id", "INT"), ("x" * 70, "INT"), ("x" * 71, "INT"), key=["id"]), name)
    upsert(table, (1, 2, 3))
    table.create_index(["x" * 70])
    table.drop_index(["x" * 70])
    assert table.snapshot().scan().to_pylist() == [{"id": 1, "x" * 70: 2, "x" * 71: 3}]
    table.drop()
    assert theirs.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'odd %%s schema'", ()).fetchone() == (0,)


def _columns(*columns: tuple[str, str, bool]) -> tuple[Column, ...]:
    made = Schema.of(*((name, type_) for name, type_, _ in columns)).columns
    return tuple(Column(c.name, c.type, nullable) for c, (_, _, nullable) in zip(made, columns, strict=True))
