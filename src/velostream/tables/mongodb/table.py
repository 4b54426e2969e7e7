"""The kind `mongodb`: a table is a collection, a commit a transaction over it and what is kept about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Self

from velostream.errors import StoreError, TableError, UnsupportedError
from velostream.model.change import Epoch, Write
from velostream.model.expression import Expression
from velostream.model.grouping import Grouping
from velostream.model.options import Option, Options
from velostream.tables.base import Table, TableCapabilities, TableSpec, TableWrites
from velostream.tables.change_log import Changes, net_changes
from velostream.tables.documents import (
    CACHED_CONDITIONS,
    DOCUMENT_OPTIONS,
    DocumentTable,
    connect_timeout,
    credentials_of,
    dropped,
    url_of,
)
from velostream.tables.mongodb.client import KIND, Connection
from velostream.tables.mongodb.condition import MongodbCondition, compile_filter
from velostream.tables.mongodb.grouping import compile_grouping
from velostream.tables.mongodb.metadata import TABLES, Metadata, TableState
from velostream.tables.mongodb.opening import Opening
from velostream.tables.mongodb.reader import Reader
from velostream.tables.mongodb.snapshot import MongodbSnapshot
from velostream.tables.mongodb.watch import Watch
from velostream.tables.mongodb.writer import Writer
from velostream.tables.stored import WRITABLE, pool_size, retry_timeout


class MongodbTable(DocumentTable):
    """A collection of a database on a replica set."""

    kind: ClassVar[str] = KIND
    options: ClassVar[tuple[Option, ...]] = (
        *DOCUMENT_OPTIONS,
        Option("index", "columns to index: a,b is one index of two columns, a;b are two indexes"),
    )
    capabilities: ClassVar[TableCapabilities] = replace(WRITABLE, transactions=True)

    def __init__(self, spec: TableSpec, options: Options, connection: Connection, opened: Opening) -> None:
        """Use `open`."""
        super().__init__(spec, options, incarnation=opened.incarnation)
        self.collection = opened.collection
        self.origin = opened.origin
        self._connection = connection
        self._patience = retry_timeout(options)
        self._layout = opened.layout
        self._metadata = Metadata(connection.database)
        self._watch = Watch(connection, opened.collection)
        self._compiled = lru_cache(CACHED_CONDITIONS)(self._compile)

    @classmethod
    def open(cls, spec: TableSpec) -> Self:
        options = Options(spec.options, cls.options)
        url = url_of(cls.kind, options, example="mongodb://localhost:27017/shop?replicaSet=rs0")
        try:
            import pymongo  # noqa: F401
        except ImportError as error:
            raise StoreError.missing_driver(cls.kind, module="pymongo", extra="mongodb") from error
        connection = Connection.to(
            url,
            credentials=credentials_of(options),
            timeout=connect_timeout(options),
            pool_size=pool_size(options) or 1,
        )
        try:
            with connection.told():
                return cls(spec, options, connection, Opening.of(spec, options, connection))
        except BaseException:
            connection.close()
            raise

    @property
    def commit_group(self) -> object:
        return self._connection.group

    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        return self._commit([TableWrites(self, [write])], epoch)[self]

    def commit_together(self, parts: Sequence[TableWrites], epoch: Epoch | None = None) -> None:
        self._commit(parts, epoch)

    def follow(self) -> int:
        self._refuse_if_read_only("changes")
        with self._connection.told():
            followed = self._metadata.follow(self.collection)
        return self._checked(followed).version

    def stamp(self) -> str | None:
        return self._watch.stamp()

    def snapshot(self, version: int | None = None) -> MongodbSnapshot:
        at, newest = self._connection.read(self._now)
        self._check_newest(version, newest)
        reader = Reader(self._connection, self.collection, self._layout, at=at)
        return MongodbSnapshot(self.name, reader, newest, compile_condition=self.compile_condition)

    def compile_condition(self, condition: Expression) -> MongodbCondition:
        return self._compiled(condition)

    def compile_grouping(self, grouping: Grouping) -> str | None:
        condition = None if grouping.condition is None else self._compiled(grouping.condition)
        pipeline = compile_grouping(grouping, condition, layout=self._layout)
        return None if pipeline is None else str(list(pipeline.stages))

    def create_index(self, columns: Sequence[str]) -> None:
        self._refuse_if_read_only("indexes")
        names = [self.schema.column(name).name for name in columns]
        with self._connection.told():
            self._connection.database[self.collection].create_index([(self._layout.paths[name], 1) for name in names])
        self._compiled.cache_clear()

    def drop_index(self, columns: Sequence[str]) -> None:
        self._refuse_if_read_only("indexes")
        wanted = [(self._layout.paths[self.schema.column(name).name], 1) for name in columns]
        with self._connection.told():
            collection = self._connection.database[self.collection]
            for name, index in collection.index_information().items():
                if list(index["key"]) == wanted and not index.get("unique") and wanted != [("_id", 1)]:
                    collection.drop_index(name)
        self._compiled.cache_clear()

    def stats(self) -> Mapping[str, Any]:
        def ask() -> Mapping[str, Any]:
            found = self._connection.database.command({"collStats": self.collection})
            cache = self._compiled.cache_info()
            return {
                "rows": found["count"],
                "bytes": found["size"],
                "stored_bytes": found.get("storageSize", 0),
                "version": self.version,
                "plan_cache_hits": cache.hits,
                "plan_cache_misses": cache.misses,
                "indexes": [list(columns) for columns in self._indexes()],
            }

        return self._connection.read(ask)

    def drop(self) -> None:
        if self._read_only:
            return
        with self._lock, self._connection.told():
            state = self._metadata.state(self.collection)
            if state is None or state.incarnation != self._incarnation or state.id != self._id:
                return
            if state.made:
                self._connection.database.drop_collection(self.collection)
            self._metadata.remove(self.collection)

    def _release(self) -> None:
        self._watch.close()
        self._connection.close()

    def _entry(self) -> TableState | None:
        return self._connection.read(lambda: self._metadata.state(self.collection))

    def _logged(self, since: int, until: int | None) -> tuple[TableState, Sequence[Changes]]:
        def ask() -> tuple[TableState, Sequence[Changes]]:
            with self._connection.client.start_session() as session, session.start_transaction():
                state = self._checked(self._metadata.state(self.collection, session=session))
                end = state.version if until is None else until
                return state, self._metadata.changes(self.collection, since, end, session=session)

        return self._connection.read(ask)

    def _commit(self, parts: Sequence[TableWrites], epoch: Epoch | None) -> dict[MongodbTable, int]:
        """The version of each table that holds its part."""
        by_table: dict[MongodbTable, list[TableWrites]] = {}
        for part in parts:
            by_table.setdefault(self._of_this_group(part.table), []).append(part)
        with ExitStack() as held:
            for table in sorted(by_table, key=lambda table: table.collection):
                table._check_writable(*(write for part in by_table[table] for write in part.writes))  # noqa: SLF001
                held.enter_context(table._lock)  # noqa: SLF001 - its own class
            versions = self._connection.transact(
                lambda session: {
                    table: table._apply(session, of_table, epoch)  # noqa: SLF001 - its own class
                    for table, of_table in by_table.items()
                },
                patience=self._patience,
            )
            for table, version in versions.items():
                if table._expected is not None:  # noqa: SLF001 - its own class
                    table._expected = version  # noqa: SLF001 - its own class
            return versions

    def _apply(self, session: Any, parts: Sequence[TableWrites], epoch: Epoch | None) -> int:
        """What a commit does to this table, within its transaction; the version that holds it."""
        state = self._checked(self._metadata.locked_state(self.collection, session=session))
        if epoch is not None and self._metadata.is_repeat(self.collection, epoch, session=session):
            return state.version
        for seen in (self._expected, *(part.read_at for part in parts)):
            if seen is not None and state.version > seen:
                raise TableError.conflict(self.name)
        reader = Reader(self._connection, self.collection, self._layout, session=session)
        writer = Writer(self._connection.database[self.collection], self._layout, self._differ, session)
        steps = []
        for write in (write for part in parts for write in part.writes):
            difference = self._differ.difference(write, reader)
            writer.write(difference)
            steps.append(Changes(difference.removed.rows, difference.added))
        version = self._record(steps, state, session)
        if epoch is not None:
            self._metadata.record_epoch(self.collection, epoch, session=session)
        return version

    def _record(self, steps: Sequence[Changes], state: TableState, session: Any) -> int:
        """Count and log what the steps amount to, if it is anything."""
        told = [step for step in steps if not step.empty]
        changes = told[0] if len(told) == 1 else net_changes(self.schema, told)
        if changes.empty:
            return state.version
        version = state.version + 1
        self._metadata.set_version(self.collection, version, session=session)
        if state.followed_from is not None:
            self._metadata.log(self.collection, version, changes, session=session)
            if version - self._history > state.followed_from:
                self._metadata.forget_before(self.collection, version - self._history, session=session)
        return version

    def _now(self) -> tuple[Any, int]:
        """An instant that reads can name, and the version at that instant."""
        asked = {"find": self.collection} if self._read_only else {"find": TABLES, "filter": {"_id": self.collection}}
        now = {**asked, "limit": 1, "readConcern": {"level": "snapshot"}}
        found = self._connection.database.command(now)["cursor"]
        if "atClusterTime" not in found:
            raise dropped(self.name)
        if self._read_only:
            return found["atClusterTime"], 0
        entry = found["firstBatch"][0] if found["firstBatch"] else None
        return found["atClusterTime"], self._checked(None if entry is None else TableState.of(entry)).version

    def _compile(self, condition: Expression) -> MongodbCondition:
        return compile_filter(condition, self._layout, self._indexes())

    def _indexes(self) -> list[tuple[str, ...]]:
        """Column sets that are found without a scan."""
        columns = {path: name for name, path in self._layout.paths.items()}

        def ask() -> list[tuple[str, ...]]:
            known = self._connection.database[self.collection].index_information().values()
            paths = [[path for path, _ in index["key"]] for index in known]
            return [tuple(columns[path] for path in found) for found in paths if all(path in columns for path in found)]

        return self._connection.read(ask)

    def _of_this_group(self, table: Table) -> MongodbTable:
        if not isinstance(table, MongodbTable) or table.commit_group != self.commit_group:
            refused = UnsupportedError.capability(self.kind, "transactions")
            refused.detail = f'tables "{self.name}" and "{table.name}" are in different stores'
            raise refused
        return table
