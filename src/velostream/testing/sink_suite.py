"""The conformance suite of sinks: what a kind must hold to be trusted with `sinks.base.Sink`.

Subclass it in a test module and give it a `target` fixture. What is asked follows the capabilities the sink states.
"""

# ruff: noqa: S101 - asserting is what a suite is for

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa
import pytest

from velostream.model.change import Epoch
from velostream.model.schema import Schema
from velostream.sinks.base import Sink
from velostream.testing.feeds import numbered_rows


class SinkTarget(ABC):
    """A place a sink writes to, under a test's control. One test uses one target, empty at first."""

    @abstractmethod
    def sink(self) -> Sink:
        """A new sink object on this target."""

    @abstractmethod
    def numbers(self) -> list[int]:
        """The `id` of every row the target holds, in the order they were written."""

    def close(self) -> None:
        """Give back what the target holds. Called once, at the end of the test."""


class SinkSuite:
    """Each test gets a target of its own."""

    @pytest.fixture
    def target(self) -> SinkTarget:
        raise NotImplementedError("give the suite a target fixture")

    def test_making_a_sink_writes_nothing(self, target: SinkTarget) -> None:
        sink = target.sink()
        assert sink.capabilities.guarantee
        assert target.numbers() == []

    def test_rows_arrive_in_order(self, target: SinkTarget) -> None:
        sink = _opened(target)
        sink.write(numbered_rows(1, 3), Epoch("query", 0))
        sink.write(numbered_rows(4, 2), Epoch("query", 1))
        sink.close()
        assert target.numbers() == [1, 2, 3, 4, 5]

    def test_an_empty_batch_changes_nothing(self, target: SinkTarget) -> None:
        sink = _opened(target)
        sink.write(numbered_rows(1, 0), Epoch("query", 0))
        sink.write(numbered_rows(1, 2), Epoch("query", 1))
        assert target.numbers() == [1, 2]

    def test_a_repeated_epoch_leaves_the_same_output(self, target: SinkTarget) -> None:
        _opened(target).write(numbered_rows(1, 2), Epoch("query", 0))
        _opened(target).write(numbered_rows(3, 2), Epoch("query", 1))
        after_crash = _opened(target)
        after_crash.write(numbered_rows(3, 2), Epoch("query", 1))
        repeated = [] if after_crash.capabilities.idempotent else [3, 4]
        assert target.numbers() == [1, 2, 3, 4, *repeated]
        after_crash.write(numbered_rows(5, 1), Epoch("query", 2))
        assert target.numbers() == [1, 2, 3, 4, *repeated, 5]

    def test_writers_do_not_disturb_each_other(self, target: SinkTarget) -> None:
        _opened(target).write(numbered_rows(1, 1), Epoch("first", 7))
        _opened(target).write(numbered_rows(2, 1), Epoch("second", 0))
        assert sorted(target.numbers()) == [1, 2]

    def test_columns_of_every_plain_type_can_be_written(self, target: SinkTarget) -> None:
        plain = numbered_rows(1, 2).append_column("flag", pa.array([True, None]))
        sink = target.sink()
        sink.open(Schema.from_arrow(plain.schema))
        sink.write(plain, Epoch("query", 0))
        assert target.numbers() == [1, 2]


def _opened(target: SinkTarget) -> Sink:
    sink = target.sink()
    sink.open(Schema.from_arrow(numbered_rows(1, 0).schema))
    return sink
