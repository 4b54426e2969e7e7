"""From a seed to a case of each kind: always the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from velostream.testing.fuzz.case import (
    LOOKUP,
    Append,
    Case,
    Commit,
    CreateFolded,
    CreateTable,
    CreateView,
    FeedSpec,
    Forget,
    Look,
    LookBack,
    Restart,
    Step,
    ViewSpec,
)
from velostream.testing.fuzz.changes import TableSpec, Writer, random_table
from velostream.testing.fuzz.lookups import LookupQueries
from velostream.testing.fuzz.queries import Queries
from velostream.testing.fuzz.streams import StreamQueries
from velostream.testing.fuzz.text import Column, Relation
from velostream.testing.fuzz.timed import VERSIONS, Clock, TimedQueries, timed_feed, untimed_rows
from velostream.testing.fuzz.values import DECLARED, TEXT, WHOLE, ColumnType, random_value

_VIEWS = 5
_STEPS = 6
_GENERAL_WAYS = (("velostream.maintain", "refresh"), (LOOKUP, "general"))
_SLOW_WAYS = ("narrowed", "general")
_HISTORY = " WITH ('history' = '1000')"
_GENERAL = 0.1
"""How often each of them is taken."""


def generate(seed: int) -> Case:
    """The case of a seed."""
    return _Generator(seed).case()


def generate_lookups(seed: int) -> Case:
    """The case of a seed in which a stream meets tables, the fast way and a general one side by side."""
    return _Generator(seed).lookups()


class _Generator:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(seed)  # noqa: S311 - no secret
        self._writer = Writer(self._random)
        self._steps: list[Step] = []
        self._relations: list[Relation] = []
        self._tables: list[TableSpec] = []
        self._folded: FeedSpec | None = None
        self._stream: FeedSpec | None = None
        self._feed_ids: list[int] = []
        self._timed: tuple[FeedSpec, ...] = ()
        self._clock = Clock(self._random)

    def case(self) -> Case:
        """Tables and rows, views over them, then changes; looked at somewhere on the way and at the end."""
        random = self._random
        for number in range(random.choice((1, 2, 2, 3))):
            self._table(f"t{number}")
        bases = tuple(self._relations)
        if random.random() < 0.25:
            self._fold()
        self._views()
        if random.random() < 0.35:
            self._stream = self._feed("s0")
            self._steps.append(self._append(self._stream))
            queries = StreamQueries(random, self._stream, bases)
            self._steps += [CreateView(queries.view(f"s{number}_view")) for number in range(random.randint(1, 2))]
        if random.random() < 0.3:
            self._time()
        looked_at, restarted = random.randrange(_STEPS - 1), random.choice((*range(_STEPS), *[-1] * 3 * _STEPS))
        for number in range(_STEPS):
            self._steps.append(self._change())
            if number == restarted:
                # Nothing waits for the views to have caught up.
                self._steps.append(Restart())
            if number == looked_at:
                self._steps.append(Look())
        self._steps.append(Look())
        self._look_back()
        settings = [setting for setting in _GENERAL_WAYS if random.random() < _GENERAL]
        return Case(self._seed, tuple(self._steps), tuple(settings))

    def lookups(self) -> Case:
        """Tables, a stream and views over both, each of them twice: rows are found through lookups, and by Spark."""
        random = self._random
        for number in range(random.choice((1, 2, 2, 3))):
            self._table(f"t{number}")
        self._stream = self._feed("s0", columns=3)
        self._steps.append(self._append(self._stream, most=12))
        lookups = LookupQueries(random, self._stream, self._relations)
        others = StreamQueries(random, self._stream, self._relations)
        for number in range(random.randint(3, 4)):
            view = (lookups if random.random() < 0.85 else others).view(f"s{number}")
            ways = ("fast", random.choice(_SLOW_WAYS))
            self._steps += [CreateView(replace(view, name=f"{view.name}_{way}", lookup=way)) for way in ways]
        restarted = random.choice((*range(_STEPS), *[-1] * _STEPS))
        for number in range(_STEPS):
            self._steps.append(self._append(self._stream, most=12) if random.random() < 0.5 else self._commit())
            if number == restarted:
                self._steps.append(Restart())
            if number in (_STEPS // 2, _STEPS - 1):
                self._steps.append(Look())
        # What they are after a restart.
        settings = ((LOOKUP, "general"),) if random.random() < 0.5 else ()
        return Case(self._seed, tuple(self._steps), settings)

    def _table(self, name: str) -> None:
        table = random_table(self._random, name)
        self._tables.append(table)
        self._steps.append(CreateTable(table))
        if self._random.random() < 0.9:
            self._steps.append(Commit((self._writer.insert(table, self._random.randint(1, 7)),)))
        self._relations.append(Relation(name, _columns(table.columns), table.key))

    def _fold(self) -> None:
        self._folded = self._feed("feed", folded="f0")
        self._steps += [self._append(self._folded), CreateFolded(self._folded)]
        self._relations.append(Relation("f0", _columns(self._folded.columns)))

    def _feed(self, name: str, *, columns: int = 2, folded: str | None = None) -> FeedSpec:
        """A feed of three columns that tables have, too, and of up to so many more."""
        more = range(self._random.randint(1, columns))
        types = {"id": WHOLE, "k": WHOLE, "g": TEXT} | {f"{name}_{n}": self._random.choice(DECLARED) for n in more}
        return FeedSpec(name, types, folded)

    def _look_back(self) -> None:
        """Have an older version compared, where the commits of all inputs are known."""
        views = [step.view for step in self._steps if isinstance(step, CreateView)]
        past = [view.name for view in views if view.options == _HISTORY]
        if past and self._folded is None:
            self._steps.append(LookBack(self._random.choice(past), self._random.random()))

    def _time(self) -> None:
        """Feeds with event times, a table of versions, and views over them."""
        self._tables.append(VERSIONS)
        self._steps += [CreateTable(VERSIONS), Commit((self._writer.insert(VERSIONS, self._random.randint(1, 6)),))]
        self._timed = (timed_feed(self._random, "e0", 1), timed_feed(self._random, "e1", 1))
        self._steps += [self._timed_append(feed) for feed in self._timed]
        queries = TimedQueries(self._random, *self._timed)
        self._steps += [CreateView(queries.view(f"e{number}_view")) for number in range(self._random.randint(1, 3))]

    def _timed_append(self, feed: FeedSpec) -> Append:
        return Append(feed, self._clock.set(feed, untimed_rows(self._random, feed)))

    def _views(self) -> None:
        """Views over tables; later ones read earlier ones now and then."""
        for number in range(self._random.randint(_VIEWS - 2, _VIEWS)):
            name = f"v{number}"
            query = Queries(self._random, self._relations).query()
            options = _HISTORY if self._random.random() < 0.3 else ""
            self._steps.append(CreateView(ViewSpec(name, query.text.ours, query.text.sparks, options=options)))
            if self._random.random() < 0.35:
                self._relations.append(Relation(name, query.columns))

    def _change(self) -> Step:
        if self._timed and self._random.random() < 0.5:
            return self._timed_append(self._random.choice(self._timed))
        drawn = self._random.random()
        if self._stream is not None and drawn < 0.35:
            return self._append(self._stream)
        if self._folded is not None and drawn < 0.6:
            return self._folded_change(self._folded)
        return self._commit()

    def _commit(self) -> Commit:
        count = self._random.choice((1, 1, 1, 2, 3))
        return Commit(tuple(self._writer.change(self._random.choice(self._tables)) for _ in range(count)))

    def _folded_change(self, feed: FeedSpec) -> Step:
        if self._random.random() < 0.3:
            return Forget(feed, (self._random.choice(self._feed_ids),))
        return self._append(feed)

    def _append(self, feed: FeedSpec, most: int = 5) -> Append:
        rows = []
        for _ in range(self._random.randint(1, most)):
            row = {name: random_value(self._random, column) for name, column in feed.columns.items()}
            if feed.folded is not None:
                row["id"] = self._random.randint(1, 6)
                self._feed_ids.append(row["id"])
            rows.append(row)
        return Append(feed, tuple(rows))


def _columns(types: Mapping[str, ColumnType]) -> tuple[Column, ...]:
    return tuple(Column(name, column.family) for name, column in types.items())
