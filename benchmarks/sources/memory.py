"""Memory of the driver while rows are loaded into a table that is limited and puts the rest into files.

Each size is loaded in a process of its own: a quarter of the rows, and all of them. What the driver grows by in the
worst moment should be the same for both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

from benchmarks.harness import Measurement, expect
from benchmarks.sources.processes import PeakMemory
from benchmarks.sources.trades import SCHEMA, trades

ROWS = 10_000_000
LIMIT = "128MB"
_ROWS_PER_GROUP = 500_000
_PATIENCE = 900
_ROOT = Path(__file__).parent.parent.parent
SOURCES = {
    "a Parquet file, read once": "SELECT * FROM '{file}'",
    "a stream of generated rows": (
        "SELECT * FROM 'generator://trades?rows={rows}&fields=id:sequence(0),account:label(ACC,1000),"
        "symbol:label(S,50),quantity:int(1,100),price:decimal(0,1000,2)'"
    ),
}


@dataclass(frozen=True)
class Grown:
    """What a load took, in bytes and seconds."""

    rows: int
    own: int
    mapped: int
    seconds: float


def run(arguments: argparse.Namespace) -> list[Measurement]:
    rows = arguments.rows or ROWS
    measurements = []
    for source in SOURCES:
        quarter, all_ = (_load_elsewhere(source, count) for count in (rows // 4, rows))
        for grown in (quarter, all_):
            print(
                f"memory, {source}: {grown.rows:,} rows, limit {LIMIT}: driver grew by {grown.own >> 20:,} MB at most, "
                f"and mapped {grown.mapped >> 20:,} MB of files; {grown.seconds:.1f} s"
            )
        print(
            f"memory, {source}: four times the rows took {all_.own / max(1, quarter.own):.2f} × the memory "
            "(target: a bound that doesn't grow with the rows)"
        )
        name = f"memory, {source}, {rows:,} rows, limit {LIMIT}"
        measurements.append(Measurement("sources", name, "velostream", rows, (all_.seconds,)))
    return measurements


def _load_elsewhere(source: str, rows: int) -> Grown:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])}
    command = [sys.executable, "-m", "benchmarks.sources.memory", source, str(rows)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"{source}: {done.stderr[-2000:]}")
    return Grown(**json.loads(done.stdout))


def _load(source: str, rows: int) -> Grown:
    """Load a few rows, so that everything is imported and started, then all."""
    import velostream

    with TemporaryDirectory() as folder, velostream.connect() as connection:
        few = _ROWS_PER_GROUP // 5
        for name, count in (("few", few), ("many", rows)):
            file = Path(folder) / f"{name}.parquet"
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
                # What writing takes here would be memory that the load needn't ask for.
                apart.submit(_write, file, count).result()
            select = SOURCES[source].format(file=file.as_uri(), rows=count)
            with PeakMemory() as memory:
                began = time.perf_counter()
                connection.execute(f"CREATE TABLE {name} WITH ('memory.limit' = '{LIMIT}') AS {select}")
                connection.drain(name, timeout=_PATIENCE)
                seconds = time.perf_counter() - began
            found = len(connection.table(name))
            expect(found == count, f"gave {found} of {count} rows")
        return Grown(rows, memory.own - memory.before, memory.mapped - memory.mapped_before, seconds)


def _write(path: Path, rows: int) -> None:
    with pq.ParquetWriter(path, SCHEMA) as file:
        for first in range(0, rows, _ROWS_PER_GROUP):
            file.write_table(trades(min(_ROWS_PER_GROUP, rows - first), first=first))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(_load(sys.argv[1], int(sys.argv[2])))))
