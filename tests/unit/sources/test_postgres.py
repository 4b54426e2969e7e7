"""PostgreSQL as a source, against a real server: values, ways of reading, the log, and what goes wrong."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import psycopg
import pytest

from velostream.errors import Category, FurtherColumnsError, OptionError, SourceError, StoreError
from velostream.model.change import CHANGE, UNCHANGED
from velostream.sources import capture_fallback
from velostream.sources.base import Lag, SourceSpec
from velostream.sources.database import Selection, bind
from velostream.sources.postgres import PostgresSource
from velostream.sources.postgres_slot import position_of, text_of
from velostream.testing.services.postgres import PostgresService

from .conftest import Reader


@pytest.fixture
def database():
    url = PostgresService.shared().new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        yield Database(url, connection)


class Database:
    """A database of the test's own, and the sources over it."""

    def __init__(self, url: str, connection: psycopg.Connection) -> None:
        self.url = url
        self._connection = connection

    def run(self, *statements: str) -> None:
        for statement in statements:
            self._connection.execute(statement)

    def ask(self, statement: str):
        return self._connection.execute(statement).fetchall()

    def source(self, **options: str) -> PostgresSource:
        named = {name.replace("__", "."): value for name, value in options.items()}
        return PostgresSource(SourceSpec("postgres", self.url, named))


def test_every_type_comes_without_loss(database):
    database.run(
        "CREATE TYPE mood AS ENUM ('glad', 'sad')",
        "CREATE DOMAIN price AS numeric(10,2)",
        """CREATE TABLE everything (id bigint PRIMARY KEY, s smallint, i integer, b boolean, n numeric(20,4), p price,
           free numeric, r real, d double precision, t text, c char(3), v varchar(9), y bytea, day date,
           at timestamp, zoned timestamptz, clock time, span interval, m mood, u uuid, j jsonb,
           numbers int[], words text[], flags boolean[])""",
        """INSERT INTO everything VALUES (1, -2, 3, true, -0.5000, 12.30, 1.25, 1.5, 'NaN', 'ü "q", \\ ', 'ab', '',
           '\\x00ff', '2024-02-29', '2024-01-02 03:04:05.123456', '2024-01-02 03:04:05+02', '01:02:03',
           '1 year 2 days', 'sad', '00000000-0000-0000-0000-000000000001', '{"a": 1.50}', '{1,NULL,3}',
           '{"a b",NULL,"NULL","c,{}"}', '{t,f}')""",
        "INSERT INTO everything (id) VALUES (2)",
    )
    source = database.source(table="everything")
    reader = Reader(source)
    full, empty = reader.read()
    source.close()
    assert reader.bad == []
    assert str(full.pop("d")) == "nan"
    assert full == {
        "id": 1,
        "s": -2,
        "i": 3,
        "b": True,
        "n": Decimal("-0.5000"),
        "p": Decimal("12.30"),
        "free": Decimal("1.25").quantize(Decimal("1e-18")),
        "r": 1.5,
        "t": 'ü "q", \\ ',
        "c": "ab ",
        "v": "",
        "y": b"\x00\xff",
        "day": date(2024, 2, 29),
        "at": datetime(2024, 1, 2, 3, 4, 5, 123456, UTC),
        "zoned": datetime(2024, 1, 2, 1, 4, 5, 0, UTC),
        "clock": "01:02:03",
        "span": "P1Y2D",
        "m": "sad",
        "u": "00000000-0000-0000-0000-000000000001",
        "j": '{"a": 1.50}',
        "numbers": [1, None, 3],
        "words": ["a b", None, "NULL", "c,{}"],
        "flags": [True, False],
    }
    assert [value for name, value in empty.items() if name != "id"] == [None] * (len(empty) - 1)
    types = {column.name: column.sql_type for column in reader.schema.columns}
    assert (types["s"], types["n"], types["p"]) == ("SMALLINT", "DECIMAL(20,4)", "DECIMAL(10,2)")
    assert (types["zoned"], types["numbers"]) == ("TIMESTAMP", "ARRAY<INT>")
    assert reader.schema.key == ("id",)


def test_a_value_that_does_not_fit_is_set_aside(database):  # B57
    database.run("CREATE TABLE t (id int, n numeric, at timestamptz)")
    database.run("INSERT INTO t VALUES (1, 'NaN', now()), (2, 1, 'infinity'), (3, 1, now())")
    reader = Reader(database.source(table="t"))
    assert [row["id"] for row in reader.read()] == [3]
    assert [record.position for record in reader.bad] == ["row 1", "row 2"]


def test_a_query_takes_bound_parameters_and_a_table_its_condition(database):
    database.run("CREATE SCHEMA other", "CREATE TABLE other.t (id int, name text)")
    database.run("INSERT INTO other.t SELECT i, 'n''' || i FROM generate_series(1, 9) i")
    query = "SELECT id, '?' AS mark FROM other.t WHERE name = ? OR id > ? ORDER BY id"
    rows = Reader(database.source(query=query, query__params='["n\'3", 7]')).read()
    assert [(row["id"], row["mark"]) for row in rows] == [(3, "?"), (8, "?"), (9, "?")]
    named = "SELECT id FROM other.t WHERE id::bigint = :a"
    assert [row["id"] for row in Reader(database.source(query=named, query__params='{"a": 4}')).read()] == [4]
    chosen = {"table": "t", "schema": "other", "where": "id < 5", "order__by": "id DESC", "limit": "2"}
    assert [row["id"] for row in Reader(database.source(**chosen)).read()] == [4, 3]


def test_parameters_are_told_from_texts_and_casts():
    bound = bind("SELECT ':a', x::int -- :a ?\n FROM t WHERE y = :a AND z = :b", {"a": 1, "b": 2}, "${}".format)
    assert bound.sql == "SELECT ':a', x::int -- :a ?\n FROM t WHERE y = $0 AND z = $1"
    assert bound.values == (1, 2)
    with pytest.raises(OptionError):
        bind("SELECT ?", [1, 2], "${}".format)


def test_a_large_table_is_read_in_parts_of_one_moment(database):
    database.run("CREATE TABLE big (id bigint, body text)", "ALTER TABLE big ALTER body SET STORAGE plain")
    database.run("INSERT INTO big SELECT i, repeat('x', 3500) FROM generate_series(1, 9000) i")
    source = database.source(table="big", parallel__readers="2")
    schema = source.schema()
    parts = source.partitions(None, True)
    database.run("INSERT INTO big VALUES (0, 'too late')")
    rows = [row for part in parts for batch in source.read(part, schema, print) for row in batch["id"].to_pylist()]
    source.close()
    assert len(parts) == 2
    assert sorted(rows) == list(range(1, 9001))


def test_polling_misses_nothing_at_equal_values_nor_what_is_committed_late(database):
    database.run("CREATE TABLE t (id int PRIMARY KEY, at timestamptz)", "INSERT INTO t VALUES (1, now())")
    reader = Reader(database.source(table="t", incremental__column="at", incremental__overlap="1h"))
    assert [row["id"] for row in reader.read()] == [1]
    with psycopg.connect(database.url) as late:
        late.execute("INSERT INTO t VALUES (2, now())")
        database.run("INSERT INTO t SELECT 3, at FROM t WHERE id = 1", "INSERT INTO t VALUES (4, clock_timestamp())")
        assert sorted(row["id"] for row in reader.read()) == [3, 4]
        assert reader.read() == []
    assert [row["id"] for row in reader.read()] == [2]
    database.run("UPDATE t SET at = clock_timestamp() WHERE id = 1")
    assert [row["id"] for row in reader.read()] == [1]


def test_rows_without_a_key_that_look_alike_are_told_apart(database):
    database.run("CREATE TABLE t (n int)", "INSERT INTO t VALUES (1), (1)")
    reader = Reader(database.source(table="t", incremental__column="n"))
    first = {row["_origin"] for row in reader.read()}
    database.run("INSERT INTO t VALUES (1)")
    (third,) = reader.read()
    assert len(first | {third["_origin"]}) == 3


def test_a_query_for_new_rows_gets_the_last_value(database):
    database.run("CREATE TABLE t (id int PRIMARY KEY, version int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    poll = "SELECT * FROM t WHERE version > :last::int - 1 AND id <> 9"
    options = {"table": "t", "incremental__column": "version", "incremental__overlap": "0", "poll__query": poll}
    reader = Reader(database.source(**options))
    reader.read()
    database.run("INSERT INTO t VALUES (9, 9), (3, 3)")
    assert [row["id"] for row in reader.read()] == [3]


def test_without_a_column_to_go_by_everything_is_read_again(database):
    database.run("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1), (2)")
    reader = Reader(database.source(table="t", poll__interval="1s"))
    assert [row["id"] for row in reader.read()] == [1, 2]
    reader.read()
    assert reader.read() == []
    database.run("DELETE FROM t WHERE id = 1")
    assert reader.read() == ["replaced by", {"id": 2}]


@pytest.mark.parametrize("options", [{}, {"incremental__column": "id"}, {"poll__interval": "1s"}])
def test_a_load_may_be_limited(database, options):
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 9)")
    assert len(Reader(database.source(table="t", loading__bulk__max_records="3", **options)).read()) == 3
    hurried = Reader(database.source(table="t", loading__bulk__max_duration="0s", fetch__size="2", **options))
    assert len(hurried.read()) == 2
    assert "max_duration" in hurried.source.warnings[0]


@pytest.fixture
def captured(database):
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, name text, body text)",
        "ALTER TABLE t ALTER body SET STORAGE external",
        "INSERT INTO t VALUES (1, 'one', repeat('x', 5000)), (2, 'two', NULL)",
    )
    sources = []

    def make(**options: str) -> Reader:
        source = database.source(table="t", cdc="true", **options)
        sources.append(source)
        return Reader(source)

    yield make
    for source in sources:
        source.close()
    database.run(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
        "WHERE database = current_database() AND NOT temporary"
    )


def changes(rows):
    return [row if isinstance(row, str) else (row[CHANGE], row["id"], row["name"]) for row in rows]


def test_the_log_tells_every_change_in_order(database, captured):  # B43
    reader = captured()
    assert changes(reader.read()) == [(1, 1, "one"), (1, 2, "two")]
    database.run(
        "INSERT INTO t VALUES (3, 'three', '')", "UPDATE t SET id = 4 WHERE id = 3", "DELETE FROM t WHERE id = 2"
    )
    assert changes(reader.read()) == [(1, 3, "three"), (-1, 3, None), (1, 4, "three"), (-1, 2, None)]
    database.run("UPDATE t SET name = 'uno' WHERE id = 1")
    (row,) = reader.read()
    assert (row["name"], row["body"], row[UNCHANGED]) == ("uno", None, ["body"])
    database.run("BEGIN", "TRUNCATE t", "INSERT INTO t VALUES (7, 'seven')", "COMMIT")
    assert changes(reader.read()) == ["replaced by", (1, 7, "seven")]
    database.run("BEGIN", "INSERT INTO t VALUES (8, 'never')", "ROLLBACK")
    assert reader.read() == []


def test_half_a_change_of_a_key_moves_no_values(database, captured):
    database.run("ALTER TABLE t ADD n numeric")
    reader = captured()
    reader.read()
    database.run("BEGIN", "UPDATE t SET id = 3, n = 'NaN' WHERE id = 1", "UPDATE t SET n = 1 WHERE id = 3", "COMMIT")
    first, second = reader.read()
    assert [(row[CHANGE], row["id"], row[UNCHANGED]) for row in (first, second)] == [(-1, 1, None), (1, 3, ["body"])]
    assert len(reader.bad) == 1


def test_a_large_key_that_is_not_touched_is_told(database):
    database.run("CREATE TABLE keyed (id text PRIMARY KEY, n int)", "ALTER TABLE keyed ALTER id SET STORAGE external")
    database.run("INSERT INTO keyed VALUES (repeat('x', 2500), 1)")
    source = database.source(table="keyed", cdc="true")
    reader = Reader(source)
    reader.read()
    database.run("UPDATE keyed SET n = 2")
    assert [(row[CHANGE], row["id"], row["n"]) for row in reader.read()] == [(1, "x" * 2500, 2)]
    source.forget(reader.position)
    source.close()


def test_what_commits_around_the_load_is_taken_once(database, captured):  # B37
    with psycopg.connect(database.url) as before:
        reader = captured(slot__name="around", publication__name="around")
        database.run("CREATE PUBLICATION around FOR TABLE t")
        database.ask("SELECT pg_create_logical_replication_slot('around', 'pgoutput')")
        database.run("INSERT INTO t VALUES (3, 'in both')")
        before.execute("INSERT INTO t VALUES (4, 'in the log')")
        loaded = changes(reader.read())
    database.run("INSERT INTO t VALUES (5, 'after')")
    assert loaded == [(1, 1, "one"), (1, 2, "two"), (1, 3, "in both")]
    assert changes(reader.read()) == [(1, 4, "in the log"), (1, 5, "after")]


@pytest.mark.parametrize("options", [{}, {"cdc": "true"}, {"incremental__column": "id"}])
def test_a_load_that_loses_its_server_begins_anew(database, options):
    database.run("CREATE TABLE big (id bigint PRIMARY KEY, body text)", "ALTER TABLE big ALTER body SET STORAGE plain")
    database.run("INSERT INTO big SELECT i, repeat('x', 3500) FROM generate_series(1, 9000) i")
    source = database.source(table="big", parallel__readers="2", **options)
    reader = Reader(source)
    source.partitions(None, source.latest_offset(None, max_rows=1_000))
    database.run(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND state = 'idle in transaction'"
    )
    if options.get("cdc"):
        with pytest.raises(SourceError):
            reader.read()
    assert len(reader.read()) == 9000
    source.forget(reader.position)
    source.close()


@pytest.mark.parametrize(
    "publication", ["t WITH (publish = 'insert, update, delete')", "t WHERE (id > 1)", "t (id, name)"]
)
def test_a_publication_that_tells_not_all_is_refused(database, captured, publication):
    database.run(f"CREATE PUBLICATION partial FOR TABLE {publication}")
    with pytest.raises(SourceError) as refused:
        captured(publication__name="partial").read()
    assert (refused.value.category, "not tell all" in str(refused.value)) == (Category.CONFIGURATION, True)


def test_a_range_that_ends_within_a_commit_is_without_it(database, captured):
    reader = captured()
    reader.read()
    database.run("INSERT INTO t VALUES (3, 'three')", "INSERT INTO t VALUES (4, 'later')")
    source, start = reader.source, reader.position
    after = source.latest_offset(start, max_rows=1_000)
    end = after | {"lsn": text_of(position_of(after["lsn"]) - 1)}
    (part,) = source.partitions(start, end)
    rows = [row for batch in source.read(part, reader.schema, print) for row in batch.to_pylist()]
    assert changes(rows) == [(1, 3, "three")]


def test_changes_alone_may_be_taken(database, captured):
    reader = captured(initial__load="none")
    assert reader.read() == []
    database.run("INSERT INTO t VALUES (3, 'three')")
    assert changes(reader.read()) == [(1, 3, "three")]


def test_no_commit_splits_a_transaction(database, captured):
    reader = captured()
    reader.read()
    database.run("INSERT INTO t SELECT i, 'a' FROM generate_series(10, 60) i", "INSERT INTO t VALUES (99, 'b')")
    assert len(reader.read(max_rows=5)) == 51
    assert changes(reader.read(max_rows=5)) == [(1, 99, "b")]


def test_columns_that_come_later_are_told_of(database, captured):
    reader = captured()
    reader.read()
    database.run("ALTER TABLE t ADD extra int", "INSERT INTO t VALUES (3, 'three', NULL, 5)")
    assert changes(reader.read()) == [(1, 3, "three")]
    assert any('"extra"' in warning for warning in reader.source.warnings)


def test_no_column_is_added_under_a_name_of_the_engines(database, captured):
    reader = captured(schema__evolution="add", slot__name="mine")
    reader.read()
    database.run("ALTER TABLE t ADD _change int", "INSERT INTO t VALUES (3, 'three', NULL, 5)")
    assert changes(reader.read()) == [(1, 3, "three")]
    assert any('"_change"' in warning for warning in reader.source.warnings)


@pytest.mark.parametrize("default", ["", " DEFAULT 7"])
def test_a_column_that_comes_later_may_be_added(database, captured, default):  # B10
    reader = captured(schema__evolution="add", slot__name="mine")
    reader.read()
    position = reader.position
    database.run("ALTER TABLE t ADD extra int" + default, "INSERT INTO t VALUES (3, 'three', NULL, 5)")
    with pytest.raises(FurtherColumnsError) as lacking:
        reader.read()
    assert (lacking.value.columns, reader.position) == ([("extra", "INT")], position)
    reader.source.close()
    again = captured(schema__evolution="add", slot__name="mine")
    assert again.source.schema().names[-1] == "extra"
    again.position = position
    rows = again.read()
    if default:
        # Those that were loaded have a value now, so all are read again.
        assert rows.pop(0) == "replaced by"
        assert sorted((row["id"], row["extra"]) for row in rows) == [(1, 7), (2, 7), (3, 5)]
    else:
        assert [(row["id"], row["extra"]) for row in rows] == [(3, 5)]
    database.run("UPDATE t SET extra = 9 WHERE id = 2")
    assert [row["extra"] for row in again.read() if row["_change"] > 0] == [9]


def test_a_column_that_comes_later_may_be_an_error(database, captured):  # B10
    reader = captured(schema__evolution="fail", slot__name="mine")
    reader.read()
    database.run("UPDATE t SET name = 'eins' WHERE id = 1")
    assert [row["name"] for row in reader.read()] == ["eins"]
    database.run("ALTER TABLE t ADD extra int", "INSERT INTO t VALUES (3, 'three', NULL, 5)")
    for reopened in (reader, captured(schema__evolution="fail", slot__name="mine")):
        # One that begins at this position knows the column, but the statement doesn't.
        reopened.position, reopened.schema = reader.position, reader.schema
        with pytest.raises(SourceError) as refused:
            reopened.read()
        assert (refused.value.code, '"extra"' in refused.value.detail) == ("unexpected-field", True)
        reopened.source.close()


@pytest.mark.parametrize(
    "options",
    [
        {"schema__evolution": "add"},
        {"schema__evolution": "fail"},
        {"cdc__fallback": "poll"},
        {"cdc": "true", "cdc__fallback": "poll", "initial__load": "none"},
    ],
)
def test_what_could_not_be_kept_is_refused(database, options):
    with pytest.raises(OptionError):
        database.source(table="t", **options)


def test_what_the_log_keeps_and_a_load_takes_can_be_watched(database, captured):
    database.run("INSERT INTO t SELECT i, 'more' FROM generate_series(10, 1009) i", "ANALYZE t")
    reader = captured()
    assert reader.source.expected_rows(None, reader.source.latest_offset(None, max_rows=1)) == 1002
    assert database.source(query="SELECT 1 FROM t WHERE id > ?", query__params="[500]").expected_rows(None, True) < 600
    assert database.source(table="t", limit="7").expected_rows(None, True) == 7
    assert database.source(table="t", loading__bulk__max_records="9").expected_rows(None, True) == 9
    reader.read()
    before = reader.source.gauges(reader.position)["retained log bytes"]
    database.run("UPDATE t SET name = 'changed'")
    assert reader.source.gauges(reader.position)["retained log bytes"] > before + 10_000
    assert database.source(table="t").gauges(None) == {}


def test_how_far_behind_the_log_a_reader_is(database, captured):
    reader = captured()
    assert reader.source.lag(None) == Lag()
    reader.read()
    database.run("INSERT INTO t VALUES (8, 'a', NULL)", "INSERT INTO t VALUES (9, 'b', NULL)")
    assert len(reader.read(max_rows=1)) == 1
    assert 0 <= reader.source.lag(reader.position).seconds < 60


def test_while_the_log_is_not_to_be_had_the_table_is_polled(database, captured, monkeypatch):  # B37
    database.run("CREATE ROLE reader LOGIN", "GRANT SELECT ON t TO reader")
    with pytest.raises(SourceError) as refused:
        captured(username="reader").read()
    assert refused.value.category is Category.AUTHENTICATION
    reader = captured(username="reader", cdc__fallback="poll", slot__name="mine")
    assert changes(reader.read()) == [(1, 1, "one"), (1, 2, "two")]
    assert reader.source.poll_interval.total_seconds() == 30
    database.run("DELETE FROM t WHERE id = 2")
    # The first look after a load has nothing to compare it with.
    assert [row if isinstance(row, str) else row["id"] for row in reader.read()] == ["replaced by", 1]
    assert (reader.read(), ["log can't" in one for one in reader.source.warnings]) == ([], [True])
    polled = reader.position
    # The log can be had, and is lost again.
    database.run("ALTER ROLE reader SUPERUSER", "UPDATE t SET name = 'uno'")
    monkeypatch.setattr(capture_fallback, "_TRY_AGAIN_SECONDS", 0.0)
    assert [row if isinstance(row, str) else row["name"] for row in reader.read()] == ["replaced by", "uno"]
    assert (reader.source.warnings, reader.source.poll_interval.total_seconds()) == ((), 0.1)
    assert (reader.source.reached(reader.position, polled), reader.source.reached(polled, reader.position)) == (1, 0)
    database.run("INSERT INTO t VALUES (5, 'five')")
    assert changes(reader.read()) == [(1, 5, "five")]
    database.run("SELECT pg_drop_replication_slot('mine')", "INSERT INTO t VALUES (6, 'six')")
    rows = reader.read()
    assert (rows[0], sorted(row["id"] for row in rows[1:])) == ("replaced by", [1, 5, 6])
    reader.source.forget(reader.position)
    reader.source.close()
    assert database.ask("SELECT * FROM pg_publication") == []
    database.run("DROP OWNED BY reader", "DROP ROLE reader")


def test_generated_columns_are_left_out_by_the_log_and_so_by_the_load(database, captured):
    database.run("ALTER TABLE t ADD twice int GENERATED ALWAYS AS (id * 2) STORED")
    reader = captured()
    assert all("twice" not in row for row in reader.read())
    database.run("UPDATE t SET name = 'uno' WHERE id = 1")
    assert changes(reader.read()) == [(1, 1, "uno")]
    assert ['"twice"' in warning for warning in reader.source.warnings] == [True]
    assert "twice" in database.source(table="t").schema().names


def test_rows_without_a_key_are_known_by_all_their_values(database):
    database.run("CREATE TABLE bag (n int, name text)")
    source = database.source(table="bag", cdc="true")
    with pytest.raises(SourceError) as refused:
        source.schema()
    assert (refused.value.category, "REPLICA IDENTITY FULL" in refused.value.hint) == (Category.CONFIGURATION, True)
    database.run("ALTER TABLE bag REPLICA IDENTITY FULL", "INSERT INTO bag VALUES (1, 'a')")
    reader = Reader(source)
    reader.read()
    database.run("UPDATE bag SET name = 'b'")
    assert [(row[CHANGE], row["n"], row["name"]) for row in reader.read()] == [(-1, 1, "a"), (1, 1, "b")]
    source.forget(reader.position)
    source.close()


def test_a_slot_that_is_lost_is_said_so_or_the_table_is_read_again(database, captured):
    reader = captured(slot__name="mine")
    reader.read()
    database.ask("SELECT pg_drop_replication_slot('mine')")
    database.run("UPDATE t SET name = 'unseen' WHERE id = 1")
    with pytest.raises(SourceError) as lost:
        reader.read()
    assert (lost.value.code, "cdc.on.gap" in lost.value.hint) == ("log-lost", True)
    again = captured(slot__name="mine", cdc__on__gap="snapshot")
    again.position = reader.position
    replaced, *rows = again.read()
    assert (replaced, sorted(row["name"] for row in rows)) == ("replaced by", ["two", "unseen"])
    database.run("UPDATE t SET name = 'seen' WHERE id = 1")
    assert [row["name"] for row in again.read()] == ["seen"]


def test_a_slot_that_the_server_gave_up_is_made_anew():
    # The limit is one of the whole server, so this one is nobody else's.
    with PostgresService() as service, psycopg.connect(url := service.new_database(), autocommit=True) as connection:
        database = Database(url, connection)
        database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        readers = []
        for options in ({}, {"slot__name": "named"}):
            reader = Reader(database.source(table="t", cdc="true", cdc__on__gap="snapshot", **options))
            reader.source.reader = "somebody"
            reader.read()
            readers.append(reader)
        database.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        for _ in range(3):
            database.run("CREATE TABLE passing ()", "DROP TABLE passing", "SELECT pg_switch_wal()")
        database.run("CHECKPOINT")
        assert database.ask("SELECT wal_status FROM pg_replication_slots") == [("lost",), ("lost",)]
        for reader in readers:
            assert [row if isinstance(row, str) else row["id"] for row in reader.read()] == ["replaced by", 1]
        database.run("INSERT INTO t VALUES (2)")
        for reader in readers:
            assert [row["id"] for row in reader.read()] == [2]
            reader.source.close()


def test_a_slot_lives_as_long_as_its_reader(database, captured):
    slots = "SELECT slot_name, temporary FROM pg_replication_slots WHERE database = current_database()"
    passing = captured()
    passing.read()
    assert [temporary for _, temporary in database.ask(slots)] == [True]
    passing.source.forget(passing.position)
    assert database.ask(slots) == []
    lasting = captured()
    lasting.source.reader = "somebody"
    lasting.read()
    assert [temporary for _, temporary in database.ask(slots)] == [False]
    lasting.source.close()
    assert len(database.ask(slots)) == 1
    lasting.source.forget(lasting.position)
    assert (database.ask(slots), database.ask("SELECT * FROM pg_publication")) == ([], [])


@pytest.mark.parametrize(
    ("options", "category"),
    [
        ({"table": "nowhere"}, Category.MISSING),
        ({"table": "t", "database": "nowhere"}, Category.MISSING),
        ({"table": "t", "port": "1"}, Category.NETWORK),
        ({"table": "t", "username": "nobody", "password": "s3cr3t"}, Category.AUTHENTICATION),
        ({"query": "SELEC 1"}, Category.CONFIGURATION),
    ],
)
def test_trouble_has_its_category_and_no_password(database, options, category):  # B4
    with pytest.raises(SourceError) as trouble:
        database.source(**options).schema()
    assert trouble.value.category is category
    assert trouble.value.hint
    assert "s3cr3t" not in str(trouble.value)


def test_a_driver_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError) as missing:
        PostgresSource(SourceSpec("postgres", "postgres://h/d", {"table": "t"})).schema()
    assert (missing.value.code, "velostream[postgres]" in missing.value.hint) == ("missing-driver", True)


def test_a_session_outlasts_silence_but_not_a_server_that_vanished(database):
    ((name,),) = database.ask("SELECT current_database()")
    database.run(f'ALTER DATABASE "{name}" SET idle_in_transaction_session_timeout = 1')
    with database.source(table="t").driver.connect() as connection:
        assert connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("0",)
        assert connection.info.get_parameters()["tcp_user_timeout"] == "60000"


def test_an_address_may_be_in_options_and_a_password_in_a_variable(monkeypatch):
    monkeypatch.setenv("PASSWORD", "p@ss/w:rd?")
    options = {"host": "h", "port": "7"}
    source = PostgresSource(SourceSpec("postgres", "postgres://shop/orders", options))
    assert (str(source.driver.address), source.selection.table) == ("postgres://h:7/shop", "orders")
    source = PostgresSource(SourceSpec("postgres", "postgres://u:${PASSWORD}@h/shop?table=t"))
    assert (source.driver.address.password, source.driver.address.host) == ("p@ss/w:rd?", "h")
    assert "p@ss" not in repr(source.driver)


def test_a_table_and_a_query_exclude_each_other():
    for options in ({}, {"table": "t", "query": "SELECT 1"}):
        with pytest.raises(OptionError):
            PostgresSource(SourceSpec("postgres", "postgres://h/d", options))
    with pytest.raises(OptionError):
        PostgresSource(SourceSpec("postgres", "postgres://h/d", {"table": "t", "cdc": "true", "where": "x"}))
    assert Selection(query="SELECT 1").shown == "query"
