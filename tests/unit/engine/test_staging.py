"""One worker's share of a result: told as rows while it is small, put into the store when it is not."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from velostream.engine import staging
from velostream.sources.base import BadRecord

SCHEMA = pa.schema([("n", pa.int64())])


class Kept:
    """A store that counts what it is given."""

    def __init__(self) -> None:
        self.given: list[tuple[int, int]] = []

    def stage(self, rows: pa.Table, *, part: int) -> list[str]:
        self.given.append((part, rows.num_rows))
        return [f"{part}-{len(self.given)}"]


def without_negatives(rows: pa.Table):
    bad = [BadRecord(str(n).encode(), "", "negative") for n in rows.column(0).to_pylist() if n < 0]
    return rows.filter(pa.compute.greater_equal(rows.column(0), 0)), bad


FEW = staging.Bounds(fewest_rows=5, fewest_bytes=1 << 20, most_rows=8, most_bytes=1 << 20)


def shares(store: Kept, *batches: list[int], bounds: staging.Bounds = FEW) -> list[tuple[str, object]]:
    given = iter(pa.record_batch([pa.array(batch, pa.int64())], schema=SCHEMA) for batch in batches)
    told = [batch.to_pylist()[0] for batch in staging._shares(given, store, without_negatives, SCHEMA, bounds, 3)]
    return [
        (one["kind"], pa.ipc.open_stream(one["content"]).read_all().column(0).to_pylist())
        if one["kind"] == "rows"
        else (one["kind"], json.loads(one["content"]))
        for one in told
    ]


@pytest.fixture
def store() -> Kept:
    return Kept()


def test_few_rows_are_told(store):
    assert shares(store, [1, 2], [], [3, 4]) == [("rows", [1, 2, 3, 4])]
    assert shares(store, []) == shares(store) == []
    assert store.given == []


def test_many_rows_are_put_into_the_store(store):
    assert shares(store, [1, 2, 3], [4, 5]) == [("staged", {"names": ["3-1"], "rows": 5})]
    assert store.given == [(3, 5)]


def test_more_are_put_there_bit_by_bit_and_so_is_the_rest(store):
    told = shares(store, [1, 2, 3, 4, 5], [6, 7, 8], [9])
    assert [share["rows"] for _, share in told] == [8, 1]
    assert store.given == [(3, 8), (3, 1)]


def test_few_but_large_rows_are_many(store):
    assert shares(store, [1, 2], bounds=replace(FEW, fewest_bytes=16))[0][0] == "staged"
    larger = replace(FEW, fewest_bytes=16, most_bytes=8)
    assert [share["rows"] for _, share in shares(store, [1], [2], bounds=larger)] == [1, 1]


def test_refused_rows_are_told_apart(store):
    assert shares(store, [-1, 1]) == [("refused", [["-1", "", "negative"]]), ("rows", [1])]
