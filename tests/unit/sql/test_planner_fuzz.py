"""Whatever parses is planned or refused with a `SqlError`; what is planned reads only the relations it may."""

from __future__ import annotations

from random import Random

import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from velostream.errors import SqlError
from velostream.sql.explain import explain_rows
from velostream.sql.parse import parse_statement
from velostream.sql.plan import QueryPlan, Strategy
from velostream.sql.planner import plan_query

COLUMNS = {
    "orders": ("id", "sku", "amount", "user_id", "ts", "addr.city"),
    "memory://feed": ("id", "sku", "amount", "user_id", "ts", "addr.city"),
    "payments": ("id", "order_id", "paid"),
    "waiting": ("anything", "sku"),
    "prices": ("sku", "price", "category_id"),
    "users": ("id", "name", "score"),
    "stock": ("sku", "shop", "n"),
    "bag": ("a", "b"),
    "categories": ("category_id", "title"),
}
STREAMS = ("orders", "orders", "orders", "payments", "waiting", "memory://feed")
TABLES = ("prices", "prices", "users", "stock", "bag", "categories")


class Writer:
    """Writes queries that are SQL by their form, with names that nearly always mean something."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.visible: list[str] = []

    def any(self, *choices: str) -> str:
        return self.random.choice(choices)

    def sometimes(self, text: str, *, chance: float = 0.2) -> str:
        return text if self.random.random() < chance else ""

    def column(self) -> str:
        if self.random.random() < 0.01:
            return self.any("nothing", "p.nothing", "z.id", "sku")
        return self.any(*self.visible)

    def literal(self) -> str:
        return self.any("1", "'x'", "NULL", "2.5", "now()") if self.random.random() < 0.98 else "rand()"

    def scalar(self, depth: int = 2) -> str:
        """An expression without aggregates of its own."""
        if depth == 0 or self.random.random() < 0.5:
            return self.column() if self.random.random() < 0.8 else self.literal()
        one, two = (self.scalar(depth - 1) for _ in range(2))
        table = self.any(*TABLES)
        column = f"i.{self.any(*COLUMNS[table])}"
        small = f"SELECT {column} FROM {table} i WHERE {column} = {self.column()}"
        return self.any(
            f"{one} {self.any('+', '=', '<', 'AND', 'OR', '||', '<=>')} {two}",
            f"{one} {self.any('+', '=', '<', 'AND', 'OR', '||', '<=>')} {two}",
            f"lower({one})",
            f"(coalesce({one}, {two}))",
            f"CASE WHEN {one} THEN {two} END",
            f"CAST({one} AS {self.any('INT', 'STRING', 'DECIMAL(5,2)')})",
            f"transform({one}, v -> v + {two})",
            f"{one} {self.any('IN', 'NOT IN', '= ANY', '> ALL', '<> SOME')} ({small})",
            f"EXISTS ({small})",
            f"({small})",
        )

    def aggregate(self) -> str:
        one, two = (self.scalar(1) for _ in range(2))
        call = self.any(
            f"{self.any('sum', 'count', 'max', 'collect_list')}({one})",
            "count(*)",
            f"sum({one}) FILTER (WHERE {two})",
            self.sometimes(f"count(DISTINCT {one})", chance=0.1) or "count(1)",
        )
        return call + self.sometimes(f" + {self.literal()}")

    def select(self, depth: int = 1) -> str:
        outer, self.visible = self.visible, []
        from_ = self.from_clause(depth)
        grouped = self.random.random() < 0.4
        text = f"SELECT {self.items(grouped=grouped)} FROM {from_}"
        text += self.sometimes(f" WHERE {self.scalar()}")
        if grouped:
            text += self.any("", f" GROUP BY {self.group}", " GROUP BY c0", " GROUP BY 1", " GROUP BY ALL")
            text += self.sometimes(f" HAVING {self.aggregate()} > 1 AND {self.any('c0', self.group)} IS NOT NULL")
        text += self.sometimes(f" ORDER BY {self.any('1', 'c0', self.scalar(1))}", chance=0.1)
        text += self.sometimes(" LIMIT 3", chance=0.1)
        self.visible = outer
        return text

    def items(self, *, grouped: bool) -> str:
        self.group = self.scalar(1)
        if grouped:
            return f"{self.group} AS c0, {self.aggregate()} AS c1" + self.sometimes(f", {self.aggregate()} AS c2")
        plain = [f"{self.scalar()} AS c{number}" for number in range(self.random.randint(1, 3))]
        if self.random.random() < 0.2:
            plain = [self.any("*", "p.*", self.column())]
        elif self.random.random() < 0.05:
            plain.append(self.any("explode(array(1)) AS e", "row_number() OVER (ORDER BY c0) AS w"))
        return self.sometimes("DISTINCT ", chance=0.05) + ", ".join(plain)

    def from_clause(self, depth: int) -> str:
        first = self.any(*STREAMS, *TABLES)
        if depth and self.random.random() < 0.15:
            text = f"({self.select(depth - 1)}) p"
            names: tuple[str, ...] = ("c0",)
        else:
            text = f"{first} p"
            names = COLUMNS[first]
        self.visible = [f"p.{name}" for name in names]
        for alias in ("q", "r")[: self.random.choice((0, 0, 1, 2))]:
            table = self.any(*TABLES) if self.random.random() < 0.97 else self.any(*STREAMS)
            mine = [f"{alias}.{name}" for name in COLUMNS[table]]
            kind = self.any("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN")
            condition = f"{self.any(*self.visible)} = {self.any(*mine)}"
            if "p.sku" in self.visible and f"{alias}.sku" in mine and self.random.random() < 0.7:
                condition = f"{alias}.sku = p.sku"
            text += f" {kind} {table} {alias} ON {condition}"
            text += self.sometimes(f" AND {self.any(*mine)} > {self.any(*self.visible, '3')}")
            if kind != "LEFT SEMI JOIN":
                self.visible += mine
        return text + self.sometimes(" LATERAL VIEW explode(array(1)) e AS x", chance=0.05)

    def query(self) -> str:
        text = self.select()
        if self.random.random() < 0.1:
            text += f" {self.any('UNION ALL', 'UNION', 'EXCEPT')} {self.select()}"
        if self.random.random() < 0.1:
            text = f"WITH cte AS ({text}) SELECT * FROM cte JOIN prices ON cte.c0 = prices.sku"
        return text


def texts(plan: QueryPlan) -> list[tuple[str, set[str]]]:
    """Every SQL text of a plan with the relations it may read."""
    inputs = {entry.relation for entry in plan.inputs}
    found = [(plan.sql, inputs)]
    for part in filter(None, (plan.map, plan.aggregate and plan.aggregate.feed)):
        found.append((part.sql, inputs))
        if part.stages is not None:
            found.append((part.stages.sql, {"stage"}))
    if plan.aggregate is not None:
        found.append((plan.aggregate.sql, {"feed"}))
        if plan.aggregate.final is not None:
            found.append((plan.aggregate.final, {"groups", *plan.aggregate.final_inputs}))
    return found


def check(text: str, shop, *, continuous: bool) -> QueryPlan | None:
    try:
        query = parse_statement(text).query
        plan = plan_query(query, options=(), catalog=shop, text=text, continuous=continuous)
    except SqlError as error:
        str(error)
        return None
    assert explain_rows(plan, extended=True)
    for sql, allowed in texts(plan):
        tree = sqlglot.parse_one(sql, read="spark")
        ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
        read = {table.name for table in tree.find_all(exp.Table) if table.name}
        assert {name for name in read if name.lower() not in ctes} <= allowed, sql
    return plan


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1_000_000), continuous=st.booleans())
def test_a_query_is_planned_or_refused(seed, continuous, make_shop):
    check(Writer(seed).query(), make_shop(), continuous=continuous)


def test_the_fuzzer_reaches_every_strategy(make_shop):
    plans = [check(Writer(seed).query(), make_shop(), continuous=seed % 2 == 0) for seed in range(300)]
    assert {plan.strategy for plan in plans if plan is not None} == set(Strategy)
