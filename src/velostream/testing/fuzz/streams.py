"""Random queries over a stream: joined with tables as they are when a batch comes, filtered by them, aggregated."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from velostream.testing.fuzz.aggregates import aggregate
from velostream.testing.fuzz.case import FeedSpec, ViewSpec
from velostream.testing.fuzz.expressions import Expressions, scope_of
from velostream.testing.fuzz.text import Column, Expression, Relation, Text, joined, sql
from velostream.testing.fuzz.values import ORDERED, Family

BATCHES = "batches"
"""What Spark's answers to all batches are called when they are aggregated."""

_AS_OF_BATCH = {"JOIN": "JOIN", "LEFT JOIN": "LEFT JOIN", "RIGHT JOIN": "JOIN", "FULL JOIN": "LEFT JOIN"}
"""Rows of a table that the stream hasn't matched can't be known, so nothing is made of them."""


class StreamQueries:
    """Draws queries over a feed and tables."""

    def __init__(self, random: Random, feed: FeedSpec, tables: Sequence[Relation]) -> None:
        self._random = random
        self._feed = feed
        self._tables = tables
        self._expressions = Expressions(random, tables)
        self._plain = Expressions(random)

    def view(self, name: str) -> ViewSpec:
        return self._aggregated(name) if self._random.random() < 0.4 else self._mapped(name)

    def _mapped(self, name: str) -> ViewSpec:
        scope, origin = self._origin(tuple(_AS_OF_BATCH))
        items = [self._item(scope) for _ in range(self._random.randint(1, 4))]
        listed = joined(", ", (sql(f"{{}} AS v{number}", item.text) for number, item in enumerate(items)))
        text = sql("SELECT {} FROM {}{}", listed, origin, self._where(scope))
        return ViewSpec(name, text.ours, text.sparks, self._feed, text.sparks)

    def _aggregated(self, name: str) -> ViewSpec:
        """Groups over what the batches give. They are asked for the columns that the aggregates are about."""
        scope, origin = self._origin(("JOIN", "LEFT JOIN"))
        taken = {one.text.ours: one for one in (self._plain.any_value(scope, families=ORDERED) for _ in range(4))}
        columns = [Column(f"x{number}", one.family, one.wide) for number, one in enumerate(taken.values())]
        fed = scope_of(BATCHES, columns)
        groups = [one for one in fed if one.family is not Family.FLOAT][: self._random.choice((0, 1, 1, 2))]
        measures = [aggregate(self._random, self._plain, fed) for _ in range(self._random.randint(1, 3))]
        where = self._where(scope)
        listed = joined(", ", (sql(f"{{}} AS v{number}", one.text) for number, one in enumerate([*groups, *measures])))
        grouping = sql(" GROUP BY {}", joined(", ", (one.text for one in groups))) if groups else Text.of("")
        having = Text.of(f" HAVING COUNT(*) > {self._random.randint(1, 2)}" if self._random.random() < 0.2 else "")
        text = sql("SELECT {} FROM {}{}{}{}", listed, origin, where, grouping, having)
        for reference, one in zip(fed, taken.values(), strict=True):
            text = Text(
                text.ours.replace(reference.text.ours, one.text.ours),
                text.sparks.replace(reference.text.ours, one.text.sparks),
            )
        items = joined(
            ", ", (sql(f"{{}} AS {column.name}", one.text) for one, column in zip(taken.values(), columns, strict=True))
        )
        per_batch = sql("SELECT {} FROM {}{}", items, origin, where)
        of_batches = sql("SELECT {} FROM {}{}{}", listed, BATCHES, grouping, having)
        return ViewSpec(name, text.ours, text.sparks, self._feed, per_batch.sparks, of_batches.sparks)

    def _origin(self, kinds: Sequence[str]) -> tuple[list[Expression], Text]:
        feed = self._feed
        columns = [Column(name, column.family) for name, column in feed.columns.items()]
        scope, origin = scope_of("a", columns), Text(f"memory://{feed.name} AS a", f"{feed.name} AS a")
        for alias in ("b", "c")[: self._random.choice((0, 1, 1, 2))]:
            table = self._random.choice(self._tables)
            other = scope_of(alias, table.columns)
            pair = self._plain.same([one for one in scope if one.text.ours.startswith("a.")], other)
            if pair is None:
                continue
            condition = sql("{} = {}", pair[0].text, pair[1].text)
            if self._random.random() < 0.25:
                condition = sql("{} AND {}", condition, self._plain.condition([*scope, *other], 1))
            kind = self._random.choice(kinds)
            join = Text(kind, _AS_OF_BATCH[kind])
            origin = sql(f"{{}} {{}} {table.name} AS {alias} ON {{}}", origin, join, condition)
            scope = [*scope, *other]
        return scope, origin

    def _item(self, scope: Sequence[Expression]) -> Expression:
        drawn = self._random.random()
        if drawn < 0.12:
            return self._expressions.scalar(scope)
        if drawn < 0.24:
            return Expression(self._expressions.subquery(scope), Family.TRUTH)
        return self._plain.any_value(scope)

    def _where(self, scope: Sequence[Expression]) -> Text:
        return sql(" WHERE {}", self._expressions.condition(scope)) if self._random.random() < 0.55 else Text.of("")
