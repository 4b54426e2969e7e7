"""A table of PostgreSQL read once, beside COPY to Arrow."""

from __future__ import annotations

import argparse
import io

import psycopg
import pyarrow as pa
import pyarrow.csv as pacsv

import velostream
from benchmarks.harness import Measurement
from benchmarks.sources.loading import Driver, Target, measure_load
from benchmarks.sources.trades import SCHEMA, SQL_COLUMNS, Content, trades
from velostream.testing.services.postgres import PostgresService

ROWS = 1_000_000


def run(arguments: argparse.Namespace) -> list[Measurement]:
    rows = trades(arguments.rows or ROWS)
    url = PostgresService.shared().new_database()
    fill(url, rows)
    with velostream.connect() as connection:
        return measure_load(
            connection,
            f"postgres, bulk, {rows.num_rows:,} rows",
            f"SELECT * FROM '{url}?table=trades'",
            Content.of_arrow(rows),
            Target(per_second=150_000),
            Driver("COPY as CSV to Arrow", lambda: _copied(url)),
            arguments.rounds,
        )


def fill(url: str, rows: pa.Table) -> None:
    """Make the table `trades` of these rows."""
    text = io.BytesIO()
    pacsv.write_csv(rows, text, pacsv.WriteOptions(include_header=False))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE trades ({SQL_COLUMNS})")
        with connection.cursor().copy("COPY trades FROM STDIN (FORMAT csv)") as copy:
            copy.write(text.getvalue())
        connection.execute("VACUUM ANALYZE trades")


def _copied(url: str) -> pa.Table:
    with psycopg.connect(url) as connection, connection.cursor().copy("COPY trades TO STDOUT (FORMAT csv)") as copy:
        text = b"".join(copy)
    read = pacsv.ReadOptions(column_names=SCHEMA.names)
    return pacsv.read_csv(io.BytesIO(text), read, convert_options=pacsv.ConvertOptions(column_types=SCHEMA))
