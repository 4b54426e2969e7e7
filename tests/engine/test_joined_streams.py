"""Joins of two streams that forget rows: what a batch gives, whatever the order of arrival, from bounded state."""

import random
from collections import Counter
from datetime import datetime, timedelta

import pyarrow as pa
import pytest

import velostream
from velostream.errors import NotExecutableError

START = datetime.fromisoformat("2024-01-01T00:00:00")
STREAMS = {
    "orders": "CREATE STREAM orders (id BIGINT, ts TIMESTAMP, n BIGINT) WITH ('source' = 'memory://orders')",
    "payments": "CREATE STREAM payments (order_id BIGINT, ts TIMESTAMP, m BIGINT) WITH ('source' = 'memory://payments')",
}
SCHEMAS = {
    stream: pa.schema([(key, pa.int64()), ("ts", pa.timestamp("us", "UTC")), (value, pa.int64())])
    for stream, key, value in (("orders", "id", "n"), ("payments", "order_id", "m"))
}
WITHIN = "o.id = p.order_id AND o.ts BETWEEN p.ts - INTERVAL '3' MINUTE AND p.ts + INTERVAL '3' MINUTE"
AFTER = "o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '3' MINUTE"
QUERIES = {
    "met": f"SELECT o.n, p.m FROM orders o JOIN payments p ON {WITHIN}",
    "counted": f"SELECT o.id, COUNT(p.m) AS c, SUM(p.m) s FROM orders o LEFT JOIN payments p ON {AFTER} GROUP BY o.id",
    "whole": f"SELECT o.n, p.m FROM orders o FULL JOIN payments p ON {WITHIN}",
}
LATENESS_SECONDS = 60
PATIENCE = 120.0
SEED = 20240917


class Arrivals:
    """Rows of the streams, in the order of their arrival: later than the newest one before their batch, or late by
    less than the watermark allows.
    """

    def __init__(self) -> None:
        self._choose = random.Random(SEED)
        self._newest = dict.fromkeys(STREAMS, 0)
        self._number = 0

    def batch(self, stream):
        key, _, value = SCHEMAS[stream].names
        rows = []
        for _ in range(self._choose.randint(1, 6)):
            self._number += 1
            seconds = self._newest[stream] + self._choose.randint(1 - LATENESS_SECONDS, 200)
            ts = None if self._choose.random() < 0.05 else START + timedelta(seconds=seconds)
            rows.append({key: self._choose.choice([1, 2, 3, None]), "ts": ts, value: self._number})
        times = [row["ts"] for row in rows if row["ts"] is not None]
        if times:
            newest = int((max(times) - START).total_seconds())
            self._newest[stream] = max(self._newest[stream], newest)
        return rows


def drained(connection):
    for name in QUERIES:
        connection.drain(name, timeout=PATIENCE)


def kept(connection, view):
    """How many rows a view keeps of each stream."""
    return {name: figure for name, figure in connection.status(view).gauges.items() if name.startswith("rows kept")}


def test_every_order_of_arrival_gives_what_the_batch_gives_over_a_restart_too(tmp_path):
    arrivals, seen = Arrivals(), {stream: [] for stream in STREAMS}
    connection = velostream.connect(tmp_path / "state")
    try:
        for statement in STREAMS.values():
            connection.execute(statement)
        for name, query in QUERIES.items():
            connection.execute(f"CREATE TABLE {name} AS {query} WITH ('watermark' = '{LATENESS_SECONDS}s')")
        for number in range(14):
            stream = ("orders", "payments")[number % 2]
            rows = arrivals.batch(stream)
            connection.memory(stream).append(rows)
            seen[stream] += rows
            if number % 6 == 5:
                drained(connection)
            if number == 8:
                # Whatever was under way.
                connection.close()
                connection = velostream.connect(tmp_path / "state")
        drained(connection)
        forgetting = {view: sum(kept(connection, view).values()) for view in QUERIES}
        everything = sum(map(len, seen.values()))
        assert 0 < max(forgetting.values()) < everything * 2 / 3, (forgetting, everything)
        for name, query in QUERIES.items():
            found = connection.execute(f"SELECT * FROM {name}").fetchall()
            assert Counter(found) == Counter(of_batch(connection, query, seen)), name
        with pytest.raises(NotExecutableError, match="can't be computed again"):
            connection.execute("REFRESH TABLE met")
    finally:
        connection.close()


def of_batch(connection, query, seen):
    """What a query gives over all rows at once."""
    for stream, rows in seen.items():
        connection.register(f"all_{stream}", pa.Table.from_pylist(rows, SCHEMAS[stream]))
    over_all = query.replace("orders o", "all_orders o").replace("payments p", "all_payments p")
    return connection.execute(over_all).fetchall()


def test_state_stays_small_and_late_rows_are_told():
    with velostream.connect() as connection:
        for statement in STREAMS.values():
            connection.execute(statement)
        connection.execute(
            f"CREATE TABLE met AS {QUERIES['met']} WITH ('watermark' = '1m', 'late.data' = 'dead_letter')"
        )
        most = 0
        for minutes in range(0, 90, 15):
            times = [START + timedelta(minutes=minutes, seconds=second) for second in range(0, 900, 30)]
            connection.memory("orders").append([{"id": 1, "ts": ts, "n": minutes} for ts in times])
            connection.memory("payments").append([{"order_id": 2, "ts": ts, "m": minutes} for ts in times])
            connection.drain("met", timeout=PATIENCE)
            figures = kept(connection, "met")
            assert set(figures) == {'rows kept of "memory://orders"', 'rows kept of "memory://payments"'}
            most = max(most, *figures.values())
        # A minute of lateness, three of the bound, a part of these until they are looked at: 2 rows each, and a batch.
        assert most <= 2 * 5 + 30
        connection.memory("payments").append(
            [{"order_id": 1, "ts": START, "m": 0}, {"order_id": 1, "ts": None, "m": 1}]
        )
        connection.drain("met", timeout=PATIENCE)
        assert connection.status("met").counters['late rows of "memory://payments"'] == 1
        letters = connection.execute("SHOW DEAD LETTERS met").fetchall()
        assert [letter[3] for letter in letters] == [
            f"late: the watermark of its stream had passed {times[-1] - timedelta(minutes=1)}"
        ]
        assert connection.execute("SELECT * FROM met").fetchall() == []
        stages = [row[0] for row in connection.execute("EXPLAIN ANALYZE QUERY met").fetchall()]
        assert 'rows kept of "memory://orders"' in stages
