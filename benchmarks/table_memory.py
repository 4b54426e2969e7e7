"""How much memory rows take: by what the process itself grows, each form in a process of its own."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ROOT = Path(__file__).parent.parent


FORMS = {
    "dict": None,
    "normal": "'table_model' = 'normal'",
    "compact": "'table_model' = 'compact'",
    "compact, lz4": "'table_model' = 'compact', 'compression' = 'lz4'",
    "compact, zstd": "'table_model' = 'compact', 'compression' = 'zstd'",
}
"""A dict of dicts, or a table with these options."""


def resident_bytes(count: int, form: str) -> int:
    """Bytes that `count` rows of the workload take in one of the `FORMS`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])}
    command = [sys.executable, "-m", "benchmarks.table_memory", str(count), form]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


def _resident() -> int:
    """What the process has in memory, once everything unused has gone back to the system."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _grown(count: int, form: str) -> int:
    """The rows come in pieces, as they would from a source, and nothing but the form's own stays."""
    from benchmarks.tables import COLUMNS, workload

    piece = min(count, 50_000)
    workload(piece)
    kept: Any
    options = FORMS[form]
    if options is None:
        before = _resident()
        kept = {}
        for start in range(0, count, piece):
            kept.update(
                (row["key"], row) for row in workload(count, start=start, stop=min(count, start + piece)).to_pylist()
            )
    else:
        import velostream

        connection = velostream.connect()
        for name in ("warm", "t"):
            connection.execute(f"CREATE TABLE {name} ({COLUMNS}) WITH ({options})")
        connection.table("warm").bulk_insert(workload(piece))
        connection.execute("DROP TABLE warm")
        before = _resident()
        kept = connection.table("t")
        for start in range(0, count, piece):
            kept.bulk_insert(workload(count, start=start, stop=min(count, start + piece)))
    grown = _resident() - before
    if len(kept) != count:
        raise AssertionError(f"{len(kept)} rows instead of {count}")
    return grown


if __name__ == "__main__":
    sys.stdout.write(str(_grown(int(sys.argv[1]), sys.argv[2])))
    sys.stdout.flush()
    os._exit(0)
