"""What is MySQL's and MariaDB's own: collations, hidden keys, errors, replicas, other programs at the same tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pymysql
import pytest

from velostream.engine.grouping import columns_read, grouped
from velostream.errors import Category, StateError, StoreError, TableError, VelostreamError
from velostream.model.change import Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.grouping import Grouping, Measure, MeasureKind
from velostream.model.schema import Schema
from velostream.tables.base import Table, TableSpec
from velostream.tables.mysql import MysqlTable
from velostream.tables.mysql_driver import failure_of
from velostream.tables.relational.dialect import Trouble
from velostream.testing.services.mysql import MysqlService

Open = Callable[..., MysqlTable]
Run = Callable[..., Sequence[Any]]


@pytest.fixture(scope="module")
def url() -> str:
    return MysqlService.shared().new_database()


@pytest.fixture
def theirs(url: str) -> Iterator[Run]:
    """Another program at the database."""
    with connected(url) as run:
        yield run


@pytest.fixture
def open_table(url: str) -> Iterator[Open]:
    opened: list[Table] = []

    def open_(schema: Schema, table: str, **options: str) -> MysqlTable:
        named = {name.replace("_", "."): value for name, value in options.items()}
        spec = TableSpec(table, table, schema, {"url": url, "table": table, "retry.timeout": "2s", **named})
        made = MysqlTable.open(spec)
        opened.append(made)
        return made

    yield open_
    for table in opened:
        table.close()


class connected:  # noqa: N801 - reads as what it gives
    """A plain connection of the driver, as `with connected(url) as run: run("SELECT …")`."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._connection = pymysql.connect(
            host="127.0.0.1", port=place.port, user="root", database=place.path[1:], autocommit=True, charset="utf8mb4"
        )

    def __enter__(self) -> Run:
        def run(statement: str, *values: Any) -> Sequence[Any]:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, values or None)
                return cursor.fetchall()

        return run

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def rows_of(schema: Schema, *rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema.arrow)


def upsert(table: Table, *rows: tuple[Any, ...]) -> None:
    table.commit(Write(Mode.UPSERT, rows_of(table.schema, *rows)))


def values(table: Table, column: str) -> list[Any]:
    return table.snapshot().scan().column(column).to_pylist()


@pytest.mark.parametrize(
    ("code", "trouble", "category"),
    [
        (1049, Trouble.OTHER, Category.MISSING),
        (1146, Trouble.OTHER, Category.MISSING),
        (1045, Trouble.OTHER, Category.AUTHENTICATION),
        (2003, Trouble.TRANSIENT, Category.NETWORK),
        (2013, Trouble.TRANSIENT, Category.NETWORK),
        (1213, Trouble.TRANSIENT, Category.CONCURRENCY),
        (1062, Trouble.DUPLICATE, Category.CONFLICT),
        (1406, Trouble.CONSTRAINT, Category.DATA),
        (1064, Trouble.OTHER, Category.CONFIGURATION),
        (9999, Trouble.OTHER, Category.UNKNOWN),
    ],
)
def test_errors_are_told_by_their_codes(code: int, trouble: Trouble, category: Category):  # B4
    failure = failure_of(pymysql.err.OperationalError(code, "so it is"), shown=str)
    assert (failure.trouble, failure.category) == (trouble, category)


@pytest.mark.parametrize(
    ("change", "category"),
    [
        ({"database": "no_such_database"}, Category.MISSING),
        ({"username": "nobody", "password": "hidden-word"}, Category.AUTHENTICATION),
        ({"port": "1"}, Category.NETWORK),
    ],
)
def test_a_store_that_can_not_be_used_says_why_and_keeps_the_password(
    open_table: Open, change: dict[str, str], category: Category
):  # B54
    with pytest.raises(StoreError) as caught:
        open_table(Schema.of(("id", "INT"), key=["id"]), "t", **change)
    assert caught.value.category is category
    assert "hidden-word" not in str(caught.value)


def test_others_write_tables_with_hidden_keys_as_they_write_any(open_table: Open, theirs: Run):
    schema = Schema.of(("name", "STRING"), ("at", "TIMESTAMP"), ("n", "INT"), key=["name", "at"])
    table = open_table(schema, "hidden_keys")
    at = datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    upsert(table, ("x" * 100_000, at, 1), ("a", None, 2), (None, None, 3))
    theirs("INSERT INTO hidden_keys (name, at, n) VALUES ('a ', NULL, 4)")
    for name, instant in (("a", None), (None, None), ("x" * 100_000, "2024-01-02 03:04:05.000006")):
        with pytest.raises(pymysql.err.IntegrityError):
            theirs("INSERT INTO hidden_keys (name, at, n) VALUES (%s, %s, 9)", name, instant)
    upsert(table, ("a ", None, 5), (None, None, 6))
    assert sorted(values(table, "n")) == [1, 2, 5, 6]
    assert table.snapshot().get(("x" * 100_000, at))["n"] == 1  # type: ignore[index]


def test_groups_are_told_apart_exactly_whatever_their_collation_calls_equal(open_table: Open, theirs: Run):
    theirs(
        "CREATE TABLE grouped (id INT PRIMARY KEY, name VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, "
        "other VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_swedish_ci, amount DECIMAL(10,2), count INT UNSIGNED)"
    )
    names = [("a", "é"), ("A", "e"), ("a ", "é"), ("ä", "E"), (None, None), ("a", "é ")]
    for number, (name, other) in enumerate(names):
        theirs("INSERT INTO grouped VALUES (%s, %s, %s, 1.5, 4294967295)", number, name, other)
    columns = (("name", "STRING"), ("other", "STRING"), ("amount", "DECIMAL(10,2)"), ("count", "BIGINT"))
    table = open_table(Schema.of(("id", "BIGINT"), *columns, key=["id"]), "grouped", access="read-only")
    measures = (
        *(Measure(MeasureKind.DISTINCT, name) for name in ("name", "other")),
        *(Measure(MeasureKind.SUM, name) for name in ("amount", "count")),
        Measure(MeasureKind.MIN, "name"),
        Measure(MeasureKind.MAX, "other"),
    )
    for by in (("name",), ("other",), ("name", "other")):
        grouping = Grouping(measures, by)
        found = table.snapshot().group(grouping)
        assert found is not None
        expected = grouped(table.snapshot().scan(None, columns_read(grouping)), grouping, table.schema)
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))


def test_keys_of_others_are_found_exactly_whatever_their_collation_calls_equal(open_table: Open, theirs: Run):
    theirs(
        "CREATE TABLE people (name VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_swedish_ci PRIMARY KEY, "
        "town VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci)"
    )
    theirs("INSERT INTO people VALUES ('Zoë', 'Köln'), ('anna', 'KÖLN')")
    table = open_table(Schema.of(("name", "STRING"), ("town", "STRING"), key=["name"]), "people")
    snapshot = table.snapshot()
    asked = pa.array(["anna", "Anna", "anna ", "Zoë", "Zoe", "日本"])
    assert snapshot.lookup(asked, ["name"]).column("_position").to_pylist() == [0, 3]
    assert snapshot.lookup_by(["town"], pa.array(["KÖLN", "köln"]), ["name"]).to_pylist() == [
        {"_position": 0, "name": "anna"}
    ]
    assert snapshot.count(Call("=", (ColumnRef("town"), Literal("köln", pa.string())))) == 0
    assert snapshot.count(Call("<", (ColumnRef("town"), Literal("a", pa.string())))) == 2
    for mode in (Mode.APPEND, Mode.UPSERT):
        with pytest.raises(TableError):
            table.commit(Write(mode, rows_of(table.schema, ("ANNA", "x"))))
    upsert(table, ("anna", "Bonn"))
    assert table.snapshot().get("anna")["town"] == "Bonn"  # type: ignore[index]


def test_many_values_find_their_rows_without_an_index(open_table: Open):
    schema = Schema.of(("id", "INT"), ("t", "STRING"), ("d", "DECIMAL(10,2)"), ("b", "BINARY"), ("f", "DOUBLE"))
    table = open_table(schema, "without_index")
    rows = [(n, f"é{n}", Decimal(n), bytes([n % 256, n // 256]), n / 4) for n in range(300)]
    table.commit(Write(Mode.APPEND, rows_of(schema, *rows, (300, None, None, None, None), rows[7])))
    snapshot = table.snapshot()
    for column in ("t", "d", "b", "f"):
        asked = rows_of(schema, *rows[:250]).column(column)
        found = snapshot.lookup_by([column], asked, ["id"])
        assert found.column("id").to_pylist() == [*range(8), 7, *range(8, 250)], column
    table.commit(Write(Mode.DELETE, rows_of(schema, *rows[:299], (300, None, None, None, None))))
    assert sorted(values(table, "id")) == [7, 299]


def test_an_index_takes_texts_of_any_length(open_table: Open, theirs: Run):
    schema = Schema.of(("id", "INT"), ("%s note", "STRING"), ("n", "INT"), key=["id"])
    table = open_table(schema, "noted")
    for columns in (["%s note"], ["n", "%s note"], ["%s note"]):
        table.create_index(columns)
    upsert(table, (1, "x" * 5000, 1), (2, "x" * 5000 + "y", 1))
    again = open_table(schema, "noted")
    again.create_index(["%s note"])
    assert again.snapshot().lookup_by(["%s note"], pa.array(["x" * 5000]), ["id"]).column("id").to_pylist() == [1]
    for _ in range(2):
        table.drop_index(["%s note"])
    assert len(theirs("SHOW INDEX FROM noted WHERE Key_name LIKE 'velostream%' AND Seq_in_index = 1")) == 1


def test_columns_of_others_are_read_and_written_in_their_types(open_table: Open, theirs: Run):
    theirs(
        "CREATE TABLE varied (id INT UNSIGNED PRIMARY KEY, flag TINYINT(1), at TIMESTAMP(6) NULL, price DOUBLE, "
        "kind ENUM('a', 'b'), doc LONGTEXT, made DATETIME DEFAULT CURRENT_TIMESTAMP)"
    )
    schema = Schema.of(
        ("id", "BIGINT"),
        ("flag", "BOOLEAN"),
        ("at", "TIMESTAMP"),
        ("price", "DOUBLE"),
        ("kind", "STRING"),
        ("doc", "STRUCT<a: INT>"),
        key=["id"],
    )
    table = open_table(schema, "varied")
    row = (1, True, datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC), 0.1, "b", {"a": 1})
    upsert(table, row, (2, None, None, None, None, None))
    assert table.snapshot().scan().to_pylist()[0] == rows_of(schema, row).to_pylist()[0]
    assert theirs("SELECT flag, price, kind FROM varied WHERE id = 1") == ((1, 0.1, "b"),)
    above = Call(">", (ColumnRef("price"), Literal(0.05, pa.float64())))
    assert table.compile_condition(above).remainder is None
    assert table.snapshot().count(above) == 1
    changed = (1, False, None, -1.5, "a", {"a": None})
    upsert(table, changed)
    assert table.snapshot().scan().to_pylist()[0] == rows_of(schema, changed).to_pylist()[0]
    for id_, price, kind in ((3, None, "c"), (1, float("nan"), "a"), (3, float("inf"), "a")):
        with pytest.raises(TableError):
            upsert(table, (id_, None, None, price, kind, None))
    narrow = Schema.of(("id", "INT"), ("flag", "BOOLEAN"), key=["id"])
    with pytest.raises(StateError, match="id"):
        open_table(narrow, "varied")


def test_a_value_the_store_would_round_is_refused(open_table: Open, theirs: Run):
    theirs("CREATE TABLE rounded (id BIGINT PRIMARY KEY, n DECIMAL(8,2), at DATETIME(3))")
    schema = Schema.of(("id", "BIGINT"), ("n", "DECIMAL(10,4)"), ("at", "TIMESTAMP"), key=["id"])
    table = open_table(schema, "rounded")
    at = datetime(2024, 1, 1, 0, 0, 0, 123000, tzinfo=UTC)
    upsert(table, (1, Decimal("1.2500"), at))
    for row in ((2, Decimal("1.2345"), None), (2, None, at.replace(microsecond=1))):
        for mode in (Mode.UPSERT, Mode.APPEND):
            with pytest.raises(TableError):
                table.commit(Write(mode, rows_of(schema, row)))
    assert table.snapshot().scan().to_pylist() == rows_of(schema, (1, Decimal("1.2500"), at)).to_pylist()


def test_another_unique_index_never_takes_a_row_for_one_of_the_key(open_table: Open, theirs: Run):
    theirs("CREATE TABLE accounts (id BIGINT PRIMARY KEY, email VARCHAR(50) UNIQUE, n INT)")
    schema = Schema.of(("id", "BIGINT"), ("email", "STRING"), ("n", "INT"), key=["id"])
    table = open_table(schema, "accounts")
    upsert(table, (1, "a", 1), (2, "b", 1))
    upsert(table, (1, "a", 2), (3, "c", 2))
    with pytest.raises(TableError):
        upsert(table, (2, "b", 3), (4, "a", 3))
    assert theirs("SELECT id, email, n FROM accounts ORDER BY id") == ((1, "a", 2), (2, "b", 1), (3, "c", 2))


def test_days_that_never_were_are_told(open_table: Open, theirs: Run):
    theirs("CREATE TABLE zero_days (id INT PRIMARY KEY, on_day DATE)")
    theirs("SET SESSION sql_mode = ''")
    theirs("INSERT INTO zero_days VALUES (1, '0000-00-00')")
    table = open_table(Schema.of(("id", "INT"), ("on_day", "DATE"), key=["id"]), "zero_days")
    with pytest.raises(TableError) as caught:
        table.snapshot().scan()
    assert caught.value.code == "wrong-type"


class _Replica(MysqlService):
    """A server that follows another."""

    def command(self) -> Sequence[str]:
        return [*(part for part in super().command() if part != "--server-id=1"), "--server-id=2", "--read-only"]


def test_reads_go_to_the_replica_and_writes_to_the_server(eventually: Callable[..., None]):
    schema = Schema.of(("id", "INT"), ("name", "STRING"), key=["id"])
    with MysqlService() as primary, _Replica() as replica, connected(replica.url) as at_replica:
        with connected(primary.url) as at_primary:
            at_primary("CREATE USER copier IDENTIFIED BY 'copies'")
            at_primary("GRANT REPLICATION SLAVE ON *.* TO copier")
        at_replica(
            f"CHANGE MASTER TO master_host = '127.0.0.1', master_port = {primary.port}, master_user = 'copier', "
            "master_password = 'copies', master_use_gtid = slave_pos"
        )
        at_replica("START SLAVE")
        options = {"url": primary.url, "read.replica.url": replica.url, "retry.timeout": "2s"}
        table = MysqlTable.open(TableSpec("t", "t", schema, options))
        try:
            _write_and_see(table, at_replica, eventually)
        finally:
            table.close()


def _write_and_see(table: MysqlTable, at_replica: Run, eventually: Callable[..., None]) -> None:
    def rows_at_replica() -> object:
        # Until then the replica has no such table.
        with suppress(VelostreamError):
            return table.snapshot().count()
        return None

    upsert(table, (1, "a"))
    eventually(lambda: rows_at_replica() == 1, seconds=30, what="the row's arrival")
    at_replica("STOP SLAVE")
    upsert(table, (2, "b"))
    assert table.version == 2
    assert (table.snapshot().version, table.snapshot().count(), table.contains(2)) == (1, 1, False)
    with table.exclusive():
        assert (table.snapshot().version, table.contains(2)) == (2, True)
    at_replica("START SLAVE")
    eventually(lambda: rows_at_replica() == 2, seconds=30, what="the row's arrival")
    assert table.snapshot().version == 2
    assert table.get(2) is not None
