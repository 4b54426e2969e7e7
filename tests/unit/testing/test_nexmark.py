"""Events of the auction house: what the public model says of them."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pyarrow.compute as pc

from velostream.testing.nexmark import AUCTION, BID, PERSON, SCHEMA, Nexmark

EVENTS = Nexmark(seed=5).events(0, 50_000)


def of(kind):
    return pc.drop_null(EVENTS[kind]).to_pylist()


def test_one_person_three_auctions_and_46_bids_of_50():
    assert Counter(EVENTS["event_type"].to_pylist()) == {PERSON: 1_000, AUCTION: 3_000, BID: 46_000}
    assert [len(of(kind)) for kind in ("person", "auction", "bid")] == [1_000, 3_000, 46_000]
    assert EVENTS.schema == SCHEMA


def test_ids_count_up_and_all_times_differ():
    for kind, count in (("person", 1_000), ("auction", 3_000)):
        assert [row["id"] for row in of(kind)] == list(range(1000, 1000 + count))
    times = [row["dateTime"] for kind in ("person", "auction", "bid") for row in of(kind)]
    assert len(set(times)) == len(times)
    assert max(times) == Nexmark().time_of(49_999)


def test_half_of_the_bids_go_to_hot_auctions_and_some_come_ahead_of_theirs():
    opened = {row["id"]: row for row in of("auction")}
    bids = of("bid")
    hot = sum(bid["auction"] % 100 == 0 for bid in bids)
    assert 0.49 < hot / len(bids) < 0.53
    ahead = [bid for bid in bids if bid["auction"] in opened and opened[bid["auction"]]["dateTime"] > bid["dateTime"]]
    assert 0 < len(ahead) < len(bids) / 10
    assert all(row["dateTime"] < row["expires"] for row in opened.values())


def test_the_same_arguments_give_the_same_rows():
    assert Nexmark(seed=5).events(0, 50_000).equals(EVENTS)
    assert not Nexmark(seed=6).events(0, 50_000).equals(EVENTS)


def test_disorder_moves_events_within_their_group_only():
    shuffled = Nexmark(disorder=20, events_per_second=100)
    assert shuffled.events(0, 1_000)["event_type"].to_pylist() != Nexmark().events(0, 1_000)["event_type"].to_pylist()
    for first in range(0, 1_000, 20):
        times = {
            row[kind]["dateTime"]
            for row in shuffled.events(first, 20).to_pylist()
            for kind in ("person", "auction", "bid")
            if row[kind] is not None
        }
        assert min(times) == shuffled.time_of(first)
        assert max(times) - min(times) == timedelta(seconds=0.19)
        assert len(times) == 20
