"""The public connection from end to end: statements in, tables out, trouble shown."""

from __future__ import annotations

import itertools
import threading
from decimal import Decimal

import pytest

import velostream
from velostream.engine import narrowed
from velostream.engine.context import EngineContext
from velostream.engine.relations import SnapshotRelations
from velostream.errors import (
    AlreadyExistsError,
    ClosedError,
    InUseError,
    NotFoundError,
    OptionError,
    QueryError,
    UnsupportedError,
    VelostreamError,
    WaitTimeoutError,
)


@pytest.fixture
def connection():
    with velostream.connect() as opened:
        yield opened


@pytest.fixture
def prices(connection):
    connection.execute("CREATE TABLE prices (sku STRING PRIMARY KEY, price DECIMAL(10,2))")
    connection.execute("INSERT INTO prices VALUES ('apple', 0.40), ('pear', 0.55)")
    return connection


def rows(connection, sql):
    return sorted(connection.execute(sql).fetchall(), key=repr)


def test_a_select_sees_what_dml_changed_through_views_over_views(prices):
    prices.execute("CREATE TABLE dear AS SELECT sku, price FROM prices WHERE price > 0.5")
    prices.execute("CREATE TABLE total AS SELECT COUNT(*) AS n, SUM(price) AS price FROM dear")
    assert rows(prices, "SELECT * FROM total") == [(1, Decimal("0.55"))]
    for price in ("0.60", "0.70"):
        prices.execute("UPDATE prices SET price = ? WHERE sku = 'apple'", [Decimal(price)])
        assert rows(prices, "SELECT * FROM total") == [(2, Decimal("0.55") + Decimal(price))]


def test_a_select_waits_for_a_wave_that_is_halfway(prices, monkeypatch):
    prices.execute("CREATE TABLE dear AS SELECT sku, price FROM prices WHERE price > 0.5")
    prices.execute("CREATE TABLE total AS SELECT COUNT(*) AS n FROM dear")
    assert rows(prices, "SELECT * FROM total") == [(1,)]
    commits = itertools.count(1)
    halfway, go_on = threading.Event(), threading.Event()

    def hold_the_second(_, point):
        if point == "refresh.before-commit" and next(commits) == 2:
            halfway.set()
            go_on.wait(30)

    monkeypatch.setattr(EngineContext, "at_crash_point", staticmethod(hold_the_second))
    prices.execute("UPDATE prices SET price = 0.60 WHERE sku = 'apple'")
    assert halfway.wait(30)
    threading.Timer(0.2, go_on.set).start()
    assert rows(prices, "SELECT * FROM total") == [(2,)]


def test_both_ways_of_a_join_give_the_same_and_explain_says_which():
    answers = {}
    for way in ("fast", "general"):
        with velostream.connect(config={"velostream.lookup": way}) as connection:
            connection.execute("CREATE TABLE names (id BIGINT PRIMARY KEY, name STRING)")
            connection.execute("INSERT INTO names VALUES (1, 'one'), (2, NULL)")
            connection.memory("events").append([{"id": 1, "v": 10}, {"id": 2, "v": 20}, {"id": None, "v": 30}])
            connection.execute(
                "CREATE TABLE inside AS SELECT e.v, n.name FROM memory://events e JOIN names n ON e.id = n.id"
            )
            connection.execute(
                "CREATE TABLE kept AS SELECT e.v, n.name FROM memory://events e LEFT JOIN names n ON e.id = n.id"
            )
            for table in ("inside", "kept"):
                connection.drain(table, timeout=60)
            answers[way] = [rows(connection, "SELECT * FROM inside"), rows(connection, "SELECT * FROM kept")]
            explained = dict(
                connection.execute("EXPLAIN SELECT e.v, n.name FROM memory://events e JOIN names n ON e.id = n.id")
            )
    assert answers["fast"] == answers["general"] == [[(10, "one"), (20, None)], [(10, "one"), (20, None), (30, None)]]
    assert explained["strategy"] == "map"
    assert "names" in explained["lookup"]
    assert "key (id)" in explained["lookup"]
    assert "index lookup" in explained["lookup"]


def test_all_ways_of_a_subquery_give_the_same_and_explain_says_which():  # B35
    users = [(1, "one", 10), (2, None, 20), (3, "three", None)]
    selects = {
        "there": "SELECT e.v FROM memory://events e WHERE EXISTS (SELECT 1 FROM users u WHERE u.id = e.id)",
        "absent": "SELECT e.v FROM memory://events e WHERE NOT EXISTS "
        "(SELECT 1 FROM users u WHERE u.id = e.id AND u.score > 10)",
        "either": "SELECT e.v FROM memory://events e WHERE e.v = 40 OR e.id IN "
        "(SELECT id FROM users WHERE score <= 10 OR name = 'three')",
        "not_in": "SELECT e.v FROM memory://events e WHERE e.id NOT IN (SELECT id FROM users WHERE score > 10)",
        "visited": "SELECT e.v FROM memory://events e WHERE EXISTS "
        "(SELECT 1 FROM visits w WHERE w.id = e.id AND w.page IN ('b', 'c'))",
        "never": "SELECT e.v FROM memory://events e WHERE NOT EXISTS (SELECT 1 FROM visits w WHERE w.id = e.id)",
        "some": "SELECT e.v FROM memory://events e WHERE e.id IN (SELECT id FROM visits WHERE page RLIKE '(?<=x)a|b')",
        "listed": "SELECT e.v FROM memory://events e WHERE (SELECT score FROM users u WHERE u.id = e.id) IN (10, 30) "
        "OR (SELECT u.id FROM users u WHERE u.id = e.id) IN (SELECT id FROM visits WHERE page = 'a')",
        "unpacked": "SELECT e.v FROM memory://events e WHERE EXISTS "
        "(SELECT explode(CASE WHEN u.score > 10 THEN array(1, 2) ELSE array() END) FROM users u WHERE u.id = e.id)",
        "numbered": "SELECT e.v, (SELECT row_number() OVER (ORDER BY u.score) FROM users u WHERE u.id = e.id) AS r "
        "FROM memory://events e",
        "told": "SELECT e.v, EXISTS (SELECT 1 FROM users u WHERE u.id = e.id AND u.score > e.v) AS above, "
        "(SELECT name FROM users u WHERE u.id = e.id) AS name, "
        "(SELECT score + 1 FROM users u WHERE u.id = e.id) AS next, "
        "(SELECT max(score * 2) FROM users u WHERE e.id = u.id AND u.name IS NOT NULL) AS most "
        "FROM memory://events e",
        "counted": "SELECT EXISTS (SELECT 1 FROM users u WHERE u.id = e.id) AS known, COUNT(*) AS n "
        "FROM memory://events e GROUP BY EXISTS (SELECT 1 FROM users u WHERE u.id = e.id)",
        "gathered": "SELECT e.v, (SELECT COUNT(*) FROM visits w WHERE w.id = e.id) AS n, "
        "(SELECT SUM(u.score) FROM users u JOIN visits w ON w.id = u.id WHERE u.id = e.id) AS total "
        "FROM memory://events e",
        "correlated": "SELECT e.v FROM memory://events e WHERE e.v NOT IN "
        "(SELECT score FROM users u WHERE u.id = e.id)",
        "beyond": "SELECT e.v, u.score FROM memory://events e LEFT JOIN users u ON u.id = e.id AND u.score < e.v",
        "unseen": "SELECT e.v FROM memory://events e LEFT ANTI JOIN visits w ON w.id = e.id",
        "joined": "SELECT e.v, u.name FROM memory://events e LEFT JOIN users u ON u.id = e.id "
        "WHERE (SELECT u2.id FROM users u2 WHERE u2.id = e.id) IS NULL OR EXISTS "
        "(SELECT 1 FROM users u WHERE u.id = e.id AND u.score IS NULL)",
    }
    answers = {}
    for way in ("fast", "narrowed", "general"):
        with velostream.connect(config={"velostream.lookup": way}) as connection:
            connection.execute("CREATE TABLE users (id BIGINT PRIMARY KEY, name STRING, score INT)")
            for row in users:
                connection.execute("INSERT INTO users VALUES (?, ?, ?)", row)
            connection.execute("CREATE TABLE visits (id BIGINT, page STRING)")
            connection.execute(
                "INSERT INTO visits VALUES (1, 'a'), (1, 'b'), (1, 'b'), (3, 'a'), (NULL, 'c'), (4, NULL)"
            )
            keys = [1, 2, 3, 4, None]
            connection.memory("events").append(
                [{"id": key, "v": v} for v, key in zip((11, 15, 30, 40, 50), keys, strict=True)]
            )
            for name, select in selects.items():
                connection.execute(f"CREATE TABLE {name} AS {select}")
                connection.drain(name, timeout=60)
            answers[way] = {name: rows(connection, f"SELECT * FROM {name}") for name in selects}
            explained = dict(connection.execute(f"EXPLAIN {selects['there']}"))
            visited = dict(connection.execute(f"EXPLAIN {selects['visited']}"))
            gathered = connection.execute(f"EXPLAIN {selects['gathered']}").fetchall()
    assert answers["fast"] == answers["narrowed"] == answers["general"]
    assert visited["lookup"].startswith('EXISTS table "visits" by index on (id), made for this query: the subquery')
    assert "any row of these is enough that fulfils the rest" in visited["lookup"]
    assert answers["fast"]["there"] == [(11,), (15,), (30,)]
    assert answers["fast"]["absent"] == [(11,), (30,), (40,), (50,)]
    assert answers["fast"]["either"] == [(11,), (30,), (40,)]
    assert answers["fast"]["listed"] == [(11,), (30,)]
    assert answers["fast"]["unpacked"] == [(15,)]
    assert answers["fast"]["numbered"] == [(11, 1), (15, 1), (30, 1), (40, None), (50, None)]
    assert answers["fast"]["visited"] == [(11,)]
    assert answers["fast"]["never"] == [(15,), (50,)]
    assert answers["fast"]["some"] == [(11,)]
    assert answers["fast"]["gathered"] == [(11, 3, 30), (15, 0, None), (30, 1, None), (40, 1, None), (50, 0, None)]
    assert answers["fast"]["correlated"] == [(11,), (15,), (40,), (50,)]
    assert answers["fast"]["beyond"] == [(11, 10), (15, None), (30, None), (40, None), (50, None)]
    assert answers["fast"]["unseen"] == [(15,), (50,)]
    assert [value.partition(":")[0] for name, value in gathered if name == "reading"] == [
        'table "visits" by index on (id)',
        'table "users" by index on (id)',
    ]
    assert explained["lookup"].startswith('EXISTS table "users" by key (id), an index lookup: the subquery')


def test_a_big_table_is_narrowed_to_what_each_batch_asks_of_it(connection, monkeypatch):
    monkeypatch.setattr(narrowed, "_READ_AS_A_WHOLE", 3)
    read: list[int] = []
    monkeypatch.setattr(SnapshotRelations, "frame_of_rows", _counting(SnapshotRelations.frame_of_rows, read))
    connection.execute("CREATE TABLE visits (id BIGINT, page STRING)")
    connection.table("visits").insert([{"id": n % 100, "page": f"p{n}"} for n in range(1000)])
    feed = connection.memory("events")
    feed.append([{"id": 1, "t": "1"}, {"id": 2, "t": "two"}, {"id": None, "t": "3"}])
    connection.execute(
        "CREATE TABLE counts AS SELECT e.t, (SELECT COUNT(*) FROM visits v WHERE v.id = e.id) AS n "
        "FROM memory://events e WHERE e.t <> 'two' AND EXISTS "
        "(SELECT 1 FROM visits v WHERE v.id = CAST(e.t AS BIGINT) AND v.page > e.t)"
    )
    connection.drain("counts", timeout=60)
    # One of the texts is no number. The query never asks about it, so that tells nothing.
    assert rows(connection, "SELECT * FROM counts") == [("1", 10), ("3", 0)]
    assert read == []
    connection.execute("DELETE FROM visits WHERE id = 5 AND page <> 'p5'")
    feed.append([{"id": 5, "t": "5"}, {"id": 6, "t": "5"}])
    connection.drain("counts", timeout=60)
    assert rows(connection, "SELECT * FROM counts WHERE t = '5'") == [("5", 1), ("5", 10)]
    assert read == [11]
    # A small table leads to a big one.
    connection.execute("CREATE TABLE names (name STRING, id BIGINT)")
    connection.execute("INSERT INTO names VALUES ('five', 5), ('six', 6)")
    connection.execute(
        "CREATE TABLE named AS SELECT e.t, (SELECT COUNT(*) FROM names n JOIN visits v ON v.id = n.id "
        "WHERE n.name = e.t) AS n FROM memory://events e"
    )
    connection.drain("named", timeout=60)
    read.clear()
    feed.append([{"id": 0, "t": "six"}, {"id": 0, "t": "five"}, {"id": 0, "t": "seven"}])
    connection.drain("named", timeout=60)
    assert rows(connection, "SELECT * FROM named WHERE n > 0") == [("five", 1), ("six", 10)]
    assert 11 in read


def _counting(method, read):
    def counted(self, session, given, schema):
        read.append(given.num_rows)
        return method(self, session, given, schema)

    return counted


def test_numbers_that_the_keys_type_can_not_hold_find_nothing():
    answers = {}
    for way in ("fast", "narrowed", "general"):
        with velostream.connect(config={"velostream.lookup": way}) as connection:
            connection.execute("CREATE TABLE prices (at DECIMAL(6,3) PRIMARY KEY, name STRING)")
            connection.execute("INSERT INTO prices VALUES (1.5, 'low'), (999.99, 'high')")
            numbers = [Decimal("1.50"), Decimal("999.99"), Decimal("1000.00"), Decimal("-98765432109.50"), None]
            connection.memory("asked").append([{"at": at, "n": n} for n, at in enumerate(numbers)])
            connection.execute(
                "CREATE TABLE found AS SELECT a.n, p.name, (SELECT COUNT(*) FROM prices q WHERE q.at = a.n) AS whole "
                "FROM memory://asked a LEFT JOIN prices p ON p.at = a.at"
            )
            connection.execute("CREATE TABLE named AS SELECT a.n FROM memory://asked a JOIN prices p ON p.at = a.at")
            for name in ("found", "named"):
                connection.drain(name, timeout=60)
            answers[way] = rows(connection, "SELECT * FROM found"), rows(connection, "SELECT * FROM named")
            by = dict(connection.execute("EXPLAIN SELECT a.n FROM memory://asked a JOIN prices p ON p.at = a.at"))
    assert answers["fast"] == answers["narrowed"] == answers["general"]
    assert answers["fast"][0] == [(0, "low", 0), (1, "high", 0), (2, None, 0), (3, None, 0), (4, None, 0)]
    assert answers["fast"][1] == [(0,), (1,)]
    assert "by key (at)" in by["lookup"]


def test_rows_that_make_an_expression_fail_become_dead_letters(connection):
    connection.memory("texts").append([{"t": "1"}, {"t": "two"}, {"t": "3"}, {"t": None}])
    connection.execute("CREATE TABLE numbers AS SELECT CAST(t AS INT) AS n FROM memory://texts")
    connection.drain("numbers", timeout=60)
    assert rows(connection, "SELECT * FROM numbers") == [(1,), (3,), (None,)]
    letters = connection.execute("SHOW DEAD LETTERS numbers").fetchall()
    assert [(letter[0], b"two" in letter[4], "two" in letter[3]) for letter in letters] == [("numbers", True, True)]


def test_a_null_in_a_column_that_allows_none_becomes_a_dead_letter(connection):
    # B13
    connection.memory("people").append([{"id": 1, "name": "ann"}, {"id": 2, "name": None}])
    connection.execute(
        "CREATE TABLE named (id BIGINT NOT NULL, name STRING NOT NULL) AS SELECT id, name FROM memory://people"
    )
    connection.drain("named", timeout=60)
    assert rows(connection, "SELECT * FROM named") == [(1, "ann")]
    assert len(connection.execute("SHOW DEAD LETTERS named").fetchall()) == 1


def test_declared_columns_must_fit_the_select(connection):
    # B13
    connection.execute("CREATE TABLE t (id BIGINT, x STRING)")
    with pytest.raises(VelostreamError, match="x"):
        connection.execute("CREATE TABLE v (id BIGINT, x BIGINT) AS SELECT id, x FROM t")
    assert connection.tables() == ["t"]


def test_a_statement_over_an_empty_feed_waits_for_its_columns(connection):
    connection.execute("CREATE TABLE copied AS SELECT id FROM memory://later")
    status = connection.status("copied")
    assert (status.state, "later" in status.reason) == ("waiting", True)
    with pytest.raises(WaitTimeoutError, match="copied"):
        connection.wait("copied", timeout=0.3)
    connection.memory("later").append([{"id": 7}])
    connection.drain("copied", timeout=60)
    assert rows(connection, "SELECT * FROM copied") == [(7,)]


@pytest.mark.parametrize("statement", ["SELECT * FROM {uri}", "INSERT INTO t SELECT id FROM {uri}"])
def test_what_is_answered_now_can_not_wait_for_columns(connection, tmp_path, statement):
    """A sink makes its file before its first rows are there: reading it then is an error to retry, not a crash."""
    (tmp_path / "empty.jsonl").touch()
    connection.execute("CREATE TABLE t (id BIGINT)")
    connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(VelostreamError, match="has no columns yet"):
        connection.execute(statement.format(uri=f"file://{tmp_path}/empty.jsonl")).fetchall()
    assert rows(connection, "SELECT * FROM t") == [(1,)]


def test_a_name_that_proves_wrong_when_the_columns_come_shows_in_the_status(connection, eventually):
    connection.execute("CREATE TABLE wrong AS SELECT idd FROM memory://later")
    connection.memory("later").append([{"id": 7}])
    eventually(lambda: connection.status("wrong").state == "failed", what="the failure")
    assert 'column "idd" does not exist' in connection.status("wrong").error
    with pytest.raises(VelostreamError, match="idd"):
        connection.drain("wrong", timeout=10)


def test_the_rows_of_a_stream_come_as_they_are_appended(connection):
    feed = connection.memory("ticks")
    feed.append([{"n": 1}])
    result = connection.execute("SELECT n * 2 AS twice FROM memory://ticks LIMIT 3")
    assert result.columns == ["twice"]
    seen = iter(result)
    assert next(seen) == (2,)
    feed.append([{"n": 2}, {"n": 3}, {"n": 4}])
    assert list(seen) == [(4,), (6,)]


def test_subscribers_get_the_content_and_then_every_change(prices):
    changes = prices.subscribe("prices")
    first = next(changes)
    assert sorted(first.arrow["_change"].to_pylist()) == [1, 1]
    prices.execute("UPDATE prices SET price = 0.45 WHERE sku = 'apple'")
    second = next(changes)
    assert [(row["price"], row["_change"]) for row in second.arrow.to_pylist()] == [
        (Decimal("0.40"), -1),
        (Decimal("0.45"), 1),
    ]
    resumed = next(prices.subscribe("prices", since=first.version))
    assert resumed.version == second.version
    assert resumed.arrow.equals(second.arrow)


def test_an_object_others_read_is_dropped_only_with_them(prices):
    # B11
    prices.execute("CREATE TABLE dear AS SELECT * FROM prices WHERE price > 0.5")
    prices.execute("CREATE TABLE dearest AS SELECT MAX(price) AS price FROM dear")
    with pytest.raises(InUseError) as caught:
        prices.execute("DROP TABLE prices")
    assert "dear" in caught.value.detail
    assert "CASCADE" in caught.value.hint
    with pytest.raises(InUseError):
        prices.execute("CREATE OR REPLACE TABLE prices (sku STRING PRIMARY KEY)")
    prices.execute("DROP TABLE prices CASCADE")
    assert prices.tables() == []
    prices.execute("DROP TABLE IF EXISTS prices")
    with pytest.raises(NotFoundError):
        prices.execute("DROP TABLE prices")


def test_names_are_taken_once(prices):
    # B11
    with pytest.raises(AlreadyExistsError):
        prices.execute("CREATE TABLE Prices (id INT)")
    prices.execute("CREATE TABLE IF NOT EXISTS prices (id INT)")
    assert len(prices.table("prices")) == 2
    prices.execute("CREATE OR REPLACE TABLE prices (id INT)")
    assert len(prices.table("PRICES")) == 0


def test_a_paused_query_misses_nothing_and_a_stopped_one_says_so(connection):
    connection.memory("s").append([{"id": 1}])
    connection.execute("CREATE TABLE t AS SELECT id FROM memory://s")
    connection.drain("t", timeout=60)
    connection.execute("PAUSE QUERY t")
    assert connection.status("t").state == "paused"
    connection.memory("s").append([{"id": 2}])
    assert rows(connection, "SELECT * FROM t") == [(1,)]
    connection.execute("RESUME JOB t")
    connection.drain("t", timeout=60)
    assert rows(connection, "SELECT * FROM t") == [(1,), (2,)]
    connection.execute("STOP QUERY t")
    with pytest.raises(QueryError, match="stopped"):
        connection.drain("t", timeout=5)
    connection.execute("RESTART QUERY t")
    connection.drain("t", timeout=60)


def test_a_view_is_not_written_to(prices):
    prices.execute("CREATE TABLE copied AS SELECT * FROM prices")
    for statement in ("INSERT INTO copied VALUES ('x', 1)", "DELETE FROM copied", "UPDATE copied SET price = 1"):
        with pytest.raises(UnsupportedError, match="copied"):
            prices.execute(statement)


def test_wrong_options_and_values_point_at_themselves(connection):
    with pytest.raises(OptionError) as caught:
        connection.execute("CREATE TABLE t (id INT) WITH ('histroy' = '3')")
    assert (caught.value.line, caught.value.column) == (1, 31)
    assert caught.value.hint.startswith('did you mean "history"')
    for statement, column in [
        ("CREATE TABLE t (id INT) WITH ('history' = 'much')", 31),
        ("CREATE TABLE t AS SELECT 1 AS x WITH ('table.wait.timeout' = 'soon')", 39),
        ("CREATE TABLE t AS SELECT * FROM memory://x WITH ('bad.records' = 'burn')", 50),
    ]:
        with pytest.raises(OptionError, match="invalid value") as caught:
            connection.execute(statement)
        assert caught.value.column == column
        assert caught.value.caret() is not None


def test_everything_resumes_after_a_restart_and_running_a_script_again_repeats_nothing(tmp_path):
    script = """
    CREATE TABLE prices (sku STRING PRIMARY KEY, price DECIMAL(10,2));
    INSERT INTO prices VALUES ('apple', 0.40);
    CREATE TABLE totals AS SELECT o.sku, SUM(o.n * p.price) AS total
      FROM memory://orders o JOIN prices p ON o.sku = p.sku GROUP BY o.sku;
    """
    with velostream.connect(tmp_path / "state") as connection:
        connection.memory("orders").append([{"sku": "apple", "n": 2}])
        connection.run_script(script)
        connection.drain("totals", timeout=60)
    with velostream.connect(tmp_path / "state") as connection:
        connection.run_script(script)
        connection.wait("totals", timeout=60)
        assert rows(connection, "SELECT * FROM totals") == [("apple", Decimal("0.80"))]
        connection.memory("orders").append([{"sku": "apple", "n": 1}])
        connection.drain("totals", timeout=60)
        assert rows(connection, "SELECT * FROM totals") == [("apple", Decimal("1.20"))]
        with pytest.raises(VelostreamError) as caught:
            connection.run_script(script.replace("SUM(o.n * p.price)", "SUM(o.n)"))
        assert "OR REPLACE" in caught.value.hint


def test_a_closed_connection_says_so():
    connection = velostream.connect()
    connection.close()
    connection.close()
    with pytest.raises(ClosedError):
        connection.execute("SELECT 1")


def test_a_feed_keeps_its_rows_when_queries_write_to_it_too(tmp_path):
    with velostream.connect(tmp_path / "state") as connection:
        out = connection.memory("out")
        out.append([{"n": 1}])
        connection.memory("in").append([{"n": 10}])
        connection.execute("INSERT INTO memory://out SELECT n FROM memory://in")
        connection.execute("CREATE TABLE seen AS SELECT n FROM memory://out")
        connection.drain("insert_into_memory_1", timeout=60)
        out.append([{"n": 2}])
        connection.execute("CREATE TABLE t (n BIGINT)")
        connection.execute("INSERT INTO t VALUES (3)")
        assert connection.execute("INSERT INTO memory://out SELECT n FROM t").rowcount == 1
        connection.drain("seen", timeout=60)
        assert rows(connection, "SELECT * FROM seen") == [(1,), (10,), (2,), (3,)]
    with velostream.connect(tmp_path / "state") as connection:
        connection.memory("in").append([{"n": 20}])
        connection.drain("insert_into_memory_1", timeout=60)
        connection.drain("seen", timeout=60)
        assert rows(connection, "SELECT * FROM seen") == [(1,), (10,), (2,), (20,), (3,)]


def test_bad_records_that_must_not_pass_stop_the_query_before_them(tmp_path, connection, eventually):
    # B57
    path = tmp_path / "numbers.csv"
    path.write_text("id\n1\n2\n")
    connection.execute(
        f"CREATE TABLE strict AS SELECT id FROM file://{path} "
        "WITH ('watch' = 'true', 'watch.mode' = 'append', 'bad.records' = 'fail')"
    )
    connection.drain("strict", timeout=60)
    with path.open("a") as file:
        file.write("three\n4\n")
    eventually(lambda: connection.status("strict").state == "failed", what="the failure")
    assert "numbers.csv" in connection.status("strict").error
    assert len(connection.table("strict")) == 2


def test_trouble_of_what_a_view_stands_on_is_the_views(tmp_path, connection, eventually):
    path = tmp_path / "users.csv"
    path.write_text("id,name\n1,ann\n")
    connection.execute(f"CREATE TABLE users AS SELECT * FROM file://{path} WITH ('watch' = 'true')")
    connection.drain("users", timeout=60)
    path.unlink()
    eventually(lambda: connection.status("users").state == "degraded", what="the trouble")
    assert "users.csv" in connection.status("users").error
    assert rows(connection, "SELECT * FROM users") == [(1, "ann")]
    path.write_text("id,name\n1,ann\n2,ben\n")
    eventually(lambda: connection.status("users").state == "ready", what="the recovery")
    connection.drain("users", timeout=60)
    assert rows(connection, "SELECT * FROM users") == [(1, "ann"), (2, "ben")]


@pytest.mark.parametrize("loaded", [True, False])
def test_what_an_input_has_repaired_since_is_no_trouble_any_more(connection, loaded):
    connection.execute("CREATE TABLE t (id INT PRIMARY KEY, k STRING, b BIGINT)")
    connection.execute("INSERT INTO t VALUES (1, 'a', 9223372036854775807)")
    if not loaded:
        connection.execute("INSERT INTO t VALUES (2, 'a', 6)")
    connection.execute("CREATE TABLE sums AS SELECT k, SUM(b) AS total FROM t GROUP BY k")
    if loaded:
        connection.drain("sums", timeout=60)
    for number in range(6, 16):
        if loaded or number > 6:
            connection.execute(f"INSERT INTO t VALUES (2, 'a', {number})")
        with pytest.raises(QueryError, match="BIGINT"):
            connection.drain("sums", timeout=60)
        connection.execute("DELETE FROM t WHERE id = 2")
        connection.drain("sums", timeout=60)
        assert connection.execute("SELECT * FROM sums").fetchall() == [("a", 9223372036854775807)]


def test_a_replaced_view_that_can_not_start_leaves_the_old_one(connection, tmp_path):
    connection.memory("s").append([{"k": "a", "n": 1}])
    connection.execute("CREATE TABLE sums AS SELECT k, SUM(n) AS n FROM memory://s GROUP BY k")
    connection.drain("sums", timeout=60)
    occupied = tmp_path / "occupied"
    (occupied / "commits").mkdir(parents=True)
    (occupied / "commits" / "0").write_text("v1")
    with pytest.raises(VelostreamError, match="checkpoint"):
        connection.execute(
            "CREATE OR REPLACE TABLE sums AS SELECT k, COUNT(*) AS n FROM memory://s GROUP BY k "
            f"WITH ('checkpoint' = '{occupied}')"
        )
    connection.memory("s").append([{"k": "a", "n": 5}])
    connection.drain("sums", timeout=60)
    assert rows(connection, "SELECT * FROM sums") == [("a", 6)]


def test_a_view_that_would_replace_what_it_reads_is_refused_and_the_others_go_on(prices):
    # B38
    with pytest.raises(VelostreamError, match="itself"):
        prices.execute("CREATE OR REPLACE TABLE Prices AS SELECT * FROM prices")
    prices.execute("CREATE TABLE dear AS SELECT sku, price FROM prices WHERE price > 0")
    prices.drain("dear", timeout=60)
    with pytest.raises(VelostreamError, match="itself"):
        prices.execute("CREATE OR REPLACE TABLE dear AS SELECT * FROM DEAR")
    assert len(prices.table("prices")) == 2
    prices.execute("INSERT INTO prices VALUES ('late', 9)")
    prices.drain("dear", timeout=60)
    assert "late" in [row[0] for row in rows(prices, "SELECT sku FROM dear")]


def test_having_with_a_subquery_follows_the_stream_and_the_table(connection):
    # B35
    connection.execute("CREATE TABLE limits (k STRING PRIMARY KEY, most BIGINT)")
    connection.execute("INSERT INTO limits VALUES ('a', 5), ('b', 5)")
    connection.memory("s").append([{"k": "a", "n": 4}, {"k": "b", "n": 9}])
    connection.execute(
        "CREATE TABLE over AS SELECT s.k, SUM(s.n) AS n FROM memory://s s GROUP BY s.k "
        "HAVING SUM(s.n) > (SELECT MAX(most) FROM limits)"
    )
    connection.drain("over", timeout=60)
    assert rows(connection, "SELECT * FROM over") == [("b", 9)]
    connection.memory("s").append([{"k": "a", "n": 3}])
    connection.drain("over", timeout=60)
    assert rows(connection, "SELECT * FROM over") == [("a", 7), ("b", 9)]
    connection.execute("UPDATE limits SET most = 8 WHERE k = 'a'")
    connection.drain("over", timeout=60)
    assert rows(connection, "SELECT * FROM over") == [("b", 9)]


def test_a_primary_key_is_never_null_and_text_is_unicode(prices):
    for values in ("(NULL, 1)", "('late', 1), (NULL, 2)"):
        with pytest.raises(VelostreamError, match="NOT NULL"):
            prices.execute(f"INSERT INTO prices VALUES {values}")
    with pytest.raises(VelostreamError, match="Unicode"):
        prices.execute("INSERT INTO prices VALUES (?, 1)", ["\ud800"])
    assert len(prices.table("prices")) == 2


def test_reading_all_there_is_ends_where_there_is_nothing(connection, tmp_path):
    path = tmp_path / "header.csv"
    path.write_text("id,name\n")
    connection.execute(f"CREATE TABLE empty AS SELECT * FROM file://{path}")
    connection.drain_all(timeout=20)
