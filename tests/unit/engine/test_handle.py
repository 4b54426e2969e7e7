"""The table object: every call of the public interface, without Spark."""

import asyncio
import threading
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import velostream
from velostream.engine.handle import TableHandle
from velostream.errors import (
    NotExecutableError,
    NotFoundError,
    QueryError,
    ResolveError,
    TableError,
    UnsupportedError,
    ValidationError,
)
from velostream.model.expression import expr

COLUMNS = (("id", "INT"), ("name", "STRING"), ("price", "DECIMAL(10,2)"), ("tags", "ARRAY<STRING>"))


@pytest.fixture
def empty(make_table):
    return TableHandle(make_table("t", *COLUMNS, key=["id"]))


@pytest.fixture
def t(empty):
    empty.insert(
        [
            {"id": 1, "name": "apple", "price": Decimal("1.50"), "tags": ["fruit"]},
            {"id": 2, "name": "pear", "price": Decimal("2.50")},
            {"id": 3, "name": None, "price": Decimal("10.00")},
        ]
    )
    return empty


def ids(rows):
    return [row["id"] for row in rows]


def test_get_and_contains(t):
    row = t.get(1)
    assert row["price"] == Decimal("1.50")
    assert dict(row) == row.as_dict() == {"id": 1, "name": "apple", "price": Decimal("1.50"), "tags": ["fruit"]}
    assert t.get(9) is None
    assert (t.contains(2), t.contains(9), 2 in t) == (True, False, True)
    assert len(t) == 3


def test_get_without_a_key_says_how_to_declare_one(make_table):
    with pytest.raises(TableError) as raised:
        TableHandle(make_table("bag", ("a", "INT"))).get(1)
    assert raised.value.code == "no-key"
    assert "PRIMARY KEY" in raised.value.hint


def test_a_composite_key_is_a_tuple(make_table):
    t = TableHandle(make_table("c", ("a", "INT"), ("b", "STRING"), ("v", "INT"), key=["a", "b"]))
    t.insert({"a": 1, "b": "x", "v": 5})
    assert t.get((1, "x"))["v"] == 5
    assert t.lookup([(1, "x"), (1, "y")], ["v"]).to_pylist() == [{"v": 5}]
    assert t.bulk_delete([(1, "x")]).rowcount == 1


def test_filter(t):
    assert ids(t.filter("price > 2")) == [2, 3]
    assert ids(t.filter("name = ? OR id = ?", ["apple", 3])) == [1, 3]
    assert ids(t.filter("price < :most", {"most": 2})) == [1]
    assert ids(t.filter("t.id = 2")) == [2]
    assert ids(t.filter(None)) == [1, 2, 3]
    assert ids(t.filter("name <> 'pear'")) == [1]  # B16
    found = t.filter("price > 2")
    assert (len(found), found[0]["id"], found[-1]["id"], ids(found[:1])) == (2, 2, 3, [2])


def test_exists_and_column_values(t):
    assert t.exists("name LIKE 'a%'")
    assert not t.exists("price > 100")
    assert t.column_values("NAME") == ["apple", "pear", None]
    assert t.column_values("price", "id <= ?", [2]) == [Decimal("1.50"), Decimal("2.50")]
    with pytest.raises(NotFoundError, match='column "nam" does not exist'):
        t.column_values("nam")


def test_scalar(t):  # B17
    assert t.scalar("SUM(price)") == Decimal("14.00")
    assert t.scalar("count(*)", "price > 2") == 2
    assert t.scalar("COUNT(DISTINCT name)") == 2
    assert t.scalar("avg(id)") == 2.0
    assert t.scalar("MAX(price * 2)", "id < 3") == Decimal("5.00")
    assert t.scalar("price", "id = ?", [1]) == Decimal("1.50")
    assert t.scalar("price * id", "id = 2") == Decimal("5.00")
    assert t.scalar("name", "id = 99") is None
    assert t.scalar("sum(price)", "id = 99") is None
    with pytest.raises(QueryError, match='scalar "name" has 3 rows'):  # B36
        t.scalar("name")
    with pytest.raises(ResolveError):
        t.scalar("SUM(pric)")


def test_a_scalar_is_worked_out_anew_and_understood_once(t, monkeypatch):
    assert t.scalar("SUM(price)", "id < 3") == Decimal("4.00")
    monkeypatch.setattr("velostream.engine.scalar.parse_expression", None)
    t.delete("id = 1")
    assert t.scalar("SUM(price)", "id < 3") == Decimal("2.50")
    assert t.scalar("SUM(price)") == Decimal("12.50")


def test_rows_of_a_filter_stay_those_of_its_version(t):
    few, many = t.filter("id = 2"), t.filter("price > 1")
    t.update(None, {"name": "changed"})
    t.delete("id = 2")
    assert (few[0]["name"], few[-1]["id"], few.arrow().num_rows) == ("pear", 2, 1)
    assert few == [{"id": 2, "name": "pear", "price": Decimal("2.50"), "tags": None}]
    assert [row["name"] for row in many[1:]] == ["pear", None]
    assert repr(few).startswith("[{'id': 2, 'name': 'pear'")
    with pytest.raises(IndexError):
        few[1]


def test_an_unknown_column_is_an_error_not_an_empty_result(t):  # B16
    with pytest.raises(ResolveError) as raised:
        t.filter("prise > 1")
    assert raised.value.hint == 'did you mean "price"?'
    assert raised.value.caret() == "prise > 1\n^^^^^"


def test_insert_takes_rows_and_arrow(empty):
    assert empty.insert({"id": 1}).rowcount == 1
    assert empty.insert(iter([{"ID": 2}, {"id": 3, "price": 1}])).rowcount == 2
    arrow = pa.table({"id": pa.array([4], pa.int64()), "name": ["x"]})
    assert empty.bulk_insert(arrow).rowcount == 1
    assert empty.bulk_insert(arrow.slice(0, 0)).rowcount == 0
    assert empty.bulk_insert(pa.table({"id": [5]}).to_pandas()).rowcount == 1
    assert sorted(ids(empty.scan())) == [1, 2, 3, 4, 5]


def test_insert_refuses_what_is_not_a_row_of_the_table(t):
    with pytest.raises(NotFoundError) as raised:
        t.insert({"id": 9, "prise": 1})
    assert raised.value.hint == 'did you mean "price"?'
    with pytest.raises(TableError):
        t.insert({"id": 9, "price": Decimal("1.005")})
    with pytest.raises(TableError, match="key 1 exists"):
        t.insert([{"id": 9}, {"id": 1}])
    assert len(t) == 3


def test_upsert(t):
    assert t.upsert([{"id": 1, "name": "a"}, {"id": 4}]).rowcount == 2
    assert t.get(1).as_dict() == {"id": 1, "name": "a", "price": None, "tags": None}
    assert len(t) == 4


def test_update_by_values_and_by_expressions(t):
    result = t.update("id <= 2", {"price": expr("price * 1.1"), "name": "price * 1.1", "tags": ["a", "b"]})
    assert result.rowcount == 2
    assert t.get(1).as_dict() == {"id": 1, "name": "price * 1.1", "price": Decimal("1.65"), "tags": ["a", "b"]}
    assert t.update(None, {"name": None}).rowcount == 3
    with pytest.raises(TableError):
        t.update("id = 1", {"price": "cheap"})
    with pytest.raises(NotFoundError):
        t.update("id = 1", {"pric": 1})
    with pytest.raises(TableError, match="key 3 exists"):
        t.update("id = 1", {"id": 3})


def test_update_by_what_was_compiled_before(t):
    condition, assignments = t.compile_condition("id = ?", [2]), t.compile_update_set({"price": expr("price + 1")})
    for _ in range(2):
        assert t.update(condition, assignments).rowcount == 1
    assert t.get(2)["price"] == Decimal("4.50")
    assert ids(t.filter(condition)) == [2]


def test_delete(t):
    assert t.delete("price > :p", {"p": Decimal("2.5")}).rowcount == 1
    assert t.delete("id = 99").rowcount == 0
    assert t.delete(None).rowcount == 2
    assert len(t) == 0


def test_bulk_update_and_bulk_delete(t):
    assert t.bulk_update([{"id": 1, "name": "A"}, {"id": 99, "name": "?"}]).rowcount == 1
    assert t.get(1).as_dict() == {"id": 1, "name": "A", "price": Decimal("1.50"), "tags": ["fruit"]}
    assert t.bulk_update(pa.table({"id": [2, 3], "price": [Decimal("0.10"), None]})).rowcount == 2
    assert t.column_values("price", "id = 2") == [Decimal("0.10")]
    assert t.bulk_delete([1, 1, 77]).rowcount == 1
    assert t.bulk_delete(pa.array([2])).rowcount == 1
    with pytest.raises(TableError, match='lack the key column "id"'):
        t.bulk_update([{"name": "x"}])


def test_lookup_answers_in_the_order_of_the_keys(t):
    assert t.lookup([3, 9, 1], ["name", "id"]).to_pylist() == [{"name": None, "id": 3}, {"name": "apple", "id": 1}]
    assert t.lookup(pa.array([2, None])).column("id").to_pylist() == [2]


def test_find_rows_for_join(t):  # B28
    batch = pa.record_batch({"sku": pa.array([2, 2, None, 7]), "name": pa.array(["pear", "x", "apple", "apple"])})
    by_key = t.find_rows_for_join(batch, {"sku": "id"})
    assert list(zip(by_key["_position"].to_pylist(), by_key["id"].to_pylist(), strict=True)) == [(0, 2), (1, 2)]
    by_name = t.find_rows_for_join(batch, "name")
    assert list(zip(by_name["_position"].to_pylist(), by_name["id"].to_pylist(), strict=True)) == [
        (0, 2),
        (2, 1),
        (3, 1),
    ]


def test_pages_give_each_row_once(t):  # B22
    pages = [t.query_batch(2, offset) for offset in (0, 2, 4)]
    assert [ids(page.rows) for page in pages] == [[1, 2], [3], []]
    assert [page.has_more for page in pages] == [True, False, False]
    assert not t.query_batch(3).has_more
    with pytest.raises(ValidationError):
        t.query_batch(0)


def test_streams_of_rows_are_of_one_version(t):
    rows = t.stream_all()
    first = next(rows)
    t.delete(None)
    assert [first["id"], *ids(rows)] == [1, 2, 3]
    assert ids(t.stream_filter("id = 1")) == []
    assert list(t) == []


def test_streams_of_rows_can_be_awaited(t):
    async def gathered(rows):
        return [row["id"] async for row in rows]

    assert asyncio.run(gathered(t.stream_all())) == [1, 2, 3]
    assert asyncio.run(gathered(t.stream_filter("price > ?", [2]))) == [2, 3]
    t.delete(None)
    assert asyncio.run(gathered(t.stream_all())) == []


def test_a_compiled_condition_says_how_its_rows_are_found(t):  # B20
    by_key, by_scan = t.compile_condition("id = 2 AND price > 1"), t.compile_condition("price > 1")
    assert (by_key.access, by_scan.access) == ("key", "scan")
    assert by_scan.remainder is None
    assert ids(t.filter(by_key)) == [2]


def test_arrow_df_and_snapshots(t):
    before = t.snapshot()
    t.insert({"id": 4})
    assert t.arrow().num_rows == 4
    assert list(t.df()["id"]) == [1, 2, 3, 4]
    assert (before.count(), t.snapshot().count()) == (3, 4)
    assert t.version > before.version
    assert t.snapshot(t.version).count() == 4


def test_conditions_are_compiled_once(make_table):  # B23
    table = make_table("t", *COLUMNS, key=["id"])
    t, other = TableHandle(table), TableHandle(table)
    for value in (1, 2):
        t.insert({"id": value})
        assert len(t.filter("id > 0")) == value
    assert len(other.filter("id > 0")) == 2
    assert (t.stats()["condition_hits"], t.stats()["condition_misses"]) == (2, 1)
    assert t.stats()["rows"] == 2
    t.filter("id = ?", [1])
    t.filter("id = ?", [1.0])
    t.filter("id = ?", [1])
    assert (t.stats()["condition_hits"], t.stats()["condition_misses"]) == (3, 3)


def test_a_condition_beyond_the_table_goes_to_spark(make_table):
    table = make_table("t", *COLUMNS, key=["id"])
    asked = []

    def evaluate(select, snapshot):
        asked.append(select.sql(dialect="spark"))
        return snapshot.scan().slice(0, 1)

    t = TableHandle(table, evaluate=evaluate)
    t.insert([{"id": 1, "name": "a"}, {"id": 2}])
    assert ids(t.filter("reverse(name) = ?", ["it's"])) == [1]
    assert t.exists("reverse(name) = 'a'")
    assert t.column_values("id", "reverse(name) = 'a'") == [1]
    asks = "SELECT * FROM `t` WHERE REVERSE(name) = "
    assert asked == [f"{asks}'it\\'s'", f"{asks}'a'", f"{asks}'a'"]


def test_a_scalar_beyond_the_table_goes_to_spark(make_table):
    table = make_table("t", *COLUMNS, key=["id"])
    asked = []

    def evaluate(select, snapshot):
        asked.append((select.sql(dialect="spark"), snapshot.count()))
        return pa.table({"value": [56.0]})

    t = TableHandle(table, evaluate=evaluate)
    t.insert({"id": 1})
    assert t.scalar("var_pop(id)", "id > 0") == 56.0
    assert asked == [("SELECT VAR_POP(id) AS value FROM `t` WHERE id > 0", 1)]


def test_without_spark_it_is_said_what_would_be_needed(t):
    for call in (lambda: t.filter("reverse(name) = 'a'"), lambda: t.scalar("var_pop(id)")):
        with pytest.raises(NotExecutableError, match="needs Spark"):
            call()
    with pytest.raises(UnsupportedError):
        t.spark()


def test_a_view_is_read_only(make_table):
    view = TableHandle(make_table("v", *COLUMNS, key=["id"]), writable=False)
    writes = [
        lambda: view.insert({"id": 1}),
        lambda: view.upsert({"id": 1}),
        lambda: view.update("id = 1", {"name": "x"}),
        lambda: view.delete("id = 1"),
        lambda: view.delete(None),
        lambda: view.bulk_insert([{"id": 1}]),
        lambda: view.bulk_update([{"id": 1}]),
        lambda: view.bulk_delete([1]),
    ]
    for write in writes:
        with pytest.raises(UnsupportedError) as raised:
            write()
        assert raised.value.code == "view-not-writable"
    assert len(view) == 0


def test_seed_names_and_monitoring(make_table):
    updated_at = datetime(2024, 1, 1, tzinfo=UTC)
    t = TableHandle(make_table("t", *COLUMNS, key=["id"]), spark=lambda: "frame", last_updated=lambda: updated_at)
    t.insert({"id": 1, "name": "a", "tags": ["x"]})
    assert t.get_record(1)["name"] == "a"
    assert t.contains_key(1)
    assert t.record_count() == 1
    assert ids(t.find("id = 1")) == ids(t.sql_filter("id = 1")) == ids(t.all_rows()) == [1]
    assert t.sql_exists("id = 1")
    assert t.sql_column_values("name") == ["a"]
    assert t.sql_scalar("COUNT(*)") == 1
    assert t.clone_table().count() == 1
    assert t.get_stats()["rows"] == 1
    assert t.health_check()["healthy"]
    assert t.datasource_type() == "inMemory"
    assert t.last_updated() == updated_at
    assert t.spark() == "frame"
    assert t.sql_wildcard_values("tags[*]") == ["x"]
    assert t.sql_wildcard_aggregate("COUNT(tags[*])") == 1


def test_many_threads_read_and_write(make_table):
    t = TableHandle(make_table("t", ("id", "INT"), ("n", "INT"), key=["id"]))
    t.insert([{"id": number, "n": 0} for number in range(4)])
    failures = []

    def work(number):
        try:
            for _ in range(25):
                t.update("id = ?", {"n": expr("n + 1")}, [number])
                assert sum(t.column_values("n")) >= 0
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert t.column_values("n", "n = 25") == [25] * 4


@pytest.mark.parametrize("durable", [False, True])
def test_a_few_rows_are_written_alike_with_and_without_a_log(tmp_path, durable):
    with velostream.connect(tmp_path) if durable else velostream.connect() as con:
        con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, a STRING, b DOUBLE)")
        table = con.table("t")
        assert table.insert({"id": 1, "a": "x", "b": 1}).rowcount == 1
        assert table.insert([{"id": 2, "A": "y"}, {"id": 3, "b": 3.0}]).rowcount == 2
        with pytest.raises(TableError, match="1"):
            table.insert([{"id": 9}, {"id": 1}])
        with pytest.raises(NotFoundError):
            table.insert({"id": 9, "unknown": 1})
        assert table.upsert([{"id": 3, "a": "z"}, {"id": 4}, {"id": 4, "a": "last"}]).rowcount == 3
        assert table.bulk_update([{"id": 1, "a": "X"}, {"id": 2, "b": 2.5}, {"id": 7, "a": "nobody"}]).rowcount == 2
        assert table.bulk_update([{"id": 4, "b": 4.0}, {"id": 8, "b": 8.0}]).rowcount == 1
        assert table.bulk_delete([3, 3, 99]).rowcount == 1
        assert table.insert([]).rowcount == table.bulk_delete([]).rowcount == 0
        assert sorted(tuple(row.as_dict().values()) for row in table.filter("id > 0")) == [
            (1, "X", None),
            (2, None, 2.5),
            (4, "last", 4.0),
        ]
