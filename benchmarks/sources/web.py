"""One answer of an HTTP server, a JSON array and JSON lines, beside httpx with the parsers of their kind."""

from __future__ import annotations

import argparse
import io

import httpx
import orjson
import pyarrow as pa
import pyarrow.json as pajson

import velostream
from benchmarks.harness import Measurement
from benchmarks.sources.loading import Driver, Target, measure_load
from benchmarks.sources.trades import SCHEMA, Content, json_objects, trades
from velostream.testing.services.http import HttpServer

ROWS = 500_000
_TARGET = Target(of_driver=0.6)
_BLOCK_BYTES = 1 << 24


def run(arguments: argparse.Namespace) -> list[Measurement]:
    rows = trades(arguments.rows or ROWS)
    objects = list(json_objects(rows))
    measurements = []
    with HttpServer() as server, velostream.connect() as connection:
        array = server.put("/array", "[" + ",".join(objects) + "]")
        lines = server.put("/lines", "".join(f"{one}\n" for one in objects), content_type="application/x-ndjson")
        drivers = {
            array: ("JSON array", Driver("httpx, orjson, Arrow", lambda: _from_array(array))),
            lines: ("JSON lines", Driver("httpx, pyarrow.json", lambda: _from_lines(lines))),
        }
        for address, (name, driver) in drivers.items():
            title = f"http, {name}, {rows.num_rows:,} records"
            select = f"SELECT * FROM '{address}'"
            right = Content.of_arrow(rows)
            measurements += measure_load(connection, title, select, right, _TARGET, driver, arguments.rounds)
    return measurements


def _from_array(address: str) -> pa.Table:
    """Prices are floats here: the parser knows no other numbers."""
    return pa.Table.from_pylist(orjson.loads(httpx.get(address).content))


def _from_lines(address: str) -> pa.Table:
    """Prices are exact here, as in our table."""
    read = pajson.ReadOptions(block_size=_BLOCK_BYTES)
    return pajson.read_json(io.BytesIO(httpx.get(address).content), read, pajson.ParseOptions(explicit_schema=SCHEMA))
