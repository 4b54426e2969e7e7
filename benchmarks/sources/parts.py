"""The parts of `sources`, each of which can be run by itself as `python -m benchmarks sources.<part>`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks.harness import Measurement
from benchmarks.sources import capture, files, memory, postgres, s3, stores, topic, topic_views, web

BENCHMARK = "sources"

PARTS: dict[str, Callable[[argparse.Namespace], list[Measurement]]] = {
    "kafka": topic.run,
    "csv": files.run,
    "postgres": postgres.run,
    "capture": capture.run,
    "mongodb": stores.run_mongodb,
    "clickhouse": stores.run_clickhouse,
    "s3": s3.run,
    "http": web.run,
    "memory": memory.run,
    "views": topic_views.run,
}


def run(arguments: argparse.Namespace) -> list[Measurement]:
    return [measurement for part in PARTS.values() for measurement in part(arguments)]
