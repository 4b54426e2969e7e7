"""MERGE by the rows of a stream: in order, each row seeing what the ones before it did, whatever ON compares."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import velostream
from velostream.engine.merge_rows import MergeChange
from velostream.errors import NotExecutableError, TableError, ValidationError
from velostream.model.change import Mode, Write
from velostream.model.schema import Schema
from velostream.sql.merging import plan_merge
from velostream.sql.parse import parse_statement
from velostream.sql.scope import Columns
from velostream.sql.statements import Merge
from velostream.tables.memory import CommitSequence

MOVES = Schema.of(("sku", "STRING"), ("kind", "STRING"), ("n", "INT"))
CLAUSES = """
    WHEN MATCHED AND m.kind = 'gone' THEN DELETE
    WHEN MATCHED THEN UPDATE SET n = t.n + m.n
    WHEN NOT MATCHED AND kind <> 'gone' THEN INSERT (sku, n) VALUES (sku, n)
"""


@pytest.fixture
def stock(make_table):
    table = make_table("stock", ("sku", "STRING"), ("n", "INT"), ("note", "STRING"), key=["sku"])
    put(table, ("apple", 100, "kept"), ("pear", 5, None))
    return table


def put(table, *rows):
    names = table.schema.names
    given_rows = [dict(zip(names, row, strict=True)) for row in rows]
    table.commit(Write(Mode.APPEND, pa.Table.from_pylist(given_rows, schema=table.schema.arrow)))


def content(table):
    return sorted((tuple(row.values()) for row in table.snapshot().scan().to_pylist()), key=repr)


def merge(table, sql, *moves, compute=None):
    """Run a MERGE whose source `m` gives these rows; its select list is done by hand, as Spark would."""

    def spark_is_not_needed(asked, _pairs):
        raise AssertionError(f"Spark was asked for {asked}")

    statement = parse_statement(sql)
    assert isinstance(statement, Merge)
    plan = plan_merge(statement, target=table.schema, source=Columns(MOVES.names, complete=True))
    rows = pa.Table.from_pylist([dict(zip(MOVES.names, move, strict=True)) for move in moves], schema=MOVES.arrow)
    items = [item.unalias() for item in plan.pairs.query.tree.expressions]
    driving = pa.Table.from_arrays([rows.column(item.name) for item in items], names=list(plan.pairs.driving))
    change = MergeChange(
        plan,
        table=table.name,
        schema=table.schema,
        driving=Schema.from_arrow(driving.schema),
        text=sql,
        compute=compute or spark_is_not_needed,
    )
    return change.merge(table, driving)


def test_each_row_sees_what_the_ones_before_it_did(stock):  # B48
    sql = f"MERGE INTO stock t USING moves m ON t.sku = m.sku {CLAUSES}"
    moves = [
        ("apple", "out", -3),
        ("fig", "in", 7),
        ("apple", "out", -4),
        ("fig", "out", -2),
        ("pear", "gone", 0),
        ("pear", "in", 1),
        ("none", "gone", 1),
    ]
    assert merge(stock, sql, *moves) == 6
    assert content(stock) == [("apple", 93, "kept"), ("fig", 5, None), ("pear", 1, None)]
    assert stock.version == 2, "the batch is one commit"


def test_null_keys_match_nothing_and_each_other_neither(make_table):
    bag = make_table("bag", ("sku", "STRING"), ("n", "INT"))
    put(bag, (None, 1))
    assert (
        merge(bag, f"MERGE INTO bag t USING moves m ON t.sku = m.sku {CLAUSES}", (None, "in", 2), (None, "in", 3)) == 2
    )
    assert content(bag) == [(None, 1), (None, 2), (None, 3)]


def test_one_row_changes_all_it_matches(make_table):
    bag = make_table("bag", ("sku", "STRING"), ("n", "INT"))
    put(bag, ("a", 1), ("a", 1), ("a", 5), ("b", 1))
    sql = "MERGE INTO bag t USING moves m ON t.sku = m.sku AND t.n < m.n WHEN MATCHED THEN UPDATE SET n = m.n * 10"
    assert merge(bag, sql, ("a", "x", 3), ("a", "x", 6)) == 3
    assert content(bag) == [("a", 30), ("a", 30), ("a", 60), ("b", 1)]


def test_all_columns_by_name(make_table):
    table = make_table("t", ("sku", "STRING"), ("n", "INT"), key=["sku"])
    put(table, ("a", 1))
    sql = "MERGE INTO t USING moves m ON t.sku = m.sku WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    assert merge(table, sql, ("a", "x", 2), ("b", "x", 3), ("b", "x", 4)) == 3
    assert content(table) == [("a", 2), ("b", 4)]


def test_a_key_that_moves_is_followed(stock):
    sql = "MERGE INTO stock t USING moves m ON t.sku = m.sku WHEN MATCHED THEN UPDATE SET sku = m.kind, n = t.n + 1"
    assert merge(stock, sql, ("apple", "fig", 0), ("fig", "date", 0), ("date", "apple", 0)) == 3
    assert content(stock) == [("apple", 103, "kept"), ("pear", 5, None)]
    with pytest.raises(TableError, match="pear"):
        merge(stock, sql, ("apple", "pear", 0))
    assert content(stock) == [("apple", 103, "kept"), ("pear", 5, None)]


def test_a_clause_computes_nothing_for_rows_of_others(stock):
    sql = """MERGE INTO stock t USING moves m ON t.sku = m.sku
        WHEN MATCHED AND m.kind = 'none' THEN UPDATE SET note = 'none'
        WHEN MATCHED THEN UPDATE SET n = CAST(m.kind AS INT)"""

    def compute(_sql, pairs):
        return pa.table({"v": [int(text) for text in pairs.column("_driving_1").to_pylist()]})

    assert merge(stock, sql, ("apple", "none", 0), ("pear", "20", 0), compute=compute) == 2
    assert content(stock) == [("apple", 100, "none"), ("pear", 20, None)]


@pytest.mark.parametrize("on", ["t.sku = m.sku", "t.sku <=> m.sku", "lower(t.sku) = m.sku AND t.n < 1000"])
@settings(max_examples=25, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["in", "gone"]), st.integers(1, 9)), max_size=12
    )
)
def test_as_if_rows_came_one_by_one(on, moves):
    schema = Schema.of(("sku", "STRING"), ("n", "INT"), key=["sku"])
    table = CommitSequence().create_table("stock", name="stock", schema=schema)
    model = {"a": 1}
    put(table, ("a", 1))
    merge(table, f"MERGE INTO stock t USING moves m ON {on} {CLAUSES}", *moves)
    for sku, kind, n in moves:
        if sku in model and kind == "gone":
            del model[sku]
        elif sku in model:
            model[sku] += n
        elif kind != "gone":
            model[sku] = n
    assert content(table) == sorted(model.items())


def test_what_a_stream_can_not_know_is_refused(stock):
    with pytest.raises(NotExecutableError, match="NOT MATCHED BY SOURCE"):
        merge(stock, "MERGE INTO stock USING m ON stock.sku = m.sku WHEN NOT MATCHED BY SOURCE THEN DELETE")
    with pytest.raises(ValidationError, match=r"WHEN NOT MATCHED can't read t\.n"):
        merge(
            stock,
            "MERGE INTO stock t USING m ON t.sku = m.sku WHEN NOT MATCHED THEN INSERT (sku, n) VALUES (m.sku, t.n)",
        )


def test_explain_and_validate_say_how_rows_are_found():
    sql = "MERGE INTO stock t USING {} m ON t.sku = m.sku AND m.n > 0 WHEN MATCHED THEN UPDATE SET n = m.{}"
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE stock (sku STRING PRIMARY KEY, n INT)")
        connection.execute("CREATE TABLE news (sku STRING, n INT)")
        connection.execute("CREATE STREAM moves (sku STRING, n INT) WITH ('source' = 'memory://moves')")
        followed = connection.execute("EXPLAIN " + sql.format("moves", "n")).fetchall()
        assert ('rows of "stock"', "found by sku") in followed
        once = connection.execute("EXPLAIN " + sql.format("news", "n")).fetchall()
        assert ('rows of "stock"', "joined with the source by Spark") in once
        assert connection.execute("VALIDATE " + sql.format("moves", "n")).fetchall() == []
        found = connection.execute("VALIDATE " + sql.format("movs", "n")).fetchall()
        assert [row[1] for row in found] == ['table "movs" does not exist']
