"""What is kept about a table next to its rows, and the sorted sets by which ranges of a column are found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from velostream.errors import UnsupportedError
from velostream.model.schema import Schema
from velostream.tables.documents import dropped
from velostream.tables.redis.client import KIND, Connection
from velostream.tables.redis.layout import Layout, is_rankable, scores
from velostream.tables.redis.reader import Reader

_KEYS_AT_ONCE = 10_000
SENTINEL = ":"
"""Member of every index, so that one without rows can be told from one that was given up; no row's id has a colon."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The hash `<table>::meta`."""

    id: str
    incarnation: str
    """Another one once the table was dropped and made again."""
    version: int
    made: bool
    """We made the table, and DROP removes it; else it is a user's."""
    followed_from: int | None
    """The oldest version whose changes since are kept; None: nobody follows the table."""
    ttl: int
    """Milliseconds after which a row expires; 0: never."""
    index_names: str
    columns: str

    @property
    def schema(self) -> Schema:
        return Schema.from_json(json.loads(self.columns))

    @property
    def indexes(self) -> tuple[str, ...]:
        return tuple(json.loads(self.index_names))

    @classmethod
    def of(cls, connection: Connection, layout: Layout) -> TableState | None:
        return cls.from_hash(connection.ask(lambda client: client.hgetall(layout.meta)))

    @classmethod
    def from_hash(cls, found: Mapping[bytes, bytes]) -> TableState | None:
        if not found:
            return None
        return cls(
            id=found[b"id"].decode(),
            incarnation=found[b"incarnation"].decode(),
            version=int(found[b"version"]),
            made=found[b"made"] == b"1",
            followed_from=int(found[b"followed_from"]) if b"followed_from" in found else None,
            ttl=int(found.get(b"ttl", 0)),
            index_names=found.get(b"indexes", b"[]").decode(),
            columns=found[b"schema"].decode(),
        )


def remove(connection: Connection, layout: Layout, state: TableState | None, *, everything: bool) -> None:
    """Remove what is kept about a table, and with `everything` its rows."""
    ids = connection.hashes(layout.prefix) if everything else []
    names = [layout.prefix.encode() + id_ for id_ in ids]
    for start in range(0, len(names), _KEYS_AT_ONCE):
        part = names[start : start + _KEYS_AT_ONCE]
        connection.ask(lambda client, part=part: client.unlink(*part))  # type: ignore[misc]
    kept = [layout.meta, layout.epochs, layout.changes, layout.expiry, f"{layout.prefix}:rows"]
    kept += [layout.index(column) for column in (state.indexes if state is not None else ())]
    connection.ask(lambda client: client.unlink(*kept))


def create_index(connection: Connection, layout: Layout, column: str) -> None:
    """Rank the rows by a column, from now on; nothing happens where they are ranked."""
    check_index(layout, column)

    def start(pipeline: Any) -> None:
        state = TableState.from_hash(pipeline.hgetall(layout.meta))
        if state is None:
            raise dropped(layout.name)
        if column in state.indexes:
            return
        present = Reader(connection, layout).ids_with(column)
        ranked = scores(present.rows.column(column).combine_chunks()).to_pylist()
        members = {id_: float(score) for id_, score in zip(present.handles, ranked, strict=True) if score is not None}
        pipeline.multi()
        pipeline.delete(layout.index(column))
        pipeline.zadd(layout.index(column), {SENTINEL: 0, **members})
        pipeline.hset(layout.meta, "indexes", json.dumps([*state.indexes, column]))

    # Watched: a commit in between has everything done again.
    connection.ask(lambda client: client.transaction(start, layout.meta))


def drop_index(connection: Connection, layout: Layout, column: str) -> None:
    def start(pipeline: Any) -> None:
        state = TableState.from_hash(pipeline.hgetall(layout.meta))
        if state is None:
            raise dropped(layout.name)
        pipeline.multi()
        pipeline.hset(layout.meta, "indexes", json.dumps([name for name in state.indexes if name != column]))
        pipeline.delete(layout.index(column))

    connection.ask(lambda client: client.transaction(start, layout.meta))


def check_index(layout: Layout, column: str) -> None:
    """Refuse an index that can't be kept."""
    declared = layout.schema.column(column)
    if layout.own and is_rankable(declared.type):
        return
    refused = UnsupportedError.capability(KIND, "indexes")
    refused.detail = (
        f'column "{column}" of table "{layout.name}" is {declared.sql_type}; a sorted set ranks numbers and times'
        if layout.own
        else f'other programs write the hashes of table "{layout.name}" and don\'t rank them'
    )
    raise refused
