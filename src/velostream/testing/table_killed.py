"""A process that commits to a table until it is killed, for tests of what such an end leaves.

Run as a module it is that process: it takes specs of tables as JSON, commits one epoch after another and prints the
number of each once it is committed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from velostream import plugins
from velostream.errors import WaitTimeoutError, present
from velostream.model.change import Epoch, Mode, Write
from velostream.model.schema import Schema
from velostream.tables.base import Table, TableSpec, TableWrites
from velostream.testing.stores import store_of

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
    """Another process that commits to a table, or to several of one group in one step."""

    def __init__(self, kind: str, specs: Sequence[TableSpec]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "velostream.testing.table_killed", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
        )
        # Not as an argument, which everybody on the machine could read: options may hold a password.
        with present(self._process.stdin) as order:
            json.dump([_described(spec) for spec in specs], order)

    def kill_after(self, *, commits: int, delay: float) -> int:
        """SIGKILL it that long after it has told of so many commits; gives the last epoch it told of."""
        watchdog = threading.Timer(_PATIENCE, self._process.kill)
        watchdog.start()
        told: list[str] = []
        with self._process as process:
            output = present(process.stdout)
            while len(told) < commits:
                line = output.readline()
                if not line:
                    raise WaitTimeoutError("the writer ended by itself, or took too long")
                told.append(line)
            watchdog.cancel()
            threading.Event().wait(delay)
            process.kill()
            told += output.read().splitlines()
        return int(told[-1])


def _described(spec: TableSpec) -> dict[str, Any]:
    return {
        "id": spec.id,
        "name": spec.name,
        "schema": spec.schema.to_json(),
        "options": dict(spec.options),
        "directory": None if spec.directory is None else str(spec.directory),
    }


def _spec_of(described: Mapping[str, Any]) -> TableSpec:
    directory = described["directory"]
    return TableSpec(
        id=described["id"],
        name=described["name"],
        schema=Schema.from_json(described["schema"]),
        options=described["options"],
        directory=None if directory is None else Path(directory),
    )


def _commit_for_ever(kind: str, specs: Sequence[TableSpec]) -> None:
    table_class: type[Table] = plugins.load(plugins.Group.TABLES, kind)
    together = len(specs) > 1
    tables = store_of(kind).open_together(table_class, specs) if together else [table_class.open(specs[0])]
    for number in count():
        write, epoch = epoch_write(number), Epoch(WRITER, number)
        if together:
            tables[0].commit_together([TableWrites(table, [write]) for table in tables], epoch)
        else:
            tables[0].commit(write, epoch)
        print(number, flush=True)  # noqa: T201 - how it tells


if __name__ == "__main__":
    _commit_for_ever(sys.argv[1], [_spec_of(described) for described in json.load(sys.stdin)])
