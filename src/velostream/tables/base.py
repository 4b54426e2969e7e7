"""The table seam: one contract for every kind of store.

A `Table` takes commits and gives snapshots. Everything else (conveniences, SQL, views) is built on those two.
What a kind can do is said once, in its `TableCapabilities`; the engine refuses by that object, the docs are generated
from it and the conformance suite runs by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import pyarrow as pa

from velostream.errors import UnsupportedError
from velostream.model.change import ChangeBatch, Epoch, Mode, Write
from velostream.model.expression import Expression
from velostream.model.grouping import Grouping
from velostream.model.options import Option
from velostream.model.schema import Schema
from velostream.model.variant import holds_variant

KeyValue = Any
"""A scalar, or a tuple for a composite key."""


@dataclass(frozen=True, slots=True)
class TableCapabilities:
    """What a kind of table can do; the default is "cannot"."""

    insert: bool = False
    update: bool = False
    delete: bool = False
    upsert: bool = False
    lookup: bool = False
    conditions: bool = False
    epochs: bool = False
    transactions: bool = False
    changes: bool = False
    """`changes(since)` tells what became of every row since a version, so views over the table follow it."""
    versions: bool = False
    """Older versions can be read, so a replayed batch sees what it saw, and a snapshot stays as it is. Without it every
    call of a snapshot answers from one version, but that is the newest at the time of the call.
    """
    durable: bool = False
    variants: bool = False
    """Columns may be VARIANT, or have it inside."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table as a statement declares it."""

    id: str
    """Never given to another table: a table dropped and made again under its old name has a new one."""
    name: str
    schema: Schema
    options: Mapping[str, str] = field(default_factory=dict)
    directory: Path | None = None
    """Where the table may keep files of its own, and finds them again; None: nothing need outlive the process."""


@dataclass(frozen=True, slots=True)
class Origin:
    """How a table came to be in its store."""

    id: str
    """The `TableSpec.id` of the one that made or adopted it first; only that one's `drop` removes anything."""
    made: bool
    """It was made, and has no rows but those written through us; else it was there before."""


class Row(Mapping[str, Any]):
    """One row as a mapping. Kinds give their own, decoding a field when it is asked for."""

    __slots__ = ()

    @abstractmethod
    def as_dict(self) -> dict[str, Any]: ...


class Rows(Sequence[Row]):
    """The rows of an answer, decoded when they are looked at: as long as they are only counted, none is."""

    __slots__ = ()

    @abstractmethod
    def arrow(self) -> pa.Table:
        """All of them as Arrow."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


class CompiledCondition(Protocol):
    """A condition in the form the store runs."""

    @property
    def access(self) -> str:
        """How rows are found: "key", "index" or "scan"."""

    @property
    def remainder(self) -> Expression | None:
        """What the store can't evaluate itself and we apply on top; None when it does all of it."""


@dataclass(frozen=True, slots=True)
class TableWrites:
    """What a transaction does to one of its tables, in order."""

    table: Table
    writes: Sequence[Write]
    read_at: int | None = None
    """The version the transaction has read; a commit by anyone else since then is a conflict. None: it read nothing."""


class ScanPart(Protocol):
    """A share of a snapshot's rows that any process can read by itself. Goes to Spark's workers as it is."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows, with the columns that `Snapshot.parts` was asked for."""


class RowStager(Protocol):
    """Puts rows into a store ahead of the commit that makes them rows of a table. Goes to Spark's workers as it is."""

    def stage(self, rows: pa.Table, *, part: int) -> Sequence[str]:
        """What `Write.staged` has to have for these rows, which have the table's columns. `part` orders the shares.

        May be called again for the same rows after a failure; what was given before then never comes to be committed.
        """


class Snapshot(ABC):
    """A view of one version. Holds no lock; every method may be called from any thread.

    It never changes where the kind keeps older states: memory, Delta, MongoDB. Relational stores and Redis keep none:
    there each call sees the newest rows, all of one state, and `version` is the one the table had when the snapshot was
    taken. Who needs several calls to see one state makes them within `Table.exclusive()`.
    """

    schema: Schema
    version: int

    @abstractmethod
    def get(self, key: KeyValue) -> Row | None:
        """The row of a key; `TableError.without_key` on a bag."""

    @abstractmethod
    def contains(self, key: KeyValue) -> bool: ...

    @abstractmethod
    def lookup(self, keys: pa.Array | pa.ChunkedArray | pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of the keys found, in the order of the keys; a composite key is a table with the key's columns.

        The result has a first column `_position` (int64): which of the given keys each row answers. A NULL key matches
        nothing.
        """

    def lookup_by(
        self,
        on: Sequence[str],
        keys: pa.Array | pa.ChunkedArray | pa.Table,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Like `lookup`, by other columns than the key: every row that has the values. A kind that can't refuses."""
        raise UnsupportedError(
            f"rows can't be looked up by {', '.join(on)} in this kind of table", code="unsupported-capability"
        )

    @abstractmethod
    def scan(self, condition: Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows for which the condition is true, in a stable order, as Arrow."""

    def parquet_files(self) -> Sequence[str] | None:
        """Paths of Parquet files of this machine that have all rows and nothing else, columns by their names.

        Spark reads them itself, so they have to stay for as long as the version can be read. None: there are none.
        """
        return None

    def parts(
        self, condition: Expression | None = None, columns: Sequence[str] | None = None
    ) -> Sequence[ScanPart] | None:
        """The rows of `scan` in shares, for Spark's workers to read; None where only `scan` gives them."""
        return None

    @abstractmethod
    def count(self, condition: Expression | None = None) -> int: ...

    def group(self, grouping: Grouping) -> pa.Table | None:
        """A row for each group, with the columns of `Grouping.answer_schema`, in any order; worked out by the store.

        None where the store might answer otherwise than Spark, or can't: the rows have to be read and grouped then.
        """
        return None

    def find(self, condition: Expression) -> Rows | None:
        """The rows of `scan`, each read when it is asked for; None from a kind that reads them all at once."""
        return None

    @abstractmethod
    def batches(self, size: int, offset: int = 0) -> Iterator[pa.RecordBatch]:
        """All rows from the `offset`-th on, in the order of `scan`, in batches of at most `size`."""


class Table(ABC):
    """One table. Reads and writes may come from many threads; commits are serialised by the kind."""

    kind: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    capabilities: ClassVar[TableCapabilities] = TableCapabilities()

    name: str
    schema: Schema
    origin: Origin | None = None
    """What the store knew of the table when it was opened; None where nothing is kept about it."""

    @classmethod
    @abstractmethod
    def open(cls, spec: TableSpec) -> Self:
        """Make the table in its store, or find the one that is there, with its rows, versions and epochs.

        Raises `OptionError` for an option the kind doesn't know, and `StateError` when what is there has other columns.
        """

    @classmethod
    def refuse_variants(cls, schema: Schema) -> None:
        """Raise `UnsupportedError` for a column with VARIANTs where the kind doesn't claim to hold them."""
        column = next((column for column in schema.columns if holds_variant(column.type)), None)
        if column is not None and not cls.capabilities.variants:
            raise UnsupportedError(
                f'column "{column.name}" is {column.sql_type}, which tables of the kind "{cls.kind}" can\'t hold',
                hint=f"keep it as text: to_json({column.name})",
                code="unsupported-type",
            )

    @property
    @abstractmethod
    def version(self) -> int:
        """Sequence number of the last commit that changed this table."""

    @abstractmethod
    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        """Apply a write, all of it or nothing, together with its epoch. Gives the version that holds it.

        An epoch not above the writer's last one is a repeat: nothing changes and the present version is given.
        """

    def stager(self) -> RowStager | None:
        """For writing many rows from where they are computed, by `Mode.APPEND` and `Mode.UPSERT`.

        None: all rows come with the write.
        """
        return None

    def write_records(self, mode: Mode, records: Sequence[Mapping[str, Any]]) -> bool:
        """Commit a few rows for `Mode.APPEND` or `Mode.UPSERT` straight from Python, without their detour over Arrow.

        False, with nothing done, when they have to come as a `Write`: because the kind knows no other way, there are
        many of them, or a value isn't of its column's type yet.
        """
        return False

    def update_records(self, records: Sequence[Mapping[str, Any]]) -> int | None:
        """Give existing rows new values, as one commit: each record has the key and the columns to change.

        How many rows there are; None, with nothing done, when it has to be a `Write`.
        """
        return None

    def delete_keys(self, keys: Sequence[KeyValue]) -> int | None:
        """Remove the rows of a few keys, as one commit; how many there were. None when it has to be a `Write`."""
        return None

    @property
    def commit_group(self) -> object:
        """Tables whose groups are equal can be committed in one atomic step, by `commit_together` of any of them.

        A database with its tables is one group; the default, a group of one's own, is right for a kind without
        transactions.
        """
        return self

    def commit_together(self, parts: Sequence[TableWrites], epoch: Epoch | None = None) -> None:
        """Apply the writes of several tables of this group, all or nothing, together with the epoch.

        A repeat of the epoch changes nothing. Raises `TableError.conflict`, which is retriable, when a table has a
        commit after the part's `read_at`. A kind that claims `transactions` gives one; the default refuses.
        """
        raise UnsupportedError.capability(self.kind, "transactions")

    def follow(self) -> int:
        """Keep what changes from now on, so that `changes(since)` answers for the version given back and later ones.

        Durable, and free to call again. Kinds that always keep their changes have nothing to do.
        """
        if not self.capabilities.changes:
            raise UnsupportedError.capability(self.kind, "changes")
        return self.version

    def stamp(self) -> str | None:
        """A cheap token that differs once anyone, other writers of the store included, may have changed the rows.

        None when the store can't tell; whoever must know then reads the table again.
        """
        return str(self.version)

    def get(self, key: KeyValue) -> Row | None:
        """The newest row of a key."""
        return self.snapshot().get(key)

    def contains(self, key: KeyValue) -> bool:
        return self.snapshot().contains(key)

    @abstractmethod
    def snapshot(self, version: int | None = None) -> Snapshot:
        """The newest version, or an older one; `TableError.version_gone` when it isn't kept."""

    def version_at(self, instant: datetime) -> int:
        """What to give to `snapshot` for the state that the table had at an instant, which has a zone and is past.

        `TableError.no_version_at` from before its first commit, or when it isn't kept. A kind that doesn't know when
        its versions were made refuses.
        """
        raise UnsupportedError.capability(self.kind, "timestamps of versions")

    @abstractmethod
    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        """The net signed change after version `since` up to `until` (newest), -1 rows before +1 rows.
        `TableError.version_gone` when `since` isn't kept.
        """

    @abstractmethod
    def compile_condition(self, condition: Expression) -> CompiledCondition:
        """Turn a condition into what this store runs, once; cached by the kind."""

    def compile_grouping(self, grouping: Grouping) -> str | None:
        """What the store runs for `Snapshot.group`, to be shown; None where it isn't asked."""
        return None

    def create_index(self, columns: Sequence[str]) -> None:
        """Make rows with given values of these columns quick to find, from now on; one that is there is no error.

        A kind that can't refuses.
        """
        raise UnsupportedError.capability(self.kind, "indexes")

    def drop_index(self, columns: Sequence[str]) -> None:
        """Give up what `create_index` made; lookups by these columns work on."""
        raise UnsupportedError.capability(self.kind, "indexes")

    def stats(self) -> Mapping[str, Any]:
        """Figures of the table by name: at least `rows` and `version`, `bytes` where it is known."""
        return {"rows": self.snapshot().count(), "version": self.version}

    def exclusive(self) -> AbstractContextManager[None]:
        """Hold off all other commits, for reading something and committing what follows from it. Re-entrant.

        A kind that claims `update` or `delete` gives one; the default refuses.
        """
        raise UnsupportedError.capability(self.kind, "update")

    def drop(self) -> None:
        """Remove from the store what `open` made there, rows included.

        What was adopted stays, be it a user's table or one that was made under another `TableSpec.id`.
        """

    def close(self) -> None:
        """Give back what is held."""
