"""What the ways in which HTTP brings records have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import pyarrow as pa

from velostream.model.schema import Schema
from velostream.sources.base import Offset, OnBad, Partition, SourceCapabilities


class HttpReading(ABC):
    """One of the ways in which HTTP brings records. The calls are those of `Source`."""

    capabilities: SourceCapabilities

    @abstractmethod
    def discover(self) -> Schema | None:
        """The columns that the records show; None while there are none."""

    @abstractmethod
    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        """As `Source.latest_offset`."""

    @abstractmethod
    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        """As `Source.partitions`, of a range that isn't empty."""

    @abstractmethod
    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        """As `Source.read`."""

    @abstractmethod
    def reached(self, position: Offset, target: Offset) -> bool:
        """As `Source.reached`, of two offsets that are neither equal nor before everything."""

    def initial(self, *, latest: bool) -> Offset:
        """As `Source.initial_offset`."""
        return None

    def commit(self, end: Offset) -> None:
        """As `Source.commit`."""

    def close(self) -> None:
        """As `Source.close`."""
