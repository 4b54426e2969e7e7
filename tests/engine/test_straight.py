"""The straight way of a batch gives what Spark makes of the same rows, whatever the statement asks of its lookups."""

import json
import random
from collections import Counter

import pytest

import velostream
from velostream.engine import straight
from velostream.engine.staging import Bounds
from velostream.engine.straight import StraightWay

SELECTS = {
    "inner": "SELECT e.n, u.name, e.q * e.p * u.factor AS weighted FROM events e JOIN users u ON e.k = u.id",
    "left": "SELECT e.n, COALESCE(u.name, 'nobody') AS name, CASE WHEN u.factor > 3 THEN 'high' ELSE e.s END AS s "
    "FROM events e LEFT JOIN users u ON e.k = u.id",
    "filtered": "SELECT e.n, u.id FROM events e JOIN users u ON e.k = u.id AND u.factor > 2 "
    "WHERE e.p < 50 OR u.name IS NULL",
    "by value": "SELECT e.n, v.page FROM events e JOIN visits v ON v.id = e.k AND v.page = e.s",
    "several": "SELECT e.n, v.page, v.score FROM events e JOIN visits v ON v.id = e.k",
    "chained": "SELECT e.n, u.city, c.country, c2.country AS other FROM events e JOIN users u ON u.id = e.k "
    "LEFT JOIN cities c ON c.name = u.city LEFT JOIN cities c2 ON c2.name = concat(u.city, '!')",
    "wider key": "SELECT e.n, u.name FROM events e JOIN users u ON e.i = u.id",
    "all": "SELECT * FROM events e JOIN cities c ON e.s = c.name",
    "constant": "SELECT 1 AS one, 'x' AS x, c.country FROM events e JOIN cities c ON e.s = c.name",
    "exists": "SELECT e.n, EXISTS (SELECT 1 FROM users u WHERE u.id = e.k AND u.factor > 2) AS known FROM events e "
    "WHERE NOT EXISTS (SELECT 1 FROM visits v WHERE v.id = e.k AND v.score > 8)",
    "in": "SELECT e.n FROM events e WHERE e.s IN (SELECT c.name FROM cities c) AND e.k > 1",
    "scalar": "SELECT e.n, e.q + (SELECT u.factor FROM users u WHERE u.id = e.k) AS more FROM events e",
    "nearest": "SELECT e.n, h.note FROM events e ASOF LEFT JOIN history h MATCH_CONDITION (e.at >= h.since) "
    "ON e.k = h.id",
    "skipping": "SELECT e.n, u.name FROM events e LEFT JOIN users u ON e.k = u.id WITH ('u.join.missing' = 'skip')",
    "filled": "SELECT e.n, u.name, u.factor FROM events e JOIN users u ON e.k = u.id "
    "WITH ('join.missing' = 'defaults', 'join.missing.default.name' = '?', 'join.missing.default.factor' = '7')",
}
STREAM = (
    "CREATE STREAM events (n BIGINT, k BIGINT, i INT, q BIGINT, p DECIMAL(18,2), s STRING, at TIMESTAMP) "
    "WITH ('source' = '{}', 'watch' = 'true', 'watch.mode' = 'append')"
)
TABLES = (
    "CREATE TABLE users (id BIGINT PRIMARY KEY, name STRING, factor INT, city STRING)",
    "CREATE TABLE cities (name STRING PRIMARY KEY, country STRING)",
    "CREATE TABLE visits (id BIGINT, page STRING, score DOUBLE)",
    "CREATE TABLE history (id BIGINT, since TIMESTAMP, note STRING)",
)


def generated(seed, count):
    choose = random.Random(seed)

    def maybe(value):
        return None if choose.random() < 0.1 else value

    texts = ["oslo", "rome", "paris", "a", "b", ""]
    events = [
        {
            "n": number,
            "k": maybe(choose.randrange(12)),
            "i": maybe(choose.randrange(12)),
            "q": maybe(choose.randrange(-5, 100)),
            "p": maybe(round(choose.uniform(0, 100), 2)),
            "s": maybe(choose.choice(texts)),
            "at": f"2024-01-{choose.randrange(1, 28):02}T00:00:00Z",
        }
        for number in range(count)
    ]
    tables = {
        "users": [(n, maybe(f"user {n}"), maybe(n % 5), maybe(choose.choice(texts))) for n in range(9)],
        "cities": [("oslo", "no"), ("rome", "it"), ("rome!", None), ("", "nowhere")],
        "visits": [
            (maybe(choose.randrange(12)), maybe(choose.choice(texts)), maybe(float(choose.randrange(10))))
            for _ in range(25)
        ],
        "history": [
            (choose.randrange(6), f"2024-01-{day:02} 00:00:00", f"note {day}")
            for day in choose.sample(range(1, 28), 20)
        ],
    }
    return events, tables


def lines(events):
    return "".join(json.dumps(event) + "\n" for event in events)


@pytest.fixture
def counted(monkeypatch):
    """How many batches have gone the straight way."""
    gone = []
    rows = StraightWay.rows

    def noted(self, *arguments, **rest):
        found = rows(self, *arguments, **rest)
        gone.append(found.num_rows)
        return found

    monkeypatch.setattr(StraightWay, "rows", noted)
    return gone


def test_every_way_gives_the_same(tmp_path, counted, monkeypatch):  # B15 B28 B35
    bounds = Bounds(fewest_rows=60, fewest_bytes=1 << 20, most_rows=90, most_bytes=1 << 20)
    monkeypatch.setattr(straight, "_BOUNDS", bounds)
    answers = {}
    for way in ("fast", "staged", "general"):
        with velostream.connect(config={"velostream.lookup": way}) as connection:
            events, tables = generated(7, 400)
            for statement in TABLES:
                connection.execute(statement)
            for name, rows in tables.items():
                marks = ", ".join("?" * len(rows[0]))
                for row in rows:
                    connection.execute(f"INSERT INTO {name} VALUES ({marks})", row)
            path = tmp_path / f"{way}.jsonl"
            path.write_text(lines(events[:300]))
            connection.execute(STREAM.format(path.as_uri()))
            for number, select in enumerate(SELECTS.values()):
                connection.execute(f"CREATE TABLE t{number} AS {select}")
                connection.drain(f"t{number}", timeout=120)
            # The statements are at one place now, so they share what is read.
            with path.open("a") as file:
                file.write(lines(events[300:]))
            for number in range(len(SELECTS)):
                connection.drain(f"t{number}", timeout=120)
            answers[way] = [connection.table(f"t{number}").arrow() for number in range(len(SELECTS))]
        assert len(counted) == 2 * len(SELECTS), f"all of them were to go the straight way, and only by {way!r}"
    for name, fast, staged, general in zip(SELECTS, *answers.values(), strict=True):
        assert fast.schema == staged.schema == general.schema, name
        assert fast.num_rows, name
        assert fast.to_pylist() == staged.to_pylist(), name
        assert Counter(map(repr, fast.to_pylist())) == Counter(map(repr, general.to_pylist())), name


def test_rows_that_fail_and_lines_that_are_none_are_set_aside(tmp_path, counted):
    path = tmp_path / "events.jsonl"
    path.write_text(
        '{"n": 1, "k": 1, "q": 2}\n{"n": 2, "k": 1, "q": 9223372036854775807}\nno record\n{"n": 3, "k": 9, "q": 5}\n'
    )
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE users (id BIGINT PRIMARY KEY, factor BIGINT)")
        connection.execute("INSERT INTO users VALUES (1, 10)")
        connection.execute(STREAM.format(path.as_uri()))
        connection.execute("CREATE TABLE t AS SELECT e.n, e.q * u.factor AS v FROM events e JOIN users u ON u.id = e.k")
        connection.drain("t", timeout=120)
        assert connection.execute("SELECT * FROM t").fetchall() == [(1, 20)]
        letters = connection.execute("SHOW DEAD LETTERS t").fetchall()
        assert sorted("out of the range" in letter[3] for letter in letters) == [False, True]
        assert counted
        folder = connection._context.directory.path / "loads"
        assert not list(folder.iterdir())
