"""Objects of S3, Parquet and CSV, beside Arrow's own file system and readers."""

from __future__ import annotations

import argparse

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import velostream
from benchmarks.harness import Measurement
from benchmarks.sources.loading import Driver, Target, measure_load
from benchmarks.sources.trades import SCHEMA, Content, trades
from velostream.testing.services.s3 import S3Service

ROWS = 5_000_000
"""With fewer it is the planning of the statement that is measured."""
OBJECTS = 4
_TARGET = Target(of_driver=0.6)


def run(arguments: argparse.Namespace) -> list[Measurement]:
    rows = trades(arguments.rows or ROWS)
    service = S3Service.shared()
    address = service.new_database()
    bucket = address.removeprefix("s3://")
    system = service.file_system()
    share = -(-rows.num_rows // OBJECTS)
    for number in range(OBJECTS):
        part = rows.slice(number * share, share)
        pq.write_table(part, f"{bucket}/parquet/{number}.parquet", filesystem=system)
        with system.open_output_stream(f"{bucket}/csv/{number}.csv") as stream:
            pacsv.write_csv(part, stream)
    options = ", ".join(f"'{name}' = '{value}'" for name, value in service.options.items())

    def csv() -> pa.Table:
        types = pacsv.ConvertOptions(column_types=SCHEMA)
        streams = (system.open_input_stream(f"{bucket}/csv/{number}.csv") for number in range(OBJECTS))
        return pa.concat_tables(pacsv.read_csv(stream, convert_options=types) for stream in streams)

    drivers = {
        "parquet": Driver("pyarrow.fs, parquet", lambda: pq.read_table(f"{bucket}/parquet", filesystem=system)),
        "csv": Driver("pyarrow.fs, csv", csv),
    }
    measurements = []
    with velostream.connect() as connection:
        for name, driver in drivers.items():
            title = f"s3, {name}, {OBJECTS} objects, {rows.num_rows:,} rows"
            select = f"SELECT * FROM '{address}/{name}/*.{name}' WITH ({options})"
            right = Content.of_arrow(rows)
            measurements += measure_load(connection, title, select, right, _TARGET, driver, arguments.rounds)
    return measurements
