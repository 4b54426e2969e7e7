"""What commits did to a table, one blob per commit, for kinds whose store keeps no history of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velostream.model.change import CHANGE
from velostream.model.schema import Schema
from velostream.tables.memory.compare import match_rows
from velostream.tables.memory.conform import stored_schema

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows that went and rows that came."""

    removed: pa.Table
    added: pa.Table

    @property
    def empty(self) -> bool:
        return not (self.removed.num_rows or self.added.num_rows)

    def signed(self) -> pa.Table:
        """All of them with the sign column, -1 before +1."""
        signs = np.repeat(np.array([-1, 1], dtype=np.int8), [self.removed.num_rows, self.added.num_rows])
        return pa.concat_tables([self.removed, self.added]).append_column(CHANGE, pa.array(signs, pa.int8()))

    def encode(self) -> bytes:
        rows = self.signed()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as writer:
            writer.write_table(rows)
        return bytes(sink.getvalue())

    @classmethod
    def decode(cls, blob: bytes) -> Changes:
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            rows = reader.read_all()
        signs = rows.column(CHANGE).to_numpy()
        rows = rows.drop_columns([CHANGE])
        return cls(rows.filter(pa.array(signs < 0)), rows.filter(pa.array(signs > 0)))


def net_changes(schema: Schema, steps: Sequence[Changes]) -> Changes:
    """What steps amount to one after another; what cancels out is not in it."""
    empty = stored_schema(schema).empty_table()
    removed = pa.concat_tables([empty, *(step.removed for step in steps)])
    added = pa.concat_tables([empty, *(step.added for step in steps)])
    same = match_rows(removed, added)
    return Changes(_without(removed, same.left), _without(added, same.right))


def _without(rows: pa.Table, places: npt.NDArray[np.int64]) -> pa.Table:
    if not len(places):
        return rows
    return rows.take(pa.array(np.setdiff1d(np.arange(rows.num_rows), places)))
