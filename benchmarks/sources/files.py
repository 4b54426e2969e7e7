"""A CSV file of two million rows into a table."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.csv as pacsv

import velostream
from benchmarks.harness import Measurement
from benchmarks.sources.loading import Driver, Target, measure_load
from benchmarks.sources.trades import SCHEMA, Content, trades

ROWS = 2_000_000


def run(arguments: argparse.Namespace) -> list[Measurement]:
    rows = trades(arguments.rows or ROWS)
    with TemporaryDirectory() as folder, velostream.connect() as connection:
        path = Path(folder) / "trades.csv"
        pacsv.write_csv(rows, path)
        types = pacsv.ConvertOptions(column_types=SCHEMA)
        driver = Driver("pyarrow.csv", lambda: pacsv.read_csv(path, convert_options=types))
        name = f"csv file, {rows.num_rows:,} rows"
        select = f"SELECT * FROM '{path.as_uri()}'"
        right, target = Content.of_arrow(rows), Target(per_second=300_000)
        return measure_load(connection, name, select, right, target, driver, arguments.rounds)
