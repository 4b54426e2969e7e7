"""Streams that can't be asked again: what comes of them is kept in a spool of ours before they may forget it.

The spool is a folder of numbered files in the state directory. Each file has the rows of one range, those of its
records that could not be decoded, and the position at which it ends; only then is that position committed to the
source. Whoever follows the source reads the files, as often as need be.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from velostream.errors import Category, SourceError
from velostream.model.change import JsonValue
from velostream.model.conform import conform
from velostream.model.schema import Schema
from velostream.model.spool import Spool
from velostream.sources.base import BadRecord, Lag, Offset, OnBad, Partition, Replay, Source, SourceCapabilities

_ROWS_PER_FILE = 100_000
_ROWS_PER_BATCH = 65_536
_POSITION, _BAD = "position", "bad"


class SpooledSource(Source):
    """Reads a stream through a spool. Its offsets are numbers of files, all of which have been read."""

    def __init__(
        self, inner: Source, folder: Path, *, durable: bool, positions: Callable[[], Iterable[JsonValue]]
    ) -> None:
        """`positions` gives the offsets, in whatever sources, of everything that reads or will read on; files before
        all of them are forgotten.
        """
        # The options of the source are checked already.
        self.spec, self.settings, self.warnings = inner.spec, inner.settings, inner.warnings
        self.reader, self.companions = None, None
        self._inner: Source | None = inner
        self._capabilities = replace(inner.capabilities, replay=Replay.UNTIL_COMMIT)
        self._spool = Spool(folder, durable=durable)
        self._positions: Callable[[], Iterable[JsonValue]] | None = positions
        self._is_told = False
        """Whether the source knows which position was the last one that we kept."""
        self._columns: Schema | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Workers read files; the source itself stays here."""
        return self.__dict__ | {"_inner": None, "_positions": None}

    @property
    def _source(self) -> Source:
        if self._inner is None:
            raise RuntimeError("a worker asks for more than files")
        return self._inner

    @property
    def capabilities(self) -> SourceCapabilities:
        return self._capabilities

    @property
    def begins_at_latest(self) -> bool:
        """Always: what is no longer kept can't be read, so where a statement begins has to be remembered."""
        return True

    @property
    def system_columns(self) -> tuple[str, ...]:
        return self._source.system_columns

    @property
    def poll_interval(self) -> timedelta:
        return self._source.poll_interval

    def schema(self) -> Schema | None:
        """Those of the source; what it says once holds, since a simple one loads everything to tell."""
        if self._columns is None:
            self._columns = self._source.schema()
        return self._columns

    def initial_offset(self) -> Offset:
        """The end for a statement that wants no more than what is to come, else what is still kept."""
        if self._source.begins_at_latest:
            # What nobody has taken in yet came before the statement as well.
            self._receive()
            return self._offset(self._spool.count())
        with self._spool.appending():
            self._received()
            return self._offset(self._spool.first() - 1)

    def latest_offset(self, start: Offset, *, max_rows: int | None = None) -> Offset:
        self._receive()
        last, files, rows = self._spool.count(), self._files(start), 0
        if self._spool.first() > files + 1:
            raise self._expired()
        while files < last and (max_rows is None or not rows or rows + self._spool.rows(files + 1) <= max_rows):
            files += 1
            rows += 0 if max_rows is None else self._spool.rows(files)
        return self._offset(files)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        numbers = range(self._files(start) + 1, self._files(end) + 1)
        return [Partition({"file": number}) for number in numbers if self._spool.rows(number) or self._bad(number)]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        number = partition.payload["file"]
        for raw, place, reason in self._bad(number):
            on_bad(BadRecord(base64.b64decode(raw), place, reason))

        def reject(index: int, reason: str) -> None:
            on_bad(BadRecord(b"", f"{self.spec.shown} row {index + 1} of file {number}", reason))

        rows = conform(self._spool.read(number), schema, reject)
        yield from rows.to_batches(max_chunksize=_ROWS_PER_BATCH)

    def reached(self, position: Offset, target: Offset) -> bool:
        return self._files(position) >= self._files(target)

    def lag(self, position: Offset) -> Lag:
        later = range(self._files(position) + 1, self._spool.count() + 1)
        return Lag(sum(self._spool.rows(number) for number in later))

    @property
    def finished(self) -> bool:
        return self._source.finished

    def commit(self, end: Offset) -> None:
        """Forget what everybody has. The newest file stays: it knows how far the source has been read."""
        known = (self._positions or tuple)()
        kept = [one["files"] for one in known if isinstance(one, Mapping) and one.get("spool") == self._name]
        self._spool.delete_before(min([self._files(end), *kept]) + 1)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def _receive(self) -> None:
        """Take in what the source has now."""
        source = self._source
        with self._spool.appending():
            position = self._received()
            if not self._is_told:
                # The process may have ended between keeping and saying so.
                source.commit(position)
                self._is_told = True
            target = source.latest_offset(position)
            while not source.reached(position, target):
                end = source.latest_offset(position, max_rows=_ROWS_PER_FILE)
                if end == position:
                    break
                self._is_told = False
                self._keep(position, end)
                source.commit(end)
                position, self._is_told = end, True
        self.warnings = source.warnings

    def _keep(self, start: Offset, end: Offset) -> None:
        source, bad = self._source, list[BadRecord]()
        schema = self.schema()
        if schema is None:
            raise SourceError(
                f'"{self.spec.shown}" has records and no columns',
                hint="a source's schema() may be None only while it has nothing to read",
                code="no-columns",
            )
        parts = source.partitions(start, end)
        batches = [batch for part in parts for batch in source.read(part, schema, bad.append)]
        told = [[base64.b64encode(one.raw).decode(), one.position, one.reason] for one in bad]
        rows = pa.Table.from_batches(batches, schema.arrow)
        self._spool.append(rows, note={_POSITION: json.dumps(end), _BAD: json.dumps(told)})

    def _received(self) -> Offset:
        """How far the source has been read; where that begins is written down before anything else."""
        last = self._spool.count()
        if not last:
            begin = {_POSITION: json.dumps(self._source.initial_offset()), _BAD: "[]"}
            last = self._spool.append(pa.table({}), note=begin)
        position: JsonValue = json.loads(self._spool.note(last)[_POSITION])
        return position

    def _bad(self, number: int) -> list[list[str]]:
        """The records of a file that could not be decoded: bytes, place and reason of each."""
        found: list[list[str]] = json.loads(self._spool.note(number)[_BAD])
        return found

    @property
    def _name(self) -> str:
        return self._spool.directory.name

    def _offset(self, files: int) -> Offset:
        return {"spool": self._name, "files": files}

    @staticmethod
    def _files(offset: Offset) -> int:
        files: int = offset["files"]
        return files

    def _expired(self) -> SourceError:
        return SourceError(
            f'what "{self.spec.shown}" brought is no longer kept as far back as it is to be read',
            hint="CREATE OR REPLACE begins with what is kept",
            code="records-expired",
            category=Category.DATA,
        )


def needs_spool(source: Source) -> bool:
    """Whether ranges of a stream can't be read again once they were read, or committed."""
    found = source.capabilities
    return found.is_stream and found.replay is not Replay.FOREVER
