"""Tables in Arrow files, one file each: a kind of table that Velostream doesn't have, in another package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from velostream.errors import Category, OptionError, StoreError
from velostream.model.options import Option, Options
from velostream.tables.base import TableSpec
from velostream.tables.simple import SimpleTable


class ArrowFileTable(SimpleTable):
    """`WITH ('extension' = 'arrowFile', 'path' = '/data/t.arrows')`; without a path the file is our own."""

    kind: ClassVar[str] = "arrowFile"
    options: ClassVar[tuple[Option, ...]] = (Option("path", "the file, which is made when it isn't there"),)

    def __init__(self, spec: TableSpec) -> None:
        path = Options(spec.options, self.options).text("path") or (spec.directory and spec.directory / "table.arrows")
        if path is None:
            raise OptionError('kind "arrowFile" needs the option "path"', hint="WITH ('path' = '/data/t.arrows')")
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(spec)

    def load(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._trouble(error) from error

    def save(self, content: bytes) -> None:
        draft = self._path.with_suffix(".draft")
        try:
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError as error:
            raise self._trouble(error) from error

    def drop(self) -> None:
        self._path.unlink(missing_ok=True)

    def _trouble(self, error: OSError) -> StoreError:
        where, reason = str(self._path), error.strerror or str(error)
        return StoreError.unreachable(self.kind, where=where, reason=reason, category=Category.UNKNOWN)
