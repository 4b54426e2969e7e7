"""What a database holds at one moment: read once, or as the load that comes before everything else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.model.change import CHANGE, JsonValue
from velostream.model.schema import Schema
from velostream.sources.base import Offset, OnBad, Partition, SourceCapabilities
from velostream.sources.database import DatabaseSession, ReadingMode

if TYPE_CHECKING:
    from velostream.sources.database import DatabaseSource


class Bulk:
    """What a database holds at one moment, in parts that several can read."""

    def __init__(self, source: DatabaseSource) -> None:
        self._source = source
        self._holder: DatabaseSession | None = None
        """Keeps the moment readable for the others."""
        self._until: float | None = None
        """When the last load that was begun has to end."""

    def begin(self, *, snapshot: str | None = None) -> DatabaseSession:
        """A session whose state all parts of the next `partitions` will be of: a new one, or one of that name."""
        self.close()
        self._holder = self._source.driver.open(snapshot=snapshot, shared=True)
        return self._holder

    def partitions(
        self,
        *,
        conditions: Sequence[str] = (),
        values: Sequence[JsonValue] = (),
        whole: bool = False,
        replaces: bool = False,
        begun: bool = False,
    ) -> list[Partition]:
        """All rows for which the conditions hold, `whole` in one part; as of a new moment, or of one that has `begun`.

        They can be read until `close` or the next moment.
        """
        if not begun:
            # What is held may be of an attempt that lost its server.
            self.close()
        # What replaces all that was there is no load, and is read whole.
        limit = self._source.selection.limit if replaces else self.limit
        held = self._holder is not None
        holder = self._holder or self.begin()
        parts: Sequence[str] = ()
        if self._source.selection.order_by is None and limit is None and not replaces | whole:
            readers = self._source.settings.integer("parallel.readers") or 1
            parts = holder.parts(self._source.selection, readers)
        snapshot = holder.snapshot
        if not held and not parts:
            # One reader sees one state by itself.
            self.close()
            snapshot = None
        longest = None if replaces else self._source.settings.duration("loading.bulk.max_duration")
        self._until = None if longest is None else time.time() + longest.total_seconds()
        shared: dict[str, JsonValue] = {
            "snapshot": snapshot,
            "values": list(values),
            "whole": whole,
            "limit": limit,
            "until": self._until,
        }
        return [
            Partition({"bulk": {**shared, "conditions": [*conditions, *part]}}, replaces=replaces)
            for part in ([[part] for part in parts] or [[]])
        ]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, without a sign."""
        payload = partition.payload["bulk"]
        source = self._source
        session = source.driver.open(snapshot=payload["snapshot"])
        try:
            statement = source.driver.select(
                replace(source.selection, limit=payload["limit"]),
                source.columns_of(schema),
                conditions=payload["conditions"],
                values=payload["values"],
            )
            for batch in session.rows(statement, schema, on_bad, size=source.settings.integer("fetch.size") or 1):
                yield batch
                if payload["until"] is not None and time.time() > payload["until"]:
                    self.warn_if_cut_short()
                    return
        finally:
            session.close()

    def warn_if_cut_short(self) -> None:
        """Say so where the time for the load is up: whoever read it, in whatever process, has stopped then."""
        warning = "loading was ended by loading.bulk.max_duration; rows may be missing"
        if self._until is not None and time.time() > self._until and warning not in self._source.warnings:
            self._source.warnings += (warning,)

    @property
    def limit(self) -> int | None:
        """Most rows to load."""
        most = self._source.settings.integer("loading.bulk.max_records")
        return min((n for n in (self._source.selection.limit, most) if n is not None), default=None)

    def close(self) -> None:
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.close()


class OneReading(ReadingMode):
    """Read once. Its offsets are None and, when everything was read, True."""

    capabilities = SourceCapabilities()

    def __init__(self, source: DatabaseSource) -> None:
        self._bulk = Bulk(source)

    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        return True

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        return self._bulk.partitions()

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        return self._bulk.read(partition, schema, on_bad)

    def commit(self, end: Offset) -> None:
        self._bulk.warn_if_cut_short()
        self._bulk.close()

    def close(self) -> None:
        self._bulk.close()


def with_sign(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that are there."""
    return batch.append_column(pa.field(CHANGE, pa.int8()), pa.repeat(pa.scalar(1, pa.int8()), batch.num_rows))
