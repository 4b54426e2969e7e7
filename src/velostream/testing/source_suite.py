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
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.errors import Category, VelostreamError, render_text
from velostream.model.change import CHANGE
from velostream.model.schema import Schema
from velostream.sources.base import BadRecord, Emits, Offset, Partition, Replay, Source
from velostream.testing.feeds import SourceFeed, numbered_rows

_DESCRIPTORS = Path("/proc/self/fd")
_LONGEST_TROUBLE_SECONDS = 20


class Reading:
    """What was read of a source so far, put together as a table would: by origin, and by number where rows change."""

    def __init__(self, source: Source, feed: SourceFeed, schema: Schema) -> None:
        self._source = source
        self._schema = schema
        self._number = feed.number_column
        self._by_origin: dict[str | None, list[dict[str, object]]] = {}
        self.bad: list[BadRecord] = []

    def read(self, start: Offset, end: Offset) -> int:
        """Read a range as a worker would; gives the number of rows that came."""
        count = 0
        for partition in self._source.partitions(start, end):
            rows = self._rows(partition)
            if partition.replaces:
                self._by_origin[partition.origin] = []
            kept = self._by_origin.setdefault(partition.origin, [])
            for row in rows:
                self._apply(row, kept)
            count += len(rows)
        return count

    @property
    def numbers(self) -> list[object]:
        return [row[self._number] for row in self.rows]

    @property
    def rows(self) -> list[dict[str, object]]:
        return [row for rows in self._by_origin.values() for row in rows]

    def _apply(self, row: dict[str, object], kept: list[dict[str, object]]) -> None:
        sign = row.pop(CHANGE, None)
        before = [index for index, known in enumerate(kept) if known[self._number] == row[self._number]]
        replaced = before[:1] if sign is not None and (sign == -1 or self._schema.key) else []
        if sign == -1:
            del kept[replaced[0]]
        elif replaced:
            kept[replaced[0]] = row
        else:
            kept.append(row)

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

    @pytest.fixture(autouse=True)
    def _feed_is_closed(self, feed: SourceFeed) -> Iterator[None]:
        yield
        feed.close()

    def test_making_a_source_touches_nothing(self, feed: SourceFeed) -> None:
        feed.append(3)
        before = _open_descriptors()
        source = feed.source()
        assert isinstance(source.capabilities.emits, Emits)
        assert _open_descriptors() <= before

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
        reading = Reading(source, feed, _schema(source))
        start = source.initial_offset()
        reading.read(start, source.latest_offset(start))
        assert reading.numbers == _numbers(feed, 50)
        assert reading.bad == []

    def test_values_are_exact(self, feed: SourceFeed) -> None:
        if not feed.numbered:
            return
        feed.append(20)
        source = feed.source()
        schema = _schema(source)
        reading = Reading(source, feed, schema)
        start = source.initial_offset()
        reading.read(start, source.latest_offset(start))
        expected = numbered_rows(feed.first_number, 20).to_pylist()
        names = list(expected[0])
        assert [{name: row[name] for name in names} for row in reading.rows] == expected

    def test_any_cut_gives_the_same_rows(self, feed: SourceFeed) -> None:
        feed.append(30)
        feed.append(1)
        feed.append(12)
        source = feed.source()
        schema = _schema(source)
        whole = Reading(source, feed, schema)
        start = source.initial_offset()
        whole.read(start, source.latest_offset(start))

        @settings(max_examples=20, deadline=None, database=None)
        @given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
        def check(limits: list[int]) -> None:
            cut = Reading(source, feed, schema)
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
        reading = Reading(source, feed, _schema(source))
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
        first = Reading(source, feed, schema)
        first.read(start, end)
        if source.capabilities.replay is not Replay.NONE:
            again = Reading(source, feed, schema)
            again.read(start, end)
            assert again.rows == first.rows
        if source.capabilities.replay is Replay.FOREVER:
            source.commit(end)
            source.commit(end)
            feed.append(5)
            later = Reading(feed.source(), feed, schema)
            later.read(start, end)
            assert later.rows == first.rows

    def test_what_comes_later_is_read_once(self, feed: SourceFeed) -> None:
        feed.append(10)
        source = feed.source()
        reading = Reading(source, feed, _schema(source))
        start = source.initial_offset()
        end = source.latest_offset(start)
        reading.read(start, end)
        came = feed.append(4)
        later = source.latest_offset(end)
        if came and source.capabilities.incremental:
            whole = any(part.replaces for part in source.partitions(end, later))
            assert reading.read(end, later) == (14 if whole else 4)
            assert reading.numbers == _numbers(feed, 14)
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
        reading = Reading(restarted, feed, schema)
        reading.read(start, middle)
        reading.read(middle, restarted.latest_offset(json.loads(json.dumps(middle))))
        assert reading.numbers == _numbers(feed, 10)

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
        reading = Reading(feed.source(), feed, schema)
        start = source.initial_offset()
        reading.read(start, feed.source().latest_offset(start))
        assert reading.numbers == _numbers(feed, 10)
        assert len(reading.bad) == 1
        assert reading.bad[0].position
        assert reading.bad[0].reason

    def test_changes_arrive_as_changes(self, feed: SourceFeed) -> None:
        feed.append(10)
        source = feed.source()
        reading = Reading(source, feed, _schema(source))
        start = source.initial_offset()
        end = source.latest_offset(start)
        reading.read(start, end)
        first = feed.first_number
        if not feed.update(first + 3, "another"):
            return
        gone = {first + 5} if feed.delete(first + 5) else set()
        assert source.capabilities.emits is not Emits.APPENDS
        reading.read(end, source.latest_offset(end))
        names = {row[feed.number_column]: row["name"] for row in reading.rows}
        assert names[first + 3] == "another"
        assert names.keys() == set(_numbers(feed, 10)) - gone
        assert len(names) == len(reading.rows)

    def test_an_abandoned_reading_leaves_nothing_open(self, feed: SourceFeed) -> None:
        feed.append(20)
        source = feed.source()
        schema = _schema(source)
        start = source.initial_offset()
        parts = source.partitions(start, source.latest_offset(start))
        before = _open_descriptors()
        for part in parts[:1]:
            worker: Source = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own object
            batches = worker.read(part, schema, _ignored)
            next(batches)
            if isinstance(batches, Generator):
                batches.close()
            worker.close()
        # A server within this process takes a moment to see that it was hung up on.
        deadline = time.monotonic() + _LONGEST_TROUBLE_SECONDS
        while _open_descriptors() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _open_descriptors() <= before

    def test_trouble_is_named_and_passes(self, feed: SourceFeed) -> None:
        for trouble in feed.troubles():
            feed.append(3)
            source = feed.source()
            schema = _schema(source)
            start = source.initial_offset()
            end = source.latest_offset(start)
            with trouble.happening(source) as troubled:
                began_at = time.monotonic()
                with pytest.raises(VelostreamError) as caught:
                    _use(troubled, feed, start, end)
                assert caught.value.category is trouble.category, f"{trouble.name}: {caught.value}"
                assert caught.value.hint, f"{trouble.name}: {caught.value}"
                assert not any(secret in render_text(caught.value) for secret in feed.secrets), trouble.name
                assert time.monotonic() - began_at < _LONGEST_TROUBLE_SECONDS, trouble.name
            if trouble.passes:
                reading = Reading(source, feed, schema)
                reading.read(start, source.latest_offset(start))
                assert reading.numbers == _numbers(feed, len(reading.numbers)), trouble.name

    def test_what_is_missing_is_said_so(self, feed: SourceFeed) -> None:
        missing = feed.missing_source()
        if missing is None:
            return
        with pytest.raises(VelostreamError) as caught:
            missing.schema()
        assert caught.value.category is Category.MISSING
        assert caught.value.hint


def _use(source: Source, feed: SourceFeed, start: Offset, end: Offset) -> None:
    """Everything that reaches for the outside; trouble shows in one of it."""
    schema = _schema(source)
    source.latest_offset(end)
    reading = Reading(source, feed, schema)
    reading.read(start, source.latest_offset(source.initial_offset()))


def _ignored(_: BadRecord) -> None:
    """Of a reading whose bad records are of no interest."""


def _schema(source: Source) -> Schema:
    found = source.schema()
    assert found is not None
    return found


def _numbers(feed: SourceFeed, count: int) -> list[int]:
    return list(range(feed.first_number, feed.first_number + count))


def _open_descriptors() -> int:
    return len(list(_DESCRIPTORS.iterdir())) if _DESCRIPTORS.exists() else 0
