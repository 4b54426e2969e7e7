"""What a worker does with a batch, and what the driver sends through it: without Spark."""

import pickle
from types import SimpleNamespace

import pyarrow as pa
import pytest

from velostream.engine import lookup as module
from velostream.engine.lookup import Probe, _passes, _read_columns, _Stage
from velostream.engine.matches import AnyRow
from velostream.engine.replica import ReplicaPublisher
from velostream.engine.spark_failures import WorkerError
from velostream.model.change import Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Schema
from velostream.sql.plan import KeyPair, Lookup, Stages
from velostream.tables.memory import CommitSequence


@pytest.fixture
def limits(tmp_path):
    """A replica of (1, 10), (1, 20), (2, 30), looked up by the first column."""
    sequence = CommitSequence()
    table = sequence.create_table("limits", name="limits", schema=Schema.of(("user", "BIGINT"), ("most", "BIGINT")))
    table.commit(Write(Mode.APPEND, pa.table({"user": [1, 1, 2], "most": [10, 20, 30]})))
    publisher = ReplicaPublisher(tmp_path / "replicas")
    yield publisher.publish(table, columns=("user",), at=sequence.sequence)
    publisher.close()


def stage(replica, *, outer=False):
    return _Stage(1, (Probe(replica, (1,), ("most",), outer),))


def batch(*rows):
    numbers, keys = zip(*rows, strict=True) if rows else ((), ())
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array(keys, pa.int64())], names=["c0", "c1"])


def rows_of(batches):
    return [tuple(row.values()) for one in batches for row in one.to_pylist()]


def test_small_batches_are_joined_together(limits):
    given = [batch((number, number % 3)) for number in range(6)]
    results = list(stage(limits)(iter(given)))
    assert len(results) == 1
    assert rows_of(results) == [(1, 10), (1, 20), (2, 30), (4, 10), (4, 20), (5, 30)]


def test_big_results_are_returned_in_parts(limits, monkeypatch):
    monkeypatch.setattr(module, "_ROWS_RETURNED", 4)
    results = list(stage(limits, outer=True)(iter([batch(*((number, 1) for number in range(5)))])))
    assert [one.num_rows for one in results] == [4, 4, 2]
    assert rows_of(results) == [(number, most) for number in range(5) for most in (10, 20)]


def test_too_many_matches_at_once_are_joined_in_halves(limits, monkeypatch):
    monkeypatch.setattr(module, "_MOST_PAIRS", 3)
    given = batch((0, 1), (1, None), (2, 1), (3, 2), (4, 9), (5, 1))
    results = list(stage(limits, outer=True)(iter([given])))
    assert len(results) > 1
    assert rows_of(results) == [(0, 10), (0, 20), (1, None), (2, 10), (2, 20), (3, 30), (4, None), (5, 10), (5, 20)]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (None, {1: 10, 2: 30}),
        (Call(">", (ColumnRef("most"), Literal(10, pa.int64()))), {1: 20, 2: 30}),
        (Call(">", (ColumnRef("most"), Literal(None, pa.int64()))), {}),
        (Literal(True, pa.bool_()), {1: 10, 2: 30}),
    ],
)
def test_where_any_row_will_do_each_key_finds_the_first_that_passes(limits, condition, found):
    one = AnyRow(Schema.of(("user", "BIGINT"), ("most", "BIGINT")), condition, "token")
    probe = Probe(limits, (1,), ("most",), True, any_row=one)
    given = batch((0, 2), (1, 1), (2, None), (3, 1), (4, 9), (5, 2), (6, 1))
    keys = dict(zip(*(column.to_pylist() for column in given.columns), strict=True))
    results = list(pickle.loads(pickle.dumps(_Stage(1, (probe,))))(iter([given])))
    assert rows_of(results) == [(number, found.get(key)) for number, key in keys.items()]


def test_keys_that_come_often_are_looked_up_once(limits, monkeypatch):
    monkeypatch.setattr(module, "_MOST_PAIRS", 2)
    probe = Probe(limits, (1,), ("most",), True, any_row=AnyRow(Schema.of(("user", "BIGINT")), None, "token"))
    results = list(_Stage(1, (probe,))(iter([batch(*((number, 1) for number in range(9)))])))
    assert [one.num_rows for one in results] == [9]


def test_a_condition_that_fails_for_a_row_comes_back_as_an_error_of_ours(limits):
    condition = Call(">", (Call("/", (ColumnRef("most"), Literal(0, pa.int64()))), Literal(1.0, pa.float64())))
    probe = Probe(limits, (1,), ("most",), True, any_row=AnyRow(Schema.of(("most", "BIGINT")), condition, "token"))
    with pytest.raises(WorkerError, match=r"velostream\.error:token:"):
        list(_Stage(1, (probe,))(iter([batch((0, 1))])))


def test_a_stage_is_small_when_pickled(limits):
    sent = pickle.dumps(stage(limits))
    assert len(sent) < 1000
    assert rows_of(pickle.loads(sent)(iter([batch((0, 2))]))) == [(0, 30)]


def lookup(prefix, *driving):
    return Lookup("t", False, tuple(KeyPair(text, "k") for text in driving), ("v",), prefix, "key")


def test_lookups_whose_keys_are_known_go_together():
    first, second, third = lookup("a_", "x"), lookup("b_", "y", "upper(x)"), lookup("c_", "lower(`A_v`)")
    fourth = lookup("d_", "b_v")
    assert list(_passes((first, second))) == [(first, second)]
    assert list(_passes((first, second, third, fourth))) == [(first, second), (third, fourth)]
    assert list(_passes(())) == []


@pytest.mark.parametrize(
    ("columns", "sql", "kept"),
    [
        (["a", "b", "key", "x"], "SELECT stage.A FROM stage", ["a", "key"]),
        (["a", "b", "key"], "SELECT a * 2, b FROM stage", None),
        (["a", "b", "key"], "SELECT a * 2 FROM stage", ["a", "key"]),
        (["a", "b", "key"], "SELECT * FROM stage", None),
        (["a", "b", "key"], "SELECT stage.* FROM stage", None),
        (["a", "b", "key"], "SELECT a, * FROM stage", None),
        (["a", "ä", "key", "b"], "SELECT a FROM stage", ["a", "ä", "key"]),
        (["a", "a", "key", "b"], "SELECT 1 FROM stage", None),
    ],
)
def test_columns_nobody_mentions_stay_behind(columns, sql, kept):
    stages = Stages((lookup("t_", "key"),), sql)
    assert _read_columns(SimpleNamespace(columns=columns), stages) == kept
