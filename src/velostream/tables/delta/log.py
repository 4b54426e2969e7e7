"""The log of a Delta table: its versions, the files each of them consists of, and commits.

The one place that knows the package `deltalake`. A commit names the version it was worked out from and fails when
anybody, in this process or another, has committed since; nothing is merged behind our back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from velostream.errors import StateError, StoreError
from velostream.model.change import Epoch
from velostream.tables.delta import location as locations
from velostream.tables.delta.location import Location
from velostream.tables.delta.partitions import is_partitionable, partition_text

if TYPE_CHECKING:
    import deltalake

_FEATURES = frozenset({"timestampNtz", "appendOnly", "invariants"})
"""Of all that Delta may ask of readers and writers what we can do, or see to by refusing tables that make use of it."""
_UNKNOWN_PROPERTIES = ("delta.constraints.", "delta.enableChangeDataFeed", "delta.appendOnly")
_COLUMN_MAPPING = 2
"""The version of readers that stands for it, where features aren't listed by name."""
_UNKNOWN_MARKS = frozenset({"delta.invariants", "delta.generationExpression", "delta.identity.start"})


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a version. Files never change; a path is never used again."""

    path: str
    """As the log has it: relative to the table, or absolute, in the encoding of URIs."""
    rows: int | None
    """None: the writer hasn't said."""
    partition: tuple[Any, ...] = ()
    """The values that all of its rows have in the partition columns, which the file itself doesn't hold."""
    size: int = field(default=0, compare=False)
    """In bytes."""


@dataclass(frozen=True, slots=True)
class LogState:
    """What one version of a table consists of."""

    version: int
    """Of the log."""
    data_version: int
    """The last version, up to this one, that changed rows. What the rest of the package calls the version."""
    files: tuple[DataFile, ...]


class LostRace(Exception):  # noqa: N818 - no error: whoever gets it looks again
    """Somebody else's commit came first."""


class DeltaLog:
    """A table's log, as far as this object has read it. One thread at a time."""

    def __init__(self, location: Location) -> None:
        """The log there is at a location; `exists` tells whether there is one."""
        driver = import_driver()
        self.location = location
        with wrapped_errors(location):
            self._table: deltalake.DeltaTable = driver.DeltaTable(
                str(location), storage_options=location.storage_options
            )
        self._state: LogState | None = None

    @staticmethod
    def exists(location: Location) -> bool:
        driver = import_driver()
        with wrapped_errors(location):
            return bool(driver.DeltaTable.is_deltatable(str(location), storage_options=location.storage_options))

    @staticmethod
    def create(
        location: Location, schema: pa.Schema, configuration: Mapping[str, str], *, partition_by: Sequence[str]
    ) -> None:
        """Make an empty table; nothing happens when another process has made one in the meantime."""
        driver = import_driver()
        with wrapped_errors(location):
            driver.DeltaTable.create(
                str(location),
                schema,
                mode="ignore",
                partition_by=list(partition_by),
                configuration=configuration,
                storage_options=location.storage_options,
                raise_if_key_not_exists=False,
            )

    @property
    def configuration(self) -> Mapping[str, str]:
        return self._table.metadata().configuration

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return tuple(self._table.metadata().partition_columns)

    def columns(self, *, read_only: bool) -> pa.Schema:
        """The columns the table has. Raises `StateError` when it asks more of readers or writers than we can do."""
        beyond = sorted(self._beyond_reading() if read_only else self._beyond_reading() | self._beyond_writing())
        if beyond:
            raise StateError(
                f'the Delta table at "{self.location}" can\'t be a table of this kind',
                detail=f"it uses: {', '.join(beyond)}",
                code="schema-mismatch",
            )
        return pa.schema(self._table.schema().to_arrow())

    def _beyond_reading(self) -> set[str]:
        """What the table makes use of that we would misread."""
        protocol = self._table.protocol()
        beyond = set(protocol.reader_features or ()) - _FEATURES
        if protocol.min_reader_version == _COLUMN_MAPPING:
            beyond.add("columnMapping")
        return beyond

    def _beyond_writing(self) -> set[str]:
        """What the table makes use of that our commits would break."""
        beyond = set(self._table.protocol().writer_features or ()) - _FEATURES
        beyond |= {
            name
            for name, value in self.configuration.items()
            if name.startswith(_UNKNOWN_PROPERTIES) and value != "false"
        }
        for column in self._table.schema().fields:
            beyond |= _UNKNOWN_MARKS & set(column.metadata)
        types = pa.schema(self._table.schema().to_arrow())
        beyond |= {
            f"partitions by {name} {types.field(name).type}"
            for name in self.partition_columns
            if not is_partitionable(types.field(name).type)
        }
        return beyond

    def newest(self) -> LogState:
        """The newest version there is, other writers' included."""
        with wrapped_errors(self.location):
            self._table.update_incremental()
            if self._state is None or self._table.version() != self._state.version:
                version = self._table.version()
                files = _files_of(self._table, self.partition_columns)
                self._state = LogState(version, self._data_version(version, self._state), files)
        return self._state

    def at(self, version: int) -> LogState | None:
        """An older version; None when the log doesn't reach back to it any more."""
        if self._state is not None and self._state.data_version <= version <= self._state.version:
            return self._state
        if version < 0:
            return None
        driver = import_driver()
        with wrapped_errors(self.location):
            try:
                table = driver.DeltaTable(
                    str(self.location), version=version, storage_options=self.location.storage_options
                )
            except driver.exceptions.DeltaError:
                return None
            return LogState(version, self._data_version(version), _files_of(table, self.partition_columns))

    def version_at(self, instant: datetime) -> int | None:
        """The last version of the one that `newest` gave that was made at or before an instant; None: none was.

        By the times that the writers noted in their commits, which never decrease.
        """
        milliseconds = int(instant.timestamp() * 1000)
        newest = self._table.version()
        with wrapped_errors(self.location):
            oldest = self._oldest_commit(newest)
            below, above = oldest - 1, newest
            while below < above:
                middle = (below + above + 1) // 2
                if self._committed_at(middle) <= milliseconds:
                    below = middle
                else:
                    above = middle - 1
        return below if below >= oldest else None

    def last_epoch(self, writer: str) -> int | None:
        """The writer's last epoch in the version that `newest` gave."""
        with wrapped_errors(self.location):
            return self._table.transaction_version(_application(writer))

    def commit(
        self, read: LogState, *, added: Sequence[DataFile], removed: Sequence[DataFile], epoch: Epoch | None
    ) -> None:
        """Make the version after the one that was read, with its epoch. Raises `LostRace` when there is one already."""
        driver = import_driver()
        now = int(time.time() * 1000)
        actions: list[Any] = [
            driver.transaction.AddAction(
                path=file.path,
                size=file.size,
                partition_values=dict(zip(self.partition_columns, map(partition_text, file.partition), strict=True)),
                modification_time=now,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in added
        ]
        actions += [
            driver.transaction.RemoveAction(path=unquote(file.path), data_change=True, deletion_timestamp=now)
            for file in removed
        ]
        if self._table.version() != read.version:
            raise LostRace
        properties = driver.CommitProperties(
            max_commit_retries=0,
            app_transactions=None if epoch is None else [driver.Transaction(_application(epoch.writer), epoch.number)],
        )
        with wrapped_errors(self.location):
            try:
                self._table.create_write_transaction(
                    actions,
                    "append",
                    self._table.schema(),
                    partition_by=list(self.partition_columns),
                    commit_properties=properties,
                )
            except driver.exceptions.CommitFailedError as error:
                self._table.update_incremental()
                if self._table.version() == read.version:
                    raise
                raise LostRace from error

    def may_name(self, files: Sequence[DataFile], *, after: LogState) -> bool:
        """Whether a commit of these files that failed may be in the log all the same, which is as the next version.

        `after` is the version it was worked out from.
        """
        try:
            commit = self.location.read_text(_commit_file(after.version + 1))
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return any(file.path in commit for file in files)

    def _data_version(self, version: int, known: LogState | None = None) -> int:
        """The last version, up to the one given, that changed rows; none before `known` has to be looked for.

        Read from the commits themselves: `DeltaTable.history` of deltalake 1.6 numbers the newest commits by the
        version that is loaded.
        """
        first = 0 if known is None else known.version
        for number in range(version, first, -1):
            actions = self._actions(number)
            if actions is None or _changed_rows(actions):
                # A commit that the log has dropped is as good as any: its rows are in all versions there are.
                return number
        return 0 if known is None else known.data_version

    def _actions(self, version: int) -> list[dict[str, Any]] | None:
        """What a commit says; None when the log has dropped it."""
        try:
            lines = self.location.read_text(_commit_file(version)).splitlines()
        except FileNotFoundError:
            return None
        return [json.loads(line) for line in lines if line.strip()]

    def _oldest_commit(self, newest: int) -> int:
        """The first version whose commit the log still has; from there on it has all."""
        below, above = 0, newest
        while below < above:
            middle = (below + above) // 2
            if self.location.exist([_commit_file(middle)]):
                above = middle
            else:
                below = middle + 1
        return below

    def _committed_at(self, version: int) -> int:
        """When a commit was made, in milliseconds: as its writer noted it."""
        for action in self._actions(version) or ():
            noted = action.get("commitInfo")
            if noted is not None:
                return int(noted.get("inCommitTimestamp") or noted.get("timestamp") or 0)
        return 0


def _commit_file(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def import_driver() -> Any:
    """The package `deltalake`; `StoreError` naming the extra when it isn't installed."""
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError as error:
        raise StoreError.missing_driver("delta", module="deltalake", extra="delta") from error
    return deltalake


@contextmanager
def wrapped_errors(location: Location) -> Iterator[None]:
    """Around whatever asks the log."""
    with locations.wrapped_errors(location, import_driver().exceptions.DeltaError):
        yield


def _application(writer: str) -> str:
    return f"velostream:{writer}"


def _files_of(table: deltalake.DeltaTable, partition_columns: Sequence[str]) -> tuple[DataFile, ...]:
    actions = pa.table(table.get_add_actions(flatten=True))
    paths = actions.column("path").to_pylist()
    rows = actions.column("num_records").to_pylist() if "num_records" in actions.column_names else [None] * len(paths)
    values = [actions.column(f"partition.{name}").to_pylist() for name in partition_columns]
    partitions = zip(*values, strict=True) if values else [()] * len(paths)
    files = (DataFile(path, count, tuple(held)) for path, count, held in zip(paths, rows, partitions, strict=True))
    return tuple(sorted(files, key=lambda file: file.path))


def _changed_rows(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a commit added or removed rows; one that records an epoch, or only moves rows, did not."""
    return any((action.get("add") or action.get("remove") or {}).get("dataChange") for action in actions)
