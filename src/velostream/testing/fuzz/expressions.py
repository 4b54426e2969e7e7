"""Random expressions over the columns at hand: none of them fails, whatever the values are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from velostream.testing.fuzz.text import Column, Expression, Relation, Text, joined, sql
from velostream.testing.fuzz.values import (
    DAY,
    FLOAT,
    INSTANT,
    MONEY,
    ORDERED,
    TEXT,
    TRUTH,
    WHOLE,
    ColumnType,
    Family,
    literal,
    quoted,
    random_value,
)

Scope = Sequence[Expression]
"""The columns that an expression may use."""

_LITERALS: dict[Family, ColumnType] = {
    Family.WHOLE: WHOLE,
    Family.DECIMAL: MONEY,
    Family.TEXT: TEXT,
    Family.TRUTH: TRUTH,
    Family.DAY: DAY,
    Family.INSTANT: INSTANT,
    Family.FLOAT: FLOAT,
}
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
_QUANTIFIED = ("=", "<>", "<", "<=", ">", ">=")
_DEEPEST = 2


def scope_of(alias: str, columns: Sequence[Column]) -> list[Expression]:
    """The columns of a relation that is in FROM under an alias."""
    return [Expression(Text.of(f"{alias}.{quoted(column.name)}"), column.family, column.wide) for column in columns]


class Expressions:
    """Draws expressions. `relations` are what subqueries may read; none: no subqueries."""

    def __init__(self, random: Random, relations: Sequence[Relation] = ()) -> None:
        self._random = random
        self._relations = relations
        self._aliases = 0

    def value(self, scope: Scope, family: Family, depth: int = 0) -> Expression:
        """A value of a family: a column, a literal, or something made of these."""
        columns = [one for one in scope if one.family is family]
        made = self._makers().get(family)
        if made is not None and depth < _DEEPEST and self._random.random() < (0.3 if columns else 0.5):
            return self._random.choice(made)(scope, depth + 1)
        if columns and self._random.random() < 0.85:
            return self._random.choice(columns)
        if family not in _LITERALS:
            return self._random.choice(columns)
        return self.literal(family)

    def literal(self, family: Family) -> Expression:
        return Expression(Text.of(literal(random_value(self._random, _LITERALS[family], nulls=0))), family)

    def any_value(self, scope: Scope, *, families: Sequence[Family] = tuple(Family)) -> Expression:
        """A value of one of the families; plain columns are the common case."""
        columns = [one for one in scope if one.family in families]
        if columns and self._random.random() < 0.7:
            return self._random.choice(columns)
        there = [family for family in families if family in _LITERALS or any(one.family is family for one in columns)]
        return self.value(scope, self._random.choice(there))

    def computed(self, scope: Scope, families: Sequence[Family]) -> Expression:
        """A value of one of the families that is no mere column."""
        makers = self._makers()
        family = self._random.choice([one for one in families if one in makers])
        return self._random.choice(makers[family])(scope, 1)

    def condition(self, scope: Scope, depth: int = 0) -> Text:
        """A condition, which may be unknown."""
        drawn = self._random.random()
        if depth < _DEEPEST and drawn < 0.3:
            return self._random.choice((self._both, self._either, self._negated))(scope, depth + 1)
        if depth < _DEEPEST and self._relations and drawn < 0.5:
            return self.subquery(scope)
        return self._random.choice(
            (self._compared, self._compared, self._compared, self._is_null, self._between, self._listed, self._like)
        )(scope, depth + 1)

    def subquery(self, scope: Scope) -> Text:
        """A condition about the rows of another relation."""
        return self._random.choice((self._exists, self._exists, self._in, self._quantified, self._against_scalar))(
            scope
        )

    def scalar(self, scope: Scope, family: Family | None = None) -> Expression:
        """A value of the family, or of any, found by a subquery."""
        inner, source, alias = self._inner()
        family = family or self._random.choice((Family.WHOLE, Family.DECIMAL, Family.TEXT, Family.DAY))
        columns = [one for one in inner if one.family is family]
        where = self._correlation(scope, inner)
        if not columns and family in (Family.WHOLE, Family.DECIMAL):
            return Expression(sql("(SELECT COUNT(*) FROM {} {}{})", source, alias, where), Family.WHOLE)
        if not columns:
            text = sql(f"(SELECT MAX({self.literal(family).text.ours}) FROM {{}} {{}}{{}})", source, alias, where)
            return Expression(text, family)
        column = self._random.choice(columns)
        largest = sql("(SELECT MAX({}) FROM {} {}{})", column.text, source, alias, where)
        if self._random.random() < 0.25:
            # Spark may forget the order of a scalar subquery; the first one in this order is the largest.
            first = sql(
                "(SELECT {} FROM {} {}{} ORDER BY {} DESC NULLS LAST LIMIT 1)",
                *(column.text, source, alias, where, column.text),
            )
            return Expression(Text(first.ours, largest.sparks), family, column.wide)
        if self._random.random() < 0.4:
            smallest = sql("(SELECT MIN({}) FROM {} {}{})", column.text, source, alias, where)
            return Expression(smallest, family, column.wide)
        return Expression(largest, family, column.wide)

    def _makers(self) -> dict[Family, list[Callable[[Scope, int], Expression]]]:
        def make(
            family: Family, template: str, *inputs: Family, wide: bool = False
        ) -> Callable[[Scope, int], Expression]:
            def maker(scope: Scope, depth: int) -> Expression:
                parts = [self._narrow(scope, one, depth) for one in inputs]
                return Expression(sql(template, *(part.text for part in parts)), family, wide)

            return maker

        def chosen(family: Family) -> list[Callable[[Scope, int], Expression]]:
            def case(scope: Scope, depth: int) -> Expression:
                first, second = (self._narrow(scope, family, depth) for _ in range(2))
                text = sql("CASE WHEN {} THEN {} ELSE {} END", self._plain(scope), first.text, second.text)
                return Expression(text, family)

            return [
                case,
                make(family, "coalesce({}, {})", family, family),
                make(family, "nullif({}, {})", family, family),
            ]

        whole, decimal, text = Family.WHOLE, Family.DECIMAL, Family.TEXT
        makers = {
            whole: [
                make(whole, "({} + {})", whole, whole),
                make(whole, "({} - {})", whole, whole),
                make(whole, "({} * 2)", whole),
                make(whole, "({} % 3)", whole),
                make(whole, "abs({})", whole),
                make(whole, "length({})", text),
                make(whole, "year({})", Family.DAY),
                make(whole, "greatest({}, {})", whole, whole),
            ],
            decimal: [
                make(decimal, "({} + {})", decimal, decimal, wide=True),
                make(decimal, "({} * {})", decimal, decimal, wide=True),
                make(decimal, "({} - {})", decimal, whole, wide=True),
                make(decimal, "round({}, 1)", decimal, wide=True),
                make(decimal, "(- {})", decimal),
                make(decimal, "({} / 3)", decimal, wide=True),
                make(decimal, "CAST({} AS DECIMAL(14, 1))", whole),
            ],
            text: [
                make(text, "upper({})", text),
                make(text, "concat({}, {})", text, text),
                make(text, "({} || '-' || {})", text, whole),
                make(text, "substring({}, 1, 2)", text),
                make(text, "trim({})", text),
                make(text, "CAST({} AS STRING)", decimal),
                make(text, "CAST({} AS STRING)", Family.DAY),
            ],
            Family.DAY: [
                make(Family.DAY, "date_add({}, 3)", Family.DAY),
                make(Family.DAY, "CAST({} AS DATE)", Family.INSTANT),
            ],
            Family.INSTANT: [
                make(Family.INSTANT, "({} + INTERVAL 1 DAY)", Family.INSTANT),
                make(Family.INSTANT, "date_trunc('MONTH', {})", Family.INSTANT),
                make(Family.INSTANT, "CAST({} AS TIMESTAMP)", Family.DAY),
            ],
            Family.FLOAT: [
                make(Family.FLOAT, "({} + {})", Family.FLOAT, Family.FLOAT),
                make(Family.FLOAT, "({} * 2)", Family.FLOAT),
            ],
            Family.TRUTH: [lambda scope, _: Expression(self._plain(scope), Family.TRUTH)],
        }
        return {family: each + chosen(family) for family, each in makers.items()}

    def nested(self, scope: Scope) -> Expression | None:
        """Something inside an array, a struct or a map, if there is one."""
        columns = [one for one in scope if one.family in (Family.LIST, Family.STRUCT, Family.MAP)]
        if not columns:
            return None
        column = self._random.choice(columns)
        forms = {
            Family.LIST: ("get({}, 0)", "size({})", "array_max({})"),
            Family.STRUCT: ("{}.p",),
            Family.MAP: ("try_element_at({}, 'a')", "size({})"),
        }
        return Expression(sql(self._random.choice(forms[column.family]), column.text), Family.WHOLE)

    def path(self, scope: Scope) -> Expression | None:
        """The values along a path into a list or a map, if there is one."""
        found = self._path(scope)
        return None if found is None else Expression(found, Family.APPROXIMATE)

    def path_condition(self, scope: Scope) -> Text | None:
        """A condition about the values along a path, which is never unknown but for a sum of none."""
        found = self._path(scope)
        if found is None:
            return None
        comparison, bound = self._random.choice(("=", "<>", "<", ">=")), self._random.randint(-2, 4)
        total = f"if(size({found.sparks}) = 0, NULL, aggregate({found.sparks}, 0L, (s, x) -> s + x))"
        forms = (
            Text(f"ANY({found.ours}) {comparison} {bound}", f"exists({found.sparks}, x -> x {comparison} {bound})"),
            Text(f"ALL({found.ours}) {comparison} {bound}", f"forall({found.sparks}, x -> x {comparison} {bound})"),
            Text(f"COUNT({found.ours}) {comparison} {bound}", f"size({found.sparks}) {comparison} {bound}"),
            Text(f"SUM({found.ours}) {comparison} {bound}", f"{total} {comparison} {bound}"),
            Text(f"MAX({found.ours}) {comparison} {bound}", f"array_max({found.sparks}) {comparison} {bound}"),
        )
        return sql("({})", self._random.choice(forms))

    def _path(self, scope: Scope) -> Text | None:
        columns = [one for one in scope if one.family in (Family.LIST, Family.MAP)]
        if not columns:
            return None
        column = self._random.choice(columns)
        forms = (("{}[*]", "{}"), ("{}[0:1]", "slice({}, 1, 1)"), ("{}[1:]", "slice({}, 2, 9)"))
        ours, sparks = ("{}.*", "map_values({})") if column.family is Family.MAP else self._random.choice(forms)
        there = f"filter({sparks.format(column.text.sparks)}, x -> x IS NOT NULL)"
        return Text(ours.format(column.text.ours), f"coalesce({there}, CAST(array() AS ARRAY<INT>))")

    def _narrow(self, scope: Scope, family: Family, depth: int) -> Expression:
        """A value that arithmetic can be done with."""
        for _ in range(3):
            found = self.value(scope, family, depth)
            if not found.wide:
                return found
        return self.literal(family)

    def _plain(self, scope: Scope) -> Text:
        """A condition without subqueries."""
        return self._random.choice((self._compared, self._is_null, self._listed))(scope, _DEEPEST)

    def _both(self, scope: Scope, depth: int) -> Text:
        return sql("({} AND {})", self.condition(scope, depth), self.condition(scope, depth))

    def _either(self, scope: Scope, depth: int) -> Text:
        return sql("({} OR {})", self.condition(scope, depth), self.condition(scope, depth))

    def _negated(self, scope: Scope, depth: int) -> Text:
        return sql("(NOT {})", self.condition(scope, depth))

    def _compared(self, scope: Scope, depth: int) -> Text:
        family = self._decisive(scope)
        other = Family.DECIMAL if family is Family.WHOLE and self._random.random() < 0.2 else family
        first, second = self.value(scope, family, depth), self.value(scope, other, depth)
        return sql(f"({{}} {self._random.choice(_COMPARISONS)} {{}})", first.text, second.text)

    def _is_null(self, scope: Scope, _: int) -> Text:
        return sql(f"({{}} IS {self._random.choice(('', 'NOT '))}NULL)", self._random.choice(scope).text)

    def _between(self, scope: Scope, depth: int) -> Text:
        family = self._decisive(scope)
        parts = [self.value(scope, family, depth), self.literal(family), self.value(scope, family, depth)]
        negation = self._random.choice(("", "", "NOT "))
        return sql(f"({{}} {negation}BETWEEN {{}} AND {{}})", *(part.text for part in parts))

    def _listed(self, scope: Scope, depth: int) -> Text:
        family = self._decisive(scope)
        values = [self.literal(family).text for _ in range(self._random.randint(1, 3))]
        if self._random.random() < 0.2:
            values.append(Text.of("NULL"))
        negation = self._random.choice(("", "", "NOT "))
        return sql(f"({{}} {negation}IN ({{}}))", self.value(scope, family, depth).text, joined(", ", values))

    def _like(self, scope: Scope, depth: int) -> Text:
        pattern = self._random.choice(("LIKE '%a%'", "LIKE 'a\\\\_b'", "NOT LIKE '_'", "RLIKE '^[a-c]'"))
        return sql(f"({{}} {pattern})", self.value(scope, Family.TEXT, depth).text)

    def _decisive(self, scope: Scope) -> Family:
        """A family to compare by, one that there are columns of."""
        there = [one.family for one in scope if one.family in ORDERED]
        return self._random.choice(there) if there else Family.WHOLE

    def _inner(self) -> tuple[list[Expression], str, str]:
        """A relation for a subquery, with an alias that nothing outside has."""
        relation = self._random.choice(self._relations)
        self._aliases += 1
        alias = f"z{self._aliases}"
        return scope_of(alias, relation.columns), relation.name, alias

    def _correlation(self, scope: Scope, inner: Scope) -> Text:
        """WHERE of a subquery: by equality with a row outside, by more than that, by itself, or not at all."""
        conditions = []
        if self._random.random() < 0.7 and (pair := self.same(scope, inner)):
            conditions.append(sql("{} = {}", pair[1].text, pair[0].text))
            if self._random.random() < 0.3 and (pair := self.same(scope, inner)):
                conditions.append(
                    sql(f"{{}} {self._random.choice(('<', '<>', '>='))} {{}}", pair[1].text, pair[0].text)
                )
        if self._random.random() < 0.3:
            conditions.append(self._plain(inner))
        return sql(" WHERE {}", joined(" AND ", conditions)) if conditions else Text.of("")

    def same(self, first: Scope, second: Scope) -> tuple[Expression, Expression] | None:
        """Two columns that may be equal, one of each scope."""
        families = (Family.WHOLE, Family.TEXT, Family.DAY)
        pairs = [
            (one, other) for one in first for other in second if one.family is other.family and one.family in families
        ]
        named = [pair for pair in pairs if pair[0].text.ours.split(".")[-1] == pair[1].text.ours.split(".")[-1]]
        if named and self._random.random() < 0.7:
            return self._random.choice(named)
        return self._random.choice(pairs) if pairs else None

    def _exists(self, scope: Scope) -> Text:
        inner, source, alias = self._inner()
        negation = self._random.choice(("", "NOT "))
        return sql(f"({negation}EXISTS (SELECT 1 FROM {{}} {{}}{{}}))", source, alias, self._correlation(scope, inner))

    def _in(self, scope: Scope) -> Text:
        return self._members(scope, "=", quantifier="IN")

    def _quantified(self, scope: Scope) -> Text:
        return self._members(scope, self._random.choice(_QUANTIFIED), quantifier=self._random.choice(("ANY", "ALL")))

    def _members(self, scope: Scope, operator: str, *, quantifier: str) -> Text:
        """A value against all values of a subquery; Spark is asked by counting, which leaves no doubt about NULL."""
        inner, source, alias = self._inner()
        pair = self.same(scope, inner)
        if pair is None:
            return self._exists(scope)
        outer, member = pair
        where = self._correlation(scope, inner)
        hits = sql("SELECT {} " + operator + " {} AS hit FROM {} {}{}", outer.text, member.text, source, alias, where)
        if quantifier == "ALL":
            outcome = "CASE WHEN count_if(NOT hit) > 0 THEN FALSE WHEN count(*) > count(hit) THEN NULL ELSE TRUE END"
        else:
            outcome = "CASE WHEN count_if(hit) > 0 THEN TRUE WHEN count(*) > count(hit) THEN NULL ELSE FALSE END"
        negated = quantifier == "IN" and self._random.random() < 0.4
        found = sql("(SELECT " + outcome + " FROM ({}))", hits)
        asked = sql("SELECT {} FROM {} {}{}", member.text, source, alias, where)
        if quantifier == "IN":
            word = "NOT IN" if negated else "IN"
            ours = f"({outer.text.ours} {word} ({asked.ours}))"
        else:
            ours = f"({outer.text.ours} {operator} {quantifier} ({asked.ours}))"
        return Text(ours, f"(NOT {found.sparks})" if negated else found.sparks)

    def _against_scalar(self, scope: Scope) -> Text:
        family = self._decisive(scope)
        return self.against_scalar(self.value(scope, family, _DEEPEST), scope)

    def against_scalar(self, value: Expression, scope: Scope) -> Text:
        """A value compared with what a subquery finds; that may refer to the columns of the scope."""
        found = self.scalar(scope, value.family)
        return sql(f"({{}} {self._random.choice(_QUANTIFIED)} {{}})", value.text, found.text)
