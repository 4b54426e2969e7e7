"""What the store keeps about tables next to their rows: versions, epochs, and the log of changes of those followed."""

from __future__ import annotations

import json
from dataclasses import dataclass

from velostream.model.change import Epoch
from velostream.model.schema import Schema
from velostream.tables.change_log import Changes
from velostream.tables.relational.dialect import Dialect, DriverConnection

TABLES = "_velostream_tables"
EPOCHS = "_velostream_epochs"
CHANGES = "_velostream_changes"


@dataclass(frozen=True, slots=True)
class TableState:
    """One table's entry."""

    id: str
    version: int
    schema: Schema
    made: bool
    """We made the table, and DROP removes it; else it is a user's."""
    followed_from: int | None
    """The oldest version whose changes since are kept; None: nobody follows the table."""


class Metadata:
    """Statements over the three tables; within the caller's transaction."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def create(self, connection: DriverConnection) -> None:
        dialect = self._dialect
        name, text, integer, data = dialect.name_type, dialect.text_type, dialect.integer_type, dialect.bytes_type
        for table, columns in {
            TABLES: f"name {name} NOT NULL PRIMARY KEY, id {name} NOT NULL, version {integer} NOT NULL, "
            f"columns {text} NOT NULL, made {integer} NOT NULL, followed_from {integer}",
            EPOCHS: f"table_name {name} NOT NULL, writer {name} NOT NULL, number {integer} NOT NULL, "
            "PRIMARY KEY (table_name, writer)",
            CHANGES: f"table_name {name} NOT NULL, version {integer} NOT NULL, changed {data} NOT NULL, "
            "PRIMARY KEY (table_name, version)",
        }.items():
            dialect.create_if_missing(connection, table, columns)

    def exists(self, connection: DriverConnection) -> bool:
        return self._dialect.declared(connection, TABLES) is not None

    def state(self, connection: DriverConnection, table: str, *, lock: bool = False) -> TableState | None:
        """The entry of a table; with `lock` nobody else commits to it before the transaction ends."""
        if lock and self._dialect.locks_by_update:
            unchanged = f"UPDATE {TABLES} SET version = version WHERE name = {self._marker(0)}"
            self._dialect.run(connection, unchanged, [table])
        statement = f"SELECT id, version, columns, made, followed_from FROM {TABLES} WHERE name = {self._marker(0)}"
        found = next(
            self._dialect.rows(connection, statement + (self._dialect.lock_clause if lock else ""), [table]), None
        )
        if found is None:
            return None
        id_, version, columns, made, followed_from = found
        return TableState(id_, version, Schema.from_json(json.loads(columns)), bool(made), followed_from)

    def version(self, connection: DriverConnection, table: str) -> int | None:
        found: int | None = self._dialect.scalar(
            connection, f"SELECT version FROM {TABLES} WHERE name = {self._marker(0)}", [table]
        )
        return found

    def add(self, connection: DriverConnection, table: str, state: TableState) -> None:
        markers = ", ".join(self._dialect.markers(6))
        self._dialect.run(
            connection,
            f"INSERT INTO {TABLES} (name, id, version, columns, made, followed_from) VALUES ({markers})",
            [table, state.id, state.version, json.dumps(state.schema.to_json()), int(state.made), state.followed_from],
        )

    def remove(self, connection: DriverConnection, table: str) -> None:
        for name, column in ((CHANGES, "table_name"), (EPOCHS, "table_name"), (TABLES, "name")):
            self._dialect.run(connection, f"DELETE FROM {name} WHERE {column} = {self._marker(0)}", [table])

    def set_version(self, connection: DriverConnection, table: str, version: int) -> None:
        self._update(connection, table, "version", version)

    def set_followed_from(self, connection: DriverConnection, table: str, version: int) -> None:
        self._update(connection, table, "followed_from", version)

    def epoch(self, connection: DriverConnection, table: str, writer: str) -> int | None:
        """The last number of a writer."""
        found: int | None = self._dialect.scalar(
            connection,
            f"SELECT number FROM {EPOCHS} WHERE table_name = {self._marker(0)} AND writer = {self._marker(1)}",
            [table, writer],
        )
        return found

    def set_epoch(self, connection: DriverConnection, table: str, epoch: Epoch, *, known: bool) -> None:
        if known:
            statement = (
                f"UPDATE {EPOCHS} SET number = {self._marker(0)} "
                f"WHERE table_name = {self._marker(1)} AND writer = {self._marker(2)}"
            )
        else:
            statement = (
                f"INSERT INTO {EPOCHS} (number, table_name, writer) VALUES ({', '.join(self._dialect.markers(3))})"
            )
        self._dialect.run(connection, statement, [epoch.number, table, epoch.writer])

    def log(self, connection: DriverConnection, table: str, version: int, changes: Changes) -> None:
        self._dialect.run(
            connection,
            f"INSERT INTO {CHANGES} (table_name, version, changed) VALUES ({', '.join(self._dialect.markers(3))})",
            [table, version, changes.encode()],
        )

    def forget(self, connection: DriverConnection, table: str, until: int) -> None:
        """Give up the changes up to a version."""
        self._dialect.run(
            connection,
            f"DELETE FROM {CHANGES} WHERE table_name = {self._marker(0)} AND version <= {self._marker(1)}",
            [table, until],
        )

    def logged(self, connection: DriverConnection, table: str, since: int, until: int) -> list[Changes]:
        """What each commit after `since` up to `until` changed."""
        found = self._dialect.rows(
            connection,
            f"SELECT changed FROM {CHANGES} WHERE table_name = {self._marker(0)} "
            f"AND version > {self._marker(1)} AND version <= {self._marker(2)} ORDER BY version",
            [table, since, until],
        )
        return [Changes.decode(bytes(data)) for (data,) in found]

    def _update(self, connection: DriverConnection, table: str, column: str, value: int) -> None:
        self._dialect.run(
            connection,
            f"UPDATE {TABLES} SET {column} = {self._marker(0)} WHERE name = {self._marker(1)}",
            [value, table],
        )

    def _marker(self, position: int) -> str:
        return self._dialect.marker(position)
