"""`python -m benchmarks [name …] [--rows n] [--rounds n] [--cpu] [--json file]`: run, check, show, save."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks import enrich, lookup_scaling, maintain, realtime, sources, tables, ten_views
from benchmarks.harness import Measurement, save, show

BENCHMARKS: dict[str, Callable[[argparse.Namespace], list[Measurement]]] = {
    "tables": tables.run,
    "lookup_scaling": lookup_scaling.run,
    "enrich": enrich.run,
    "maintain": maintain.run,
    "ten_views": ten_views.run,
    "sources": sources.run,
    "realtime": realtime.run,
}
PARTS = {f"sources.{name}": part for name, part in sources.PARTS.items()}
"""Parts of benchmarks, which are run by themselves only when they are named."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS, *PARTS], help="which to run; all without a name")
    parser.add_argument("--rows", type=int, help="size of the workload instead of its own")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, after one that doesn't")
    parser.add_argument(
        "--cpu", action="store_true", help="tables: CPU time of the process; for a machine that is busy otherwise"
    )
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks.json"), help="where the figures go")
    arguments = parser.parse_args()
    console = Console(width=120)
    measurements: list[Measurement] = []
    for name in arguments.names or list(BENCHMARKS):
        console.print(f"running {name} …")
        measurements += (BENCHMARKS | PARTS)[name](arguments)
    show(measurements, console)
    save(measurements, arguments.json, {"cores": os.cpu_count()})
    console.print(f"all results checked; figures in {arguments.json}")


if __name__ == "__main__":
    main()
