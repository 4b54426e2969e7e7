"""The loop that keeps views over tables up to date: what it commits as one, and what it does about trouble."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

import velostream
from velostream.engine.gate import Gate, GatePolicy
from velostream.engine.maintain.base import Maintenance
from velostream.engine.maintain.views import MaintenanceLoop, ViewRunner
from velostream.engine.status import State
from velostream.model.change import Mode, Write


class Copying(Maintenance):
    """A view that is its input."""

    def __init__(self, table) -> None:
        self._table = table

    def load(self, movement):
        return [(self._table, Write(Mode.REPLACE, movement.now("t").scan()))]


class Following(Copying):
    """A view that is what came to its input."""

    def advance(self, movement):
        return [(self._table, Write(Mode.CHANGES, movement.changes("t")))]


@pytest.fixture
def connection():
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE t (id BIGINT)")
        connection.execute("CREATE TABLE v (id BIGINT)")
        connection.execute("INSERT INTO t VALUES (1)")
        yield connection


@pytest.fixture
def context(connection):
    return connection._context


def test_a_view_whose_inputs_cannot_be_looked_at_is_tried_again_after_a_while(context):
    there, view = context.catalog.find("t"), context.catalog.find("v")
    table = context.memory_table(view.id)
    loop = MaintenanceLoop(context)
    inputs = {"t": there}
    runner = ViewRunner(
        context, view, inputs=inputs, maintenance=Copying(table), loop=loop, gate=Gate([], GatePolicy())
    )
    loop._wave([[runner]])
    assert (runner.board.state, table.snapshot().count()) == (State.READY, 1)

    runner.inputs["t"] = replace(there, id="nowhere")
    for _ in range(3):
        loop._wave([[runner]])
    assert (runner.board.state, runner.board.status.attempts) == (State.DEGRADED, 1)
    assert runner.board.status.next_retry_at is not None

    runner.inputs["t"] = there
    deadline = time.monotonic() + 30
    while runner.board.state is not State.READY and time.monotonic() < deadline:
        loop._wave([[runner]])
    assert (runner.board.state, runner.board.status.attempts) == (State.READY, 0)
    loop.close()


def runner_of(context, loop, view):
    entry = context.catalog.find(view)
    maintenance = Following(context.memory_table(entry.id))
    inputs = {"t": context.catalog.find("t")}
    return ViewRunner(context, entry, inputs=inputs, maintenance=maintenance, loop=loop, gate=Gate([], GatePolicy()))


def test_views_that_follow_changes_move_in_one_commit_unless_one_of_them_cannot(connection, context):
    connection.execute("CREATE TABLE w (id BIGINT)")
    loop = MaintenanceLoop(context)
    runners = [runner_of(context, loop, view) for view in ("v", "w")]
    tables = [context.memory_table(runner.entry.id) for runner in runners]
    loop._wave([runners])
    assert [table.snapshot().count() for table in tables] == [1, 1]

    connection.execute("INSERT INTO t VALUES (2)")
    loop._wave([runners])
    assert [table.snapshot().count() for table in tables] == [2, 2]
    assert tables[0].version == tables[1].version

    context.sequence.drop_table(tables[0].id)
    connection.execute("INSERT INTO t VALUES (3)")
    loop._wave([runners])
    assert tables[1].snapshot().count() == 3
    assert [runner.board.state for runner in runners] == [State.DEGRADED, State.READY]
    loop.close()


def test_slow_views_are_brought_along_together_whatever_comes_before_them(connection, context):
    meeting = threading.Barrier(2, timeout=30)

    class Slow(Following):
        def advance(self, movement):
            # Breaks unless two of them are at it at the same time.
            meeting.wait()
            return super().advance(movement)

    loop = MaintenanceLoop(context)
    runners = []
    for kind in (Following, Following, Slow, Slow):
        connection.execute(f"CREATE TABLE v{len(runners)} (id BIGINT)")
        runner = runner_of(context, loop, f"v{len(runners)}")
        runner._maintenance = kind(context.memory_table(runner.entry.id))
        runners.append(runner)
    loop._wave([runners])
    connection.execute("INSERT INTO t VALUES (2)")
    loop._wave([runners])
    assert [context.memory_table(one.entry.id).snapshot().count() for one in runners] == [2] * 4
    assert not meeting.broken
    loop.close()
