"""Database servers: what their dialects share, and tables that may have a replica to read from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from velostream.model.options import Option, Options
from velostream.model.server import SERVER_OPTIONS, ServerAddress
from velostream.tables.base import KeyValue, Row, TableSpec
from velostream.tables.relational.base import RELATIONAL_OPTIONS, RelationalTable, pool_settings
from velostream.tables.relational.database import Database
from velostream.tables.relational.dialect import Dialect, DriverConnection
from velostream.tables.relational.layout import Layout, StoredColumn
from velostream.tables.relational.opening import Opened
from velostream.tables.relational.reading import Reader
from velostream.tables.relational.snapshot import RelationalSnapshot


class ServerDialect(Dialect):
    """A server's store: an address with a password, and connections that must be asked whether they are alive."""

    finds_nulls_apart: ClassVar[bool] = True

    def __init__(self, address: ServerAddress, *, settings: object) -> None:
        """`settings` are all that `connect` uses beside the address."""
        self._address = address
        self._settings = settings

    @property
    def address(self) -> str:
        return str(self._address)

    @property
    def connection_arguments(self) -> object:
        return self._address.password, self._settings

    def sum_expression(self, layout: Layout, column: StoredColumn, name: str) -> str | None:
        # Servers sum integers and decimals as decimals with room to spare. What they order otherwise is no number.
        return f"SUM({name})" if column.codec.order == "{}" else None

    def alive(self, connection: DriverConnection) -> bool:
        self.run(connection, "SELECT 1")
        return True


class ServerTable(RelationalTable):
    """A table of a server at an address.

    With `read.replica.url` snapshots are read from the replica, at the version that has arrived there. Commits, and
    what is read in order to commit (`exclusive`), stay with the server itself.
    """

    schemes: ClassVar[tuple[str, ...]]
    """Of URLs, the one to show first."""
    port: ClassVar[int]
    options: ClassVar[tuple[Option, ...]] = (*RELATIONAL_OPTIONS, *SERVER_OPTIONS)

    def __init__(self, database: Database, opened: Opened, *, name: str, options: Options) -> None:
        super().__init__(database, opened, name=name, options=options)
        self._replica: Database | None = None
        if "read.replica.url" in options:
            replica = self.dialect_at(self._replica_address(options), options)
            self._replica = Database.shared(replica, pool_settings(options))
            self._replica_reader = Reader(self._replica.dialect, opened.layout)

    @classmethod
    @abstractmethod
    def dialect_at(cls, address: ServerAddress, options: Options) -> Dialect:
        """The dialect of a server. Raises `StoreError.missing_driver`."""

    @classmethod
    def dialect_of(cls, spec: TableSpec, options: Options) -> Dialect:  # noqa: ARG003 - the seam's
        return cls.dialect_at(ServerAddress.of(options, schemes=cls.schemes, port=cls.port), options)

    def snapshot(self, version: int | None = None) -> RelationalSnapshot:
        if self._replica is None or version is not None or self._database.is_exclusive:
            return super().snapshot(version)
        return self._at_replica(self._replica, self._replica.read(self._version) if self._has_entry else 0)

    def get(self, key: KeyValue) -> Row | None:
        if self._replica is None or self._database.is_exclusive:
            return super().get(key)
        return self._at_replica(self._replica, 0).get(key)

    def contains(self, key: KeyValue) -> bool:
        if self._replica is None or self._database.is_exclusive:
            return super().contains(key)
        return self._at_replica(self._replica, 0).contains(key)

    def is_indexed(self, columns: Sequence[str]) -> bool:
        """Whether an index over exactly these columns is known."""
        return tuple(column.name for column in self._layout.select(columns)) in self._reader.conditions.indexes

    def close(self) -> None:
        replica, self._replica = self._replica, None
        if replica is not None:
            replica.release()
        super().close()

    def _at_replica(self, replica: Database, version: int) -> RelationalSnapshot:
        return RelationalSnapshot(replica, self._replica_reader, name=self.name, version=version)

    @classmethod
    def _replica_address(cls, options: Options) -> ServerAddress:
        """As the URL says; who connects is the same if it doesn't."""
        named = {name: options[name] for name in ("username", "password") if name in options}
        asked = Options({"url": options["read.replica.url"], **named}, cls.options)
        return ServerAddress.of(asked, schemes=cls.schemes, port=cls.port)
