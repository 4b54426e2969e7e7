"""Parquet: a unit is a row group."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from velostream.formats.base import Reject, Rejected, WholeFormat
from velostream.formats.opening import unreadable
from velostream.model.conform import conform
from velostream.model.inference import is_untyped
from velostream.model.rows import json_text
from velostream.model.schema import Column, Schema


class ParquetFormat(WholeFormat):
    name = "parquet"

    def infer(self, paths: Sequence[Path]) -> Schema | None:
        columns: dict[str, Column] = {}
        for path in paths:
            with _open(path) as file:
                for column in Schema.from_arrow(file.schema_arrow).columns:
                    # A writer's NOT NULL says nothing about the files that will follow.
                    columns.setdefault(column.name.lower(), Column(column.name, column.type))
        return Schema(tuple(columns.values())) if columns else None

    def units(self, path: Path) -> Sequence[int]:
        with _open(path) as file:
            return [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]

    def decode(self, path: Path, start: int, end: int, schema: Schema, reject: Reject) -> Iterator[pa.Table]:
        with _open(path) as file:
            self.check_fields(path, self._field_names(file), schema)
            wanted = {name.lower() for name in schema.names}
            columns = [name for name in file.schema_arrow.names if name.lower() in wanted]
            number = sum(file.metadata.row_group(group).num_rows for group in range(start))
            for group in range(start, end):
                rows = _row_group(file, path, group, columns)

                def misfit(index: int, reason: str, rows: pa.Table = rows, before: int = number) -> None:
                    raw = json_text(rows.slice(index, 1).to_pylist()[0])
                    reject(Rejected(before + index + 1, raw, reason))

                if not columns:
                    rows = _only_counted(file.metadata.row_group(group).num_rows)
                yield conform(rows, schema, misfit, times=self.settings.times)
                number += rows.num_rows

    def _field_names(self, file: pq.ParquetFile) -> list[str]:
        """Where fields are to become columns, without those that hold NULLs of no type: they have no value yet."""
        adding = self.settings.add_further_fields
        return [field.name for field in file.schema_arrow if not (adding and is_untyped(field.type))]

    def encode(self, rows: pa.Table, *, first: bool = True) -> bytes:
        out = io.BytesIO()
        pq.write_table(rows, out)
        return out.getvalue()


def _only_counted(rows: int) -> pa.Table:
    return pa.table({"": pa.nulls(rows)})


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error, what="Parquet") from error


def _row_group(file: pq.ParquetFile, path: Path, group: int, columns: list[str]) -> pa.Table:
    try:
        return file.read_row_group(group, columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error, what="Parquet") from error
