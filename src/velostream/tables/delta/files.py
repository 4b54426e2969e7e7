"""The Parquet files of a Delta table: written once, read with as little as a question needs."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from velostream.tables.delta.codec import Codec
from velostream.tables.delta.log import DataFile, wrapped_errors

ROWS_PER_FILE = 1_000_000
_ROWS_PER_GROUP = 100_000
"""What a question for a few rows reads at least, where statistics help."""
_FORMAT = ds.ParquetFileFormat()
_COMPRESSION = "zstd"


class DataFiles:
    """The files of one table, whatever version they belong to. Any thread may read."""

    def __init__(self, location: Path, codec: Codec) -> None:
        self._location = location
        self._codec = codec
        self._fragments: dict[str, ds.Fragment] = {}
        """Their footers are read once."""

    def write(self, rows: pa.Table, *, version: int) -> list[DataFile]:
        """Write rows to new files, which are nobody's until a commit names them. Their names sort by version."""
        written: list[DataFile] = []
        with wrapped_errors(self._location):
            for number, start in enumerate(range(0, rows.num_rows, ROWS_PER_FILE)):
                part = rows.slice(start, ROWS_PER_FILE)
                name = f"{version:020}-{number:05}-{uuid.uuid4().hex}.parquet"
                written.append(DataFile(name, part.num_rows))
                try:
                    pq.write_table(
                        self._codec.encode(part),
                        self._location / name,
                        compression=_COMPRESSION,
                        row_group_size=_ROWS_PER_GROUP,
                    )
                except Exception:
                    self.remove(written)
                    raise
        return written

    def remove(self, files: Sequence[DataFile]) -> None:
        """Give up files that no commit names. One that can't be removed does no harm; VACUUM finds it."""
        for file in files:
            with suppress(OSError):
                self._path(file).unlink()

    def read(
        self,
        files: Sequence[DataFile],
        *,
        columns: Sequence[str] | None = None,
        pruning: ds.Expression | None = None,
    ) -> pa.Table:
        """The rows of files, in their order. What `pruning` excludes may be left out; it speaks of encoded columns."""
        names = list(self._codec.encoded.names if columns is None else columns)
        with wrapped_errors(self._location):
            found = self._dataset(files).to_table(columns=names, filter=pruning)
        return self._codec.decode(found)

    def batches(self, files: Sequence[DataFile], size: int) -> Iterator[pa.RecordBatch]:
        """All rows of files, in their order, in batches of at most `size`."""
        with wrapped_errors(self._location):
            for batch in self._dataset(files).to_batches(batch_size=size):
                if batch.num_rows:
                    yield from self._codec.decode(pa.Table.from_batches([batch])).to_batches(max_chunksize=size)

    def may_have(self, file: DataFile, pruning: ds.Expression | None) -> bool:
        """Whether a file has rows that `pruning` doesn't exclude."""
        if pruning is None:
            return True
        with wrapped_errors(self._location):
            return bool(self._dataset([file]).count_rows(filter=pruning))

    def count(self, files: Sequence[DataFile]) -> int:
        """By the files' footers."""
        with wrapped_errors(self._location):
            return int(self._dataset(files).count_rows())

    def exist(self, files: Iterable[DataFile]) -> bool:
        return all(self._path(file).exists() for file in files)

    def _dataset(self, files: Sequence[DataFile]) -> ds.Dataset:
        fragments = [self._fragment(file) for file in files]
        return ds.FileSystemDataset(fragments, self._codec.encoded, _FORMAT, LocalFileSystem())

    def _fragment(self, file: DataFile) -> ds.Fragment:
        fragment = self._fragments.get(file.path)
        if fragment is None:
            fragment = _FORMAT.make_fragment(str(self._path(file)), LocalFileSystem())
            self._fragments[file.path] = fragment
        return fragment

    def _path(self, file: DataFile) -> Path:
        return self._location / unquote(file.path).removeprefix("file://")

    def forget_all_but(self, files: Sequence[DataFile]) -> None:
        """Give back what is held of files of older versions."""
        current = {file.path for file in files}
        # A copy, made in one step: others read, and so add to it, meanwhile.
        for path in [path for path in list(self._fragments) if path not in current]:
            self._fragments.pop(path, None)
