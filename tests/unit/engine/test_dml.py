"""INSERT, UPSERT, UPDATE, DELETE: counts, types, keys, atomicity, and what goes to Spark."""

import threading
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.engine import dml
from velostream.errors import NotExecutableError, ResolveError, TableError, ValidationError
from velostream.sql.parse import parse_statement


@pytest.fixture
def table(make_table):
    return make_table("t", ("id", "INT"), ("name", "STRING"), ("price", "DECIMAL(10,2)"), key=["id"])


@pytest.fixture
def bag(make_table):
    return make_table("bag", ("a", "INT"), ("b", "STRING"))


def run(table, sql, parameters=None, **options):
    statement = parse_statement(sql)
    function = {
        "INSERT": dml.insert_values,
        "UPSERT": dml.upsert_values,
        "UPDATE": dml.update,
        "DELETE": dml.delete,
    }[statement.kind]
    return function(table, statement, parameters, **options)


def rows(table):
    return [tuple(row.values()) for row in table.snapshot().scan().to_pylist()]


def test_insert_gives_the_number_of_rows(table):  # B47
    assert run(table, "INSERT INTO t VALUES (1, 'a', 1.50), (2, NULL, 2)") == 2
    assert rows(table) == [(1, "a", Decimal("1.50")), (2, None, Decimal("2.00"))]


def test_insert_into_some_columns_leaves_the_others_null(table):
    run(table, "INSERT INTO t (price, ID) VALUES (?, ?)", [Decimal("0.10"), 7])
    assert rows(table) == [(7, None, Decimal("0.10"))]


def test_named_parameters(table):
    run(table, "INSERT INTO t VALUES (:id, :name, :id * 2)", {"id": 3, "name": "it's"})
    assert rows(table) == [(3, "it's", Decimal("6.00"))]


@pytest.mark.parametrize(
    ("type_", "value", "stored"),
    [
        ("DECIMAL(10,2)", "3.105", Decimal("3.11")),
        ("DECIMAL(10,2)", "1", Decimal("1.00")),
        ("DECIMAL(10,2)", "1e1", Decimal("10.00")),
        ("INT", "1.9", 1),
        ("INT", "CAST(7 AS BIGINT)", 7),
        ("BIGINT", "10 * 10", 100),
        ("DOUBLE", "0.1", 0.1),
        ("FLOAT", "0.1", 0.10000000149011612),
        ("STRING", "12.50", "12.50"),
        ("STRING", "TRUE", "true"),
        ("STRING", "DATE '2024-01-01'", "2024-01-01"),
        ("DATE", "'2024-01-01'", date(2024, 1, 1)),
        ("DATE", "TIMESTAMP '2024-01-01 10:00:00'", date(2024, 1, 1)),
        ("TIMESTAMP", "'2024-01-01 10:00:00'", datetime(2024, 1, 1, 10, tzinfo=UTC)),
        ("TIMESTAMP", "DATE '2024-01-01'", datetime(2024, 1, 1, tzinfo=UTC)),
        ("BOOLEAN", "1 = 1", True),
        ("BINARY", "X'00FF'", b"\x00\xff"),
        ("INT", "NULL", None),
        ("ARRAY<DECIMAL(5,2)>", "ARRAY(1, 2.5, NULL)", [Decimal("1.00"), Decimal("2.50"), None]),
        ("MAP<STRING, INT>", "MAP('a', 1, 'b', 2)", [("a", 1), ("b", 2)]),
        ("STRUCT<x: INT, y: STRING>", "NAMED_STRUCT('y', 'b', 'x', 1)", {"x": 1, "y": "b"}),
        ("STRUCT<x: INT, y: ARRAY<INT>>", "STRUCT(1, ARRAY(2))", {"x": 1, "y": [2]}),
    ],
)
def test_values_take_the_columns_type(make_table, type_, value, stored):
    table = make_table("t", ("x", type_))
    run(table, f"INSERT INTO t VALUES ({value})")
    assert rows(table) == [(stored,)]


def test_python_lists_and_dicts_are_taken_for_nested_columns(make_table):
    table = make_table("t", ("a", "ARRAY<INT>"), ("m", "MAP<STRING, INT>"), ("s", "STRUCT<x: INT>"))
    run(table, "INSERT INTO t VALUES (?, ?, ?)", [[1, 2], {"k": 1}, {"x": 5}])
    assert rows(table) == [([1, 2], [("k", 1)], {"x": 5})]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("INT", "'1'"),
        ("DECIMAL(10,2)", "'1.5'"),
        ("DECIMAL(4,2)", "100"),
        ("DECIMAL(4,2)", "99.995"),
        ("TINYINT", "128"),
        ("INT", "CAST('NaN' AS DOUBLE)"),
        ("BOOLEAN", "1"),
        ("DATE", "1"),
        ("DATE", "'soon'"),
        ("BINARY", "1"),
    ],
)
def test_values_that_do_not_fit_are_refused(make_table, type_, value):
    table = make_table("t", ("x", type_))
    with pytest.raises(TableError) as raised:
        run(table, f"INSERT INTO t VALUES ({value})")
    assert raised.value.code == "wrong-type"
    assert raised.value.message.startswith(f'column "x" of table "t" is {type_} and can\'t hold ')
    assert rows(table) == []


def test_an_existing_key_is_refused_and_nothing_applied(table):  # B49
    run(table, "INSERT INTO t VALUES (1, 'a', 1)")
    with pytest.raises(TableError) as raised:
        run(table, "INSERT INTO t VALUES (2, 'b', 2), (1, 'again', 3)")
    assert raised.value.code == "duplicate-key"
    assert raised.value.message == 'key 1 exists already in table "t"'
    assert rows(table) == [(1, "a", Decimal("1.00"))]


def test_upsert_replaces_by_key(table):  # B46
    run(table, "INSERT INTO t VALUES (1, 'a', 1)")
    assert run(table, "UPSERT INTO t VALUES (1, 'b', 2), (2, 'c', 3)") == 2
    assert sorted(rows(table)) == [(1, "b", Decimal("2.00")), (2, "c", Decimal("3.00"))]


def test_upsert_needs_a_key(bag):
    with pytest.raises(TableError) as raised:
        run(bag, "UPSERT INTO bag VALUES (1, 'a')")
    assert raised.value.code == "no-key"


def test_unknown_columns_have_near_names_and_places(table):
    with pytest.raises(ResolveError) as raised:
        run(table, "INSERT INTO t (id, pric) VALUES (1, 2)")
    assert (raised.value.column, raised.value.hint) == (20, 'did you mean "price"?')
    with pytest.raises(ResolveError) as raised:
        run(table, "UPDATE t SET prce = 1")
    assert (raised.value.column, raised.value.hint) == (14, 'did you mean "price"?')
    with pytest.raises(ResolveError) as raised:
        run(table, "UPDATE t SET price = 1 WHERE nme = 'a'")
    assert raised.value.caret() == "UPDATE t SET price = 1 WHERE nme = 'a'\n                             ^^^"


def test_a_name_among_the_values_is_probably_text(table):
    with pytest.raises(ResolveError) as raised:
        run(table, 'INSERT INTO t VALUES (1, "apple", 2)')
    assert raised.value.hint == "text is written in single quotes: '…'"


@pytest.mark.parametrize("sql", ["INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (1, 'a', 2, 3)"])
def test_the_number_of_values_must_fit(table, sql):
    with pytest.raises(ValidationError) as raised:
        run(table, sql)
    assert raised.value.code == "wrong-number-of-values"


def test_a_column_given_or_set_twice_is_refused(table):
    for sql in ("INSERT INTO t (id, ID) VALUES (1, 2)", "UPDATE t SET name = 'a', NAME = 'b'"):
        with pytest.raises(ValidationError) as raised:
            run(table, sql)
        assert raised.value.code == "duplicate-column"


def test_update_counts_the_rows_of_its_condition(table):  # B47
    run(table, "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    assert run(table, "UPDATE t SET name = 'x', price = price * 1.1 WHERE id >= ?", [2]) == 2
    assert sorted(rows(table)) == [
        (1, "a", Decimal("1.00")),
        (2, "x", Decimal("2.20")),
        (3, "x", Decimal("3.30")),
    ]
    assert run(table, "UPDATE t SET name = 'y' WHERE id > 10") == 0


def test_update_computes_decimals_exactly_and_rounds_half_up(table):  # B19
    run(table, "INSERT INTO t VALUES (1, 'a', 1.05), (2, 'b', -1.05), (3, 'c', 99999999.99)")
    run(table, "UPDATE t SET price = price * 0.5 WHERE id < 3")
    assert sorted(rows(table))[:2] == [(1, "a", Decimal("0.53")), (2, "b", Decimal("-0.53"))]
    with pytest.raises(TableError) as raised:
        run(table, "UPDATE t SET price = price + 0.01")
    assert raised.value.code == "wrong-type"
    assert (1, "a", Decimal("0.53")) in rows(table)


def test_every_assignment_sees_the_row_before(make_table):
    table = make_table("t", ("a", "INT"), ("b", "INT"))
    run(table, "INSERT INTO t VALUES (1, 2)")
    run(table, "UPDATE t SET a = b, b = a")
    assert rows(table) == [(2, 1)]


def test_the_table_may_be_named_by_its_alias(table):
    run(table, "INSERT INTO t VALUES (1, 'a', 1)")
    assert run(table, "UPDATE t AS x SET name = concat(x.name, '!') WHERE x.id = 1") == 1
    assert run(table, "DELETE FROM t WHERE t.name = 'a!'") == 1


def test_keys_may_move_as_long_as_none_collide(table):  # B49
    run(table, "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    assert run(table, "UPDATE t SET id = id + 1") == 3
    assert min(rows(table)) == (2, "a", Decimal("1.00"))
    before = rows(table)
    for sql, key in (("UPDATE t SET id = 9", 9), ("UPDATE t SET id = 3 WHERE id = 2", 3)):
        with pytest.raises(TableError) as raised:
            run(table, sql)
        assert raised.value.message == f'key {key} exists already in table "t"'
        assert rows(table) == before


def test_composite_keys_collide_as_a_whole(make_table):
    table = make_table("t", ("a", "INT"), ("b", "STRING"), ("v", "INT"), key=["a", "b"])
    run(table, "INSERT INTO t VALUES (1, 'x', 1), (1, 'y', 2)")
    with pytest.raises(TableError) as raised:
        run(table, "UPDATE t SET b = 'x' WHERE v = 2")
    assert raised.value.message == "key (1, 'x') exists already in table \"t\""
    assert run(table, "UPDATE t SET b = 'z' WHERE v = 2") == 1


def test_duplicates_of_a_bag_change_one_by_one(bag):
    run(bag, "INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, 'y')")
    assert run(bag, "UPDATE bag SET b = 'z' WHERE a = 1") == 2
    assert sorted(rows(bag)) == [(1, "z"), (1, "z"), (2, "y")]
    assert run(bag, "DELETE FROM bag WHERE b = 'z'") == 2
    assert rows(bag) == [(2, "y")]


def test_delete_and_truncate(table):  # B47
    run(table, "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, NULL, 3)")
    assert run(table, "DELETE FROM t WHERE name = 'a' OR price > 2.5") == 2
    assert run(table, "DELETE FROM t") == 1
    run(table, "INSERT INTO t VALUES (1, 'a', 1)")
    assert dml.truncate(table) == 1
    assert rows(table) == []


def test_not_null_holds(sequence):
    from velostream.model.schema import Column, Schema

    schema = Schema((Column("a", pa.int32(), nullable=False), Column("b", pa.string())))
    table = sequence.create_table("t", name="t", schema=schema)
    for sql in ("INSERT INTO t (b) VALUES ('x')", "INSERT INTO t VALUES (NULL, 'x')"):
        with pytest.raises(TableError) as raised:
            run(table, sql)
        assert raised.value.code == "not-null"
    run(table, "INSERT INTO t VALUES (1, 'x')")
    with pytest.raises(TableError) as raised:
        run(table, "UPDATE t SET a = NULL")
    assert raised.value.code == "not-null"
    assert rows(table) == [(1, "x")]


def test_updates_from_many_threads_do_not_lose_one(make_table):
    table = make_table("t", ("id", "INT"), ("n", "INT"), key=["id"])
    run(table, "INSERT INTO t VALUES (1, 0)")
    statement = parse_statement("UPDATE t SET n = n + 1 WHERE id = 1")

    def count():
        for _ in range(50):
            dml.update(table, statement)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(table) == [(1, 200)]


def test_what_needs_spark_says_so_when_there_is_none(table):
    run(table, "INSERT INTO t VALUES (1, 'a', 1)")
    for sql in (
        "INSERT INTO t VALUES (2, reverse('ab'), 1)",
        "UPDATE t SET name = reverse(name)",
        "DELETE FROM t WHERE reverse(name) = 'a'",
    ):
        with pytest.raises(NotExecutableError, match="needs Spark: function reverse"):
            run(table, sql)


def test_spark_computes_the_values_it_alone_can(table):
    asked = []

    def evaluate(select, snapshot):
        asked.append(select.sql(dialect="spark"))
        return pa.table({"_0": pa.array(["ba"]), "_1": pa.array([Decimal("2.345")], pa.decimal128(4, 3))})

    sql = "INSERT INTO t VALUES (1, reverse('ab'), 1), (2, 'plain', round(?, 3))"
    assert run(table, sql, [Decimal("2.3454")], evaluate=evaluate) == 2
    assert asked == ["SELECT REVERSE('ab') AS _0, ROUND(CAST('2.3454' AS DECIMAL(5, 4)), 3) AS _1"]
    assert rows(table) == [(1, "ba", Decimal("1.00")), (2, "plain", Decimal("2.35"))]


def test_spark_computes_an_update_on_a_snapshot(table):
    run(table, "INSERT INTO t VALUES (1, 'ab', 1), (2, 'cd', 2)")
    asked = []

    def evaluate(select, snapshot):
        asked.append(select.sql(dialect="spark"))
        found = snapshot.scan().slice(0, 1)
        return found.append_column("_set_0", pa.array(["ba"]))

    assert run(table, "UPDATE t SET name = reverse(name) WHERE id = 1", evaluate=evaluate) == 1
    assert asked == ["SELECT `id`, `name`, `price`, REVERSE(name) AS _set_0 FROM `t` WHERE id = 1"]
    assert sorted(rows(table)) == [(1, "ba", Decimal("1.00")), (2, "cd", Decimal("2.00"))]


def test_spark_is_asked_again_when_the_table_changed_meanwhile(table):
    run(table, "INSERT INTO t VALUES (1, 'a', 1)")
    counts = []

    def evaluate(select, snapshot):
        counts.append(snapshot.count())
        if len(counts) == 1:
            run(table, "INSERT INTO t VALUES (2, 'b', 2)")
        return snapshot.scan()

    assert run(table, "DELETE FROM t WHERE reverse(name) <> ''", evaluate=evaluate) == 2
    assert counts == [1, 2]
    assert rows(table) == []
