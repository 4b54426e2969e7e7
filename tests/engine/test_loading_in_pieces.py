"""Sources that are read once and hold many rows: committed in pieces, seen as a whole.

Here Spark's workers read; what threads of this process do for them is in `test_loading_nearby`.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import velostream
from velostream.engine.context import EngineContext
from velostream.engine.directory import LOADS
from velostream.engine.maintain import once
from velostream.engine.pieces import LocalFiles, Pieces
from velostream.errors import Category, SourceError, StoreError, WaitTimeoutError
from velostream.testing.crash import play_until_crash

ROWS = 1000
IN_PIECES = "WITH ('max.rows.per.trigger' = '64')"
BY_WORKERS = {"velostream.lookup": "general"}


@pytest.fixture
def connection(tmp_path):
    with velostream.connect(tmp_path / "state", config=BY_WORKERS) as opened:
        yield opened


@pytest.fixture
def file(tmp_path) -> Path:
    """A key comes several times, at last with another value."""
    path = tmp_path / "orders.csv"
    write(path, range(ROWS))
    return path


@pytest.fixture
def commits(connection, monkeypatch) -> list[list[tuple[str, int]]]:
    """What each commit writes: to which table how many rows."""
    seen: list[list[tuple[str, int]]] = []
    commit = connection._context.commit

    def watched(*parts):
        seen.append([(table.name, write.rows.num_rows) for part in parts for table, write in part.writes])
        return commit(*parts)

    monkeypatch.setattr(connection._context, "commit", watched)
    return seen


def write(path: Path, numbers: range) -> None:
    with path.open("a") as lines:
        if not lines.tell():
            lines.write("id,n,price\n")
        lines.writelines(f"{number % 700},{number},{number}.25\n" for number in numbers)


def load(connection, name: str, select: str, options: str = "", columns: str = "") -> list[tuple[object, ...]]:
    connection.execute(f"CREATE TABLE {name} {columns} {options} AS {select}")
    connection.wait(name, timeout=120)
    return connection.execute(f"SELECT * FROM {name}").fetchall()


@pytest.mark.parametrize(
    ("select", "in_order"),
    [
        ("SELECT * FROM '{file}'", True),
        ("SELECT n, price * 2 AS twice FROM '{file}' WHERE n % 3 > 0", True),
        ("SELECT id PRIMARY KEY, n, price FROM '{file}'", False),
        ("SELECT n, id FROM '{file}' ORDER BY id DESC, n", True),
        ("SELECT id, count(*) AS c, max(n) AS newest FROM '{file}' GROUP BY id", False),
        ("SELECT a.n, b.price FROM '{file}' a JOIN '{file}' b ON a.n = b.n", False),
        ("SELECT n FROM '{file}' LIMIT 300", True),
        ("SELECT n FROM '{file}' WHERE n < 0", True),
    ],
)
def test_pieces_give_the_same_table(select, in_order, connection, commits, file):
    select = select.format(file=file)
    whole = load(connection, "whole", select)
    assert [len(commit) for commit in commits] == [1 if whole else 0]
    commits.clear()
    pieces = load(connection, "pieces", select, IN_PIECES)
    assert pieces == whole if in_order else sorted(pieces) == sorted(whole)
    assert len(commits) == max(1, -(-sum(rows for commit in commits for _, rows in commit) // 64))
    assert all(rows <= 64 for commit in commits for _, rows in commit)
    assert connection.status("pieces").percent == 100.0


def test_one_partition_that_is_large_is_never_held_as_a_whole(connection, commits, tmp_path, monkeypatch):
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"n": pa.array(range(450_000))}), path, row_group_size=450_000)
    read: list[int] = []
    original = LocalFiles.read

    def counted(files, name):
        rows = original(files, name)
        read.append(rows.num_rows)
        return rows

    monkeypatch.setattr(LocalFiles, "read", counted)
    options = "WITH ('max.rows.per.trigger' = '100000')"
    assert load(connection, "t", f"SELECT n FROM '{path}'", options) == [(n,) for n in range(450_000)]
    assert [rows for commit in commits for _, rows in commit] == [100_000] * 4 + [50_000]
    assert sum(read) == 450_000
    assert max(read) <= 200_000


def test_a_load_is_seen_as_a_whole(connection, file, monkeypatch):
    seen: list[tuple[str, int]] = []
    changes: list[int] = []

    def follow() -> None:
        for batch in connection.subscribe("t"):
            changes.append(batch.arrow.num_rows)
            return

    follower = threading.Thread(target=follow, daemon=True)

    def between(_directory: Path, point: str) -> None:
        if point == "once.after-commit" and len(connection.table("t")) < ROWS:
            if not follower.is_alive():
                follower.start()
            seen.append((connection.status("t").state, len(connection.table("t"))))
            follower.join(0.05)

    monkeypatch.setattr(EngineContext, "at_crash_point", staticmethod(between))
    options = "WITH ('max.rows.per.trigger' = '300')"
    connection.execute(f"CREATE TABLE t {options} AS SELECT * FROM '{file}'")
    connection.execute("CREATE TABLE above AS SELECT count(*) AS n FROM t")
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(ROWS,)]
    connection.wait("above", timeout=60)
    assert connection.execute("SELECT * FROM above").fetchall() == [(ROWS,)]
    follower.join(60)
    assert changes == [ROWS]
    assert seen == [("loading", 300), ("loading", 600), ("loading", 900)]
    first = connection._context.memory_table(connection._entry("above").id)
    assert [batch.arrow.num_rows for batch in [first.changes(0, first.version)]] == [1]


@pytest.mark.parametrize("way", ["fast", "general"])
@pytest.mark.parametrize("point", ["once.before-commit", "once.after-commit"])
def test_a_crash_between_pieces(point, way, tmp_path, file):
    with file.open("a") as lines:
        lines.write(",5000,1.25\n")
    script = f"> SET velostream.lookup = '{way}';\n"
    script += f"> CREATE TABLE t (id BIGINT NOT NULL, n BIGINT) {IN_PIECES} AS SELECT id, n FROM '{file}';\n"
    play_until_crash(f"{script}> SELECT count(*) FROM t;\n-1\n", folder=tmp_path, point=point)
    loads = tmp_path / "state" / LOADS
    if way == "general":
        assert [len(list(attempt.iterdir())) > 0 for attempt in loads.iterdir()] == [True]
    write(file, range(ROWS, ROWS + 10))
    with velostream.connect(tmp_path / "state") as connection:
        connection.wait("t", timeout=120)
        assert connection.execute("SELECT count(*), count(DISTINCT n), min(n), max(n) FROM t").fetchall() == [
            (ROWS + 10, ROWS + 10, 0, ROWS + 9)
        ]
        assert len(connection.execute("SHOW DEAD LETTERS t").fetchall()) == 1
        assert not loads.exists() or not list(loads.iterdir())
    with velostream.connect(tmp_path / "state") as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(ROWS + 10,)]


def test_a_load_that_fails_between_pieces_begins_anew(connection, file, commits, monkeypatch):
    original = Pieces.__iter__
    failures = [SourceError("it is gone", category=Category.NETWORK)]

    def failing(pieces):
        for piece in original(pieces):
            yield piece
            if failures:
                raise failures.pop()

    monkeypatch.setattr(Pieces, "__iter__", failing)
    found = load(connection, "t", f"SELECT n FROM '{file}'", "WITH ('max.rows.per.trigger' = '600')")
    assert sorted(found) == [(number,) for number in range(ROWS)]
    assert commits == [[("t", 600)], [("t", 0), ("t", 600)], [("t", 400)]]


def test_a_load_that_was_paused_between_pieces_is_not_ready(tmp_path, file, monkeypatch):
    with velostream.connect(tmp_path / "state") as connection:

        def stop(_directory: Path, point: str) -> None:
            if point == "once.after-commit":
                connection._launcher.running.runners[connection._entry("t").id]._stopping.set()

        monkeypatch.setattr(EngineContext, "at_crash_point", staticmethod(stop))
        connection.execute(f"CREATE TABLE t {IN_PIECES} AS SELECT n FROM '{file}'")
        connection._launcher.running.runners[connection._entry("t").id]._thread.join(60)
        connection.execute("PAUSE QUERY t")
        assert len(connection.table("t")) == 64
    monkeypatch.setattr(EngineContext, "at_crash_point", None)
    with velostream.connect(tmp_path / "state") as connection:
        assert not connection._context.board(connection._entry("t")).was_ready
        connection.execute("RESUME QUERY t")
        connection.wait("t", timeout=60)
        assert sorted(connection.execute("SELECT n FROM t")) == [(number,) for number in range(ROWS)]


@pytest.fixture
def held(monkeypatch):
    """The first load has its result and doesn't go on before it is let go; who stops it doesn't wait for that."""
    monkeypatch.setattr(once, "_PATIENCE_SECONDS", 0.0)
    first = SimpleNamespace(arrived=threading.Event(), let_go=threading.Event(), thread=None)
    original = once.gather_in_pieces

    def gather(*given, **named):
        pieces = original(*given, **named)
        if first.thread is None:
            first.thread = threading.current_thread()
            first.arrived.set()
            assert first.let_go.wait(60)
        else:
            first.let_go.set()
            first.thread.join(60)
        return pieces

    monkeypatch.setattr(once, "gather_in_pieces", gather)
    yield first
    first.let_go.set()
    first.thread.join(60)


def test_a_load_that_goes_on_when_it_is_paused_leaves_the_next_one_alone(connection, file, commits, held):
    connection.execute(f"CREATE TABLE t {IN_PIECES} AS SELECT n FROM '{file}'")
    assert held.arrived.wait(60)
    connection.execute("PAUSE QUERY t")
    connection.execute("RESUME QUERY t")
    connection.wait("t", timeout=60)
    assert sorted(connection.execute("SELECT n FROM t")) == [(number,) for number in range(ROWS)]
    assert len(commits) == -(-ROWS // 64)
    connection._launcher.running.runners[connection._entry("t").id]._thread.join(60)
    assert not list((connection._context.directory.path / LOADS).iterdir())


@pytest.mark.parametrize("action", ["PAUSE QUERY t", "DROP TABLE t"])
def test_nobody_waits_for_a_load_that_is_stopped(action, connection, file, held):
    connection.execute(f"CREATE TABLE t AS SELECT n FROM '{file}'")
    assert held.arrived.wait(60)
    waiting = threading.Thread(target=connection.drain, args=["t"], kwargs={"timeout": None}, daemon=True)
    waiting.start()
    runner = connection._launcher.running.runners[connection._entry("t").id]
    with pytest.raises(WaitTimeoutError, match="did not become ready in time"):
        runner.drain(0.0)
    connection.execute(action)
    runner.drain(time.monotonic() + 10)
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize("condition", ["n < 100", "n < 0"])
@pytest.mark.parametrize("is_in_store", [False, True])
def test_nothing_is_committed_once_a_load_is_stopped(
    condition, is_in_store, connection, file, commits, tmp_path, monkeypatch
):
    def stop(_directory: Path, point: str) -> None:
        if point == "once.before-commit":
            connection._launcher.running.runners[connection._entry("t").id]._stopping.set()

    monkeypatch.setattr(EngineContext, "at_crash_point", staticmethod(stop))
    store = f"WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path}/t.db')" if is_in_store else ""
    connection.execute(f"CREATE TABLE t {store} AS SELECT id, n FROM '{file}' WHERE {condition}")
    connection._launcher.running.runners[connection._entry("t").id]._thread.join(60)
    assert commits == []
    assert connection._context.sequence.writer(connection._entry("t").id) is None
    assert not connection._context.board(connection._entry("t")).was_ready


def test_nothing_is_committed_when_a_store_is_back_after_the_load_was_stopped(connection, file, monkeypatch):
    tried = []

    def away(*parts):
        tried.append(parts)
        board = connection._context.board(connection._entry("t"))
        stop = connection._launcher.running.runners[connection._entry("t").id]._stopping.set
        monkeypatch.setattr(board, "retrying", lambda *_given, **_named: stop())
        raise StoreError("it is away", category=Category.NETWORK)

    monkeypatch.setattr(connection._context, "commit", away)
    connection.execute(f"CREATE TABLE t AS SELECT n FROM '{file}'")
    connection._launcher.running.runners[connection._entry("t").id]._thread.join(60)
    assert len(tried) == 1
