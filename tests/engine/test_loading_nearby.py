"""Sources that are read once by threads of this process give what Spark's workers would have given."""

from __future__ import annotations

import gzip
import json
import random
import threading
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import velostream
from velostream.engine.context import EngineContext
from velostream.engine.maintain.once import OnceRunner
from velostream.engine.nearby import NearReading
from velostream.errors import Category, QueryError, SourceError
from velostream.sources import followed_files
from velostream.testing.services.http import HttpServer

COLUMNS = "n BIGINT, k BIGINT, q DOUBLE, p DECIMAL(18,2), s STRING, at TIMESTAMP"
SELECTS = {
    "all": "SELECT * FROM '{file}'",
    "projected": "SELECT n, p * 2 AS twice, upper(s) AS big, COALESCE(k, -1) AS k, q FROM '{file}'",
    "filtered": "SELECT n, s FROM '{file}' WHERE k > 3 AND (s LIKE 'é%' OR s IS NULL)",
    "keyed": "SELECT k PRIMARY KEY, n, s FROM '{file}' WHERE k IS NOT NULL",
    "nothing": "SELECT n FROM '{file}' WHERE n < 0",
}
ROWS = 4000


def records():
    choose = random.Random(11)

    def maybe(value):
        return None if choose.random() < 0.1 else value

    return [
        {
            "n": number,
            "k": maybe(choose.randrange(9)),
            "q": maybe(choose.choice([0.0, -0.5, 1e300])),
            "p": maybe(str(Decimal(choose.randrange(10**6)) / 100)),
            "s": maybe(choose.choice(["", "élan", 'épée\t"x"', "ok", "日本"])),
            "at": f"2024-01-{choose.randrange(1, 28):02}T00:00:00Z",
        }
        for number in range(ROWS)
    ]


def as_csv(folder, rows):
    path = folder / "rows.csv"

    def field(value):
        if value == "":
            return '""'
        return "" if value is None else f'"{value.replace(chr(34), chr(34) * 2)}"' if isinstance(value, str) else value

    lines = [",".join(str(field(value)) for value in row.values()) for row in rows]
    lines[7] = "7,not,a,row,at,all"
    path.write_text("n,k,q,p,s,at\n" + "\n".join(lines) + "\n")
    return path


def as_lines(folder, rows):
    path = folder / "rows.jsonl"
    lines = [json.dumps(row) for row in rows]
    lines[7], lines[ROWS // 2] = "no record", "[1]"
    path.write_text("\n".join(lines) + "\n")
    return path


def as_compressed_lines(folder, rows):
    path = folder / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(as_lines(folder, rows).read_bytes()))
    return path


def as_document(folder, rows):
    path = folder / "rows.json"
    path.write_text(json.dumps([*rows[:9], {"n": "x"}, *rows[9:]], indent=1))
    return path


def as_parquet(folder, rows):
    path = folder / "rows.parquet"
    typed = [
        row | {"p": None if row["p"] is None else Decimal(row["p"]), "at": pa.scalar(row["at"]).cast(TIME).as_py()}
        for row in rows
    ]
    fields = [("n", pa.int64()), ("k", pa.int64()), ("q", pa.float64()), ("p", pa.decimal128(18, 2))]
    schema = pa.schema([*fields, ("s", pa.string()), ("at", TIME)])
    pq.write_table(pa.Table.from_pylist(typed, schema=schema), path, row_group_size=900)
    return path


TIME = pa.timestamp("us", tz="UTC")
FORMATS = {"csv": as_csv, "lines": as_lines, "gz": as_compressed_lines, "array": as_document, "parquet": as_parquet}


@pytest.fixture
def near(monkeypatch):
    """The readings that were made by threads of this process."""
    made = []
    batches = NearReading.batches

    def noted(reading):
        made.append(reading)
        return batches(reading)

    monkeypatch.setattr(NearReading, "batches", noted)
    return made


@pytest.fixture
def in_many_parts(monkeypatch):
    monkeypatch.setattr(followed_files, "_LEAST_PART_BYTES", 20_000)


@pytest.fixture
def lines(tmp_path):
    return as_lines(tmp_path, records())


@pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
def test_threads_give_what_workers_give(write, tmp_path, near, in_many_parts):
    path = write(tmp_path, records())
    answers = {}
    for way in ("fast", "general"):
        with velostream.connect(config={"velostream.lookup": way}) as connection:
            found = []
            for name, select in SELECTS.items():
                query = select.format(file=path)
                connection.execute(f"CREATE TABLE {name} WITH ('record.schema' = '{COLUMNS}') AS {query}")
                connection.wait(name, timeout=120)
                letters = Counter(letter[1:5] for letter in connection.execute(f"SHOW DEAD LETTERS {name}").fetchall())
                found.append((connection.table(name).arrow(), letters))
            answers[way] = found
        assert len(near) == len(SELECTS), f"all of them were to be read here, and only by {way!r}"
    for name, (fast, fast_letters), (general, general_letters) in zip(SELECTS, *answers.values(), strict=True):
        assert fast.equals(general), name
        assert fast_letters == general_letters, name
    assert answers["fast"][0][0].num_rows > ROWS - 10


@pytest.mark.parametrize("way", ["fast", "general"])
def test_a_row_that_can_not_be_computed_is_what_spark_says_it_is(way, tmp_path, near):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in (1, 2, 2**63 - 1, 4)))
    with velostream.connect(config={"velostream.lookup": way}) as connection:
        connection.execute(f"CREATE TABLE t AS SELECT n, n * 2 AS twice FROM '{path}'")
        with pytest.raises(QueryError, match="overflow"):
            connection.wait("t", timeout=60)
        assert connection.status("t").state == "failed"
        assert len(connection.table("t")) == 0
    assert len(near) == (way == "fast")


@pytest.mark.parametrize("way", ["fast", "general"])
def test_rows_without_what_they_must_have_are_set_aside(way, lines, near):
    with velostream.connect(config={"velostream.lookup": way}) as connection:
        connection.execute(f"CREATE TABLE t (n BIGINT, k BIGINT NOT NULL) AS SELECT n, k FROM '{lines}'")
        connection.wait("t", timeout=60)
        kept = connection.execute("SELECT count(*), count(k) FROM t").fetchone()
        letters = connection.execute("SHOW DEAD LETTERS t").fetchall()
    assert (
        kept[0]
        == kept[1]
        == sum(row["k"] is not None for row in records())
        - sum(records()[broken]["k"] is not None for broken in (7, ROWS // 2))
    )
    assert len(letters) == ROWS - kept[0]
    assert len(near) == (way == "fast")


@pytest.fixture
def breaking(monkeypatch):
    """Errors that end the readings to come, each in the middle."""
    errors = []
    part = NearReading._part

    def broken(reading, source, number):
        batches = part(reading, source, number)
        yield next(batches)
        if errors:
            raise errors.pop()
        yield from batches

    monkeypatch.setattr(NearReading, "_part", broken)
    return errors


def test_a_source_that_is_lost_midway_is_read_anew(lines, breaking, in_many_parts):
    breaking += [SourceError("it is gone", category=Category.NETWORK)] * 2
    with velostream.connect() as connection:
        connection.execute(
            f"CREATE TABLE t WITH ('max.rows.per.trigger' = '64') AS SELECT n FROM '{lines}' WHERE n IS NOT NULL"
        )
        connection.wait("t", timeout=60)
        assert breaking == []
        assert [n for (n,) in connection.execute("SELECT n FROM t")] == [
            row["n"] for row in records() if row["n"] not in (7, ROWS // 2)
        ]
        assert len(connection.execute("SHOW DEAD LETTERS t").fetchall()) == 2


def test_nothing_is_left_of_a_load_that_is_given_up(lines, breaking, in_many_parts):
    breaking.append(SourceError("the disk is broken", category=Category.CONFIGURATION))
    with velostream.connect() as connection:
        connection.execute(f"CREATE TABLE t WITH ('max.rows.per.trigger' = '10') AS SELECT n FROM '{lines}'")
        with pytest.raises(SourceError, match="the disk is broken"):
            connection.wait("t", timeout=60)
        assert len(connection.table("t")) == 0
        connection.execute("PAUSE QUERY t")
        connection.execute("RESUME QUERY t")
        connection.wait("t", timeout=60)
        assert len(connection.table("t")) == ROWS - 2


def test_a_load_that_is_stopped_ends_its_threads(lines, monkeypatch, in_many_parts):
    def stop(_directory: Path, point: str) -> None:
        if point == "once.after-commit":
            connection._launcher.running.runners[connection._entry("t").id]._stopping.set()

    with velostream.connect() as connection:
        monkeypatch.setattr(EngineContext, "at_crash_point", staticmethod(stop))
        connection.execute(f"CREATE TABLE t WITH ('max.rows.per.trigger' = '64') AS SELECT n FROM '{lines}'")
        runner = connection._launcher.running.runners[connection._entry("t").id]
        runner._thread.join(60)
        assert len(connection.table("t")) == 64
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("reading")]
        monkeypatch.setattr(EngineContext, "at_crash_point", None)
        connection.execute("PAUSE QUERY t")
        connection.execute("RESUME QUERY t")
        connection.wait("t", timeout=60)
        assert len(connection.table("t")) == ROWS - 2


@pytest.mark.parametrize(
    "select",
    [
        "SELECT k, count(*) AS c FROM '{file}' GROUP BY k",
        "SELECT n FROM '{file}' ORDER BY n DESC",
        "SELECT n FROM '{file}' LIMIT 5",
        "SELECT DISTINCT k FROM '{file}'",
        "SELECT a.n FROM '{file}' a JOIN '{file}' b ON a.n = b.n",
    ],
)
def test_what_needs_more_than_a_row_is_sparks(select, lines, near):
    with velostream.connect() as connection:
        connection.execute(f"CREATE TABLE t AS {select.format(file=lines)}")
        connection.wait("t", timeout=60)
        assert len(connection.table("t")) > 0
    assert near == []


def test_workers_of_other_machines_are_not_left_idle(lines, near, monkeypatch):
    monkeypatch.setattr("velostream.engine.maintain.once.shares_files", lambda _: False)
    with velostream.connect() as connection:
        connection.execute(f"CREATE TABLE t AS SELECT n FROM '{lines}'")
        connection.wait("t", timeout=60)
    assert near == []


def test_a_body_that_showed_its_columns_is_not_fetched_again(near):
    body = json.dumps([{"sku": f"s{number}", "price": number / 4} for number in range(50)])
    with HttpServer() as server, velostream.connect() as connection:
        url = server.put("/prices", body)
        connection.execute(f"CREATE TABLE prices AS SELECT sku PRIMARY KEY, price FROM {url}")
        connection.wait("prices", timeout=60)
        assert connection.execute("SELECT count(*), sum(price) FROM prices").fetchall() == [(50, Decimal("306.25"))]
        assert [request.path for request in server.requests] == ["/prices"]
        assert len(near) == 1
        # A reading that begins later asks for what is there then.
        server.put("/prices", body.replace("s49", "t49"))
        connection.execute("REFRESH TABLE prices")
        assert connection.execute("SELECT sku FROM prices WHERE price = 12.25").fetchall() == [("t49",)]


def test_rows_are_committed_as_they_come(tmp_path, monkeypatch):
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"n": pa.array(range(450_000))}), path, row_group_size=450_000)
    committed = []
    part = OnceRunner._commit_part

    def noted(runner, attempt, writes, offsets, **rest):
        committed.extend(write.rows.num_rows for write in writes)
        part(runner, attempt, writes, offsets, **rest)

    monkeypatch.setattr(OnceRunner, "_commit_part", noted)
    with velostream.connect() as connection:
        connection.execute(
            f"CREATE TABLE t WITH ('max.rows.per.trigger' = '100000') AS SELECT n FROM '{path}' WHERE n >= 0"
        )
        connection.wait("t", timeout=60)
        assert connection.execute("SELECT count(*), sum(n) FROM t").fetchall() == [(450_000, 450_000 * 449_999 // 2)]
    assert committed == [100_000] * 4 + [50_000]


def test_a_load_that_finds_nothing_is_stopped_at_once(tmp_path, monkeypatch):
    begun, ended = threading.Event(), threading.Event()
    given = NearReading.batches

    def batches(self):
        try:
            for batch in given(self):
                while True:
                    begun.set()
                    yield batch.slice(0, 0)
        finally:
            ended.set()

    monkeypatch.setattr(NearReading, "batches", batches)
    with velostream.connect() as connection:
        connection.execute(f"CREATE TABLE t AS SELECT n FROM '{as_csv(tmp_path, records())}' WHERE n < 0")
        assert begun.wait(60)
        connection.execute("DROP TABLE t")
        assert ended.wait(10)
