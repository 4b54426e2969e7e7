"""A process that commits to a table until it is killed, for tests of what such an end leaves.

Run as a module it is that process: it takes a table's spec as JSON, commits one epoch after another and prints the
number of each once it is committed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa

from velostream import plugins
from velostream.errors import WaitTimeoutError
from velostream.model.change import Epoch, Mode, Write
from velostream.model.schema import Schema
from velostream.tables.base import Table, TableSpec

WRITER = "killed"
_ROWS = 500
_FIRST_MARK = 1_000_000
_PATIENCE = 60.0


def epoch_write(number: int) -> Write:
    """What an epoch does: many rows renamed, so that half of it would show; one row more, so that all of them count."""
    ids = [*range(_ROWS), _FIRST_MARK + number]
    return Write(Mode.UPSERT, pa.table({"id": ids, "name": [str(number)] * _ROWS + ["mark"]}))


def epoch_found(table: Table) -> int:
    """The last epoch a table shows; `AssertionError` unless it shows all epochs up to it, each of them whole."""
    rows = table.snapshot().scan(columns=["id", "name"])
    names = dict(zip(rows.column("id").to_pylist(), rows.column("name").to_pylist(), strict=True))
    marks = sorted(row for row in names if row >= _FIRST_MARK)
    assert marks == list(range(_FIRST_MARK, _FIRST_MARK + len(marks))), marks  # noqa: S101 - part of a suite
    renamed = {names[row] for row in range(_ROWS)}
    assert renamed == {str(len(marks) - 1)}, renamed  # noqa: S101 - part of a suite
    assert rows.num_rows == len(marks) + _ROWS  # noqa: S101 - part of a suite
    return len(marks) - 1


class KilledWriter:
    """Another process at a table."""

    def __init__(self, kind: str, spec: TableSpec, *, first_epoch: int) -> None:
        order = {
            "kind": kind,
            "id": spec.id,
            "name": spec.name,
            "schema": spec.schema.to_json(),
            "options": dict(spec.options),
            "directory": None if spec.directory is None else str(spec.directory),
            "first_epoch": first_epoch,
        }
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "velostream.testing.table_killed", json.dumps(order)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
        )

    def kill_after(self, *, commits: int, delay: float) -> int:
        """SIGKILL it that long after it has told of so many commits; gives the last epoch it told of."""
        watchdog = threading.Timer(_PATIENCE, self._process.kill)
        watchdog.start()
        told: list[str] = []
        with self._process as process:
            if process.stdout is None:
                raise WaitTimeoutError("the writer has no output")
            while len(told) < commits:
                line = process.stdout.readline()
                if not line:
                    raise WaitTimeoutError("the writer ended by itself, or took too long")
                told.append(line)
            threading.Event().wait(delay)
            process.kill()
            told += process.stdout.read().splitlines()
        watchdog.cancel()
        return int(told[-1])


def _commit_for_ever(order: str) -> None:
    given = json.loads(order)
    spec = TableSpec(
        id=given["id"],
        name=given["name"],
        schema=Schema.from_json(given["schema"]),
        options=given["options"],
        directory=None if given["directory"] is None else Path(given["directory"]),
    )
    table: Table = plugins.load(plugins.Group.TABLES, given["kind"]).open(spec)
    number = given["first_epoch"]
    while True:
        table.commit(epoch_write(number), Epoch(WRITER, number))
        print(number, flush=True)  # noqa: T201 - how it tells
        number += 1


if __name__ == "__main__":
    _commit_for_ever(sys.argv[1])
