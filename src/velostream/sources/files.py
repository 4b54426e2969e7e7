"""`file:///p`, patterns and folders of all formats, read once or watched.

A bounded reading takes what is there at its first step. A watched one follows:

- `watch.mode = 'append'` is a stream of lines: what is added to files, or comes with new ones. A file that was
  truncated or rotated is read from its start again; one that was renamed is recognised.
- Every other mode is a table whose origins are the files: growth adds rows, a rewrite replaces the rows of its file,
  and where many files are watched a deleted file takes its rows along. Of a file above 1 MiB, beginning, end, size and
  modification time are compared; an edit in the middle during growth that keeps every length goes unnoticed.

A line counts when its newline is there; only a bounded reading takes a last line without one.
Delivery guarantee: exactly-once, for as long as the files that were read stay readable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from velostream.errors import Category, SourceError
from velostream.formats.base import LineFormat, Preamble, Rejected, WholeFormat
from velostream.formats.options import FILE_OPTIONS, format_settings
from velostream.formats.registry import NAMES
from velostream.model.change import CHANGE
from velostream.model.options import Option, Options, OptionType
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
from velostream.sources.file_formats import FileFormats
from velostream.sources.file_listing import Listing
from velostream.sources.file_progress import BoundedProgress, States, WatchedProgress, WatchMode
from velostream.sources.file_state import FileIdentity, FileState
from velostream.sources.text_file import TextFile

_PART_BYTES = 16 << 20
_ROWS_PER_BATCH = 65_536


class FileSource(Source):
    """One address of files. Delivery guarantee: exactly-once, for as long as the files stay readable."""

    kind = "file"
    options = (
        *COMMON_OPTIONS,
        OFFSET_RESET,
        Option("format", "how the files are written; default: by their names", OptionType.CHOICE, None, NAMES),
        *FILE_OPTIONS,
        Option("watch", "whether to keep following", OptionType.BOOLEAN, "false"),
        Option("watch.mode", "what a change means", OptionType.CHOICE, "auto", tuple(WatchMode)),
        Option("watch.debounce", "how long a rewritten file must be quiet", OptionType.DURATION, "500ms"),
        Option("poll.interval", "how often to look; implies watch", OptionType.DURATION, "100ms"),
        Option("file.wait.timeout", "how long to wait for files that aren't there yet", OptionType.DURATION, "0s"),
        Option("file.retry.interval", "how often to look for them", OptionType.DURATION, "2s"),
        Option("file.create.empty", "create a file that isn't there", OptionType.BOOLEAN, "false"),
        Option("changelog", "what a record means", OptionType.CHOICE, "append", ("append", "upsert")),
    )

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(with_parameters(spec))
        self._listing = Listing.of(self.spec.uri)
        self._declared = declared_columns(self.spec, self.settings.text("record.schema"))
        self._formats = FileFormats(
            self.settings.text("format"), format_settings(self.settings, declared=self._declared)
        )
        self._mode = _watch_mode(self.settings)
        latest, self.warnings = begins_at_latest(self.settings.text("auto.offset.reset"))
        self._from_latest = latest and self._mode is WatchMode.APPEND
        self._upserts = self.settings.text("changelog") == "upsert"
        self._discovered: Schema | None = None
        self._progress: BoundedProgress | WatchedProgress
        if self._mode is None:
            self._progress = BoundedProgress(self._listing, self._formats)
        else:
            debounce = self.settings.duration("watch.debounce") or timedelta()
            self._progress = WatchedProgress(self._listing, self._formats, self._mode, debounce=debounce)

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers need the spec; what the driver remembers of files stays with it."""
        return type(self), (self.spec,)

    @property
    def capabilities(self) -> SourceCapabilities:
        watched = self._mode is not None
        emits = Emits.APPENDS if self._mode in (None, WatchMode.APPEND) else Emits.CHANGES
        if self._upserts and emits is Emits.APPENDS:
            emits = Emits.UPSERTS
        return SourceCapabilities(emits=emits, replay=Replay.FOREVER, incremental=watched, follows=watched)

    def schema(self) -> Schema | None:
        """Declared columns, else what samples of the files show.

        Raises the error `missing-file` when there is no file and none is waited for by watching.
        """
        paths = self._listing.paths()
        if not paths and self.settings.boolean("file.create.empty") and not self._listing.names_many:
            Path(self._listing.pattern).touch()
            paths = self._listing.paths()
        if not paths and self._mode is None:
            raise SourceError.missing_file(self._listing.pattern, pattern=self._listing.names_many)
        if self._declared is not None:
            self._formats.check_names(paths, self._declared)
        found = self._declared or self._discovered
        if found is None:
            found = self._discovered = self._formats.infer(paths, final=self._mode is None)
        key = names_of(self.settings.text("key"))
        return found.with_key(key) if found is not None and key else found

    def initial_offset(self) -> Offset:
        if not self._from_latest:
            return _offset({})
        return _offset(self._progress.latest({}, max_rows=None))

    def latest_offset(self, start: Offset, *, max_rows: int | None = None) -> Offset:
        states = _states(start)
        found = self._progress.latest(states, max_rows=max_rows)
        return start if found is states else _offset(found)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        before = _states(start)
        pieces: list[dict[str, Any]] = []
        parts: list[Partition] = []
        for path, state in _states(end).items():
            old = before.get(path)
            if old == state:
                continue
            if self.capabilities.emits is not Emits.CHANGES:
                pieces += self._pieces(state, _range_start(old, state))
            elif old is not None and not old.gone and old.generation != state.generation:
                whole = [] if state.gone else [_piece(state, 0, state.read)]
                parts.append(Partition({"pieces": whole}, origin=path, replaces=True))
            elif not state.gone:
                cut = self._pieces(state, _range_start(old, state))
                parts += [Partition({"pieces": [piece]}, origin=path) for piece in cut]
        return parts + [Partition({"pieces": group}) for group in _packed(pieces)]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        signed = self.capabilities.emits is not Emits.APPENDS and not partition.replaces
        for piece in partition.payload["pieces"]:
            for rows in self._read_piece(piece, schema, on_bad):
                marked = rows
                if signed:
                    marked = rows.append_column(CHANGE, pa.repeat(pa.scalar(1, pa.int8()), rows.num_rows))
                yield from marked.to_batches(max_chunksize=_ROWS_PER_BATCH)

    def reached(self, position: Offset, target: Offset) -> bool:
        at = _states(position)
        return all(path in at and at[path].order >= state.order for path, state in _states(target).items())

    def _pieces(self, state: FileState, start: int) -> list[dict[str, Any]]:
        """The range of one file, cut so that several workers can read it."""
        if start >= state.read:
            return []
        file_format = self._formats.of(state.path)
        if isinstance(file_format, WholeFormat):
            weight = state.size // max(1, len(self._formats.units(state.path)))
            return [_piece(state, unit, unit + 1, weight=weight) for unit in range(start, state.read)]
        if not isinstance(file_format, LineFormat) or FileIdentity.of(state.path) is None:
            return [_piece(state, start, state.read)]
        with TextFile(state.path, file_format) as file:
            cuts = file.cuts(start, state.read, part=_PART_BYTES)
        return [_piece(state, begin, end) for begin, end in zip([start, *cuts], cuts, strict=False)]

    def _read_piece(self, piece: dict[str, Any], schema: Schema, on_bad: OnBad) -> Iterator[pa.Table]:
        path = piece["path"]
        file_format = self._formats.of(path)
        try:
            if isinstance(file_format, LineFormat):
                yield from self._read_text(piece, file_format, schema, on_bad)
            elif isinstance(file_format, WholeFormat):

                def reject(rejected: Rejected) -> None:
                    on_bad(BadRecord(rejected.raw, f"{path} record {rejected.place}", rejected.reason))

                yield from file_format.decode(Path(path), piece["start"], piece["end"], schema, reject)
        except SourceError as error:
            if error.category is not Category.DATA:
                raise
            on_bad(BadRecord(b"", path, error.message if error.detail is None else f"{error.message}: {error.detail}"))

    def _read_text(
        self, piece: dict[str, Any], line_format: LineFormat, schema: Schema, on_bad: OnBad
    ) -> Iterator[pa.Table]:
        path, start, end = piece["path"], piece["start"], piece["end"]
        with TextFile(path, line_format) as file:
            if file.size < end or (piece["fingerprint"] and file.fingerprint(piece["size"]) != piece["fingerprint"]):
                if self._mode in (None, WatchMode.APPEND):
                    lost = f"bytes {start} to {end} were gone before they could be read: truncated or rotated"
                    on_bad(BadRecord(b"", path, lost))
                # Elsewhere the rewrite is a step of its own, which brings the whole content.
                return
            preamble = file.preamble(final=True) or Preamble()
            for position, data in file.chunks(max(start, preamble.length), end):

                def reject(rejected: Rejected, position: int = position) -> None:
                    line = file.lines_before(position + rejected.place) + 1
                    on_bad(BadRecord(rejected.raw, f"{path}:{line}", rejected.reason))

                yield line_format.decode(data, preamble, schema, reject)


def _watch_mode(settings: Options) -> WatchMode | None:
    """The mode of a watched source; None for one that is read once."""
    asked = (
        settings.boolean("watch") if "watch" in settings else "poll.interval" in settings or "watch.mode" in settings
    )
    return WatchMode((settings.text("watch.mode") or "auto").lower()) if asked else None


def _offset(states: States) -> Offset:
    return {"files": [state.to_json() for state in states.values()]}


def _states(offset: Offset) -> dict[str, FileState]:
    try:
        states = [FileState.from_json(form) for form in offset["files"]]
    except (TypeError, KeyError) as error:
        raise SourceError(f"{offset!r} is not an offset of a file source", code="invalid-offset") from error
    return {state.path: state for state in states}


def _range_start(old: FileState | None, state: FileState) -> int:
    """Where the reading of a file goes on; a new generation begins at its beginning."""
    return old.read if old is not None and old.generation == state.generation and not old.gone else state.begin


def _piece(state: FileState, start: int, end: int, *, weight: int | None = None) -> dict[str, Any]:
    return {
        "path": state.path,
        "start": start,
        "end": end,
        "size": state.size,
        "fingerprint": state.fingerprint,
        "weight": end - start if weight is None else weight,
    }


def _packed(pieces: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Pieces together that are too small to be worth a task of their own."""
    group: list[dict[str, Any]] = []
    weight = 0
    for piece in pieces:
        if group and weight + piece["weight"] > _PART_BYTES:
            yield group
            group, weight = [], 0
        group.append(piece)
        weight += piece["weight"]
    if group:
        yield group
