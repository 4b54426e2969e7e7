"""The kind `delta`: a table in Delta Lake, which Spark and every other reader of Delta understands as it is.

A version is a version of the Delta log, an epoch an application transaction in the commit that holds its rows. Changed
rows take their files with them: a commit writes the rest of those files anew. What changed between two versions is the
difference of the files that only one of them has, so it is known for every writer of the table, and for as long as log
and files are there: what VACUUM has removed is gone.

A commit is all or nothing, and survives the end of the process at any instant. Whether it survives the end of the
machine is the file system's to say: `deltalake` doesn't wait for the disk.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import lru_cache, partial
from typing import ClassVar

import pyarrow as pa

from velostream.errors import AlreadyExistsError, NotFoundError, OptionError, TableError
from velostream.model.change import ChangeBatch, Epoch, Mode, Write
from velostream.model.expression import Expression
from velostream.model.options import Option, Options
from velostream.model.s3 import S3_OPTIONS
from velostream.tables.base import Origin, TableCapabilities, TableSpec
from velostream.tables.delta.codec import Codec
from velostream.tables.delta.files import DataFiles, FileLayout
from velostream.tables.delta.location import Location, wrapped_errors
from velostream.tables.delta.log import DataFile, DeltaLog, LogState, LostRace
from velostream.tables.delta.partitions import check_partition_columns
from velostream.tables.delta.snapshot import DeltaCondition, DeltaSnapshot
from velostream.tables.delta.staging import FileStager, staged_files
from velostream.tables.delta.writing import FilesToChange, changed_rows
from velostream.tables.difference import Differ, Difference
from velostream.tables.memory.conform import conform
from velostream.tables.memory.keys import key_values
from velostream.tables.stored import (
    ACCESS,
    IF_EXISTS,
    WRITABLE,
    StoredTable,
    is_read_only,
    mismatch,
    unknown_version,
)

_OWNER = "velostream.table"
_SCHEMA = "velostream.schema"
"""In the table's configuration: whose it is, and its columns as we call them. A table without them is adopted."""
_CACHED_CONDITIONS = 1024
_MOST_ATTEMPTS = 100
"""Each that fails is somebody else's that succeeds."""


class DeltaTable(StoredTable):
    """See the module's text."""

    kind: ClassVar[str] = "delta"
    options: ClassVar[tuple[Option, ...]] = (
        Option("url", "folder or s3:// prefix of the tables, or a Delta table itself; default: the connection's own"),
        Option("table", "name of the table's folder there; default: the table's name"),
        Option("partition.by", "columns a,b by whose values rows are kept apart; default: those of the table there"),
        IF_EXISTS,
        ACCESS,
        *S3_OPTIONS,
    )
    capabilities: ClassVar[TableCapabilities] = replace(WRITABLE, versions=True)

    def __init__(self, spec: TableSpec, location: Location, *, read_only: bool) -> None:
        """Use `DeltaTable.open`."""
        self.name = spec.name
        self.schema = spec.schema
        self._id = spec.id
        self._read_only = read_only
        self._location = location
        self._codec = Codec(spec.schema)
        self._differ = Differ(spec.name, spec.schema)
        self._conditions = lru_cache(maxsize=_CACHED_CONDITIONS)(partial(DeltaCondition, schema=spec.schema))
        self._reading = DeltaLog(location)
        self._files = DataFiles(
            FileLayout(location, spec.name, spec.schema, self._reading.partition_columns), self._codec
        )
        self._reading_lock = threading.Lock()
        self._writing = DeltaLog(location)
        self._writing_lock = threading.RLock()
        self._exclusive_at: int | None = None
        """The version that commits of an exclusive stretch have to follow."""
        self._check_columns(Options(spec.options, self.options).text("partition.by"))
        owner = self._reading.configuration.get(_OWNER)
        self.origin = None if owner is None else Origin(owner, made=True)

    @classmethod
    def open(cls, spec: TableSpec) -> DeltaTable:
        options = Options(spec.options, cls.options)
        location = _location(spec, options)
        if is_read_only(options):
            if not DeltaLog.exists(location):
                raise NotFoundError.of("table", str(location))
            return cls(spec, location, read_only=True)
        if DeltaLog.exists(location) and DeltaLog(location).configuration.get(_OWNER) != spec.id:
            match options.text("if.exists"):
                case "fail":
                    raise AlreadyExistsError.of("table", str(location))
                case "replace":
                    _remove(location)
        partition_by = options.text("partition.by")
        if not DeltaLog.exists(location):
            configuration = {_OWNER: spec.id, _SCHEMA: json.dumps(spec.schema.to_json())}
            names = () if partition_by is None else check_partition_columns(partition_by, spec.schema)
            DeltaLog.create(location, Codec(spec.schema).encoded, configuration, partition_by=names)
        return cls(spec, location, read_only=False)

    @property
    def version(self) -> int:
        return self._newest().data_version

    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        self._check_writable(write)
        staged = staged_files(write.staged, self._files.layout)
        try:
            with self._writing_lock:
                done, used = self._commit(write, staged, epoch)
        except TableError:
            # For good. What the store refused may be tried again with the same files.
            self._files.remove(staged)
            raise
        if not used:
            self._files.remove(staged)
        return done

    def stager(self) -> FileStager | None:
        return None if self._read_only else FileStager(self._files.layout, f"{self._newest().version + 1:020}")

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Other processes can't be held off: when one has committed meanwhile, the commit is a conflict."""
        with self._writing_lock:
            outermost = self._exclusive_at is None
            if outermost:
                self._exclusive_at = self._writing.newest().version
            try:
                yield
            finally:
                if outermost:
                    self._exclusive_at = None

    def snapshot(self, version: int | None = None) -> DeltaSnapshot:
        state = self._newest() if version is None else self._at(version)
        return DeltaSnapshot(self.name, self.schema, state=state, files=self._files, compile_condition=self._conditions)

    def version_at(self, instant: datetime) -> int:
        """By the times of the log, which begin with the making of the table."""
        with self._reading_lock:
            self._reading.newest()
            found = self._reading.version_at(instant)
        if found is None:
            raise TableError.no_version_at(self.name, instant)
        return found

    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        end = self._newest() if until is None else self._at(until)
        start = self._at(since)
        if start.version > end.version:
            raise unknown_version(self.name, since, end.data_version)
        before, after = set(start.files), set(end.files)
        removed = self._files.read([file for file in start.files if file not in after])
        added = self._files.read([file for file in end.files if file not in before])
        return ChangeBatch(end.data_version, changed_rows(self.schema, removed, added).signed())

    def compile_condition(self, condition: Expression) -> DeltaCondition:
        return self._conditions(condition)

    def drop(self) -> None:
        if not self._read_only and self._writing.configuration.get(_OWNER) == self._id:
            _remove(self._location)

    def _commit(self, write: Write, staged: Sequence[DataFile], epoch: Epoch | None) -> tuple[int, bool]:
        """The version that holds a write, and whether its staged files are files of the table now."""
        for _ in range(_MOST_ATTEMPTS):
            state = self._writing.newest()
            if epoch is not None and self._is_repeat(epoch):
                return state.data_version, False
            if self._exclusive_at not in (None, state.version):
                raise TableError.conflict(self.name)
            files = FilesToChange(self.schema, state, self._files)
            taken = staged if self._can_be_taken(staged, write, files) else ()
            whole = replace(write, rows=self._with_staged(write, staged)) if staged and not taken else write
            difference = self._difference(whole, files)
            if difference.empty and not taken and epoch is None:
                return state.data_version, False
            try:
                return self._committed(state, files, difference, epoch, taken), bool(taken)
            except LostRace:
                continue
        raise TableError.conflict(self.name)

    def _can_be_taken(self, staged: Sequence[DataFile], write: Write, files: FilesToChange) -> bool:
        """Whether staged files can become files of the table as they are: no key is among them twice or there."""
        if not staged or not self.schema.key:
            return bool(staged)
        if write.rows.num_rows:
            return False
        keys = self._files.read(staged, columns=self.schema.key)
        distinct = len(set(key_values(keys, self.schema.key))) == keys.num_rows
        return distinct and not files.of_keys(keys).rows.num_rows

    def _with_staged(self, write: Write, staged: Sequence[DataFile]) -> pa.Table:
        given = conform(write.rows, table=self.name, schema=self.schema)
        return pa.concat_tables([self._files.read(staged), given])

    def _newest(self) -> LogState:
        with self._reading_lock:
            return self._reading.newest()

    def _at(self, version: int) -> LogState:
        with self._reading_lock:
            newest = self._reading.newest()
            if version > newest.version:
                raise unknown_version(self.name, version, newest.data_version)
            found = self._reading.at(version)
        # Files of the newest version are surely there; VACUUM removes the others in time.
        if found is None or not self._files.exist(set(found.files) - set(newest.files)):
            raise TableError.version_gone(self.name, version, oldest=newest.data_version)
        return found

    def _is_repeat(self, epoch: Epoch) -> bool:
        last = self._writing.last_epoch(epoch.writer)
        return last is not None and epoch.number <= last

    def _difference(self, write: Write, files: FilesToChange) -> Difference:
        difference = self._differ.difference(write, files)
        if write.mode is Mode.APPEND and self.schema.key and difference.added.num_rows:
            taken = files.of_keys(difference.added.select(list(self.schema.key)))
            if taken.rows.num_rows:
                raise self._differ.duplicate_key(taken.rows, 0)
        return difference

    def _committed(
        self,
        state: LogState,
        files: FilesToChange,
        difference: Difference,
        epoch: Epoch | None,
        staged: Sequence[DataFile],
    ) -> int:
        unchanged = difference.empty and not staged
        if unchanged:
            self._writing.commit(state, added=(), removed=(), epoch=epoch)
        else:
            removed, rows = files.rewritten(difference)
            added = self._files.write(rows, version=state.version + 1)
            try:
                self._writing.commit(state, added=[*added, *staged], removed=removed, epoch=epoch)
            except Exception:
                if not self._writing.may_name(added, after=state):
                    self._files.remove(added)
                raise
        if self._exclusive_at is not None:
            self._exclusive_at = state.version + 1
        done = self._writing.newest()
        self._files.forget_all_but(done.files)
        return state.data_version if unchanged else state.version + 1

    def _check_columns(self, partition_by: str | None) -> None:
        """Raises `StateError` when what is there has other columns, or can't be read here."""
        known = self._reading.configuration.get(_SCHEMA)
        there = self._reading.columns(read_only=self._read_only)
        if known is not None:
            same = json.loads(known) == self.schema.to_json()
        else:
            same = there.names == self._codec.encoded.names and there.types == self._codec.encoded.types
        if not same:
            stored = ", ".join(f"{field.name} {field.type}" for field in there)
            raise mismatch(self.kind, self.name, [f"stored: {stored}"])
        apart = self._reading.partition_columns
        if partition_by is not None and check_partition_columns(partition_by, self.schema) != apart:
            raise mismatch(self.kind, self.name, [f"it is partitioned by: {', '.join(apart) or 'nothing'}"])


def _location(spec: TableSpec, options: Options) -> Location:
    """Where the table is: at `url` itself if that is a Delta table, else in a folder there."""
    url, name = options.text("url"), options.text("table")
    if url is None:
        if spec.directory is None:
            raise OptionError(
                'kind "delta" needs the option "url"', hint="WITH ('url' = '/data/lake')", code="missing-option"
            )
        return Location.local(spec.directory / "delta")
    folder = Location.of(url, options)
    return folder if name is None and DeltaLog.exists(folder) else folder / (name or spec.name)


def _remove(location: Location) -> None:
    with wrapped_errors(location):
        location.remove_all()
