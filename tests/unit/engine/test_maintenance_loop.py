"""The loop that keeps views over tables up to date: what it does when a view's inputs can't be looked at."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

import velostream
from velostream.engine.gate import Gate, GatePolicy
from velostream.engine.maintain.views import Maintenance, MaintenanceLoop, ViewRunner
from velostream.engine.status import State
from velostream.model.change import Mode, Write


class Copying(Maintenance):
    """A view that is its input."""

    def __init__(self, table) -> None:
        self._table = table

    def load(self, movement):
        return [(self._table, Write(Mode.REPLACE, movement.now("t").scan()))]


@pytest.fixture
def context():
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE t (id BIGINT)")
        connection.execute("CREATE TABLE v (id BIGINT)")
        connection.execute("INSERT INTO t VALUES (1)")
        yield connection._context


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
