"""Objects of a store, of all file formats, read once or watched: what every kind of store has in common.

An object appears whole and changes whole, so it is the unit of reading. A bounded reading takes the objects that are
there at its first step. A watched one lists them again and again: a new object adds its rows, a changed one replaces
those it had, a deleted one takes them along; with `watch.mode = 'append'` the rows of new and changed objects are
events, and nothing is ever taken back. An empty object is none: some clients make one first and fill it then.

A change shows in size and modification time, which stores tell in whole seconds; of an object that was written less
than a minute ago the version (ETag, generation) is compared, too. Whoever reads an object copies it to a local file
first, where the file source reads it.
Delivery guarantee: exactly-once, for as long as the objects that were read stay readable.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import pyarrow as pa

from velostream.errors import Category, SourceError
from velostream.formats.compression import compression_of
from velostream.formats.options import FILE_OPTIONS
from velostream.formats.registry import format_name
from velostream.formats.text import is_wide
from velostream.model.object_store import ObjectStore
from velostream.model.options import Option, OptionType
from velostream.model.schema import Schema
from velostream.sources.base import BadRecord, OnBad, SourceSpec
from velostream.sources.file_progress import WatchMode
from velostream.sources.files import FileSource
from velostream.sources.followed_files import FOLLOWED_OPTIONS, FollowedFiles, Piece
from velostream.sources.object_listing import ObjectAddress, Objects, StoredObject

_BYTES_PER_ROW = 64
"""How long a row is taken to be where a step is limited to a number of them."""
_FIRST_SAMPLE = 4 << 20
_FURTHER_SAMPLE = 256 << 10
_SAMPLED_OBJECTS = 8
_YOUNG_SECONDS = 60
"""Within that time an object may be written again in the second it was written in, clocks that differ included."""
_OF_LINES = ("csv", "tsv", "jsonl", "ndjson", "json_lines", "text")
_OF_FILE = ("format", "timezone", "record.schema", *(option.name for option in FILE_OPTIONS))


@dataclass(frozen=True, slots=True)
class ObjectState:
    """One object in an offset."""

    path: str
    size: int
    modified: int
    etag: str = ""
    """Its version, where the object was young when it was taken; else size and time tell."""
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

OBJECT_OPTIONS = (
    *FOLLOWED_OPTIONS,
    Option("watch.debounce", "of no effect: an object appears whole", OptionType.DURATION, "0s"),
    Option("poll.interval", "how often to list; implies watch", OptionType.DURATION, "30s"),
)


class ObjectSource(FollowedFiles[ObjectState]):
    """Objects of a bucket. A kind says which store that is; its options are `OBJECT_OPTIONS` and the store's."""

    store: ClassVar[type[ObjectStore]]
    offset_name = "objects"

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(spec)
        self._address = ObjectAddress.of(self.spec.uri, self.store)
        self._store = self.store.of(self.settings, self.spec.uri)
        self._objects = Objects(self._store, self._address)
        self._settled: set[tuple[str, str]] = set()
        """Objects, by path and version, that were found unchanged when they were no longer young."""

    def schema(self) -> Schema | None:
        """Declared columns, else those the first objects show.

        Raises `missing-file` when there is no object and none is waited for by watching.
        """
        found = self._discovered or self._sampled()
        if found is None and self._declared is None:
            return None
        self._discovered = found
        return self._keyed(self._declared or found)

    def close(self) -> None:
        self._objects.close()

    def _moved(self, states: States, max_rows: int | None) -> States:
        return self._bounded(states, max_rows) if self._mode is None else self._watched(states, max_rows)

    def _state(self, form: dict[str, Any]) -> ObjectState:
        return ObjectState(**form)

    def _shown(self, path: str) -> str:
        return self._store.shown(path)

    def _whole(self, state: ObjectState) -> Piece:
        return {"path": state.path, "size": state.size, "etag": state.etag, "weight": state.size}

    def _pieces(self, old: ObjectState | None, state: ObjectState) -> list[Piece]:
        return [self._whole(state)] if state.taken else []

    def _bounded(self, states: States, max_rows: int | None) -> States:
        """What is there at the first step, in as many steps as the limit makes of it."""
        found = dict(states) or {path: ObjectState.of(one, taken=False) for path, one in self._present().items()}
        for state in _within([state for state in found.values() if not state.taken], max_rows):
            found[state.path] = replace(state, taken=True)
        return found

    def _watched(self, states: States, max_rows: int | None) -> States:
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
            raise SourceError.missing_file(self._shown(self._address.path), pattern=self._address.names_many)
        return found

    def _sampled(self) -> Schema | None:
        """The columns that the first objects show, of which the file source makes sure that declared ones fit."""
        found = self._objects.listed() if self._mode is not None else self._present()
        samples = list(found)[: 1 if self._declared is not None else _SAMPLED_OBJECTS]
        if not samples:
            return None
        with tempfile.TemporaryDirectory(prefix="velostream-object-") as folder:
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
        options = {name: self.settings[name] for name in _OF_FILE if name in self.settings}
        return FileSource(SourceSpec("file", f"file://{path}", options, self.spec.columns))

    def _read_piece(self, piece: Piece, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        path = piece["path"]
        with tempfile.TemporaryDirectory(prefix="velostream-object-") as folder:
            local = Path(folder, _local_name(0, path))
            lost = self._lost(piece, local)
            if lost is not None:
                if self._mode is WatchMode.APPEND:
                    on_bad(BadRecord(b"", self._shown(path), lost))
                # Elsewhere that it is gone is a step of its own.
                return

            def of_object(bad: BadRecord) -> None:
                position, reason = (text.replace(str(local), self._shown(path)) for text in (bad.position, bad.reason))
                on_bad(BadRecord(bad.raw, position, reason))

            source = self._file_source(local)
            start = source.initial_offset()
            for partition in source.partitions(start, source.latest_offset(start)):
                yield from source.read(partition, schema, of_object)

    def _lost(self, piece: Piece, local: Path) -> str | None:
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


def _within(states: Iterable[ObjectState], max_rows: int | None) -> Iterator[ObjectState]:
    """The first of the objects, and those after it that hold about as many rows as may come."""
    left = None if max_rows is None else max_rows * _BYTES_PER_ROW
    for state in states:
        if left is not None and left <= 0:
            return
        yield state
        left = None if left is None else left - max(1, state.size)


def _local_name(number: int, path: str) -> str:
    """A name that tells format and compression as the object's does, and has no character with a meaning."""
    suffixes = [suffix for suffix in PurePosixPath(path).suffixes[-2:] if re.fullmatch(r"\.\w+", suffix)]
    return f"object-{number:04d}{''.join(suffixes)}"
