"""One SQL text, with only the address changed, gives the same table from every kind of source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow as pa
import pymongo
import pymysql
import pytest
from bson.decimal128 import Decimal128
from sqlalchemy import make_url

import velostream
from velostream.model.change import Epoch
from velostream.model.rows import json_text
from velostream.model.schema import Schema
from velostream.plugins import Group, load
from velostream.sinks.base import SinkSpec
from velostream.testing.services.clickhouse import ClickhouseService
from velostream.testing.services.http import HttpServer
from velostream.testing.services.kafka import KafkaService
from velostream.testing.services.mongodb import MongodbService
from velostream.testing.services.mysql import MysqlService
from velostream.testing.services.postgres import PostgresService
from velostream.testing.services.s3 import S3Service

COUNT = 2_000
WORDS = ("plain", "ü 😀 漢字", "with 'quotes', \"more\"; and\ttabs", "", None)
TYPES = {"id": "BIGINT", "name": "STRING", "price": "DECIMAL(18,2)", "at": "TIMESTAMP", "ok": "BOOLEAN"}
SCHEMA = Schema.of(*TYPES.items())
STATEMENT = "CREATE TABLE {table} AS SELECT id PRIMARY KEY, name, price, at, ok FROM {source}"
START = datetime(1969, 12, 31, 23, 0, tzinfo=UTC)


def row(number: int) -> dict[str, object]:
    return {
        "id": number,
        "name": WORDS[number % len(WORDS)],
        "price": None if number % 7 == 3 else Decimal(number * 12_345_678 - 10**9) / 100,
        "at": None if number % 11 == 5 else START + timedelta(hours=number, milliseconds=number),
        "ok": (True, False, None)[number % 3],
    }


ROWS = [row(number) for number in range(COUNT)]
TABLE = pa.Table.from_pylist(ROWS, SCHEMA.arrow)
VALUES = [tuple(one.values()) for one in ROWS]


def local(value: object) -> object:
    """A value for a column of the time without a zone, which is UTC."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def through_sink(kind: str, uri: str, **options: str) -> None:
    sink = load(Group.SINKS, kind)(SinkSpec(kind, uri, options))
    sink.open(SCHEMA)
    sink.write(TABLE, Epoch("test", 0))
    sink.close()


def from_file(folder: Path) -> str:
    through_sink("file", f"file://{folder}/rows.csv")
    return f"'{folder}/rows.csv'"


def from_kafka(_: Path) -> str:
    url = KafkaService.shared().new_topic()
    through_sink("kafka", url)
    return url


def from_postgres(_: Path) -> str:
    url = PostgresService.shared().new_database()
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE rows (id bigint, name text, price numeric(18,2), at timestamptz, ok boolean)")
        with cursor.copy("COPY rows FROM STDIN") as copy:
            for values in VALUES:
                copy.write_row(values)
    return f"'{url}?table=rows'"


def from_mysql(_: Path) -> str:
    url = MysqlService.shared().new_database()
    place = make_url(url)
    with pymysql.connect(
        host=place.host, port=place.port, user=place.username, password=place.password or "", database=place.database
    ) as connection:
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE `rows` (id BIGINT, name TEXT, price DECIMAL(18,2), at DATETIME(3), ok TINYINT(1)) "
                "CHARACTER SET utf8mb4"
            )
            values = [tuple(map(local, one)) for one in VALUES]
            cursor.executemany("INSERT INTO `rows` VALUES (%s, %s, %s, %s, %s)", values)
        connection.commit()
    return f"'{url}?table=rows'"


def from_mongodb(_: Path) -> str:
    url = MongodbService.shared().new_database()
    with pymongo.MongoClient(url) as client:
        client.get_default_database().rows.insert_many(
            {**one, "price": None if one["price"] is None else Decimal128(one["price"])} for one in ROWS
        )
    return f"'{url}&collection=rows'"


def from_clickhouse(_: Path) -> str:
    service = ClickhouseService(url=ClickhouseService.shared().new_database())
    through_sink("clickhouse", f"{service.url}?table=rows")
    return f"'{service.url}?table=rows'"


def from_s3(_: Path) -> str:
    service = S3Service.shared()
    uri = f"{service.new_database()}/rows/"
    through_sink("s3", uri, **service.options)
    options = ", ".join(f"'{name}' = '{value}'" for name, value in service.options.items())
    return f"{uri}*.parquet WITH ({options})"


@pytest.fixture(scope="module")
def from_http() -> Iterator[Callable[[Path], str]]:
    with HttpServer() as server:
        yield lambda _: f"'{server.put('/rows', json_text(ROWS))}'"


SOURCES = {
    "file": from_file,
    "kafka": from_kafka,
    "postgres": from_postgres,
    "mysql": from_mysql,
    "mongodb": from_mongodb,
    "clickhouse": from_clickhouse,
    "s3": from_s3,
    "http": None,
    "memory": None,
}


@pytest.fixture(scope="module")
def connection() -> Iterator[velostream.Connection]:
    with velostream.connect() as connection:
        yield connection


@pytest.mark.parametrize("kind", SOURCES)
def test_the_table_is_the_same(kind, connection, from_http, tmp_path):
    if kind == "memory":
        connection.memory("rows").append(TABLE)
        source = "memory://rows"
    else:
        source = (SOURCES[kind] or from_http)(tmp_path)
    connection.execute(STATEMENT.format(table=f"from_{kind}", source=source))
    connection.wait(f"from_{kind}", timeout=180)
    connection.drain(f"from_{kind}", timeout=180)
    found = connection.execute(f"SELECT * FROM from_{kind} ORDER BY id")
    rows = found.fetchall()
    assert rows == [tuple(map(local, values)) for values in VALUES]
    assert {tuple(map(type, one)) for one in rows} == {tuple(map(type, values)) for values in VALUES}
    described = connection.execute(f"DESCRIBE from_{kind}").fetchall()
    assert {one[0]: one[1] for one in described} == TYPES
    connection.execute(f"DROP TABLE from_{kind}")
