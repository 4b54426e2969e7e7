"""What commits did to a table, one blob per commit, for kinds whose store keeps no history of its own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velostream.model.change import CHANGE
from velostream.model.schema import Schema
from velostream.tables.memory.compare import match_rows
from velostream.tables.memory.conform import stored_schema

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


def encode_changes(removed: pa.Table, added: pa.Table) -> bytes:
    """The rows that went and those that came, as one Arrow stream."""
    rows = signed(removed, added)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def decode_changes(blob: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
        return reader.read_all()


def net_changes(schema: Schema, batches: Iterable[pa.Table]) -> pa.Table:
    """What signed batches amount to one after another: -1 rows, then +1 rows, none of which cancel out."""
    empty = signed(stored_schema(schema).empty_table(), stored_schema(schema).empty_table())
    rows = pa.concat_tables([empty, *batches]).combine_chunks()
    signs = rows.column(CHANGE).to_numpy()
    removed = rows.filter(pa.array(signs < 0)).drop_columns([CHANGE])
    added = rows.filter(pa.array(signs > 0)).drop_columns([CHANGE])
    same = match_rows(removed, added)
    return signed(_without(removed, same.left), _without(added, same.right))


def signed(removed: pa.Table, added: pa.Table) -> pa.Table:
    """The rows under their signs, -1 before +1."""
    signs = np.repeat(np.array([-1, 1], dtype=np.int8), [removed.num_rows, added.num_rows])
    return pa.concat_tables([removed, added]).append_column(CHANGE, pa.array(signs, pa.int8()))


def _without(rows: pa.Table, places: npt.NDArray[np.int64]) -> pa.Table:
    if not len(places):
        return rows
    return rows.take(pa.array(np.setdiff1d(np.arange(rows.num_rows), places)))
