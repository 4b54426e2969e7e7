"""Events of an auction house, drawn as Nexmark's public generator draws them: people, their auctions, and bids.

Of 50 events one is a person, three are auctions and 46 are bids. Half of the bids go to the hot auction of the moment,
three quarters come from its hot bidder, three quarters of the auctions are a hot seller's; the rest are spread over
those active lately, with some bids ahead of their auctions. What an event is follows from its number alone; the values
it holds are drawn by a seeded generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]

PERSON, AUCTION, BID = 0, 1, 2
PERSONS_OF_50, AUCTIONS_OF_50 = 1, 3
"""The rest are bids."""

_ROUND = 50
_FIRST_PERSON = _FIRST_AUCTION = 1000
_FIRST_CATEGORY, _CATEGORIES = 10, 5
_AUCTIONS_IN_FLIGHT, _ACTIVE_PEOPLE = 100, 1000
_LEAD = 10
"""How many of the people and auctions to come are already spoken of."""
_HOT_EVERY = 100
"""Of so many auctions, or people, one is hot."""
_HOT_AUCTION_RATIO, _HOT_BIDDER_RATIO, _HOT_SELLER_RATIO, _HOT_CHANNEL_RATIO = 2, 4, 4, 2
_CHANNELS = 10_000
_SHUFFLER = 953
"""Coprime to every size of a group that is no multiple of it, so that it permutes the group."""
_MICROSECOND = timedelta(microseconds=1)

_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

_TIME = pa.timestamp("us", "UTC")
_PERSON_FIELDS = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("emailAddress", pa.string()),
        ("creditCard", pa.string()),
        ("city", pa.string()),
        ("state", pa.string()),
        ("dateTime", _TIME),
        ("extra", pa.string()),
    ]
)
_AUCTION_FIELDS = pa.struct(
    [
        ("id", pa.int64()),
        ("itemName", pa.string()),
        ("description", pa.string()),
        ("initialBid", pa.int64()),
        ("reserve", pa.int64()),
        ("dateTime", _TIME),
        ("expires", _TIME),
        ("seller", pa.int64()),
        ("category", pa.int64()),
        ("extra", pa.string()),
    ]
)
_BID_FIELDS = pa.struct(
    [
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("channel", pa.string()),
        ("url", pa.string()),
        ("dateTime", _TIME),
        ("extra", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [("event_type", pa.int32()), ("person", _PERSON_FIELDS), ("auction", _AUCTION_FIELDS), ("bid", _BID_FIELDS)]
)
"""Of an event one of the three structs is there, as `event_type` says; the others are NULL."""


@dataclass(frozen=True, kw_only=True)
class Nexmark:
    """An endless sequence of events, any range of which can be had; the same arguments give the same rows."""

    seed: int = 0
    start: datetime = datetime(2024, 1, 1, tzinfo=UTC)
    events_per_second: int = 10_000
    """In event time. Up to a million, no two events have the same one."""
    disorder: int = 1
    """Events come out of order within groups of so many; not a multiple of 953."""

    def events(self, first: int, count: int) -> pa.Table:
        """The events at places `first` to `first + count - 1`, as rows of `SCHEMA`."""
        random = np.random.default_rng([self.seed, first])
        numbers = self._shuffled(np.arange(first, first + count, dtype=np.int64))
        places = numbers % _ROUND
        types = np.where(
            places < PERSONS_OF_50, PERSON, np.where(places < PERSONS_OF_50 + AUCTIONS_OF_50, AUCTION, BID)
        )
        drawn = (
            self._people(numbers[types == PERSON], random),
            self._auctions(numbers[types == AUCTION], random),
            self._bids(numbers[types == BID], random),
        )
        columns = [_spread(rows, types == kind) for kind, rows in enumerate(drawn)]
        return pa.table([pa.array(types, pa.int32()), *columns], schema=SCHEMA)

    def time_of(self, number: int) -> datetime:
        """The event time of the event of that number, which without disorder is its place."""
        return self.start + number * timedelta(seconds=1) / self.events_per_second

    def _shuffled(self, numbers: Numbers) -> Numbers:
        return numbers // self.disorder * self.disorder + numbers * _SHUFFLER % self.disorder

    def _microseconds(self, numbers: Numbers) -> Numbers:
        """Event times since the start."""
        return numbers * 1_000_000 // self.events_per_second

    def _times(self, microseconds: Numbers) -> pa.Array:
        start = (self.start - datetime.fromtimestamp(0, UTC)) // _MICROSECOND
        return pa.array(start + microseconds).cast(_TIME)

    def _people(self, numbers: Numbers, random: np.random.Generator) -> pa.StructArray:
        count = len(numbers)
        first_names, last_names = _some(_FIRST_NAMES, count, random), _some(_LAST_NAMES, count, random)
        cards = pc.utf8_lpad(pa.array(random.integers(0, 10**16, count)).cast(pa.string()), 16, "0")
        columns = [
            pa.array(_FIRST_PERSON + _last_person(numbers)),
            pc.binary_join_element_wise(first_names, last_names, " "),
            pc.binary_join_element_wise(pc.utf8_lower(first_names), _words(count, random), "@"),
            cards,
            _some(_CITIES, count, random),
            _some(_STATES, count, random),
            self._times(self._microseconds(numbers)),
            _words(count, random),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(_PERSON_FIELDS))

    def _auctions(self, numbers: Numbers, random: np.random.Generator) -> pa.StructArray:
        count = len(numbers)
        last_person = _last_person(numbers)
        sellers = np.where(
            random.integers(0, _HOT_SELLER_RATIO, count) > 0,
            last_person // _HOT_EVERY * _HOT_EVERY,
            _active_person(last_person, random),
        )
        initial = _prices(count, random)
        times = self._microseconds(numbers)
        in_flight = _AUCTIONS_IN_FLIGHT * _ROUND // AUCTIONS_OF_50
        horizon = self._microseconds(numbers + in_flight) - times
        columns = [
            pa.array(_FIRST_AUCTION + _last_auction(numbers)),
            _words(count, random),
            pc.binary_join_element_wise(_words(count, random), _words(count, random), " "),
            pa.array(initial),
            pa.array(initial + _prices(count, random)),
            self._times(times),
            self._times(times + 1 + random.integers(0, np.maximum(horizon * 2, 1))),
            pa.array(_FIRST_PERSON + sellers),
            pa.array(_FIRST_CATEGORY + random.integers(0, _CATEGORIES, count)),
            _words(count, random),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(_AUCTION_FIELDS))

    def _bids(self, numbers: Numbers, random: np.random.Generator) -> pa.StructArray:
        count = len(numbers)
        last_auction, last_person = _last_auction(numbers), _last_person(numbers)
        oldest = np.maximum(last_auction - _AUCTIONS_IN_FLIGHT, 0)
        auctions = np.where(
            random.integers(0, _HOT_AUCTION_RATIO, count) > 0,
            last_auction // _HOT_EVERY * _HOT_EVERY,
            oldest + random.integers(0, last_auction - oldest + 1 + _LEAD),
        )
        bidders = np.where(
            random.integers(0, _HOT_BIDDER_RATIO, count) > 0,
            last_person // _HOT_EVERY * _HOT_EVERY + 1,
            _active_person(last_person, random),
        )
        channels, urls = _channels(count, random)
        columns = [
            pa.array(_FIRST_AUCTION + auctions),
            pa.array(_FIRST_PERSON + bidders),
            pa.array(_prices(count, random)),
            channels,
            urls,
            self._times(self._microseconds(numbers)),
            _words(count, random),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(_BID_FIELDS))


def _last_person(numbers: Numbers) -> Numbers:
    """The number of the newest person at each event, counted from zero."""
    people: Numbers = numbers // _ROUND * PERSONS_OF_50 + np.minimum(numbers % _ROUND, PERSONS_OF_50 - 1)
    return people


def _last_auction(numbers: Numbers) -> Numbers:
    """The number of the newest auction at each event, counted from zero; minus one ahead of the first."""
    so_far = np.clip(numbers % _ROUND - PERSONS_OF_50, -1, AUCTIONS_OF_50 - 1)
    auctions: Numbers = numbers // _ROUND * AUCTIONS_OF_50 + so_far
    return auctions


def _active_person(last: Numbers, random: np.random.Generator) -> Numbers:
    people = last + 1
    active = np.minimum(people, _ACTIVE_PEOPLE)
    return people - active + random.integers(0, active + _LEAD)


def _prices(count: int, random: np.random.Generator) -> Numbers:
    """As many low ones as high ones, on a scale of magnitudes."""
    return np.rint(10.0 ** (random.random(count) * 6.0) * 100.0).astype(np.int64)


def _channels(count: int, random: np.random.Generator) -> tuple[pa.Array, pa.Array]:
    """Channels of bids and the addresses they came by: those of the four hot channels don't name theirs."""
    hot = random.integers(0, _HOT_CHANNEL_RATIO, count) > 0
    numbers = pa.array(random.integers(0, _CHANNELS, count)).cast(pa.string())
    names = pc.if_else(
        pa.array(hot), _some(_HOT_CHANNELS, count, random), pc.binary_join_element_wise("channel", numbers, "-")
    )
    folders = [_words(count, random) for _ in range(3)]
    pages = pc.binary_join_element_wise("https://www.nexmark.com", *folders, "item.htm?query=1", "/")
    named = pc.binary_join_element_wise(pages, numbers, "&channel_id=")
    return names, pc.if_else(pa.array(hot), pages, named)


def _some(values: Sequence[str], count: int, random: np.random.Generator) -> pa.Array:
    return pa.array(values).take(pa.array(random.integers(0, len(values), count)))


def _words(count: int, random: np.random.Generator, length: int = 6) -> pa.Array:
    letters = random.integers(ord(_LETTERS[0]), ord(_LETTERS[-1]) + 1, (count, length), dtype=np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * length
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters.tobytes()))


def _spread(rows: pa.StructArray, there: npt.NDArray[np.bool_]) -> pa.Array:
    """A column that holds the rows, in order, at the places where they are, and NULL at all others."""
    return rows.take(pa.array(np.where(there, np.cumsum(there) - 1, 0), mask=~there))
