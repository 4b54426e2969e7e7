"""The source seam: where rows come from.

A source has a schema, offsets, a bulk phase (what is there now) and an incremental phase (what comes after), with
no gap and no overlap between them: both are ranges of offsets. Implement `Source` for full control, or
`SimpleSource` for something that is merely polled.

Sources travel: the engine pickles them to Spark's workers, which call `read` in processes of their own. So
`__init__` only keeps the spec; connections are opened in the method that needs them and closed in it or in `close`.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

import pyarrow as pa

from velostream.model.change import JsonValue
from velostream.model.confidential import shown_address
from velostream.model.options import EVOLUTION, Option, Options
from velostream.model.schema import Schema

Offset = JsonValue
"""A position, JSON-safe; everything before it has been read. Opaque to the engine but for equality."""
_ENDS_REMEMBERED = 1000


class Emits(StrEnum):
    """What one record means."""

    APPENDS = "appends"
    UPSERTS = "upserts"
    CHANGES = "changes"


class Replay(StrEnum):
    """How long a range of offsets can be read again."""

    NONE = "none"
    UNTIL_COMMIT = "until-commit"
    FOREVER = "forever"


@dataclass(frozen=True, slots=True)
class SourceCapabilities:
    """What a source can do with the options it was given; the engine and the conformance suite read this."""

    emits: Emits = Emits.APPENDS
    replay: Replay = Replay.NONE
    incremental: bool = False
    """Has an incremental phase: `latest_offset` may move after the bulk phase."""
    follows: bool = False
    """Is being followed: the engine keeps asking. False is a bounded source, read once."""
    native: bool = False
    """Reading is left to libraries that let go of Python's lock, so that threads are as quick as processes. `read` may
    then be called in a thread of the driver, on a copy that was pickled."""

    @property
    def is_stream(self) -> bool:
        """Endless appends are a stream; everything else is a table, kept up to date by difference."""
        return self.follows and self.emits is Emits.APPENDS


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source as a statement names it: kind, address and options, secrets still as `${VAR}`."""

    kind: str
    uri: str
    options: Mapping[str, str] = field(default_factory=dict)
    columns: Schema | None = None
    """Columns declared by the statement (`CREATE STREAM s (…)`, `record.schema`); they win over discovery."""

    def identity(self) -> str:
        """Equal for sources that can share one reading: kind, address, options, declared columns. A digest of them all,
        as passwords may be among them.
        """
        declared = "" if self.columns is None else repr(self.columns.to_json())
        told = f"{self.uri}|{sorted(self.options.items())!r}|{declared}"
        return f"{self.kind}:{hashlib.sha256(told.encode()).hexdigest()}"

    def adding(self) -> SourceSpec:
        """The same, and columns that come later are to be added."""
        return replace(self, options={**self.options, EVOLUTION: "add"})

    def ignoring(self) -> SourceSpec:
        """The same, and columns that come later are left out."""
        return replace(self, options={**self.options, EVOLUTION: "ignore"})

    @property
    def shown(self) -> str:
        """The address as anyone may see it."""
        return shown_address(self.uri)


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of a range that one worker reads. Picklable."""

    payload: JsonValue
    origin: str | None = None
    """Which part of the source the rows belong to (a file, an object), for sources that emit changes."""
    replaces: bool = False
    """The rows are the whole new content of `origin`, of the whole source where that is None; what was there before
    and is not among them is gone."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that could not be decoded: raw bytes, where it stood, why."""

    raw: bytes
    position: str
    reason: str


OnBad = Callable[[BadRecord], None]


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a reader is behind its source, as far as that is known."""

    rows: int | None = None
    """Still to be read."""
    seconds: float | None = None
    """How long what was read last, or is to be read next, has been there."""


class Source(ABC):
    """One source of one statement group. Driver-side calls come from one thread at a time.

    Delivery guarantee: exactly-once into tables if `replay` is `forever` or `until-commit`; what a stream of the latter
    kind gives is put into a spool by the engine before `commit` acknowledges it. With `none` what was read and not yet
    put there when the process died is lost.
    """

    kind: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    takes_variables: ClassVar[bool] = False
    """Whether the kind puts in `${VAR}` itself once it has taken the address apart: any character may then stand in
    the values. Else they are put into the address before."""
    keeps_parameters: ClassVar[bool] = False
    """Whether parameters of the address that are no options belong to it. The kind then gets the address as it is
    written, and finds its options there itself."""

    def __init__(self, spec: SourceSpec) -> None:
        """Keep the spec and check its options. Must not connect, open or list anything."""
        self.spec = spec
        self.settings = Options(spec.options, self.options)
        self.warnings: tuple[str, ...] = ()
        """What a user should know about the options given; shown by SHOW STATUS."""
        self.reader: str | None = None
        """Who reads, by a name that stays over restarts, for what is kept under a name where the records come from.
        None when nothing is remembered after the process: then nothing may be left behind there either. Set by the
        engine before anything else is called; workers don't know it."""
        self.companions: Callable[[], Sequence[Offset]] | None = None
        """Gives the positions of the engine's other sources, of whatever kind, that it will read on from, now or after
        a restart; for what several of them keep together where the records come from. Set by the engine where it
        remembers positions."""

    @property
    @abstractmethod
    def capabilities(self) -> SourceCapabilities:
        """What this source does with its options. Must not touch the outside."""

    @property
    def adds_columns(self) -> bool:
        """Whether `read` raises `FurtherColumnsError` for records with columns that its schema lacks, so that they are
        added (`schema.evolution` = `add`), if its options say so.
        """
        return False

    @property
    def begins_at_latest(self) -> bool:
        """Whether `initial_offset` depends on the moment it is asked for, as the end of what is there does. The engine
        asks once, when a statement is made, and remembers.
        """
        return False

    @property
    def system_columns(self) -> tuple[str, ...]:
        """Those columns of the schema that `*` leaves out. Must not touch the outside."""
        return ()

    @abstractmethod
    def schema(self) -> Schema | None:
        """Columns of the records: declared ones, else discovered. None while there is nothing to discover from.

        Raises `SourceError` with its category when the source is missing or refuses. The answer must be stable:
        discovering again over more data may add columns, never change one.
        """

    @abstractmethod
    def initial_offset(self) -> Offset:
        """Where reading begins; before the first record, or after the last for `auto.offset.reset = latest`."""

    @abstractmethod
    def latest_offset(self, start: Offset, *, max_rows: int | None = None) -> Offset:
        """The end of what can be read after `start` now, at most about `max_rows` rows on.

        Equal to `start` when there is nothing new. Must never pass a record that isn't complete (a half-written
        line). Called often: keep it cheap.
        """

    @abstractmethod
    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        """Cut a range into parts. Reading all of them gives exactly the records after `start` up to `end`,
        whatever the cut, and the same ones each time within the replay capability. Order of partitions and of
        rows within one is the source's own order.
        """

    @abstractmethod
    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        """Decode one part into batches of exactly `schema.arrow` (plus an int8 `_change` column when `emits` is
        upserts or changes without `replaces`; -1 is a tombstone carrying the key columns). Upserts of a source whose
        schema has no key also have `_origin`, a text by which a row is known; where there is a key they may have it,
        and a tombstone with it stands for the rows that came with the same one. They may have `_unchanged`, too: see
        `model.change`.

        Runs in a worker process. A record that can't be decoded goes to `on_bad` and never stops the others.
        """

    def reached(self, position: Offset, target: Offset) -> bool:
        """Whether `position` is at or past `target`; both come from this source. Sources whose offsets have an
        order override this, so that readers at different positions can meet and a drain can end under load.
        """
        return bool(position == target)

    def earlier(self, end: Offset, stop: Offset) -> Offset:
        """Where reading is to end that goes no further than either of two positions. Sources that are read in parts at
        paces of their own override this.
        """
        return stop if self.reached(end, stop) else end

    def expected_rows(self, start: Offset, end: Offset) -> int | None:
        """About how many rows lie between two offsets, to tell how far a load is; None where asking would be dear."""
        return None

    def gauges(self, position: Offset) -> Mapping[str, int]:
        """Figures of where the records come from that whoever runs it should watch, with the reader at `position`:
        what is kept there for us, how far behind we are. Asked every few seconds; shown by SHOW METRICS.
        """
        return {}

    def lag(self, position: Offset) -> Lag:
        """How far a reader at `position`, for whom there was something to read a moment ago, is behind. Asked every few
        seconds, so it must be cheap; what isn't known that way is left out.
        """
        return Lag()

    @property
    def poll_interval(self) -> timedelta:
        """How long to wait before asking again, when there was nothing new."""
        return self.settings.duration("poll.interval") or timedelta(milliseconds=100)

    @property
    def finished(self) -> bool:
        """Whether what is there now is all there will ever be, though the source is one that is followed."""
        return False

    def commit(self, end: Offset) -> None:
        """Everything before `end` is durable with us; the source may forget it. May be called again."""

    def forget(self, position: Offset) -> None:
        """Nobody will read on from `position`: give back what is kept for the reader where the records come from."""

    def close(self) -> None:
        """Give back what is held. Called once, nothing is called after it."""


class SimpleSource(Source):
    """The simple rung: something to load whole and, if it can, to ask for what is newer.

    With an incremental phase it is a stream: the engine puts what is loaded into a spool together with its offset, so a
    range is asked for again only if the process died meanwhile. Without one it is read once or, where the kind has the
    option `poll.interval` and it is given, again whenever the offset is another one; the difference is committed.

    Delivery guarantee: exactly-once, if a range that is asked for again gives the same rows.
    """

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(spec)
        self._times_told = 0
        self._told: dict[str, int] = {}
        """Which time it was that one of the latest ends was told last."""

    @abstractmethod
    def bulk_load(self, until: Offset) -> pa.Table:
        """Everything up to an offset that `get_current_offset` gave. Without incremental phase: what is there now."""

    @abstractmethod
    def get_current_offset(self) -> Offset:
        """The present end. Must change when there is something new."""

    def supports_incremental(self) -> bool:
        return False

    def incremental_load(self, since: Offset, until: Offset) -> pa.Table:
        """What came after `since` up to `until`; only called when `supports_incremental`."""
        raise NotImplementedError

    @property
    def capabilities(self) -> SourceCapabilities:
        emits = Emits.CHANGES if self._is_polled else Emits.APPENDS
        goes_on = self._is_polled or self.supports_incremental()
        return SourceCapabilities(emits=emits, replay=Replay.UNTIL_COMMIT, incremental=goes_on, follows=goes_on)

    def schema(self) -> Schema | None:
        return self.spec.columns or Schema.from_arrow(self.bulk_load(self.get_current_offset()).schema)

    def initial_offset(self) -> Offset:
        return None

    def latest_offset(self, start: Offset, *, max_rows: int | None = None) -> Offset:
        if start is not None and not self.capabilities.follows:
            return start
        found = self.get_current_offset()
        self._times_told += 1
        self._told.pop(_form(found), None)
        self._told[_form(found)] = self._times_told
        if len(self._told) > _ENDS_REMEMBERED:
            del self._told[next(iter(self._told))]
        return found

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        if start == end:
            return ()
        since = start if self.supports_incremental() else None
        return (Partition({"since": since, "until": end}, replaces=self._is_polled),)

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        since, until = partition.payload["since"], partition.payload["until"]
        table = self.bulk_load(until) if since is None else self.incremental_load(since, until)
        yield from table.select(list(schema.names)).cast(schema.arrow).to_batches()

    def reached(self, position: Offset, target: Offset) -> bool:
        """Offsets need have no order of their own: what was told later is further on."""
        if target is None or position == target:
            return True
        here, there = (self._told.get(_form(one)) for one in (position, target))
        return here is not None and there is not None and here > there

    @property
    def _is_polled(self) -> bool:
        return "poll.interval" in self.settings and not self.supports_incremental()


def _form(offset: Offset) -> str:
    return json.dumps(offset, sort_keys=True)
