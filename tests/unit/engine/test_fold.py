"""Sources that are tables, folded: long loads in pieces, loads that were cut short, records that don't tell all."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest

import velostream
from velostream.engine.maintain.fold import FoldRunner
from velostream.engine.maintain.fold_writes import FoldWrites
from velostream.engine.status import State
from velostream.errors import Category, SourceError
from velostream.model.change import CHANGE, ORIGIN, UNCHANGED
from velostream.model.schema import Schema
from velostream.sources.base import Emits, Partition, Replay, Source, SourceCapabilities, SourceSpec
from velostream.sources.common import COMMON_OPTIONS

SCHEMA = Schema.of(("id", "BIGINT"), ("name", "STRING"), key=["id"])
SIGNED = SCHEMA.arrow.append(pa.field(CHANGE, pa.int8()))


def signed(*rows: tuple[int, str | None, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SIGNED.names, row, strict=True)) for row in rows], SIGNED)


class Numbers(Source):
    """So many rows at the start, in batches of ten; then what is added to `later`."""

    kind = "numbers"
    options = COMMON_OPTIONS
    capabilities = SourceCapabilities(emits=Emits.CHANGES, replay=Replay.NONE, incremental=True, follows=True)

    def __init__(self, *, rows: int) -> None:
        super().__init__(SourceSpec("numbers", "numbers://", {"max.rows.per.trigger": "20"}))
        self.rows = rows
        self.later: list[pa.RecordBatch] = []
        self.gate = threading.Event()
        self.trouble: SourceError | None = None
        self.breaks: SourceError | None = None
        """Raised at the end of the load."""
        self.committed: list[object] = []
        self.forgotten = False

    def schema(self) -> Schema:
        return SCHEMA

    def initial_offset(self):
        return None

    def latest_offset(self, start, *, max_rows=None):
        if self.trouble is not None:
            raise self.trouble
        return 0 if start is None else len(self.later)

    def partitions(self, start, end):
        return [Partition({"load": True})] if start is None else [Partition({"number": n}) for n in range(start, end)]

    def read(self, partition, schema, on_bad):
        if "number" in partition.payload:
            yield self.later[partition.payload["number"]]
            return
        for start in range(0, self.rows, 10):
            yield signed(*((number, f"name {number}", 1) for number in range(start, start + 10)))
        self.gate.wait(30)
        if self.breaks is not None:
            raise self.breaks

    def expected_rows(self, start, end):
        return 2 * self.rows if self.rows > 60 else None

    def gauges(self, position):
        return {"position": -1 if position is None else position}

    def reached(self, position, target):
        return position is not None and (target is None or position >= target)

    def commit(self, end):
        self.committed.append(end)

    def forget(self, position):
        self.forgotten = True


@pytest.fixture
def connection(tmp_path):
    with velostream.connect(tmp_path / "state") as made:
        made.execute("CREATE TABLE folded (id BIGINT PRIMARY KEY, name STRING, _origin STRING)")
        yield made


def runner_over(connection, source):
    context = connection._context
    entry = context.catalog.find("folded")
    context.boards.pop(entry.id, None)
    context.board(entry).become(State.LOADING)
    context.board(entry)._was_ready = False
    return FoldRunner(context, entry, source=source, schema=SCHEMA)


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.01)


def test_a_long_load_is_committed_in_pieces_and_ready_at_its_end(connection):  # B37
    source = Numbers(rows=100)
    runner = runner_over(connection, source)
    runner.start()
    table = connection.table("folded")
    until(lambda: len(table) == 100)
    assert runner.board.state is State.LOADING
    assert (runner.board.status.percent, runner.board.status.eta is None) == (50.0, False)
    assert source.committed == []
    source.gate.set()
    until(lambda: runner.board.state is State.READY)
    assert source.committed == [0]
    assert (runner.board.status.percent, runner.board.status.eta) == (100.0, 0.0)
    assert runner.board.status.gauges == {"position": 0}
    source.later.append(signed((3, None, -1), (4, "another", 1)))
    runner.drain(time.monotonic() + 30)
    assert (len(table), table.get(4)["name"], table.get(3)) == (99, "another", None)
    runner.stop()


def test_a_load_that_was_cut_short_begins_anew(connection):  # B55
    broken = Numbers(rows=60)
    broken.breaks = SourceError("no more", category=Category.CONFIGURATION)
    broken.gate.set()
    runner = runner_over(connection, broken)
    runner.start()
    until(lambda: runner.board.state is State.FAILED)
    runner.stop()
    table = connection.table("folded")
    assert len(table) == 60
    again = Numbers(rows=40)
    again.gate.set()
    second = runner_over(connection, again)
    second.start()
    until(lambda: second.board.state is State.READY)
    assert sorted(row["id"] for row in table.scan()) == list(range(40))
    second.stop()
    assert not again.forgotten


def test_trouble_shows_and_passes(connection):  # B56
    source = Numbers(rows=10)
    source.gate.set()
    runner = runner_over(connection, source)
    runner.start()
    until(lambda: runner.board.state is State.READY)
    source.trouble = SourceError("gone", category=Category.NETWORK)
    until(lambda: runner.board.state is State.DEGRADED)
    assert runner.board.status.next_retry_at is not None
    source.trouble = None
    source.later.append(signed((50, "later", 1)))
    until(lambda: runner.board.state is State.READY)
    runner.drain(time.monotonic() + 30)
    assert connection.table("folded").get(50)["name"] == "later"
    runner.discard()
    assert source.forgotten


def test_a_source_is_not_closed_while_it_is_asked_where_it_ends(connection):
    source = Numbers(rows=10)
    source.gate.set()
    runner = runner_over(connection, source)
    runner.start()
    until(lambda: runner.board.state is State.READY)
    asked, told, closed_while_asked = threading.Event(), threading.Event(), []
    ask, close = source.latest_offset, source.close
    closed = threading.Event()

    def held(start, *, max_rows=None):
        if threading.current_thread() is drainer:
            asked.set()
            told.wait(30)
            closed_while_asked.append(closed.is_set())
        return ask(start, max_rows=max_rows)

    def noted():
        closed.set()
        close()

    drainer = threading.Thread(target=runner.drain, args=[time.monotonic() + 30], daemon=True)
    source.latest_offset, source.close = held, noted
    drainer.start()
    assert asked.wait(30)
    stopper = threading.Thread(target=runner.stop, daemon=True)
    stopper.start()
    assert not closed.wait(0.5)
    told.set()
    for thread in (drainer, stopper):
        thread.join(30)
        assert not thread.is_alive()
    assert closed_while_asked == [False]
    assert closed.is_set()


def test_values_that_a_record_does_not_tell_are_those_of_its_row(connection):
    connection.execute("INSERT INTO folded VALUES (1, 'one', NULL), (2, 'two', NULL)")
    entry = connection._context.catalog.find("folded")
    table = connection._context.memory_table(entry.id)
    partial = SIGNED.append(pa.field(UNCHANGED, pa.list_(pa.string())))
    writes = FoldWrites(table, SCHEMA)
    writes.begin(Partition({}))
    rows = [
        {"id": 1, "name": None, CHANGE: 1, UNCHANGED: ["name"]},
        {"id": 2, "name": None, CHANGE: -1, UNCHANGED: []},
        {"id": 7, "name": None, CHANGE: 1, UNCHANGED: ["name"]},
        {"id": 8, "name": "eight", CHANGE: 1, UNCHANGED: None},
        {"id": 8, "name": None, CHANGE: 1, UNCHANGED: ["name"]},
    ]
    writes.add(pa.RecordBatch.from_pylist(rows, partial))
    for write in writes.take():
        table.commit(write)
    found = {row["id"]: row["name"] for row in connection.table("folded").scan()}
    assert found == {1: "one", 7: "two", 8: "eight"}


def test_a_tombstone_takes_away_the_rows_of_its_origin(connection):  # B43
    connection.execute(
        "INSERT INTO folded VALUES (1, 'one', 'a'), (2, 'two', 'b'), (3, 'three', 'c'), (4, 'four', 'd')"
    )
    entry = connection._context.catalog.find("folded")
    table = connection._context.memory_table(entry.id)
    with_origin = SIGNED.append(pa.field(ORIGIN, pa.string()))
    writes = FoldWrites(table, SCHEMA)
    writes.begin(Partition({}))
    rows = [
        {"id": None, CHANGE: -1, ORIGIN: "a"},  # known by its origin alone
        {"id": 2, CHANGE: -1, ORIGIN: "b"},  # by both
        {"id": 3, CHANGE: -1, ORIGIN: "never seen"},  # by its own key alone
        {"id": None, CHANGE: -1, ORIGIN: "never seen"},
        {"id": 5, "name": "five", CHANGE: 1, ORIGIN: "e"},
        {"id": None, CHANGE: -1, ORIGIN: "e"},  # of an earlier record
        {"id": 6, "name": "six", CHANGE: 1, ORIGIN: "e"},  # and there again
        {"id": 7, "name": "seven", CHANGE: 1, ORIGIN: None},
    ]
    writes.add(pa.RecordBatch.from_pylist(rows, with_origin))
    for write in writes.take():
        table.commit(write)
    found = {row["id"]: row["name"] for row in connection.table("folded").scan()}
    assert found == {4: "four", 6: "six", 7: "seven"}
