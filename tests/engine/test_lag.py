"""How far behind its source a table is: counted while there is more to read, nothing once all was read."""

from __future__ import annotations

import json
import time

import pytest

import velostream


@pytest.fixture
def connection(monkeypatch):
    for module in ("ingest", "maintain.fold"):
        monkeypatch.setattr(f"velostream.engine.{module}.GAUGE_SECONDS", 0.0)
    with velostream.connect() as connection:
        yield connection


@pytest.mark.parametrize("options", ["", ", 'changelog' = 'upsert', 'key' = 'id'"], ids=["stream", "table"])
def test_what_is_left_of_a_feed_is_counted(connection, options):
    connection.memory("feed").append([{"id": number} for number in range(200)])
    connection.execute(f"CREATE TABLE t AS SELECT * FROM memory://feed WITH ('max.rows.per.trigger' = '1'{options})")
    deadline = time.monotonic() + 120
    seen = set()
    while not seen or max(seen) == 0:
        seen |= {lag for lag in (connection.status("t").lag_rows,) if lag is not None}
        assert time.monotonic() < deadline
    assert 0 < max(seen) < 200
    connection.execute("CREATE OR REPLACE TABLE t AS SELECT * FROM memory://feed")
    connection.drain("t", timeout=120)
    while connection.status("t").lag_rows != 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    status = connection.status("t")
    assert (status.lag_rows, status.lag_seconds) == (0, 0.0)
    (row,) = connection.execute("SHOW PROGRESS t").fetchall()
    assert row[-2:] == (0, 0.0)


def test_of_files_only_that_all_was_read_is_known(connection, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": 1}) + "\n")
    connection.execute(f"CREATE TABLE once AS SELECT * FROM file://{path}")
    connection.execute(f"CREATE TABLE watched AS SELECT * FROM file://{path} WITH ('watch' = 'true')")
    connection.drain("watched", timeout=60)
    connection.wait("once", timeout=60)
    deadline = time.monotonic() + 60
    while connection.status("watched").lag_rows is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [connection.status(name).lag_rows for name in ("once", "watched")] == [None, 0]
