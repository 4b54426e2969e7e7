"""What tables in stores have in common: their options, how one that is there is attached, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from velostream.errors import StateError, TableError, UnsupportedError
from velostream.model.change import Mode, Write
from velostream.model.options import Option, Options, OptionType
from velostream.model.schema import Column, Schema
from velostream.tables.base import Table, TableCapabilities

IF_EXISTS = Option(
    "if.exists",
    "what to do with a table that the store already has",
    OptionType.CHOICE,
    default="adopt",
    choices=("adopt", "fail", "replace"),
)
ACCESS = Option(
    "access",
    "read-only attaches what is there without writing anything to the store",
    OptionType.CHOICE,
    default="read-write",
    choices=("read-write", "read-only"),
)
STORE_OPTIONS: tuple[Option, ...] = (
    Option("table", "the table's name in the store; its own name by default"),
    IF_EXISTS,
    ACCESS,
    Option("history", "for how many commits `changes` is kept once the table is followed", OptionType.INTEGER, "1000"),
    Option("pool.size", "how many connections there may be", OptionType.INTEGER, default="8"),
    Option("connection.pool.size", "the same as pool.size", OptionType.INTEGER),
    Option("retry.timeout", "how long to try again what failed for a passing reason", OptionType.DURATION, "15s"),
)
"""Options of every kind that keeps rows in a store and what it must know of them next to them."""

CAPABILITY_OF: Mapping[Mode, str] = {
    Mode.APPEND: "insert",
    Mode.UPSERT: "upsert",
    Mode.DELETE: "delete",
    Mode.CHANGES: "update",
    Mode.REPLACE: "update",
}
"""What a write that is refused is called."""

WRITABLE = TableCapabilities(
    insert=True,
    update=True,
    delete=True,
    upsert=True,
    lookup=True,
    conditions=True,
    epochs=True,
    changes=True,
    durable=True,
)
"""What every kind of store that is written to claims."""


class StoredTable(Table):
    """A table in a store, which other programs may use too and which may be attached without the right to write."""

    capabilities: ClassVar[TableCapabilities] = WRITABLE

    _read_only: bool

    def _refuse_if_read_only(self, capability: str) -> None:
        if self._read_only:
            refused = UnsupportedError.capability(self.kind, capability)
            refused.detail = f'table "{self.name}" is attached read-only'
            refused.hint = "WITH ('access' = 'read-write')"
            raise refused

    def _check_writable(self, *writes: Write) -> None:
        """Refuse what would write to a table that is only read."""
        for write in writes:
            self._refuse_if_read_only(CAPABILITY_OF[write.mode])

    def _check_newest(self, version: int | None, newest: int) -> None:
        """For a store that keeps no older states: refuse a version other than the newest."""
        if version is not None and version != newest:
            if version > newest:
                raise unknown_version(self.name, version, newest)
            raise TableError.version_gone(self.name, version, oldest=newest)

    def _end_of_changes(self, since: int, until: int | None, *, newest: int, followed_from: int | None) -> int:
        """The version up to which `changes(since, until)` tells; an error where the log doesn't reach that far."""
        end = newest if until is None else until
        if max(since, end) > newest:
            raise unknown_version(self.name, max(since, end), newest)
        oldest = newest if followed_from is None else followed_from
        if since < oldest:
            raise TableError.version_gone(self.name, since, oldest=oldest)
        return end


def is_read_only(options: Options) -> bool:
    return options.text(ACCESS.name) == "read-only"


def pool_size(options: Options) -> int | None:
    """None where the options say nothing that can be used."""
    return options.integer("connection.pool.size") or options.integer("pool.size")


def retry_timeout(options: Options) -> timedelta:
    return options.duration("retry.timeout") or timedelta()


def check_columns(kind: str, table: str, *, wanted: Schema, there: Schema) -> None:
    """Raise `StateError` with the difference unless the columns that a store holds are those asked for."""
    if there == wanted:
        return
    differences = []
    for column in wanted.columns:
        other = there.find(column.name)
        if other is None:
            differences.append(column_missing(column))
        elif other != column:
            differences.append(f'column "{column.name}" is {_shown(other)}, not {_shown(column)}')
    differences += [
        f'column "{column.name}" {column.sql_type} is there and not asked for'
        for column in there.columns
        if wanted.find(column.name) is None
    ]
    if there.key != wanted.key:
        differences.append(f"the key is ({', '.join(there.key)}), not ({', '.join(wanted.key)})")
    raise mismatch(kind, table, differences or ["the columns have another order"])


def column_missing(column: Column) -> str:
    return f'column "{column.name}" {column.sql_type} is not there'


def mismatch(kind: str, table: str, differences: Sequence[str]) -> StateError:
    return StateError(
        f'table "{table}" in {kind} has other columns than asked for',
        detail="; ".join(differences),
        hint="name another table: WITH ('table' = …), or give up what is there: WITH ('if.exists' = 'replace')",
        code="schema-mismatch",
    )


def unknown_version(table: str, version: int, newest: int) -> TableError:
    return TableError(
        f'version {version} of table "{table}" does not exist yet',
        detail=f"newest version: {newest}",
        code="unknown-version",
    )


def _shown(column: Column) -> str:
    return f"{column.sql_type}{'' if column.nullable else ' NOT NULL'}"
