"""`memory://name`: rows appended by the program itself, through a spool of Arrow files.

The engine owns the feed and gives its directory as the internal option `spool`; this side only reads it. An offset
counts files and rows into the next one, so any range can be read again for as long as the files are kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import FurtherColumnsError, SourceError
from velostream.model.change import CHANGE, may_be_added
from velostream.model.conform import TimeRules, conform
from velostream.model.options import Option, OptionType
from velostream.model.rows import json_text
from velostream.model.schema import Column, Schema
from velostream.model.spool import Spool
from velostream.sources.base import (
    BadRecord,
    Emits,
    Lag,
    Offset,
    OnBad,
    Partition,
    Replay,
    Source,
    SourceCapabilities,
    SourceSpec,
)
from velostream.sources.common import (
    COMMON_OPTIONS,
    OFFSET_RESET,
    begins_at_latest,
    declared_columns,
    emits_of,
    names_of,
    with_parameters,
)

SPOOL_OPTION = "spool"
_ROWS_PER_PARTITION = 250_000
_ROWS_PER_BATCH = 65_536
_SIGN = Column(CHANGE, pa.int8())


class MemorySource(Source):
    """Reads a feed's spool. Delivery guarantee: exactly-once, for as long as the feed keeps its files."""

    kind = "memory"
    options = (
        *COMMON_OPTIONS,
        OFFSET_RESET,
        Option("changelog", "what a record means", OptionType.CHOICE, "append", ("append", "upsert", "changes")),
        Option(
            "schema.evolution",
            "what becomes of fields that are no columns; a table that copies the source adds them by default",
            OptionType.CHOICE,
            "ignore",
            ("add", "ignore"),
        ),
        Option(SPOOL_OPTION, "directory of the feed, set by the engine"),
    )

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(with_parameters(spec))
        self._from_latest, self.warnings = begins_at_latest(self.settings.text("auto.offset.reset"))
        self._spool = Spool(Path(self.settings.text(SPOOL_OPTION) or ""))

    @property
    def begins_at_latest(self) -> bool:
        return self._from_latest

    @property
    def capabilities(self) -> SourceCapabilities:
        emits = emits_of(self.settings.text("changelog"))
        return SourceCapabilities(emits=emits, replay=Replay.FOREVER, incremental=True, follows=True)

    @property
    def adds_columns(self) -> bool:
        return True

    @property
    def finished(self) -> bool:
        """Whether the feed was closed."""
        return self._spool.closed

    def schema(self) -> Schema | None:
        declared = declared_columns(self.spec, self.settings.text("record.schema"))
        key = names_of(self.settings.text("key"))
        if declared is not None:
            return declared.with_key(key) if key else declared
        found = self._spool.schema()
        if found is None:
            return None
        columns = Schema.from_arrow(pa.schema([field for field in found if field.name != CHANGE]))
        return columns.with_key(key) if key else columns

    def initial_offset(self) -> Offset:
        return _offset(self._spool.count() if self._from_latest else self._spool.first() - 1)

    def latest_offset(self, start: Offset, *, max_rows: int | None = None) -> Offset:
        files, skipped = _position(start)
        last = self._spool.count()
        if max_rows is None:
            return _offset(last) if self._has_rows_after(files, skipped, last) else start
        seen = 0
        while files < last:
            available = self._spool.rows(files + 1) - skipped
            if seen + available > max_rows:
                return _offset(files, skipped + max_rows - seen)
            seen += available
            files, skipped = files + 1, 0
        return _offset(files) if seen else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        parts: list[Partition] = []
        position = start
        while position != end:
            step = self._step(position, end)
            parts.append(Partition({"start": position, "end": step}))
            position = step
        return parts

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        """Batches of the range. Deletions are tombstones for a keyed reading; a reading of appends passes over them."""
        signed = self.capabilities.emits is not Emits.APPENDS
        target = Schema((*schema.columns, _SIGN)) if signed else schema
        (files, skipped), (last, final_rows) = (_position(partition.payload[edge]) for edge in ("start", "end"))
        while (files, skipped) < (last, final_rows):
            upto = final_rows if files == last else self._spool.rows(files + 1)
            rows = self._spool.read(files + 1)[skipped:upto]
            yield from self._conformed(rows, target, on_bad, place=(files + 1, skipped))
            files, skipped = (files, upto) if files == last else (files + 1, 0)

    def lag(self, position: Offset) -> Lag:
        files, skipped = _position(position)
        later = range(files + 1, self._spool.count() + 1)
        rows = sum(self._spool.rows(number) for number in later) - skipped
        return Lag(rows, max(0.0, time.time() - self._spool.written_at(files + 1)) if later else 0.0)

    def reached(self, position: Offset, target: Offset) -> bool:
        return _position(position) >= _position(target)

    def _has_rows_after(self, files: int, skipped: int, last: int) -> bool:
        if files >= last:
            return False
        return self._spool.rows(files + 1) > skipped or any(self._spool.rows(n + 1) for n in range(files + 1, last))

    def _step(self, position: Offset, end: Offset) -> Offset:
        """The end of the next partition: about so many rows on, whole files where they are small."""
        files, skipped = _position(position)
        last, final_rows = _position(end)
        wanted = _ROWS_PER_PARTITION
        while (files, skipped) < (last, final_rows):
            upto = final_rows if files == last else self._spool.rows(files + 1)
            if upto - skipped > wanted:
                return _offset(files, skipped + wanted)
            wanted -= upto - skipped
            files, skipped = (files, upto) if files == last else (files + 1, 0)
            if wanted == 0:
                break
        return _offset(files, skipped)

    def _conformed(
        self, rows: pa.Table, target: Schema, on_bad: OnBad, *, place: tuple[int, int]
    ) -> Iterator[pa.RecordBatch]:
        number, skipped = place
        if self.settings.text("schema.evolution") == "add":
            further = [field for field in rows.schema if may_be_added(field.name, target)]
            if further:
                columns = Schema.from_arrow(pa.schema(further)).columns
                raise FurtherColumnsError.of((column.name, column.sql_type) for column in columns)

        def reject(index: int, reason: str) -> None:
            raw = json_text(rows.slice(index, 1).to_pylist()[0])
            on_bad(BadRecord(raw, f"{self.spec.uri} batch {number} row {skipped + index + 1}", reason))

        exempt = None
        if CHANGE in rows.column_names:
            # Rows that were appended after a deletion may have the column without a sign in it.
            signs = pc.fill_null(rows[CHANGE], 1)
            rows = rows.set_column(rows.column_names.index(CHANGE), CHANGE, signs)
            gone = pc.less(signs, 0)
            if target.columns[-1] is _SIGN:
                exempt = gone
            else:
                rows = rows.filter(pc.invert(gone))
        elif target.columns[-1] is _SIGN:
            rows = rows.append_column(CHANGE, pa.repeat(pa.scalar(1, pa.int8()), rows.num_rows))
        times = TimeRules(self.settings.text("timezone") or "UTC")
        conformed = conform(rows, target, reject, times=times, exempt=exempt)
        yield from conformed.to_batches(max_chunksize=_ROWS_PER_BATCH)


def _offset(files: int, rows: int = 0) -> Offset:
    return {"files": files, "rows": rows}


def _position(offset: Offset) -> tuple[int, int]:
    try:
        return int(offset["files"]), int(offset["rows"])
    except (TypeError, KeyError) as error:
        raise SourceError(f"{offset!r} is not an offset of a memory source", code="invalid-offset") from error
