"""Random queries over tables, of every shape that a view may have. Each has one right answer, as a bag of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from velostream.testing.fuzz.aggregates import aggregate
from velostream.testing.fuzz.expressions import Expressions, Scope, scope_of
from velostream.testing.fuzz.text import Column, Expression, QueryText, Relation, Text, joined, sql
from velostream.testing.fuzz.values import ORDERED, Family, quoted

_JOINS = ("JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
_SET_OPERATIONS = ("UNION ALL", "UNION ALL", "UNION", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")
_GROUPED = tuple(family for family in ORDERED if family is not Family.FLOAT)


class Queries:
    """Draws queries over these relations."""

    def __init__(self, random: Random, relations: Sequence[Relation]) -> None:
        self._random = random
        self._relations = relations
        self._expressions = Expressions(random, relations)
        self._plain = Expressions(random)
        self._names = 0

    def query(self) -> QueryText:
        """A query of any shape."""
        shapes = (
            (self._projection, 3),
            (self._joined, 4),
            (self._grouped, 5),
            (self._distinct, 1),
            (self._top, 2),
            (self._combined, 2),
            (self._windowed, 1.5),
            (self._over_subquery, 2),
            (self._with_cte, 1.5),
        )
        return self._random.choices([shape for shape, _ in shapes], [weight for _, weight in shapes])[0]()

    def _projection(self) -> QueryText:
        scope, origin = self._one()
        return self._select(scope, origin)

    def _joined(self) -> QueryText:
        scope, origin = self._several()
        return self._select(scope, origin)

    def _select(self, scope: Scope, origin: Text, *, families: Sequence[Family] = tuple(Family)) -> QueryText:
        items = [self._item(scope, families) for _ in range(self._random.randint(1, 6))]
        columns, listed = self._named(items)
        return QueryText(sql("SELECT {} FROM {}{}", listed, origin, self._where(scope)), columns)

    def _item(self, scope: Scope, families: Sequence[Family]) -> Expression:
        drawn = self._random.random()
        if drawn < 0.04 and Family.APPROXIMATE in families and (values := self._plain.path(_of_relations(scope))):
            return values
        if drawn < 0.06 and Family.WHOLE in families and (inside := self._plain.nested(scope)):
            return inside
        if drawn < 0.09:
            return self._expressions.scalar(scope)
        if drawn < 0.12 and Family.TRUTH in families:
            return Expression(self._expressions.subquery(scope), Family.TRUTH)
        if drawn < 0.45:
            return self._plain.computed(scope, families)
        return self._expressions.any_value(scope, families=families)

    def _where(self, scope: Scope) -> Text:
        if self._random.random() >= 0.55:
            return Text.of("")
        condition = self._expressions.condition(scope)
        if self._random.random() < 0.15 and (about := self._plain.path_condition(_of_relations(scope))):
            condition = sql(self._random.choice(("({} OR {})", "({} AND {})")), condition, about)
        return sql(" WHERE {}", condition)

    def _grouped(self) -> QueryText:
        scope, origin = self._several() if self._random.random() < 0.4 else self._one()
        return self._groups_of(scope, origin)

    def _groups_of(self, scope: Scope, origin: Text) -> QueryText:
        count = self._random.choice((0, 1, 1, 1, 2))
        groups = {one.text.ours: one for one in (self._group(scope) for _ in range(count))}
        aggregates = [aggregate(self._random, self._plain, scope) for _ in range(self._random.randint(1, 5))]
        columns, listed = self._named([*groups.values(), *aggregates])
        text = sql("SELECT {} FROM {}{}", listed, origin, self._where(scope))
        if groups:
            form = self._random.choices((" GROUP BY {}", " GROUP BY ROLLUP ({})", " GROUP BY CUBE ({})"), (18, 1, 1))[0]
            text = sql("{}" + form, text, joined(", ", (one.text for one in groups.values())))
        if self._random.random() < 0.35:
            text = sql("{} HAVING {}", text, self._having(scope, list(groups.values())))
        return QueryText(text, columns)

    def _group(self, scope: Scope) -> Expression:
        columns = [one for one in scope if one.family in _GROUPED]
        if columns and self._random.random() < 0.8:
            return self._random.choice(columns)
        found = self._plain.value(scope, self._random.choice((Family.WHOLE, Family.TEXT)), 1)
        if found.text.ours.lstrip("-").isdigit():
            # A bare number would be the position of an item.
            return replace(found, text=sql("({} + 0)", found.text))
        return found

    def _having(self, scope: Scope, groups: Scope) -> Text:
        """A condition over the groups; floats decide nothing, because their sums depend on the order."""
        measures = [
            found
            for found in (aggregate(self._random, self._plain, scope) for _ in range(3))
            if found.family in (Family.WHOLE, Family.DECIMAL)
        ]
        measure = measures[0] if measures else Expression(Text.of("COUNT(*)"), Family.WHOLE)
        drawn = self._random.random()
        if drawn < 0.15:
            return self._expressions.against_scalar(measure, ())
        condition = sql(f"({{}} {self._random.choice(('>', '<=', '<>'))} {self._random.randint(0, 3)})", measure.text)
        columns = [one for one in groups if " " not in one.text.ours and "(" not in one.text.ours]
        if drawn < 0.3 and columns:
            return sql("({} OR {})", condition, self._expressions.subquery(columns))
        return condition

    def _distinct(self) -> QueryText:
        scope, origin = self._several() if self._random.random() < 0.3 else self._one()
        columns, listed = self._named([self._item(scope, _GROUPED) for _ in range(self._random.randint(1, 3))])
        return QueryText(sql("SELECT DISTINCT {} FROM {}{}", listed, origin, self._where(scope)), columns)

    def _top(self) -> QueryText:
        """The first rows in an order that leaves no choice: rows that tie in all columns are equal."""
        scope, origin = self._several() if self._random.random() < 0.3 else self._one()
        columns, listed = self._named([self._item(scope, ORDERED) for _ in range(self._random.randint(1, 3))])
        order = [
            quoted(column.name)
            + self._random.choice((" ASC", " DESC"))
            + self._random.choice(("", " NULLS FIRST", " NULLS LAST"))
            for column in self._random.sample(columns, len(columns))
        ]
        limit = f"LIMIT {self._random.randint(1, 5)}" + self._random.choice(
            ("", "", f" OFFSET {self._random.randint(1, 3)}")
        )
        text = sql("SELECT {} FROM {}{} ORDER BY {} {}", listed, origin, self._where(scope), ", ".join(order), limit)
        return QueryText(text, columns)

    def _combined(self) -> QueryText:
        """Two or three queries whose columns are of the same types."""
        families = [
            self._random.choice((Family.WHOLE, Family.TEXT, Family.DAY)) for _ in range(self._random.randint(1, 2))
        ]
        parts: list[Text] = []
        columns: tuple[Column, ...] = ()
        for number in range(self._random.choice((2, 2, 3))):
            scope, origin = self._one()
            items = [self._plain.value(scope, family) for family in families]
            named, listed = self._named(items)
            columns = columns or named
            parts.append(sql("SELECT {} FROM {}{}", listed, origin, self._where(scope)))
            if number == 0:
                continue
            parts[-2:] = [sql(f"{{}} {self._random.choice(_SET_OPERATIONS)} {{}}", parts[-2], parts[-1])]
        return QueryText(parts[0], columns)

    def _windowed(self) -> QueryText:
        """Window functions; within a partition rows are ordered by all their columns, so that ties are equal rows."""
        scope, origin = self._one()
        ordered = [one for one in scope if one.family in ORDERED]
        parted = [one for one in ordered if one.family in _GROUPED]
        if not parted:
            return self._select(scope, origin)
        partition = sql("PARTITION BY {}", self._random.choice(parted).text)
        order = sql("ORDER BY {}", joined(", ", (one.text for one in ordered)))
        first = self._random.choice(parted)
        number = self._random.choice(
            [one for one in scope if one.family is Family.WHOLE] or [Expression(Text.of("1"), Family.WHOLE)]
        )
        functions = (
            Expression(sql("row_number() OVER ({} {})", partition, order), Family.WHOLE),
            Expression(sql("rank() OVER ({} ORDER BY {})", partition, first.text), Family.WHOLE),
            Expression(sql("dense_rank() OVER (ORDER BY {} DESC)", first.text), Family.WHOLE),
            Expression(sql("sum({}) OVER ({})", number.text, partition), Family.WHOLE),
            Expression(sql("sum({}) OVER ({} ORDER BY {})", number.text, partition, first.text), Family.WHOLE),
            Expression(sql("count(*) OVER ({})", partition), Family.WHOLE),
            replace(first, text=sql("lag({}) OVER ({} {})", first.text, partition, order)),
            replace(first, text=sql("max({}) OVER ({})", first.text, partition)),
        )
        items = [
            *(self._random.choice(ordered) for _ in range(2)),
            *self._random.sample(functions, self._random.randint(1, 2)),
        ]
        columns, listed = self._named(items)
        return QueryText(sql("SELECT {} FROM {}{}", listed, origin, self._where(scope)), columns)

    def _over_subquery(self) -> QueryText:
        """A query over another one in its FROM, by itself or joined to a relation."""
        inner = self._inner_query()
        scope = scope_of("q", inner.columns)
        origin = sql("({}) AS q", inner.text)
        if self._random.random() < 0.5:
            scope, origin = self._with_another(scope, origin, "r")
        if self._random.random() < 0.5:
            return self._groups_of(scope, origin)
        return self._select(scope, origin)

    def _with_cte(self) -> QueryText:
        """A query over one that WITH names, perhaps joined to itself."""
        inner = self._inner_query()
        scope, origin = scope_of("q", inner.columns), Text.of("cte AS q")
        if self._random.random() < 0.5 and (pair := self._plain.same(scope, scope_of("p", inner.columns))):
            join = self._random.choice(_JOINS)
            origin = sql(f"cte AS q {join} cte AS p ON {{}} = {{}}", pair[0].text, pair[1].text)
            scope = [*scope, *scope_of("p", inner.columns)]
        outer = self._groups_of(scope, origin) if self._random.random() < 0.4 else self._select(scope, origin)
        return QueryText(sql("WITH cte AS ({}) {}", inner.text, outer.text), outer.columns)

    def _inner_query(self) -> QueryText:
        return self._random.choice(
            (self._projection, self._joined, self._grouped, self._grouped, self._distinct, self._combined)
        )()

    def _one(self, *, unnested: bool = True) -> tuple[list[Expression], Text]:
        """One relation, perhaps with the items of a list in it; Spark takes no join after these."""
        relation = self._random.choice(self._relations)
        scope, origin = scope_of("a", relation.columns), Text.of(f"{relation.name} AS a")
        lists = [one for one in scope if one.family is Family.LIST]
        if lists and self._random.random() < 0.25 and unnested:
            form = self._random.choice(
                ("{} LATERAL VIEW explode({}) e AS item", "{} LATERAL VIEW OUTER explode({}) e AS item")
            )
            return [*scope, Expression(Text.of("e.item"), Family.WHOLE)], sql(
                form, origin, self._random.choice(lists).text
            )
        return scope, origin

    def _several(self) -> tuple[list[Expression], Text]:
        """Two or three relations joined, the same one twice now and then."""
        scope, origin = self._one(unnested=False)
        for alias in ("b", "c")[: self._random.choice((1, 1, 2))]:
            scope, origin = self._with_another(scope, origin, alias)
        return scope, origin

    def _with_another(self, scope: list[Expression], origin: Text, alias: str) -> tuple[list[Expression], Text]:
        relation = self._random.choice(self._relations)
        other = scope_of(alias, relation.columns)
        pair = self._plain.same(scope, other)
        if pair is None or self._random.random() < 0.04:
            return [*scope, *other], sql(f"{{}} CROSS JOIN {relation.name} AS {alias}", origin)
        drawn = self._random.random()
        if drawn < 0.1:
            word = self._random.choice(("LEFT SEMI", "LEFT ANTI"))
            text = sql(
                f"{{}} {word} JOIN {relation.name} AS {alias} ON {{}} = {{}}", origin, pair[0].text, pair[1].text
            )
            return scope, text
        join = self._random.choice(_JOINS)
        shared = [name for name in ("`k`", "`g`") if _is_in(f"a.{name}", scope) and _is_in(f"{alias}.{name}", other)]
        if drawn < 0.25 and alias == "b" and shared and all(one.text.ours.startswith("a.") for one in scope):
            name = self._random.choice(shared)
            return [*scope, *other], sql(f"{{}} {join} {relation.name} AS {alias} USING ({name})", origin)
        condition = sql("{} = {}", pair[0].text, pair[1].text)
        if self._random.random() < 0.2 and (second := self._plain.same(scope, other)):
            condition = sql("{} AND {} = {}", condition, second[0].text, second[1].text)
        if self._random.random() < 0.2:
            condition = sql("{} AND {}", condition, self._plain.condition([*scope, *other], 1))
        return [*scope, *other], sql(f"{{}} {join} {relation.name} AS {alias} ON {{}}", origin, condition)

    def _named(self, items: Sequence[Expression]) -> tuple[tuple[Column, ...], Text]:
        """The items of a SELECT, each under a name; the names that tables share are kept where they can be."""
        columns: list[Column] = []
        for item in items:
            name = item.text.ours.split(".")[-1].strip("`")
            if name not in ("id", "k", "g") or any(column.name == name for column in columns):
                self._names += 1
                name = f"v{self._names}"
            columns.append(Column(name, item.family, item.wide))
        listed = (sql(f"{{}} AS {quoted(column.name)}", item.text) for item, column in zip(items, columns, strict=True))
        return tuple(columns), joined(", ", listed)


def _of_relations(scope: Scope) -> Scope:
    """The columns of tables and views; of those of subqueries only Spark may know the types, which paths need."""
    return [one for one in scope if one.text.ours.startswith(("a.", "b.", "c.", "r."))]


def _is_in(reference: str, scope: Scope) -> bool:
    return any(one.text.ours == reference for one in scope)
