"""Results: rows as tuples of Python values, as Arrow, as pandas, and as they come."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.engine.result import Result


def table():
    return pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", None, "c"]})


def test_rows_are_fetched_one_after_another():
    result = Result.of(table())
    assert result.columns == ["id", "name"]
    assert result.rowcount == 3
    assert result.fetchone() == (1, "a")
    assert result.fetchmany(1) == [(2, None)]
    assert result.fetchall() == [(3, "c")]
    assert result.fetchone() is None
    assert result.fetchall() == []


def test_iteration_goes_on_where_fetching_stopped():
    result = Result.of(table())
    result.fetchone()
    assert [row[0] for row in result] == [2, 3]


def test_arrow_is_whole_whatever_was_fetched():
    result = Result.of(table())
    result.fetchall()
    assert result.arrow().equals(table())
    assert list(result.df()["id"]) == [1, 2, 3]


def test_values_are_what_python_has():
    moment = datetime(2024, 1, 1, 10, tzinfo=UTC)
    arrow = pa.table(
        {
            "decimal": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
            "at": pa.array([moment], pa.timestamp("us", tz="UTC")),
            "day": pa.array([date(2024, 1, 1)]),
            "bytes": pa.array([b"\x00"]),
            "struct": pa.array(
                [{"a": 1, "at": moment}], pa.struct([("a", pa.int32()), ("at", pa.timestamp("us", tz="UTC"))])
            ),
            "map": pa.array([[("k", Decimal("0.1"))]], pa.map_(pa.string(), pa.decimal128(2, 1))),
            "list": pa.array([[1, None]]),
        }
    )
    naive = datetime(2024, 1, 1, 10)  # noqa: DTZ001 - what people get
    assert Result.of(arrow).fetchall() == [
        (
            Decimal("1.50"),
            naive,
            date(2024, 1, 1),
            b"\x00",
            {"a": 1, "at": naive},
            {"k": Decimal("0.1")},
            [1, None],
        )
    ]


def test_two_columns_of_one_name_are_both_kept():  # B30
    arrow = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    result = Result.of(arrow)
    assert result.columns == ["id", "id"]
    assert result.fetchall() == [(1, 2)]
    assert result.arrow().column_names == ["id", "id"]
    assert list(result.df().columns) == ["id", "id"]


def test_rows_without_columns_are_counted():
    assert Result.of(pa.table({"a": [1, 2]}).select([])).rowcount == 2


def test_a_big_answer_is_decoded_as_it_is_read():
    result = Result.of(pa.table({"n": pa.array(range(200_000), pa.int64())}))
    assert result.fetchone() == (0,)
    assert result.fetchall()[-1] == (199_999,)


def test_dml_answers_with_the_number_of_rows():  # B47
    result = Result.affected(3)
    assert result.rowcount == 3
    assert result.fetchall() == [(3,)]
    assert result.arrow().num_rows == 1


def test_rows_of_text():
    result = Result.rows(["name", "rows"], [("t", 1), ("u", None)])
    assert result.fetchall() == [("t", 1), ("u", None)]
    assert result.arrow().to_pylist() == [{"name": "t", "rows": 1}, {"name": "u", "rows": None}]


def test_rows_of_mixed_values_become_text_in_arrow():
    assert Result.rows(["value"], [(1,), ("a",)]).arrow().column(0).to_pylist() == ["1", "a"]
    assert Result.rows(["value"], []).arrow().schema.types == [pa.string()]


def test_description_names_columns_and_types():
    described = Result.of(pa.table({"d": pa.array([], pa.decimal128(10, 2))})).description
    assert described == [("d", "DECIMAL(10,2)", None, None, None, None, None)]
    assert Result.rows(["a"], []).description[0][:2] == ("a", None)


class Feed:
    def __init__(self, rows):
        self.rows = rows
        self.given = 0
        self.cancelled = 0

    def __iter__(self):
        for row in self.rows:
            self.given += 1
            yield row

    def cancel(self):
        self.cancelled += 1


def test_a_streaming_answer_gives_rows_as_they_come():
    feed = Feed([(1,), (2,), (3,)])
    result = Result.streaming(["n"], iter(feed), feed.cancel)
    assert result.rowcount == -1
    rows = iter(result)
    assert next(rows) == (1,)
    assert feed.given == 1
    result.close()
    assert list(rows) == []
    assert feed.cancelled == 1


def test_a_streaming_answer_that_ends_is_cancelled_once():
    feed = Feed([(1,), (2,)])
    with Result.streaming(["n"], iter(feed), feed.cancel, types=[pa.int64()]) as result:
        assert result.arrow().to_pylist() == [{"n": 1}, {"n": 2}]
    assert feed.cancelled == 1


def test_the_failure_of_a_stream_is_raised_and_ends_it():
    cancelled = []

    def rows():
        yield (1,)
        raise RuntimeError("gone")

    result = Result.streaming(["n"], rows(), lambda: cancelled.append(True))
    assert result.fetchone() == (1,)
    with pytest.raises(RuntimeError, match="gone"):
        result.fetchone()
    assert cancelled == [True]
