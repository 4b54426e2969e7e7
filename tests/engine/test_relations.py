"""Snapshots as Spark relations, SQL over named frames, and Spark's errors as ours."""

import gc
import math
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.engine import relations as module
from velostream.engine.relations import arrow_result, run_sql, schema_of, spark_schema
from velostream.engine.spark_failures import WORKER_TOKEN, WorkerError, query_error
from velostream.errors import Category, QueryError, ResolveError, SourceError, SqlError, UnsupportedError
from velostream.model.change import Mode, Write
from velostream.model.schema import Schema
from velostream.tables.memory import CommitSequence

INSTANT = datetime(1500, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
EVERYTHING = {
    "b": ("BOOLEAN", True),
    "t": ("TINYINT", -128),
    "i": ("INT", 2**31 - 1),
    "l": ("BIGINT", -(2**63)),
    "f": ("FLOAT", 1.5),
    "d": ("DOUBLE", math.inf),
    "dec": ("DECIMAL(38,10)", Decimal("-1234567890123456789012345678.1234567890")),
    "s": ("STRING", "é\0"),
    "bin": ("BINARY", b"\x00\xff"),
    "day": ("DATE", date(1, 1, 1)),
    "at": ("TIMESTAMP", INSTANT),
    "local": ("TIMESTAMP_NTZ", INSTANT.replace(tzinfo=None)),
    "span": ("INTERVAL", timedelta(days=-1, microseconds=3)),
    "list": ("ARRAY<STRUCT<a: INT, `b c`: DECIMAL(10,2)>>", [{"a": 1, "b c": Decimal("1.50")}, None]),
    "map": ("MAP<STRING, ARRAY<TIMESTAMP>>", [("k", [INSTANT, None])]),
    "odd.na me": ("STRING", "x"),
    "größe": ("MAP<INT, INTERVAL>", [(1, timedelta(seconds=1))]),
}


@pytest.fixture
def sequence():
    return CommitSequence()


def table_of(sequence, schema, rows):
    table = sequence.create_table("t", name="t", schema=schema)
    if rows.num_rows:
        table.commit(Write(Mode.APPEND, rows))
    return table


def numbers(sequence, *values):
    return table_of(sequence, Schema.of(("n", "BIGINT")), pa.table({"n": pa.array(values, pa.int64())}))


@pytest.mark.parametrize("count", [0, 2])
def test_a_snapshot_keeps_names_types_and_values(session, relations, sequence, count):
    schema = Schema.of(*((name, sql_type) for name, (sql_type, _) in EVERYTHING.items()))
    values = [[value, None][:count] for _, value in EVERYTHING.values()]
    columns = [pa.array(column, type_) for column, type_ in zip(values, schema.arrow.types, strict=True)]
    rows = pa.Table.from_arrays(columns, schema=schema.arrow)
    frame = relations.frame(session, "t", table_of(sequence, schema, rows).snapshot())
    assert schema_of(frame) == schema
    assert frame.schema == spark_schema(schema)
    result = arrow_result(frame)
    assert result.schema.equals(schema.arrow)
    assert result.equals(rows)


def test_columns_without_a_type_are_kept_too(session, relations):
    schema = Schema.of(("nothing", "VOID"), ("nothings", "ARRAY<VOID>"), ("n", "INT"))
    rows = pa.table([pa.nulls(2), pa.array([[None], None], pa.list_(pa.null())), pa.array([1, 2])], names=schema.names)

    class Snapshot:
        version = 1

        def __init__(self):
            self.schema = schema

        def scan(self):
            return rows.cast(schema.arrow)

    result = arrow_result(relations.frame(session, "t", Snapshot()))
    assert result.equals(rows.cast(schema.arrow))


def test_a_version_is_written_once_and_removed_when_nobody_reads_it(
    session, relations, sequence, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.0)

    def files():
        return len(list((tmp_path / "snapshots").iterdir()))

    table = numbers(sequence, 1)
    first = relations.frame(session, "t", table.snapshot())
    relations.frame(session, "t", table.snapshot())
    assert files() == 1
    query = run_sql(session, "SELECT sum(n) AS n FROM t", {"t": first})
    del first
    for number in (2, 3, 4):
        table.commit(Write(Mode.APPEND, pa.table({"n": [number]})))
        relations.frame(session, "t", table.snapshot())
        gc.collect()
    # The newest, and the one a query over it still holds.
    assert files() == 2
    assert arrow_result(query).to_pylist() == [{"n": 1}]
    assert arrow_result(relations.frame(session, "t", table.snapshot())).num_rows == 4
    del query
    gc.collect()
    table.commit(Write(Mode.APPEND, pa.table({"n": [5]})))
    relations.frame(session, "t", table.snapshot())
    assert files() == 1


def test_queries_of_many_threads_do_not_see_each_others_relations(session):
    shared = session.range(10).selectExpr("id AS n").persist()
    try:
        arrow_result(shared)

        def run(number):
            mine = session.range(number, number + 1).selectExpr("id AS n")
            union = "SELECT n FROM t UNION ALL SELECT n FROM shared"
            sql = f"WITH both AS ({union}) SELECT n FROM both ORDER BY n DESC LIMIT 1"
            return arrow_result(run_sql(session, sql, {"t": mine, "shared": shared})).to_pylist()

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(run, range(100, 112)))
        assert answers == [[{"n": number}] for number in range(100, 112)]
        # Taking a relation's name away must not take the rows away from the others that read them.
        assert shared.storageLevel.useMemory
    finally:
        shared.unpersist()
    assert not [view for view in session.catalog.listTables() if view.isTemporary]


def test_names_are_free_and_shadow_nothing_else(session):
    one = session.range(1).selectExpr("id AS n", "'x' AS `odd.na me`")
    sql = "SELECT `odd ``t`.n, `odd ``t`.`odd.na me` FROM `odd ``t` ORDER BY n"
    assert arrow_result(run_sql(session, sql, {"odd `t": one})).to_pylist() == [{"n": 0, "odd.na me": "x"}]


def test_a_stream_can_be_named_too(session, tmp_path):
    stream = session.readStream.schema("n BIGINT").parquet(str(tmp_path))
    assert run_sql(session, "SELECT n, count(*) FROM feed GROUP BY n", {"feed": stream}).isStreaming


def test_a_result_may_have_two_columns_of_one_name(session):
    result = arrow_result(run_sql(session, "SELECT 1 AS a, 'x' AS a", {}))
    assert [column.to_pylist() for column in result.columns] == [[1], ["x"]]


@pytest.mark.parametrize(
    ("sql", "kind", "line", "column", "message"),
    [
        ("SELECT n,\n  bogus FROM t", ResolveError, 2, 3, 'column "bogus" does not exist'),
        ("SELECT n FROM\nnope", ResolveError, 2, 1, 'table "nope" does not exist'),
        ("SELECT n FRM x t", SqlError, 1, 14, "syntax error at or near 'x'"),
        ("SELECT n\nFROM t a, t b", SqlError, 1, 8, "reference `n` is ambiguous, could be: [`a`.`n`, `b`.`n`]"),
    ],
)
def test_a_wrong_statement_is_told_with_its_place(session, sql, kind, line, column, message):
    with pytest.raises(kind) as failed:
        run_sql(session, sql, {"t": session.range(1).selectExpr("id AS n")})
    error = failed.value
    assert (error.message, error.line, error.column, error.text) == (message, line, column, sql)


@pytest.mark.parametrize(
    ("expression", "message", "condition"),
    [
        ("CAST(s AS INT)", 'the value \'x\' of the type "STRING" cannot be cast to "INT"', "CAST_INVALID_INPUT"),
        ("n / n", "division by zero", "DIVIDE_BY_ZERO"),
        ("n - 9223372036854775807 - 2", "overflow", "ARITHMETIC_OVERFLOW"),
        ("CAST(50 + n * 0 AS DECIMAL(1,0))", "50 cannot be represented as Decimal(1, 0)", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("(SELECT n FROM t)", "more than one row returned by a subquery", "SCALAR_SUBQUERY_TOO_MANY_ROWS"),
    ],
)
def test_a_failing_expression_is_the_fault_of_a_row(session, expression, message, condition):
    frame = run_sql(
        session, f"SELECT {expression} FROM t", {"t": session.range(0, 2).selectExpr("id AS n", "'x' AS s")}
    )
    with pytest.raises(QueryError) as failed:
        arrow_result(frame)
    error = failed.value
    assert error.message.startswith(message)
    assert (error.category, error.code) == (Category.DATA, "expression-failed")
    assert condition in (error.detail or "")
    assert "\n" not in error.message
    assert "ansi" not in str(error)
    assert "NULL instead" not in error.message


def test_an_error_of_ours_comes_back_from_a_worker_as_it_was(session):
    token = WORKER_TOKEN

    def fail(_):
        raise WorkerError(SourceError.missing_file("/data/x.csv", pattern=False), token=token)

    frame = session.range(1).mapInArrow(fail, "n BIGINT")
    with pytest.raises(SourceError) as failed:
        arrow_result(frame)
    assert (failed.value.code, failed.value.category) == ("missing-file", Category.MISSING)


def test_text_that_looks_like_an_error_of_ours_is_text():
    forged = WorkerError(SourceError.missing_file("/data/x.csv", pattern=False), token="guessed")
    assert isinstance(query_error(ValueError(str(forged)), "x"), QueryError)


def test_a_worker_that_breaks_is_told_in_one_line(session):
    def fail(_):
        raise KeyError("what")

    with pytest.raises(QueryError) as failed:
        arrow_result(session.range(1).mapInArrow(fail, "n BIGINT"))
    assert failed.value.message == "a Python worker failed: KeyError: 'what'"
    assert failed.value.category is Category.UNKNOWN


def test_any_trouble_can_be_told_as_a_query_s():
    error = query_error(OSError(28, "no space left on device"), 'query "q" failed')
    assert (error.message, error.detail) == ('query "q" failed', "[Errno 28] no space left on device")
    ours = SqlError("no")
    assert query_error(ours, "x") is ours


def test_types_tables_cannot_hold_are_refused(session):
    frame = run_sql(session, "SELECT INTERVAL '1' YEAR AS `how long`", {})
    with pytest.raises(UnsupportedError, match='column "how long" has the type interval year'):
        arrow_result(frame)


def test_a_struct_may_be_null_whose_fields_never_are(session):
    sql = "SELECT CASE WHEN id > 0 THEN named_struct('a', id, 'list', array(id)) END AS s FROM range(2)"
    rows = arrow_result(session.sql(sql))
    assert rows.to_pylist() == [{"s": None}, {"s": {"a": 1, "list": [1]}}]
    assert rows.cast(rows.schema).equals(rows)
