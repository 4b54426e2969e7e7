"""The option `trigger`: rows that come between two beats are taken in together, or what is there is taken in once."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import threading
import time

import pytest

import velostream
from velostream.engine import ingest
from velostream.engine.maintain.fold import FoldRunner
from velostream.errors import OptionError, QueryError, UnsupportedError

RARELY = "'trigger' = '1h'"
OFTEN = "'trigger' = '300ms'"
ONCE = "'trigger' = 'once'"


@pytest.fixture
def connection():
    with velostream.connect() as connection:
        yield connection


@pytest.fixture
def begun(monkeypatch):
    """When each range was read."""
    read, times = ingest.read_range, []

    def noted(*arguments, **options):
        times.append(time.monotonic())
        return read(*arguments, **options)

    monkeypatch.setattr(ingest, "read_range", noted)
    return times


def feed(connection, *numbers):
    connection.memory("feed").append([{"n": number} for number in numbers])


def numbers(connection, table="t"):
    return sorted(n for (n, *_) in connection.execute(f"SELECT * FROM {table}").fetchall())


def until(condition, *, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rest_follows(connection, name):
    """Return once what is there is taken in, and the rest of an hour has begun."""
    connection.wait(name, timeout=60)


def test_rows_that_come_between_two_beats_are_one_batch(connection, begun):
    feed(connection, 1)
    connection.execute(f"CREATE TABLE t AS SELECT n FROM memory://feed WITH ({RARELY})")
    connection.execute("CREATE TABLE eager AS SELECT n FROM memory://feed")
    rest_follows(connection, "t")
    for number in (2, 3, 4):
        feed(connection, number)
        connection.drain("eager", timeout=60)
    began = len(begun)
    assert numbers(connection) == [1]
    assert connection.status("t").state == "ready"
    connection.drain("t", timeout=60)
    assert numbers(connection) == numbers(connection, "eager") == [1, 2, 3, 4]
    assert len(begun) == began + 1


def test_batches_begin_no_sooner_than_their_interval(connection, begun):
    connection.execute(f"CREATE TABLE t (n BIGINT) AS SELECT n FROM memory://feed WITH ({OFTEN})")
    for number in range(40):
        feed(connection, number)
        time.sleep(0.03)
    until(lambda: numbers(connection) == list(range(40)))
    assert 2 <= len(begun) <= 10
    assert all(later - sooner >= 0.28 for sooner, later in itertools.pairwise(begun))


def test_a_beat_takes_in_all_there_is_in_steps(connection, begun):
    feed(connection, 0)
    connection.execute(f"CREATE TABLE t AS SELECT n FROM memory://feed WITH ({RARELY}, 'max.rows.per.trigger' = '10')")
    rest_follows(connection, "t")
    for number in range(1, 5):
        feed(connection, *range(number * 10, number * 10 + 10))
    begun.clear()
    connection.drain("t", timeout=60)
    assert len(numbers(connection)) == 41
    assert len(begun) > 1


def test_a_load_does_not_rest(connection):
    for number in range(5):
        feed(connection, *range(number * 10, number * 10 + 10))
    connection.execute(f"CREATE TABLE t AS SELECT n FROM memory://feed WITH ({RARELY}, 'max.rows.per.trigger' = '10')")
    connection.wait("t", timeout=60)
    assert numbers(connection) == list(range(50))


@pytest.mark.parametrize("action", ["PAUSE", "STOP"])
def test_who_rests_is_stopped_and_goes_on_at_once(connection, action):
    feed(connection, 1)
    connection.execute(f"CREATE TABLE t AS SELECT n FROM memory://feed WITH ({RARELY})")
    rest_follows(connection, "t")
    feed(connection, 2)
    began = time.monotonic()
    connection.execute(f"{action} QUERY t")
    assert time.monotonic() - began < 20
    assert numbers(connection) == [1]
    connection.execute("RESUME QUERY t")
    until(lambda: numbers(connection) == [1, 2])


def test_how_far_behind_it_is_shows_while_it_rests(connection, monkeypatch):
    monkeypatch.setattr(ingest, "GAUGE_SECONDS", 0.0)
    feed(connection, 1)
    connection.execute(f"CREATE TABLE t AS SELECT n FROM memory://feed WITH ({RARELY})")
    rest_follows(connection, "t")
    feed(connection, 2, 3)
    until(lambda: connection.status("t").lag_rows == 2)
    connection.drain("t", timeout=60)
    until(lambda: connection.status("t").lag_rows == 0)


FEED = "memory://feed"
STREAMING = {
    "groups": "CREATE TABLE t AS SELECT n, COUNT(*) AS c FROM memory://feed GROUP BY n WITH ({})",
    "groups in state": f"CREATE TABLE t AS SELECT n, AVG(DOUBLE(n)) AS c FROM {FEED} GROUP BY n WITH ({{}})",
    "having": "CREATE TABLE t AS SELECT n, COUNT(*) AS c FROM memory://feed GROUP BY n HAVING c > 0 WITH ({})",
    "insert": "INSERT INTO t SELECT n FROM memory://feed WITH ({})",
    "update": "UPSERT INTO t SELECT s.n FROM memory://feed s ON t.n = s.n WITH ({})",
    "stream": "CREATE STREAM s AS SELECT n FROM memory://feed WITH ({}); CREATE TABLE t AS SELECT n FROM s",
    "fold": "CREATE TABLE t AS SELECT n FROM memory://feed WITH ('changelog' = 'upsert', 'key' = 'n', {})",
    "table": f"CREATE TABLE base AS SELECT n FROM {FEED}; CREATE TABLE t AS SELECT n FROM base WITH ({{}})",
}


def start(connection, form, trigger):
    """Start a form over rows that are there, and give the name of what is triggered."""
    sql = STREAMING[form].format(trigger)
    if form in ("insert", "update"):
        connection.execute("CREATE TABLE t (n BIGINT PRIMARY KEY)")
    for statement in sql.split("; "):
        connection.execute(statement)
    name = {"insert": "insert_into_t_1", "update": "upsert_t_1", "stream": "s"}.get(form, "t")
    known = [query.name for query in connection.status()]
    return name if name in known else next(one for one in known if one.startswith(("upsert", "insert")))


@pytest.mark.parametrize("form", STREAMING)
def test_every_form_rests(connection, form):
    feed(connection, 1)
    name = start(connection, form, RARELY)
    connection.wait(name, timeout=90)
    connection.drain("t", timeout=90)
    feed(connection, 2)
    feed(connection, 3)
    connection.execute("CREATE TABLE eager AS SELECT n FROM memory://feed")
    connection.drain("eager", timeout=60)
    assert numbers(connection) == [1]
    connection.drain(name, timeout=60)
    connection.drain("t", timeout=60)
    assert numbers(connection) == [1, 2, 3]


@pytest.mark.parametrize("form", STREAMING)
def test_every_form_takes_in_once_what_is_there(connection, form):
    feed(connection, 1, 2)
    name = start(connection, form, ONCE)
    connection.wait(name, timeout=90)
    until(lambda: "RESUME QUERY" in connection.status(name).reason or form == "having", seconds=90)
    connection.drain("t", timeout=90)
    assert numbers(connection) == [1, 2]
    feed(connection, 3)
    connection.execute("CREATE TABLE eager AS SELECT n FROM memory://feed")
    connection.drain("eager", timeout=60)
    connection.drain(name, timeout=60)
    assert connection.status(name).state == "ready"
    assert numbers(connection) == [1, 2]
    for action, rows in (("RESUME", [1, 2, 3]), ("RESTART", [1, 2, 3, 4])):
        if form == "table":
            connection.drain("base", timeout=60)
        connection.execute(f"{action} QUERY {name}")
        until(lambda rows=rows: numbers(connection) == rows, seconds=90)
        until(lambda: connection.status(name).state == "ready", seconds=90)
        feed(connection, 4)


def test_once_takes_nothing_that_came_later(connection, monkeypatch):
    """Rows that come while it reads in small steps are left for the next time."""
    commit = ingest.Ingest._commit

    def commit_while_more_comes(self, *arguments):
        feed(connection, 100)
        commit(self, *arguments)

    feed(connection, 1, 2)
    feed(connection, 3, 4)
    monkeypatch.setattr(ingest.Ingest, "_commit", commit_while_more_comes)
    connection.execute(f"CREATE TABLE t AS SELECT n FROM memory://feed WITH ({ONCE}, 'max.rows.per.trigger' = '3')")
    connection.wait("t", timeout=60)
    assert numbers(connection) == [1, 2, 3, 4]


def test_once_over_nothing_is_through(connection):
    connection.execute(f"CREATE TABLE t (n BIGINT) AS SELECT n FROM memory://feed WITH ({ONCE})")
    connection.memory("feed").append([{"n": 1}])
    connection.wait("t", timeout=60)
    assert connection.status("t").state == "ready"


def test_once_leaves_no_reader_behind(connection):
    feed(connection, 1)
    connection.execute(f"CREATE TABLE t AS SELECT n FROM memory://feed WITH ({ONCE})")
    connection.wait("t", timeout=60)
    until(lambda: not any(one.is_alive() for one in ingests()))


def ingests():
    return [thread for thread in threading.enumerate() if thread.name.startswith("ingest")]


def test_a_select_over_a_stream_ends_with_what_was_there(connection):
    feed(connection, 1, 2)
    found = connection.execute(f"SELECT n FROM memory://feed WITH ({ONCE})").fetchall()
    assert sorted(found) == [(1,), (2,)]


def written(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        return sorted(n for (n,) in database.execute("SELECT n FROM out"))


@pytest.mark.parametrize("trigger", [RARELY, ONCE])
def test_changes_leave_together_or_once(connection, tmp_path, trigger):
    path = tmp_path / "shop.db"
    connection.execute("CREATE TABLE t (n BIGINT PRIMARY KEY)")
    connection.execute("INSERT INTO t VALUES (1)")
    sink = f"'sql://sqlite:///{path}?table=out'"
    connection.execute(f"INSERT INTO {sink} SELECT n FROM t EMIT CHANGES WITH ({trigger})")
    (name,) = [one.name for one in connection.status() if one.name.startswith("insert")]
    connection.wait(name, timeout=60)
    assert written(path) == [1]
    connection.execute("CREATE TABLE eager AS SELECT n FROM t")
    connection.execute("INSERT INTO t VALUES (2)")
    connection.execute("INSERT INTO t VALUES (3)")
    connection.drain("eager", timeout=60)
    assert written(path) == [1]
    if trigger == ONCE:
        until(lambda: "RESUME" in connection.status(name).reason)
        connection.execute(f"RESUME QUERY {name}")
    connection.drain(name, timeout=60)
    until(lambda: written(path) == [1, 2, 3])


def test_a_restart_takes_in_what_came_meanwhile(tmp_path):
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"n": 1}) + "\n")
    sql = f"CREATE TABLE t AS SELECT n FROM file://{source} WITH ('watch.mode' = 'append', {ONCE})"
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute(sql)
        connection.wait("t", timeout=60)
        until(lambda: "RESUME" in connection.status("t").reason)
        with source.open("a") as file:
            file.write(json.dumps({"n": 2}) + "\n")
    with velostream.connect(tmp_path / "state") as connection:
        connection.drain("t", timeout=60)
        assert numbers(connection) == [1, 2]


REFUSED = {
    "CREATE TABLE r AS SELECT * FROM '{path}' WITH ('trigger' = '5s')": UnsupportedError,
    "SELECT * FROM '{path}' WITH ('trigger' = '5s')": UnsupportedError,
    "INSERT INTO other SELECT n FROM '{path}' WITH ('trigger' = '5s')": UnsupportedError,
    "CREATE TABLE r AS SELECT n FROM memory://feed WITH ('trigger' = 'sometimes')": OptionError,
    "CREATE TABLE r AS SELECT n FROM memory://feed WITH ('trigger' = 'realtime')": UnsupportedError,
    "INSERT INTO other SELECT n FROM memory://feed WITH ('trigger' = '-1s')": OptionError,
}


def test_what_cannot_be_triggered_says_why(connection, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("n\n1\n")
    feed(connection, 1)
    connection.execute("CREATE TABLE other (n BIGINT)")
    for sql, kind in REFUSED.items():
        with pytest.raises(kind, match="trigger") as caught:
            connection.execute(sql.format(path=path))
        assert caught.value.hint
    assert [one.name for one in connection.status()] == ["other"]


def test_explain_says_how_often(connection):
    def told(trigger):
        rows = connection.execute(f"EXPLAIN CREATE TABLE t AS SELECT n FROM memory://feed WITH ({trigger})")
        return dict(rows.fetchall())["trigger"]

    feed(connection, 1)
    assert "every 300ms" in told(OFTEN)
    assert "once" in told(ONCE)


def test_a_view_that_has_ended_is_not_refreshed(connection):
    connection.execute("CREATE TABLE base (n BIGINT)")
    connection.execute("INSERT INTO base VALUES (1)")
    connection.execute(f"CREATE TABLE t AS SELECT n FROM base WITH ({ONCE})")
    connection.wait("t", timeout=60)
    connection.execute("INSERT INTO base VALUES (2)")
    assert numbers(connection) == [1]
    with pytest.raises(QueryError, match="not running"):
        connection.execute("REFRESH TABLE t")


def test_once_ends_where_each_part_of_the_source_ended(connection, tmp_path, monkeypatch):
    folder = tmp_path / "rows"
    folder.mkdir()
    write_lines(folder / "a.jsonl", range(5))
    write_lines(folder / "b.jsonl", range(100, 130))
    read, later = ingest.read_range, itertools.count(1000)

    def grown(*arguments, **options):
        write_lines(folder / "a.jsonl", itertools.islice(later, 5))
        return read(*arguments, **options)

    monkeypatch.setattr(ingest, "read_range", grown)
    source = f"file://{folder} WITH ('watch.mode' = 'append', 'format' = 'json', 'max.rows.per.trigger' = '10', {ONCE})"
    connection.execute(f"CREATE TABLE t AS SELECT n FROM {source}")
    connection.wait("t", timeout=60)
    assert numbers(connection) == [*range(5), *range(100, 130)]


def write_lines(path, values):
    with path.open("a") as file:
        file.writelines(json.dumps({"n": value}) + "\n" for value in values)


def test_once_waits_for_a_source_that_gets_columns_meanwhile(connection, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n')
    source = f"file://{path} WITH ('watch' = 'true'"
    connection.execute(f"CREATE TABLE copy AS SELECT * FROM {source})")
    connection.drain("copy", timeout=60)
    connection.execute(f"CREATE TABLE t AS SELECT COUNT(*) AS n FROM {source}, {ONCE})")
    connection.wait("t", timeout=60)
    connection.execute("PAUSE QUERY t")
    with path.open("a") as file:
        file.write('{"n": 2, "late": 1}\n')
    connection.execute("RESUME QUERY t")
    until(lambda: numbers(connection) == [2])


def test_a_view_that_was_stopped_while_it_waited_for_its_sources_takes_nobodys_place(connection, tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n')
    source = f"file://{path} WITH ('watch' = 'true'"
    connection.execute(f"CREATE TABLE other AS SELECT COUNT(*) AS n FROM {source})")
    connection.drain("other", timeout=60)
    drain, waiting = FoldRunner.drain, {}

    def held(runner, deadline):
        thread = threading.current_thread()
        if thread.name.startswith("once"):
            waiting.setdefault(thread.ident, threading.Event()).wait(60)
        drain(runner, deadline)

    monkeypatch.setattr(FoldRunner, "drain", held)
    connection.execute(f"CREATE TABLE t AS SELECT COUNT(*) AS n FROM {source}, {ONCE})")
    until(lambda: len(waiting) == 1)
    connection.execute("PAUSE QUERY t")
    connection.execute("RESUME QUERY t")
    until(lambda: len(waiting) == 2)
    first, second = waiting.values()
    loop = connection._launcher.running.loop
    with loop._lock:
        second.set()
        first.set()
        time.sleep(0.3)
    connection.wait("t", timeout=60)
    assert numbers(connection) == [1]


def test_a_new_view_over_one_that_rests_is_loaded_at_once(connection):
    connection.execute("CREATE TABLE base (n BIGINT PRIMARY KEY)")
    connection.execute("INSERT INTO base VALUES (1)")
    connection.execute(f"CREATE TABLE v AS SELECT n, COUNT(*) AS c FROM base GROUP BY n WITH ({RARELY})")
    rest_follows(connection, "v")
    connection.execute("INSERT INTO base VALUES (2)")
    connection.execute("CREATE TABLE w AS SELECT * FROM v")
    connection.wait("w", timeout=60)
    assert numbers(connection, "w") == [1, 2]
