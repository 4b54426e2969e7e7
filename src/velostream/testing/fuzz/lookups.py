"""Random queries over a stream that ask tables about each of its rows: joins and subqueries of every form and place."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from velostream.testing.fuzz.case import FeedSpec, ViewSpec
from velostream.testing.fuzz.expressions import Expressions, Scope, scope_of
from velostream.testing.fuzz.text import Column, Expression, Relation, Text, joined, sql
from velostream.testing.fuzz.values import ORDERED, Family

_KEYS = (Family.WHOLE, Family.DECIMAL, Family.TEXT, Family.DAY, Family.INSTANT, Family.TRUTH, Family.FLOAT)
"""What rows may be found by; lookups take no floats, so these test that they are refused."""
_JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
_STREAM_LEFT = {"JOIN": "JOIN", "LEFT JOIN": "LEFT JOIN", "RIGHT JOIN": "JOIN", "FULL JOIN": "LEFT JOIN"}
_STREAM_RIGHT = {"JOIN": "JOIN", "LEFT JOIN": "JOIN", "RIGHT JOIN": "RIGHT JOIN", "FULL JOIN": "RIGHT JOIN"}
"""Rows of a table that the stream hasn't matched can't be known, so nothing is made of them."""
_POLICIES = {"nulls": "LEFT JOIN", "skip": "JOIN"}
_AGGREGATES: Sequence[tuple[str, Sequence[Family], Family | None]] = (
    ("COUNT(*)", (), Family.WHOLE),
    ("COUNT({})", ORDERED, Family.WHOLE),
    ("COUNT(DISTINCT {})", (Family.WHOLE, Family.TEXT, Family.DECIMAL), Family.WHOLE),
    ("SUM({})", (Family.WHOLE, Family.DECIMAL), None),
    ("SUM({}) + 1", (Family.WHOLE,), Family.WHOLE),
    ("coalesce(SUM({}), 0)", (Family.WHOLE, Family.DECIMAL), None),
    ("COUNT(*) - COUNT({})", ORDERED, Family.WHOLE),
    ("AVG({})", (Family.DECIMAL,), None),
    ("AVG({})", (Family.WHOLE, Family.FLOAT), Family.APPROXIMATE),
    ("MIN({})", ORDERED, None),
    ("MAX({})", ORDERED, None),
    ("MAX({})", ORDERED, None),
    ("bool_or({})", (Family.TRUTH,), Family.TRUTH),
)


class LookupExpressions(Expressions):
    """Expressions whose subqueries mostly are about the rows that equal columns find."""

    def __init__(self, random: Random, relations: Sequence[Relation]) -> None:
        super().__init__(random, relations)
        self._simple = Expressions(random)
        self._keys = {relation.name: relation.key for relation in relations}

    def scalar(self, scope: Scope, family: Family | None = None) -> Expression:
        inner, source, alias = self._inner()
        columns = [one for one in inner if one.family is family] if family else list(inner)
        found = self._by_key(scope, inner, self._keys[source])
        shown = [one for one in columns if one.family in ORDERED]
        if found and shown and self._random.random() < 0.5:
            column = self._random.choice(shown)
            where = joined(" AND ", self._and_more(found, inner, scope))
            ours = self._random.choice(("SELECT {} FROM {} {} WHERE {}", "SELECT MAX({}) FROM {} {} WHERE {}"))
            asked = sql(f"({ours})", column.text, source, alias, where).ours
            # Spark wants an aggregate, though there is one row at most.
            right = sql("(SELECT MIN({}) FROM {} {} WHERE {})", column.text, source, alias, where).sparks
            return Expression(Text(asked, right), column.family, column.wide)
        return self._aggregated(scope, family, inner, sql("{} {}", source, alias))

    def _aggregated(self, scope: Scope, family: Family | None, inner: Scope, origin: Text) -> Expression:
        """A scalar that is about all rows found, and so about none as well."""
        where = self._correlation(scope, inner)
        fitting = [
            (form, one)
            for form, taken, given in _AGGREGATES
            for one in (inner if taken else inner[:1])
            if not taken or one.family in taken
            if family in (None, given or one.family)
        ]
        if not fitting:
            if family is None or family in (Family.WHOLE, Family.DECIMAL):
                return Expression(sql("(SELECT COUNT(*) FROM {}{})", origin, where), Family.WHOLE)
            return Expression(sql("(SELECT MAX({}) FROM {}{})", self.literal(family).text, origin, where), family)
        form, column = self._random.choice(fitting)
        given = next(given for name, taken, given in _AGGREGATES if name == form and column.family in (taken or _KEYS))
        found = Expression(sql(form, column.text), given or column.family, wide=True)
        return Expression(sql("(SELECT {} FROM {}{})", found.text, origin, where), found.family, found.wide)

    def same(self, first: Scope, second: Scope) -> tuple[Expression, Expression] | None:
        pairs = [(one, other) for one in first for other in second if _comparable(one, other)]
        named = [pair for pair in pairs if _name(pair[0]) == _name(pair[1])]
        if named and self._random.random() < 0.5:
            return self._random.choice(named)
        return self._random.choice(pairs) if pairs else None

    def equal(self, scope: Scope, inner: Scope) -> Text | None:
        """An equality that may find rows: of a column, or of what is made of one, written either way round."""
        pair = self.same(scope, inner)
        if pair is None:
            return None
        outer = pair[0].text
        if self._random.random() < 0.15:
            forms = {
                Family.TEXT: "upper({})",
                Family.WHOLE: "CAST({} AS BIGINT)",
                Family.DECIMAL: "CAST({} AS DECIMAL(12, 4))",
            }
            outer = sql(forms.get(pair[0].family, "{}"), outer)
        sides = (pair[1].text, outer) if self._random.random() < 0.5 else (outer, pair[1].text)
        return sql("{} = {}", *sides)

    def _correlation(self, scope: Scope, inner: Scope) -> Text:
        drawn = self._random.random()
        alias = inner[0].text.ours.partition(".")[0]
        name = next(one.name for one in self._relations if _is_of(inner, one, alias))
        conditions: list[Text] = []
        if drawn < 0.35:
            conditions = self._by_key(scope, inner, self._keys[name])
        if not conditions and drawn < 0.85:
            equalities = (self.equal(scope, inner) for _ in range(self._random.choice((1, 1, 2))))
            conditions = [one for one in equalities if one is not None]
        conditions = self._and_more(conditions, inner, scope)
        return sql(" WHERE {}", joined(" AND ", conditions)) if conditions else Text.of("")

    def _by_key(self, scope: Scope, inner: Scope, key: Sequence[str]) -> list[Text]:
        """Equalities with all columns of a key, so that there is at most one row; none if there is no such key."""
        found = [self.equal(scope, [one for one in inner if _name(one) == f"`{name}`"]) for name in key]
        conditions = [one for one in found if one is not None]
        return conditions if len(conditions) == len(key) else []

    def _and_more(self, conditions: list[Text], inner: Scope, scope: Scope) -> list[Text]:
        """Perhaps with a condition about the table alone, or one that compares it with the stream."""
        drawn, more = self._random.random(), list(conditions)
        if drawn < 0.3:
            more.append(self._simple.condition(inner, 1))
        if 0.2 < drawn < 0.4 and (pair := self.same(scope, inner)):
            more.append(sql(f"{{}} {self._random.choice(('<', '<>', '>='))} {{}}", pair[1].text, pair[0].text))
        return more


class LookupQueries:
    """Draws queries over a feed whose rows meet tables."""

    def __init__(self, random: Random, feed: FeedSpec, tables: Sequence[Relation]) -> None:
        self._random = random
        self._feed = feed
        self._tables = tables
        self._expressions = LookupExpressions(random, tables)
        self._plain = Expressions(random)

    def view(self, name: str) -> ViewSpec:
        self._options: list[str] = []
        scope, origin = self._origin()
        items = [self._plain.any_value(scope) for _ in range(self._random.randint(1, 2))]
        items += [self._answer(scope) for _ in range(self._random.choice((0, 1, 1, 2)))]
        self._random.shuffle(items)
        listed = joined(", ", (sql(f"{{}} AS v{number}", item.text) for number, item in enumerate(items)))
        where = sql(" WHERE {}", self._condition(scope)) if self._random.random() < 0.45 else Text.of("")
        text = sql("SELECT {} FROM {}{}", listed, origin, where)
        options = f" WITH ({', '.join(self._options)})" if self._options else ""
        return ViewSpec(name, text.ours, text.sparks, self._feed, text.sparks, options=options)

    def _origin(self) -> tuple[list[Expression], Text]:
        stream = Text(f"memory://{self._feed.name} AS a", f"{self._feed.name} AS a")
        scope = scope_of("a", [Column(name, column.family) for name, column in self._feed.columns.items()])
        origin, count = stream, self._random.choice((0, 0, 0, 1, 1, 2))
        for number, alias in enumerate(("b", "c", "d")[:count]):
            table = self._random.choice(self._tables)
            other = scope_of(alias, table.columns)
            condition = self._join_condition(scope, other, table)
            if condition is None:
                continue
            kind = self._random.choice(_JOINS)
            if number == 0 and self._random.random() < 0.15:
                join = Text(kind, _STREAM_RIGHT[kind])
                origin = sql(f"{table.name} AS {alias} {{}} {{}} {{}}", join, stream, condition)
            else:
                join = Text(kind, self._with_policy(alias, kind, condition))
                origin = sql(f"{{}} {{}} {table.name} AS {alias} {{}}", origin, join, condition)
            scope = [*scope, *other]
        return scope, origin

    def _with_policy(self, alias: str, kind: str, condition: Text) -> str:
        """What a join is to Spark; by a policy for missing rows now and then."""
        if self._random.random() < 0.15 and kind in ("JOIN", "LEFT JOIN") and " AND " not in condition.ours:
            policy = self._random.choice(tuple(_POLICIES))
            self._options.append(f"'{alias}.join.missing' = '{policy}'")
            return _POLICIES[policy]
        return _STREAM_LEFT[kind]

    def _join_condition(self, scope: Scope, other: Scope, table: Relation) -> Text | None:
        if self._random.random() < 0.1 and {one.text.ours.split(".")[0] for one in scope} == {"a"}:
            return Text.of(f"USING ({self._random.choice(('k', 'g', 'id, k'))})")
        outer = scope if self._random.random() < 0.3 else [one for one in scope if one.text.ours.startswith("a.")]
        names = table.key if self._random.random() < 0.6 else ()
        found = [
            self._expressions.equal(outer, [one for one in other if _name(one) == f"`{name}`"]) for name in names
        ] or [self._expressions.equal(outer, other) for _ in range(self._random.choice((1, 1, 2)))]
        conditions = [one for one in found if one is not None]
        if not conditions:
            return None
        if self._random.random() < 0.1:
            conditions.append(self._plain.condition([*scope, *other], 1))
        return sql("ON {}", joined(" AND ", conditions))

    def _answer(self, scope: Scope) -> Expression:
        """Something that a subquery says, as it is or within more."""
        drawn = self._random.random()
        if drawn < 0.35:
            found = self._expressions.scalar(scope)
            if drawn < 0.06:
                return Expression(sql("({} IS NULL)", found.text), Family.TRUTH)
            return found
        truth = self._expressions.subquery(scope)
        if drawn < 0.6:
            column = self._random.choice(scope)
            return Expression(sql("CASE WHEN {} THEN {} END", truth, column.text), column.family, column.wide)
        forms = ("{}", "{}", "({} IS NULL)", "(NOT {})", "coalesce({}, FALSE)")
        return Expression(sql(self._random.choice(forms), truth), Family.TRUTH)

    def _condition(self, scope: Scope) -> Text:
        found = self._expressions.subquery(scope) if self._random.random() < 0.75 else self._plain.condition(scope)
        if self._random.random() < 0.35:
            other = self._expressions.condition(scope, 1)
            return sql(self._random.choice(("{} AND {}", "({} OR {})", "NOT ({} AND {})")), found, other)
        return found


def _comparable(one: Expression, other: Expression) -> bool:
    if one.family not in _KEYS or other.family not in _KEYS:
        return False
    return one.family is other.family or {one.family, other.family} == {Family.WHOLE, Family.DECIMAL}


def _name(column: Expression) -> str:
    return column.text.ours.partition(".")[2]


def _is_of(inner: Scope, relation: Relation, alias: str) -> bool:
    columns = scope_of(alias, relation.columns)
    return [one.text for one in columns] == [one.text for one in inner]
