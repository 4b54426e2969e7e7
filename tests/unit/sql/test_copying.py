"""What a query says about its sources without an option: that it copies one, and which system columns it names."""

from dataclasses import replace

import pytest

from velostream.errors import Category, ResolveError, SourceError
from velostream.sql.plan import RelationKind

TOPIC = "kafka://h:1/orders"


def said(shop):
    _, options = shop.asked[-1]
    return {option.name: option.value for option in options}


@pytest.mark.parametrize(
    ("statement", "key"),
    [
        (f"CREATE TABLE t AS SELECT * FROM {TOPIC}", ""),
        (f"CREATE TABLE t AS SELECT upper(sku) AS s FROM {TOPIC} WHERE id > 1", ""),
        (f"CREATE TABLE t AS SELECT id PRIMARY KEY, sku FROM {TOPIC}", "id"),
        (f"CREATE TABLE t AS SELECT o.sku AS s PRIMARY KEY, o.id PRIMARY KEY FROM {TOPIC} o", "sku,id"),
        (f"CREATE TABLE t AS SELECT * FROM {TOPIC} WITH ('key' = 'id')", "id"),
        (f"CREATE TABLE t (id BIGINT PRIMARY KEY) AS SELECT id FROM {TOPIC}", "id"),
        (f"CREATE TABLE t AS SELECT id + 1 AS n PRIMARY KEY FROM {TOPIC}", None),
        (f"CREATE TABLE t AS SELECT addr.zip AS z PRIMARY KEY FROM {TOPIC}", None),
        (f"CREATE TABLE t AS SELECT COUNT(*) AS n FROM {TOPIC}", None),
        (f"CREATE TABLE t AS SELECT sku FROM {TOPIC} GROUP BY sku", None),
        (f"CREATE TABLE t AS SELECT o.id FROM {TOPIC} o JOIN prices p ON o.sku = p.sku", None),
        (f"CREATE TABLE t AS SELECT id FROM {TOPIC} WHERE sku IN (SELECT sku FROM prices)", None),
        (f"CREATE STREAM t AS SELECT * FROM {TOPIC}", None),
        (f"INSERT INTO bag SELECT id, sku FROM {TOPIC}", None),
    ],
)
def test_a_table_that_copies_a_source_says_so(plan, shop, statement, key):
    plan(statement, distinct_names=False)
    assert said(shop).get("copied") == key


def test_names_with_an_underscore_are_told_to_the_source(plan, shop):
    plan(f"SELECT id FROM {TOPIC}")
    assert "system.columns" not in said(shop)
    kafka, shop.source = shop.source, lambda *asked: replace(kafka(*asked), schema=None)
    plan(f"SELECT id, _Offset FROM {TOPIC} WHERE _key IS NOT NULL")
    assert said(shop)["system.columns"] == "_key,_offset"


def test_a_star_leaves_system_columns_out(plan, shop):
    shop.add("topic", RelationKind.TABLE, shop.relations["bag"].schema, system=("b",))
    found = plan("CREATE TABLE t AS SELECT *, b AS c FROM topic")
    assert "EXCEPT" in found.sql.upper()
    found = plan("CREATE TABLE t AS SELECT x.*, x.b FROM topic x JOIN prices p ON x.b = p.sku")
    assert "EXCEPT" in found.sql.upper()
    with pytest.raises(ResolveError):
        plan("CREATE TABLE t AS SELECT q.b FROM (SELECT * FROM topic) q")


def test_a_bare_name_is_a_topic_where_brokers_are_known(plan, shop, monkeypatch):
    monkeypatch.delenv("VELOSTREAM_KAFKA_BROKERS", raising=False)
    with pytest.raises(ResolveError, match="clicks"):
        plan("SELECT id FROM clicks")
    monkeypatch.setenv("VELOSTREAM_KAFKA_BROKERS", "h:1")
    plan("CREATE TABLE t AS SELECT id PRIMARY KEY FROM web.clicks WITH ('format' = 'csv')")
    reference, _ = shop.asked[-1]
    assert (reference.kind, reference.uri) == ("kafka", "kafka://web.clicks")
    assert said(shop) == {"copied": "id", "format": "csv"}
    plan("SELECT id FROM orders LIMIT 1")
    assert len(shop.asked) == 1


def test_a_topic_that_is_missing_may_be_a_table_misspelt(plan, shop, monkeypatch):
    monkeypatch.setenv("VELOSTREAM_KAFKA_BROKERS", "h:1")

    def missing(reference, options):
        raise SourceError("no such topic", category=Category.MISSING)

    shop.source = missing
    with pytest.raises(ResolveError) as caught:
        plan("SELECT id FROM ordrs")
    assert 'did you mean "orders"' in caught.value.hint
    with pytest.raises(SourceError, match="no such topic"):
        plan("SELECT id FROM clicks")
