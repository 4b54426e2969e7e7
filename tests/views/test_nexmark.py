"""The queries of Nexmark as running queries over one feed of events: in the end each is what Spark answers as a batch.

`make nexmark EVENTS=1000000` runs it at length.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import velostream
from velostream.testing.nexmark import Nexmark

EVENTS = int(os.environ.get("VELOSTREAM_NEXMARK_EVENTS", "20000"))
BATCHES = 3
SECONDS = 100
"""Event time that the events are spread over, however many they are."""
DISORDER = 40
LATENESS = timedelta(seconds=4)
PATIENCE = 60 + EVENTS / 500

SCRIPT = Path(__file__).with_name("nexmark.sql").read_text()
NAMED = {kind: dict(re.findall(rf"(?ms)^-- {kind} (\w+)\n(.*?)(?=^-- |\Z)", SCRIPT)) for kind in ("stream", "table")}
QUERIES = {
    int(number): (text, rest)
    for number, rest, text in re.findall(r"(?ms)^-- query (\d+)([^\n]*)\n(.*?)(?=^-- |\Z)", SCRIPT)
}
TO_FILES = 10
FINAL = 11


@pytest.fixture
def connection():
    with velostream.connect() as connection:
        yield connection


def test_every_query_equals_its_batch(connection, tmp_path, capsys):
    nexmark = Nexmark(seed=11, events_per_second=EVENTS // SECONDS, disorder=DISORDER)
    ends = [EVENTS * number // BATCHES for number in range(BATCHES + 1)]
    batches = [nexmark.events(first, end - first) for first, end in pairwise(ends)]
    begun = time.monotonic()
    connection.memory("nexmark").append(batches[0])
    _start(connection, tmp_path)
    for batch in batches[1:]:
        connection.drain("q0", timeout=PATIENCE)
        connection.memory("nexmark").append(batch)
    for name in connection.queries():
        connection.drain(name, timeout=PATIENCE)
    taken = time.monotonic() - begun
    events = pa.concat_tables(batches)
    _check(connection, events, tmp_path)
    if EVENTS > 100_000:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        with capsys.disabled():
            said = f"{len(QUERIES)} queries over {EVENTS} events: {taken:.0f} s, at most {peak:.1f} GiB beside Spark's"
            sys.stdout.write(f"\n{said}\n")


def _start(connection, folder):
    side = folder / "side_input.csv"
    side.write_text("key,value\n" + "".join(f"{key},value {key}\n" for key in range(0, 10_000, 2)))
    connection.execute(f"CREATE TABLE side_input AS SELECT key PRIMARY KEY, value FROM file://{side}")
    for kind, statements in NAMED.items():
        for name, text in statements.items():
            connection.execute(f"CREATE {kind} {name} AS {text}")
    for number, (text, rest) in QUERIES.items():
        if number == TO_FILES:
            connection.execute(f"INSERT INTO file://{folder}/logged/?format=parquet {text}")
        else:
            connection.execute(f"CREATE TABLE q{number} AS {text} {rest}")


def _check(connection, events, folder):
    session = connection._context.spark.session()
    generated = {
        name: pa.table(
            pc.drop_null(events[name]).combine_chunks().flatten(), names=events.schema.field(name).type.names
        )
        for name in ("person", "auction", "bid")
    }
    _assert_same(connection.table("bids").arrow().drop_columns("p_time"), generated["bid"], "the bids")
    # When a bid was processed only the running queries can tell.
    generated["bid"] = connection.table("bids").arrow()
    for name, rows in generated.items():
        pq.write_table(rows, folder / f"{name}.parquet")
        for known in (name, {"person": "people"}.get(name, f"{name}s")):
            session.read.parquet(str(folder / f"{name}.parquet")).createOrReplaceTempView(known)
    session.createDataFrame(connection.table("side_input").arrow()).createOrReplaceTempView("side_input")
    newest = pc.max(generated["bid"]["dateTime"]).as_py()
    for number, (text, _) in QUERIES.items():
        right = session.sql(text).toArrow()
        if number == FINAL:
            right = right.filter(pc.less_equal(right["endtime"], pa.scalar(newest - LATENESS, right["endtime"].type)))
        found = connection.table(f"q{number}").arrow() if number != TO_FILES else _logged(folder)
        _assert_same(found, right, f"query {number}")


def _logged(folder):
    return ds.dataset(folder / "logged", format="parquet").to_table()


def _assert_same(found, right, what):
    assert right.num_rows, f"{what}: none, which proves little"
    assert found.column_names == right.column_names, what
    assert found.num_rows == right.num_rows, what
    assert _sorted(found.cast(right.schema)).equals(_sorted(right)), what


def _sorted(rows):
    return rows.sort_by([(name, "ascending") for name in rows.column_names]).combine_chunks()
