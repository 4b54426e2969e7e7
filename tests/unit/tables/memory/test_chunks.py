"""Rows keep their positions however chunks are merged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.tables.memory.chunks import Chunks
from velostream.tables.memory.growable import GrowableIntegers

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def rows(start: int, count: int) -> pa.Table:
    numbers = list(range(start, start + count))
    return pa.table({"n": numbers, "s": [str(number) for number in numbers]}, schema=SCHEMA)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=40), st.data())
def test_positions_are_stable(sizes, data):
    chunks = Chunks(SCHEMA)
    total = 0
    for size in sizes:
        chunks = chunks.appended(rows(total, size))
        total += size
    assert chunks.length == total
    assert len(chunks.batches) <= 24
    assert chunks.head(total).column("n").to_pylist() == list(range(total))
    wanted = data.draw(st.lists(st.integers(0, max(0, total - 1)), max_size=30 if total else 0))
    taken = chunks.take(np.array(wanted, dtype=np.int64))
    assert taken.column("n").to_pylist() == wanted
    assert taken.column("s").to_pylist() == [str(position) for position in wanted]
    for position in wanted[:3]:
        assert chunks.values_at(position) == (position, str(position))


def test_many_single_rows_are_copied_a_few_times_only(monkeypatch):
    copied = []
    concatenate = pa.concat_batches

    def counting(batches):
        copied.append(sum(batch.num_rows for batch in batches))
        return concatenate(batches)

    monkeypatch.setattr("velostream.tables.memory.chunks.pa.concat_batches", counting)
    chunks = Chunks(SCHEMA)
    for number in range(4096):
        chunks = chunks.appended(rows(number, 1))
        assert len(chunks.batches) < 40
    assert chunks.length == 4096
    assert sum(copied) <= 5 * 4096


@pytest.mark.parametrize("positions", [[], [1], [0, 2], [6, 7], [8, 1, 7]], ids=str)
def test_rows_without_columns_are_as_many_as_were_taken(positions):
    chunks = Chunks(SCHEMA).appended(rows(0, 7)).appended(rows(7, 2))
    assert chunks.take(np.array(positions, dtype=np.int64), []).num_rows == len(positions)


def test_a_reader_keeps_the_chunks_it_took():
    before = Chunks(SCHEMA).appended(rows(0, 7))
    after = before.appended(rows(7, 1))
    assert (before.length, after.length) == (7, 8)
    assert before.head(7, ["n"]).column("n").to_pylist() == list(range(7))


def test_a_reader_keeps_the_integers_it_took():
    growing = GrowableIntegers()
    growing.extend(np.arange(10))
    values, view = growing.values(), growing.view
    growing.extend_with(5, 1000)
    growing.array[3] = -1
    assert values.tolist() == list(range(10))
    assert view[3] == 3
    assert growing.view[3] == -1
    assert len(growing) == 1010
    with pytest.raises(IndexError):
        growing.values()[1010]
