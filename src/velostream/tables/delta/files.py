"""The Parquet files of a Delta table: written once, read with as little as a question needs."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from velostream.model.schema import Schema
from velostream.tables.delta.codec import Codec
from velostream.tables.delta.location import Location, wrapped_errors
from velostream.tables.delta.log import DataFile
from velostream.tables.delta.partitions import by_partition, guarantee

ROWS_PER_FILE = 1_000_000
_ROWS_PER_GROUP = 100_000
"""What a question for a few rows reads at least, where statistics help."""
_FORMAT = ds.ParquetFileFormat()
_COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How the files of a table look, whoever reads or writes them. Goes to Spark's workers as it is."""

    location: Location
    table: str
    schema: Schema
    partition_by: tuple[str, ...] = ()

    def write(self, rows: pa.Table, *, prefix: str) -> list[DataFile]:
        """Write rows to new files, which are nobody's until a commit names them. Their names begin with `prefix`."""
        written: list[DataFile] = []
        encoded = Codec(self.schema).encode(rows)
        with wrapped_errors(self.location):
            try:
                for values, share in by_partition(encoded, self.partition_by, table=self.table):
                    for start in range(0, share.num_rows, ROWS_PER_FILE):
                        name = f"{prefix}-{len(written):05}-{uuid.uuid4().hex}.parquet"
                        part = share.slice(start, ROWS_PER_FILE)
                        written.append(DataFile(name, part.num_rows, values))
                        written[-1] = DataFile(name, part.num_rows, values, self._write_file(part, name))
            except Exception:
                self.remove(written)
                raise
        return written

    def remove(self, files: Sequence[DataFile]) -> None:
        """Give up files that no commit names. One that can't be removed does no harm; VACUUM finds it."""
        for file in files:
            with suppress(OSError):
                self.location.remove(file.path)

    def fragment(self, file: DataFile) -> ds.Fragment:
        encoded = Codec(self.schema).encoded
        known = guarantee(self.partition_by, file.partition, encoded)
        return _FORMAT.make_fragment(
            self.location.path(file.path),
            self.location.file_system,
            **({} if known is None else {"partition_expression": known}),
        )

    def _write_file(self, rows: pa.Table, name: str) -> int:
        with self.location.file_system.open_output_stream(self.location.path(name)) as file:
            pq.write_table(rows, file, compression=_COMPRESSION, row_group_size=_ROWS_PER_GROUP)
            return int(file.tell())


class DataFiles:
    """The files of one table, whatever version they belong to. Any thread may read."""

    def __init__(self, layout: FileLayout, codec: Codec) -> None:
        self.layout = layout
        self._location = layout.location
        self._codec = codec
        self._fragments: dict[str, ds.Fragment] = {}
        """Their footers are read once."""
        self.holds_plain_values = codec.is_identity

    def write(self, rows: pa.Table, *, version: int) -> list[DataFile]:
        """Write the rows of a commit that would be this version. The names of files sort by version."""
        return self.layout.write(rows, prefix=f"{version:020}")

    def remove(self, files: Sequence[DataFile]) -> None:
        self.layout.remove(files)

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

    def batches(
        self,
        files: Sequence[DataFile],
        size: int,
        *,
        columns: Sequence[str] | None = None,
        pruning: ds.Expression | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of files, in their order, in batches of at most `size`; otherwise like `read`."""
        names = list(self._codec.encoded.names if columns is None else columns)
        with wrapped_errors(self._location):
            for batch in self._dataset(files).to_batches(batch_size=size, columns=names, filter=pruning):
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
        with wrapped_errors(self._location):
            return self._location.exist(file.path for file in files)

    def _dataset(self, files: Sequence[DataFile]) -> ds.Dataset:
        fragments = [self._fragment(file) for file in files]
        return ds.FileSystemDataset(fragments, self._codec.encoded, _FORMAT, self._location.file_system)

    def _fragment(self, file: DataFile) -> ds.Fragment:
        fragment = self._fragments.get(file.path)
        if fragment is None:
            fragment = self._fragments[file.path] = self.layout.fragment(file)
        return fragment

    def forget_all_but(self, files: Sequence[DataFile]) -> None:
        """Give back what is held of files of older versions."""
        current = {file.path for file in files}
        # A copy, made in one step: others read, and so add to it, meanwhile.
        for path in [path for path in list(self._fragments) if path not in current]:
            self._fragments.pop(path, None)
