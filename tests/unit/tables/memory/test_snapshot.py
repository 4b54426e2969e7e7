"""Reading one version: by key, by batches of keys, by index, whole."""

from __future__ import annotations

import math
import threading
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import NotFoundError, TableError
from velostream.model.change import Mode, Write
from velostream.model.schema import Schema
from velostream.tables.memory import CommitSequence, MemoryTable

from .conftest import tuples, write

KEYS = {
    "BIGINT": (7, [7, 7.0, Decimal(7)], ["7", 8, None]),
    "STRING": ("é", ["é"], [1, b"e", None]),
    "BINARY": (b"\0a", [b"\0a"], ["a"]),
    "BOOLEAN": (True, [True], [False]),
    "DOUBLE": (math.nan, [math.nan, float("nan")], [0.0]),
    "FLOAT": (0.1, [0.1], [0.10001]),
    "DECIMAL(10,2)": (Decimal("1.50"), [Decimal("1.5"), Decimal("1.500"), 1.5], [Decimal("1.501"), "1.50"]),
    "DECIMAL(3,0)": (Decimal(-12), [-12, Decimal("-1.2E+1")], [Decimal("NaN"), Decimal("Infinity"), 12]),
    "DECIMAL(38,2)": (Decimal("-123456789012345678901234.5"), [Decimal("-123456789012345678901234.50")], [Decimal(0)]),
    "DATE": (date(1969, 12, 31), [date(1969, 12, 31)], [datetime(1969, 12, 31), -1]),  # noqa: DTZ001
    "TIMESTAMP": (
        datetime(2024, 1, 1, 12),  # noqa: DTZ001 - naive means UTC
        [
            datetime(2024, 1, 1, 12),  # noqa: DTZ001
            datetime(2024, 1, 1, 12, tzinfo=UTC),
            datetime(2024, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        ],
        [date(2024, 1, 1), 1704110400000000],
    ),
    "INTERVAL": (timedelta(seconds=-1), [timedelta(seconds=-1)], [-1000000]),
    "ARRAY<DOUBLE>": ([1.0, None, math.nan], [[1.0, None, math.nan]], [[1.0]]),
    "STRUCT<a: INT, b: STRING>": ({"a": 1, "b": None}, [{"b": None, "a": 1}], [{"a": 1}]),
}


def keyed_by(sequence: CommitSequence, type_: str, value: object) -> MemoryTable:
    schema = Schema.of(("k", type_), ("v", "INT"), key=["k"])
    table = sequence.create_table(type_, name="t", schema=schema)
    table.commit(Write(Mode.UPSERT, pa.table({"k": pa.array([value], schema.columns[0].type), "v": [1]})))
    return table


@pytest.mark.parametrize("type_", KEYS)
def test_keys_are_found_by_value(sequence, type_):
    value, found, missing = KEYS[type_]
    snapshot = keyed_by(sequence, type_, value).snapshot()
    for key in found:
        assert snapshot.contains(key), key
        assert snapshot.get(key)["v"] == 1
    for key in missing:
        assert not snapshot.contains(key), key
        assert snapshot.get(key) is None


@pytest.mark.parametrize("type_", KEYS)
def test_batches_of_keys_are_found_by_value(sequence, type_):
    value, _, _ = KEYS[type_]
    table = keyed_by(sequence, type_, value)
    keys = pa.array([None, value, value], table.schema.columns[0].type)
    found = table.snapshot().lookup(keys, ["v"])
    assert found.to_pylist() == [{"_position": 1, "v": 1}, {"_position": 2, "v": 1}]
    assert table.snapshot().lookup_by(["k"], keys, ["v"]).equals(found)


def test_a_composite_key_is_a_tuple(sequence):
    schema = Schema.of(("a", "BIGINT"), ("b", "STRING"), ("v", "INT"), key=["b", "a"])
    table = sequence.create_table("t", name="t", schema=schema)
    table.commit(Write(Mode.APPEND, pa.table({"a": [1, 1, None], "b": ["x", "y", "x"], "v": [10, 11, 12]})))
    snapshot = table.snapshot()
    assert snapshot.get(("x", 1))["v"] == 10
    assert snapshot.get(["y", 1])["v"] == 11
    assert snapshot.get(("x", None))["v"] == 12
    assert snapshot.get((1, "x")) is None
    assert snapshot.get("x") is None
    keys = pa.table({"one": ["x", "x", "y", None], "two": pa.array([None, 1, 2, 1], pa.int64())})
    assert snapshot.lookup(keys, ["v"]).to_pylist() == [{"_position": 1, "v": 10}]


def test_lookup_answers_in_the_order_of_the_keys(people):
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (3, "c")))
    people.commit(write(Mode.UPSERT, (2, "B")))
    found = people.snapshot().lookup(pa.chunked_array([[3, 9], [2, 3]]))
    assert found.to_pylist() == [
        {"_position": 0, "id": 3, "name": "c"},
        {"_position": 2, "id": 2, "name": "B"},
        {"_position": 3, "id": 3, "name": "c"},
    ]


def test_lookup_takes_keys_of_a_kindred_type(people):
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    snapshot = people.snapshot()
    assert snapshot.lookup(pa.array([2], pa.int8())).column("name").to_pylist() == ["b"]
    decimals = pa.array([Decimal("2.5"), Decimal(1)], pa.decimal128(38, 2))
    assert snapshot.lookup(decimals).column("_position").to_pylist() == [1]
    with pytest.raises(TableError) as caught:
        snapshot.lookup(pa.array(["1"]))
    assert caught.value.code == "wrong-type"
    with pytest.raises(TableError):
        snapshot.lookup(pa.table({"a": [1], "b": [2]}))


def test_lookup_by_other_columns_finds_every_row_of_that_version(people):
    people.commit(write(Mode.APPEND, (1, "x"), (2, "y"), (3, "x"), (4, None)))
    people.commit(write(Mode.UPSERT, (1, "y"), (5, "x")))
    keys = pa.array(["x", None, "y", "z"])
    now, before = people.snapshot(), people.snapshot(1)
    assert now.lookup_by(["NAME"], keys, ["id"]).to_pylist() == [
        {"_position": 0, "id": 3},
        {"_position": 0, "id": 5},
        {"_position": 2, "id": 2},
        {"_position": 2, "id": 1},
    ]
    assert before.lookup_by(["name"], keys, ["id"]).column("id").to_pylist() == [1, 3, 2]
    people.commit(write(Mode.DELETE, (3,), columns=("id",)))
    assert people.snapshot().lookup_by(["name"], keys, ["id"]).column("id").to_pylist() == [5, 2, 1]


def test_a_bag_has_no_key_to_ask_for(bag):  # LANGUAGE, Keys
    bag.commit(write(Mode.APPEND, (1, "a")))
    for ask in (bag.snapshot().get, bag.snapshot().contains, lambda key: bag.snapshot().lookup(pa.array([key]))):
        with pytest.raises(TableError, match='table "bag" has no key') as caught:
            ask(1)
        assert caught.value.code == "no-key"


def test_an_unhashable_key_is_refused(people):
    with pytest.raises(TableError, match="can't be a key"):
        people.snapshot().get([1])


def test_a_row_is_a_mapping_that_decodes_on_access(sequence):
    schema = Schema.of(
        ("id", "BIGINT"), ("Amount", "DECIMAL(10,2)"), ("at", "TIMESTAMP"), ("m", "MAP<STRING, TIMESTAMP>"), key=["id"]
    )
    table = sequence.create_table("t", name="t", schema=schema)
    moment = datetime(2024, 5, 1, 8, 30, tzinfo=UTC)
    rows = [{"id": 1, "Amount": Decimal("1.50"), "at": moment, "m": [("x", moment)]}]
    table.commit(Write(Mode.APPEND, pa.Table.from_pylist(rows, schema.arrow)))
    naive = moment.replace(tzinfo=None)
    expected = {"id": 1, "Amount": Decimal("1.50"), "at": naive, "m": {"x": naive}}
    for row in (table.get(1), next(table.snapshot().rows())):
        assert row["amount"] == Decimal("1.50")
        assert str(row["Amount"]) == "1.50"  # B19
        assert dict(row) == row.as_dict() == expected
        assert list(row) == ["id", "Amount", "at", "m"]
        assert "AT" in row
        assert "nope" not in row
        assert row.get("nope") is None
        with pytest.raises(NotFoundError, match='column "amout" does not exist'):
            row["amout"]


def test_paging_gives_every_row_once(people):  # B22
    people.commit(write(Mode.APPEND, *((row, str(row)) for row in range(25))))
    people.commit(write(Mode.DELETE, (3,), (4,), columns=("id",)))
    snapshot = people.snapshot()
    everything = snapshot.scan().column("id").to_pylist()
    pages = [batch.column("id").to_pylist() for batch in snapshot.batches(10)]
    assert [len(page) for page in pages] == [10, 10, 3]
    assert [key for page in pages for key in page] == everything
    assert [row for batch in snapshot.batches(10, offset=7) for row in batch.column("id").to_pylist()] == everything[7:]
    assert list(snapshot.batches(10, offset=23)) == []


def test_scan_chooses_columns_in_any_case(people):
    people.commit(write(Mode.APPEND, (1, "a")))
    assert people.snapshot().scan(columns=["NAME"]).to_pylist() == [{"name": "a"}]
    with pytest.raises(NotFoundError):
        people.snapshot().scan(columns=["nam"])


def test_an_empty_table_reads_like_any_other(people):
    snapshot = people.snapshot()
    assert snapshot.version == 0
    assert snapshot.count() == 0
    assert snapshot.scan().schema.names == ["id", "name"]
    assert snapshot.lookup(pa.array([1])).num_rows == 0
    assert list(snapshot.rows()) == []
    assert people.changes(0).arrow.column_names == ["id", "name", "_change"]


def test_an_old_snapshot_stays_what_it_was_while_the_writer_goes_on(people):
    people.commit(write(Mode.APPEND, *((row, "old") for row in range(100))))
    old = people.snapshot()
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        keys = pa.array(range(200))
        while not stop.is_set():
            if old.scan().column("name").unique().to_pylist() != ["old"] or old.lookup(keys).num_rows != 100:
                wrong.append("rows")
            if not (old.contains(5) and old.get(7)["name"] == "old" and not old.contains(150)):
                wrong.append("keys")

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(200):
        people.commit(write(Mode.UPSERT, *((row, str(number)) for row in range(0, 200, 3))))
        people.commit(write(Mode.DELETE, (number,), columns=("id",)))
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert set(tuples(old.scan())) == {(row, "old") for row in range(100)}
