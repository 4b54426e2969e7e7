"""Random queries over streams by event time: windows, joins of two streams, and the versions of a table at a time.

Rows come late by less than the watermark allows, so that whatever the batches were, a batch of all rows gives the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from random import Random

from velostream.testing.fuzz.aggregates import aggregate
from velostream.testing.fuzz.case import FeedSpec, ViewSpec
from velostream.testing.fuzz.changes import Row, TableSpec
from velostream.testing.fuzz.expressions import Expressions, Scope, scope_of
from velostream.testing.fuzz.text import Column, Expression, Text, joined, sql
from velostream.testing.fuzz.values import FIRST_INSTANT, INSTANT, TEXT, WHOLE, Family, random_value

TIME = "ts"
VERSIONS = TableSpec("h0", {"id": WHOLE, "k": WHOLE, "g": TEXT, "valid": INSTANT}, ("id",))
"""A table of versions, each from a time on."""

_LATENESS = 60
_WATERMARK = f"'watermark' = '{_LATENESS}s'"
_STEPS = (0, 7, 61, 299, 300, 301, 700, 86_400)
"""Seconds by which time moves on from row to row: around the lengths of windows and bounds, and a day."""
_WINDOWS = (
    ("TUMBLING(ts, 5m)", "window(a.ts, '5 minutes')", "window"),
    ("SLIDING(ts, 10m, 5m)", "window(a.ts, '10 minutes', '5 minutes')", "window"),
    ("SESSION(ts, 5m)", "session_window(a.ts, '5 minutes')", "session_window"),
)
_JOINS = ("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
_RANGES = (
    "b.ts BETWEEN a.ts AND a.ts + INTERVAL '5' MINUTE",
    "a.ts >= b.ts - INTERVAL '61' SECOND AND a.ts < b.ts + INTERVAL '10' MINUTE",
    "a.ts = b.ts",
)


class Clock:
    """Gives the rows of timed feeds their times."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._newest: dict[str, int] = {}

    def set(self, feed: FeedSpec, rows: Sequence[Row]) -> tuple[Row, ...]:
        """The rows of one batch with times, as late as they may be; some have none."""
        before = now = self._newest.get(feed.name, 0)
        found: list[Row] = []
        for row in rows:
            now += self._random.choice(_STEPS)
            late = before - self._random.randrange(_LATENESS)
            seconds = late if self._random.random() < 0.2 else now
            ts = None if self._random.random() < 0.05 else FIRST_INSTANT + timedelta(seconds=seconds)
            found.append({**row, TIME: ts})
        times = [row[TIME] for row in found if row[TIME] is not None]
        newest = max(((time - FIRST_INSTANT) // timedelta(seconds=1) for time in times), default=before)
        self._newest[feed.name] = max(before, newest)
        return tuple(found)


class TimedQueries:
    """Draws queries over two feeds with event times and the table of versions."""

    def __init__(self, random: Random, first: FeedSpec, second: FeedSpec) -> None:
        self._random = random
        self._first = first
        self._second = second
        self._plain = Expressions(random)

    def view(self, name: str) -> ViewSpec:
        shapes = (self._windowed, self._joined, self._as_of)
        return self._random.choices(shapes, (4, 5, 2))[0](name)

    def _windowed(self, name: str) -> ViewSpec:
        """Groups by a window, shown at every change, or once the watermark is past it."""
        scope = self._scope("a", self._first)
        clause, call, word = self._random.choice(_WINDOWS)
        groups = self._random.sample([one for one in scope if one.text.ours in ("a.`k`", "a.`g`")], 1)
        groups = groups if self._random.random() < 0.7 else []
        measures = [aggregate(self._random, self._plain, scope) for _ in range(self._random.randint(1, 3))]
        bounds = [Expression(Text(f"_window_{field}", f"{word}.{field}"), Family.INSTANT) for field in ("start", "end")]
        where = sql("{}", self._plain.condition(scope, 1)) if self._random.random() < 0.3 else Text.of("TRUE")
        text = sql(
            "SELECT {} FROM {} WHERE {} GROUP BY {}",
            _listed([*groups, *bounds, *measures]),
            self._origin("a", self._first),
            Text(where.ours, f"{where.sparks} AND a.ts IS NOT NULL"),
            joined(", ", [*(one.text for one in groups), Text("", call)]),
        )
        final = self._random.random() < 0.5
        newest = f"(SELECT MAX(a.ts) - INTERVAL '{_LATENESS}' SECOND FROM {self._first.name} AS a WHERE {where.sparks})"
        sparks = text.sparks + (f" HAVING {word}.end <= {newest}" if final else "")
        grouping = text.ours.removesuffix(", ").removesuffix(" GROUP BY ")
        emit = "EMIT FINAL" if final else "EMIT CHANGES"
        return ViewSpec(name, grouping, sparks, options=f" WINDOW {clause} {emit} WITH ({_WATERMARK})", timed=True)

    def _joined(self, name: str) -> ViewSpec:
        """Two streams, or one with itself, joined within a time; rows are forgotten where there is a watermark."""
        second = self._first if self._random.random() < 0.15 else self._second
        left, right = self._scope("a", self._first), self._scope("b", second)
        kind = self._random.choice(_JOINS)
        condition = Text.of(self._random.choice(("a.k = b.k", "a.k = b.k", "a.g = b.g", "a.k = b.k AND a.g = b.g")))
        if self._random.random() < 0.15:
            condition = sql("{} AND {}", condition, self._plain.condition([*left, *right], 2))
        options = [_WATERMARK] if self._random.random() < 0.75 else []
        if self._random.random() < 0.4:
            condition = Text(
                condition.ours,
                f"{condition.sparks} AND a.ts BETWEEN b.ts - INTERVAL '300' SECOND AND b.ts + INTERVAL '300' SECOND",
            )
            within, options = Text(" WITHIN 5m", ""), [*options, "'event.time.field' = 'ts'"]
        else:
            within, condition = Text.of(""), sql("{} AND {}", condition, self._random.choice(_RANGES))
        origin = sql(
            "{} {} {}{} ON {}", self._origin("a", self._first), kind, self._origin("b", second), within, condition
        )
        scope = left if kind.startswith(("LEFT SEMI", "LEFT ANTI")) else [*left, *right]
        text = self._over(scope, origin)
        return ViewSpec(
            name, text.ours, text.sparks, options=f" WITH ({', '.join(options)})" if options else "", timed=True
        )

    def _over(self, scope: Scope, origin: Text) -> Text:
        """Rows of a join, or groups of them."""
        if self._random.random() < 0.65:
            items = [self._plain.any_value(scope) for _ in range(self._random.randint(1, 4))]
            return sql("SELECT {} FROM {}", _listed(items), origin)
        group = self._random.choice([one for one in scope if one.text.ours.endswith((".`k`", ".`g`"))])
        measures = [aggregate(self._random, self._plain, scope) for _ in range(self._random.randint(1, 2))]
        return sql("SELECT {} FROM {} GROUP BY {}", _listed([group, *measures]), origin, group.text)

    def _as_of(self, name: str) -> ViewSpec:
        """The nearest version of the table before or after each row; of several from one time only that is told."""
        comparison, nearest = self._random.choice(((">=", "MAX"), (">", "MAX"), ("<=", "MIN"), ("<", "MIN")))
        outer = self._random.random() < 0.5
        items = [self._plain.any_value(self._scope("a", self._first)) for _ in range(self._random.randint(1, 2))]
        ours = (
            f"SELECT {_listed(items).ours}, b.valid AS found FROM {self._origin('a', self._first).ours} "
            f"ASOF {'LEFT ' if outer else ''}JOIN {VERSIONS.name} AS b "
            f"MATCH_CONDITION (a.ts {comparison} b.valid) ON a.k = b.k"
        )
        condition = f"b.k = a.k AND a.ts {comparison} b.valid"
        version = f"(SELECT {nearest}(b.valid) FROM {VERSIONS.name} AS b WHERE {condition})"
        sparks = f"SELECT {_listed(items).sparks}, {version} AS found FROM {self._first.name} AS a"
        sparks = sparks if outer else f"SELECT * FROM ({sparks}) WHERE found IS NOT NULL"
        return ViewSpec(name, ours, sparks, self._first, sparks)

    @staticmethod
    def _scope(alias: str, feed: FeedSpec) -> list[Expression]:
        return scope_of(alias, [Column(name, column.family) for name, column in feed.columns.items()])

    @staticmethod
    def _origin(alias: str, feed: FeedSpec) -> Text:
        return Text(f"memory://{feed.name} AS {alias}", f"{feed.name} AS {alias}")


def timed_feed(random: Random, name: str, columns: int) -> FeedSpec:
    """A feed whose rows have an event time."""
    more = {f"{name}_{number}": random.choice((WHOLE, TEXT)) for number in range(columns)}
    return FeedSpec(name, {"id": WHOLE, "k": WHOLE, "g": TEXT, TIME: INSTANT, **more})


def untimed_rows(random: Random, feed: FeedSpec) -> list[Row]:
    """Rows of a feed before they get their times."""
    return [
        {name: None if name == TIME else random_value(random, column) for name, column in feed.columns.items()}
        for _ in range(random.randint(1, 5))
    ]


def _listed(items: Sequence[Expression]) -> Text:
    return joined(", ", (sql(f"{{}} AS v{number}", one.text) for number, one in enumerate(items)))
