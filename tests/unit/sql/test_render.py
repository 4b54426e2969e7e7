"""Statements to text and back: whatever stands in names, strings, options and addresses."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from velostream.sql import parse_statement, render
from velostream.sql.dialect import Velostream
from velostream.sql.statements import (
    Create,
    Insert,
    Name,
    OptionValue,
    Query,
    Select,
    SetOption,
    Show,
    ShowKind,
    SourceRef,
)

readable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
names = readable.filter(lambda name: name.strip() and "`" not in name) | st.sampled_from(
    ["a", "key", "select", "order", "a.b"]
)
options = st.dictionaries(readable.filter(bool).map(str.lower), readable, max_size=3).map(
    lambda values: tuple(OptionValue(name, value) for name, value in values.items())
)
thorough = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def parsed_again(text: str) -> None:
    statement = parse_statement(text)
    rendered = render(statement)
    assert parse_statement(rendered) == statement
    assert render(parse_statement(rendered)) == rendered


@thorough
@given(name=names, key=readable.filter(bool), value=readable, like=readable)
def test_names_settings_and_patterns(name, key, value, like):
    for statement in (SetOption(key, value), Show(ShowKind.STATUS, Name(name), like)):
        assert parse_statement(render(statement)) == statement


@thorough
@given(options=options)
def test_options_of_a_statement(options):
    select = parse_statement("SELECT * FROM t WHERE a")
    assert isinstance(select, Select)
    statement = Select(select.query, options)
    assert parse_statement(render(statement)) == statement


@thorough
@given(address=readable, options=options, scheme=st.sampled_from(["memory", "file", "kafka", "postgres"]))
def test_sources_and_sinks(address, options, scheme):
    uri = f"{scheme}://{address}"
    source = SourceRef("source_0", scheme, uri, options)
    tree = parse_statement(f"SELECT * FROM {string(uri)} AS x").query.tree
    select = Select(Query(tree, (source,)))
    assert parse_statement(render(select)) == select
    insert = Insert(SourceRef("target", scheme, uri, options), query=parse_statement("SELECT 1").query)
    assert parse_statement(render(insert)) == insert


@thorough
@given(column=names, table=names, alias=names, text=readable)
def test_queries_with_odd_names_and_strings(column, table, alias, text):
    parsed_again(
        f"SELECT {quoted(column)} AS {quoted(alias)} PRIMARY KEY FROM {quoted(table)} WHERE x = {string(text)}"
    )
    parsed_again(
        f"UPDATE {quoted(table)} SET {quoted(column)} = {string(text)} WHERE {quoted(alias)} LIKE {string(text)}"
    )


@thorough
@given(text=readable)
def test_a_string_means_to_spark_what_it_means_here(text):
    tree = parse_statement(f"SELECT {string(text)}").query.tree
    spelled = tree.sql(dialect="spark")
    assert tree.expressions[0].name == text
    assert [token.text for token in Velostream().tokenize(spelled)][1] == text


relations = st.sampled_from(
    [
        "t",
        "t u",
        "memory://m",
        "file:///d/*.csv f WITH (a = b)",
        "kafka_topic('k') k",
        "(SELECT * FROM memory://n) n",
        "t VERSION AS OF 3",
    ]
)
joins = st.sampled_from(
    [
        "",
        ", v",
        " JOIN v ON TRUE",
        " LEFT JOIN memory://w w WITH (c = d) USING (id)",
        " JOIN v WITHIN 5m ON a = b",
        " ASOF JOIN v MATCH_CONDITION (a >= b) ON c = d",
        " CROSS JOIN v",
        " LATERAL VIEW explode(z) e AS y",
    ]
)
items = st.lists(
    st.sampled_from(
        [
            "*",
            "a",
            "b AS c",
            "t.d",
            "COUNT(*) AS n",
            "x.*.y",
            "e[0].f",
            "now()",
            "g > ANY (SELECT h FROM t)",
            "SUM(i) OVER (PARTITION BY j)",
            "CASE WHEN k THEN 1 END",
            "k PRIMARY KEY",
            "l + m AS o PRIMARY KEY",
        ]
    ),
    min_size=1,
    max_size=3,
).map(", ".join)
tails = st.sampled_from(
    ["", " WHERE a > 1", " GROUP BY a", " GROUP BY a HAVING COUNT(*) > 1", " ORDER BY a DESC LIMIT 3"]
)
windows = st.sampled_from(
    ["", " WINDOW TUMBLING(ts, 5m)", " WINDOW SESSION(30s)", " WINDOW HOPPING(ts, 10 minutes, 1m)"]
)
emits = st.sampled_from(["", " EMIT CHANGES", " EMIT FINAL"])
withs = st.sampled_from(["", " WITH ('p.q' = 'r', s = 5s)"])
heads = st.sampled_from(
    [
        "",
        "CREATE TABLE t AS ",
        "CREATE OR REPLACE TABLE t (a INT PRIMARY KEY) AS ",
        "CREATE STREAM s AS ",
        "INSERT INTO t ",
        "INSERT INTO kafka://out (a, b) ",
        "EXPLAIN ",
        "VALIDATE INSERT INTO t ",
        "UPSERT INTO t ",
    ]
)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(head=heads, item=items, relation=relations, join=joins, tail=tails, window=windows, emit=emits, options=withs)
def test_every_combination_of_clauses(head, item, relation, join, tail, window, emit, options):
    parsed_again(f"{head}SELECT {item} FROM {relation}{join}{tail}{window}{emit}{options}")


def test_columns_of_every_type():
    statement = parse_statement(
        "CREATE TABLE t (a BOOLEAN, b INT NOT NULL, c BIGINT, d DOUBLE, e DECIMAL(38,18), f STRING, g BINARY, h DATE,"
        " i TIMESTAMP, j TIMESTAMP_NTZ, k ARRAY<MAP<STRING, STRUCT<x: INT, `y z`: ARRAY<DATE>>>>, PRIMARY KEY (b, f))"
    )
    assert isinstance(statement, Create)
    assert parse_statement(render(statement)) == statement
