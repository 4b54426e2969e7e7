"""ClickHouse as a target: tables that are made or found, values of every type, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import Category, NotFoundError, OptionError, StoreError, TableError, render_text
from velostream.model.change import Epoch
from velostream.model.schema import Schema
from velostream.sinks.base import SinkSpec
from velostream.sinks.clickhouse import ClickhouseSink
from velostream.testing.services.clickhouse import ClickhouseService


@pytest.fixture(scope="module")
def service():
    return ClickhouseService(url=ClickhouseService.shared().new_database())


def put(service, rows, *, number=0, **options):
    sink = ClickhouseSink(SinkSpec("clickhouse", service.url, options))
    sink.open(Schema.from_arrow(rows.schema))
    sink.write(rows, Epoch("query's", number))
    sink.close()


def test_every_type_arrives(service):
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "text": ["ü 😀", None],
            "raw": [b"\xff", None],
            "exact": pa.array([Decimal("1.25"), None], pa.decimal128(18, 2)),
            "day": [date(2024, 2, 29), None],
            "at": pa.array([datetime(2024, 1, 2, 3, 4, 5, 6, UTC), None], pa.timestamp("us", tz="UTC")),
            "tags": [["a", None], []],
            "ages": pa.array([[("x", 1)], []], pa.map_(pa.string(), pa.int64())),
            "place": [{"city": "Ulm", "zip": 1}, {"city": None, "zip": None}],
        }
    )
    put(service, rows, table="everything")
    found = service.execute("SELECT * REPLACE hex(raw) AS raw FROM everything ORDER BY id").decode().splitlines()
    assert found == [
        "1\tü 😀\tFF\t1.25\t2024-02-29\t2024-01-02 03:04:05.000006\t['a',NULL]\t{'x':1}\t('Ulm',1)",
        "2\t\\N\t\\N\t\\N\t\\N\t\\N\t[]\t{}\t(NULL,NULL)",
    ]


def test_the_newest_row_of_a_key_stays(service):
    for number, text in enumerate(["old", "new"]):
        put(service, pa.table({"id": [1], "text": [text]}), number=number, table="keyed", key="id")
    assert service.execute("SELECT text FROM keyed FINAL") == b"new\n"


def test_a_table_that_is_there_is_used_if_it_has_the_columns(service):
    service.execute("CREATE TABLE theirs (id Int32, text String, more String DEFAULT 'x') ENGINE = Memory")
    put(service, pa.table({"text": ["a"], "id": [1]}), table="theirs")
    assert service.execute("SELECT * FROM theirs") == b"1\ta\tx\n"
    with pytest.raises(NotFoundError):
        put(service, pa.table({"other": [1]}), table="theirs")


def test_a_null_is_never_stored_as_something_else(service):
    service.execute("CREATE TABLE strict (id Int64, text LowCardinality(Nullable(String))) ENGINE = Memory")
    put(service, pa.table({"id": [1], "text": pa.nulls(1, pa.string())}), table="strict")
    with pytest.raises(TableError) as refused:
        put(service, pa.table({"id": pa.nulls(1, pa.int64()), "text": ["a"]}), table="strict")
    assert refused.value.code == "not-null"
    assert service.execute("SELECT * FROM strict") == b"1\t\\N\n"


def test_what_can_not_be_written_is_refused_at_once(service):
    with pytest.raises(OptionError):
        ClickhouseSink(SinkSpec("clickhouse", service.url))
    with pytest.raises(TableError):
        put(service, pa.table({"span": [timedelta(1)]}), table="spans")
    host = service.url.partition("@")[2]
    stranger = ClickhouseSink(SinkSpec("clickhouse", f"clickhouse://default:p4ssw0rd@{host}", {"table": "t"}))
    with pytest.raises(StoreError) as refused:
        stranger.open(Schema.of(("id", "BIGINT")))
    assert refused.value.category is Category.AUTHENTICATION
    assert "p4ssw0rd" not in render_text(refused.value)
