"""What is ClickHouse's own: its types, its comparisons, its errors. The engine is real, its HTTP layer a stand-in."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

import velostream
from velostream.errors import Category, StateError, StoreError, UnsupportedError
from velostream.model.change import Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.grouping import Grouping, Measure, MeasureKind
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec
from velostream.tables.clickhouse import ClickhouseTable
from velostream.tables.memory.evaluate import CannotCompile, evaluate_expression
from velostream.testing.foreign_tables import ClickhouseForeignTable
from velostream.testing.services.clickhouse import ClickhouseService
from velostream.testing.table_conditions import CONDITIONS, TRICKY, tricky_rows

Open = Callable[..., ClickhouseTable]


@pytest.fixture(scope="module")
def server() -> ClickhouseService:
    return ClickhouseService(url=ClickhouseService.shared().new_database())


@pytest.fixture
def attach(server):
    """Opens a table of the server: `attach("t", ("id", "BIGINT"), key=["id"])`."""
    opened = []

    def attach(name, *columns, key=(), **options):
        spec = TableSpec(name, name, Schema.of(*columns, key=key), options={"url": server.url} | options)
        opened.append(ClickhouseTable.open(spec))
        return opened[-1]

    yield attach
    for table in opened:
        table.close()


def test_every_type_is_read_without_loss(server, attach):
    columns = {
        "flag": ("Bool", "BOOLEAN", "true", True),
        "tiny": ("Int8", "TINYINT", "-128", -128),
        "byte": ("UInt8", "SMALLINT", "255", 255),
        "count": ("UInt32", "BIGINT", "4294967295", 4294967295),
        "total": ("UInt64", "DECIMAL(20,0)", "18446744073709551615", Decimal(18446744073709551615)),
        "price": ("Nullable(Decimal(10, 2))", "DECIMAL(12,3)", "-0.5", Decimal("-0.500")),
        "wide": ("Decimal(38, 0)", "DECIMAL(38,0)", "'" + "9" * 38 + "'", Decimal("9" * 38)),
        "ratio": ("Float32", "DOUBLE", "0.5", 0.5),
        "name": ("LowCardinality(Nullable(String))", "STRING", "'é\\n'", "é\n"),
        "data": ("FixedString(2)", "BINARY", "unhex('00FF')", b"\0\xff"),
        "kind": ("Enum8('a' = 1, 'b' = 2)", "STRING", "'b'", "b"),
        "id": ("UUID", "STRING", "'61f0c404-5cb3-11e7-907b-a6006ad3dba0'", "61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
        "day": ("Date", "DATE", "'2024-02-29'", date(2024, 2, 29)),
        "past": ("Date32", "DATE", "'1900-01-01'", date(1900, 1, 1)),
        "second": ("DateTime('Asia/Tokyo')", "TIMESTAMP", "1", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        "instant": (
            "DateTime64(6, 'UTC')",
            "TIMESTAMP",
            "'1969-12-31 23:59:59.999999'",
            datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        ),
        "numbers": ("Array(Nullable(Int32))", "ARRAY<INT>", "[1, NULL]", [1, None]),
        "named": ("Map(String, Decimal(5, 2))", "MAP<STRING, DECIMAL(5,2)>", "{'a': 1.5}", [("a", Decimal("1.50"))]),
        "place": (
            "Tuple(x Int64, tags Array(String))",
            "STRUCT<x: BIGINT, tags: ARRAY<STRING>>",
            "(1, ['a'])",
            {"x": 1, "tags": ["a"]},
        ),
    }
    declared = ", ".join(f"`{name}` {type_}" for name, (type_, *_) in columns.items())
    server.execute(f"CREATE TABLE every ({declared}) ENGINE = MergeTree ORDER BY tuple()")
    server.execute(f"INSERT INTO every VALUES ({', '.join(value for _, _, value, _ in columns.values())})")
    table = attach("every", *((name, type_) for name, (_, type_, *_) in columns.items()), key=["id"])
    (row,) = table.snapshot().scan().to_pylist()
    assert row == {name: value for name, (*_, value) in columns.items()}
    assert table.snapshot().contains(columns["id"][-1])
    assert table.snapshot().lookup_by(["data"], pa.array([b"\0\xff", b""]), ["tiny"]).column("tiny").to_pylist() == [
        -128
    ]
    assert table.snapshot().lookup_by(["ratio"], pa.array([0.5, -0.0]), ["tiny"]).num_rows == 1


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("UInt64", "BIGINT"),
        ("Int64", "INT"),
        ("Decimal(10, 3)", "DECIMAL(10,2)"),
        ("DateTime64(9)", "TIMESTAMP"),
        ("Float64", "FLOAT"),
        ("IPv6", "STRING"),
        ("Tuple(Int64, Int64)", "STRUCT<a: BIGINT, b: BIGINT>"),
    ],
)
def test_a_type_that_would_lose_something_is_refused(server, attach, stored, asked):
    name = f"refused_{uuid.uuid4().hex[:8]}"
    server.execute(f"CREATE TABLE {name} (x {stored}) ENGINE = Memory")
    with pytest.raises(StateError, match="other columns") as caught:
        attach(name, ("x", asked))
    assert (caught.value.code, stored.split("(")[0] in caught.value.detail) == ("schema-mismatch", True)


def test_any_condition_is_answered_as_by_the_memory_table(server, attach):  # B15, B16, B21
    rows = tricky_rows()
    # Days and instants that ClickHouse can hold; conditions speak of others, too.
    for name, values in {
        "day": [date(1900, 1, 1), date(2024, 2, 29), date(2299, 12, 31), None],
        "at": [datetime(2024, 3, 31, 1, 30, 0, 1, tzinfo=UTC), None],
    }.items():
        place = rows.schema.get_field_index(name)
        column = [values[number % len(values)] for number in range(rows.num_rows)]
        rows = rows.set_column(place, rows.schema.field(name), pa.array(column, rows.schema.field(name).type))
    ClickhouseForeignTable(server.url, "tricky", rows)
    table = attach("tricky", *((column.name, column.sql_type) for column in TRICKY.columns), key=["id"])
    pushed = 0

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(CONDITIONS)
    def check(condition):
        nonlocal pushed
        try:
            mask = evaluate_expression(condition, rows)
        except CannotCompile:
            return
        found = table.snapshot().scan(condition, ["id"]).column("id").to_pylist()
        assert sorted(found) == rows.filter(mask).column("id").to_pylist()
        pushed += table.compile_condition(condition).remainder is None

    check()
    assert pushed


def test_names_are_quoted_and_values_bound(server, attach):
    odd = 'o"dd {p0} `x` \\ %s'
    escaped = odd.replace("\\", "\\\\").replace("`", "\\`")
    server.execute(f"CREATE TABLE odd (`{escaped}` Nullable(String)) ENGINE = Memory")
    server.execute("INSERT INTO odd VALUES ({value:String}), (NULL)", value="a' OR '1'='1")
    table = attach("odd", (odd, "STRING"))
    for value, expected in (("a' OR '1'='1", 1), ("a", 0), ("\\N", 0), ("{p0:String}", 0)):
        condition = Call("=", (ColumnRef(odd), Literal(value, pa.string())))
        assert table.compile_condition(condition).remainder is None
        assert table.snapshot().count(condition) == expected
    assert table.stamp() is None


def test_sums_are_exact_beyond_what_clickhouse_calls_a_sum(server, attach):
    server.execute("CREATE TABLE sums (g Nullable(String), n Int64, d Decimal(18, 2)) ENGINE = MergeTree ORDER BY n")
    server.execute("INSERT INTO sums VALUES ('a', 9223372036854775807, 0.1), ('a', 1, 0.2), (NULL, 5, -1)")
    table = attach("sums", ("g", "STRING"), ("n", "BIGINT"), ("d", "DECIMAL(18,2)"))
    measures = (Measure(MeasureKind.SUM, "n"), Measure(MeasureKind.SUM, "d"), Measure(MeasureKind.MAX, "g"))
    found = table.snapshot().group(Grouping(measures, ("g",)))
    assert found is not None
    assert sorted(map(tuple, map(dict.values, found.to_pylist())), key=str) == [
        ("a", Decimal(2**63), Decimal("0.30"), "a"),
        (None, Decimal(5), Decimal("-1.00"), None),
    ]
    assert "toDecimal256" in (table.compile_grouping(Grouping(measures)) or "")


def test_it_is_only_read(server, attach):
    server.execute("CREATE TABLE fixed (id Int64, at Int64) ENGINE = MergeTree ORDER BY (at, id)")
    table = attach("fixed", ("id", "BIGINT"), ("at", "BIGINT"), key=["id"])
    for refused in (
        lambda: table.commit(Write(Mode.APPEND, pa.table({"id": [1], "at": [1]}))),
        lambda: table.create_index(["id"]),
        table.exclusive,
        table.follow,
    ):
        with pytest.raises(UnsupportedError) as caught:
            refused()
        assert caught.value.code == "unsupported-capability"
    table.drop()
    assert server.execute("EXISTS TABLE fixed") == b"1\n"
    by_key, by_index = (Call("=", (ColumnRef(name), Literal(1, pa.int64()))) for name in ("id", "at"))
    assert (table.compile_condition(by_key).access, table.compile_condition(by_index).access) == ("key", "index")


def test_a_wrong_password_is_said_without_telling_it(server):
    parts = urlsplit(server.url)
    url = parts._replace(netloc=f"default:open-sesame@{parts.hostname}:{parts.port}").geturl()
    with pytest.raises(StoreError) as caught:
        ClickhouseTable.open(TableSpec("t", "t", Schema.of(("id", "BIGINT")), options={"url": url}))
    assert caught.value.category is Category.AUTHENTICATION
    assert "open-sesame" not in str(caught.value)


def test_it_is_a_table_like_any_other_to_sql(server):
    server.execute("CREATE TABLE sales (id Int64, shop String, amount Decimal(10, 2)) ENGINE = MergeTree ORDER BY id")
    server.execute("INSERT INTO sales VALUES (1, 'a', 1.5), (2, 'b', 2), (3, 'a', 0.25)")
    with velostream.connect() as connection:
        connection.execute(
            "CREATE TABLE sales (id BIGINT PRIMARY KEY, shop STRING, amount DECIMAL(10,2)) "
            f"WITH ('extension' = 'clickhouse', 'url' = '{server.url}')"
        )
        found = connection.execute("SELECT shop, sum(amount) FROM sales WHERE id < 9 GROUP BY shop ORDER BY shop")
        assert found.fetchall() == [("a", Decimal("1.75")), ("b", Decimal("2.00"))]
        assert connection.table("sales").get(3)["amount"] == Decimal("0.25")
        explained = dict(connection.execute("EXPLAIN SELECT max(id) FROM sales WHERE shop = 'a'").fetchall())
        assert explained["groups"].startswith('computed by clickhouse: SELECT MAX("id") FROM "sales"')
        for statement in ("INSERT INTO sales VALUES (4, 'c', 1)", "DELETE FROM sales", "UPDATE sales SET shop = 'x'"):
            with pytest.raises(UnsupportedError) as caught:
                connection.execute(statement)
            assert caught.value.code == "unsupported-capability"
        with pytest.raises(UnsupportedError, match='kind "clickhouse" can\'t do "changes"'):
            connection.subscribe("sales")
        connection.execute("DROP TABLE sales")
    assert server.execute("SELECT count() FROM sales") == b"3\n"
