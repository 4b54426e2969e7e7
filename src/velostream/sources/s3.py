"""`s3://bucket/prefix/*.parquet`: objects of all file formats, read once or watched.

An object appears whole and changes whole, so it is the unit of reading. A bounded reading takes the objects that are
there at its first step. A watched one lists them again and again: a new object adds its rows, a changed one replaces
those it had, a deleted one takes them along; with `watch.mode = 'append'` the rows of new and changed objects are
events, and nothing is ever taken back.

A change shows in size and modification time, which stores tell in whole seconds; of an object that was written less
than a minute ago the ETag is compared, too. Whoever reads an object copies it to a local file first, where the file
source reads it.

With `s3.events.queue` the address is listed when the bucket's events say so, and every few minutes whatever they say.
Delivery guarantee: exactly-once, for as long as the objects that were read stay readable.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from velostream.errors import Category, SourceError
from velostream.formats.compression import compression_of
from velostream.formats.options import FILE_OPTIONS
from velostream.formats.registry import NAMES, format_name
from velostream.formats.text import is_wide
from velostream.model.change import CHANGE
from velostream.model.object_store import S3_OPTIONS, ObjectStore
from velostream.model.options import Option, OptionType
from velostream.model.schema import Schema
from velostream.sources.base import (
    BadRecord,
    Emits,
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
    names_of,
    with_parameters,
)
from velostream.sources.file_progress import WatchMode
from velostream.sources.files import FileSource
from velostream.sources.s3_events import BucketEvents
from velostream.sources.s3_objects import ObjectAddress, Objects, StoredObject, shown

_PART_BYTES = 16 << 20
_BYTES_PER_ROW = 64
"""How long a row is taken to be where a step is limited to a number of them."""
_FIRST_SAMPLE = 4 << 20
_FURTHER_SAMPLE = 256 << 10
_SAMPLED_OBJECTS = 8
_YOUNG_SECONDS = 60
"""Within that time an object may be written again in the second it was written in, clocks that differ included."""
_QUEUE_INTERVAL = timedelta(seconds=1)
_LIST_ANYWAY_SECONDS = 300.0
"""Events may get lost, or be sent to nobody yet when an object comes."""
_OF_LINES = ("csv", "tsv", "jsonl", "ndjson", "json_lines", "text")
_OF_FILES = ("format", "timezone", "record.schema", *(option.name for option in FILE_OPTIONS))


@dataclass(frozen=True, slots=True)
class ObjectState:
    """One object in an offset."""

    path: str
    size: int
    modified: int
    etag: str = ""
    """Where the object was young when it was taken; else size and time tell."""
    generation: int = 0
    """Counts how often it was replaced."""
    taken: bool = True
    """False of an object that a bounded reading has still before it."""
    gone: bool = False

    @classmethod
    def of(cls, found: StoredObject, *, generation: int = 0, taken: bool = True) -> ObjectState:
        return cls(found.path, found.size, found.modified, found.etag, generation, taken)

    @property
    def order(self) -> tuple[int, bool]:
        """Grows with every step."""
        return self.generation, self.taken


States = Mapping[str, ObjectState]


class S3Source(Source):
    """Objects of a bucket. Delivery guarantee: exactly-once, for as long as the objects stay readable."""

    kind = "s3"
    options = (
        *COMMON_OPTIONS,
        OFFSET_RESET,
        Option("format", "how the objects are written; default: by their names", OptionType.CHOICE, None, NAMES),
        *FILE_OPTIONS,
        *S3_OPTIONS,
        Option("watch", "whether to keep following", OptionType.BOOLEAN, "false"),
        Option("watch.mode", "what a change means", OptionType.CHOICE, "auto", tuple(WatchMode)),
        Option("watch.debounce", "of no effect: an object appears whole", OptionType.DURATION, "0s"),
        Option("poll.interval", "how often to list; implies watch", OptionType.DURATION, "30s"),
        Option("s3.events.queue", "URL of an SQS queue that gets the bucket's events; implies watch"),
        Option("file.wait.timeout", "how long to wait for objects that aren't there yet", OptionType.DURATION, "0s"),
        Option("file.retry.interval", "how often to look for them", OptionType.DURATION, "2s"),
        Option("changelog", "what a record means", OptionType.CHOICE, "append", ("append", "upsert")),
    )

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(with_parameters(spec))
        self._address = ObjectAddress.of(self.spec.uri)
        self._objects = Objects(ObjectStore.of(self.settings), self._address)
        self._declared = declared_columns(self.spec, self.settings.text("record.schema"))
        self._mode = self._watch_mode()
        latest, self.warnings = begins_at_latest(self.settings.text("auto.offset.reset"))
        self._from_latest = latest and self._mode is WatchMode.APPEND
        queue = self.settings.text("s3.events.queue")
        self._events = None if queue is None else BucketEvents(queue, ObjectStore.of(self.settings))
        self._list_at = 0.0
        """When to list again without an event."""
        self._discovered: Schema | None = None
        self._settled: set[tuple[str, str]] = set()
        """Objects, by path and ETag, that were found unchanged when they were no longer young."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers need the spec alone; a connection doesn't travel."""
        return type(self), (self.spec,)

    @property
    def capabilities(self) -> SourceCapabilities:
        watched = self._mode is not None
        emits = Emits.APPENDS if self._mode in (None, WatchMode.APPEND) else Emits.CHANGES
        if emits is Emits.APPENDS and self.settings.text("changelog") == "upsert":
            emits = Emits.UPSERTS
        return SourceCapabilities(emits=emits, replay=Replay.FOREVER, incremental=watched, follows=watched)

    def schema(self) -> Schema | None:
        """Declared columns, else those the first objects show.

        Raises `missing-file` when there is no object and none is waited for by watching.
        """
        found = self._discovered or self._sampled()
        if found is None and self._declared is None:
            return None
        self._discovered = found
        columns = self._declared or found
        key = names_of(self.settings.text("key"))
        return columns.with_key(key) if columns is not None and key else columns

    def initial_offset(self) -> Offset:
        if not self._from_latest:
            return _offset({})
        return _offset(self._watched({}, max_rows=None))

    def latest_offset(self, start: Offset, *, max_rows: int | None = None) -> Offset:
        states = _states(start)
        if self._mode is None:
            found = self._bounded(states, max_rows)
        elif max_rows is None or self._worth_listing():
            found = self._watched(states, max_rows=max_rows)
            if found == states:
                self._up_to_date()
        else:
            return start
        return start if found == states else _offset(found)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        before = _states(start)
        pieces: list[dict[str, Any]] = []
        parts: list[Partition] = []
        for path, state in _states(end).items():
            old = before.get(path)
            if old == state or not state.taken:
                continue
            if self.capabilities.emits is not Emits.CHANGES:
                pieces.append(_piece(state))
            elif old is not None and not old.gone:
                whole = [] if state.gone else [_piece(state)]
                parts.append(Partition({"pieces": whole}, origin=shown(path), replaces=True))
            elif not state.gone:
                parts.append(Partition({"pieces": [_piece(state)]}, origin=shown(path)))
        return parts + [Partition({"pieces": group}) for group in _packed(pieces)]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        signed = self.capabilities.emits is not Emits.APPENDS and not partition.replaces
        for piece in partition.payload["pieces"]:
            for batch in self._read_object(piece, schema, on_bad):
                if signed:
                    present = pa.repeat(pa.scalar(1, pa.int8()), batch.num_rows)
                    yield batch.append_column(pa.field(CHANGE, pa.int8()), present)
                else:
                    yield batch

    def reached(self, position: Offset, target: Offset) -> bool:
        at = _states(position)
        return all(path in at and at[path].order >= state.order for path, state in _states(target).items())

    @property
    def poll_interval(self) -> timedelta:
        """A queue may be asked more often than a bucket is listed."""
        return super().poll_interval if self._events is None or "poll.interval" in self.settings else _QUEUE_INTERVAL

    def close(self) -> None:
        self._objects.close()
        if self._events is not None:
            self._events.close()

    def _watch_mode(self) -> WatchMode | None:
        """The mode of a watched source; None for one that is read once."""
        implied = any(name in self.settings for name in ("poll.interval", "watch.mode", "s3.events.queue"))
        asked = self.settings.boolean("watch") if "watch" in self.settings else implied
        return WatchMode((self.settings.text("watch.mode") or "auto").lower()) if asked else None

    def _worth_listing(self) -> bool:
        """Whether something may have changed since a listing last found that nothing had."""
        if self._events is not None and self._events.arrived():
            self._list_at = 0.0
        return self._events is None or time.monotonic() >= self._list_at

    def _up_to_date(self) -> None:
        """All that there is was taken in, for the position that a look begins at is durable."""
        if self._events is not None:
            self._events.settled()
            self._list_at = time.monotonic() + _LIST_ANYWAY_SECONDS

    def _bounded(self, states: States, max_rows: int | None) -> States:
        """What is there at the first step, in as many steps as the limit makes of it."""
        found = dict(states) or {path: ObjectState.of(one, taken=False) for path, one in self._present().items()}
        for state in _within([state for state in found.values() if not state.taken], max_rows):
            found[state.path] = replace(state, taken=True)
        return found

    def _watched(self, states: States, *, max_rows: int | None) -> States:
        listed = self._objects.listed()
        changed = (self._step(one, states.get(path)) for path, one in listed.items())
        found = {state.path: state for state in _within((state for state in changed if state is not None), max_rows)}
        if self._mode is not WatchMode.APPEND:
            found |= {
                path: ObjectState(path, 0, 0, generation=state.generation + 1, gone=True)
                for path, state in states.items()
                if not state.gone and path not in listed
            }
        return dict(sorted((dict(states) | found).items())) if found else states

    def _step(self, found: StoredObject, state: ObjectState | None) -> ObjectState | None:
        """The object as it is to be taken in now; None when it was taken already."""
        young = time.time_ns() - found.modified < _YOUNG_SECONDS * 1_000_000_000
        same = state is not None and not state.gone and (state.size, state.modified) == (found.size, found.modified)
        if state is not None and same:
            known = (found.path, state.etag)
            if not state.etag or known in self._settled:
                return None
            if not young:
                self._settled.add(known)
            now = self._objects.asked(found)
            return None if now.etag == state.etag else ObjectState.of(now, generation=state.generation + 1)
        taken = self._objects.asked(found) if young else found
        return ObjectState.of(taken, generation=0 if state is None else state.generation + 1)

    def _present(self) -> dict[str, StoredObject]:
        found = self._objects.listed()
        if not found:
            raise SourceError.missing_file(self._address.shown, pattern=self._address.names_many)
        return found

    def _sampled(self) -> Schema | None:
        """The columns that the first objects show, of which the file source makes sure that declared ones fit."""
        found = self._objects.listed() if self._mode is not None else self._present()
        samples = list(found)[: 1 if self._declared is not None else _SAMPLED_OBJECTS]
        if not samples:
            return None
        with tempfile.TemporaryDirectory(prefix="velostream-s3-") as folder:
            for number, path in enumerate(samples):
                self._fetch_sample(path, Path(folder, _local_name(number, path)), first=number == 0)
            return self._file_source(Path(folder)).schema()

    def _fetch_sample(self, path: str, target: Path, *, first: bool) -> None:
        """The object, or as many of its lines as are enough."""
        if not self._is_of_lines(path):
            self._objects.fetch(path, target)
            return
        most = _FIRST_SAMPLE if first else _FURTHER_SAMPLE
        whole = self._objects.fetch(path, target, most=most)
        if whole.size > most:
            data = target.read_bytes()
            target.write_bytes(data[: data.rfind(b"\n") + 1])

    def _is_of_lines(self, path: str) -> bool:
        compressed = compression_of(path, self.settings.text("compression")) is not None
        wide = is_wide(self.settings.text("encoding") or "utf-8")
        return not compressed and not wide and format_name(path, self.settings.text("format")) in _OF_LINES

    def _file_source(self, path: Path) -> FileSource:
        options = {name: self.settings[name] for name in _OF_FILES if name in self.settings}
        return FileSource(SourceSpec("file", f"file://{path}", options, self.spec.columns))

    def _read_object(self, piece: dict[str, Any], schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        path = piece["path"]
        with tempfile.TemporaryDirectory(prefix="velostream-s3-") as folder:
            local = Path(folder, _local_name(0, path))
            lost = self._lost(piece, local)
            if lost is not None:
                if self._mode is WatchMode.APPEND:
                    on_bad(BadRecord(b"", shown(path), lost))
                # Elsewhere that it is gone is a step of its own.
                return

            def of_object(bad: BadRecord) -> None:
                position, reason = (text.replace(str(local), shown(path)) for text in (bad.position, bad.reason))
                on_bad(BadRecord(bad.raw, position, reason))

            source = self._file_source(local)
            start = source.initial_offset()
            for partition in source.partitions(start, source.latest_offset(start)):
                yield from source.read(partition, schema, of_object)

    def _lost(self, piece: dict[str, Any], local: Path) -> str | None:
        """Copies the object that was seen; why it can't be had any more, else None.

        A newer version is as good where an object stands for its rows: the look that finds it replaces them by the same
        ones. Where they are events, that look brings the newer ones, so here they would come twice.
        """
        try:
            found = self._objects.fetch(piece["path"], local)
        except SourceError as error:
            if error.category is not Category.MISSING or self._mode is None:
                raise
            return "deleted before it could be read"
        if self._mode is not WatchMode.APPEND:
            return None
        same = found.size == piece["size"] and (not piece["etag"] or found.etag == piece["etag"])
        return None if same else "replaced before it could be read"


def _offset(states: States) -> Offset:
    return {"objects": [asdict(state) for state in states.values()]}


def _states(offset: Offset) -> dict[str, ObjectState]:
    try:
        states = [ObjectState(**form) for form in offset["objects"]]
    except (TypeError, KeyError) as error:
        raise SourceError(f"{offset!r} is not an offset of an s3 source", code="invalid-offset") from error
    return {state.path: state for state in states}


def _within(states: Iterable[ObjectState], max_rows: int | None) -> Iterator[ObjectState]:
    """The first of the objects, and those after it that hold about as many rows as may come."""
    left = None if max_rows is None else max_rows * _BYTES_PER_ROW
    for state in states:
        if left is not None and left <= 0:
            return
        yield state
        left = None if left is None else left - max(1, state.size)


def _piece(state: ObjectState) -> dict[str, Any]:
    return {"path": state.path, "size": state.size, "etag": state.etag}


def _packed(pieces: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Objects together that are too small to be worth a task of their own."""
    group: list[dict[str, Any]] = []
    weight = 0
    for piece in pieces:
        if group and weight + piece["size"] > _PART_BYTES:
            yield group
            group, weight = [], 0
        group.append(piece)
        weight += piece["size"]
    if group:
        yield group


def _local_name(number: int, path: str) -> str:
    """A name that tells format and compression as the object's does, and has no character with a meaning."""
    suffixes = [suffix for suffix in PurePosixPath(path).suffixes[-2:] if re.fullmatch(r"\.\w+", suffix)]
    return f"object-{number:04d}{''.join(suffixes)}"
