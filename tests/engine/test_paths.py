"""Wildcard paths in SQL against Spark: the same answers over structs, maps, arrays, VARIANTs and JSON text."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import velostream

POSITIONS = {
    "AAPL": {"shares": 150, "price": Decimal("150.25")},
    "MSFT": {"shares": 75, "price": Decimal("330.25")},
    "TSLA": {"shares": 25, "price": Decimal("450.50")},
}
ORDERS = [
    {"id": 1, "amount": Decimal("10.50"), "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}]},
    {"id": 2, "amount": Decimal("200.00"), "items": []},
    {"id": 3, "amount": None, "items": None},
]
DOCUMENT = json.dumps(
    {"zones": {"z": 1, "a": 2}, "positions": POSITIONS, "orders": ORDERS, "users": [{"name": "Ann"}, {"name": "Bob"}]},
    default=float,
)
POSITION = "STRUCT<shares: INT, price: DECIMAL(10,2)>"


@pytest.fixture(scope="module")
def connection(spark_kept):
    with velostream.connect() as opened:
        opened.execute(f"""
            CREATE TABLE funds (
                id INT PRIMARY KEY,
                by_name MAP<STRING, {POSITION}>,
                fixed STRUCT<AAPL: {POSITION}, MSFT: {POSITION}, TSLA: {POSITION}>,
                orders ARRAY<STRUCT<id: INT, amount: DECIMAL(10,2), items: ARRAY<STRUCT<sku: STRING, n: INT>>>>,
                document STRING)
        """)
        opened.table("funds").insert(
            [
                {"id": 1, "by_name": POSITIONS, "fixed": POSITIONS, "orders": ORDERS, "document": DOCUMENT},
                {"id": 2, "by_name": {}, "fixed": None, "orders": [], "document": "no document"},
                {"id": 3, "by_name": None, "fixed": None, "orders": None, "document": None},
            ]
        )
        yield opened


def test_lists_are_those_of_the_api(connection):  # B24 B26
    paths = [
        "by_name.*.shares",
        "fixed.*.price",
        "fixed.**.price",
        "by_name.**.shares",
        "orders[*].amount",
        "orders[1].amount",
        "orders[-2].id",
        "orders[*].items[-1].n",
        "orders[0:2].id",
        "orders[-2:].id",
        "orders[amount > 100].id",
        "orders[amount > 1 AND id < 2].items[*].sku",
        "orders.**.sku",
        "by_name.nothing.*",
    ]
    table = connection.table("funds")
    items = ", ".join(f"{path} AS p{number}" for number, path in enumerate(paths))
    rows = connection.execute(f"SELECT {items} FROM funds ORDER BY id").fetchall()
    for number, path in enumerate(paths):
        found = [row[number] for row in rows]
        values = [value for one in found if one is not None for value in (one if isinstance(one, list) else [one])]
        assert values == table.wildcard_values(path), path


_NAMES = st.sampled_from(["a", "A", "b", "price"])
_NUMBERS = st.integers(-3, 200)
_PRICES = st.none() | st.decimals(0, 99, places=2)
_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "Fixed": st.none() | st.fixed_dictionaries({"A": _NUMBERS, "Price": _PRICES}),
            "named": st.none() | st.dictionaries(_NAMES, _PRICES, max_size=3),
            "listed": st.none()
            | st.lists(st.none() | st.fixed_dictionaries({"Id": _NUMBERS, "price": _PRICES}), max_size=3),
            "document": st.none()
            | st.just("plain text")
            | st.recursive(
                _NUMBERS | st.booleans() | st.text("xy", max_size=2),
                lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_NAMES, inner, max_size=3),
                max_leaves=8,
            ).map(json.dumps),
        }
    ),
    min_size=10,
    max_size=20,
)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=_ROWS)
def test_sql_and_the_api_find_the_same(connection, rows):  # B24 B26 B27
    connection.execute("""
        CREATE OR REPLACE TABLE nested (
            id INT PRIMARY KEY, Fixed STRUCT<A: INT, Price: DECIMAL(10,2)>, named MAP<STRING, DECIMAL(10,2)>,
            listed ARRAY<STRUCT<Id: INT, price: DECIMAL(10,2)>>, document STRING)
    """)
    table = connection.table("nested")
    table.insert([{"id": number, **row} for number, row in enumerate(rows)])
    paths = [
        *("fixed.**", "FIXED.**.price", "named.*", "named.**.a", "listed[*].ID", "listed[PRICE > 10].id", "listed.**"),
        *("document.*", "document.**", "document.**.price", "document.a[*]", "document.**.a"),
        *("**.price", "**.a", "**.Id", "*.price", "*.a", "**.fixed.price", "**.document.a", "**.named.**"),
    ]
    items = ", ".join(f"{path} AS p{number}" for number, path in enumerate(paths))
    found = connection.execute(f"SELECT {items} FROM nested ORDER BY id").fetchall()
    for number, path in enumerate(paths):
        values = [_plain(value) for row in found for value in row[number]]
        assert values == [_plain(value) for value in table.wildcard_values(path)], path
    aggregates = ["COUNT(**.price)", "COUNT(*.a)", "SUM(listed.**.PRICE)", "AVG(named.*)", "MIN(fixed.**.a)"]
    values = connection.execute(f"SELECT {', '.join(aggregates)} FROM nested").fetchone()
    assert list(values) == [table.wildcard_aggregate(one) for one in aggregates]


def _plain(value):
    """A value as SQL and the API both know it: SQL gives one type for all, which may be text."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        value = json.loads(value, parse_float=Decimal)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, bool):
        return str(value).lower()
    return str(Decimal(value).normalize()) if str(value).lstrip("-")[:1].isdigit() else value


def test_one_number_from_the_end_is_one_value(connection):
    rows = connection.execute("SELECT orders[-2].amount, document.users[1].name FROM funds ORDER BY id").fetchall()
    assert rows == [(Decimal("200.00"), "Bob"), (None, None), (None, None)]


def test_every_form_of_the_data_gives_the_same_aggregates(connection):  # B27
    heads = ["by_name", "fixed", "document.positions", "v.positions"]
    items = ", ".join(
        f"COUNT({head}.*.price) AS c{n}, SUM({head}.*.price) AS s{n}, AVG({head}.*.price) AS a{n}, "
        f"MIN({head}.*.price) AS l{n}, MAX({head}.*.shares) AS h{n}"
        for n, head in enumerate(heads)
    )
    source = "(SELECT *, try_parse_json(document) AS v FROM funds) f"
    expected = (3, Decimal("931.00"), Decimal("310.333333"), Decimal("150.25"), 150)
    for select in (f"SELECT {items} FROM {source}", f"SELECT id, {items} FROM {source} ORDER BY id"):
        row = connection.execute(select).fetchall()[0][-5 * len(heads) :]
        for number in range(len(heads)):
            count, total, average, least, most = row[5 * number : 5 * number + 5]
            assert (count, total, average.quantize(Decimal("0.000001")), least, most) == expected
    empty = connection.execute(f"SELECT id, {items} FROM {source} WHERE id > 1").fetchall()
    assert [row[1:] for row in empty] == [(0, None, None, None, None) * len(heads)] * 2
    nothing = connection.execute(f"SELECT {items} FROM {source} WHERE id > 9").fetchall()
    assert nothing == [(0, None, None, None, None) * len(heads)]


def test_text_out_of_documents_keeps_its_order_and_its_digits(connection):
    row = connection.execute(
        "SELECT document.zones.*, document.positions.*.price, CAST(document.**.n AS ARRAY<INT>), document.users[*] "
        "FROM funds WHERE id = 1"
    ).fetchone()
    assert row == (["1", "2"], ["150.25", "330.25", "450.5"], [1, 2], ['{"name":"Ann"}', '{"name":"Bob"}'])


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("ANY(by_name.*.shares) > 100 AND ANY(document.positions.*.shares) > 100", [1]),
        ("ALL(fixed.*.shares) > 100", [2, 3]),
        ("NOT 26 > SOME(fixed.*.shares)", [2, 3]),
        ("ANY(document.users[*].name) LIKE 'B%' AND ANY(orders[*].items[*].sku) IN ('b', 'c')", [1]),
        ("ANY(document.users[*].name) > 1", []),
        ("SUM(orders[*].amount) BETWEEN 210 AND 211 OR COUNT(document.users[*]) = 0", [1, 2, 3]),
    ],
)
def test_conditions_over_values(connection, condition, ids):
    assert [row[0] for row in connection.execute(f"SELECT id FROM funds WHERE {condition} ORDER BY id")] == ids


def test_tables_and_dml_take_conditions_over_values(connection):
    assert [row["id"] for row in connection.table("funds").filter("ANY(by_name.*.shares) > 100")] == [1]
    connection.execute("CREATE TABLE sums (id INT PRIMARY KEY, items ARRAY<INT>, total BIGINT)")
    connection.execute("INSERT INTO sums VALUES (1, array(1, 2), 0), (2, array(9), 0)")
    connection.execute("DELETE FROM sums WHERE ANY(items[*]) > 8")
    connection.execute("UPDATE sums SET total = SUM(items[*])")
    assert connection.execute("SELECT id, total FROM sums").fetchall() == [(1, 3)]


def test_views_and_streams_follow_paths():
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE carts (id INT PRIMARY KEY, items ARRAY<STRUCT<n: INT>>, note STRING)")
        connection.execute("CREATE TABLE listed AS SELECT id, items[*].n AS n, note.a AS a FROM carts")
        connection.execute(
            "CREATE TABLE totals AS SELECT id % 2 AS odd, SUM(items[*].n) AS n FROM carts GROUP BY id % 2"
        )
        carts = connection.table("carts")
        carts.insert(
            [{"id": 1, "items": [{"n": 1}, {"n": 2}], "note": '{"a": "x"}'}, {"id": 2, "items": [], "note": ""}]
        )
        carts.insert([{"id": 3, "items": [{"n": 4}], "note": None}])
        assert sorted(connection.execute("SELECT * FROM listed")) == [(1, [1, 2], "x"), (2, [], None), (3, [4], None)]
        assert sorted(connection.execute("SELECT * FROM totals")) == [(0, None), (1, 7)]
        carts.delete("id = 1")
        assert sorted(connection.execute("SELECT * FROM totals")) == [(0, None), (1, 4)]
        connection.execute("CREATE TABLE sums AS SELECT id, SUM(items[*].n) AS n FROM memory://orders")
        connection.memory("orders").append([{"id": 1, "items": [{"n": 1}, {"n": 5}]}, {"id": 2, "items": []}])
        connection.drain("sums", timeout=120)
        assert sorted(connection.execute("SELECT * FROM sums")) == [(1, 6), (2, None)]
