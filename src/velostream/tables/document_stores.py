"""What the document stores, MongoDB and Redis, say alike: options, refusals, and columns that don't fit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from velostream.errors import NotFoundError, OptionError, StateError, TableError, UnsupportedError
from velostream.model.options import Option, Options, OptionType
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec

OPTIONS: tuple[Option, ...] = (
    Option("url", "where the store is"),
    Option("username", "who we are to the store; may stand in the url too"),
    Option("password", "its password; may stand in the url too"),
    Option("table", "the table's name in the store; its own name by default"),
    Option(
        "if.exists",
        "what to do with a table that the store already has",
        OptionType.CHOICE,
        default="adopt",
        choices=("adopt", "fail", "replace"),
    ),
    Option(
        "access",
        "read-only attaches what is there without writing anything to the store",
        OptionType.CHOICE,
        default="read-write",
        choices=("read-write", "read-only"),
    ),
    Option("history", "for how many commits `changes` is kept once the table is followed", OptionType.INTEGER, "1000"),
    Option("pool.size", "how many connections there may be", OptionType.INTEGER, default="8"),
    Option("connection.pool.size", "the same as pool.size", OptionType.INTEGER),
    Option("connect.timeout", "how long to wait for the server", OptionType.DURATION, default="5s"),
    Option("retry.timeout", "how long to try again what failed for a passing reason", OptionType.DURATION, "15s"),
)


def url_of(kind: str, options: Options, *, example: str) -> str:
    url = options.text("url")
    if not url:
        raise OptionError(f'kind "{kind}" needs the option "url"', hint=f"WITH ('url' = '{example}')")
    return url


def pool_size(options: Options) -> int:
    return options.integer("connection.pool.size") or options.integer("pool.size") or 1


def connect_timeout(options: Options) -> timedelta:
    return options.duration("connect.timeout") or timedelta(milliseconds=1)


def retry_timeout(options: Options) -> timedelta:
    return options.duration("retry.timeout") or timedelta()


def is_read_only(options: Options) -> bool:
    return options.text("access") == "read-only"


def read_only(kind: str, table: str, capability: str) -> UnsupportedError:
    refused = UnsupportedError.capability(kind, capability)
    refused.detail = f'table "{table}" is attached read-only'
    refused.hint = "WITH ('access' = 'read-write')"
    return refused


def check_columns(kind: str, spec: TableSpec, there: Schema) -> None:
    """Raise `StateError` with the difference unless the store's columns are those asked for."""
    wanted = spec.schema
    if there == wanted:
        return
    differences = []
    for column in wanted.columns:
        other = there.find(column.name)
        if other is None:
            differences.append(f'column "{column.name}" {column.sql_type} is not there')
        elif other != column:
            differences.append(f'column "{column.name}" is {other.sql_type}, not {column.sql_type}')
    differences += [
        f'column "{column.name}" {column.sql_type} is there and not asked for'
        for column in there.columns
        if wanted.find(column.name) is None
    ]
    if there.key != wanted.key:
        differences.append(f"the key is ({', '.join(there.key)}), not ({', '.join(wanted.key)})")
    raise mismatch(kind, spec.name, differences or ["the columns have another order"])


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


def dropped(table: str) -> NotFoundError:
    """The table isn't in the store any more, or it is another one that was made under its name since."""
    gone = NotFoundError.of("table", table)
    gone.detail = "it was dropped from the store since it was opened"
    return gone
