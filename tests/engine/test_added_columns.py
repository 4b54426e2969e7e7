"""A table that copies a source gets the columns that come later (`schema.evolution`), over restarts and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal

import psycopg
import pytest

import velostream
from velostream.engine.catalog import EntryKind
from velostream.errors import Category, OptionError, QueryError, SourceError, ValidationError
from velostream.sources.memory import MemorySource
from velostream.testing.kafka_feed import send
from velostream.testing.services.kafka import KafkaService
from velostream.testing.services.postgres import PostgresService


class FileFeed:
    """Lines of JSON in a file that grows."""

    def __init__(self, path, options):
        self.path, self.source = path, f"file://{path}"
        self.options = f"{options}, 'schema.evolution' = 'add'"

    def send(self, connection, *rows):
        with self.path.open("a") as file:
            file.writelines(json.dumps(row, default=float) + "\n" for row in rows)


class MemoryFeed:
    def __init__(self, options):
        self.source, self.options = "memory://feed", f"'schema.evolution' = 'add'{options}"

    def send(self, connection, *rows):
        connection.memory("feed").append(rows)


class TopicFeed:
    def __init__(self, topic, *, keyed):
        self.source, self.options, self._keyed = topic, "'schema.evolution' = 'add'", keyed

    def send(self, connection, *rows):
        send(self.source, [(str(row["id"]) if self._keyed else None, json.dumps(row, default=float)) for row in rows])


class CapturedTable:
    """A table of PostgreSQL, which gets the columns before its rows have them."""

    def __init__(self, url, *, default=""):
        self._url, self._columns, self._default = url, ["id", "name"], default
        self.source = f"'{url}?table=t'"
        self.options = "'cdc' = 'true', 'schema.evolution' = 'add'"
        self._run("CREATE TABLE t (id bigint PRIMARY KEY, name text)")

    def send(self, connection, *rows):
        for row in rows:
            for name in row:
                if name not in self._columns:
                    self._columns.append(name)
                    type_ = {int: "bigint", str: "text", Decimal: "numeric(18,2)"}[type(row[name])]
                    self._run(f"ALTER TABLE t ADD {name} {type_} {self._default}")
            marks = ", ".join(["%s"] * len(row))
            self._run(f"INSERT INTO t ({', '.join(row)}) VALUES ({marks})", list(row.values()))

    def _run(self, sql, values=()):
        with psycopg.connect(self._url, autocommit=True) as session:
            session.execute(sql, values)


KINDS = {
    "appended lines": "'watch.mode' = 'append'",
    "a watched file": "'watch' = 'true'",
    "a feed": "",
    "a feed by key": ", 'changelog' = 'upsert', 'key' = 'id'",
    "a topic": "",
    "a topic by key": "",
    "a captured table": "",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaService]:
    with KafkaService() as broker:
        yield broker


@pytest.fixture(params=KINDS)
def feed(request, tmp_path):
    options = KINDS[request.param]
    match request.param.split():
        case ["appended", _] | ["a", "watched", _]:
            return FileFeed(tmp_path / "rows.jsonl", options)
        case ["a", "feed", *_]:
            return MemoryFeed(options)
        case ["a", "topic", *key]:
            return TopicFeed(request.getfixturevalue("broker").new_topic(partitions=1), keyed=bool(key))
    return CapturedTable(PostgresService.shared().new_database())


@pytest.fixture
def unsaid(feed):
    """One whose options say nothing about columns that come later."""
    feed.options = ", ".join(one for one in feed.options.split(", ") if "schema.evolution" not in one)
    return feed


def rows_of(connection, name):
    connection.drain(name, timeout=120)
    result = connection.execute(f"SELECT * FROM {name}")
    return result.columns, sorted(result.fetchall())


def test_a_copy_gets_the_columns_and_its_readers_keep_theirs(feed, tmp_path):  # B10, B55
    with velostream.connect(tmp_path / "state") as connection:
        feed.send(connection, {"id": 1, "name": "one"}, {"id": 2, "name": "two"})
        connection.execute(f"CREATE TABLE t AS SELECT * FROM {feed.source} WITH ({feed.options})")
        connection.execute("CREATE TABLE seen AS SELECT * FROM t")
        connection.execute("CREATE TABLE named AS SELECT name, COUNT(*) AS n FROM t GROUP BY name")
        probes = connection.memory("probes")
        probes.append([{"probe": 1}])
        connection.execute("CREATE TABLE met AS SELECT * FROM memory://probes p JOIN t ON p.probe = t.id")
        assert rows_of(connection, "t") == (["id", "name"], [(1, "one"), (2, "two")])
        assert rows_of(connection, "met")[1] == [(1, 1, "one")]
        before = connection.table("t").snapshot()
        feed.send(connection, {"id": 3, "name": "two", "price": Decimal("1.50")}, {"id": 4, "name": "x", "size": 7})
        expected = [
            (1, "one", None, None),
            (2, "two", None, None),
            (3, "two", Decimal("1.50"), None),
            (4, "x", None, 7),
        ]
        assert rows_of(connection, "t") == (["id", "name", "price", "size"], expected)
        assert before.schema.names == ("id", "name")
        assert connection.execute("SELECT id FROM t WHERE price = 1.5").fetchall() == [(3,)]
        assert connection.table("t").schema.names == ("id", "name", "price", "size")
        probes.append([{"probe": 3}])
        assert rows_of(connection, "met") == (["probe", "id", "name"], [(1, 1, "one"), (3, 3, "two")])
        connection.execute("CREATE TABLE later AS SELECT * FROM t")
        assert rows_of(connection, "later") == (["id", "name", "price", "size"], expected)
    with velostream.connect(tmp_path / "state") as connection:
        assert rows_of(connection, "t") == (["id", "name", "price", "size"], expected)
        feed.send(connection, {"id": 5, "name": "y", "note": "new"})
        expected = [(*row, None) for row in expected] + [(5, "y", None, None, "new")]
        assert rows_of(connection, "t") == (["id", "name", "price", "size", "note"], expected)
        assert rows_of(connection, "seen") == (["id", "name"], [row[:2] for row in expected])
        assert rows_of(connection, "later") == (["id", "name", "price", "size"], [row[:4] for row in expected])
        assert rows_of(connection, "named")[1] == [("one", 1), ("two", 2), ("x", 1), ("y", 1)]
        connection.memory("probes").append([{"probe": 5}])
        assert rows_of(connection, "met")[1] == [(1, 1, "one"), (3, 3, "two"), (5, 5, "y")]
        assert connection.status("t").state == "ready"
        assert not connection.execute("SHOW DEAD LETTERS").fetchall()


@pytest.mark.parametrize("first", ["copy", "counts"])
def test_columns_are_added_unless_another_thing_is_said_and_beside_statements_without_them(
    unsaid, first, tmp_path
):  # B10, B14
    feed = unsaid
    with_options = f"WITH ({feed.options})" if feed.options else ""
    statements = {
        "copy": f"CREATE TABLE copy AS SELECT * FROM {feed.source} {with_options}",
        "counts": f"CREATE TABLE counts AS SELECT name, COUNT(*) AS n FROM {feed.source} {with_options} GROUP BY name",
    }
    ignoring = ", ".join(filter(None, (feed.options, "'schema.evolution' = 'ignore'")))
    with velostream.connect(tmp_path / "state") as connection:
        feed.send(connection, {"id": 1, "name": "a"})
        for name in sorted(statements, key=lambda name: name != first):
            connection.execute(statements[name])
        connection.execute(f"CREATE TABLE fixed AS SELECT * FROM {feed.source} WITH ({ignoring})")
        assert rows_of(connection, "copy") == (["id", "name"], [(1, "a")])
        feed.send(connection, {"id": 2, "name": "a", "size": 7})
        feed.send(connection, {"id": 3, "name": "b", "note": "x"})
        expected = [(1, "a", None, None), (2, "a", 7, None), (3, "b", None, "x")]
        assert rows_of(connection, "copy") == (["id", "name", "size", "note"], expected)
        assert rows_of(connection, "counts") == (["name", "n"], [("a", 2), ("b", 1)])
        assert rows_of(connection, "fixed") == (["id", "name"], [(1, "a"), (2, "a"), (3, "b")])
        connection.execute("DROP TABLE fixed")
    with velostream.connect(tmp_path / "state") as connection:
        feed.send(connection, {"id": 4, "name": "b", "last": 1})
        assert rows_of(connection, "counts") == (["name", "n"], [("a", 2), ("b", 2)])
        expected = [(*row, None) for row in expected] + [(4, "b", None, None, 1)]
        assert rows_of(connection, "copy") == (["id", "name", "size", "note", "last"], expected)
        connection.execute("DROP TABLE copy")
        feed.send(connection, {"id": 5, "name": "c", "unread": 1})
        assert rows_of(connection, "counts") == (["name", "n"], [("a", 2), ("b", 2), ("c", 1)])
        assert connection.status("counts").state == "ready"


@pytest.mark.parametrize(("options", "folded"), [("'watch' = 'true'", True), ("'watch.mode' = 'append'", False)])
def test_a_copy_and_other_statements_are_one_reading_while_they_have_the_same_columns(options, folded, tmp_path):  # B10
    path = tmp_path / "rows.jsonl"
    with velostream.connect() as connection:
        feed = FileFeed(path, options)
        feed.send(connection, {"id": 1, "name": "a"})
        source = f"file://{path} WITH ({options})"
        connection.execute(f"CREATE TABLE copy AS SELECT * FROM {source}")
        connection.execute(f"CREATE TABLE counts AS SELECT name, COUNT(*) AS n FROM {source} GROUP BY name")
        for row, readings in (({"id": 2, "name": "b"}, 1), ({"id": 3, "name": "b", "late": 1}, 1 if folded else 2)):
            feed.send(connection, row)
            assert len(rows_of(connection, "copy")[1]) == sum(n for _, n in rows_of(connection, "counts")[1])
            folds = [entry for entry in connection._context.catalog if entry.kind is EntryKind.SOURCE]
            assert len(folds) == folded
            assert len(connection._launcher.running.ingests) == (0 if folded else readings)


def test_who_stays_goes_on_though_the_source_could_not_be_opened_anew_at_once():
    with velostream.connect() as connection:
        feed = connection.memory("feed")
        feed.append([{"id": 1}])
        connection.execute("CREATE TABLE copy AS SELECT * FROM memory://feed")
        connection.execute("CREATE TABLE counts AS SELECT COUNT(*) AS n FROM memory://feed")
        assert rows_of(connection, "counts")[1] == [(1,)]
        (ingest,) = connection._launcher.running.ingests
        opened, troubles = ingest._open, [SourceError("nobody there", category=Category.NETWORK)]

        def open_at_second_try(spec):
            if troubles:
                raise troubles.pop()
            return opened(spec)

        ingest._open = open_at_second_try
        feed.append([{"id": 2, "late": 2}])
        assert rows_of(connection, "copy") == (["id", "late"], [(1, None), (2, 2)])
        assert rows_of(connection, "counts")[1] == [(2,)]
        assert not troubles


def test_a_fold_that_got_columns_is_found_by_those_that_have_them(tmp_path):
    path = tmp_path / "rows.jsonl"
    feed = FileFeed(path, "'watch' = 'true'")
    with velostream.connect(tmp_path / "state") as connection:
        source = f"file://{path} WITH ('watch' = 'true')"
        feed.send(connection, {"id": 1})
        connection.execute(f"CREATE TABLE first AS SELECT * FROM {source}")
        assert rows_of(connection, "first")[1] == [(1,)]
        connection.execute("PAUSE QUERY first")
        feed.send(connection, {"id": 2, "b": 2})
        connection.execute(f"CREATE TABLE second AS SELECT * FROM {source}")
        assert rows_of(connection, "second") == (["id", "b"], [(1, None), (2, 2)])

        def folds():
            return {entry.id for entry in connection._context.catalog if entry.kind is EntryKind.SOURCE}

        before = folds()
        connection.execute("DROP TABLE first")
        feed.send(connection, {"id": 3, "c": 3})
        assert rows_of(connection, "second") == (["id", "b", "c"], [(1, None, None), (2, 2, None), (3, None, 3)])
        assert folds() < before


def test_tables_that_can_not_take_columns_leave_them_out_where_nothing_is_said(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n')
    source = f"file://{path} WITH ('watch' = 'true')"
    copies = {
        "declared": f"CREATE TABLE declared (id BIGINT) AS SELECT * FROM {source}",
        "chosen": f"CREATE TABLE chosen AS SELECT id FROM {source}",
        "stored": f"CREATE TABLE stored AS SELECT * FROM {source} "
        f"WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path}/s.db')",
    }
    with velostream.connect() as connection:
        for name, statement in copies.items():
            connection.execute(statement)
            connection.drain(name, timeout=60)
        with path.open("a") as file:
            file.write('{"id": 2, "late": 2}\n')
        for name in copies:
            assert rows_of(connection, name) == (["id"], [(1,), (2,)])


def test_rows_that_have_the_default_of_a_captured_column_get_it(tmp_path):  # B10
    captured = CapturedTable(PostgresService.shared().new_database(), default="DEFAULT 7")
    with velostream.connect(tmp_path / "state") as connection:
        captured.send(connection, {"id": 1, "name": "one"})
        connection.execute(f"CREATE TABLE t AS SELECT * FROM {captured.source} WITH ({captured.options})")
        assert rows_of(connection, "t")[1] == [(1, "one")]
        captured.send(connection, {"id": 2, "name": "two", "size": 8})
        assert rows_of(connection, "t") == (["id", "name", "size"], [(1, "one", 7), (2, "two", 8)])
        connection.execute("DROP TABLE t")


def test_a_bounded_file_whose_columns_come_late_has_them_all(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [{"id": number, "text": "x" * 500} for number in range(12_000)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"id": -1, "late": 1}]))
    with velostream.connect() as connection:
        connection.execute(f"CREATE TABLE t AS SELECT * FROM file://{path} WITH ('schema.evolution' = 'add')")
        connection.wait("t", timeout=60)
        assert connection.execute("SELECT id, late FROM t WHERE id < 1 ORDER BY id").fetchall() == [(-1, 1), (0, None)]
        assert len(connection.table("t")) == 12_001


_KILLED = """
import sys
import velostream

connection = velostream.connect(sys.argv[1])
feed = connection.memory("feed")
feed.append([{"id": 1}])
for name, options in (("s", ""), ("k", ", 'changelog' = 'upsert', 'key' = 'id'")):
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM memory://feed WITH ('schema.evolution' = 'add'{options})")
    connection.drain(name, timeout=60)
feed.append([{"id": 2, "late": 2}])
for name in "sk":
    connection.drain(name, timeout=60)
"""


@pytest.mark.parametrize("table", ["s", "k"])
def test_a_kill_between_what_is_meant_and_what_is_done_loses_nothing(table, tmp_path):  # B55
    environment = os.environ | {"VELOSTREAM_CRASH_AT": "growing.after-catalog"}
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    with velostream.connect(tmp_path) as connection:
        assert rows_of(connection, table) == (["id", "late"], [(1, None), (2, 2)])


@pytest.mark.parametrize("kind", ["appended lines", "a watched file"])
def test_no_column_is_added_under_a_name_of_the_engines(kind, tmp_path):
    feed = FileFeed(tmp_path / "rows.jsonl", KINDS[kind])
    with velostream.connect() as connection:
        feed.send(connection, {"id": 1})
        connection.execute(f"CREATE TABLE t AS SELECT * FROM {feed.source} WITH ({feed.options})")
        assert rows_of(connection, "t") == (["id"], [(1,)])
        batches = connection.subscribe("t")
        feed.send(connection, {"id": 2, "_change": 5, "_origin": "x"}, {"id": 3, "_Change": -1, "late": 3})
        assert rows_of(connection, "t") == (["id", "late"], [(1, None), (2, None), (3, 3)])
        assert next(batches).arrow.column_names == ["id", "late", "_change"]
        assert connection.status("t").state == "ready"


def test_a_field_that_begins_with_null_gets_the_type_of_its_first_value(tmp_path):
    feeds = {"f": FileFeed(tmp_path / "rows.jsonl", KINDS["a watched file"]), "m": MemoryFeed("")}
    with velostream.connect() as connection:
        for name, feed in feeds.items():
            feed.send(connection, {"id": 1})
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM {feed.source} WITH ({feed.options})")
            assert rows_of(connection, name) == (["id"], [(1,)])
            feed.send(connection, {"id": 2, "x": None, "y": []})
            assert rows_of(connection, name) == (["id"], [(1,), (2,)])
            feed.send(connection, {"id": 3, "x": Decimal("3.5")})
            assert rows_of(connection, name) == (["id", "x"], [(1, None), (2, None), (3, Decimal("3.50"))])
            assert connection.table(name).schema.column("x").sql_type == "DECIMAL(18,2)"


def test_only_tables_that_grow_have_readers_with_columns_of_their_own(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n')
    with velostream.connect(tmp_path / "state") as connection:
        source = f"file://{path} WITH ('watch' = 'true', 'schema.evolution' ="
        connection.execute(f"CREATE TABLE plain AS SELECT * FROM {source} 'ignore')")
        connection.execute(f"CREATE TABLE growing AS SELECT * FROM {source} 'add')")
        connection.execute("CREATE STREAM named WITH ('source' = 'memory://feed', 'schema.evolution' = 'add')")
        connection.memory("feed").append([{"id": 1}])
        connection.execute("CREATE TABLE streamed AS SELECT * FROM named")
        for name in ("plain", "growing", "streamed"):
            connection.execute(f"CREATE TABLE {name}_read AS SELECT * FROM {name}")
            connection.drain(f"{name}_read", timeout=60)
        connection.memory("feed").append([{"id": 2, "late": 2}])
        assert rows_of(connection, "streamed") == (["id", "late"], [(1, None), (2, 2)])
        catalog = connection._context.catalog
        grows = {entry.name: entry.grows for entry in catalog.visible()}
        assert [name for name, whether in grows.items() if whether] == ["growing", "streamed"]
        pinned = {name: bool(catalog.find(f"{name}_read").sources) for name in ("plain", "growing", "streamed")}
        assert pinned == {"plain": False, "growing": True, "streamed": True}
    with velostream.connect(tmp_path / "state") as connection:
        assert rows_of(connection, "streamed_read") == (["id"], [(1,), (2,)])


def test_nothing_is_started_any_more_by_a_connection_that_closes(monkeypatch):
    starting, running_closes = threading.Event(), threading.Event()
    started, left = [], []
    connection = velostream.connect()
    try:
        feed = connection.memory("feed")
        feed.append([{"id": 1}])
        for name in ("first", "second"):
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM memory://feed WITH ('schema.evolution' = 'add')")
            connection.drain(name, timeout=60)
        supervisor, running = connection._supervisor, connection._launcher.running
        start, close = supervisor.start, running.close

        def start_slowly(entry):
            started.append(entry.name)
            starting.set()
            connection._context.closing.wait(60)
            running_closes.wait(1)
            start(entry)

        def note_and_close():
            left.extend(one.name for one in threading.enumerate() if one.name == "further columns")
            running_closes.set()
            close()

        monkeypatch.setattr(supervisor, "start", start_slowly)
        monkeypatch.setattr(running, "close", note_and_close)
        feed.append([{"id": 2, "late": 2}])
        assert starting.wait(60)
    finally:
        connection.close()
    assert (left, started) == ([], ["first"])


@pytest.mark.parametrize("end", ["DROP TABLE t", "PAUSE QUERY t"])
@pytest.mark.parametrize("source", ["missing", "held"])
def test_draining_ends_with_the_wish_that_the_table_is_kept(end, source, tmp_path, monkeypatch):
    with velostream.connect() as connection:
        if source == "missing":
            adding = f"file://{tmp_path}/none.jsonl WITH ('watch' = 'true', 'file.wait.timeout' = '10m')"
            connection.execute(f"CREATE TABLE t AS SELECT * FROM {adding}")
        else:
            connection.memory("feed").append([{"id": 1}])
            connection.execute("CREATE TABLE t AS SELECT * FROM memory://feed")
            connection.drain("t", timeout=60)
            monkeypatch.setattr(MemorySource, "reached", lambda *_: False)
        waits = threading.Event()
        board = connection._context.board(connection._context.catalog.find("t"))
        wait_for_news = board.wait_for_news

        def wait(seconds):
            waits.set()
            wait_for_news(seconds)

        monkeypatch.setattr(board, "wait_for_news", wait)
        ended = []

        def drain():
            connection.drain("t", timeout=60)
            ended.append(True)

        draining = threading.Thread(target=drain, daemon=True)
        draining.start()
        assert waits.wait(60)
        connection.execute(end)
        draining.join(timeout=20)
        assert ended == [True]


def test_what_can_not_take_columns_is_refused_with_what_to_write(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n')
    adding = "'schema.evolution' = 'add'"
    source = f"file://{path} WITH ('watch.mode' = 'append', {adding})"
    copy = f"CREATE TABLE z AS SELECT * FROM file://{path} WITH ('watch' = 'true', {adding},"
    refused = {
        f"SELECT * FROM {source}": ValidationError,
        f"CREATE TABLE z AS SELECT id FROM {source}": ValidationError,
        f"CREATE TABLE z AS SELECT COUNT(*) AS n FROM {source}": ValidationError,
        f"CREATE STREAM z AS SELECT * FROM {source}": ValidationError,
        f"INSERT INTO file://{tmp_path}/out.jsonl SELECT * FROM {source}": ValidationError,
        f"CREATE TABLE z (id BIGINT) AS SELECT * FROM {source}": QueryError,
        f"{copy} 'extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path}/s.db')": QueryError,
        f"{copy} 'record.schema' = 'id BIGINT')": OptionError,
        f"CREATE TABLE z AS SELECT * FROM kafka://127.0.0.1:1/t WITH ('format' = 'string', {adding})": OptionError,
    }
    with velostream.connect() as connection:
        for statement, kind in refused.items():
            with pytest.raises(kind) as error:
                connection.execute(statement)
            problem = getattr(error.value, "problems", (error.value,))[0]
            assert (problem.code, bool(problem.hint)) == ("cannot-add-columns", True), statement
        assert connection.tables() == []
