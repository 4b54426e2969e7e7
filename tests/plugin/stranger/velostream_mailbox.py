"""Messages in a folder, each one gone when it was taken in: a source of another package."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import pyarrow as pa

from velostream.errors import Category, SourceError
from velostream.model.options import Option
from velostream.model.schema import Schema
from velostream.sources.base import (
    BadRecord,
    Offset,
    OnBad,
    Partition,
    Replay,
    Source,
    SourceCapabilities,
)


class MailboxSource(Source):
    """`mailbox:///folder`: files named by numbers, each a JSON list of rows. What is committed is deleted there.

    Delivery guarantee: exactly-once.
    """

    kind: ClassVar[str] = "mailbox"
    options: ClassVar[tuple[Option, ...]] = (Option("max.rows.per.trigger", "most rows of a batch"),)
    capabilities = SourceCapabilities(replay=Replay.UNTIL_COMMIT, incremental=True, follows=True)

    @property
    def _folder(self) -> Path:
        return Path(urlsplit(self.spec.uri).path)

    def schema(self) -> Schema | None:
        if not self._folder.is_dir():
            raise SourceError(
                f'mailbox "{self._folder}" does not exist', hint="make the folder", category=Category.MISSING
            )
        return self.spec.columns or Schema.of(("id", "BIGINT"), ("name", "STRING"), ("price", "DECIMAL(18,2)"))

    def initial_offset(self) -> Offset:
        return 0

    def latest_offset(self, start: Offset, *, max_rows: int | None = None) -> Offset:
        later = [number for number in self._numbers() if number > start]
        if max_rows is None or not later:
            return max(later, default=start)
        counts = accumulate(len(self._records(number)) for number in later)
        return max((number for number, rows in zip(later, counts, strict=True) if rows <= max_rows), default=later[0])

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        return [Partition(number) for number in self._numbers() if start < number <= end]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        rows = []
        for place, record in enumerate(self._records(partition.payload)):
            if isinstance(record, dict):
                rows.append({**record, "price": record["price"] and Decimal(record["price"])})
            else:
                on_bad(BadRecord(json.dumps(record).encode(), f"message {partition.payload} item {place}", "no object"))
        yield from pa.Table.from_pylist(rows, schema.arrow).to_batches()

    def reached(self, position: Offset, target: Offset) -> bool:
        return bool(position >= target)

    def commit(self, end: Offset) -> None:
        for number in self._numbers():
            if number <= end:
                self._path(number).unlink()

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("*.json"))

    def _records(self, number: int) -> list[object]:
        records: list[object] = json.loads(self._path(number).read_text())
        return records

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.json"
