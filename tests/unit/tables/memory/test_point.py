"""Rows written one by one are the rows that columns would have given, at every version and for every reader."""

from __future__ import annotations

import math
import threading
from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.errors import ClosedError, NotFoundError, TableError
from velostream.model.change import Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.rows import rows_to_arrow
from velostream.model.schema import Column, Schema
from velostream.tables.memory import Changed, CommitSequence

from .conftest import content, tuples, write

PEOPLE = Schema.of(("id", "BIGINT"), ("name", "STRING"), key=["id"])
TYPES = Schema.of(
    ("s", "STRING"),
    ("b", "BOOLEAN"),
    ("t", "TINYINT"),
    ("n", "BIGINT"),
    ("f", "DOUBLE"),
    ("d", "DECIMAL(10,2)"),
    ("w", "DECIMAL(38,5)"),
    ("at", "TIMESTAMP"),
    ("on", "DATE"),
    ("x", "BINARY"),
    key=["d", "at"],
)


def keyed(sequence: CommitSequence, schema: Schema = TYPES):
    return sequence.create_table("t", name="t", schema=schema)


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "s": st.none() | st.text(max_size=5),
        "b": st.none() | st.booleans(),
        "t": st.integers(-128, 127),
        "n": st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(),
        "d": st.none() | st.decimals(-1000, 1000, places=2) | st.integers(-5, 5).map(Decimal),
        "w": st.none() | st.decimals(-(10**30), 10**30, places=5),
        "at": st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001 - naive is UTC here
        "on": st.none() | st.dates(date(1000, 1, 1)),
        "x": st.none() | st.binary(max_size=4),
    },
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_a_row_reads_as_if_it_had_come_as_columns(record):
    sequence = CommitSequence.open(None)
    single, columns = keyed(sequence), sequence.create_table("c", name="c", schema=TYPES)
    assert single.write_records(Mode.APPEND, [record])
    columns.commit(Write(Mode.APPEND, rows_to_arrow([record], TYPES)))
    key = tuple(record.get(name) for name in TYPES.key)
    expected = columns.get(key)
    assert repr(single.get(key)) == repr(expected)
    assert content(single.snapshot().scan()) == content(columns.snapshot().scan())
    assert repr(single.get(key)) == repr(expected)
    columns.commit(Write(Mode.REPLACE, single.snapshot().scan()))
    assert columns.version == 2
    assert single.write_records(Mode.UPSERT, [dict(expected)])
    assert columns.write_records(Mode.UPSERT, [dict(expected)])
    assert sequence.sequence == 2


def test_times_with_a_zone_are_kept_in_utc(sequence):
    table = keyed(sequence, Schema.of(("id", "INT"), ("at", "TIMESTAMP"), key=["id"]))
    eastern = timezone(timedelta(hours=-5))
    for key, moment in enumerate((datetime(2024, 1, 1, 5, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=eastern))):
        assert table.write_records(Mode.APPEND, [{"id": key, "at": moment}])
        assert table.get(key)["at"] == datetime(2024, 1, 1, 5)  # noqa: DTZ001 - read without a zone
    assert table.snapshot().scan()["at"].to_pylist() == [datetime(2024, 1, 1, 5, tzinfo=UTC)] * 2


@pytest.mark.parametrize(
    "record",
    [
        {"id": "1", "name": "a"},
        {"id": 2**63, "name": "a"},
        {"id": True, "name": "a"},
        {"ID": 1, "name": "a"},
        {"id": 1, "name": "a", "nam": "b"},
        {"id": 1, "name": "\ud800"},
        {"id": 1, "name": b"a"},
    ],
)
def test_what_needs_arrow_is_left_to_it(people, sequence, record):
    assert not people.write_records(Mode.APPEND, [{"id": 7, "name": "x"}, record])
    assert sequence.sequence == 0
    assert people.snapshot().count() == 0


def test_decimals_are_exact_or_left_to_arrow(sequence):
    table = keyed(sequence, Schema.of(("id", "INT"), ("d", "DECIMAL(5,2)"), key=["id"]))
    assert table.write_records(Mode.APPEND, [{"id": 1, "d": Decimal("1.5")}, {"id": 2, "d": Decimal("-0.00")}])
    assert [str(table.get(key)["d"]) for key in (1, 2)] == ["1.50", "0.00"]
    for unfit in ("1.005", "1000", "NaN", "Infinity", "1E+10"):
        assert not table.write_records(Mode.APPEND, [{"id": 3, "d": Decimal(unfit)}])


def test_tables_of_rarer_types_take_columns_only(sequence):
    table = keyed(sequence, Schema.of(("id", "INT"), ("m", "MAP<STRING, INT>"), key=["id"]))
    assert not table.write_records(Mode.APPEND, [{"id": 1}])
    assert table.update_records([{"id": 1}]) is None
    assert table.delete_keys([1]) is None


def test_not_null_is_left_to_arrow(sequence):
    columns = (Column("id", pa.int64(), nullable=False), Column("name", pa.string()))
    schema = Schema(columns, ("id",))
    table = keyed(sequence, schema)
    assert not table.write_records(Mode.APPEND, [{"name": "a"}])
    assert table.write_records(Mode.APPEND, [{"id": 1}])
    assert table.update_records([{"id": 1, "name": None}]) == 1


def test_a_durable_table_logs_every_row(reopened):
    table = keyed(reopened(), PEOPLE)
    assert not table.write_records(Mode.APPEND, [{"id": 1, "name": "a"}])
    assert table.update_records([{"id": 1, "name": "a"}]) is None
    assert table.delete_keys([1]) is None


def test_duplicate_keys(people):  # B49
    people.write_records(Mode.APPEND, [{"id": 1, "name": "a"}])
    for rows in ([{"id": 2}, {"id": 1}], [{"id": 3}, {"id": 3}]):
        with pytest.raises(TableError) as caught:
            people.write_records(Mode.APPEND, rows)
        assert caught.value.code == "duplicate-key"
    assert tuples(people.snapshot().scan()) == [(1, "a")]
    people.write_records(Mode.UPSERT, [{"id": 2, "name": "x"}, {"id": 2, "name": "y"}])
    assert tuples(people.snapshot().scan()) == [(1, "a"), (2, "y")]


def test_updates_change_what_they_name(people, sequence):
    people.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
    assert people.update_records([{"id": 1, "name": "x"}, {"id": 9, "name": "z"}, {"id": 1, "name": "y"}]) == 2
    assert tuples(people.changes(1).arrow) == [(1, "a", -1), (1, "y", 1)]
    assert people.update_records([{"id": 2, "name": "b"}]) == 1
    assert sequence.sequence == 2
    for unfit in ({"name": "no key"}, {"id": 1, "nam": "a"}, {"id": 1, "name": 5}):
        assert people.update_records([unfit]) is None


def test_keys_are_taken_as_they_are_stored(people, sequence):
    people.commit(write(Mode.APPEND, (1, "a"), (None, "b")))
    for unfit in ("1", 1.0, True, None, (1,), [1], {"id": 1}):
        assert people.delete_keys([unfit]) is None
        assert people.update_records([{"id": unfit, "name": "x"}]) is None
    assert people.snapshot().count() == 2
    assert people.delete_keys([1, 2]) == 1
    pair = keyed(sequence, Schema.of(("a", "BIGINT"), ("d", "DECIMAL(5,2)"), key=["a", "d"]))
    pair.write_records(Mode.APPEND, [{"a": 1, "d": Decimal("1.5")}, {"a": 2}])
    for unfit in (1, (1,), (1, Decimal("1.5"), 2), (2, None), [1, Decimal("1.5")]):
        assert pair.delete_keys([unfit]) is None
    assert pair.delete_keys([(1, Decimal("1.500"))]) == 1


def test_nan_equals_nan(sequence):
    table = keyed(sequence, Schema.of(("f", "DOUBLE"), ("n", "DOUBLE"), key=["f"]))
    table.write_records(Mode.APPEND, [{"f": math.nan, "n": float("nan")}])
    assert table.write_records(Mode.UPSERT, [{"f": float("nan"), "n": math.nan}])
    table.snapshot().scan()
    assert table.update_records([{"f": float("nan"), "n": float("nan")}]) == 1
    assert sequence.sequence == 1
    assert table.contains(float("nan"))


def test_listeners_hear_of_rows(people, sequence):
    heard = []
    sequence.listen(heard.append)
    people.write_records(Mode.UPSERT, [{"id": 1}, {"id": 2}])
    people.write_records(Mode.UPSERT, [{"id": 1, "name": "a"}])
    people.delete_keys([1, 1, 5])
    people.delete_keys([5])
    assert [commit.changed["people"] for commit in heard] == [Changed(2, 0), Changed(1, 1), Changed(0, 1)]


def test_gone_tables_and_closed_sequences_refuse(people, sequence):
    sequence.drop_table("people")
    with pytest.raises(NotFoundError):
        people.write_records(Mode.APPEND, [{"id": 1}])
    sequence.close()
    with pytest.raises(ClosedError):
        people.delete_keys([1])


def test_many_updates_of_one_row_leave_no_more_behind_than_others_do(people):
    people.commit(write(Mode.APPEND, *((row, "a") for row in range(100))))
    for number in range(20_000):
        people.update_records([{"id": number % 100, "name": str(number)}])
    assert people.stats()["dead_rows"] < 10_000
    assert people.snapshot().count() == 100
    assert {row["name"] for row in people.snapshot().rows()} == {str(number) for number in range(19_900, 20_000)}


KEYS = st.integers(0, 6)
NAMES = st.sampled_from([None, "a", "b"])
ROWS = st.lists(st.tuples(KEYS, NAMES), min_size=1, max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("put"), ROWS),
    st.tuples(st.just("update"), ROWS),
    st.tuples(st.just("delete"), st.lists(KEYS, min_size=1, max_size=3)),
    st.tuples(st.just("upsert columns"), ROWS),
    st.tuples(st.just("delete columns"), st.lists(KEYS, min_size=1, max_size=3)),
    st.tuples(st.just("read"), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=25), st.sampled_from([4096, 3]))
def test_any_mix_of_rows_and_columns_equals_a_dict_at_every_version(steps, most_rows):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("velostream.tables.memory.generation.MOST_ROWS", most_rows)
        _check_against_a_dict(steps)


def _check_against_a_dict(steps):
    sequence = CommitSequence.open(None)
    table = sequence.create_table("t", name="t", schema=PEOPLE, options={"index": "name"})
    model: dict[int, str | None] = {}
    states = [dict(model)]
    snapshots = [table.snapshot()]
    for step, given_rows in steps:
        match step:
            case "put":
                assert table.write_records(Mode.UPSERT, [{"id": key, "name": name} for key, name in given_rows])
                model |= dict(given_rows)
            case "update":
                found = table.update_records([{"id": key, "name": name} for key, name in given_rows])
                assert found == sum(key in model for key, _ in given_rows)
                model |= {key: name for key, name in given_rows if key in model}
            case "delete":
                assert table.delete_keys(given_rows) == len(model.keys() & set(given_rows))
                model = {key: name for key, name in model.items() if key not in given_rows}
            case "upsert columns":
                table.commit(write(Mode.UPSERT, *given_rows))
                model |= dict(given_rows)
            case "delete columns":
                table.commit(write(Mode.DELETE, *((key,) for key in given_rows), columns=("id",)))
                model = {key: name for key, name in model.items() if key not in given_rows}
            case "read":
                assert dict(tuples(table.snapshot().scan())) == model
        assert sequence.sequence == len(states) - (model == states[-1])
        if model != states[-1]:
            states.append(dict(model))
            snapshots.append(table.snapshot())
    for version, state in enumerate(states):
        for snapshot in (snapshots[version], table.snapshot(version)):
            assert dict(tuples(snapshot.scan())) == state
            assert {key: snapshot.get(key)["name"] for key in range(7) if snapshot.contains(key)} == state
            assert len(snapshot) == len(state)
            for name in ("a", "b"):
                condition = Call("=", (ColumnRef("name"), Literal(name, pa.string())))
                having = {key for key, value in state.items() if value == name}
                assert snapshot.count(condition) == len(having)
                assert {row["id"] for row in snapshot.find(condition)} == having
                assert set(snapshot.find(condition).arrow()["id"].to_pylist()) == having
        batch = table.changes(version).arrow
        after = Counter(state.items())
        for row in batch.to_pylist():
            after[row["id"], row["name"]] += row["_change"]
        assert +after == Counter(model.items())


def test_readers_never_see_half_a_row_or_a_lost_one(people):  # B33
    """Every row says its own key; readers go on while rows are written one by one and turned into columns."""
    done = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not done.is_set():
            snapshot = people.snapshot()
            rows = snapshot.scan().to_pylist()
            if len(rows) != len(snapshot) or any(not row["name"].startswith(f"{row['id']}:") for row in rows):
                wrong.append(rows)
            if any(snapshot.get(row["id"])["name"] != row["name"] for row in rows):
                wrong.append(snapshot)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(12_000):
        key = number % 97
        people.write_records(Mode.UPSERT, [{"id": key, "name": f"{key}:{number}"}])
        if number % 13 == 0:
            people.delete_keys([(key * 31) % 97])
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_index_takes_in_rows_when_it_is_asked(people):
    def named(snapshot, name):
        return snapshot.count(Call("=", (ColumnRef("name"), Literal(name, pa.string()))))

    people.create_index(["name"])
    people.write_records(Mode.APPEND, [{"id": 0, "name": "a"}])
    first = people.snapshot()
    for key in range(1, 60):
        people.write_records(Mode.APPEND, [{"id": key, "name": "a"}])
    second = people.snapshot()
    people.update_records([{"id": 7, "name": "b"}])
    assert (named(people.snapshot(), "a"), named(people.snapshot(), "b")) == (59, 1)
    assert (named(second, "a"), named(second, "b")) == (60, 0)
    assert (named(first, "a"), named(first, "b")) == (1, 0)
