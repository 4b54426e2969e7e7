"""What tests of several sources share."""

from __future__ import annotations

from typing import Any

from velostream.sources.base import BadRecord, Source


class Reader:
    """Reads on where it stopped, and says what came."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.schema = source.schema()
        self.position = source.initial_offset()
        self.bad: list[BadRecord] = []

    def read(self, *, max_rows: int | None = 1_000) -> list[Any]:
        end = self.source.latest_offset(self.position, max_rows=max_rows)
        rows: list[Any] = []
        for partition in self.source.partitions(self.position, end):
            if partition.replaces:
                rows.append("replaced by")
            for batch in self.source.read(partition, self.schema, self.bad.append):
                rows += batch.to_pylist()
        self.position = end
        self.source.commit(end)
        return rows
