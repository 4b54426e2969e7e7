"""A small shop as a catalog: two streams, some tables, sources by URI."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest

from velostream.model.schema import Schema
from velostream.sql.parse import parse_statement
from velostream.sql.plan import QueryPlan, Relation, RelationKind
from velostream.sql.planner import plan_query
from velostream.sql.statements import Create, Insert, OptionValue, Query, Select, SourceRef

ORDERS = Schema.of(
    ("id", "BIGINT"),
    ("sku", "STRING"),
    ("amount", "DECIMAL(10,2)"),
    ("user_id", "INT"),
    ("ts", "TIMESTAMP"),
    ("addr", "STRUCT<city: STRING, zip: STRING>"),
)


class Shop:
    """A `Catalog` in memory. `asked` are the sources it was asked for, with their merged options."""

    def __init__(self) -> None:
        self.asked: list[tuple[SourceRef, tuple[OptionValue, ...]]] = []
        self.relations: dict[str, Relation] = {}
        self.query_options = ["key", "refresh.interval", "join.missing", "join.missing.default.*", "table.wait.timeout"]
        stream, table = RelationKind.STREAM, RelationKind.TABLE
        self.add("orders", stream, ORDERS, reason="appends are followed")
        self.add("payments", stream, Schema.of(("id", "BIGINT"), ("order_id", "BIGINT"), ("paid", "DECIMAL(12,2)")))
        self.add("waiting", stream, None)
        self.add(
            "prices",
            table,
            Schema.of(("sku", "STRING"), ("price", "DECIMAL(10,2)"), ("category_id", "INT"), key=["sku"]),
            indexes=(("sku",),),
        )
        self.add("categories", table, Schema.of(("category_id", "INT"), ("title", "STRING"), key=["category_id"]))
        self.add(
            "users",
            table,
            Schema.of(("id", "BIGINT"), ("name", "STRING"), ("score", "DOUBLE"), ("tags", "ARRAY<STRING>"), key=["id"]),
            indexes=(("id",), ("name",)),
        )
        self.add("stock", table, Schema.of(("sku", "STRING"), ("shop", "INT"), ("n", "INT"), key=["sku", "shop"]))
        self.add("bag", table, Schema.of(("a", "INT"), ("b", "STRING")))

    def add(self, name: str, kind: RelationKind, schema: Schema | None, **rest: object) -> None:
        self.relations[name] = Relation(name, kind, schema, **rest)

    def relation(self, name: str) -> Relation | None:
        return self.relations.get(name.lower())

    def names(self) -> Sequence[str]:
        return list(self.relations)

    def source(self, reference: SourceRef, options: tuple[OptionValue, ...]) -> Relation:
        self.asked.append((reference, options))
        kind = RelationKind.BOUNDED if reference.kind == "file" else RelationKind.STREAM
        return Relation(reference.uri, kind, ORDERS)

    def option_names(self, reference: SourceRef | None) -> Sequence[str]:
        if reference is None:
            return self.query_options
        return ["format", "watch", "delimiter", "kafka.*"]

    def python_aggregates(self) -> Collection[str]:
        return {"spread", "middle"}


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture(scope="session")
def make_shop() -> type[Shop]:
    """For tests that need many catalogs."""
    return Shop


def query_of(text: str) -> tuple[Query, tuple[OptionValue, ...], bool]:
    """The query of a statement, its options, and whether it is continuous."""
    statement = parse_statement(text)
    assert isinstance(statement, Create | Insert | Select)
    assert statement.query is not None
    return statement.query, statement.options, not isinstance(statement, Select)


@pytest.fixture
def plan(shop: Shop) -> Callable[..., QueryPlan]:
    """Plans a statement: CREATE TABLE … AS and INSERT are continuous, a SELECT is a pull."""

    def planned(text: str, **rest: object) -> QueryPlan:
        query, options, continuous = query_of(text)
        return plan_query(query, **{"options": options, "catalog": shop, "text": text, "continuous": continuous} | rest)

    return planned


@pytest.fixture
def view(plan: Callable[..., QueryPlan]) -> Callable[..., QueryPlan]:
    """Plans a SELECT as the content of a view."""

    def planned(text: str, **rest: object) -> QueryPlan:
        return plan(text, **{"continuous": True} | rest)

    return planned
