"""Random tables, changes and queries: every view is what Spark answers, whatever the seed. `make fuzz` plays more."""

import pytest

from velostream.testing.fuzz.case import (
    Append,
    Case,
    Commit,
    CreateTable,
    CreateView,
    FeedSpec,
    Look,
    LookBack,
    ViewSpec,
)
from velostream.testing.fuzz.changes import Change, Kind, TableSpec
from velostream.testing.fuzz.generate import generate, generate_lookups
from velostream.testing.fuzz.player import Tally, play
from velostream.testing.fuzz.values import WHOLE

SEEDS, AT_ONCE = 12, 6
LOOKUP_SEEDS_AT_ONCE = 3


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_views_equal_their_queries(first):
    tally = Tally()
    for seed in range(first, first + AT_ONCE):
        failure = play(generate(seed), tally)
        assert failure is None, str(failure)
    assert tally.checks >= AT_ONCE * 5, f"too little was compared to prove anything: {tally}"
    assert len(tally.refused_by_spark) <= tally.views // 4, f"Spark refuses too many of the queries: {tally}"


@pytest.mark.parametrize("first", [0, LOOKUP_SEEDS_AT_ONCE])
def test_streams_that_ask_tables_equal_their_queries_both_ways(first):
    tally = Tally()
    for seed in range(first, first + LOOKUP_SEEDS_AT_ONCE):
        failure = play(generate_lookups(seed), tally)
        assert failure is None, str(failure)
    assert tally.checks >= LOOKUP_SEEDS_AT_ONCE * 10, f"too little was compared to prove anything: {tally}"
    assert tally.lookups >= tally.views // 4, f"too few of the queries have a fast way: {tally}"
    assert len(tally.refused_by_spark) <= tally.views // 4, f"Spark refuses too many of the queries: {tally}"


def test_any_exception_is_told_with_its_case():
    failure = play(Case(77, (Append(FeedSpec("s", {"id": WHOLE}, None), ({"id": object()},)),)))
    assert "# seed 77" in str(failure)
    assert "Traceback" in str(failure)


def test_a_view_is_looked_back_at_to_when_a_table_was_new():
    table = TableSpec("t", {"id": WHOLE}, ())
    view = ViewSpec("v", "SELECT id FROM t", "SELECT id FROM t", options=" WITH ('history' = '1000')")
    change = Commit((Change(table, Kind.INSERT, rows=({"id": 1},)),))
    tally = Tally()
    steps = (CreateTable(table), CreateView(view), Look(), change, Look(), LookBack("v", 1.0))
    failure = play(Case(1, steps), tally)
    assert failure is None, str(failure)
    assert tally.versions == 1
