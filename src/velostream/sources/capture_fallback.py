"""A table by its database's log where that can be had, and by reading it again and again while it can't."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.errors import Category, OptionError, SourceError, present
from velostream.model.schema import Schema
from velostream.sources.base import Lag, Offset, OnBad, Partition, SourceCapabilities
from velostream.sources.capture import LogCapture
from velostream.sources.database import ReadingMode
from velostream.sources.polling import RepeatedReading

if TYPE_CHECKING:
    from velostream.sources.database import DatabaseSource

_LOG, _POLL = "log", "poll"
_TRY_AGAIN_SECONDS = 60.0
_NOTHING_READ = {"digest": "", "looks": 0}
_OTHER_WAY_HELPS = frozenset({Category.CONFIGURATION, Category.AUTHENTICATION, Category.STATE, Category.UNSUPPORTED})
"""Categories of what keeps us from the log and may not keep us from the rows. A server that is away has neither."""


def capture_by_options(source: DatabaseSource, capture: LogCapture) -> ReadingMode:
    """The capture, with the other way beside it where the option `cdc.fallback` asks for that."""
    settings = source.settings
    if settings.text("cdc.fallback") != "poll":
        return capture
    if settings.text("initial.load") == "none":
        raise OptionError(
            "cdc.fallback = poll reads the whole table, which initial.load = none forbids",
            hint="leave out one of the two",
            code="invalid-option",
        )
    return CaptureOrPolling(source, capture)


class CaptureOrPolling(ReadingMode):
    """One of two ways, and a full reading of the table at each change from one to the other.

    An offset has the `way` it is of, how often the way was changed (`turn`), and where that way stands (`at`).
    """

    def __init__(self, source: DatabaseSource, capture: LogCapture) -> None:
        self._source = source
        self._capture = capture
        self._polling = RepeatedReading(source)
        self._warning: str | None = None
        """What is said while there is no log."""
        self._tried_at = 0.0

    @property
    def capabilities(self) -> SourceCapabilities:  # type: ignore[override]
        return self._ways[self._way].capabilities

    @property
    def poll_interval(self) -> timedelta | None:  # type: ignore[override]
        return self._ways[self._way].poll_interval

    def check(self, schema: Schema) -> None:
        try:
            self._capture.check(schema)
        except SourceError as error:
            self._give_up_log(error)

    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        turn = 0 if start is None else start["turn"]
        if start is None or start["way"] == _LOG:
            try:
                return _offset(_LOG, turn, self._capture.latest(_at(start), max_rows=max_rows))
            except SourceError as error:
                self._give_up_log(error)
                self._release(start)
            before = None if start is None else _NOTHING_READ
            return _offset(_POLL, turn + 1, self._polling.latest(before, max_rows=max_rows))
        if max_rows is not None and time.monotonic() - self._tried_at > _TRY_AGAIN_SECONDS:
            # Whoever only asks where the end is doesn't get what would be begun here.
            try:
                self._capture.check_again()
                return _offset(_LOG, turn + 1, self._capture.latest(None, max_rows=max_rows))
            except SourceError as error:
                self._give_up_log(error)
        return _offset(_POLL, turn, self._polling.latest(start["at"], max_rows=max_rows))

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        before = _at(start)
        changed = start is not None and start["turn"] != end["turn"]
        if changed:
            before = _NOTHING_READ if end["way"] == _POLL else {"load": 0}
        parts = self._ways[end["way"]].partitions(before, end["at"])
        return [replace(part, payload={"way": end["way"], "part": part.payload}) for part in parts]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        payload = partition.payload
        return self._ways[payload["way"]].read(replace(partition, payload=payload["part"]), schema, on_bad)

    def reached(self, position: Offset, target: Offset) -> bool:
        """Whatever was there before a change of the way is in the full reading after it."""
        if position["turn"] != target["turn"]:
            return bool(position["turn"] > target["turn"])
        here, there = position["at"], target["at"]
        return here == there or self._ways[position["way"]].reached(here, there)

    def gauges(self, position: Offset) -> Mapping[str, int]:
        return self._ways[position["way"]].gauges(position["at"])

    def lag(self, position: Offset) -> Lag:
        return self._ways[position["way"]].lag(position["at"])

    def commit(self, end: Offset) -> None:
        self._ways[end["way"]].commit(end["at"])
        if end["way"] == _LOG:
            self._say(None)

    def forget(self, position: Offset) -> None:
        self._capture.forget(position["at"] if position is not None and position["way"] == _LOG else None)

    def close(self) -> None:
        for way in self._ways.values():
            way.close()

    @property
    def _ways(self) -> Mapping[str, ReadingMode]:
        return {_LOG: self._capture, _POLL: self._polling}

    @property
    def _way(self) -> str:
        return _LOG if self._warning is None else _POLL

    def _give_up_log(self, error: SourceError) -> None:
        """Go the other way from now on; raises the error where that is of no help."""
        if error.category not in _OTHER_WAY_HELPS:
            raise error
        self._tried_at = time.monotonic()
        why = "; ".join(part for part in (error.message, error.detail) if part)
        self._say(f"{self._source.selection.shown} is read again and again, as its log can't be followed: {why}")

    def _say(self, warning: str | None) -> None:
        kept = tuple(one for one in self._source.warnings if one != self._warning)
        self._source.warnings = kept if warning is None else (*kept, warning)
        self._warning = warning

    def _release(self, position: Offset) -> None:
        """Have the server keep nothing for us: when its log can be followed again, that begins with a load."""
        try:
            self._capture.forget(_at(position))
        except SourceError as error:
            left = f"what the server keeps for {self._source.selection.shown} could not be released: {error.message}"
            self._source.warnings = tuple(dict.fromkeys((*self._source.warnings, left)))


def _offset(way: str, turn: int, at: Any) -> Offset:
    return {"way": way, "turn": turn, "at": at}


def _at(offset: Offset) -> Offset:
    return None if offset is None else present(offset)["at"]
