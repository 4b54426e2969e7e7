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

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from velostream.errors import Category, SourceError
from velostream.formats.base import LineFormat, Preamble, Rejected, WholeFormat
from velostream.formats.options import format_settings
from velostream.model.options import Option, OptionType
from velostream.model.schema import Schema
from velostream.sources.base import BadRecord, OnBad, SourceSpec
from velostream.sources.file_formats import FileFormats
from velostream.sources.file_listing import Listing
from velostream.sources.file_progress import BoundedProgress, States, WatchedProgress, WatchMode
from velostream.sources.file_state import FileIdentity, FileState
from velostream.sources.followed_files import FOLLOWED_OPTIONS, FollowedFiles, Piece, part_bytes
from velostream.sources.text_file import TextFile

_ROWS_PER_BATCH = 65_536


class FileSource(FollowedFiles[FileState]):
    """One address of files. Delivery guarantee: exactly-once, for as long as the files stay readable."""

    kind = "file"
    offset_name = "files"
    options = (
        *FOLLOWED_OPTIONS,
        Option("watch.debounce", "how long a rewritten file must be quiet", OptionType.DURATION, "500ms"),
        Option("poll.interval", "how often to look; implies watch", OptionType.DURATION, "100ms"),
        Option("file.create.empty", "create a file that isn't there", OptionType.BOOLEAN, "false"),
    )

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(spec)
        self._listing = Listing.of(self.spec.uri)
        self._formats = FileFormats(
            self.settings.text("format"), format_settings(self.settings, declared=self._declared)
        )
        self._progress: BoundedProgress | WatchedProgress
        if self._mode is None:
            self._progress = BoundedProgress(self._listing, self._formats)
        else:
            debounce = self.settings.duration("watch.debounce") or timedelta()
            self._progress = WatchedProgress(self._listing, self._formats, self._mode, debounce=debounce)

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
        return self._keyed(found)

    def _moved(self, states: States, max_rows: int | None) -> States:
        return self._progress.latest(states, max_rows=max_rows)

    def _state(self, form: dict[str, Any]) -> FileState:
        return FileState(**form)

    def _shown(self, path: str) -> str:
        return path

    def _whole(self, state: FileState) -> Piece:
        return _piece(state, 0, state.read)

    def _pieces(self, old: FileState | None, state: FileState) -> list[Piece]:
        start = _range_start(old, state)
        if start >= state.read:
            return []
        file_format = self._formats.of(state.path)
        if isinstance(file_format, WholeFormat):
            weight = state.size // max(1, len(self._formats.units(state.path)))
            return [_piece(state, unit, unit + 1, weight=weight) for unit in range(start, state.read)]
        if not isinstance(file_format, LineFormat) or FileIdentity.of(state.path) is None:
            return [_piece(state, start, state.read)]
        with TextFile(state.path, file_format) as file:
            cuts = file.cuts(start, state.read, part=part_bytes(state.read - start))
        return [_piece(state, begin, end) for begin, end in zip([start, *cuts], cuts, strict=False)]

    def _read_piece(self, piece: Piece, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        for rows in self._tables(piece, schema, on_bad):
            yield from rows.to_batches(max_chunksize=_ROWS_PER_BATCH)

    def _tables(self, piece: Piece, schema: Schema, on_bad: OnBad) -> Iterator[pa.Table]:
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

    def _read_text(self, piece: Piece, line_format: LineFormat, schema: Schema, on_bad: OnBad) -> Iterator[pa.Table]:
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


def _range_start(old: FileState | None, state: FileState) -> int:
    """Where the reading of a file goes on; a new generation begins at its beginning."""
    return old.read if old is not None and old.generation == state.generation and not old.gone else state.begin


def _piece(state: FileState, start: int, end: int, *, weight: int | None = None) -> Piece:
    return {
        "path": state.path,
        "start": start,
        "end": end,
        "size": state.size,
        "fingerprint": state.fingerprint,
        "weight": end - start if weight is None else weight,
    }
