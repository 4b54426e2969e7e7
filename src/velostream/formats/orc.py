"""ORC: a unit is a stripe."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import orc

from velostream.formats.base import Reject, Rejected, WholeFormat
from velostream.formats.opening import unreadable
from velostream.model.conform import conform
from velostream.model.rows import json_text
from velostream.model.schema import Column, Schema


class OrcFormat(WholeFormat):
    name = "orc"

    def infer(self, paths: Sequence[Path]) -> Schema | None:
        columns: dict[str, Column] = {}
        for path in paths:
            for column in Schema.from_arrow(_open(path).schema).columns:
                columns.setdefault(column.name.lower(), Column(column.name, column.type))
        return Schema(tuple(columns.values())) if columns else None

    def units(self, path: Path) -> Sequence[int]:
        file = _open(path)
        return [_stripe(file, path, number, file.schema.names[:1]).num_rows for number in range(file.nstripes)]

    def decode(self, path: Path, start: int, end: int, schema: Schema, reject: Reject) -> Iterator[pa.Table]:
        file = _open(path)
        self.check_fields(path, file.schema.names, schema)
        wanted = {name.lower() for name in schema.names}
        # A stripe without columns has no rows to count.
        columns = [name for name in file.schema.names if name.lower() in wanted] or file.schema.names[:1]
        for stripe in range(start, end):
            rows = pa.Table.from_batches([_stripe(file, path, stripe, columns)])

            def misfit(index: int, reason: str, rows: pa.Table = rows, stripe: int = stripe) -> None:
                raw = json_text(rows.slice(index, 1).to_pylist()[0])
                before = sum(self.units(path)[:stripe])
                reject(Rejected(before + index + 1, raw, reason))

            yield conform(rows, schema, misfit, times=self.settings.times)

    def encode(self, rows: pa.Table, *, first: bool = True) -> bytes:
        out = io.BytesIO()
        orc.write_table(rows, out, compression="zstd")
        return out.getvalue()


def _open(path: Path) -> orc.ORCFile:
    try:
        return orc.ORCFile(path)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error, what="ORC") from error


def _stripe(file: orc.ORCFile, path: Path, number: int, columns: list[str]) -> pa.RecordBatch:
    try:
        return file.read_stripe(number, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error, what="ORC") from error
