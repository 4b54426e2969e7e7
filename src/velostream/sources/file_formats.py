"""Files through their formats: what columns they show, how far they can be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from velostream.errors import Category, SourceError
from velostream.formats.base import Format, FormatSettings, LineFormat, Sample, WholeFormat
from velostream.formats.compression import NONE, compression_of, read_blocks
from velostream.formats.registry import format_name, make_format
from velostream.model.schema import Schema
from velostream.sources.file_state import FileIdentity
from velostream.sources.text_file import TextFile

_FIRST_SAMPLE = 4 << 20
_FURTHER_SAMPLE = 256 << 10
_SAMPLED_FILES = 8
# A column may first appear in any file, so a little of each is looked at, up to a number that is still quick.
_SMALL_SAMPLE = 8 << 10
_LOOKED_AT_FILES = 200
_SNIFFED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a file can be read now."""

    read: int
    """Bytes of a line format, units of a whole one."""
    size: int
    """Bytes of the file that this speaks for."""
    rows: int = 0
    """How many rows that is, about; 0 when there was no reason to count."""


class FileFormats:
    """The format of each file of a source, by option or name, remembered once it is known."""

    def __init__(self, option: str | None, settings: FormatSettings) -> None:
        self._option = option
        self._settings = settings
        self._known: dict[str, Format] = {}
        self._units: dict[str, tuple[FileIdentity | None, Sequence[int]]] = {}

    def of(self, path: str) -> Format:
        """The format of a file; `SourceError` when its name doesn't tell and no option does."""
        name = format_name(path, self._option)
        compression = compression_of(path, self._settings.compression)
        settings = replace(self._settings, compression=compression or NONE)
        if name != "json":
            known = f"{name} {compression}"
            if known not in self._known:
                self._known[known] = make_format(name, settings)
            return self._known[known]
        if path in self._known:
            return self._known[path]
        head = next(read_blocks(Path(path), compression, size=_SNIFFED_BYTES), b"")
        found = make_format(name, settings, head=head)
        if head.strip():
            self._known[path] = found
        return found

    def forget(self, path: str) -> None:
        """The file was rewritten; its format may be another."""
        self._known.pop(path, None)

    def infer(self, paths: Sequence[str], *, final: bool) -> Schema | None:
        """Columns the files show, by samples of the first ones; None when they hold no record yet."""
        if not paths:
            return None
        first = self.of(paths[0])
        same = [path for path in paths[:_LOOKED_AT_FILES] if type(self.of(path)) is type(first)]
        if isinstance(first, LineFormat):
            sizes = [_FIRST_SAMPLE, *[_FURTHER_SAMPLE] * (_SAMPLED_FILES - 1)]
            samples = [
                self._sample(path, first, final=final, length=sizes[index] if index < len(sizes) else _SMALL_SAMPLE)
                for index, path in enumerate(same)
            ]
            return first.infer([sample for sample in samples if sample is not None])
        if isinstance(first, WholeFormat):
            return first.infer([Path(path) for path in self._readable(same[:_SAMPLED_FILES], first)])
        return None

    def check_names(self, paths: Sequence[str], declared: Schema) -> None:
        """`SourceError` when a header has none of the declared columns: every value would silently be NULL."""
        for path in paths[:1]:
            file_format = self.of(path)
            if not isinstance(file_format, LineFormat):
                continue
            with TextFile(path, file_format) as file:
                preamble = file.preamble(final=False)
            header = (preamble.names or ()) if preamble else ()
            if header and not {name.lower() for name in header} & {name.lower() for name in declared.names}:
                raise _no_such_columns(path, header, declared)

    def reach(self, path: str, start: int, *, max_rows: int | None, final: bool, size: int | None = None) -> Reach:
        """How far a file can be read from `start`, at most about `max_rows` rows on; `start` when there is nothing."""
        file_format = self.of(path)
        if isinstance(file_format, LineFormat):
            return self._reach_text(path, file_format, start, max_rows=max_rows, final=final, size=size)
        identity = FileIdentity.of(path)
        units = self.units(path)
        end, rows = start, 0
        while end < len(units) and (max_rows is None or rows < max_rows):
            rows += max(1, units[end])
            end += 1
        return Reach(end, identity.size if identity else 0, rows)

    def units(self, path: str) -> Sequence[int]:
        """Rows of each unit of a whole file. One that can't be read is a single unit: reading it will say why."""
        file_format = self.of(path)
        if not isinstance(file_format, WholeFormat):
            return ()
        try:
            return self._counted(path, file_format)
        except SourceError as error:
            if error.category is not Category.DATA:
                raise
            return (1,)

    def _counted(self, path: str, whole: WholeFormat) -> Sequence[int]:
        """Rows of each unit, counted once while the file stays as it is; `SourceError` when it can't be read."""
        identity = FileIdentity.of(path)
        known = self._units.get(path)
        if known is None or known[0] != identity:
            known = self._units[path] = (identity, whole.units(Path(path)))
        return known[1]

    def _reach_text(
        self, path: str, line_format: LineFormat, start: int, *, max_rows: int | None, final: bool, size: int | None
    ) -> Reach:
        with TextFile(path, line_format) as file:
            preamble = file.preamble(final=final)
            if preamble is None:
                return Reach(start, start)
            begin = max(start, preamble.length)
            found = file.advance(begin, max_rows=max_rows, final=final, size=size)
            if found.position <= begin:
                return Reach(start, start)
            return Reach(found.position, found.position, found.rows)

    def _sample(self, path: str, line_format: LineFormat, *, final: bool, length: int) -> Sample | None:
        with TextFile(path, line_format) as file:
            preamble = file.preamble(final=final)
            if preamble is None:
                return None
            limit = preamble.length + length
            whole = limit >= file.size
            end = file.advance(preamble.length, max_rows=1 << 31, final=final and whole, size=limit).position
            data = b"".join(chunk for _, chunk in file.chunks(preamble.length, end))
            return Sample(preamble, data) if data.strip() else None

    def _readable(self, paths: Sequence[str], whole: WholeFormat) -> list[str]:
        """The files that can be opened; the error of the first when none can."""
        readable: list[str] = []
        trouble: SourceError | None = None
        for path in paths:
            try:
                self._counted(path, whole)
                readable.append(path)
            except SourceError as error:
                trouble = trouble or error
        if trouble is not None and not readable:
            raise trouble
        return readable


def _no_such_columns(path: str, header: Sequence[str], declared: Schema) -> SourceError:
    return SourceError(
        f'file "{path}" has none of the declared columns in its header',
        detail=f"the header names {', '.join(header)}; declared are {', '.join(declared.names)}",
        hint="WITH ('header' = 'false') if the first line is data already",
        code="wrong-header",
        category=Category.CONFIGURATION,
    )
