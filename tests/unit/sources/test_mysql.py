"""MySQL as a source, against a real MariaDB: values, ways of reading, the log, and what goes wrong."""

from __future__ import annotations

import random
import sys
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import partial
from urllib.parse import urlsplit

import pymysql
import pytest

from velostream.errors import Category, FurtherColumnsError, OptionError, SourceError, StoreError
from velostream.model.change import CHANGE
from velostream.sources.base import Lag, SourceSpec
from velostream.sources.mysql import MysqlSource
from velostream.sources.mysql_log import LogPosition, MysqlLog
from velostream.testing.services.mysql import MysqlService

from .conftest import Reader


class Database:
    """A database of the test's own, and the sources over it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = self.connect()

    def connect(self) -> pymysql.Connection:
        place = urlsplit(self.url)
        return pymysql.connect(
            host=place.hostname,
            port=place.port,
            user=place.username,
            password=place.password or "",
            database=place.path[1:],
            autocommit=True,
        )

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.ask(statement)

    def ask(self, statement: str):
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()

    def source(self, **options: str) -> MysqlSource:
        named = {name.replace("__", "."): value for name, value in options.items()}
        return MysqlSource(SourceSpec("mysql", self.url, named))


@pytest.fixture
def database():
    database = Database(MysqlService.shared().new_database())
    yield database
    database.connection.close()


EVERYTHING = """CREATE TABLE everything (id BIGINT UNSIGNED PRIMARY KEY, truth TINYINT(1), small TINYINT,
    byte TINYINT UNSIGNED, medium MEDIUMINT UNSIGNED, whole INT UNSIGNED, flag BIT(1), bits BIT(12), word BIT(64),
    amount DECIMAL(20,4), count_ DECIMAL(5,0) UNSIGNED, tiny DECIMAL(38,30), ratio FLOAT, exact DOUBLE,
    letters CHAR(3), name VARCHAR(9), story TEXT, fixed BINARY(4), some VARBINARY(5), body BLOB,
    old VARCHAR(9) CHARACTER SET latin1, day DATE, at DATETIME(6), noon DATETIME, instant TIMESTAMP(3) NULL,
    clock TIME(2), span TIME, born YEAR, mood ENUM('glad', 'sad'), tags SET('x', 'y', 'z'), document JSON,
    place POINT, twice BIGINT AS (small * 2) VIRTUAL, hidden INT INVISIBLE DEFAULT 7)"""
ROWS = (
    """INSERT INTO everything VALUES (18446744073709551615, TRUE, -5, 250, 16000000, 4000000000, b'1', b'101010101010',
    ~0, -0.5, 7, -12345678.000000000000000000000000000001, 0.1, 1e0 / 3, 'ab ', 'ü''%\\\\', 'ẞ😀', x'6100', x'0062',
    x'00ff', 'ü€', '2024-02-29', '2024-01-02 03:04:05.123456', '2024-07-02 12:00:00', '2024-01-02 03:04:05.125',
    '-01:02:03.50', '838:59:59', 0, 'sad', 'z,x', '{"a": 1.50}', POINT(1, 2), DEFAULT)""",
    "INSERT INTO everything (id, tags, mood, born) VALUES (0, '', 'glad', 2155)",
)
FULL = {
    "id": Decimal(18446744073709551615),
    "truth": True,
    "small": -5,
    "byte": 250,
    "medium": 16000000,
    "whole": 4000000000,
    "flag": True,
    "bits": 0b101010101010,
    "word": Decimal(2**64 - 1),
    "amount": Decimal("-0.5000"),
    "count_": Decimal(7),
    "tiny": Decimal("-12345678.000000000000000000000000000001"),
    "ratio": 0.10000000149011612,
    "exact": 1 / 3,
    "letters": "ab",
    "name": "ü'%\\",
    "story": "ẞ😀",
    "fixed": b"a\0\0\0",
    "some": b"\0b",
    "body": b"\0\xff",
    "old": "ü€",
    "day": date(2024, 2, 29),
    "at": datetime(2024, 1, 2, 2, 4, 5, 123456, UTC),
    "noon": datetime(2024, 7, 2, 10, 0, tzinfo=UTC),
    "instant": datetime(2024, 1, 2, 3, 4, 5, 125000, UTC),
    "clock": "-01:02:03.50",
    "span": "838:59:59",
    "born": 0,
    "mood": "sad",
    "tags": "x,z",
    "document": '{"a": 1.50}',
    "place": b"\0\0\0\0\x01\x01\0\0\0\0\0\0\0\0\0\xf0?\0\0\0\0\0\0\0@",
    "twice": -10,
}
EMPTY = dict.fromkeys(FULL) | {"id": Decimal(0), "tags": "", "mood": "glad", "born": 2155}


def test_every_type_comes_without_loss_by_load_and_by_log(database):
    database.run("SET time_zone = '+00:00'", EVERYTHING)
    sources = [database.source(table="everything", timezone="Europe/Berlin", **way) for way in ({}, {"cdc": "true"})]
    loading, following = map(Reader, sources)
    assert following.read() == []
    database.run(*ROWS)
    assert sorted(loading.read(), key=lambda row: row["id"]) == [EMPTY, FULL]
    assert following.read() == [{**FULL, CHANGE: 1}, {**EMPTY, CHANGE: 1}]
    assert (loading.bad, following.bad, following.source.warnings) == ([], [], ())
    types = {column.name: column.sql_type for column in loading.schema.columns}
    assert [types[name] for name in ("id", "truth", "small", "byte", "whole", "amount", "ratio", "instant")] == [
        *("DECIMAL(20,0)", "BOOLEAN", "TINYINT", "SMALLINT", "BIGINT", "DECIMAL(20,4)", "FLOAT", "TIMESTAMP"),
    ]
    assert (loading.schema.key, loading.schema.column("id").nullable) == (("id",), False)
    following.source.close()


def test_values_that_do_not_fit_are_set_aside_by_load_and_by_log(database):  # B57
    database.run(
        "CREATE TABLE t (id INT PRIMARY KEY, truth TINYINT(1), day DATE, at DATETIME, instant TIMESTAMP NULL)",
        "SET sql_mode = ''",
    )
    loading, following = Reader(database.source(table="t")), Reader(database.source(table="t", cdc="true"))
    following.read()
    database.run(
        "INSERT INTO t (id, truth) VALUES (1, 1), (2, 2)",
        "INSERT INTO t (id, day) VALUES (3, '0000-00-00'), (4, '2024-01-01')",
        "INSERT INTO t (id, at) VALUES (5, '2024-00-01 00:00:00'), (6, '2024-01-01')",
        "INSERT INTO t (id, instant) VALUES (7, 0), (8, '2024-01-01')",
    )
    for reader in (loading, following):
        assert [row["id"] for row in reader.read()] == [1, 4, 6, 8]
        assert len(reader.bad) == 4
    assert 'column "truth"' in loading.bad[0].reason
    following.source.close()


def test_a_query_takes_bound_parameters_and_a_table_its_condition(database):
    database.run(
        "CREATE TABLE t (id INT, name VARCHAR(9))", "INSERT INTO t SELECT seq, CONCAT('n%', seq) FROM seq_1_to_9"
    )
    query = "SELECT id, '?%' AS mark, id / 3 AS part FROM t WHERE name = ? OR id > ? ORDER BY id"
    reader = Reader(database.source(query=query, query__params='["n%3", 7]'))
    rows = reader.read()
    assert [(row["id"], row["mark"]) for row in rows] == [(3, "?%"), (8, "?%"), (9, "?%")]
    assert (rows[0]["part"], reader.schema.column("part").sql_type) == (Decimal("1.0000"), "DECIMAL(14,4)")
    named = "SELECT id FROM t WHERE id = :a AND name LIKE 'n%'"
    assert [row["id"] for row in Reader(database.source(query=named, query__params='{"a": 4}')).read()] == [4]
    chosen = {"table": "t", "where": "name LIKE 'n%' AND id < 5", "order__by": "id DESC", "limit": "2"}
    assert [row["id"] for row in Reader(database.source(**chosen)).read()] == [4, 3]


@pytest.mark.parametrize("type_", ["DATETIME(6)", "TIMESTAMP(6)"])
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Lima"])
def test_rows_are_polled_by_their_times_in_any_zone(database, type_, zone):  # B37
    database.run(f"CREATE TABLE t (id INT PRIMARY KEY, at {type_})", "SET time_zone = '+00:00'")
    database.run("INSERT INTO t VALUES (1, '2024-01-01 12:00:00'), (2, '2024-01-01 11:00:00'), (3, NULL)")
    reader = Reader(database.source(table="t", incremental__column="at", timezone=zone))
    assert sorted(row["id"] for row in reader.read()) == [1, 2, 3]
    assert reader.read() == []
    database.run(
        "UPDATE t SET at = '2024-01-01 12:00:00.000001' WHERE id = 2", "INSERT INTO t VALUES (4, '2024-01-01 11:59:55')"
    )
    assert sorted(row["id"] for row in reader.read()) == [2, 4]


def test_a_query_for_new_rows_gets_the_last_value(database):
    database.run("CREATE TABLE t (id INT PRIMARY KEY, version INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    poll = "SELECT * FROM t WHERE version > :last - 1 AND id % 9 <> 0"
    options = {"table": "t", "incremental__column": "version", "incremental__overlap": "0", "poll__query": poll}
    reader = Reader(database.source(**options))
    reader.read()
    database.run("INSERT INTO t VALUES (9, 9), (3, 3)")
    assert [row["id"] for row in reader.read()] == [3]


def test_without_a_column_to_go_by_everything_is_read_again(database):
    database.run("CREATE TABLE t (id INT)", "INSERT INTO t VALUES (1), (2)")
    reader = Reader(database.source(table="t", poll__interval="1s"))
    assert [row["id"] for row in reader.read()] == [1, 2]
    reader.read()
    assert reader.read() == []
    database.run("DELETE FROM t WHERE id = 1")
    assert reader.read() == ["replaced by", {"id": 2}]


@pytest.fixture
def captured(database):
    database.run("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))", "INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    readers = []

    def make(**options: str) -> Reader:
        readers.append(Reader(database.source(cdc="true", **({"table": "t"} | options))))
        return readers[-1]

    yield make
    for reader in readers:
        reader.source.close()


def changes(rows):
    return [row if isinstance(row, str) else (row[CHANGE], row["id"], row["name"]) for row in rows]


def test_the_log_tells_every_change_in_order(database, captured):  # B43
    reader = captured()
    assert changes(reader.read()) == [(1, 1, "one"), (1, 2, "two")]
    database.run("INSERT INTO t VALUES (3, 'three')", "UPDATE t SET id = 4 WHERE id = 3", "DELETE FROM t WHERE id = 2")
    assert changes(reader.read()) == [(1, 3, "three"), (-1, 3, None), (1, 4, "three"), (-1, 2, None)]
    database.run("UPDATE t SET name = 'uno' WHERE id = 1")
    assert changes(reader.read()) == [(1, 1, "uno")]
    database.run("TRUNCATE TABLE t", "INSERT INTO t VALUES (7, 'seven')")
    assert changes(reader.read()) == ["replaced by", (1, 7, "seven")]
    database.run("BEGIN", "INSERT INTO t VALUES (8, 'never')", "ROLLBACK", "CREATE TABLE other (id INT)")
    assert reader.read() == []
    database.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (9, 'nine')")
    assert changes(reader.read()) == [(1, 9, "nine")]


def test_no_commit_splits_a_transaction(database, captured):
    reader = captured()
    reader.read()
    database.run("INSERT INTO t SELECT seq, 'a' FROM seq_10_to_60", "INSERT INTO t VALUES (99, 'b')")
    assert len(reader.read(max_rows=5)) == 51
    assert changes(reader.read(max_rows=5)) == [(1, 99, "b")]


def test_what_commits_around_the_load_is_taken_once(database, captured):  # B37
    reader = captured()
    with database.connect() as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO t VALUES (3, 'in the log')")
        end = reader.source.latest_offset(None, max_rows=1_000)
        other.commit()
        database.run("DELETE FROM t WHERE id = 1")
        assert reader.source.latest_offset(None, max_rows=1_000) == end
        assert changes(reader.read()) == [(1, 1, "one"), (1, 2, "two")]
    assert changes(reader.read()) == [(1, 3, "in the log"), (-1, 1, None)]


def test_a_server_that_does_not_tell_the_place_of_a_session_is_asked_under_a_lock(database, captured):
    log = MysqlLog(captured().source.driver)
    session, position = log._begin_locked_load("t")
    database.run("INSERT INTO t VALUES (3, 'later')")
    assert [row["id"] for row in session.ask("SELECT id FROM t")] == ["1", "2"]
    assert position < log.end()
    session.close()
    log.close()


def test_a_load_that_loses_its_server_begins_anew(database, captured):
    reader = captured(fetch__size="1")
    source = reader.source
    end = source.latest_offset(None, max_rows=1_000)
    others = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    for (number,) in database.ask(others):
        database.run(f"KILL {number}")
    (part,) = source.partitions(None, end)
    with pytest.raises(SourceError):
        list(source.read(part, reader.schema, print))
    assert changes(reader.read()) == [(1, 1, "one"), (1, 2, "two")]


def test_a_range_is_read_again_by_another_process_up_to_its_end(database, captured):
    reader = captured()
    reader.read()
    database.run("INSERT INTO t VALUES (3, 'three')")
    middle = reader.source.latest_offset(reader.position, max_rows=1)
    database.run("INSERT INTO t VALUES (4, 'later')")
    other = captured()
    (part,) = other.source.partitions(reader.position, middle)
    rows = [row for batch in other.source.read(part, other.schema, print) for row in batch.to_pylist()]
    assert changes(rows) == [(1, 3, "three")]
    assert other.source.reached(other.source.latest_offset(middle, max_rows=1), middle)


def test_changes_alone_may_be_taken_from_any_place(database, captured):
    begins_at = MysqlLog(database.source(table="t").driver)
    place = begins_at.end()
    begins_at.close()
    database.run("INSERT INTO t VALUES (3, 'three')")
    latest = captured(initial__load="none")
    assert latest.read() == []
    named = {"binlog__file": place.file, "binlog__position": str(place.place)}
    automatic = {"cdc__start__position": str(place), "binlog__file": "auto", "binlog__position": "auto"}
    for options in (automatic, {"cdc__start": "earliest"}, named):
        reader = captured(initial__load="none", **options)
        assert reader.read() == []
        assert changes(reader.read())[-1] == (1, 3, "three")
    database.run("INSERT INTO t VALUES (4, 'four')")
    assert changes(latest.read()) == [(1, 4, "four")]


def test_columns_that_come_later_are_told_of(database, captured):
    reader = captured()
    reader.read()
    database.run("ALTER TABLE t ADD extra INT FIRST", "INSERT INTO t VALUES (5, 3, 'three')")
    assert changes(reader.read()) == [(1, 3, "three")]
    assert ['"extra"' in warning for warning in reader.source.warnings] == [True]


@pytest.mark.parametrize("default", ["", " DEFAULT 7"])
def test_a_column_that_comes_later_may_be_added(database, captured, default):  # B10
    reader = captured(schema__evolution="add")
    reader.read()
    position = reader.position
    database.run("ALTER TABLE t ADD extra int" + default, "INSERT INTO t VALUES (3, 'three', 5)")
    with pytest.raises(FurtherColumnsError) as lacking:
        reader.read()
    assert (lacking.value.columns, reader.position) == ([("extra", "INT")], position)
    reader.source.close()
    again = captured(schema__evolution="add")
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
    reader = captured(schema__evolution="fail")
    reader.read()
    database.run("ALTER TABLE t ADD extra INT FIRST", "INSERT INTO t VALUES (5, 3, 'three')")
    again = captured(schema__evolution="fail")
    # It knows the column, but the statement that it reads for doesn't.
    again.position, again.schema = reader.position, reader.schema
    for one in (reader, again):
        with pytest.raises(SourceError) as refused:
            one.read()
        assert (refused.value.code, '"extra"' in refused.value.detail) == ("unexpected-field", True)


def test_what_is_behind_and_what_a_load_takes_can_be_watched(database, captured):
    database.run("INSERT INTO t SELECT seq, 'more' FROM seq_10_to_1009", "ANALYZE TABLE t")
    reader = captured()
    assert 900 < reader.source.expected_rows(None, True) < 1100
    assert database.source(table="t", where="id < 5").expected_rows(None, True) is None
    reader.read()
    database.run("UPDATE t SET name = 'changed'", "FLUSH BINARY LOGS", "UPDATE t SET name = 'again'")
    behind = reader.source.gauges(reader.position)["log bytes behind"]
    assert behind > 10_000
    reader.read(max_rows=10_000)
    assert reader.source.gauges(reader.position)["log bytes behind"] < 1_000


def test_who_may_not_read_the_log_polls_if_asked(database, captured):  # B37
    database.run("CREATE OR REPLACE USER poller IDENTIFIED BY 's3cr3t'", "GRANT SELECT ON *.* TO poller")
    reader = captured(username="poller", password="s3cr3t", cdc__fallback="poll", poll__interval="1s")
    assert changes(reader.read()) == [(1, 1, "one"), (1, 2, "two")]
    database.run("DELETE FROM t WHERE id = 2")
    assert [row if isinstance(row, str) else row["id"] for row in reader.read()] == ["replaced by", 1]
    assert ["log can't" in one and "s3cr3t" not in one for one in reader.source.warnings] == [True]
    database.run("DROP USER poller")


def test_how_far_behind_the_log_a_reader_is(database, captured):
    reader = captured()
    assert reader.source.lag(None) == Lag()
    reader.read()
    database.run("INSERT INTO t VALUES (8, 'a')", "INSERT INTO t VALUES (9, 'b')")
    assert len(reader.read(max_rows=1)) == 1
    assert 0 <= reader.source.lag(reader.position).seconds < 60


def test_rows_without_a_key_are_known_by_all_their_values(database, captured):
    database.run("CREATE TABLE bag (id INT, name VARCHAR(9), ratio FLOAT)", "INSERT INTO bag VALUES (1, 'a', 0.1)")
    reader = captured(table="bag")
    (loaded,) = reader.read()
    database.run("UPDATE bag SET name = 'b'")
    gone, there = reader.read()
    assert gone == loaded | {CHANGE: -1}
    assert there == loaded | {"name": "b"}


def test_declared_columns_and_another_key_are_taken(database, captured):
    schema = "ID BIGINT, Name STRING"
    reader = captured(record__schema=schema, key="name")
    assert reader.read()[0] == {"ID": 1, "Name": "one", CHANGE: 1}
    database.run("UPDATE t SET id = 5 WHERE id = 1", "UPDATE t SET name = 'zwei' WHERE id = 2")
    assert [(row[CHANGE], row["ID"], row["Name"]) for row in reader.read()] == [
        (1, 5, "one"),
        (-1, None, "two"),
        (1, 2, "zwei"),
    ]


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE t MODIFY name VARCHAR(30)"],
        ["RENAME TABLE t TO gone", "CREATE TABLE t LIKE gone", "INSERT INTO t SELECT * FROM gone"],
        ["SET binlog_format = STATEMENT", "UPDATE t SET name = 'unseen'"],
        ["SET binlog_row_image = MINIMAL", "UPDATE t SET name = 'unseen'"],
        ["XA START 'x'", "INSERT INTO t VALUES (3, 'xa')", "XA END 'x'", "XA PREPARE 'x'", "XA ROLLBACK 'x'"],
    ],
    ids=["altered", "renamed", "by statement", "minimal", "xa"],
)
def test_what_the_log_does_not_tell_is_said_so_or_the_table_is_read_again(database, captured, statements):
    readers = captured(), captured(cdc__on__gap="snapshot")
    for reader in readers:
        reader.read()
    database.run("INSERT INTO t VALUES (9, 'before')")
    database.run(*statements)
    database.run("SET binlog_format = ROW", "SET binlog_row_image = FULL")
    failing, lasting = readers
    for reader in readers:
        assert changes(reader.read()) == [(1, 9, "before")]
    with pytest.raises(SourceError) as untold:
        failing.read()
    assert (untold.value.code, "cdc.on.gap" in untold.value.hint) == ("log-lost", True)
    replaced, *rows = lasting.read()
    assert replaced == "replaced by"
    assert sorted((row["id"], row["name"]) for row in rows) == sorted(database.ask("SELECT id, name FROM t"))
    database.run("UPDATE t SET name = 'yes' WHERE id = 1")
    assert changes(lasting.read()) == [(1, 1, "yes")]


def test_a_log_that_was_purged_or_is_another_servers_is_said_so(database, captured):
    reader = captured()
    reader.read()
    start = reader.position
    database.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (3, 'three')")
    last = database.ask("SHOW BINARY LOGS")[-1][0]
    deadline = time.monotonic() + 60
    while database.ask("SHOW BINARY LOGS")[0][0] != last:
        # The server keeps a file until all that is in it is in the tables' own logs, too.
        assert time.monotonic() < deadline
        database.run(f"PURGE BINARY LOGS TO '{last}'")
    with pytest.raises(SourceError) as purged:
        reader.read()
    assert (purged.value.code, "cdc.on.gap" in purged.value.hint) == ("log-lost", True)
    again = captured(cdc__on__gap="snapshot")
    again.position = start
    assert [row if isinstance(row, str) else row["id"] for row in again.read()] == ["replaced by", 1, 2, 3]
    for other in (start | {"server": "4711"}, start | {"log": "vm-bin.999999:4"}):
        with pytest.raises(SourceError) as lost:
            captured().source.latest_offset(other, max_rows=1)
        assert lost.value.code == "log-lost"


def test_a_quiet_table_keeps_its_place_in_the_log_of_a_busy_server(database, captured):
    reader = captured()
    reader.read()
    start = reader.position
    database.run("CREATE TABLE busy (id INT)", "INSERT INTO busy SELECT seq FROM seq_1_to_100")
    assert reader.source.latest_offset(start, max_rows=100) == start
    database.run("FLUSH BINARY LOGS")
    moved = reader.source.latest_offset(start, max_rows=100)
    assert LogPosition.parse(moved["log"]) > LogPosition.parse(start["log"])
    assert reader.source.partitions(start, moved) == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE TABLE odd (id INT) ENGINE = MyISAM", "MyISAM"),
        ("CREATE TABLE odd (id UUID)", "uuid"),
        ("CREATE TABLE odd (id TEXT CHARACTER SET utf16)", "utf16"),
        ("CREATE TABLE odd (id ENUM('ü') CHARACTER SET latin1)", "latin1"),
        ("CREATE TABLE odd (id TEXT CHARACTER SET latin1 COLLATE latin1_nopad_bin)", "latin1"),
        ("CREATE TABLE odd (id TEXT COMPRESSED)", "COMPRESSED"),
        ("CREATE VIEW odd AS SELECT 1 AS id", "no table"),
    ],
)
def test_a_table_whose_log_can_not_be_read_exactly_is_refused(database, statement, said):
    database.run(statement)
    assert database.source(table="odd").schema().names == ("id",)
    with pytest.raises(SourceError) as refused:
        database.source(table="odd", cdc="true").schema()
    assert refused.value.category is Category.CONFIGURATION
    assert said in f"{refused.value.message} {refused.value.detail}"


def test_a_server_that_logs_too_little_is_refused_with_what_to_set(database, captured):
    database.run("SET GLOBAL binlog_row_metadata = NO_LOG")
    try:
        with pytest.raises(SourceError) as refused:
            captured()
    finally:
        database.run("SET GLOBAL binlog_row_metadata = FULL")
    assert "SET GLOBAL binlog_row_metadata = FULL" in refused.value.detail


def test_rows_that_a_foreign_key_changes_are_warned_of(database, captured):
    database.run("CREATE TABLE child (id INT, t INT, CONSTRAINT f FOREIGN KEY (t) REFERENCES t (id) ON DELETE CASCADE)")
    assert ['"f"' in warning for warning in captured(table="child").source.warnings] == [True]


def test_who_may_not_read_the_log_is_told_at_once(database, captured):
    database.run("CREATE OR REPLACE USER reader IDENTIFIED BY 's3cr3t'", "GRANT SELECT ON *.* TO reader")
    with pytest.raises(SourceError) as refused:
        captured(username="reader", password="s3cr3t")
    assert (refused.value.category, "s3cr3t" in str(refused.value)) == (Category.AUTHENTICATION, False)
    database.run("GRANT BINLOG MONITOR ON *.* TO reader")
    with pytest.raises(SourceError) as refused:
        captured(username="reader", password="s3cr3t")
    assert refused.value.category is Category.AUTHENTICATION
    database.run("GRANT REPLICATION SLAVE ON *.* TO reader")
    assert len(captured(username="reader", password="s3cr3t").read()) == 2
    database.run("DROP USER reader")


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


@pytest.mark.parametrize("mode", ["require", "verify"])
def test_what_is_to_be_encrypted_is_never_sent_as_it_is(database, mode):
    ((encrypts,),) = database.ask("SELECT @@have_ssl = 'YES'")
    assert not encrypts, "the test is about a server that can't"
    database.run("CREATE TABLE t (id INT)")
    assert database.source(table="t", ssl__mode="disable").schema() is not None
    with pytest.raises(SourceError) as refused:
        database.source(table="t", ssl__mode=mode).schema()
    assert "SSL" in refused.value.detail


@pytest.mark.parametrize(("module", "options"), [("pymysql", {}), ("pymysqlreplication", {"cdc": "true"})])
def test_a_driver_that_is_not_installed_is_named(database, monkeypatch, module, options):
    database.run("CREATE TABLE t (id INT)")
    source = database.source(table="t", **options)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StoreError) as missing:
        source.schema()
    assert (missing.value.code, "velostream[mysql]" in missing.value.hint) == ("missing-driver", True)


def test_an_address_may_be_in_options_and_a_password_in_a_variable(monkeypatch):
    monkeypatch.setenv("PASSWORD", "p@ss/w:rd?")
    source = MysqlSource(SourceSpec("mysql", "mysql://shop/orders", {"host": "h", "port": "7"}))
    assert (str(source.driver.address), source.selection.table) == ("mysql://h:7/shop", "orders")
    source = MysqlSource(SourceSpec("mysql", "mariadb://u:${PASSWORD}@h/shop?table=t"))
    assert (source.driver.address.password, source.driver.address.host) == ("p@ss/w:rd?", "h")
    assert "p@ss" not in repr(source.driver)


@pytest.mark.parametrize(
    "options",
    [
        {"binlog.file": "bin.000001"},
        {"binlog.file": "bin.000001", "binlog.position": "4"},
        {"cdc.start": "somewhere", "initial.load": "none"},
    ],
)
def test_options_that_make_no_sense_together_are_refused(options):
    with pytest.raises(OptionError):
        MysqlSource(SourceSpec("mysql", "mysql://h/d", {"table": "t", "cdc": "true", **options}))


def test_the_log_gives_the_rows_that_a_load_gives_whatever_they_hold(database):
    chance = random.Random(11)
    decimals = [(1, 0), (9, 9), (10, 1), (18, 9), (19, 10), (27, 9), (38, 19)]
    kinds = {
        **{f"d{at}": (f"DECIMAL({p},{s})", partial(_decimal, p, s)) for at, (p, s) in enumerate(decimals)},
        **{f"t{at}": (f"TIME({at})", _time) for at in range(7)},
        **{f"m{at}": (f"DATETIME({at})", _moment) for at in range(7)},
        "i": ("TIMESTAMP(5) NULL", _moment),
        "day": ("DATE", lambda chance: _moment(chance)[:10]),
        "medium": ("MEDIUMINT", lambda chance: chance.randrange(-(2**23), 2**23)),
        "big": ("BIGINT", lambda chance: chance.randrange(-(2**63), 2**63)),
        "real_": ("FLOAT", lambda chance: chance.uniform(-1e9, 1e9)),
        "text_": ("TEXT", lambda chance: "".join(chance.choices("aä€😀'\\%\0 ", k=chance.choice((0, 3, 300))))),
        "char_": ("CHAR(100)", lambda chance: "".join(chance.choices("aä€😀", k=chance.randrange(100)))),
        "old": ("VARCHAR(300) CHARACTER SET latin1", lambda chance: "".join(chance.choices("aä€\x81", k=9))),
        "bytes_": ("BINARY(9)", lambda chance: chance.randbytes(chance.randrange(10))),
        "tags": ("SET('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i')", lambda chance: chance.randrange(512)),
        "bits": ("BIT(33)", lambda chance: chance.randrange(2**33)),
    }
    columns = ", ".join(f"{name} {type_}" for name, (type_, _) in kinds.items())
    database.run("SET time_zone = '+00:00'", f"CREATE TABLE chances (id INT PRIMARY KEY, {columns})")
    reader = Reader(database.source(table="chances", cdc="true"))
    reader.read()
    places = ", ".join(["%s"] * (1 + len(kinds)))
    with database.connection.cursor() as cursor:
        rows = [
            [number, *(None if chance.random() < 0.1 else make(chance) for _, make in kinds.values())]
            for number in range(300)
        ]
        cursor.executemany(f"INSERT INTO chances VALUES ({places})", rows)
    told = reader.read()
    loaded = Reader(database.source(table="chances", order__by="id"))
    assert [{name: value for name, value in row.items() if name != CHANGE} for row in told] == loaded.read()
    assert (len(told), reader.bad, loaded.bad) == (300, [], [])
    reader.source.close()


def _decimal(precision: int, scale: int, chance: random.Random) -> Decimal:
    digits = chance.randrange(precision + 1)
    return Decimal(chance.randrange(-(10**digits) + 1, 10**digits)).scaleb(-scale, Context(prec=50))


def _time(chance: random.Random) -> str:
    parts = (chance.choice(("", "-")), chance.randrange(839), chance.randrange(60), chance.randrange(59))
    return "{}{:02d}:{:02d}:{:02d}".format(*parts) + f".{chance.randrange(999_999):06d}"


def _moment(chance: random.Random) -> str:
    moment = datetime(1971, 1, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(60 * 365 * 86_400 * 10**6))
    return moment.replace(tzinfo=None).isoformat(sep=" ")


def test_what_the_server_pads_on_request_is_not_padded(database):
    database.run("CREATE TABLE t (c CHAR(5))", "INSERT INTO t VALUES ('ab')")
    ((mode,),) = database.ask("SELECT @@GLOBAL.sql_mode")
    database.run(f"SET GLOBAL sql_mode = 'ANSI,PAD_CHAR_TO_FULL_LENGTH,{mode}'")
    try:
        assert Reader(database.source(table="t")).read() == [{"c": "ab"}]
    finally:
        database.run(f"SET GLOBAL sql_mode = '{mode}'")
