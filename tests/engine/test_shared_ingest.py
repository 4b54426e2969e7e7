"""Statements on one source share one ingest: every range is read and decoded once, whoever is interested."""

import json

import pytest

import velostream
from velostream.engine import ingest

VIEWS = 10
FOLLOWED = "file://{path} WITH ('watch' = 'true', 'watch.mode' = 'append')"


@pytest.fixture
def readings(monkeypatch):
    """The ranges read since the last `clear()`."""
    read = ingest.read_range
    ranges = []

    def counted(session, source, start, end, schema):
        ranges.append((json.dumps(start), json.dumps(end)))
        return read(session, source, start, end, schema)

    monkeypatch.setattr(ingest, "read_range", counted)
    return ranges


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "orders.csv"
    path.write_text("id,amount\n1,1.00\n2,2.00\n")
    return path


def append(path, *lines):
    with path.open("a") as file:
        file.write("".join(line + "\n" for line in lines))


def test_ten_views_read_a_growing_file_once(path, readings):
    with velostream.connect() as connection:
        for number in range(VIEWS):
            connection.execute(
                f"CREATE TABLE v{number} AS SELECT id + {number} AS id, amount FROM {FOLLOWED.format(path=path)}"
            )
        for number in range(VIEWS):
            connection.drain(f"v{number}", timeout=60)
        readings.clear()
        for batch in range(3):
            append(path, f"{10 + batch},0.5")
            for number in range(VIEWS):
                connection.drain(f"v{number}", timeout=60)
        assert len(readings) == 3
        for number in range(VIEWS):
            found = connection.execute(f"SELECT COUNT(*), MAX(id) FROM v{number}").fetchone()
            assert found == (5, 12 + number)


def test_simple_statements_share_a_query_and_mean_what_they_mean_alone(path, monkeypatch):
    """One after another they are computed alone, over the same file once more together: the rows are equal."""
    path.write_text('id,name,amount,at\n1,ann,1.50,2024-05-01\n2,,,\n3,"",-0.05,2024-05-02\n')
    selects = [
        "SELECT * FROM {}",
        "SELECT id, amount * 2 AS amount, at FROM {} WHERE amount > 0",
        "SELECT id, name IS NULL AS unnamed, upper(name) AS name FROM {} WHERE NOT name = 'ann' OR name IS NULL",
        "SELECT id, named_struct('a', amount, 'n', name) AS both, array(id, NULL) AS list FROM {} WHERE id >= 2",
        "SELECT id, 10 DIV (id - 2) AS quotient FROM {} WHERE id <> 2",
        "SELECT id FROM {} WHERE CAST(NULL AS BOOLEAN)",
        "SELECT id, explode(array(1, 2)) AS n FROM {}",
    ]
    together = []
    run = ingest.together.run_together

    def counted(session, frame, projections):
        together.append(len(projections))
        return run(session, frame, projections)

    monkeypatch.setattr(ingest.together, "run_together", counted)
    with velostream.connect() as connection:
        for number, select in enumerate(selects):
            connection.execute(f"CREATE TABLE v{number} AS " + select.format(FOLLOWED.format(path=path)))
            connection.drain(f"v{number}", timeout=60)
        alone = [connection.table(f"v{number}").arrow() for number in range(len(selects))]
        lines = path.read_text().splitlines()[1:]
        append(path, *lines)
        for number in range(len(selects)):
            connection.drain(f"v{number}", timeout=60)
        both = [connection.table(f"v{number}").arrow() for number in range(len(selects))]
    assert together == [6]
    for first, twice in zip(alone, both, strict=True):
        assert twice.slice(first.num_rows).to_pylist() == first.to_pylist()
        assert twice.schema == first.schema


def test_a_statement_that_comes_later_sees_the_file_from_its_beginning(path, readings):
    with velostream.connect() as connection:
        connection.execute(f"CREATE TABLE early AS SELECT id FROM {FOLLOWED.format(path=path)}")
        connection.drain("early", timeout=60)
        append(path, "3,3.00")
        connection.drain("early", timeout=60)
        connection.execute(f"CREATE TABLE late AS SELECT id FROM {FOLLOWED.format(path=path)}")
        connection.drain("late", timeout=60)
        assert connection.execute("SELECT id FROM late ORDER BY id").fetchall() == [(1,), (2,), (3,)]
        readings.clear()
        append(path, "4,4.00")
        connection.drain("early", timeout=60)
        connection.drain("late", timeout=60)
        assert len(readings) == 1, "the one that has caught up reads on its own"


def test_one_that_fails_does_not_touch_the_others(path):
    with velostream.connect() as connection:
        connection.execute(f"CREATE TABLE good AS SELECT id FROM {FOLLOWED.format(path=path)}")
        connection.execute(f"CREATE TABLE bad AS SELECT 10 DIV (id - 3) AS x FROM {FOLLOWED.format(path=path)}")
        connection.drain("good", timeout=60)
        connection.drain("bad", timeout=60)
        append(path, "3,3.00")
        connection.drain("good", timeout=60)
        append(path, "4,4.00")
        connection.drain("good", timeout=60)
        assert connection.execute("SELECT COUNT(*) FROM good").fetchone() == (4,)
        assert connection.status("good").state == "ready"


def test_paused_and_resumed_a_statement_continues_where_it_was(path):  # B14
    with velostream.connect() as connection:
        for name in ("steady", "resting"):
            connection.execute(f"CREATE TABLE {name} AS SELECT id FROM {FOLLOWED.format(path=path)}")
            connection.drain(name, timeout=60)
        connection.execute("PAUSE QUERY resting")
        append(path, "3,3.00")
        connection.drain("steady", timeout=60)
        assert connection.execute("SELECT COUNT(*) FROM resting").fetchone() == (2,)
        connection.execute("RESUME QUERY resting")
        connection.drain("resting", timeout=60)
        assert connection.execute("SELECT id FROM resting ORDER BY id").fetchall() == [(1,), (2,), (3,)]
