"""A source read by Spark's workers gives what it gives when read here, and its bad records once."""

import json

import pyarrow as pa
import pytest

from velostream.engine.nearby import NearReading
from velostream.engine.reading import read_range
from velostream.engine.relations import arrow_result
from velostream.errors import SourceError
from velostream.model.schema import Schema
from velostream.sources.base import SourceSpec
from velostream.sources.files import FileSource

ORDERS = Schema.of(("id", "BIGINT"), ("amount", "DECIMAL(18,2)"))


@pytest.fixture
def orders(tmp_path):
    """Twenty files of fifty orders each, of which every seventh line is broken."""
    for file in range(20):
        lines = [
            json.dumps({"id": file * 50 + number, "amount": number / 4}) if number % 7 else f"broken {file} {number}"
            for number in range(50)
        ]
        (tmp_path / f"orders-{file:02}.jsonl").write_text("\n".join(lines) + "\n")
    return FileSource(SourceSpec("file", f"file://{tmp_path}/*.jsonl", {"format": "json"}, ORDERS))


def whole(source):
    start = source.initial_offset()
    return start, source.latest_offset(start)


def read_here(source, start, end):
    """The rows that threads of this process read, and the records they can't."""
    reading = NearReading(source, start, end, ORDERS, work=iter)
    return pa.Table.from_batches(reading.batches(), schema=ORDERS.arrow), reading.bad_records()


def test_workers_read_what_the_driver_reads_in_order(session, orders):
    start, end = whole(orders)
    here, here_bad = read_here(orders, start, end)
    reading = read_range(session, orders, start, end, ORDERS)
    there = arrow_result(reading.frame)
    assert there.schema.equals(ORDERS.arrow)
    assert there.equals(here)
    assert there.num_rows == 20 * 42
    bad = reading.bad_records()
    assert bad == here_bad
    assert bad[1].raw == b"broken 0 7"


def test_workers_tell_how_much_they_have_read(session, orders):
    reading = read_range(session, orders, *whole(orders), ORDERS, counted=True)
    assert reading.finished() == 0.0
    arrow_result(reading.frame)
    assert reading.finished() == 1.0
    assert len(reading.bad_records()) == 160


def test_a_frame_executed_twice_reports_its_bad_records_once(session, orders):  # B57
    reading = read_range(session, orders, *whole(orders), ORDERS)
    frame = reading.frame.persist()
    try:
        assert arrow_result(frame.selectExpr("count(*) AS n")).to_pylist() == [{"n": 840}]
        assert arrow_result(reading.frame).num_rows == 840
    finally:
        frame.unpersist()
    assert len(reading.bad_records()) == 20 * 8
    assert reading.bad_records() == []


def test_two_readings_keep_their_bad_records_apart(session, orders):
    first, second = (read_range(session, orders, *whole(orders), ORDERS) for _ in range(2))
    arrow_result(first.frame)
    assert second.bad_records() == []
    arrow_result(second.frame)
    assert len(first.bad_records()) == len(second.bad_records()) == 160


def test_an_empty_range_has_the_columns(session, orders):
    _, end = whole(orders)
    reading = read_range(session, orders, end, end, ORDERS)
    assert arrow_result(reading.frame).schema.equals(ORDERS.arrow)
    assert reading.bad_records() == []
    assert read_here(orders, end, end) == (ORDERS.arrow.empty_table(), [])


def test_a_source_that_fails_in_a_worker_says_why(session, orders, tmp_path):
    start, end = whole(orders)
    reading = read_range(session, orders, start, end, ORDERS)
    for file in tmp_path.glob("*.jsonl"):
        file.unlink()
    with pytest.raises(SourceError):
        arrow_result(reading.frame)
