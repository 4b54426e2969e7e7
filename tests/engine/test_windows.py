"""Windows over a stream give what Spark gives for the same rows as a batch, whatever the batches and their order."""

import random
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

import velostream

START = datetime.fromisoformat("2024-01-01T00:00:00")
LATENESS = timedelta(minutes=3)
AGGREGATES = (
    "COUNT(*) AS n, SUM(x) AS total, AVG(x) AS mean, COUNT(DISTINCT x) AS different, "
    "MEDIAN(x) AS middle, STRING_AGG(CAST(x AS STRING), '+') WITHIN GROUP (ORDER BY x) AS texts, "
    "PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY x) AS high, STDDEV_POP(x) AS spread"
)
WINDOWS = {
    "tumbling": ("TUMBLING(ts, 5m)", "window(ts, '5 minutes')"),
    "sliding": ("SLIDING(ts, 10m, 4m)", "window(ts, '10 minutes', '4 minutes')"),
    "session": ("SESSION(ts, 40s)", "session_window(ts, '40 seconds')"),
}
MODES = {
    "final": "EMIT FINAL WITH ('watermark' = '3m')",
    "changes": "EMIT CHANGES WITH ('watermark' = '3m')",
    "updated": "EMIT FINAL WITH ('watermark' = '0s', 'late.data' = 'update')",
}
SEED = 20240501


def events(choose, count):
    """Rows whose times lag behind the newest one by less than the watermark allows, some keys and times missing."""
    newest = START
    for _ in range(count):
        newest += timedelta(seconds=choose.randrange(0, 25))
        late = timedelta(seconds=choose.randrange(0, int(LATENESS.total_seconds()))) if choose.random() < 0.3 else None
        ts = newest if late is None else max(START, newest - late)
        x = choose.choice([None, Decimal(choose.randrange(-500, 500)).scaleb(-2)])
        yield {"ts": None if choose.random() < 0.03 else ts, "k": choose.choice(["a", "b", None]), "x": x}


def of_batch(connection, call, *, until):
    rows = connection.execute(
        f"SELECT k, {call}.start AS s, {call}.end AS e, {AGGREGATES} FROM seen GROUP BY k, {call}"
    ).fetchall()
    return comparable(row for row in rows if until is None or row[2] <= until)


def comparable(rows):
    return sorted(
        (tuple(round(value, 9) if isinstance(value, float) else value for value in row) for row in rows), key=repr
    )


@pytest.mark.parametrize("window", WINDOWS)
def test_every_mode_equals_the_batch(window):
    choose = random.Random(SEED)
    clause, call = WINDOWS[window]
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE seen (ts TIMESTAMP, k STRING, x DECIMAL(18,2))")
        for mode, rest in MODES.items():
            connection.execute(
                f"CREATE TABLE {mode} AS SELECT k, _window_start, _window_end, {AGGREGATES} "
                f"FROM memory://events GROUP BY k WINDOW {clause} {rest}"
            )
        rows = [{"ts": START, "k": "a", "x": Decimal("1.00")}, *events(choose, 150)]
        for first, last in ((0, 60), (60, 61), (61, 151)):
            connection.memory("events").append(rows[first:last])
            connection.table("seen").insert(rows[first:last])
            for mode in MODES:
                connection.wait(mode, timeout=120)
                connection.drain(mode, timeout=120)
            newest = max(row["ts"] for row in rows[:last] if row["ts"] is not None)
            shown = {"final": newest - LATENESS, "changes": None, "updated": newest}
            for mode, until in shown.items():
                found = comparable(connection.execute(f"SELECT * FROM {mode}").fetchall())
                assert found == of_batch(connection, call, until=until), (mode, last)
        assert connection.status("final").counters["late rows"] == 0
