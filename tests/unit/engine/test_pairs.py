"""UPDATE … FROM, DELETE … USING and UPSERT … ON over driving rows: order, matches, keys, bags."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.engine.pairs import PairChange
from velostream.errors import TableError
from velostream.model.change import Mode, Write
from velostream.model.schema import Schema
from velostream.sql.pairs import plan_delete, plan_update, plan_upsert
from velostream.sql.parse import parse_statement
from velostream.sql.scope import Columns
from velostream.sql.statements import Delete, Update
from velostream.tables.memory import CommitSequence

ORDERS = Schema.of(("product", "STRING"), ("quantity", "INT"), ("n", "BIGINT"))


def spark_is_not_needed(sql, _pairs):
    raise AssertionError(f"Spark was asked for {sql}")


def orders(*rows):
    names = ORDERS.names
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=ORDERS.arrow)


def run(table, sql, rows, *, source=ORDERS, compute=spark_is_not_needed):
    """Run a statement whose source `o` gives these rows; its select list is done by hand, as Spark would."""
    statement = parse_statement(sql)
    columns = Columns(source.names, complete=True)
    if isinstance(statement, Update):
        plan, apply = plan_update(statement, target=table.schema, source=columns), PairChange.update
    elif isinstance(statement, Delete):
        plan, apply = plan_delete(statement, target=table.schema, source=columns), PairChange.delete
    else:
        items = Columns(tuple(item.alias_or_name for item in statement.query.tree.expressions), complete=True)
        plan, apply = (
            plan_upsert(statement, target=table.schema, source=items),
            PairChange.upsert,
        )
    items = [item.unalias() for item in plan.query.tree.expressions]
    arrays = [
        rows.column(item.name) if item.name in source.names else pa.repeat(int(item.name), rows.num_rows)
        for item in items
    ]
    driving = pa.Table.from_arrays(arrays, names=list(plan.driving))
    change = PairChange(
        plan,
        table=table.name,
        schema=table.schema,
        driving=Schema.from_arrow(driving.schema),
        text=sql,
        compute=compute,
    )
    return apply(change, table, driving)


@pytest.fixture
def stock(make_table):
    table = make_table("stock", ("product", "STRING"), ("stock", "INT"), ("last", "INT"), key=["product"])
    put(table, ("apple", 100, None), ("pear", 50, None))
    return table


@pytest.fixture
def bag(make_table):
    table = make_table("bag", ("product", "STRING"), ("stock", "INT"))
    put(table, ("apple", 1), ("apple", 1), ("apple", 2), ("pear", 3))
    return table


def put(table, *rows):
    names = table.schema.names
    records = [dict(zip(names, row, strict=True)) for row in rows]
    table.commit(Write(Mode.APPEND, pa.Table.from_pylist(records, schema=table.schema.arrow)))


def content(table):
    return sorted((tuple(row.values()) for row in table.snapshot().scan().to_pylist()), key=repr)


REDUCE = "UPDATE stock SET stock = stock - o.quantity, last = o.quantity FROM s o WHERE stock.product = o.product"


def test_changes_of_one_key_apply_in_order_each_seeing_the_one_before(stock):  # B48
    assert run(stock, REDUCE, orders(("apple", 3, 1), ("pear", 1, 2), ("apple", 4, 3), ("plum", 9, 4))) == 2
    assert content(stock) == [("apple", 93, 4), ("pear", 49, 1)]


def test_a_condition_on_the_table_sees_what_earlier_rows_did(stock):
    sql = REDUCE + " AND stock.stock >= o.quantity"
    assert run(stock, sql, orders(("apple", 60, 1), ("apple", 60, 2), ("apple", 40, 3))) == 1
    assert content(stock) == [("apple", 0, 40), ("pear", 50, None)]


@pytest.mark.parametrize("amounts", [(1, -1), (None, 1)])
def test_a_step_that_fails_on_the_way_is_not_made_up_for_by_the_next(make_table, amounts):
    table = make_table("t", ("k", "STRING"), ("v", "INT"), key=["k"])
    put(table, ("a", 2**31 - 1))
    rows = orders(*(("a", amount, 0) for amount in amounts))
    sql = "UPDATE t SET v = v + o.quantity FROM s o WHERE t.k = o.product"
    if None in amounts:
        run(table, sql, rows)
        assert content(table) == [("a", None)]
    else:
        with pytest.raises(TableError):
            run(table, sql, rows)
        assert content(table) == [("a", 2**31 - 1)]


def test_many_changes_of_one_row_are_one_step(make_table):
    table = make_table("t", ("k", "STRING"), ("v", "BIGINT"), ("w", "DECIMAL(20,4)"), key=["k"])
    put(table, ("a", 0, Decimal("0.0000")))
    rows = orders(*(("a", number, 2**40) for number in range(20_000)))
    sql = "UPDATE t SET v = v + o.n, w = w - o.quantity FROM s o WHERE t.k = o.product"
    assert run(table, sql, rows) == 1
    assert content(table) == [("a", 20_000 * 2**40, Decimal(-199_990_000).quantize(Decimal("0.0001")))]


def test_no_match_leaves_everything_as_it_was(stock):  # B45
    before = stock.version
    assert run(stock, REDUCE, orders(("plum", 3, 1), (None, 3, 1))) == 0
    assert stock.version == before


def test_several_rows_match_one_driving_row(bag):  # B45
    sql = "UPDATE bag SET stock = stock * 10 + o.quantity FROM s o WHERE bag.product = o.product"
    assert run(bag, sql, orders(("apple", 5, 1))) == 3
    assert content(bag) == [("apple", 15), ("apple", 15), ("apple", 25), ("pear", 3)]


def test_equal_rows_of_a_bag_change_together_in_every_round(bag):
    sql = "UPDATE bag SET stock = stock + o.quantity FROM s o WHERE bag.product = o.product"
    assert run(bag, sql, orders(("apple", 1, 1), ("apple", 10, 1))) == 3
    assert content(bag) == [("apple", 12), ("apple", 12), ("apple", 13), ("pear", 3)]


def test_a_condition_without_equality_compares_every_row(stock):
    sql = "UPDATE stock SET last = o.quantity FROM s o WHERE stock.stock > o.quantity"
    run(stock, sql, orders(("x", 70, 1), ("x", 60, 2), ("x", 10, 3)))
    assert content(stock) == [("apple", 100, 10), ("pear", 50, 10)]


def test_a_changed_lookup_column_is_seen_by_the_next_row(make_table):
    table = make_table("t", ("k", "STRING"), ("v", "INT"), key=["k"])
    put(table, ("a", 1), ("b", 2))
    sql = "UPDATE t SET k = concat(t.k, 'x') FROM s o WHERE t.k = o.product"
    run(table, sql, orders(("a", 0, 0), ("ax", 0, 0), ("b", 0, 0)))
    assert content(table) == [("axx", 1), ("bx", 2)]


def test_an_update_that_makes_two_rows_of_one_key_is_refused(stock):  # B49
    sql = "UPDATE stock SET product = 'pear' FROM s o WHERE stock.stock = o.quantity"
    with pytest.raises(TableError) as raised:
        run(stock, sql, orders(("x", 100, 1)))
    assert raised.value.code == "duplicate-key"
    assert content(stock) == [("apple", 100, None), ("pear", 50, None)]


def test_keys_of_other_widths_meet_and_those_too_wide_meet_nothing(make_table):
    table = make_table("t", ("id", "INT"), ("v", "INT"), key=["id"])
    put(table, (1, 0), (2, 0))
    sql = "UPDATE t SET v = o.quantity FROM s o WHERE t.id = o.n"
    assert run(table, sql, orders(("x", 7, 1), ("x", 8, 2**40))) == 1
    assert content(table) == [(1, 7), (2, 0)]


def test_delete_by_driving_rows(stock):  # B46
    sql = "DELETE FROM stock USING s o WHERE stock.product = o.product AND stock.stock > o.quantity"
    assert run(stock, sql, orders(("apple", 3, 1), ("apple", 4, 1), ("pear", 99, 1))) == 1
    assert content(stock) == [("pear", 50, None)]


@pytest.mark.parametrize("condition", ["bag.product = o.product", "bag.product <= o.product"])
def test_delete_of_equal_rows(bag, condition):
    assert run(bag, f"DELETE FROM bag USING s o WHERE {condition}", orders(("apple", 1, 1), ("apple", 1, 1))) == 3
    assert content(bag) == [("pear", 3)]


def test_delete_without_a_condition_empties_the_table(bag):
    assert run(bag, "DELETE FROM bag USING s o", orders(("x", 1, 1), ("x", 1, 1))) == 4
    assert content(bag) == []


def test_upsert_inserts_then_updates_alternating(stock):  # B46
    sql = "UPSERT INTO stock (product, stock) SELECT product, quantity FROM s o ON stock.product = o.product"
    put(stock, ("fig", 5, 77))
    run(stock, sql, orders(("plum", 1, 1), ("fig", 6, 1), ("plum", 2, 1), ("plum", 3, 1)))
    assert content(stock) == [("apple", 100, None), ("fig", 6, 77), ("pear", 50, None), ("plum", 3, None)]


def test_upsert_of_all_columns_by_key(make_table):
    table = make_table("t", ("product", "STRING"), ("quantity", "INT"), ("n", "INT"), key=["product"])
    put(table, ("a", 1, 1))
    sql = "UPSERT INTO t SELECT product, quantity, n FROM s o ON t.product = o.product"
    run(table, sql, orders(("a", 2, 2), ("b", 1, 1), ("a", 3, 3)))
    assert content(table) == [("a", 3, 3), ("b", 1, 1)]


def test_upsert_into_a_bag_changes_every_match_and_nulls_never_match(bag):
    sql = "UPSERT INTO bag SELECT product, quantity FROM s o ON bag.product = o.product"
    run(bag, sql, orders(("apple", 9, 1), (None, 1, 1), (None, 1, 1)))
    assert content(bag) == [("apple", 9), ("apple", 9), ("apple", 9), ("pear", 3), (None, 1), (None, 1)]


def test_upsert_on_any_condition(stock):  # B46
    sql = "UPSERT INTO stock (product, stock) SELECT product, quantity FROM s o ON stock.stock < o.quantity"
    run(stock, sql, orders(("fig", 10, 1), ("fig", 20, 1)))
    assert content(stock) == [("apple", 100, None), ("fig", 20, None), ("pear", 50, None)]


def test_upsert_by_another_column_than_the_key_holds_the_key(stock):
    sql = "UPSERT INTO stock (product, stock) SELECT product, quantity FROM s o ON stock.stock = o.quantity"
    with pytest.raises(TableError) as raised:
        run(stock, sql, orders(("apple", 7, 1)))
    assert raised.value.code == "duplicate-key"
    run(stock, sql, orders(("lime", 50, 1)))
    assert content(stock) == [("apple", 100, None), ("lime", 50, None)]


def test_upsert_that_moves_a_row_to_another_key(make_table):
    table = make_table("t", ("id", "INT"), ("v", "INT"), key=["id"])
    put(table, (1, 0), (2, 0))
    sql = "UPSERT INTO t SELECT quantity, n FROM s o ON t.id = o.n"
    run(table, sql, orders(("x", 7, 1), ("x", 8, 9)))
    assert content(table) == [(2, 0), (7, 1), (8, 9)]


def test_what_only_spark_computes_is_given_to_it(stock):
    def compute(sql, pairs):
        assert "regexp_replace" in sql.lower()
        assert pairs.num_rows == 1
        return pa.table({"holds": [True], "v0": [5]})

    value = "CAST(regexp_replace(stock.product, o.product, '5') AS INT)"
    sql = f"UPDATE stock SET stock = {value} FROM s o WHERE stock.product = o.product"
    run(stock, sql, orders(("apple", 1, 1)), compute=compute)
    assert content(stock) == [("apple", 5, None), ("pear", 50, None)]


def test_assigned_values_take_the_columns_type(make_table):
    table = make_table("t", ("product", "STRING"), ("price", "DECIMAL(10,2)"), key=["product"])
    put(table, ("a", Decimal("1.00")))
    run(table, "UPDATE t SET price = price + o.quantity FROM s o WHERE t.product = o.product", orders(("a", 2, 1)))
    assert content(table) == [("a", Decimal("3.00"))]


NAMES = ["a", "b", "c"]
rows_of_orders = st.lists(
    st.tuples(st.sampled_from([*NAMES, None]), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(
    held=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 5)), max_size=6),
    given_rows=rows_of_orders,
    keyed=st.booleans(),
    statement=st.sampled_from(
        [
            "UPDATE t SET v = v * 2 - o.quantity FROM s o WHERE t.k = o.product AND t.v >= o.quantity",
            "UPDATE t SET v = v - o.quantity FROM s o WHERE t.k = o.product",
            "UPDATE t SET v = o.quantity + t.v, w = o.n FROM s o WHERE t.k = o.product",
            "UPDATE t SET w = w - o.quantity, v = o.n FROM s o WHERE t.k = o.product",
            "DELETE FROM t USING s o WHERE t.k = o.product AND t.v >= o.quantity",
            "UPSERT INTO t (k, v) SELECT product, quantity FROM s o ON t.k = o.product",
        ]
    ),
)
def test_all_at_once_gives_what_one_after_another_gives(held, given_rows, keyed, statement):
    if keyed:
        held = list(dict(held).items())
        given_rows = [row for row in given_rows if row[0] is not None]
    contents = []
    for in_steps in (False, True):
        sequence = CommitSequence.open(None)
        schema = Schema.of(("k", "STRING"), ("v", "INT"), ("w", "DECIMAL(8,2)"), key=["k"] if keyed else [])
        table = sequence.create_table("t", name="t", schema=schema)
        put(table, *((k, v, None if v == 3 else Decimal(v) / 4) for k, v in held))
        for batch in [[row] for row in given_rows] if in_steps else [given_rows]:
            run(table, statement, orders(*batch))
        contents.append(content(table))
    assert contents[0] == contents[1]
