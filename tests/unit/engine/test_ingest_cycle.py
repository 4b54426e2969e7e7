"""Which range each statement of a shared ingest is given, when some of them have trouble."""

from __future__ import annotations

from types import SimpleNamespace

from velostream.engine.consumer import Intent
from velostream.engine.ingest import Ingest
from velostream.engine.trigger import Pace


class Numbers:
    """A source of numbers, thirty of them."""

    def latest_offset(self, start, *, max_rows=None):
        return 30

    def reached(self, position, target):
        return position >= target

    def commit(self, end):
        pass


class Statement:
    """A consumer that notes the ranges it committed, and has trouble with those it is told to."""

    def __init__(self, position, *, trouble=(), intent=None) -> None:
        self.position = position
        self.dead = False
        self.ready_at = 0
        self.pace = Pace()
        self.aim = self.stops_at = None
        self.rests = self.lacks_columns = self.found_nothing = False
        self.board = SimpleNamespace(state=None)
        self.ranges = []
        self._trouble = trouble
        self._intent = intent
        self._resting = False

    def runnable(self):
        return not self._resting

    def intended(self):
        return self._intent if self._intent is not None and self.position < self._intent.end else None

    def take(self, start, end):
        if (start, end) in self._trouble:
            self._resting = True
            return
        self.ranges.append((start, end))
        self.position = end


def cycle(*statements):
    """One cycle of an ingest whose batches do no more than tell their statements the range."""
    ingest = Ingest.__new__(Ingest)
    ingest.source = Numbers()
    ingest._max_rows = 500
    ingest._consumers = list(statements)
    ingest._settle = lambda _consumer: None

    def batch(start, end, members, at=None):
        for member in members:
            member.take(start, end)

    ingest._batch = batch
    ingest._cycle()


def test_those_that_catch_up_go_on_together():
    behind, ahead = Statement(10), Statement(20)
    cycle(behind, ahead)
    assert behind.ranges == [(10, 20), (20, 30)]
    assert ahead.ranges == [(20, 30)]


def test_a_statement_that_could_not_take_a_range_is_not_given_the_next_one():
    fine, troubled, ahead = Statement(10), Statement(10, trouble=[(10, 20)]), Statement(20)
    cycle(fine, troubled, ahead)
    assert fine.ranges == [(10, 20), (20, 30)]
    assert (troubled.ranges, troubled.position) == ([], 10)


def test_what_was_begun_before_a_crash_is_repeated_as_it_was_or_not_at_all():
    repeated = Statement(10, intent=Intent(15, 1))
    cycle(repeated)
    assert repeated.ranges == [(10, 15), (15, 30)]
    failing = Statement(10, intent=Intent(15, 1), trouble=[(10, 15)])
    cycle(failing)
    assert failing.ranges == []
