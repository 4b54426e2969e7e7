"""What a table can't keep in its memory, in files that are mapped back.

A file is removed as soon as it is mapped: its content lives as long as somebody reads it and is gone with the process,
however that ends.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa

from velostream.tables.memory.hash_index import HashIndex


def mapped_batch(batch: pa.RecordBatch, directory: Path) -> pa.RecordBatch:
    """The same rows, in a file. Raises `OSError` when it can't be written."""
    with tempfile.NamedTemporaryFile(dir=directory, prefix="velostream-", suffix=".arrow") as file:
        with pa.OSFile(file.name, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return pa.ipc.open_file(pa.memory_map(file.name)).get_batch(0)


def mapped_index(index: HashIndex, directory: Path) -> HashIndex:
    """The same index, in files. Raises `OSError` when they can't be written."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="velostream-") as folder:
        path = Path(folder) / "index"
        index.save(path)
        return HashIndex.load(path)
