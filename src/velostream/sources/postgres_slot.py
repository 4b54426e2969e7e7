"""A replication slot and a publication of PostgreSQL: made or found, looked into, advanced, dropped.

What a slot holds is looked at and only given up once it is ours for good, so nothing is lost by a crash in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from velostream.errors import Category, SourceError
from velostream.sources.postgres_driver import PostgresDriver

if TYPE_CHECKING:
    import psycopg

_MANY = 2**31 - 1
_LONGEST_LOCK_SECONDS = 10


@dataclass(frozen=True, slots=True)
class SlotNames:
    """What a slot and its publication are called."""

    slot: str
    publication: str
    temporary: bool
    """The slot lives as long as the connection that made it."""


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """A table as the log names it."""

    schema: str
    name: str
    identity: tuple[str, ...] | None
    """The columns by which the log tells rows; None when it tells whole rows."""
    generated: tuple[str, ...]
    """The columns that the log leaves out."""


class PostgresSlot:
    """One slot, over one connection that is made when it is needed. For one thread at a time."""

    def __init__(self, driver: PostgresDriver) -> None:
        self._driver = driver
        self._connection: psycopg.Connection[Any] | None = None
        self._server: str | None = None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def table(self, relation: str, *, shown: str) -> CapturedTable:
        """What is to be captured; refused where the log could not tell which rows were changed."""
        found = self._ask(
            "SELECT n.nspname::text, c.relname::text, c.relreplident::text, c.relkind::text, "
            "current_setting('wal_level') "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::regclass",
            [relation],
            name=shown,
        )
        schema, name, identity, kind, level = found[0]
        if level != "logical":
            raise SourceError.refused(
                "postgres",
                where=str(self._driver.address),
                reason=f"wal_level is {level}; ALTER SYSTEM SET wal_level = logical, and start the server anew",
                category=Category.CONFIGURATION,
            )
        if kind not in ("r", "p"):
            raise SourceError(
                f'"{shown}" is no table, and has no changes in the log',
                hint="WITH ('poll.interval' = '30s') reads it again and again instead",
                category=Category.CONFIGURATION,
            )
        generated = self._ask(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = $1::regclass AND attgenerated <> '' "
            "AND NOT attisdropped ORDER BY attnum",
            [relation],
        )
        left_out = tuple(column for (column,) in generated)
        if identity == "f":
            return CapturedTable(schema, name, None, left_out)
        columns = self._ask(
            "SELECT a.attname::text FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(number, place) "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number WHERE i.indrelid = $1::regclass "
            "AND k.place <= i.indnkeyatts AND CASE WHEN $2 = 'i' THEN i.indisreplident ELSE i.indisprimary END "
            "ORDER BY k.place",
            [relation, identity],
        )
        if identity == "n" or not columns:
            raise SourceError(
                f'table "{shown}" has no key by which its log could tell rows',
                hint=f"ALTER TABLE {shown} REPLICA IDENTITY FULL; or WITH ('poll.interval' = '30s') instead of cdc",
                category=Category.CONFIGURATION,
            )
        return CapturedTable(schema, name, tuple(column for (column,) in columns), left_out)

    def fills(self, relation: str, columns: Sequence[str]) -> bool:
        """Whether one of these columns has a value in rows that nobody gave one."""
        found = self._ask(
            "SELECT count(*)::text FROM pg_attribute WHERE attrelid = $1::regclass AND NOT attisdropped "
            "AND attname = ANY ($2::text[]) AND (atthasdef OR attnotnull OR attidentity <> '')",
            [relation, list(columns)],
        )
        return bool(found[0][0] != "0")

    def server(self) -> str:
        """The database by a name that is the same whoever asks, and however."""
        self._connected()
        if self._server is None:
            found = self._ask("SELECT system_identifier::text || '/' || current_database() FROM pg_control_system()")
            self._server = str(found[0][0])
        return self._server

    def publish(self, names: SlotNames, table: CapturedTable, *, shown: str, ours: bool = False) -> bool:
        """See that the table is in the publication, which may be one that is `ours`; whether that had to be made."""
        found = self._ask("SELECT count(*)::text FROM pg_publication WHERE pubname = $1", [names.publication])
        if found[0][0] == "0":
            quote = self._driver.quote
            self._ask(
                f"CREATE PUBLICATION {quote(names.publication)} FOR TABLE {quote(table.schema)}.{quote(table.name)} "
                "WITH (publish_via_partition_root = true)"
            )
            return True
        inside = self._ask(
            "SELECT count(*)::text FROM pg_publication_tables "
            "WHERE pubname = $1 AND schemaname = $2 AND tablename = $3",
            [names.publication, table.schema, table.name],
        )
        if inside[0][0] == "0" and ours:
            self._add_table(names.publication, f"{self._driver.quote(table.schema)}.{self._driver.quote(table.name)}")
        elif inside[0][0] == "0":
            raise SourceError(
                f'publication "{names.publication}" does not have table "{shown}"',
                hint=f"ALTER PUBLICATION {names.publication} ADD TABLE {shown}",
                category=Category.CONFIGURATION,
            )
        whole = self._ask(
            "SELECT (p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate AND NOT EXISTS ("
            "SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = $2::regclass "
            # Columns that version 14 doesn't have.
            "AND (to_jsonb(r) ->> 'prqual' IS NOT NULL OR to_jsonb(r) ->> 'prattrs' IS NOT NULL)))::text "
            "FROM pg_publication p WHERE p.pubname = $1",
            [names.publication, f"{self._driver.quote(table.schema)}.{self._driver.quote(table.name)}"],
        )
        if whole[0][0] != "true":
            raise SourceError(
                f'publication "{names.publication}" does not tell all changes of table "{shown}"',
                detail="it must publish insert, update, delete and truncate, all rows and all columns",
                hint=f"leave out publication.name, or ALTER PUBLICATION {names.publication}",
                category=Category.CONFIGURATION,
            )
        return False

    def _add_table(self, publication: str, relation: str) -> None:
        """Have a publication tell a further table, from a moment on in which nobody is changing it: what transactions
        did before they would never be told, though they may end after the load that follows.
        """
        connection = self._connected()
        with self._driver.failures(), connection.transaction():
            # Whoever waits for a lock holds up all that come later.
            connection.execute(f"SET LOCAL lock_timeout = '{_LONGEST_LOCK_SECONDS}s'".encode())
            connection.execute(f"LOCK TABLE {relation} IN SHARE ROW EXCLUSIVE MODE".encode())
            connection.execute(f"ALTER PUBLICATION {self._driver.quote(publication)} ADD TABLE {relation}".encode())

    def make(self, names: SlotNames) -> None:
        """Make the slot; from its making on, all that is committed is in it."""
        self._ask(
            "SELECT 1 FROM pg_create_logical_replication_slot($1, 'pgoutput', $2::boolean)",
            [names.slot, str(names.temporary).lower()],
        )

    def confirmed(self, name: str) -> int | None:
        """Up to where the slot was given up; None when there is none, or it has lost what it should hold."""
        found = self._ask(
            "SELECT confirmed_flush_lsn::text, coalesce(wal_status, '') FROM pg_replication_slots "
            "WHERE slot_name = $1 AND database = current_database()",
            [name],
        )
        if not found or found[0][1] == "lost" or found[0][0] is None:
            return None
        return position_of(found[0][0])

    def retained(self, name: str) -> int | None:
        """Bytes of its log that the server keeps for the slot; None when it keeps none."""
        found = self._ask(
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint::text FROM pg_replication_slots "
            "WHERE slot_name = $1 AND database = current_database() AND restart_lsn IS NOT NULL",
            [name],
        )
        return int(found[0][0]) if found else None

    def readable_end(self) -> int:
        """Up to where a look that comes now sees the log; what is written but not on the server's disk is behind it."""
        return position_of(self._ask("SELECT pg_current_wal_flush_lsn()::text")[0][0])

    def written_end(self) -> int:
        """The position after all that anyone can have seen."""
        return position_of(self._ask("SELECT pg_current_wal_insert_lsn()::text")[0][0])

    def peek(self, names: SlotNames, *, changes: int | None, up_to: int | None = None) -> list[bytes]:
        """Messages of whole transactions, about so many, from where the slot was given up."""
        connection = self._connected()
        with self._driver.failures():
            cursor = connection.cursor(binary=True)
            cursor.execute(
                b"SELECT data FROM pg_logical_slot_peek_binary_changes($1, $2::pg_lsn, $3, "
                b"'proto_version', '1', 'publication_names', $4)",
                [names.slot, None if up_to is None else text_of(up_to), changes or _MANY, _listed(names.publication)],
            )
            return [data for (data,) in cursor.fetchall()]

    def advance(self, name: str, position: int) -> None:
        """Give up what is before a position."""
        confirmed = self.confirmed(name)
        if confirmed is not None and confirmed < position:
            self._ask("SELECT 1 FROM pg_replication_slot_advance($1, $2::pg_lsn)", [name, text_of(position)])

    def drop(self, slot: str | None, publication: str | None) -> None:
        """Drop what is named, if it is there."""
        if slot is not None:
            self._ask(
                "SELECT pg_drop_replication_slot(slot_name)::text FROM pg_replication_slots "
                "WHERE slot_name = $1 AND database = current_database()",
                [slot],
            )
        if publication is not None:
            self._ask(f"DROP PUBLICATION IF EXISTS {self._driver.quote(publication)}")

    def _ask(self, sql: str, values: Sequence[Any] = (), *, name: str | None = None) -> list[tuple[Any, ...]]:
        connection = self._connected()
        with self._driver.failures(name=name):
            cursor = connection.execute(sql.encode(), list(values))
            return list(cursor.fetchall()) if cursor.description else []

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            with self._driver.failures():
                self._connection, self._server = self._driver.connect(), None
        return self._connection


def position_of(text: str) -> int:
    """A position in the log, `16/B374D848`, as a number."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def text_of(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def _listed(name: str) -> str:
    """A name in a list of names."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
