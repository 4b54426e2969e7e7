"""Files written ahead of the commit that names them, by any process that reaches the table's location."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa

from velostream.tables.delta.files import FileLayout
from velostream.tables.delta.log import DataFile
from velostream.tables.delta.partitions import partition_text
from velostream.tables.memory.conform import conform


@dataclass(frozen=True, slots=True)
class FileStager:
    """Writes rows to files that are nobody's yet; those that never come to be named are found by VACUUM."""

    layout: FileLayout
    prefix: str

    def stage(self, rows: pa.Table, *, part: int) -> Sequence[str]:
        given = conform(rows, table=self.layout.table, schema=self.layout.schema)
        files = self.layout.write(given, prefix=f"{self.prefix}-{part:05}")
        return [
            json.dumps([file.path, file.rows, [partition_text(value) for value in file.partition], file.size])
            for file in files
        ]


def staged_files(staged: Sequence[str], layout: FileLayout) -> list[DataFile]:
    """What `FileStager.stage` gave, as files."""
    types = [layout.schema.column(name).type for name in layout.partition_by]
    files = []
    for text in staged:
        path, rows, values, size = json.loads(text)
        partition = tuple(_value(value, type_) for value, type_ in zip(values, types, strict=True))
        files.append(DataFile(path, rows, partition, size))
    return files


def _value(text: str | None, type_: pa.DataType) -> Any:
    if text is None or pa.types.is_string(type_):
        return text
    if pa.types.is_boolean(type_):
        return text == "true"
    return date.fromisoformat(text) if pa.types.is_date(type_) else int(text)
