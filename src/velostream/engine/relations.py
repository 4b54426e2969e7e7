"""Tables as Spark relations, SQL over them, and what comes back as Arrow.

A snapshot becomes a Parquet file that Spark reads itself: measured, that is as quick as any other way for ten rows
and five times quicker for a million, and nothing passes through Python workers. One that consists of such files already
is read where it lies, and one in a store that workers can reach is read by them.
"""

from __future__ import annotations

import itertools
import re
import shutil
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from velostream.engine.spark_failures import WORKER_TOKEN, WorkerError, spark_errors_translated
from velostream.errors import UnsupportedError, VelostreamError
from velostream.model.schema import Schema
from velostream.model.variant import is_variant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from velostream.tables.base import ScanPart, Snapshot

_ROWS_PER_GROUP = 131_072
"""Small enough for a big table to be read by all cores."""
_GRACE_SECONDS = 30.0
"""How long the file of an older version outlives the last frame that is known to need it."""

_PATTERN_CHARACTER = re.compile(r"[*?\[\]{}\\]")
"""What makes Spark take a path for a pattern."""

_view_numbers = itertools.count()
_needs: weakref.WeakKeyDictionary[DataFrame, tuple[object, ...]] = weakref.WeakKeyDictionary()


def keep_alive(frame: DataFrame, *needed: object) -> DataFrame:
    """Hold on to objects for as long as the frame lives: what it reads is only read when it is executed."""
    _needs[frame] = _needs.get(frame, ()) + needed
    return frame


@dataclass(frozen=True)
class Reader:
    """The query that a relation is made for, and the name it has there."""

    sql: str
    relation: str


@dataclass(eq=False)
class _Lease:
    """Something a frame holds while it may still be executed."""


@dataclass
class _Version:
    """One version of a table on disk."""

    path: Path
    schema: Schema
    leases: weakref.WeakSet[_Lease] = field(default_factory=weakref.WeakSet)
    last_used: float = 0.0


class SnapshotRelations:
    """Table snapshots as Spark frames, written once per version. May be used from many threads.

    The folder belongs to this object alone. A version's file stays while it is the newest asked for, while a frame
    made from it (or by `run_sql` over it) lives, and a little longer.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._versions: dict[str, dict[int, _Version]] = {}
        self._lock = threading.Lock()
        self._writing: dict[tuple[str, int], threading.Lock] = {}
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)

    def frame(self, session: SparkSession, table_id: str, snapshot: Snapshot) -> DataFrame:
        """The rows of a snapshot; nothing of the snapshot is needed once this returns."""
        schema = snapshot.schema
        if not all(_fits_parquet(column.type) for column in schema.columns):
            return session.createDataFrame(snapshot.scan().cast(schema.arrow), schema=spark_schema(schema))
        lease = _Lease()
        version = self._version(table_id, snapshot, lease)
        positional = spark_schema(_positional(schema))
        frame = session.read.schema(positional).parquet(str(version.path)).toDF(*schema.names)
        return keep_alive(frame, lease)

    def frame_of_rows(self, session: SparkSession, rows: pa.Table, schema: Schema) -> DataFrame:
        """Rows that belong to no version of ours; their file goes with the last frame that needs it."""
        if not all(_fits_parquet(column.type) for column in schema.columns):
            return session.createDataFrame(rows.cast(schema.arrow), schema=spark_schema(schema))
        lease = _Lease()
        path = self._directory / f"{next(_view_numbers)}.parquet"
        _write(rows, schema, path)
        weakref.finalize(lease, path.unlink, missing_ok=True)
        frame = session.read.schema(spark_schema(_positional(schema))).parquet(str(path)).toDF(*schema.names)
        return keep_alive(frame, lease)

    def frame_of_files(self, session: SparkSession, paths: Sequence[str], schema: Schema) -> DataFrame:
        """Rows that are in Parquet files already, which are not ours to keep or to remove."""
        literal = (_PATTERN_CHARACTER.sub(r"\\\g<0>", path) for path in paths)
        with spark_errors_translated():
            return session.read.schema(spark_schema(schema)).parquet(*(f"file://{path}" for path in literal))

    def frame_of_parts(self, session: SparkSession, parts: Sequence[ScanPart], schema: Schema) -> DataFrame:
        """Rows that the workers read from their store themselves, each time that the frame is executed."""
        token = WORKER_TOKEN
        given = list(parts)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    try:
                        yield from given[number].read()
                    except VelostreamError as error:
                        raise WorkerError(error, token=token) from error

        return session.range(0, len(given), 1, len(given)).mapInArrow(read, spark_schema(schema))

    def forget(self, table_id: str) -> None:
        """Remove all of a table that was dropped."""
        with self._lock:
            for version in self._versions.pop(table_id, {}).values():
                version.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove everything; frames made before can't be executed any more."""
        with self._lock:
            self._versions.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _version(self, table_id: str, snapshot: Snapshot, lease: _Lease) -> _Version:
        place = (table_id, snapshot.version)
        with self._lock:
            turn = self._writing.setdefault(place, threading.Lock())
        with turn:
            found = self._lease(place, snapshot.schema, lease)
            if found is None:
                path = self._directory / f"{next(_view_numbers)}.parquet"
                _write(snapshot.scan(), snapshot.schema, path)
                found = self._add(place, _Version(path, snapshot.schema), lease)
        with self._lock:
            self._writing.pop(place, None)
        return found

    def _lease(self, place: tuple[str, int], schema: Schema, lease: _Lease) -> _Version | None:
        table_id, number = place
        with self._lock:
            found = self._versions.get(table_id, {}).get(number)
            if found is None or found.schema != schema:
                return None
            found.leases.add(lease)
            found.last_used = time.monotonic()
            return found

    def _add(self, place: tuple[str, int], version: _Version, lease: _Lease) -> _Version:
        table_id, number = place
        version.leases.add(lease)
        version.last_used = time.monotonic()
        with self._lock:
            versions = self._versions.setdefault(table_id, {})
            replaced = versions.get(number)
            versions[number] = version
            if replaced is not None:
                replaced.path.unlink(missing_ok=True)
            newest = max(versions)
            for old in [number for number, kept in versions.items() if number != newest and _unused(kept)]:
                versions.pop(old).path.unlink(missing_ok=True)
        return version


def _unused(version: _Version) -> bool:
    return not version.leases and time.monotonic() - version.last_used > _GRACE_SECONDS


def _write(rows: pa.Table, schema: Schema, path: Path) -> None:
    positional = _positional(schema).arrow
    rows = rows.rename_columns(positional.names).cast(positional)
    pq.write_table(rows, path, compression="none", use_dictionary=False, row_group_size=_ROWS_PER_GROUP)


def _positional(schema: Schema) -> Schema:
    """The same columns under plain names: a table's own names may be anything, a Parquet reader's may not."""
    return Schema.from_arrow(
        pa.schema([pa.field(f"c{number}", column.type) for number, column in enumerate(schema.columns)])
    )


def _fits_parquet(type_: pa.DataType) -> bool:
    """Whether Spark reads the type back from Parquet; it refuses columns without a type and structs without fields."""
    if pa.types.is_null(type_) or (pa.types.is_struct(type_) and not type_.num_fields):
        return False
    return all(_fits_parquet(type_.field(number).type) for number in range(type_.num_fields))


def run_sql(session: SparkSession, sql: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """The frame of a SELECT over named relations. May be called from many threads of one session.

    The names are common table expressions over temporary views of unique names, so that two queries never see
    each other's relations. Raises `SqlError` placed in `sql`.
    """
    catalog = session._jsparkSession.sessionState().catalog()
    views: dict[str, str] = {}
    try:
        for name, frame in frames.items():
            views[name] = view = f"velostream_{next(_view_numbers)}"
            frame.createTempView(view)
        prefix = _common_tables(views)
        with spark_errors_translated(sql=sql, skip=len(prefix)):
            result = session.sql(f"{prefix}{sql}\n)" if views else sql)
    finally:
        for view in views.values():
            # Spark's public dropTempView would also unpersist the frame behind the view, under other queries' feet.
            catalog.dropTempView(view)
    return keep_alive(result, *frames.values())


def _common_tables(views: Mapping[str, str]) -> str:
    if not views:
        return ""
    tables = ", ".join(f"{quoted(name)} AS (SELECT * FROM {view})" for name, view in views.items())
    return f"WITH {tables} (\n"


def quoted(name: str) -> str:
    """A name as a Spark identifier."""
    return "`" + name.replace("`", "``") + "`"


def mentioned(names: Sequence[str], *texts: str) -> tuple[str, ...]:
    """Those of the columns that SQL texts can possibly read.

    Whatever stands in a text is taken as read: a column too many costs a little, one too few would be wrong.
    """
    text = "\n".join(texts).lower()
    plain = text.isascii() and not _STAR.search(text)
    if not plain or any("`" in name for name in names) or len({name.lower() for name in names}) < len(names):
        return tuple(names)
    return tuple(name for name in names if not name.isascii() or name.lower() in text)


_STAR = re.compile(r"[.,(]\s*\*|\b(?:select|distinct|all)\s*\*")


def spark_schema(schema: Schema) -> StructType:
    """The Spark form of a schema; every column may be NULL, since Spark trusts a NOT NULL without checking it."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(column.name, from_arrow_type(column.type)) for column in schema.columns])


def schema_of(frame: DataFrame) -> Schema:
    """The schema of a frame, without executing it; `UnsupportedError` for a type tables can't hold."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for column in frame.schema.fields:
        try:
            arrow_type = to_arrow_type(column.dataType, timezone="UTC")
        except PySparkException as error:
            raise UnsupportedError(
                f'column "{column.name}" has the type {column.dataType.simpleString()}, which tables can\'t hold',
                hint=f"CAST({quoted(column.name)} AS STRING)",
                code="unsupported-type",
            ) from error
        fields.append(pa.field(column.name, _nullable(arrow_type)))
    return Schema.from_arrow(pa.schema(fields))


def _nullable(arrow_type: pa.DataType) -> pa.DataType:
    """The type with every nested field nullable: Spark says NOT NULL of a field whose whole struct may be NULL."""
    if is_variant(arrow_type):
        return arrow_type
    if pa.types.is_struct(arrow_type):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in arrow_type])
    if pa.types.is_list(arrow_type):
        return pa.list_(pa.field(arrow_type.value_field.name, _nullable(arrow_type.value_type)))
    if pa.types.is_map(arrow_type):
        return pa.map_(_nullable(arrow_type.key_type), _nullable(arrow_type.item_type))
    return arrow_type


def arrow_result(frame: DataFrame) -> pa.Table:
    """Execute a frame and bring its rows to the driver, in the types tables keep.

    Raises `QueryError`; its category is `data` when an expression failed for some row (a bad cast, an overflow).
    """
    schema = schema_of(frame)
    with spark_errors_translated():
        # Not toArrow: it casts to the fields' NOT NULL, which Arrow refuses where their struct is NULL (Spark 4.2.1).
        batches = frame._collect_as_arrow(empty_list_if_zero_records=False)  # type: ignore[operator]
    return cast_columns(pa.Table.from_batches(batches), schema.arrow)


def cast_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows as Spark gives them in the types tables keep, by position: names of a result need not be distinct."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)
