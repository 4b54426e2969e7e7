"""Results that are committed in pieces: what is much of them is put into files by the workers.

The driver takes one piece after the other out of these, so that it never holds the whole, whatever the query is and
however its source is cut into partitions.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.engine.relations import arrow_result
from velostream.engine.staging import Bounds, Prepare, execute
from velostream.errors import StateError
from velostream.sources.base import BadRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FEWEST_ROWS, _FEWEST_BYTES = 20_000, 4 << 20
"""Less than both of a worker's rows is brought to the driver: a small load writes no files."""
_PIECE_BYTES = 32 << 20
"""A piece that takes as much is complete, however few its rows are."""


@dataclass(frozen=True)
class LocalFiles:
    """Puts rows into files of a folder that the workers share with the driver."""

    folder: Path

    def stage(self, rows: pa.Table, *, part: int) -> Sequence[str]:
        # A share that is computed a second time is another file.
        name = f"{part}-{uuid.uuid4().hex}.arrow"
        try:
            with pa.OSFile(str(self.folder / name), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
                writer.write_table(rows)
        except OSError as error:
            raise StateError(
                f'rows on their way into a table can\'t be written to "{self.folder}"',
                detail=error.strerror or str(error),
                hint="it takes as much room as the rows that are loaded",
            ) from error
        return [name]

    def read(self, name: str) -> pa.Table:
        with pa.OSFile(str(self.folder / name), "rb") as file:
            return pa.ipc.open_stream(file).read_all()


@dataclass(frozen=True)
class Piece:
    rows: pa.Table
    is_last: bool


@dataclass(frozen=True)
class Pieces:
    """A result whose rows are few, or wait in files to be committed one piece after the other."""

    count: int
    """Of all rows but those refused."""
    refused: Sequence[BadRecord]
    _shares: Sequence[pa.Table | str]
    """Of the workers, in the result's order: rows, or the name of a file."""
    _files: LocalFiles
    _most: int

    def __iter__(self) -> Iterator[Piece]:
        """The rows in their order, so many at a time. There is no piece without rows."""
        shares = (self._files.read(share) if isinstance(share, str) else share for share in self._shares)
        return cut_into_pieces(shares, most_rows=self._most)


def cut_into_pieces(tables: Iterable[pa.Table], *, most_rows: int) -> Iterator[Piece]:
    """The rows of the tables in their order, so many at a time or fewer where those take much room.

    There is no piece without rows. Each is known to be the last one or not, so one more than is given out is held.
    """
    complete: pa.Table | None = None
    waiting: list[pa.Table] = []
    count = size = 0
    for table in tables:
        rows = table
        while rows.num_rows:
            if complete is not None:
                yield Piece(complete, is_last=False)
                complete = None
            taken = rows.slice(0, most_rows - count)
            rows = rows.slice(taken.num_rows)
            waiting.append(taken)
            count += taken.num_rows
            size += taken.nbytes
            if count >= most_rows or size >= _PIECE_BYTES:
                complete = pa.concat_tables(waiting)
                waiting, count, size = [], 0, 0
    if waiting:
        complete = pa.concat_tables(waiting)
    if complete is not None:
        yield Piece(complete, is_last=True)


def gather_in_pieces(frame: DataFrame, folder: Path, prepare: Prepare, *, most_rows: int) -> Pieces:
    """Execute a frame for a table of ours, once; what is much of it waits in files of the folder.

    Pieces have as many rows as are given, or fewer where those take much room. Of the whole the driver never holds more
    than that, nor does a worker of its share.
    """
    files = LocalFiles(folder)
    if not shares_files(frame.sparkSession) or _is_cut(frame):
        rows, refused = prepare(arrow_result(frame))
        return Pieces(rows.num_rows, refused, [rows], files, most_rows)
    bounds = Bounds(min(_FEWEST_ROWS, most_rows), _FEWEST_BYTES, most_rows, _PIECE_BYTES)
    shares, refused, _ = execute(frame, files, prepare, bounds)
    told: list[pa.Table | str] = []
    for share in shares:
        told += share.names if share.rows is None else [share.rows]
    return Pieces(sum(share.count for share in shares), refused, told, files, most_rows)


def shares_files(session: SparkSession) -> bool:
    """Whether Spark's workers are on this machine."""
    return str(session.sparkContext.master).partition("[")[0] == "local"


def _is_cut(frame: DataFrame) -> bool:
    """Whether a LIMIT or OFFSET comes last.

    Spark then takes the first rows of a result that the driver asks for; which ones something behind it would get is
    left to chance.
    """
    plan = frame._jdf.queryExecution().analyzed()
    while plan.nodeName() == "WithCTE":
        plan = plan.plan()
    return plan.nodeName() in {"GlobalLimit", "Offset", "Tail"}
