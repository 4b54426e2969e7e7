"""MongoDB and ClickHouse read once, beside their drivers."""

from __future__ import annotations

import argparse
import io
from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
import pyarrow as pa
import pyarrow.parquet as pq
from bson.decimal128 import Decimal128
from pymongo import MongoClient
from pymongo.collection import Collection

import velostream
from benchmarks.harness import Measurement
from benchmarks.sources.loading import Driver, Target, measure_load
from benchmarks.sources.trades import SCHEMA, Content, trades
from velostream.testing.services.clickhouse import ClickhouseService
from velostream.testing.services.mongodb import MongodbService

MONGODB_ROWS = 500_000
CLICKHOUSE_ROWS = 5_000_000
"""With fewer it is the planning of the statement that is measured."""
_DOCUMENTS_AT_ONCE = 50_000
_TARGET = Target(of_driver=0.6)


def run_mongodb(arguments: argparse.Namespace) -> list[Measurement]:
    rows = trades(arguments.rows or MONGODB_ROWS)
    url = MongodbService.shared().new_database()
    client: MongoClient[dict[str, Any]]
    with MongoClient(url) as client, velostream.connect() as connection:
        collection: Collection[dict[str, Any]] = client.get_default_database().trades
        for batch in rows.to_batches(max_chunksize=_DOCUMENTS_AT_ONCE):
            collection.insert_many([{**row, "price": Decimal128(row["price"])} for row in batch.to_pylist()])

        def delivered() -> pa.Table:
            found = collection.find({}, {"_id": 0})
            return pa.Table.from_pylist([{**row, "price": row["price"].to_decimal()} for row in found], schema=SCHEMA)

        return measure_load(
            connection,
            f"mongodb, bulk, {rows.num_rows:,} documents",
            f"SELECT id, account, symbol, quantity, price FROM '{url}' WITH ('collection' = 'trades')",
            Content.of_arrow(rows),
            _TARGET,
            Driver("pymongo to Arrow", delivered),
            arguments.rounds,
        )


def run_clickhouse(arguments: argparse.Namespace) -> list[Measurement]:
    """The engine is the real one; the HTTP in front of it is the stand-in of `ClickhouseService`, for both."""
    rows = trades(arguments.rows or CLICKHOUSE_ROWS)
    url = ClickhouseService.shared().new_database()
    service = ClickhouseService(url=url)
    service.execute(
        "CREATE TABLE trades (id Int64, account String, symbol String, quantity Int64, price Decimal(18, 2)) "
        "ENGINE = MergeTree ORDER BY id"
    )
    data = io.BytesIO()
    pq.write_table(rows, data)
    service.load("INSERT INTO trades FORMAT Parquet", data.getvalue())
    parts = urlsplit(url)
    client = clickhouse_connect.get_client(
        host=str(parts.hostname),
        port=parts.port or 0,
        username=parts.username,
        password=parts.password or "",
        database=parts.path.lstrip("/"),
        compress=False,
    )
    with velostream.connect() as connection:
        return measure_load(
            connection,
            f"clickhouse, bulk, {rows.num_rows:,} rows",
            f"SELECT * FROM '{url}?table=trades'",
            Content.of_arrow(rows),
            _TARGET,
            Driver("query_arrow", lambda: client.query_arrow("SELECT * FROM trades")),
            arguments.rounds,
        )
