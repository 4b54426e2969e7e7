"""The conformance suite of sources: what a kind must hold to be trusted with `sources.base.Source`.

Subclass it in a test module and give it a `feed` fixture:

    class TestMySource(SourceSuite):
        @pytest.fixture
        def feed(self, tmp_path):
            return MyFeed(tmp_path)

What is asked follows the capabilities the source states; a kind is never named here.
"""

# ruff: noqa: S101 - asserting is what a suite is for

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.errors import Category, SourceError
from velostream.model.change import CHANGE
from velostream.model.schema import Schema
from velostream.sources.base import BadRecord, Emits, Offset, Partition, Replay, Source
from velostream.testing.feeds import SourceFeed

_DESCRIPTORS = Path("/proc/self/fd")


class Reading:
    """What was read of a source so far, put together as a table would."""

    def __init__(self, source: Source, schema: Schema) -> None:
        self._source = source
        self._schema = schema
        self._by_origin: dict[str | None, list[dict[str, object]]] = {}
        self.bad: list[BadRecord] = []

    def read(self, start: Offset, end: Offset) -> int:
        """Read a range as a worker would; gives the number of rows that came."""
        count = 0
        for partition in self._source.partitions(start, end):
            rows = self._rows(partition)
            if partition.replaces:
                self._by_origin[partition.origin] = []
            self._by_origin.setdefault(partition.origin, []).extend(rows)
            count += len(rows)
        return count

    def numbers(self, column: str) -> list[object]:
        return [row[column] for rows in self._by_origin.values() for row in rows]

    @property
    def rows(self) -> list[dict[str, object]]:
        return [row for rows in self._by_origin.values() for row in rows]

    def _rows(self, partition: Partition) -> list[dict[str, object]]:
        worker: Source = pickle.loads(pickle.dumps(self._source))  # noqa: S301 - our own object
        travelled: Partition = pickle.loads(pickle.dumps(partition))  # noqa: S301 - our own object
        rows: list[dict[str, object]] = []
        for batch in worker.read(travelled, self._schema, self.bad.append):
            self._check_columns(batch, partition)
            rows += batch.to_pylist()
        worker.close()
        return rows

    def _check_columns(self, batch: pa.RecordBatch, partition: Partition) -> None:
        signed = self._source.capabilities.emits is not Emits.APPENDS and not partition.replaces
        expected = self._schema.arrow
        if signed:
            expected = expected.append(pa.field(CHANGE, pa.int8()))
        assert batch.schema == expected, f"columns are {batch.schema}, expected {expected}"


class SourceSuite:
    """Each test gets a feed of its own, with nothing in it."""

    @pytest.fixture
    def feed(self) -> SourceFeed:
        raise NotImplementedError("give the suite a feed fixture")

    def test_making_a_source_touches_nothing(self, feed: SourceFeed) -> None:
        feed.append(3)
        before = _open_descriptors()
        source = feed.source()
        assert isinstance(source.capabilities.emits, Emits)
        assert _open_descriptors() == before

    def test_offsets_are_json(self, feed: SourceFeed) -> None:
        feed.append(5)
        source = feed.source()
        for offset in (start := source.initial_offset(), source.latest_offset(start)):
            assert json.loads(json.dumps(offset)) == offset

    def test_the_end_stays_while_nothing_comes(self, feed: SourceFeed) -> None:
        feed.append(5)
        source = feed.source()
        end = source.latest_offset(source.initial_offset())
        assert source.latest_offset(end) == end
        assert source.latest_offset(end, max_rows=1) == end
        assert list(source.partitions(end, end)) == []

    def test_all_rows_are_read_in_order(self, feed: SourceFeed) -> None:
        feed.append(50)
        source = feed.source()
        reading = Reading(source, _schema(source))
        start = source.initial_offset()
        reading.read(start, source.latest_offset(start))
        assert reading.numbers(feed.number_column) == _numbers(feed, 50)
        assert reading.bad == []

    def test_any_cut_gives_the_same_rows(self, feed: SourceFeed) -> None:
        feed.append(30)
        feed.append(1)
        feed.append(12)
        source = feed.source()
        schema = _schema(source)
        whole = Reading(source, schema)
        start = source.initial_offset()
        whole.read(start, source.latest_offset(start))

        @settings(max_examples=20, deadline=None, database=None)
        @given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
        def check(limits: list[int]) -> None:
            cut = Reading(source, schema)
            position = start
            step = 0
            while (end := source.latest_offset(position, max_rows=limits[step % len(limits)])) != position:
                cut.read(position, end)
                assert source.reached(end, position)
                assert not source.reached(position, end)
                position = json.loads(json.dumps(end))
                step += 1
            assert cut.rows == whole.rows

        check()

    def test_limits_hold(self, feed: SourceFeed) -> None:
        feed.append(20)
        source = feed.source()
        reading = Reading(source, _schema(source))
        position = source.initial_offset()
        while (end := source.latest_offset(position, max_rows=3)) != position:
            assert 0 < reading.read(position, end) <= 3 + feed.limit_slack
            position = end

    def test_a_range_is_read_again_as_it_was(self, feed: SourceFeed) -> None:
        feed.append(10)
        source = feed.source()
        schema = _schema(source)
        start = source.initial_offset()
        end = source.latest_offset(start)
        first = Reading(source, schema)
        first.read(start, end)
        if source.capabilities.replay is not Replay.NONE:
            again = Reading(source, schema)
            again.read(start, end)
            assert again.rows == first.rows
        if source.capabilities.replay is Replay.FOREVER:
            source.commit(end)
            source.commit(end)
            feed.append(5)
            later = Reading(feed.source(), schema)
            later.read(start, end)
            assert later.rows == first.rows

    def test_what_comes_later_is_read_once(self, feed: SourceFeed) -> None:
        feed.append(10)
        source = feed.source()
        reading = Reading(source, _schema(source))
        start = source.initial_offset()
        end = source.latest_offset(start)
        reading.read(start, end)
        came = feed.append(4)
        later = source.latest_offset(end)
        if came and source.capabilities.incremental:
            assert reading.read(end, later) == 4
            assert reading.numbers(feed.number_column) == _numbers(feed, 14)
        else:
            assert later == end

    def test_a_restarted_source_goes_on(self, feed: SourceFeed) -> None:
        feed.append(10)
        source = feed.source()
        schema = _schema(source)
        start = source.initial_offset()
        middle = source.latest_offset(start, max_rows=4)
        source.close()
        restarted = feed.source()
        reading = Reading(restarted, schema)
        reading.read(start, middle)
        reading.read(middle, restarted.latest_offset(json.loads(json.dumps(middle))))
        assert reading.numbers(feed.number_column) == _numbers(feed, 10)

    def test_columns_stay_what_they_are(self, feed: SourceFeed) -> None:
        feed.append(10)
        source = feed.source()
        before = _schema(source)
        feed.append(10)
        after = _schema(feed.source())
        assert after.columns[: len(before.columns)] == before.columns
        assert _schema(source).columns[: len(before.columns)] == before.columns

    def test_a_bad_record_stops_no_other(self, feed: SourceFeed) -> None:
        feed.append(5)
        source = feed.source()
        schema = _schema(source)
        if not feed.append_bad_record():
            return
        feed.append(5)
        reading = Reading(feed.source(), schema)
        start = source.initial_offset()
        reading.read(start, feed.source().latest_offset(start))
        assert reading.numbers(feed.number_column) == _numbers(feed, 10)
        assert len(reading.bad) == 1
        assert reading.bad[0].position
        assert reading.bad[0].reason

    def test_what_is_missing_is_said_so(self, feed: SourceFeed) -> None:
        missing = feed.missing_source()
        if missing is None:
            return
        with pytest.raises(SourceError) as caught:
            missing.schema()
        assert caught.value.category is Category.MISSING
        assert caught.value.hint


def _schema(source: Source) -> Schema:
    found = source.schema()
    assert found is not None
    return found


def _numbers(feed: SourceFeed, count: int) -> list[int]:
    return list(range(feed.first_number, feed.first_number + count))


def _open_descriptors() -> int:
    return len(list(_DESCRIPTORS.iterdir())) if _DESCRIPTORS.exists() else 0
